// Copies that keep what files are: holes, names, owners; that are read back, and that continue.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/xattr.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <future>

#include "device/copy_fixture.hpp"

using namespace test;

namespace {

struct stat status_of(fs::path const& at) {
    struct stat s {};
    REQUIRE(::lstat(at.c_str(), &s) == 0);
    return s;
}

// Data at these offsets, and holes between and behind.
void write_sparse(
    fs::path const& at, std::vector<std::uint64_t> const& offsets, std::uint64_t size
) {
    std::ofstream out{at, std::ios::binary};
    for (std::uint64_t const offset : offsets) {
        auto const bytes = pattern(5000, offset);
        out.seekp(static_cast<std::streamoff>(offset));
        out.write(reinterpret_cast<char const*>(bytes.data()), 5000);
    }
    out.close();
    fs::resize_file(at, size);
}

// Ends a copy of a large file, from the client's side, when this much of it has arrived.
void cut_at(fs::path const& file, fs::path const& target, std::uint64_t bytes) {
    asio::io_context io;
    ends e{io, std::size_t{512} * 1024, target};
    std::vector<std::string> const sources{file.string()};
    std::string const name = "copy";
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            copy::result done;
            try {
                co_await push_to(e, sources, name, no_options, done);
            } catch (boost::system::system_error const&) {}
        };
        auto const end = [&]() -> asio::awaitable<void> {
            co_await until(io, [&] { return e.of_server.moved >= bytes; });
            e.client.close();
        };
        co_await ((serve_one(io, e) && client()) && end());
    });
    CHECK(e.server_end);
    CHECK_FALSE(fs::exists(target / "copy"));
}

copy::result copied(
    fs::path const& file, fs::path const& target, copy::copy_options const& options = {}
) {
    asio::io_context io;
    ends e{io, std::size_t{512} * 1024, target};
    auto const done = pushed(e, io, {file.string()}, "copy", options);
    CHECK(e.of_server.continued == done.continued);
    CHECK(e.of_server.moved == done.moved);
    return done;
}

void damage(fs::path const& at, std::uint64_t offset) {
    std::fstream f{at, std::ios::binary | std::ios::in | std::ios::out};
    f.seekp(static_cast<std::streamoff>(offset));
    f.put('!');
    REQUIRE(f.good());
}

}  // namespace

TEST_CASE("copy: holes stay holes", "[device][any-device]") {
    struct shape {
        std::vector<std::uint64_t> data;
        std::uint64_t size;
    };
    auto const s = GENERATE(
        shape{{0, 9 * mebibyte + 100}, 16 * mebibyte},
        shape{{7 * mebibyte}, 7 * mebibyte + 5000},
        shape{{}, 3 * mebibyte + 1},
        shape{{}, std::uint64_t{1} << 40},
        shape{{1, 20000, 40000}, 50000}
    );
    bool const verifies = GENERATE(false, true);
    folder here;
    folder there;
    write_sparse(here / "file", s.data, s.size);
    auto const done = copied(here / "file", there / "", {.verifies = verifies});
    CHECK(done.failed == 0);
    CHECK(done.bytes == s.size);
    struct stat const copied_to = status_of(there / "copy");
    CHECK(static_cast<std::uint64_t>(copied_to.st_size) == s.size);
    CHECK(copied_to.st_blocks <= status_of(here / "file").st_blocks + 16);
    if (s.size < 100 * mebibyte) CHECK((content(here / "file") == content(there / "copy")));
}

TEST_CASE("copy: names of one file are names of one file", "[device][any-device]") {
    folder here;
    fs::create_directories(here / "tree/a");
    fs::create_directories(here / "tree/b");
    write_file(here / "tree/a/first", pattern(100'000, 1));
    fs::create_hard_link(here / "tree/a/first", here / "tree/a/second");
    fs::create_hard_link(here / "tree/a/first", here / "tree/b/third");
    asio::io_context io;
    ends e{io};
    auto const done = pushed(e, io, {(here / "tree").string()}, "");
    CHECK(done.failed == 0);
    CHECK(done.bytes == 100'000);
    CHECK(listing(here / "tree") == listing(e.served / "tree"));
    CHECK(status_of(e.served / "tree/b/third").st_nlink == 3);
    CHECK(
        status_of(e.served / "tree/b/third").st_ino == status_of(e.served / "tree/a/first").st_ino
    );
    // Once more, over what is there.
    asio::io_context again;
    ends f{again, std::size_t{1} << 20, e.served / ""};
    CHECK(pushed(f, again, {(here / "tree").string()}, "", {.replaces = true}).failed == 0);
    CHECK(listing(here / "tree") == listing(e.served / "tree"));
    CHECK(status_of(e.served / "tree/b/third").st_nlink == 3);
    CHECK(leftovers(e.served / "").empty());
}

TEST_CASE("copy: what is not kept is counted on both sides", "[device][any-device]") {
    if (::geteuid() != 0) {
        WARN("skipped: only root gives files to others");
        return;
    }
    bool const is_pull = GENERATE(false, true);
    CAPTURE(is_pull);
    folder here;
    folder there;
    fs::path const tree = (is_pull ? there : here) / "tree";
    fs::create_directories(tree / "a");
    write_file(tree / "plain", pattern(10, 1));
    write_file(tree / "program", pattern(10, 1));
    write_file(tree / "a/foreign", pattern(10, 1));
    fs::create_symlink("plain", tree / "a/link");
    REQUIRE(::chmod((tree / "program").c_str(), 04755) == 0);
    for (char const* const each : {"a/foreign", "a/link"})
        REQUIRE(::lchown((tree / each).c_str(), 1234, 5678) == 0);
    bool has_attributes = true;
    bool has_acls = true;
    // Read for user 1234. Source: linux/posix_acl_xattr.h.
    std::array<std::uint32_t, 11> const acl{
        2,
        0x6'0001,
        0xffff'ffff,
        0x4'0002,
        1234,
        0x4'0004,
        0xffff'ffff,
        0x4'0010,
        0xffff'ffff,
        0x4'0020,
        0xffff'ffff};
    for (char const* const each : {"plain", "a"}) {
        has_attributes &= ::setxattr((tree / each).c_str(), "user.color", "red", 3, 0) == 0;
        has_acls &= ::setxattr(
                        (tree / each).c_str(), "system.posix_acl_access", acl.data(), sizeof acl, 0
                    ) == 0;
    }
    asio::io_context io;
    ends e{io, 65536, there / ""};
    copy::result done;
    std::vector<std::string> const sources{tree.string()};
    std::string const target = is_pull ? (here / "").string() : "copy";
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            if (!is_pull) co_return co_await push_to(e, sources, target, no_options, done);
            co_await e.client.connect(e.door.local_endpoint());
            co_await copy::pull(e.client, e.files, "tree", target, {}, e.report(), done);
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(done.failed == 0);
    copy::not_kept const expected{
        1, 2, has_attributes ? std::uint64_t{2} : 0, has_acls ? std::uint64_t{2} : 0};
    for (copy::not_kept const& lost : {done.lost, e.of_server.lost}) {
        CHECK(lost.special_modes == expected.special_modes);
        CHECK(lost.owners == expected.owners);
        CHECK(lost.attributes == expected.attributes);
        CHECK(lost.acls == expected.acls);
    }
    if (!has_attributes || !has_acls)
        WARN("skipped: this file system has no extended attributes, or no ACLs");
}

namespace {

// Reading for user 1234, or nothing. Source: linux/posix_acl_xattr.h.
std::vector<std::uint32_t> acl_for_somebody() {
    constexpr std::uint32_t nobody = 0xffff'ffff;
    return {
        2, 0x6'0001, nobody, 0x4'0002, 1234, 0x4'0004, nobody, 0x4'0010, nobody, 0x4'0020, nobody};
}

std::map<std::string, std::string> attributes_at(fs::path const& at) {
    std::map<std::string, std::string> all;
    std::vector<char> names(65536);
    ssize_t const size = ::listxattr(at.c_str(), names.data(), names.size());
    for (ssize_t i = 0; i < size;) {
        std::string const name{names.data() + i};
        i += static_cast<ssize_t>(name.size()) + 1;
        std::vector<char> value(65536);
        ssize_t const bytes = ::getxattr(at.c_str(), name.c_str(), value.data(), value.size());
        if (bytes >= 0 && copy::is_attribute_name(name))
            all[name] = std::string{value.data(), static_cast<std::size_t>(bytes)};
    }
    return all;
}

bool set_attribute(fs::path const& at, char const* name, std::string const& value) {
    return ::setxattr(at.c_str(), name, value.data(), value.size(), 0) == 0;
}

}  // namespace

TEST_CASE(
    "copy: extended attributes and ACLs are kept if both sides want that", "[device][any-device]"
) {
    bool const is_pull = GENERATE(false, true);
    bool const deletes = GENERATE(false, true);
    CAPTURE(is_pull, deletes);
    folder here;
    folder there;
    fs::path const from = (is_pull ? there : here) / "tree";
    fs::path const to = (is_pull ? here : there) / "copy";
    fs::create_directories(from / "a/b");
    for (char const* const each : {"plain", "a/file", "a/program"})
        write_file(from / each, pattern(10, 1));
    write_large(from / "large", 100'000, 1);
    auto const words = acl_for_somebody();
    std::string const acl{
        reinterpret_cast<char const*>(words.data()), words.size() * sizeof words[0]};
    // A file system may have no place for user's (tmpfs), or for ACLs.
    std::string const name = set_attribute(from, "user.x", "") ? "user.color" : "trusted.color";
    // Several parts.
    bool is_set = set_attribute(from / "large", name.c_str(), std::string(3000, 'r'));
    is_set &= set_attribute(from / "a", name.c_str(), "blue");
    is_set &= set_attribute(from / "a/file", name.c_str(), "");
    is_set &= set_attribute(from / "a/file", "system.posix_acl_access", acl);
    is_set &= set_attribute(from / "a", "system.posix_acl_default", acl);
    is_set &= set_attribute(from / "a/b", "system.posix_acl_access", acl);
    if (!is_set) {
        WARN("skipped: this file system has no extended attributes, or no ACLs");
        return;
    }
    ::chmod((from / "a/file").c_str(), 0440);
    // What is there has others.
    fs::create_directories(to / "a");
    REQUIRE(set_attribute(to / "a", (name + "2").c_str(), "old"));
    REQUIRE(set_attribute(to, "system.posix_acl_default", acl));
    auto const copied_with = [&](copy::copy_options options) {
        options.is_onto = true;
        options.deletes = deletes;
        asio::io_context io;
        ends e{io, 65536, there / ""};
        e.allows = {true, true};
        e.allows_deletes = true;
        copy::result done;
        std::vector<std::string> const sources{from.string()};
        std::string const target = is_pull ? to.string() : "copy";
        run(io, [&]() -> asio::awaitable<void> {
            auto const client = [&]() -> asio::awaitable<void> {
                if (!is_pull) co_return co_await push_to(e, sources, target, options, done);
                co_await e.client.connect(e.door.local_endpoint());
                co_await copy::pull(e.client, e.files, "tree", target, options, e.report(), done);
            };
            co_await (serve_one(io, e) && client());
        });
        CHECK(done.failed == 0);
        CHECK(e.of_server.lost == done.lost);
        return done.lost;
    };
    copy::copy_options options;
    options.keeps = {true, true};
    CHECK(copied_with(options) == copy::not_kept{});
    auto const compare = [&] {
        CHECK(listing(from) == listing(to));
        CHECK(attributes_at(from) == attributes_at(to));
        for (auto const& [path, text] : listing(from)) {
            CAPTURE(path);
            CHECK(attributes_at(from / path) == attributes_at(to / path));
        }
    };
    compare();
    // Also of files that are there.
    REQUIRE(set_attribute(from / "a/file", name.c_str(), "new"));
    options.continues = true;
    CHECK(copied_with(options) == copy::not_kept{});
    compare();
    // Only one of both.
    options.continues = false;
    options.replaces = true;
    options.keeps = {true, false};
    CHECK(copied_with(options) == copy::not_kept{.acls = 3});
}

TEST_CASE(
    "copy: a server keeps no extended attributes if it was not started so", "[device][any-device]"
) {
    bool const of_attributes = GENERATE(false, true);
    folder here;
    write_file(here / "file", pattern(10, 1));
    asio::io_context io;
    ends e{io};
    (of_attributes ? e.allows.acl : e.allows.attributes) = true;
    copy::copy_options options;
    options.keeps = {true, true};
    std::string why;
    copy::result done;
    std::vector<std::string> const sources{(here / "file").string()};
    std::string const target;
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            try {
                co_await push_to(e, sources, target, options, done);
            } catch (copy::refused const& refused) {
                why = refused.what();
            }
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(why.ends_with("Operation not permitted; --xattrs, --acls must be allowed there, too"));
    CHECK(listing(e.served / "").empty());
}

TEST_CASE("copy: a tree may be deeper than directories are open", "[device][any-device]") {
    bool const is_pull = GENERATE(false, true);
    CAPTURE(is_pull);
    folder here;
    folder there;
    fs::path const from = is_pull ? there / "tree" : here / "tree";
    fs::path const to = is_pull ? here / "tree" : there / "tree";
    fs::path at = from;
    for (std::size_t depth = 0; depth < 2 * copy::directory_stream::open_max; ++depth) {
        // Names before and behind that of the next directory, and two of one file.
        fs::create_directories(at / "deeper");
        for (char const* const name : {"a", "file", "x"}) write_file(at / name, pattern(10, depth));
        fs::create_hard_link(at / "file", at / "other");
        at /= "deeper";
    }
    asio::io_context io;
    ends e{io, 65536, there / ""};
    copy::result done;
    copy::copy_options const options;
    std::vector<std::string> const sources{from.string()};
    std::string const target = is_pull ? to.parent_path().string() : "";
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            if (!is_pull) co_return co_await push_to(e, sources, target, options, done);
            co_await e.client.connect(e.door.local_endpoint());
            co_await copy::pull(e.client, e.files, "tree", target, options, e.report(), done);
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(e.failures.empty());
    CHECK(listing(from) == listing(to));
}

TEST_CASE(
    "copy: each level of a tree takes as many bytes as the first one", "[device][any-device]"
) {
    bool const continues = GENERATE(false, true);
    CAPTURE(continues);
    constexpr std::uint64_t levels = 300;
    folder here;
    fs::path at = here / "tree";
    for (std::uint64_t i = 0; i < levels; ++i) {
        fs::create_directories(at);
        write_file(at / "file", pattern(10, i));
        at /= "directory";
    }
    asio::io_context io;
    ends e{io};
    auto const done = pushed(e, io, {(here / "tree").string()}, "", {.continues = continues});
    CHECK(done.entries == 2 * levels);
    CHECK(listing(here / "tree") == listing(e.served / "tree"));
    // A path has 1500 bytes on average.
    CHECK(e.client.connection().statistics().bytes_sent < levels * 500);
}

TEST_CASE("copy: owners are kept if both sides want that", "[device][any-device]") {
    if (::geteuid() != 0) {
        WARN("skipped: only root gives files to others");
        return;
    }
    bool const is_allowed = GENERATE(false, true);
    folder here;
    fs::create_directories(here / "tree/a");
    write_file(here / "tree/a/file", pattern(10, 1));
    fs::create_symlink("file", here / "tree/a/link");
    for (char const* const each : {"tree/a", "tree/a/file", "tree/a/link"})
        REQUIRE(::lchown((here / each).c_str(), 1234, 5678) == 0);
    ::chmod((here / "tree/a/file").c_str(), 04755);
    asio::io_context io;
    ends e{io};
    e.allows_owners = is_allowed;
    std::string why;
    copy::result done;
    std::vector<std::string> const sources{(here / "tree").string()};
    std::string const target;
    copy::copy_options const options{.keeps_owners = true};
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            try {
                co_await push_to(e, sources, target, options, done);
            } catch (copy::refused const& refused) {
                why = refused.what();
            }
        };
        co_await (serve_one(io, e) && client());
    });
    if (!is_allowed) {
        CHECK(why.find("Operation not permitted") != std::string::npos);
        CHECK(listing(e.served / "").empty());
        return;
    }
    CHECK(done.failed == 0);
    CHECK(done.lost == copy::not_kept{});
    for (char const* const each : {"tree/a", "tree/a/file", "tree/a/link"}) {
        struct stat const s = status_of(e.served / each);
        CHECK(s.st_uid == 1234);
        CHECK(s.st_gid == 5678);
    }
    CHECK(status_of(e.served / "tree").st_uid == 0);
    // Whoever may give files to anyone may also let them run so.
    CHECK((status_of(e.served / "tree/a/file").st_mode & 07777) == 04755);
}

TEST_CASE("copy: a copy continues where the one before was cut", "[device]") {
    bool const is_sparse = GENERATE(false, true);
    folder here;
    folder there;
    std::vector<std::uint64_t> data{0};
    for (std::uint64_t at = 5 * mebibyte; at < 9 * mebibyte; at += 16384) data.push_back(at);
    if (is_sparse) write_sparse(here / "file", data, 10 * mebibyte);
    else write_large(here / "file", 10 * mebibyte + 77, 1);
    cut_at(here / "file", there / "", 7 * mebibyte);
    CHECK(leftovers(there / "").size() == 2);
    auto const done = copied(here / "file", there / "");
    CHECK(done.failed == 0);
    CHECK(done.continued >= 5 * mebibyte);
    CHECK(done.moved == fs::file_size(here / "file"));
    CHECK((content(here / "file") == content(there / "copy")));
    CHECK(leftovers(there / "").empty());
}

TEST_CASE("copy: nothing is continued that is not what it was", "[device][any-device]") {
    enum class what {
        source,
        source_with_old_time,
        end_of_part,
        half_a_record,
        other_head,
        is_link
    };
    auto const changed = GENERATE(
        what::source,
        what::source_with_old_time,
        what::end_of_part,
        what::half_a_record,
        what::other_head,
        what::is_link
    );
    folder here;
    folder there;
    write_large(here / "file", 9 * mebibyte, 1);
    set_time(here / "file", 1'577'934'245, 5);
    cut_at(here / "file", there / "", 6 * mebibyte);
    fs::path const part = there / ".copy.rdma-copy.part";
    fs::path const state = there / ".copy.rdma-copy.state";
    REQUIRE(fs::exists(state));
    std::uint64_t most = 0;
    switch (changed) {
    case what::source:
    case what::source_with_old_time:
        damage(here / "file", 3);
        if (changed == what::source_with_old_time) set_time(here / "file", 1'577'934'245, 5);
        break;
    case what::end_of_part:
        most = 3 * mebibyte;
        damage(part, 3 * mebibyte + 5);
        break;
    case what::half_a_record:
        most = 9 * mebibyte;
        std::ofstream{state, std::ios::app} << "half a record, and more";
        break;
    case what::other_head: damage(state, 0); break;
    case what::is_link:
        // What it is a link to does not change.
        write_file(there / "other", pattern(10, 1));
        fs::remove(part);
        fs::create_symlink("other", part);
        break;
    }
    auto const done = copied(here / "file", there / "");
    CHECK(done.failed == 0);
    CHECK(done.continued <= most);
    if (changed == what::half_a_record) CHECK(done.continued >= 5 * mebibyte);
    CHECK((content(here / "file") == content(there / "copy")));
    if (changed == what::is_link) CHECK(content(there / "other").size() == 10);
}

TEST_CASE("copy: a state file without its data is worth nothing", "[device][any-device]") {
    bool const is_short = GENERATE(false, true);
    folder here;
    folder there;
    // The last 64 MiB that have arrived are a hole.
    std::vector<std::uint64_t> data{0, 4096};
    for (std::uint64_t at = 70 * mebibyte; at < 72 * mebibyte; at += 16384) data.push_back(at);
    write_sparse(here / "file", data, 73 * mebibyte);
    cut_at(here / "file", there / "", 71 * mebibyte);
    fs::path const part = there / ".copy.rdma-copy.part";
    REQUIRE(fs::exists(part));
    if (is_short) fs::resize_file(part, 4096);
    else fs::remove(part);
    auto const done = copied(here / "file", there / "");
    CHECK(done.failed == 0);
    CHECK(done.continued <= 4096);
    CHECK((content(here / "file") == content(there / "copy")));
}

TEST_CASE(
    "copy: a temporary file that cannot be opened leaves no state file", "[device][any-device]"
) {
    folder here;
    folder there;
    write_large(here / "file", 9 * mebibyte, 1);
    // Only one that was put there.
    fs::path const in_the_way = there / ".copy.rdma-copy.part";
    fs::create_directory(in_the_way);
    auto const done = copied(here / "file", there / "");
    CHECK(done.failed == 0);
    CHECK(leftovers(there / "") == std::vector<std::string>{in_the_way.filename().string()});
}

TEST_CASE("copy: what is not sent is said and counted on both sides", "[device][any-device]") {
    bool const is_pull = GENERATE(false, true);
    CAPTURE(is_pull);
    folder here;
    folder there;
    fs::path const tree = (is_pull ? there : here) / "tree";
    fs::create_directories(tree);
    write_file(tree / "file", pattern(10, 1));
    REQUIRE(::mkfifo((tree / "pipe").c_str(), 0600) == 0);
    asio::io_context io;
    ends e{io, 65536, there / ""};
    copy::result done;
    std::vector<std::string> const sources{tree.string()};
    std::string const target = is_pull ? (here / "").string() : "copy";
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            if (!is_pull) co_return co_await push_to(e, sources, target, no_options, done);
            co_await e.client.connect(e.door.local_endpoint());
            co_await copy::pull(e.client, e.files, "tree", target, {}, e.report(), done);
        };
        co_await (serve_one(io, e) && client());
    });
    for (copy::result const& each : {done, e.of_server}) {
        CHECK(each.failed == 1);
        CHECK(each.entries == 2);  // the directory and the file
    }
    std::string const why = "neither a file, nor a directory, nor a symbolic link: skipped";
    std::vector<std::string> const of_sender{"tree/pipe: " + why};
    std::string const place = is_pull ? "tree/pipe" : "copy/pipe";
    std::vector<std::string> const of_receiver{place + ": at the source: " + why};
    CHECK(e.failures == (is_pull ? of_receiver : of_sender));
    CHECK(e.failures_of_server == (is_pull ? of_sender : of_receiver));
}

TEST_CASE(
    "copy: a directory that cannot be made is one failure, and so is each entry in it",
    "[device][any-device]"
) {
    folder here;
    fs::create_directories(here / "tree");
    write_file(here / "tree/file", pattern(10, 1));
    asio::io_context io;
    ends e{io};
    write_file(e.served / "copy", pattern(5, 1));
    auto const done = pushed(e, io, {(here / "tree").string()}, "copy");
    CHECK(done.failed == 2);
    CHECK(done.entries == 0);
    CHECK(e.of_server.failed == 2);
    std::string const why = ": at the target: Not a directory";
    CHECK(e.failures == std::vector<std::string>{"tree" + why, "tree/file" + why});
}

TEST_CASE(
    "copy: a source that is not there is an error, whatever its last component is",
    "[device][any-device]"
) {
    std::string const last = GENERATE("", "/", "/.", "/..", "/./x/..");
    CAPTURE(last);
    folder here;
    asio::io_context io;
    ends e{io};
    auto const done = pushed(e, io, {(here / "missing").string() + last}, "");
    CHECK(done.failed == 1);
    CHECK(done.entries == 0);
    REQUIRE(e.failures.size() == 1);
    CHECK(e.failures[0].ends_with(": No such file or directory"));
    CHECK(listing(e.served / "").empty());
}

TEST_CASE(
    "copy: a file that says it is empty, and is not, is not finished", "[device][any-device]"
) {
    asio::io_context io;
    ends e{io};
    auto const done = pushed(e, io, {"/proc/cpuinfo"}, "");
    CHECK(done.failed == 1);
    CHECK(
        e.failures ==
        std::vector<std::string>{"cpuinfo: the source has changed while it was copied"}
    );
    CHECK(listing(e.served / "").empty());
}

TEST_CASE("copy: a link that an interrupted copy has made gets its time", "[device][any-device]") {
    folder here;
    folder there;
    fs::create_symlink("nowhere", here / "link");
    fs::create_symlink("nowhere", there / "link");
    set_time(here / "link", 5, 6);
    asio::io_context io;
    ends e{io, std::size_t{512} * 1024, there / ""};
    auto const done = pushed(e, io, {(here / "link").string()}, "", {.continues = true});
    CHECK(done.failed == 0);
    CHECK(listing(here / "") == listing(there / ""));
}

TEST_CASE(
    "copy: a file that is finished gets the mode that its source has now", "[device][any-device]"
) {
    folder here;
    folder there;
    write_file(here / "file", pattern(10, 1));
    REQUIRE(::chmod((here / "file").c_str(), 0600) == 0);
    std::vector<std::string> const file{(here / "file").string()};
    asio::io_context io;
    ends e{io, std::size_t{512} * 1024, there / ""};
    CHECK(pushed(e, io, file, "", {}).failed == 0);
    REQUIRE(::chmod((here / "file").c_str(), 0400) == 0);
    asio::io_context next;
    ends again{next, std::size_t{512} * 1024, there / ""};
    auto const done = pushed(again, next, file, "", {.continues = true});
    CHECK(done.failed == 0);
    CHECK(done.moved == done.continued);
    CHECK(listing(here / "") == listing(there / ""));
}

TEST_CASE(
    "copy: with --force links replace files, and files links, but no directory",
    "[device][any-device]"
) {
    folder here;
    folder there;
    fs::create_directories(here / "tree");
    fs::create_directories(there / "tree/directory");
    write_file(here / "tree/a", pattern(10, 1));
    fs::create_symlink("nowhere", here / "tree/b");
    fs::create_symlink("nowhere", here / "tree/directory");
    fs::create_symlink("elsewhere", there / "tree/a");
    write_file(there / "tree/b", pattern(10, 2));
    std::vector<std::string> const tree{(here / "tree").string()};
    asio::io_context io;
    ends e{io, std::size_t{512} * 1024, there / ""};
    auto const done = pushed(e, io, tree, "", {.replaces = true});
    CHECK(done.failed == 1);
    CHECK(e.failures == std::vector<std::string>{"tree/directory: at the target: Is a directory"});
    CHECK((content(here / "tree/a") == content(there / "tree/a")));
    CHECK(fs::is_symlink(there / "tree/b"));
}

// As when large files are synced, or read back.
TEST_CASE(
    "copy: a disk that is busy with large files does not hold up small ones", "[device][any-device]"
) {
    folder here;
    fs::create_directories(here / "tree/a/b");
    fs::create_symlink("nowhere", here / "tree/a/link");
    write_file(here / "tree/a/file", pattern(5000, 1));
    std::vector<std::string> const tree{(here / "tree").string()};
    std::string const target;
    asio::io_context io;
    ends e{io};
    std::promise<void> over;
    std::shared_future<void> const is_over = over.get_future().share();
    int held_up = 0;
    copy::result done;
    run(io, [&]() -> asio::awaitable<void> {
        auto const sync = [&]() -> asio::awaitable<void> {
            // g++ 12 destroys a lambda twice that is written in an awaited call.
            auto const wait = [is_over] { return is_over.wait_for(20s); };
            auto const status = co_await e.files.run_long(wait);
            if (status == std::future_status::timeout) ++held_up;
        };
        auto const client = [&]() -> asio::awaitable<void> {
            co_await push_to(e, tree, target, no_options, done);
            over.set_value();
        };
        co_await (((sync() && sync()) && (sync() && sync())) && (serve_one(io, e) && client()));
    });
    CHECK(held_up == 0);
    CHECK(done.entries == 5);
}

TEST_CASE("copy: an interrupted tree goes on with what is not there", "[device][any-device]") {
    bool const replaces = GENERATE(false, true);
    folder here;
    folder there;
    make_tree(here / "tree");
    write_large(here / "tree/second", 9 * mebibyte, 5);
    fs::create_hard_link(here / "tree/large", here / "tree/zlink");
    auto const copy_tree = [&](copy::copy_options const& options) {
        asio::io_context io;
        ends e{io, std::size_t{512} * 1024, there / ""};
        auto const done = pushed(e, io, {(here / "tree").string()}, "", options);
        CHECK(e.of_server.moved == done.moved);
        CHECK(e.of_server.continued == done.continued);
        return done;
    };
    copy::copy_options const again{.replaces = replaces, .continues = true};
    auto const first = copy_tree(again);
    CHECK(first.failed == 0);
    CHECK(first.continued == 0);
    auto const whole = listing(here / "tree");
    REQUIRE(listing(there / "tree") == whole);

    // All of it is there; nothing is written.
    auto const inode = status_of(there / "tree/second").st_ino;
    auto const second = copy_tree(again);
    CHECK(second.failed == 0);
    CHECK(second.entries == first.entries);
    CHECK(second.continued == second.moved);
    CHECK(status_of(there / "tree/second").st_ino == inode);
    CHECK(listing(there / "tree") == whole);

    // Some is missing, and some is another file.
    fs::remove(there / "tree/second");
    fs::remove(there / "tree/a/link");
    write_file(there / "tree/a/page", pattern(4096, 9));
    auto const third = copy_tree(again);
    CHECK(third.failed == (replaces ? 0 : 1));
    fs::remove(there / "tree/a/page");
    CHECK(copy_tree(again).failed == 0);
    CHECK(listing(there / "tree") == whole);
    // Without the option each file that exists is an error.
    CHECK(copy_tree({}).failed > 40);
}

TEST_CASE("copy: a copy continues on a file system that keeps seconds", "[device][any-device]") {
    folder here;
    folder disk;
    struct mounted {
        std::string at;
        bool is_there = false;
        ~mounted() {
            if (is_there) static_cast<void>(!::umount(at.c_str()));
        }
    } m{(disk / "there").string()};
    fs::create_directory(m.at);
    std::string const image = (disk / "image").string();
    write_file(image, {});
    fs::resize_file(image, std::uint64_t{16} << 20);
    // As ext3: inodes without room for more.
    std::string const line = "mkfs.ext4 -q -F -I 128 " + image +
                             " >/dev/null 2>&1 && mount -o loop " + image + ' ' + m.at +
                             " >/dev/null 2>&1";
    m.is_there = std::system(line.c_str()) == 0;
    if (!m.is_there) {
        WARN("skipped: no disk can be made of a file");
        return;
    }
    make_tree(here / "tree");
    for (auto const& e : fs::recursive_directory_iterator{here / "tree"})
        if (e.is_regular_file() && !e.is_symlink()) set_time(e.path(), 1'700'000'001, 999'999'999);
    bool const is_large = GENERATE(false, true);
    // Not asked for in a batch.
    if (is_large) fs::create_hard_link(here / "tree/large", here / "tree/second");
    auto const copied_again = [&](bool lists) {
        asio::io_context io;
        ends e{io, std::size_t{1} << 20, m.at};
        copy::copy_options options;
        options.continues = options.is_onto = true;
        options.lists = lists;
        return pushed(e, io, {(here / "tree").string()}, "copy", options);
    };
    auto const first = copied_again(false);
    CHECK(first.continued == 0);
    auto const would = copied_again(true);
    CHECK(would.entries == 0);
    CHECK(would.failed == 0);
    CHECK(copied_again(false).failed == 0);
    // The next second.
    set_time(here / "tree/a/page", 1'700'000'002, 0);
    CHECK(copied_again(true).failed == 1);
}

TEST_CASE(
    "copy: a second name of a file that has changed since is a file of its own",
    "[device][any-device]"
) {
    folder here;
    fs::create_directories(here / "between");
    write_file(here / "a", pattern(1000, 1));
    fs::create_hard_link(here / "a", here / "z");
    // Between them a batch of small files, with which the first name is finished, and two seconds, before the second is looked at.
    for (int i = 0; i < 200; ++i)
        write_file(here / ("between/" + std::to_string(i)), pattern(10, 1));
    write_file(here / "between/large", pattern(2'000'000, 1));
    copy::copy_options slow;
    slow.bytes_per_second = 1'000'000;
    asio::io_context io;
    ends e{io};
    copy::result done;
    std::vector<std::string> const sources{
        (here / "a").string(), (here / "between").string(), (here / "z").string()};
    std::string const target;
    run(io, [&]() -> asio::awaitable<void> {
        auto const change = [&]() -> asio::awaitable<void> {
            co_await until(io, [&] { return fs::exists(e.served / "a"); });
            write_file(here / "a", pattern(2000, 2));
        };
        co_await ((serve_one(io, e) && push_to(e, sources, target, slow, done)) && change());
    });
    CHECK(done.failed == 0);
    CHECK(content(e.served / "a").size() == 1000);
    CHECK(content(e.served / "z") == content(here / "z"));
}

TEST_CASE(
    "copy: a copy goes on where it was, or says that this is not clear", "[device][any-device]"
) {
    bool const is_pull = GENERATE(false, true);
    CAPTURE(is_pull);
    folder here;
    folder there;
    make_tree((is_pull ? there : here) / "tree");
    fs::path const to = (is_pull ? here : there) / "copy";
    auto const again = [&](std::string const& source, std::string const& target, bool is_onto) {
        asio::io_context io;
        ends e{io, 65536, there / ""};
        copy::copy_options const options{.continues = true, .is_onto = is_onto};
        copy::result done;
        std::string refused;
        std::vector<std::string> const sources{(here / source).string()};
        std::string const place = is_pull ? (here / target).string() : target;
        std::string const ending = target.ends_with('/') ? "/" : "";
        run(io, [&]() -> asio::awaitable<void> {
            auto const server = [&]() -> asio::awaitable<void> { co_await serve_one(io, e); };
            auto const client = [&]() -> asio::awaitable<void> {
                try {
                    if (!is_pull) {
                        co_await push_to(e, sources, target, options, done);
                    } else {
                        co_await e.client.connect(e.door.local_endpoint());
                        co_await copy::pull(
                            e.client, e.files, source, place, options, e.report(), done
                        );
                    }
                } catch (copy::refused const& error) {
                    refused = error.what();
                    e.client.close();
                }
            };
            co_await (server() && client());
        });
        CHECK(done.failed == 0);
        return refused;
    };
    CHECK(again("tree", "copy", false).empty());
    auto const whole = listing((is_pull ? there : here) / "tree");
    CHECK(listing(to) == whole);
    CHECK(again("tree", "copy", false).find("--no-target-directory") != std::string::npos);
    CHECK(listing(to) == whole);
    fs::remove(to / "large");
    CHECK(again("tree", "copy", true).empty());
    CHECK(listing(to) == whole);
    CHECK(again("tree", "copy/", false).empty());
    CHECK(listing(to / "tree") == whole);
    if (!is_pull) return;
    // All of the server's directory.
    CHECK(again("", "all", false).empty());
    fs::remove(here / "all/tree/large");
    CHECK(again("", "all", false).empty());
    CHECK(listing(here / "all/tree") == whole);
}

TEST_CASE(
    "copy: names of a file that failed once are taken when they are there", "[device][any-device]"
) {
    folder here;
    folder there;
    fs::create_directories(here / "tree");
    write_file(here / "tree/a", pattern(1000, 1));
    fs::create_hard_link(here / "tree/a", here / "tree/b");
    fs::create_directories(there / "tree/a");  // in the way
    auto const copy_tree = [&] {
        asio::io_context io;
        ends e{io, 65536, there / ""};
        return pushed(e, io, {(here / "tree").string()}, "", {.continues = true}).failed;
    };
    CHECK(copy_tree() == 1);
    fs::remove(there / "tree/a");
    CHECK(copy_tree() == 0);
    CHECK(copy_tree() == 0);
    CHECK(listing(there / "tree") == listing(here / "tree"));
}

TEST_CASE("copy: a finished file keeps nothing of an interrupted copy", "[device][any-device]") {
    folder here;
    folder there;
    write_large(here / "file", 9 * mebibyte, 1);
    cut_at(here / "file", there / "", 6 * mebibyte);
    REQUIRE(leftovers(there / "").size() == 2);
    fs::copy_file(here / "file", there / "copy");
    struct stat const s = status_of(here / "file");
    set_time(there / "copy", s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    auto const done = copied(here / "file", there / "", {.continues = true});
    CHECK(done.failed == 0);
    CHECK(done.continued == 9 * mebibyte);
    CHECK(leftovers(there / "").empty());
}

TEST_CASE(
    "copy: an error that does not concern what has arrived leaves it", "[device][any-device]"
) {
    folder here;
    folder there;
    write_large(here / "file", 9 * mebibyte, 1);
    cut_at(here / "file", there / "", 5 * mebibyte);
    // No file may be larger: the room for the rest cannot be reserved.
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    auto const old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit const small{6 * mebibyte, before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    auto const failed = copied(here / "file", there / "");
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
    std::signal(SIGXFSZ, old_handler);
    CHECK(failed.failed == 1);
    CHECK(leftovers(there / "").size() == 2);
    auto const done = copied(here / "file", there / "");
    CHECK(done.failed == 0);
    CHECK(done.continued >= 4 * mebibyte);
    CHECK((content(here / "file") == content(there / "copy")));
}

TEST_CASE(
    "copy: each source has a place of its own, and a hard link its own file", "[device][any-device]"
) {
    folder here;
    for (char const* const each : {"a/x", "b/x", "c/y"}) fs::create_directories(here / each);
    write_file(here / "a/x/f", pattern(100, 1));
    write_file(here / "b/x/f", pattern(100, 2));
    fs::create_hard_link(here / "a/x/f", here / "c/y/g");
    asio::io_context io;
    ends e{io};
    std::vector<std::string> const sources{
        (here / "a/x").string(), (here / "b/x").string(), (here / "c/y").string()};
    auto const done = pushed(e, io, sources, "", {.replaces = true});
    CHECK(done.failed == 1);
    CHECK(
        e.failures ==
        std::vector<std::string>{(here / "b/x").string() + ": another source has this name"}
    );
    CHECK(content(e.served / "x/f") == content(here / "a/x/f"));
    CHECK(content(e.served / "y/g") == content(here / "a/x/f"));
}

TEST_CASE(
    "copy: a server writes nothing but what a client asks for", "[device][hostile][any-device]"
) {
    auto const which = GENERATE(0, 1, 2);
    folder home;
    fs::create_directory(home / ".ssh");
    write_file(home / "mine", pattern(10, 1));
    asio::io_context io;
    ends e{io};
    rcverbs::error_code end;
    run(io, [&]() -> asio::awaitable<void> {
        auto const liar = [&]() -> asio::awaitable<void> {
            rcverbs::connection_request asked =
                co_await e.door.async_get_request(asio::use_awaitable);
            e.door.close();  // which would keep the context running
            copy::link l{io, std::move(asked), e.options};
            try {
                co_await l.accept();
                co_await l.receive();
                l.send(copy::welcome{});
                copy::entry forged;
                forged.name = which == 0 ? ".ssh" : which == 1 ? "authorized_keys" : "wanted";
                forged.type = which == 0   ? copy::entry_type::directory
                              : which == 1 ? copy::entry_type::file
                                           : copy::entry_type::hard_link;
                if (which == 2) forged.target = "mine";
                l.send(forged);
                for (;;) co_await l.receive();
            } catch (boost::system::system_error const&) {}
        };
        auto const client = [&]() -> asio::awaitable<void> {
            copy::result done;
            std::string const target = home.string();
            try {
                co_await e.client.connect(e.door.local_endpoint());
                co_await copy::pull(e.client, e.files, "wanted", target, {}, e.report(), done);
            } catch (boost::system::system_error const& failed) {
                end = failed.code();
            }
        };
        co_await (liar() && client());
    });
    CHECK(end == rcverbs::channel_errc::malformed_message);
    CHECK(listing(home / "").size() == 2);
}

TEST_CASE(
    "copy: a link that a copy has made is not where the next one writes",
    "[device][hostile][any-device]"
) {
    bool const replaces = GENERATE(false, true);
    CAPTURE(replaces);
    folder home;
    folder there;
    fs::create_directory(home / "secret");
    // The server's link comes first, and then what it wants to write.
    fs::create_symlink((home / "secret").string(), there / "conf");
    auto const fetch = [&](std::string const& target) {
        asio::io_context io;
        ends e{io, 65536, there / ""};
        std::string refused;
        copy::result done;
        run(io, [&]() -> asio::awaitable<void> {
            auto const client = [&]() -> asio::awaitable<void> {
                copy::copy_options const options{.replaces = replaces};
                std::string const to = (home / target).string();
                try {
                    co_await e.client.connect(e.door.local_endpoint());
                    co_await copy::pull(e.client, e.files, "conf", to, options, e.report(), done);
                } catch (copy::refused const& error) {
                    refused = error.what();
                    e.client.close();
                }
            };
            co_await (serve_one(io, e) && client());
        });
        CHECK(done.failed == 0);
        return refused;
    };
    CHECK(fetch("conf").empty());
    REQUIRE(fs::is_symlink(home / "conf"));
    fs::remove(there / "conf");
    fs::create_directory(there / "conf");
    write_file(there / "conf/file", pattern(10, 1));
    CHECK(fetch("conf").ends_with(
        "conf is a symbolic link: add a slash to copy into the directory that it leads to"
    ));
    CHECK(fs::is_empty(home / "secret"));
    CHECK(fs::is_symlink(home / "conf"));
    // Whoever wants that says so.
    CHECK(fetch("conf/").empty());
    CHECK(listing(home / "secret/conf") == listing(there / "conf"));
}

TEST_CASE(
    "copy: a directory is not copied into itself, or into one below it", "[device][any-device]"
) {
    struct attempt {
        char const* served;
        bool is_pull;
        char const* target;
        bool is_onto;
    };
    auto const a = GENERATE(
        attempt{"tree", false, "", false},
        attempt{"tree/sub", false, "", false},
        attempt{"", false, "tree/sub/new", false},
        attempt{"", false, "tree", true},
        attempt{"tree", true, "tree/new", false},
        attempt{"", true, "tree/sub", false}
    );
    bool const replaces = GENERATE(false, true);
    CAPTURE(a.served, a.is_pull, a.target, a.is_onto, replaces);
    folder here;
    fs::create_directories(here / "tree/sub");
    write_file(here / "tree/file", pattern(10, 1));
    auto const before = listing(here / "");
    asio::io_context io;
    ends e{io, 65536, here / a.served};
    copy::copy_options const options{.replaces = replaces, .is_onto = a.is_onto};
    copy::result done;
    std::vector<std::string> const sources{(here / "tree").string()};
    std::string const target = a.is_pull ? (here / a.target).string() : a.target;
    std::string const all_or_tree = *a.served == '\0' ? "tree" : "";
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            if (!a.is_pull) co_return co_await push_to(e, sources, target, options, done);
            co_await e.client.connect(e.door.local_endpoint());
            co_await copy::pull(e.client, e.files, all_or_tree, target, options, e.report(), done);
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(done.failed == 1);
    CHECK(e.of_server.failed == 1);
    CHECK(done.entries == 0);
    REQUIRE(e.failures.size() == 1);
    CHECK(e.failures[0].ends_with(": a directory cannot be copied into itself, or into one below it"
    ));
    CHECK(listing(here / "") == before);
}

TEST_CASE("copy: what was read back from the disk is what was sent", "[device][any-device]") {
    bool const continues = GENERATE(false, true);
    folder here;
    folder there;
    write_large(here / "file", 9 * mebibyte + 77, 1);
    if (continues) {
        cut_at(here / "file", there / "", 6 * mebibyte);
        // Before what is hashed again without --verify.
        auto const done = copied(here / "file", there / "", {.verifies = true});
        CHECK(done.failed == 0);
        CHECK(done.continued > 0);
    } else {
        CHECK(copied(here / "file", there / "", {.verifies = true}).failed == 0);
    }
    CHECK((content(here / "file") == content(there / "copy")));
    CHECK(leftovers(there / "").empty());
}

TEST_CASE(
    "copy: a file that the disk spoils is not finished if it is verified", "[device][any-device]"
) {
    bool const is_large = GENERATE(false, true);
    folder here;
    folder there;
    write_large(here / "file", is_large ? 9 * mebibyte : 3 * mebibyte, 1);
    asio::io_context io;
    ends e{io, std::size_t{512} * 1024, there / ""};
    copy::result done;
    std::vector<std::string> const sources{(here / "file").string()};
    std::string const target;
    copy::copy_options const options{.verifies = true};
    run(io, [&]() -> asio::awaitable<void> {
        auto const spoil = [&]() -> asio::awaitable<void> {
            co_await until(io, [&] { return e.of_server.moved > mebibyte; });
            for (std::string const& name : leftovers(there / ""))
                if (fs::file_size(there / name) >= 3 * mebibyte) damage(there / name, 4096);
        };
        auto const client = [&]() -> asio::awaitable<void> {
            co_await push_to(e, sources, target, options, done);
        };
        co_await ((serve_one(io, e) && client()) && spoil());
    });
    CHECK(done.failed == 1);
    CHECK(
        e.failures ==
        std::vector<std::string>{
            "file: at the target: the disk does not give back what was written"}
    );
    CHECK(listing(there / "").empty());
}

TEST_CASE("copy: two copies to one name do not disturb each other", "[device][any-device]") {
    folder here;
    folder there;
    write_large(here / "file", 9 * mebibyte, 1);
    asio::io_context io;
    ends one{io, std::size_t{512} * 1024, there / ""};
    ends two{io, std::size_t{512} * 1024, there / ""};
    copy::result first;
    copy::result second;
    std::vector<std::string> const sources{(here / "file").string()};
    std::string const name = "copy";
    copy::copy_options const options{.replaces = true};
    run(io, [&]() -> asio::awaitable<void> {
        co_await (
            (serve_one(io, one) && push_to(one, sources, name, options, first)) &&
            (serve_one(io, two) && push_to(two, sources, name, options, second))
        );
    });
    CHECK(first.failed == 0);
    CHECK(second.failed == 0);
    CHECK((content(here / "file") == content(there / "copy")));
    CHECK(leftovers(there / "").empty());
}

TEST_CASE("copy: names of temporary files are nobody's", "[device][hostile][any-device]") {
    folder here;
    fs::create_directories(here / "tree");
    // What a copy has left is not copied.
    write_file(here / "tree/.x.rdma-copy.part", pattern(10, 1));
    write_file(here / "tree/x.rdma-copy.part", pattern(10, 1));
    asio::io_context io;
    ends e{io};
    CHECK(pushed(e, io, {(here / "tree").string()}, "").failed == 1);
    std::string const why =
        "tree/.x.rdma-copy.part: the name of a temporary file of rdma-copy: skipped";
    CHECK(e.failures == std::vector<std::string>{why});
    CHECK(fs::exists(e.served / "tree/x.rdma-copy.part"));
    CHECK_FALSE(fs::exists(e.served / "tree/.x.rdma-copy.part"));
    // Nobody puts one there, or gets one.
    for (std::string const target :
         {".copy.rdma-copy.part", "tree/.copy.rdma-copy.state", ".a.rdma-copy.b/c"}) {
        asio::io_context other;
        ends f{other, 65536, e.served / ""};
        bool is_refused = false;
        std::vector<std::string> const sources{(here / "tree/x.rdma-copy.part").string()};
        copy::result done;
        run(other, [&]() -> asio::awaitable<void> {
            auto const client = [&]() -> asio::awaitable<void> {
                try {
                    co_await push_to(f, sources, target, no_options, done);
                } catch (copy::refused const&) {
                    is_refused = true;
                }
            };
            co_await (serve_one(other, f) && client());
        });
        CHECK(is_refused);
    }
    CHECK(leftovers(e.served / "") == std::vector<std::string>{"tree/x.rdma-copy.part"});
}
