// Copies of files between two ends of this process, and peers that break the rules.
#include <boost/asio/co_spawn.hpp>

#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include "device/channel_fixture.hpp"
#include "rdma-copy/receiver.hpp"
#include "rdma-copy/session.hpp"

using namespace test;
namespace fs = std::filesystem;

namespace {

class folder {
public:
    folder() {
        std::string name = (fs::temp_directory_path() / "rdma-copy.XXXXXX").string();
        REQUIRE(::mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    folder(folder const&) = delete;
    folder& operator=(folder const&) = delete;
    ~folder() {
        std::error_code ec;
        fs::remove_all(path_, ec);
    }
    fs::path operator/(std::string const& name) const { return path_ / name; }
    std::string string() const { return path_.string(); }

private:
    fs::path path_;
};

void write_file(fs::path const& at, std::span<std::byte const> bytes) {
    std::ofstream out{at, std::ios::binary};
    out.write(
        reinterpret_cast<char const*>(bytes.data()), static_cast<std::streamsize>(bytes.size())
    );
    REQUIRE(out.good());
}

std::string content(fs::path const& at) {
    std::ifstream in{at, std::ios::binary};
    return {std::istreambuf_iterator<char>{in}, {}};
}

/// Each path in a folder, with all that a copy keeps.
std::map<std::string, std::string> listing(fs::path const& root) {
    std::map<std::string, std::string> all;
    for (auto const& e : fs::recursive_directory_iterator{root}) {
        struct stat s {};
        if (::lstat(e.path().c_str(), &s) != 0) continue;  // it has another name now
        std::string text = std::to_string(s.st_mode & (S_IFMT | 0777)) + ' ' +
                           std::to_string(s.st_mtim.tv_sec) + '.' +
                           std::to_string(s.st_mtim.tv_nsec) + ' ';
        if (S_ISREG(s.st_mode)) text += content(e.path());
        if (S_ISLNK(s.st_mode)) text += fs::read_symlink(e.path()).string();
        all[e.path().lexically_relative(root).string()] = text;
    }
    return all;
}

void set_time(fs::path const& at, long seconds, long nanoseconds) {
    std::array<timespec, 2> const times{timespec{0, UTIME_OMIT}, timespec{seconds, nanoseconds}};
    REQUIRE(::utimensat(AT_FDCWD, at.c_str(), times.data(), AT_SYMLINK_NOFOLLOW) == 0);
}

/// Names of temporary files.
std::vector<std::string> leftovers(fs::path const& root) {
    std::vector<std::string> found;
    for (auto const& [path, text] : listing(root))
        if (path.find(".rdma-copy.") != std::string::npos) found.push_back(path);
    return found;
}

struct ends {
    explicit ends(asio::io_context& io, std::size_t memory_bytes = std::size_t{1} << 20)
        : files{io},
          door{io, {device_address(), 0}},
          options{memory_bytes, 60s},
          client{io, options} {}

    copy::disk files;
    rcverbs::acceptor door;
    copy::link_options options;
    copy::link client;
    folder served;
    std::vector<std::string> failures;  // of the client's side
    std::vector<std::string> failures_of_server;
    copy::result of_server;
    rcverbs::error_code server_end;

    copy::failure_report report() {
        return [this](std::string const& path, std::string const& why) {
            failures.push_back(path + ": " + why);
        };
    }
};

asio::awaitable<void> serve_one(asio::io_context& io, ends& e) {
    int error = 0;
    copy::tree const root = copy::tree::open(e.served.string(), error);
    rcverbs::connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
    e.door.close();  // which would keep the context running
    copy::link l{io, std::move(asked), e.options};
    try {
        co_await l.accept();
        auto const report = [&](std::string const& path, std::string const& why) {
            e.failures_of_server.push_back(path + ": " + why);
        };
        e.of_server = co_await copy::serve(l, e.files, root, "root", report);
    } catch (boost::system::system_error const& failed) {
        e.server_end = failed.code();
    }
}

asio::awaitable<void> push_to(
    ends& e,
    std::vector<std::string> const& sources,
    std::string const& target,
    bool replaces,
    copy::result& done
) {
    co_await e.client.connect(e.door.local_endpoint());
    done = co_await copy::push(e.client, e.files, sources, target, replaces, e.report());
}

/// A copy to the server.
copy::result pushed(
    ends& e,
    asio::io_context& io,
    std::vector<std::string> const& sources,
    std::string const& target,
    bool replaces = false
) {
    copy::result done;
    run(io, [&]() -> asio::awaitable<void> {
        co_await (serve_one(io, e) && push_to(e, sources, target, replaces, done));
    });
    return done;
}

void make_tree(fs::path const& root) {
    fs::create_directories(root / "a/b/c");
    fs::create_directories(root / "empty");
    write_file(root / "large", pattern(3'000'001, 1));
    write_file(root / "a/page", pattern(4096, 2));
    write_file(root / "a/b/nothing", {});
    write_file(root / "a/b/c/odd name \n\xff", pattern(131, 3));
    for (int i = 0; i < 40; ++i)
        write_file(root / ("a/b/" + std::to_string(i)), pattern(static_cast<std::size_t>(i), 4));
    fs::create_symlink("../nowhere", root / "a/link");
    ::chmod((root / "large").c_str(), 0640);
    ::chmod((root / "a/b").c_str(), 0750);
    set_time(root / "large", 1'577'934'245, 123'456'789);
    set_time(root / "a/link", -5, 1);
    set_time(root / "a/b", 77, 999'999'999);
    set_time(root / "empty", 5, 5);
}

}  // namespace

TEST_CASE("copy: a tree arrives with its modes and times, and comes back", "[device]") {
    asio::io_context io;
    folder here;
    make_tree(here / "tree");
    {
        ends e{io};
        auto const done = pushed(e, io, {(here / "tree").string()}, "");
        CHECK(e.failures.empty());
        CHECK(done.failed == 0);
        CHECK(done.entries == 44 + 1 + 2 * 5);
        CHECK(e.of_server.entries == done.entries);
        CHECK(e.of_server.bytes == done.bytes);
        CHECK(listing(here / "tree") == listing(e.served / "tree"));
    }
    asio::io_context again;
    ends e{again};
    make_tree(e.served / "tree");
    run(again, [&]() -> asio::awaitable<void> {
        auto const fetch = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            auto const done = co_await copy::pull(
                e.client, e.files, "/tree", (here / "back").string(), false, e.report()
            );
            CHECK(done.failed == 0);
        };
        co_await (serve_one(again, e) && fetch());
    });
    CHECK(listing(e.served / "tree") == listing(here / "back"));
}

TEST_CASE("copy: files of any size go through little memory", "[device]") {
    asio::io_context io;
    folder here;
    write_file(here / "file", pattern(1'000'000, 7));
    ends e{io, 4096};  // one slot
    auto const done = pushed(e, io, {(here / "file").string()}, "named");
    CHECK(done.failed == 0);
    CHECK(done.bytes == 1'000'000);
    CHECK(content(here / "file") == content(e.served / "named"));
}

TEST_CASE("copy: what exists is replaced only if that is asked for", "[device]") {
    bool const replaces = GENERATE(false, true);
    asio::io_context io;
    folder here;
    make_tree(here / "tree");
    ends e{io};
    make_tree(e.served / "tree");
    write_file(e.served / "tree/large", pattern(5, 9));
    auto const done = pushed(e, io, {(here / "tree").string()}, "", replaces);
    CHECK(content(e.served / "tree/large").size() == (replaces ? 3'000'001 : 5));
    CHECK(done.failed == (replaces ? 0 : 45));
    CHECK(e.failures.size() == done.failed);
    CHECK(e.failures_of_server.size() == done.failed);
    CHECK(leftovers(e.served / "").empty());
}

TEST_CASE("copy: targets are directories, or names, and stay inside", "[device]") {
    asio::io_context io;
    folder here;
    write_file(here / "file", pattern(10, 1));
    std::vector<std::string> const file{(here / "file").string()};
    struct place {
        std::string target;
        std::string expected;
    };
    auto const p = GENERATE(
        place{"", "file"},
        place{"new", "new"},
        place{"new/", "new/file"},
        place{"there", "there/file"},
        place{"/there/x", "there/x"},
        place{"..", ""},
        place{"there/../../x", ""},
        place{"absent/x", ""},
        place{"link/x", ""}
    );
    CAPTURE(p.target);
    ends e{io};
    fs::create_directory(e.served / "there");
    fs::create_directory_symlink("/tmp", e.served / "link");
    if (p.expected.empty()) {
        bool is_refused = false;
        copy::result done;
        run(io, [&]() -> asio::awaitable<void> {
            auto const client = [&]() -> asio::awaitable<void> {
                try {
                    co_await push_to(e, file, p.target, false, done);
                } catch (copy::refused const&) {
                    is_refused = true;
                }
            };
            co_await (serve_one(io, e) && client());
        });
        CHECK((is_refused || done.failed == 1));
        CHECK_FALSE(fs::exists("/tmp/x"));
    } else {
        auto const done = pushed(e, io, file, p.target);
        CHECK(done.failed == 0);
        CHECK(content(e.served / p.expected) == content(here / "file"));
    }
}

TEST_CASE("copy: a source that changes while it is copied is not finished", "[device]") {
    asio::io_context io;
    folder here;
    write_file(here / "file", pattern(8'000'000, 1));
    std::vector<std::string> const file{(here / "file").string()};
    std::string const target;
    ends e{io, 65536};
    copy::result done;
    run(io, [&]() -> asio::awaitable<void> {
        auto const change = [&]() -> asio::awaitable<void> {
            // When the first blocks have arrived there is a temporary file.
            co_await until(io, [&] { return !leftovers(e.served / "").empty(); });
            fs::resize_file(here / "file", 8'000'001);
        };
        co_await ((serve_one(io, e) && push_to(e, file, target, false, done)) && change());
    });
    CHECK(done.failed == 1);
    REQUIRE(e.failures.size() == 1);
    CHECK(e.failures[0] == "file: the source has changed while it was copied");
    CHECK(listing(e.served / "").empty());
}

TEST_CASE("copy: a copy that ends at any time leaves whole files only", "[device]") {
    folder here;
    make_tree(here / "tree");
    auto const whole = listing(here / "tree");
    std::vector<std::string> const tree{(here / "tree").string()};
    std::string const target;
    std::mt19937 random{7};
    for (int round = 0; round < 12; ++round) {
        asio::io_context io;
        ends e{io, 65536};
        bool const is_client = round % 2 == 0;
        run(io, [&]() -> asio::awaitable<void> {
            bool is_over = false;
            std::shared_ptr<copy::link> l;
            auto const server = [&]() -> asio::awaitable<void> {
                int error = 0;
                copy::tree const root = copy::tree::open(e.served.string(), error);
                rcverbs::connection_request asked =
                    co_await e.door.async_get_request(asio::use_awaitable);
                e.door.close();  // which would keep the context running
                l = std::make_shared<copy::link>(io, std::move(asked), e.options);
                try {
                    co_await l->accept();
                    co_await copy::serve(*l, e.files, root, "root", [](auto const&, auto const&) {
                    });
                } catch (boost::system::system_error const&) {}
                is_over = true;
            };
            auto const client = [&]() -> asio::awaitable<void> {
                copy::result done;
                try {
                    co_await push_to(e, tree, target, false, done);
                } catch (boost::system::system_error const&) {}
            };
            auto const end = [&]() -> asio::awaitable<void> {
                auto const seen = random() % 45;
                co_await until(io, [&] { return is_over || listing(e.served / "").size() > seen; });
                if (is_client) e.client.close();
                else if (!is_over) l->close();
            };
            co_await ((server() && client()) && end());
        });
        CHECK(leftovers(e.served / "").empty());
        for (auto const& [path, text] : listing(e.served / "")) {
            if (!fs::is_regular_file(e.served / path)) continue;
            auto const original = whole.find(path.substr(std::string{"tree/"}.size()));
            REQUIRE(original != whole.end());
            // Its content, and not its mode and time only.
            CHECK((text == original->second));
        }
    }
}

// --- peers that break the rules ------------------------------------------------------------------

namespace {

copy::entry file_entry(std::uint64_t number, std::string path, std::uint64_t size) {
    copy::entry e;
    e.file = number;
    e.path = std::move(path);
    e.size = size;
    e.mode = 0644;
    return e;
}

using lie = std::function<void(copy::link&, copy::slots const&)>;

/// A sender that says what it likes once it has slots. Returns how the server's side ended.
rcverbs::error_code end_of_server(asio::io_context& io, ends& e, lie const& tell) {
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            e.client.send(copy::hello{});
            try {
                copy::copy_message m = co_await e.client.receive();
                CHECK(std::holds_alternative<copy::welcome>(m));
                m = co_await e.client.receive();
                REQUIRE(std::holds_alternative<copy::slots>(m));
                tell(e.client, std::get<copy::slots>(m));
                for (;;) co_await e.client.receive();
            } catch (boost::system::system_error const&) {}
        };
        co_await (serve_one(io, e) && client());
    });
    return e.server_end;
}

copy::block block_of(
    std::uint64_t file, std::uint64_t offset, std::uint32_t bytes, std::uint16_t slot
) {
    return {file, offset, bytes, slot, {}};
}

}  // namespace

TEST_CASE(
    "copy: a sender that lies loses its connection, and leaves nothing", "[device][hostile]"
) {
    struct named_lie {
        char const* name;
        lie tell;
    };
    std::vector<named_lie> const lies{
        {"a path outside", [](auto& l, auto&) { l.send(file_entry(0, "../x", 1)); }},
        {"an absolute path", [](auto& l, auto&) { l.send(file_entry(0, "/tmp/x", 1)); }},
        {"an empty component", [](auto& l, auto&) { l.send(file_entry(0, "a//b", 1)); }},
        {"a number twice",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 1));
             l.send(file_entry(0, "b", 1));
         }},
        {"a number left out", [](auto& l, auto&) { l.send(file_entry(1, "a", 1)); }},
        {"too many files",
         [](auto& l, auto&) {
             for (std::uint64_t i = 0; i <= copy::receiver::files_max; ++i)
                 l.send(file_entry(i, std::to_string(i), 1));
         }},
        {"a block of no file", [](auto& l, auto&) { l.send(block_of(0, 0, 1, 0)); }},
        {"a slot that is not there",
         [](auto& l, auto& s) {
             l.send(file_entry(0, "a", 1));
             l.send(block_of(0, 0, 1, s.count));
         }},
        {"more than a slot",
         [](auto& l, auto& s) {
             l.send(file_entry(0, "a", 1U << 30));
             l.send(block_of(0, 0, s.slot_bytes + 1, 0));
         }},
        {"beyond the end",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 10));
             l.send(block_of(0, 9, 2, 0));
         }},
        {"an offset that wraps",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 10));
             l.send(block_of(0, UINT64_MAX, 2, 0));
         }},
        {"an end of no file",
         [](auto& l, auto&) {
             l.send(copy::end{3, 0});
         }},
        {"two ends",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 1));
             l.send(block_of(0, 0, 1, 0));
             l.send(copy::end{0, 0});
             l.send(copy::end{0, 0});
             l.send(copy::end{0, 0});
         }},
        {"a receiver's message", [](auto& l, auto&) { l.send(copy::credit{0}); }},
        {"a second hello", [](auto& l, auto&) { l.send(copy::hello{}); }},
        {"finished in the middle",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 1));
             l.send(copy::finished{});
         }},
    };
    for (named_lie const& each : lies) {
        CAPTURE(each.name);
        asio::io_context io;
        ends e{io};
        CHECK(end_of_server(io, e, each.tell) == rcverbs::channel_errc::malformed_message);
        CHECK(listing(e.served / "").empty());
    }
}

TEST_CASE(
    "copy: a wrong hash, and a file with a part missing, are not finished", "[device][hostile]"
) {
    bool const has_block = GENERATE(false, true);
    asio::io_context io;
    ends e{io};
    std::optional<copy::done> answer;
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            e.client.send(copy::hello{});
            e.client.send(file_entry(0, "a", 100));
            if (has_block) e.client.send(block_of(0, 0, 100, 0));
            e.client.send(copy::end{0, 0});
            while (!answer) {
                copy::copy_message const m = co_await e.client.receive();
                if (auto const* const d = std::get_if<copy::done>(&m)) answer = *d;
            }
            e.client.send(copy::finished{});
            copy::copy_message const last = co_await e.client.receive();
            CHECK(std::holds_alternative<copy::finished>(last));
            co_await e.client.finish();
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(answer->error == EBADMSG);
    CHECK_FALSE(e.server_end);
    CHECK(e.failures_of_server == std::vector<std::string>{"a: the data has changed on its way"});
    CHECK(listing(e.served / "").empty());
}

TEST_CASE("copy: a receiver that lies loses its connection", "[device][hostile]") {
    struct named_lie {
        char const* name;
        std::vector<copy::copy_message> says;
    };
    std::vector<named_lie> const lies{
        {"a credit that was never used", {copy::credit{0}}},
        {"a slot that is not there", {copy::credit{9}}},
        {"done of no file", {copy::done{7, 0}}},
        {"done before the end", {copy::done{0, 0}}},
        {"abort of no file", {copy::abort_file{7, 5}}},
        {"slots twice", {copy::slots{0, 1, 4096, 2}}},
        {"finished", {copy::finished{}}},
        {"a sender's message", {copy::end{0, 0}}},
    };
    folder here;
    write_file(here / "file", pattern(1'000'000, 1));
    std::vector<std::string> const file{(here / "file").string()};
    std::string const target;
    for (named_lie const& each : lies) {
        CAPTURE(each.name);
        asio::io_context io;
        ends e{io, 65536};
        rcverbs::error_code sender_end;
        run(io, [&]() -> asio::awaitable<void> {
            auto const liar = [&]() -> asio::awaitable<void> {
                rcverbs::connection_request asked =
                    co_await e.door.async_get_request(asio::use_awaitable);
                e.door.close();  // which would keep the context running
                copy::link l{io, std::move(asked), e.options};
                try {
                    co_await l.accept();
                    rcverbs::registered_buffer const memory{
                        l.connection().domain(),
                        8192,
                        rcverbs::access_flags::local_write | rcverbs::access_flags::remote_write};
                    co_await l.receive();
                    l.send(copy::welcome{});
                    // The sender waits for slots after the first two blocks.
                    l.send(copy::slots{
                        memory.remote().address(), memory.remote().key().value, 4096, 2});
                    for (int i = 0; i < 3; ++i) co_await l.receive();
                    if (each.says[0].index() == 3)  // both slots are used: give one back first
                        l.send(copy::credit{0});
                    for (auto const& m : each.says) l.send(m);
                    for (;;) co_await l.receive();
                } catch (boost::system::system_error const&) {}
            };
            auto const client = [&]() -> asio::awaitable<void> {
                copy::result done;
                try {
                    co_await push_to(e, file, target, false, done);
                } catch (boost::system::system_error const& failed) {
                    sender_end = failed.code();
                }
            };
            co_await (liar() && client());
        });
        CHECK(sender_end == rcverbs::channel_errc::malformed_message);
    }
}
