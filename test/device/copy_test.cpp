// Copies of files between two ends of this process, and peers that break the rules.
#include <random>

#include "device/copy_fixture.hpp"

using namespace test;

TEST_CASE("copy: a tree arrives with its modes and times, and comes back", "[device]") {
    asio::io_context io;
    folder here;
    make_tree(here / "tree");
    {
        ends e{io};
        auto const done = pushed(e, io, {(here / "tree").string()}, "");
        CHECK(e.failures.empty());
        CHECK(done.failed == 0);
        CHECK(done.entries == 44 + 1 + 5);
        CHECK(e.of_server.entries == done.entries);
        CHECK(e.of_server.bytes == done.bytes);
        CHECK(done.lost == copy::not_kept{});
        CHECK(listing(here / "tree") == listing(e.served / "tree"));
    }
    asio::io_context again;
    ends e{again};
    make_tree(e.served / "tree");
    run(again, [&]() -> asio::awaitable<void> {
        auto const fetch = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            copy::result done;
            std::string const back = (here / "back").string();
            co_await copy::pull(e.client, e.files, "/tree", back, {}, e.report(), done);
            CHECK(done.failed == 0);
        };
        co_await (serve_one(again, e) && fetch());
    });
    CHECK(listing(e.served / "tree") == listing(here / "back"));
}

TEST_CASE("copy: what is excluded is not copied, in both directions", "[device][any-device]") {
    bool const is_pull = GENERATE(false, true);
    CAPTURE(is_pull);
    asio::io_context io;
    folder here;
    ends e{io};
    fs::path const from = is_pull ? e.served / "tree" : here / "tree";
    make_tree(from);
    copy::copy_options options;
    options.wants_total = true;
    for (char const* const each : {"/a/page", "[0-9]*", "empty/", "nowhere"})
        REQUIRE(options.excluded.add(each));
    copy::result done;
    if (is_pull) {
        run(io, [&]() -> asio::awaitable<void> {
            std::string const source = "tree";
            std::string const back = (here / "tree").string();
            auto const fetch = [&]() -> asio::awaitable<void> {
                co_await e.client.connect(e.door.local_endpoint());
                co_await copy::pull(e.client, e.files, source, back, options, e.report(), done);
            };
            co_await (serve_one(io, e) && fetch());
        });
    } else {
        done = pushed(e, io, {from.string()}, "", options);
    }
    CHECK(done.failed == 0);
    auto expected = listing(from);
    std::erase_if(expected, [](auto const& each) {
        fs::path const path = each.first;
        char const first = path.filename().string().front();
        return path == "a/page" || path == "empty" || (first >= '0' && first <= '9');
    });
    CHECK(listing(is_pull ? here / "tree" : e.served / "tree") == expected);
    REQUIRE(done.total);
    CHECK(done.total->entries == done.entries);
    CHECK(done.entries == expected.size() + 1);
}

TEST_CASE("copy: a dry run lists what a copy makes, and writes nothing", "[device][any-device]") {
    bool const is_pull = GENERATE(false, true);
    std::string const target = GENERATE("new", "into/", "there");
    CAPTURE(is_pull, target);
    folder here;
    folder there;
    make_tree(here / "tree");
    fs::create_hard_link(here / "tree/large", here / "tree/second");
    fs::create_directories(there / "there");
    if (is_pull) fs::create_directories(there / "into");
    auto const before = listing(there / "");
    auto const copied = [&](bool lists, bool continues) {
        asio::io_context io;
        ends e{io, std::size_t{1} << 20, is_pull ? here / "" : there / ""};
        std::vector<std::string> listed;
        copy::copy_options options;
        options.lists = lists;
        options.continues = continues;
        options.is_onto = continues;
        options.listed = [&](std::string const& path) { listed.push_back(path); };
        copy::result done;
        std::string const at = continues ? (target == "new" ? "new" : target + "/tree") : target;
        if (is_pull) {
            run(io, [&]() -> asio::awaitable<void> {
                std::string const source = "tree";
                std::string const to = (there / at).string();
                auto const fetch = [&]() -> asio::awaitable<void> {
                    co_await e.client.connect(e.door.local_endpoint());
                    co_await copy::pull(e.client, e.files, source, to, options, e.report(), done);
                };
                co_await (serve_one(io, e) && fetch());
            });
        } else {
            done = pushed(e, io, {(here / "tree").string()}, at, options);
        }
        CHECK(e.failures.empty());
        CHECK(listed.size() == (lists ? done.entries : 0));
        CHECK(e.of_server.entries == done.entries);
        return done;
    };
    auto const would = copied(true, false);
    CHECK(listing(there / "") == before);
    auto const is = copied(false, false);
    CHECK(is.entries == 51);
    CHECK(would.entries == is.entries);
    // A hard link has no bytes of its own.
    CHECK(would.bytes == is.bytes + 3'000'001);
    auto const again = copied(true, true);
    CHECK(again.entries == 0);
    fs::remove(there / (target == "new" ? "new/a/page" : target + "/tree/a/page"));
    CHECK(copied(true, true).entries == 1);
}

TEST_CASE("copy: no more bytes are sent in a second than allowed", "[device][any-device]") {
    bool const is_pull = GENERATE(false, true);
    CAPTURE(is_pull);
    folder here;
    folder there;
    fs::create_directory(here / "tree");
    write_large(here / "tree/large", 300'000, 1);
    for (int i = 0; i < 10; ++i)
        write_file(here / ("tree/" + std::to_string(i)), pattern(30'000, 4));
    asio::io_context io;
    ends e{io, 8 * 65536, is_pull ? here / "" : there / ""};
    copy::copy_options options;
    options.bytes_per_second = 1'000'000;
    copy::result done;
    auto const begin = std::chrono::steady_clock::now();
    if (is_pull) {
        run(io, [&]() -> asio::awaitable<void> {
            std::string const source = "tree";
            std::string const to = (there / "tree").string();
            auto const fetch = [&]() -> asio::awaitable<void> {
                co_await e.client.connect(e.door.local_endpoint());
                co_await copy::pull(e.client, e.files, source, to, options, e.report(), done);
            };
            co_await (serve_one(io, e) && fetch());
        });
    } else {
        done = pushed(e, io, {(here / "tree").string()}, "", options);
    }
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
    CHECK(done.bytes == 600'000);
    // All but the last block or batch.
    CHECK(took.count() >= 0.6 - 0.066);
    CHECK(listing(here / "") == listing(there / ""));
}

TEST_CASE("copy: files of any size go through little memory", "[device]") {
    asio::io_context io;
    folder here;
    write_large(here / "file", 1'000'000, 7);
    ends e{io, 4096};  // one slot
    auto const done = pushed(e, io, {(here / "file").string()}, "named");
    CHECK(done.failed == 0);
    CHECK(done.bytes == 1'000'000);
    CHECK(content(here / "file") == content(e.served / "named"));
}

TEST_CASE("copy: what exists is replaced only if that is asked for", "[device][any-device]") {
    bool const replaces = GENERATE(false, true);
    asio::io_context io;
    folder here;
    make_tree(here / "tree");
    ends e{io};
    make_tree(e.served / "tree");
    write_file(e.served / "tree/large", pattern(5, 9));
    auto const done = pushed(e, io, {(here / "tree").string()}, "", {.replaces = replaces});
    CHECK(content(e.served / "tree/large").size() == (replaces ? 3'000'001 : 5));
    CHECK(done.failed == (replaces ? 0 : 45));
    CHECK(e.failures.size() == done.failed);
    CHECK(e.failures_of_server.size() == done.failed);
    CHECK(leftovers(e.served / "").empty());
}

TEST_CASE("copy: targets are directories, or names, and stay inside", "[device][any-device]") {
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
    folder outside;
    fs::create_directory_symlink(outside.string(), e.served / "link");
    if (p.expected.empty()) {
        bool is_refused = false;
        copy::result done;
        run(io, [&]() -> asio::awaitable<void> {
            auto const client = [&]() -> asio::awaitable<void> {
                try {
                    co_await push_to(e, file, p.target, no_options, done);
                } catch (copy::refused const&) {
                    is_refused = true;
                }
            };
            co_await (serve_one(io, e) && client());
        });
        CHECK((is_refused || done.failed == 1));
        CHECK(listing(outside / "").empty());
    } else {
        auto const done = pushed(e, io, file, p.target);
        CHECK(done.failed == 0);
        CHECK(content(e.served / p.expected) == content(here / "file"));
    }
}

TEST_CASE(
    "copy: a source that changes while it is copied is not finished", "[device][any-device]"
) {
    asio::io_context io;
    folder here;
    write_large(here / "file", 8'000'000, 1);
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
        co_await (
            (serve_one(io, e) && push_to(e, file, target, copy::copy_options{}, done)) && change()
        );
    });
    CHECK(done.failed == 1);
    REQUIRE(e.failures.size() == 1);
    CHECK(e.failures[0] == "file: the source has changed while it was copied");
    CHECK(listing(e.served / "").empty());
}

TEST_CASE("copy: a copy that ends at any time leaves whole files only", "[device][any-device]") {
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
                copy::served_directory const root{
                    copy::tree::open(e.served.string(), error), "root", false};
                rcverbs::connection_request asked =
                    co_await e.door.async_get_request(asio::use_awaitable);
                e.door.close();  // which would keep the context running
                l = std::make_shared<copy::link>(io, std::move(asked), e.options);
                try {
                    co_await l->accept();
                    copy::failure_report const ignored = [](auto const&, auto const&) {};
                    co_await copy::serve(*l, e.files, root, ignored, e.of_server);
                } catch (boost::system::system_error const&) {}
                is_over = true;
            };
            auto const client = [&]() -> asio::awaitable<void> {
                copy::result done;
                try {
                    co_await push_to(e, tree, target, no_options, done);
                } catch (boost::system::system_error const&) {}
            };
            auto const end = [&]() -> asio::awaitable<void> {
                auto const seen = random() % 45;
                co_await until(io, [&] { return is_over || entries(e.served / "") > seen; });
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

TEST_CASE("copy: small files share messages, in both directions", "[device]") {
    bool const continues = GENERATE(false, true);
    CAPTURE(continues);
    constexpr std::uint64_t files = 500;
    asio::io_context io;
    folder here;
    fs::create_directory(here / "tree");
    for (std::uint64_t i = 0; i < files; ++i)
        write_file(here / ("tree/" + std::to_string(i)), pattern(100, i));
    ends e{io};
    std::string const target = continues ? "new" : "";
    if (continues) {
        fs::copy(here / "tree", e.served / "new", fs::copy_options::recursive);
        for (std::uint64_t i = 0; i < files; ++i) {
            set_time(here / ("tree/" + std::to_string(i)), 5, 5);
            set_time(e.served / ("new/" + std::to_string(i)), 5, 5);
        }
    }
    auto const done = pushed(
        e, io, {(here / "tree").string()}, target, {.continues = continues, .is_onto = continues}
    );
    CHECK(done.failed == 0);
    CHECK(done.entries == files + 1);
    CHECK(done.bytes == files * 100);
    CHECK(done.continued == (continues ? done.bytes : 0));
    CHECK(listing(here / "tree") == listing(e.served / (continues ? "new" : "tree")));
    auto const messages = e.client.statistics();
    CHECK(messages.sent < files / 10);
    CHECK(messages.arrived < files / 10);
}
