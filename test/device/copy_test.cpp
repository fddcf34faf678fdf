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
            copy::result done;
            std::string const back = (here / "back").string();
            co_await copy::pull(e.client, e.files, "/tree", back, {}, e.report(), done);
            CHECK(done.failed == 0);
        };
        co_await (serve_one(again, e) && fetch());
    });
    CHECK(listing(e.served / "tree") == listing(here / "back"));
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

TEST_CASE("copy: what exists is replaced only if that is asked for", "[device]") {
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
    folder outside;
    fs::create_directory_symlink(outside.string(), e.served / "link");
    if (p.expected.empty()) {
        bool is_refused = false;
        copy::result done;
        run(io, [&]() -> asio::awaitable<void> {
            auto const client = [&]() -> asio::awaitable<void> {
                try {
                    co_await push_to(e, file, p.target, copy::copy_options{}, done);
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

TEST_CASE("copy: a source that changes while it is copied is not finished", "[device]") {
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
                    co_await push_to(e, tree, target, copy::copy_options{}, done);
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
        {"a part is missing",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 1));
             l.send(copy::end{0, 0});
         }},
        {"not from the beginning",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 8192));
             l.send(block_of(0, 4096, 4096, 0));
         }},
        {"a part twice",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 8192));
             l.send(block_of(0, 0, 4096, 0));
             l.send(block_of(0, 0, 4096, 1));
         }},
        {"a part of a block",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 8192));
             l.send(block_of(0, 0, 100, 0));
         }},
        {"a hole in a file without",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 8192));
             l.send(copy::hole{0, 0, 4096});
         }},
        {"a hole beyond the end",
         [](auto& l, auto&) {
             copy::entry e = file_entry(0, "a", 8192);
             e.is_sparse = true;
             l.send(e);
             l.send(copy::hole{0, 0, UINT64_MAX});
         }},
        {"two holes in a row",
         [](auto& l, auto&) {
             copy::entry e = file_entry(0, "a", 8192);
             e.is_sparse = true;
             l.send(e);
             l.send(copy::hole{0, 0, 4096});
             l.send(copy::hole{0, 4096, 4096});
         }},
        {"the end of a directory that it has not begun",
         [](auto& l, auto&) {
             copy::entry e = file_entry(0, "a", 0);
             e.type = copy::entry_type::directory_end;
             l.send(e);
         }},
        {"a hard link outside",
         [](auto& l, auto&) {
             copy::entry e = file_entry(0, "a", 0);
             e.type = copy::entry_type::hard_link;
             e.target = "../b";
             l.send(e);
         }},
        {"two totals",
         [](auto& l, auto&) {
             l.send(copy::total{1, 1});
             l.send(copy::total{1, 1});
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

TEST_CASE("copy: a file with a wrong hash is not finished", "[device][hostile]") {
    asio::io_context io;
    ends e{io};
    std::optional<copy::done> answer;
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            e.client.send(copy::hello{});
            e.client.send(file_entry(0, "a", 100));
            e.client.send(block_of(0, 0, 100, 0));
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
        {"begin of a file that is not continued", {copy::begin{0, 0}}},
        {"finished", {copy::finished{}}},
        {"a sender's message", {copy::end{0, 0}}},
    };
    folder here;
    write_large(here / "file", 1'000'000, 1);
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
                    co_await push_to(e, file, target, copy::copy_options{}, done);
                } catch (boost::system::system_error const& failed) {
                    sender_end = failed.code();
                }
            };
            co_await (liar() && client());
        });
        CHECK(sender_end == rcverbs::channel_errc::malformed_message);
    }
}
