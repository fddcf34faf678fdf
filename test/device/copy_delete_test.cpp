// Copies that delete what the source does not have, and nothing else.
#include <sys/mount.h>

#include <cstdlib>

#include "device/copy_fixture.hpp"

using namespace test;

namespace {

struct deletion {
    copy::result done;
    std::vector<std::string> listed;
    std::vector<std::string> failures;
    std::vector<std::string> failures_of_server;
    std::string refused;
    rcverbs::error_code server_end;
};

copy::copy_options deleting() {
    copy::copy_options options;
    options.replaces = options.deletes = options.is_onto = true;
    return options;
}

// From `here`/tree to `there`/tree.
deletion deleted_from(
    folder const& here,
    folder const& there,
    bool is_pull,
    copy::copy_options options,
    bool is_allowed = true
) {
    asio::io_context io;
    ends e{io, std::size_t{1} << 20, is_pull ? here / "" : there / ""};
    e.allows_deletes = is_allowed;
    deletion d;
    options.listed_deletion = [&](std::string const& path) { d.listed.push_back(path); };
    std::vector<std::string> const sources{(here / "tree").string()};
    std::string const source = "tree";
    std::string const to = is_pull ? (there / "tree").string() : "tree";
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            try {
                if (!is_pull) co_return co_await push_to(e, sources, to, options, d.done);
                co_await e.client.connect(e.door.local_endpoint());
                co_await copy::pull(e.client, e.files, source, to, options, e.report(), d.done);
            } catch (copy::refused const& error) {
                d.refused = error.what();
            }
        };
        co_await (serve_one(io, e) && client());
    });
    if (!is_pull) CHECK(e.of_server.deleted == d.done.deleted);
    CHECK(d.listed.size() == d.done.deleted);
    std::ranges::sort(d.listed);
    d.failures = e.failures;
    d.failures_of_server = e.failures_of_server;
    d.server_end = e.server_end;
    return d;
}

void duplicate(fs::path const& from, fs::path const& to) {
    fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
}

}  // namespace

TEST_CASE("copy: what the source does not have is deleted, and nothing else", "[device]") {
    bool const is_pull = GENERATE(false, true);
    bool const lists = GENERATE(false, true);
    CAPTURE(is_pull, lists);
    folder here;
    folder there;
    folder outside;
    make_tree(here / "tree");
    write_file(outside / "file", pattern(10, 1));
    duplicate(here / "tree", there / "tree");
    write_file(there / "beside", pattern(10, 1));
    fs::create_directories(there / "tree/old/deep/er");
    write_file(there / "tree/old/deep/file", pattern(10, 1));
    fs::create_directory_symlink(outside.string(), there / "tree/a/outside");
    fs::create_directory_symlink(outside.string(), there / "tree/old/outside");
    write_file(there / "tree/a/b/gone", pattern(10, 1));
    // Excluded.
    write_file(there / "tree/a/b/c/x.log", pattern(10, 1));
    fs::create_directories(there / "tree/logs/all/none");
    write_file(there / "tree/logs/all/y.log", pattern(10, 1));
    write_file(there / "tree/logs/z", pattern(10, 1));
    // Of another copy.
    write_file(there / "tree/.q.rdma-copy.part", pattern(10, 1));
    auto const before = listing(there / "");
    copy::copy_options options = deleting();
    options.lists = lists;
    REQUIRE(options.excluded.add("*.log"));
    auto const d = deleted_from(here, there, is_pull, options);
    CHECK(d.failures.empty());
    CHECK(
        d.listed ==
        std::vector<std::string>{
            "tree/a/b/gone",
            "tree/a/outside",
            "tree/logs/all/none",
            "tree/logs/z",
            "tree/old",
            "tree/old/deep",
            "tree/old/deep/er",
            "tree/old/deep/file",
            "tree/old/outside"}
    );
    CHECK(fs::exists(outside / "file"));
    if (lists) {
        CHECK(listing(there / "") == before);
        return;
    }
    CHECK(fs::exists(there / "beside"));
    auto const expected = listing(here / "tree");
    auto is = listing(there / "tree");
    for (char const* const stays :
         {"logs", "logs/all", "logs/all/y.log", "a/b/c/x.log", ".q.rdma-copy.part"}) {
        CAPTURE(stays);
        CHECK(is.erase(stays) == 1);
    }
    CHECK(is == expected);
}

TEST_CASE("copy: nothing is deleted once something has failed", "[device][any-device]") {
    bool const is_pull = GENERATE(false, true);
    bool const lists = GENERATE(false, true);
    std::string const why = GENERATE("target", "source", "inside");
    CAPTURE(is_pull, lists, why);
    folder here;
    folder there;
    fs::create_directories(here / "tree/a");
    duplicate(here / "tree", there / "tree");
    write_file(there / "tree/old", pattern(10, 1));
    fs::path const failing = why == "inside" ? "tree/a/x" : "tree/x";
    if (why == "source") {
        REQUIRE(::mkfifo((here / failing.string()).c_str(), 0600) == 0);
    } else {
        write_file(here / failing.string(), pattern(10, 1));
        fs::create_directory(there / failing.string());
    }
    copy::copy_options options = deleting();
    options.lists = lists;
    auto const d = deleted_from(here, there, is_pull, options);
    CHECK(d.done.failed == 1);
    CHECK(d.listed.empty());
    CHECK(fs::exists(there / "tree/old"));
}

TEST_CASE("copy: a server deletes only if it was started so", "[device][hostile][any-device]") {
    folder here;
    folder there;
    fs::create_directory(here / "tree");
    fs::create_directory(there / "tree");
    write_file(there / "tree/old", pattern(10, 1));
    auto const d = deleted_from(here, there, false, deleting(), false);
    CHECK(
        d.refused ==
        "the server refuses tree: Operation not permitted; --delete must be allowed there, too"
    );
    CHECK(fs::exists(there / "tree/old"));
    // What a client deletes at its own side is no matter of the server's.
    CHECK(deleted_from(here, there, true, deleting(), false).done.deleted == 1);
    CHECK_FALSE(fs::exists(there / "tree/old"));
}

TEST_CASE(
    "copy: a copy that continues deletes, and keeps what it did not send", "[device][any-device]"
) {
    folder here;
    folder there;
    make_tree(here / "tree");
    fs::create_hard_link(here / "tree/large", here / "tree/a/second");
    CHECK(deleted_from(here, there, false, deleting()).done.deleted == 0);
    write_file(there / "tree/a/b/gone", pattern(10, 1));
    fs::remove(there / "tree/a/page");
    copy::copy_options options = deleting();
    options.replaces = false;
    options.continues = true;
    auto const d = deleted_from(here, there, false, options);
    CHECK(d.done.failed == 0);
    CHECK(d.listed == std::vector<std::string>{"tree/a/b/gone"});
    CHECK(listing(here / "tree") == listing(there / "tree"));
}

TEST_CASE("copy: a tree of any depth and size is deleted", "[device][any-device]") {
    bool const lists = GENERATE(false, true);
    folder here;
    folder there;
    fs::create_directory(here / "tree");
    fs::path at = there / "tree/old";
    constexpr std::size_t levels = 3 * copy::directory_stream::open_max;
    for (std::size_t i = 0; i < levels; ++i) {
        fs::create_directories(at);
        for (char const* const name : {"a", "z"}) write_file(at / name, {});
        at /= "deeper";
    }
    // Many in one directory.
    constexpr std::size_t many = 2 * copy::removal::results_max + 1;
    for (std::size_t i = 0; i < many; ++i) write_file(there / ("tree/" + std::to_string(i)), {});
    copy::copy_options options = deleting();
    options.lists = lists;
    auto const d = deleted_from(here, there, false, options);
    CHECK(d.failures.empty());
    CHECK(d.done.deleted == levels * 3 + many);
    CHECK(fs::is_empty(there / "tree") == !lists);
}

TEST_CASE("copy: a source that is in its target is not deleted", "[device][any-device]") {
    folder here;
    fs::create_directories(here / "tree/inside/tree");
    write_file(here / "tree/inside/tree/file", pattern(10, 1));
    write_file(here / "tree/old", pattern(10, 1));
    asio::io_context io;
    ends e{io, std::size_t{1} << 20, here / ""};
    e.allows_deletes = true;
    auto const done = pushed(e, io, {(here / "tree/inside/tree").string()}, "tree", deleting());
    CHECK(done.failed == 1);
    CHECK(done.deleted == 1);
    CHECK(fs::exists(here / "tree/file"));
    CHECK(fs::exists(here / "tree/inside/tree/file"));
    CHECK_FALSE(fs::exists(here / "tree/old"));
}

TEST_CASE("copy: no mount is entered to delete what is in it", "[device][any-device]") {
    bool const is_bind = GENERATE(false, true);
    folder here;
    folder there;
    folder elsewhere;
    fs::create_directory(here / "tree");
    fs::create_directories(there / "tree/old/mount");
    write_file(there / "tree/gone", pattern(10, 1));
    std::string const at = (there / "tree/old/mount").string();
    int const mounted =
        is_bind ? ::mount(elsewhere.string().c_str(), at.c_str(), nullptr, MS_BIND, nullptr)
                : ::mount("tmpfs", at.c_str(), "tmpfs", 0, nullptr);
    if (mounted != 0) {
        WARN("skipped: this process may not mount");
        return;
    }
    write_file(there / "tree/old/mount/file", pattern(10, 1));
    auto const d = deleted_from(here, there, false, deleting());
    bool const stays = fs::exists(there / "tree/old/mount/file");
    ::umount(at.c_str());
    CHECK(stays);
    CHECK(
        d.failures ==
        std::vector<std::string>{
            "tree/old/mount: not deleted: at the target: Device or resource busy"}
    );
    CHECK(d.listed == std::vector<std::string>{"tree/gone"});
}
