// Parts of rdma-copy that need no connection: messages, paths, what is printed.
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "common/printable.hpp"
#include "fuzz/corpus.hpp"
#include "rdma-copy/address_range.hpp"
#include "rdma-copy/copy_message.hpp"
#include "rdma-copy/exclusions.hpp"
#include "rdma-copy/extended_attributes.hpp"
#include "rdma-copy/progress.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/session.hpp"
#include "support/catch.hpp"

using namespace std::chrono_literals;

TEST_CASE("copy: an error says at which side it was", "[programs]") {
    CHECK(copy::why_there("target", ENOSPC) == "at the target: No space left on device");
    CHECK(copy::why_there("source", EACCES) == "at the source: Permission denied");
    // Of a file system on a server, which has lost the file.
    CHECK(copy::why_there("target", ESTALE) == "at the target: Stale file handle");
    CHECK(copy::why_there("source", ESTALE) == "at the source: Stale file handle");
    CHECK(
        copy::why_there("source", copy::error_source_changed) ==
        "the source has changed while it was copied"
    );
}

TEST_CASE("copy: each message is what it was after it was sent", "[programs]") {
    copy::entry e;
    e.file = 7;
    e.is_sparse = true;
    e.has_attributes = true;
    e.has_acl = true;
    e.mode = 0640;
    e.user = 1;
    e.group = 2;
    e.seconds = -5;
    e.nanoseconds = copy::nanoseconds_max;
    e.size = INT64_MAX;
    e.identity.fill(std::byte{3});
    e.directory = 6;
    e.name = std::string(copy::text_bytes_max, 'p');
    copy::entry l;
    l.type = copy::entry_type::hard_link;
    l.name = "a";
    l.target = std::string(copy::text_bytes_max, 't');
    copy::entry small;
    small.name = "a";
    small.size = 5;
    copy::entry asked = small;
    asked.asks = true;
    copy::entry ended;
    ended.type = copy::entry_type::directory_end;
    ended.directory = 7;
    copy::hello h;
    h.speaks = 1;
    h.way = copy::direction::to_client;
    h.where = copy::placing::onto;
    h.replaces = h.keeps_owners = h.verifies = h.wants_total = h.continues = h.lists = true;
    h.exclusions = copy::exclusions::patterns_max;
    h.bytes_per_second = UINT64_MAX;
    h.name = "name";
    copy::hello to_server;
    to_server.deletes = to_server.keeps_attributes = to_server.keeps_acls = true;
    std::vector<copy::copy_message> const all{
        h,
        copy::welcome{1, 65535},
        copy::slots{1, 2, 4096, 65535},
        copy::credit{9},
        copy::begin{7, 1ULL << 40},
        copy::abort_file{7, 28},
        copy::done{7, 0},
        e,
        l,
        copy::block{7, 4096, 1, 3, {}},
        copy::hole{7, 4096, 1ULL << 50},
        copy::end{7, 5},
        copy::skipped{13, "a/b"},
        copy::total{1, UINT64_MAX},
        copy::finished{},
        copy::alive{},
        copy::not_kept{0, 1, 0, UINT64_MAX},
        copy::batch{3, 4096, {}},
        copy::whole_file{small, std::vector<std::byte>(5)},
        asked,
        ended,
        copy::wanted{8},
        copy::stopped{},
        copy::exclude{"*.o"},
        to_server,
        copy::deleted{16, "a/b"},
        copy::attribute{"user.a", false, std::vector<std::byte>(5)}};
    for (copy::copy_message const& m : all) {
        CAPTURE(m.index());
        auto const bytes = copy::encode(m);
        CHECK(bytes.size() <= copy::message_bytes_max);
        auto const back = copy::decode(m.index(), bytes);
        REQUIRE(back);
        CHECK(back->index() == m.index());
        CHECK(copy::encode(*back) == bytes);
        // Not with a byte more or less, and not as another message of that size.
        auto longer = bytes;
        longer.push_back({});
        // A value ends with its message.
        if (std::holds_alternative<copy::attribute>(m)) continue;
        CHECK_FALSE(copy::decode(m.index(), longer));
        if (!bytes.empty())
            CHECK_FALSE(copy::decode(m.index(), std::span{bytes}.first(bytes.size() - 1)));
    }
    CHECK_FALSE(copy::decode(std::variant_size_v<copy::copy_message>, {}));
    // Only a client that sends asks a server to delete.
    to_server.way = copy::direction::to_client;
    CHECK_FALSE(copy::decode(0, copy::encode(to_server)));
    CHECK_FALSE(copy::decode(UINT64_MAX, {}));
}

TEST_CASE("copy: the fuzzer begins with a message of each kind", "[programs]") {
    std::set<std::size_t> kinds;
    std::filesystem::path const corpus = fuzz::corpus_folder;
    for (auto const& each : std::filesystem::directory_iterator{corpus / "copy_message"}) {
        CAPTURE(each.path());
        std::ifstream in{each.path(), std::ios::binary};
        std::string const text{std::istreambuf_iterator<char>{in}, {}};
        REQUIRE_FALSE(text.empty());
        auto const bytes = std::as_bytes(std::span{text});
        auto const m =
            copy::decode(std::to_integer<std::uint64_t>(bytes.front()), bytes.subspan(1));
        CHECK(m.has_value());
        if (m) kinds.insert(m->index());
    }
    CHECK(kinds.size() == std::variant_size_v<copy::copy_message>);
}

TEST_CASE("copy: extended attributes of a peer have known names, and limits", "[programs]") {
    using limits = copy::extended_attributes;
    for (char const* const name :
         {"user.a",
          "trusted.a",
          "security.capability",
          "system.posix_acl_access",
          "system.posix_acl_default"})
        CHECK(copy::is_attribute_name(name));
    for (std::string const& name : std::vector<std::string>{
             "",
             "user",
             "security.selinux",
             "system.nfs4_acl",
             "system.posix_acl",
             "os2.a",
             "user." + std::string(251, 'a'),
             std::string{"user.a\0b", 8}})
        CHECK_FALSE(copy::is_attribute_name(name));

    std::vector<std::byte> const part(copy::attribute_part_bytes_max);
    limits some;
    REQUIRE(some.add({"user.a", true, part}));
    CHECK_FALSE(some.is_complete());
    CHECK_FALSE(some.add({"user.b", false, {}}));
    REQUIRE(some.add({"user.a", false, {std::byte{1}}}));
    CHECK(some.is_complete());
    CHECK_FALSE(some.add({"user.a", false, {}}));
    REQUIRE(some.add({"user.none", false, {}}));
    CHECK_FALSE(some.add({"security.selinux", false, {}}));
    // What is sent is what arrives.
    limits again;
    for (copy::attribute const& each : some.parts()) REQUIRE(again.add(each));
    CHECK(again.is_complete());
    CHECK(again.values() == some.values());

    limits one;
    for (std::size_t bytes = 0; bytes < limits::value_bytes_max; bytes += part.size())
        REQUIRE(one.add({"user.a", true, part}));
    CHECK_FALSE(one.add({"user.a", false, {std::byte{1}}}));
    CHECK(one.add({"user.a", false, {}}));
    limits many;
    std::size_t added = 0;
    while (many.add({"user." + std::to_string(added), false, part})) ++added;
    CHECK(many.bytes() <= limits::bytes_max);
    CHECK(added > 100);
}

TEST_CASE("copy: messages in a row are taken one by one", "[programs]") {
    std::vector<std::byte> row;
    copy::append(row, copy::credit{1});
    copy::append(row, copy::finished{});
    copy::append(row, copy::credit{2});
    std::span<std::byte const> rest = row;
    auto const first = copy::take_first(rest);
    REQUIRE(first);
    CHECK(std::get<copy::credit>(*first).slot == 1);
    auto const second = copy::take_first(rest);
    REQUIRE(second);
    CHECK(std::holds_alternative<copy::finished>(*second));
    std::span<std::byte const> cut = rest.first(rest.size() - 1);
    CHECK_FALSE(copy::take_first(cut));
    auto const third = copy::take_first(rest);
    REQUIRE(third);
    CHECK(std::get<copy::credit>(*third).slot == 2);
    CHECK(rest.empty());
    CHECK_FALSE(copy::take_first(rest));
}

TEST_CASE("copy: paths stay inside, and some names are nobody's", "[programs]") {
    for (char const* const inside : {"a", "a/b", ".a", "a..b/...", "a\n"})
        CHECK(copy::is_inside(inside));
    for (char const* const outside :
         {"", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b"})
        CHECK_FALSE(copy::is_inside(outside));
    for (char const* const reserved :
         {".a.rdma-copy.part", "b/.a.rdma-copy.state", ".a.rdma-copy.x/c", "..rdma-copy."})
        CHECK(copy::is_reserved(reserved));
    for (char const* const free :
         {"a.rdma-copy.part", ".rdma-copy", ".a/rdma-copy.part", ".a.rdma-copy"})
        CHECK_FALSE(copy::is_reserved(free));
    CHECK(copy::temporary_name(std::string(255, 'n'), "state").size() == 255);
    CHECK(copy::is_reserved(copy::temporary_name("n", copy::random_text())));
}

TEST_CASE("copy: a pattern excludes what it is compared with", "[programs]") {
    struct row {
        char const* pattern;
        char const* path;
        bool is_excluded;
    };
    for (row const& r : std::vector<row>{
             {"*.o", "a.o", true},      {"*.o", "b/a.o", true},     {"*.o", "a.o/b", false},
             {"*.o", "a.oo", false},    {"a", "a", true},           {"a", "b/a", true},
             {"a", "aa", false},        {"/a", "a", true},          {"/a", "b/a", false},
             {"b/a", "b/a", true},      {"b/a", "c/b/a", true},     {"b/a", "cb/a", false},
             {"/b/*", "b/a", true},     {"/b/*", "b/c/a", false},   {"/b/**", "b/c/a", true},
             {"**/x", "a/b/x", true},   {"**x", "a/b/x", true},     {"?", "a", true},
             {"a?b", "a/b", false},     {"[a-c]x", "bx", true},     {"[!a-c]x", "bx", false},
             {"[^a-c]x", "dx", true},   {"[]x]", "]", true},        {"[a-]", "-", true},
             {"\\*", "*", true},        {"\\*", "a", false},        {"a*b*c", "aXbXbXc", true},
             {"a*b*c", "aXbXb", false}, {"\xff*", "\xff\xfe", true}}) {
        CAPTURE(r.pattern, r.path);
        copy::exclusions e;
        REQUIRE(e.add(r.pattern));
        CHECK(e.has(r.path, false) == r.is_excluded);
        CHECK(e.has(r.path, true) == r.is_excluded);
    }
    copy::exclusions directories;
    REQUIRE(directories.add("cache/"));
    CHECK(directories.has("a/cache", true));
    CHECK_FALSE(directories.has("a/cache", false));
    CHECK_FALSE(copy::exclusions{}.has("a", false));
    copy::exclusions e;
    for (std::string_view const wrong : {"", "/", "//", "[a", "[", "a\\", "[!]"}) {
        CAPTURE(wrong);
        CHECK_FALSE(e.add(wrong));
    }
    // What a peer sends has limits.
    copy::exclusions many;
    for (std::size_t i = 0; i < copy::exclusions::patterns_max; ++i) REQUIRE(many.add("a"));
    CHECK_FALSE(many.add("a"));
    copy::exclusions large;
    CHECK(large.add(std::string(copy::exclusions::bytes_max, '*')));
    CHECK_FALSE(large.add("a"));
}

TEST_CASE("copy: a range of addresses has those that begin with its bits", "[programs]") {
    struct row {
        char const* range;
        char const* address;
        bool is_in;
    };
    for (row const& r : std::vector<row>{
             {"10.0.0.7", "10.0.0.7", true},
             {"10.0.0.7", "10.0.0.8", false},
             {"10.0.0.7/24", "10.0.0.255", true},
             {"10.0.0.0/24", "10.0.1.0", false},
             {"10.0.0.128/25", "10.0.0.127", false},
             {"0.0.0.0/0", "255.1.2.3", true},
             {"0.0.0.0/0", "fd00::1", false},
             {"10.0.0.0/8", "::ffff:10.1.2.3", true},
             {"::/0", "10.0.0.1", false},
             {"::/0", "fd00::1", true},
             {"fd00::/8", "fdff::1", true},
             {"fd00::/8", "fe80::1", false},
             {"fe80::/10", "fe80::1%lo", true},
             {"fd00::1", "fd00::1", true},
             {"fd00::1", "fd00::2", false}}) {
        CAPTURE(r.range, r.address);
        auto const range = copy::address_range::parse(r.range);
        REQUIRE(range);
        CHECK(range->has(boost::asio::ip::make_address(r.address)) == r.is_in);
    }
    for (char const* const wrong :
         {"",
          "/8",
          "host",
          "10.0.0.0/",
          "10.0.0.0/33",
          "10.0.0.0/-1",
          "10.0.0.0/8x",
          "fd00::/129",
          "fe80::1%lo"})
        CHECK_FALSE(copy::address_range::parse(wrong));
}

TEST_CASE("copy: a place on a server has a host and a path", "[programs]") {
    auto const there = copy::parse_place("[fe80::1]:a/b:c");
    REQUIRE(there);
    CHECK(there->host == "fe80::1");
    CHECK(there->path == "a/b:c");
    CHECK(copy::parse_place("host:")->path.empty());
    for (char const* const local : {"a", "./a:b", "/a:b", ":a", "[::1]"})
        CHECK_FALSE(copy::parse_place(local));
}

TEST_CASE("copy: progress says how much of how much, the rate and the time left", "[programs]") {
    CHECK(copy::in_units(0) == "0 B");
    CHECK(copy::in_units(1023) == "1023 B");
    CHECK(copy::in_units(1536) == "1.5 KiB");
    CHECK(copy::in_units(std::uint64_t{10} << 30) == "10.0 GiB");
    CHECK(copy::in_units(UINT64_MAX) == "16.0 EiB");
    CHECK(copy::in_minutes(187s) == "3:07");
    CHECK(copy::in_minutes(3765s) == "1:02:45");

    copy::result r;
    r.moved = 512 << 20;
    r.entries = 3;
    double const rate = 16 << 20;
    CHECK(copy::progress_line(r, rate, 120) == "512.0 MiB, 16.0 MiB/s, 3 entries");
    r.total = copy::result::whole{10, std::uint64_t{2} << 30};
    r.failed = 1;
    std::string const line =
        "512.0 MiB of 2.0 GiB, 25 %, 16.0 MiB/s, 1:36 left, 3 of 10 entries, 1 failed";
    std::string const bar = '[' + std::string(7, '#') + std::string(23, ' ') + "] ";
    CHECK(copy::progress_line(r, rate, 120) == bar + line);
    CHECK(copy::progress_line(r, rate, 40) == line.substr(0, 40));
    CHECK(copy::progress_line(r, 0, 120).find("left") == std::string::npos);
    // Files that have grown.
    r.moved = std::uint64_t{3} << 30;
    CHECK(copy::progress_line(r, rate, 120).find("100 %") != std::string::npos);

    copy::pace p;
    auto const begin = std::chrono::steady_clock::time_point{};
    copy::result moving;
    moving.continued = moving.moved = 1000;
    p.sample(begin, moving);
    CHECK(p.rate() == 0);
    moving.moved = 3000;
    p.sample(begin + 2s, moving);
    CHECK(p.rate() == 1000);
    // What is long ago does not count.
    for (int i = 3; i < 20; ++i) p.sample(begin + std::chrono::seconds{i}, moving);
    CHECK(p.rate() == 0);
}

TEST_CASE("copy: the result is one object in a line, whatever the names are", "[programs]") {
    copy::result r;
    r.entries = 2;
    r.failed = 1;
    r.current = "a\n\xff";
    auto const progress = nlohmann::json::parse(copy::progress_json(r, 12.5));
    CHECK(progress["type"] == "progress");
    CHECK(progress["bytes_per_second"] == 12);
    CHECK_FALSE(progress.contains("total_bytes"));
    std::string const text =
        copy::result_json(r, {{"b\n\xfe", "Permission denied"}}, "the peer has left", 1500ms);
    CHECK(text.find('\n') == std::string::npos);
    auto const result = nlohmann::json::parse(text);
    CHECK(result["type"] == "result");
    CHECK(result["seconds"] == 1.5);
    CHECK(result["failures"][0]["error"] == "Permission denied");
    CHECK(result["error"] == "the peer has left");
    CHECK(result["not_kept"]["owners"] == 0);
    CHECK(copy::text_of({}).empty());
    CHECK(
        copy::text_of({2, 1, 0, 3}) ==
        "not kept: owners of 1 entry, set-user-ID, set-group-ID or sticky bits of 2 entries, ACLs "
        "of 3 entries"
    );
    r.asked = copy::hello{};
    CHECK(copy::served(r) == "received into .: 2 entries, 0 B, 1 failed");
    r.asked->way = copy::direction::to_client;
    r.asked->name = "a/b\n";
    CHECK(copy::served(r) == "sent a/b\\x0a: 2 entries, 0 B, 1 failed");
    CHECK(copy::summary(r, 1500ms) == "2 entries, 0 B, 1 failed in 1.500 s");
    r.deleted = 3;
    CHECK(copy::summary(r, 1500ms) == "2 entries, 0 B, 3 deleted, 1 failed in 1.500 s");
    CHECK(copy::served(r) == "sent a/b\\x0a: 2 entries, 0 B, 3 deleted, 1 failed");
}

TEST_CASE("a printed line has characters only, and none that controls a terminal", "[programs]") {
    for (std::string const text :
         {"", "a b~", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xc2\xa0"})
        CHECK(demo::one_line(text) == text);
    CHECK(demo::one_line("a\nb\x7f\x1b") == "a\\x0ab\\x7f\\x1b");
    // U+009B begins a control sequence.
    CHECK(
        demo::one_line("\xc2\x9b"
                       "1m") == "\\xc2\\x9b1m"
    );
    // No characters: a byte alone, a part, one that is too long, a surrogate, one beyond the last.
    CHECK(demo::one_line("\xff") == "\\xff");
    CHECK(demo::one_line("\xc3") == "\\xc3");
    CHECK(demo::one_line("\xc3(") == "\\xc3(");
    CHECK(demo::one_line("\xe2\x82") == "\\xe2\\x82");
    CHECK(demo::one_line("\xc0\xaf") == "\\xc0\\xaf");
    CHECK(demo::one_line("\xe0\x80\xaf") == "\\xe0\\x80\\xaf");
    CHECK(demo::one_line("\xed\xa0\x80") == "\\xed\\xa0\\x80");
    CHECK(demo::one_line("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
}
