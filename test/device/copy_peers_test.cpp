// Peers of rdma-copy that break the rules: senders and receivers that lie, and clients that are silent.
#include <fcntl.h>

#include <cstdio>
#include <functional>
#include <map>
#include <optional>

#include "device/copy_fixture.hpp"

using namespace test;

namespace {

copy::entry file_entry(
    std::uint64_t number,
    std::string name,
    std::uint64_t size,
    std::uint64_t directory = copy::no_directory
) {
    copy::entry e;
    e.file = number;
    e.directory = directory;
    e.name = std::move(name);
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
            e.client.send(e.hello_of_liar);
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

// Writes messages into a slot, and says so.
void send_batch(
    copy::link& l,
    copy::slots const& s,
    std::uint16_t slot,
    std::vector<copy::copy_message> const& messages
) {
    std::vector<std::byte> bytes;
    for (copy::copy_message const& m : messages) copy::append(bytes, m);
    auto const memory = std::make_shared<rcverbs::registered_buffer>(
        l.connection().domain(), bytes.size(), rcverbs::access_flags::local_write
    );
    std::ranges::copy(bytes, memory->bytes().begin());
    rcverbs::remote_region const to{
        s.address + slot * s.slot_bytes,
        bytes.size(),
        rcverbs::remote_key{s.key},
        rcverbs::access_flags::remote_write};
    l.connection().async_write(
        memory->slice(0, bytes.size()), to, [memory](rcverbs::error_code const&, std::size_t) {}
    );
    l.send(copy::batch{slot, static_cast<std::uint32_t>(bytes.size()), copy::hash_of(bytes)});
}

copy::copy_message whole(
    std::uint64_t number, std::string name, std::uint64_t directory = copy::no_directory
) {
    return copy::whole_file{
        file_entry(number, std::move(name), 1, directory), std::vector<std::byte>(1)};
}

copy::entry directory_entry(
    std::uint64_t number, std::string name, std::uint64_t in = copy::no_directory
) {
    copy::entry e = file_entry(number, std::move(name), 0, in);
    e.type = copy::entry_type::directory;
    return e;
}

copy::entry directory_end(std::uint64_t number, std::uint64_t of) {
    copy::entry e = file_entry(number, "", 0, of);
    e.type = copy::entry_type::directory_end;
    return e;
}

}  // namespace

TEST_CASE(
    "copy: a sender that lies loses its connection, and leaves nothing",
    "[device][hostile][any-device]"
) {
    struct named_lie {
        char const* name;
        lie tell;
    };
    std::vector<named_lie> const lies{
        {"a path outside", [](auto& l, auto&) { l.send(file_entry(0, "../x", 1)); }},
        {"an absolute path", [](auto& l, auto&) { l.send(file_entry(0, "/tmp/x", 1)); }},
        {"a path of two components", [](auto& l, auto&) { l.send(file_entry(0, "a/b", 1)); }},
        {"no name", [](auto& l, auto&) { l.send(file_entry(0, "", 1)); }},
        {"a file in a directory that it has not begun",
         [](auto& l, auto&) { l.send(file_entry(0, "a", 1, 0)); }},
        {"a file in a file",
         [](auto& l, auto&) {
             l.send(file_entry(0, "a", 1));
             l.send(file_entry(1, "b", 1, 0));
         }},
        {"the end of the target",
         [](auto& l, auto&) { l.send(directory_end(0, copy::no_directory)); }},
        {"an end with a name",
         [](auto& l, auto&) {
             copy::entry e = directory_end(0, 0);
             e.name = "a";
             l.send(e);
         }},
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
         [](auto& l, auto&) { l.send(directory_end(0, 0)); }},
        {"a hard link outside",
         [](auto& l, auto&) {
             copy::entry e = file_entry(0, "a", 0);
             e.type = copy::entry_type::hard_link;
             e.target = "../b";
             l.send(e);
         }},
        {"an extended attribute in a copy that keeps none",
         [](auto& l, auto&) {
             l.send(copy::attribute{"user.a", false, {}});
         }},
        {"two totals",
         [](auto& l, auto&) {
             l.send(copy::total{1, 1});
             l.send(copy::total{1, 1});
         }},
        {"a receiver's message", [](auto& l, auto&) { l.send(copy::credit{0}); }},
        {"a second hello", [](auto& l, auto&) { l.send(copy::hello{}); }},
        {"a whole file outside of a batch", [](auto& l, auto&) { l.send(whole(0, "a")); }},
        {"a batch in a slot that is not there",
         [](auto& l, auto& s) {
             l.send(copy::batch{s.count, 1, {}});
         }},
        {"a batch of a file without its content",
         [](auto& l, auto& s) { send_batch(l, s, 0, {file_entry(0, "a", 1)}); }},
        {"a question in a copy that does not continue",
         [](auto& l, auto& s) {
             copy::entry e = file_entry(0, "a", 1);
             e.asks = true;
             send_batch(l, s, 0, {e});
         }},
        {"a batch of a message that belongs in none",
         [](auto& l, auto& s) { send_batch(l, s, 0, {copy::finished{}}); }},
        {"a batch with a path outside",
         [](auto& l, auto& s) { send_batch(l, s, 0, {whole(0, "../x")}); }},
        {"a batch of too many entries",
         [](auto& l, auto& s) {
             std::vector<copy::copy_message> many;
             for (std::uint64_t i = 0; i <= copy::batch_entries_max; ++i)
                 many.push_back(whole(i, std::to_string(i)));
             send_batch(l, s, 0, many);
         }},
        {"the end of a directory in a batch that has not begun it",
         [](auto& l, auto& s) { send_batch(l, s, 0, {directory_end(0, 0)}); }},
        {"a file in a batch in a directory that has ended",
         [](auto& l, auto& s) {
             send_batch(l, s, 0, {directory_entry(0, "a"), directory_end(1, 0), whole(2, "b", 0)});
         }},
        {"a path that is too long",
         [](auto& l, auto& s) {
             std::string const half(copy::text_bytes_max / 2 + 1, 'a');
             send_batch(l, s, 0, {directory_entry(0, half), whole(1, half, 0)});
         }},
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

TEST_CASE("copy: a batch with a wrong hash ends the copy", "[device][hostile][any-device]") {
    asio::io_context io;
    ends e{io};
    auto const end = end_of_server(io, e, [](copy::link& l, copy::slots const&) {
        l.send(copy::batch{0, 100, {}});
    });
    CHECK(end == boost::system::errc::bad_message);
    CHECK(e.why_server_ended == "the data has changed on its way");
    CHECK(listing(e.served / "").empty());
}

TEST_CASE(
    "copy: a batch in a directory that another has replaced is not made",
    "[device][hostile][any-device]"
) {
    asio::io_context io;
    ends e{io};
    fs::create_directory(e.served / "hers");
    std::map<std::uint64_t, int> answers;
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            e.client.send(copy::hello{});
            copy::slots s;
            auto const until_done = [&](std::uint64_t number) -> asio::awaitable<void> {
                while (!answers.contains(number)) {
                    copy::copy_message const m = co_await e.client.receive();
                    if (auto const* const got = std::get_if<copy::slots>(&m)) s = *got;
                    if (auto const* const d = std::get_if<copy::done>(&m))
                        answers[d->file] = d->error;
                }
            };
            // Not in a batch, which would keep it open.
            e.client.send(directory_entry(0, "private"));
            co_await until_done(0);
            fs::rename(e.served / "private", e.served / "elsewhere");
            fs::rename(e.served / "hers", e.served / "private");
            send_batch(e.client, s, 0, {whole(1, "file", 0)});
            co_await until_done(1);
            e.client.close();
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(answers[1] == copy::error_target_changed);
    CHECK(listing(e.served / "").size() == 2);
}

TEST_CASE("copy: a file with a wrong hash is not finished", "[device][hostile][any-device]") {
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

TEST_CASE(
    "copy: what belongs in a directory goes into no other that takes its name",
    "[device][hostile][any-device]"
) {
    asio::io_context io;
    ends e{io};
    fs::create_directory(e.served / "hers");
    REQUIRE(::chmod((e.served / "hers").c_str(), 0755) == 0);
    std::map<std::uint64_t, int> answers;
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            e.client.send(copy::hello{});
            auto const until_done = [&](std::uint64_t number) -> asio::awaitable<void> {
                while (!answers.contains(number)) {
                    copy::copy_message const m = co_await e.client.receive();
                    if (auto const* const d = std::get_if<copy::done>(&m))
                        answers[d->file] = d->error;
                }
            };
            auto const entry_of = [&](std::uint64_t number,
                                      copy::entry_type type,
                                      std::string name,
                                      std::uint64_t in = copy::no_directory) {
                copy::entry next = file_entry(number, std::move(name), 0, in);
                next.type = type;
                next.mode = 0700;
                if (type == copy::entry_type::symbolic_link) next.target = "nowhere";
                if (type == copy::entry_type::hard_link) next.target = "first";
                return next;
            };
            copy::entry first = entry_of(0, copy::entry_type::file, "first");
            first.has_names = true;
            e.client.send(first);
            e.client.send(copy::end{0, 0});
            e.client.send(entry_of(1, copy::entry_type::directory, "private"));
            co_await until_done(0);
            co_await until_done(1);
            REQUIRE(
                ::renameat2(
                    AT_FDCWD,
                    (e.served / "private").c_str(),
                    AT_FDCWD,
                    (e.served / "hers").c_str(),
                    RENAME_EXCHANGE
                ) == 0
            );
            e.client.send(entry_of(2, copy::entry_type::file, "file", 1));
            e.client.send(copy::end{2, 0});
            e.client.send(entry_of(3, copy::entry_type::directory, "directory", 1));
            e.client.send(entry_of(4, copy::entry_type::symbolic_link, "link", 1));
            e.client.send(entry_of(5, copy::entry_type::hard_link, "second", 1));
            // In a directory that could not be made.
            e.client.send(entry_of(6, copy::entry_type::file, "file", 3));
            e.client.send(copy::end{6, 0});
            e.client.send(directory_end(7, 3));
            e.client.send(directory_end(8, 1));
            for (std::uint64_t i = 2; i <= 8; ++i) co_await until_done(i);
            e.client.send(copy::finished{});
            co_await e.client.receive();
            co_await e.client.finish();
        };
        co_await (serve_one(io, e) && client());
    });
    for (auto const& [number, error] : answers) {
        CAPTURE(number);
        // The directory that could not be made has had its error.
        CHECK(error == (number < 2 || number == 7 ? 0 : copy::error_target_changed));
    }
    CHECK(fs::is_empty(e.served / "private"));
    CHECK(fs::is_empty(e.served / "hers"));
    CHECK((fs::status(e.served / "private").permissions() & fs::perms::mask) == fs::perms{0755});
}

namespace {

using receiver_lie = std::function<asio::awaitable<void>(copy::link&)>;

/// A receiver that does what it likes. Returns how the sender's side ended.
rcverbs::error_code end_of_sender(asio::io_context& io, ends& e, receiver_lie const& tell) {
    folder here;
    write_large(here / "file", 1'000'000, 1);
    std::vector<std::string> const file{(here / "file").string()};
    std::string const target;
    rcverbs::error_code sender_end;
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
                co_await tell(l);
                for (;;) co_await l.receive();
            } catch (boost::system::system_error const&) {}
        };
        auto const client = [&]() -> asio::awaitable<void> {
            copy::result done;
            try {
                co_await push_to(e, file, target, no_options, done);
            } catch (boost::system::system_error const& failed) {
                sender_end = failed.code();
            }
        };
        co_await (liar() && client());
    });
    return sender_end;
}

}  // namespace

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
        {"what is not kept, before the end", {copy::not_kept{1, 0, 0, 0}}},
        {"a sender's message", {copy::end{0, 0}}},
        {"a deleted name, though nothing is to be deleted", {copy::deleted{0, "a"}}},
    };
    for (named_lie const& each : lies) {
        CAPTURE(each.name);
        asio::io_context io;
        ends e{io, 65536};
        rcverbs::registered_buffer memory;
        auto const tell = [&](copy::link& l) -> asio::awaitable<void> {
            memory = rcverbs::registered_buffer{
                l.connection().domain(),
                8192,
                rcverbs::access_flags::local_write | rcverbs::access_flags::remote_write};
            // The sender waits for slots after the first two blocks.
            l.send(copy::slots{memory.remote().address(), memory.remote().key().value, 4096, 2});
            for (int i = 0; i < 3; ++i) co_await l.receive();
            if (each.says[0].index() == 3)  // both slots are used: give one back first
                l.send(copy::credit{0});
            for (auto const& m : each.says) l.send(m);
        };
        CHECK(end_of_sender(io, e, tell) == rcverbs::channel_errc::malformed_message);
    }
}

TEST_CASE(
    "copy: a receiver that grants too little loses its connection", "[device][hostile][any-device]"
) {
    auto const granted = GENERATE(copy::slots{0, 1, 4096, 0}, copy::slots{0, 1, 4095, 1});
    asio::io_context io;
    ends e{io, 65536};
    auto const tell = [&](copy::link& l) -> asio::awaitable<void> {
        l.send(granted);
        co_return;
    };
    CHECK(end_of_sender(io, e, tell) == rcverbs::channel_errc::malformed_message);
}

TEST_CASE("copy: a sender writes nothing in a dry run", "[device][hostile][any-device]") {
    bool const is_whole = GENERATE(false, true);
    CAPTURE(is_whole);
    asio::io_context io;
    ends e{io};
    e.hello_of_liar.lists = true;
    auto const end = end_of_server(io, e, [&](copy::link& l, copy::slots const& s) {
        if (is_whole) send_batch(l, s, 0, {whole(0, "a")});
        else l.send(file_entry(0, "a", 0));
    });
    CHECK(end == rcverbs::channel_errc::malformed_message);
    CHECK(listing(e.served / "").empty());
}

TEST_CASE(
    "copy: what was acknowledged is copied, also if the connection does not end in order",
    "[device][hostile][any-device]"
) {
    asio::io_context io;
    ends e{io, 65536};
    rcverbs::registered_buffer memory;
    auto const receive_all = [&](copy::link& l) -> asio::awaitable<void> {
        memory = rcverbs::registered_buffer{
            l.connection().domain(),
            8192,
            rcverbs::access_flags::local_write | rcverbs::access_flags::remote_write};
        l.send(copy::slots{memory.remote().address(), memory.remote().key().value, 4096, 2});
        for (;;) {
            copy::copy_message const m = co_await l.receive();
            if (auto const* const b = std::get_if<copy::block>(&m)) l.send(copy::credit{b->slot});
            if (std::holds_alternative<copy::end>(m)) l.send(copy::done{0, 0});
            if (!std::holds_alternative<copy::finished>(m)) continue;
            l.send(m);
            co_return;
        }
    };
    // The receiver is destroyed when the sender waits for its end.
    CHECK(end_of_sender(io, e, receive_all) == rcverbs::error_code{});
}

TEST_CASE("copy: a side that is stopped says so", "[device]") {
    asio::io_context io;
    folder here;
    write_large(here / "file", 8'000'000, 1);
    std::vector<std::string> const file{(here / "file").string()};
    std::string const target;
    ends e{io, 65536};
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            copy::result done;
            try {
                co_await push_to(e, file, target, no_options, done);
            } catch (boost::system::system_error const&) {}
        };
        auto const stop = [&]() -> asio::awaitable<void> {
            // When the first blocks have arrived there is a temporary file.
            co_await until(io, [&] { return !leftovers(e.served / "").empty(); });
            e.client.stop();
        };
        co_await ((serve_one(io, e) && client()) && stop());
    });
    CHECK(e.server_end == rcverbs::channel_errc::peer_closed_early);
    CHECK(e.why_server_ended == "the other side was stopped");
    CHECK(listing(e.served / "").empty());
}

TEST_CASE(
    "copy: a server that only says that it is there is left", "[device][hostile][any-device]"
) {
    folder here;
    write_file(here / "file", pattern(100, 1));
    std::vector<std::string> const file{(here / "file").string()};
    asio::io_context io;
    ends e{io};
    copy::link client{io, {0, 1s}};
    std::string why;
    run(io, [&]() -> asio::awaitable<void> {
        auto const silent = [&]() -> asio::awaitable<void> {
            rcverbs::connection_request asked =
                co_await e.door.async_get_request(asio::use_awaitable);
            e.door.close();  // which would keep the context running
            copy::link l{io, std::move(asked), e.options};
            try {
                co_await l.accept();
                for (;;) co_await l.receive();
            } catch (boost::system::system_error const&) {}
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            co_await client.connect(e.door.local_endpoint());
            copy::result done;
            std::string const target;
            try {
                co_await copy::push(client, e.files, file, target, {}, e.report(), done);
            } catch (boost::system::system_error const& failed) {
                why = client.failure_text(failed);
            }
        };
        co_await (silent() && ask());
        e.client.close();
    });
    CHECK(why == "the peer has not responded for 10 s");
}

TEST_CASE(
    "copy: a server that sends nothing, or not all, loses its connection",
    "[device][hostile][any-device]"
) {
    bool const opens_directory = GENERATE(false, true);
    CAPTURE(opens_directory);
    folder there;
    asio::io_context io;
    ends e{io};
    rcverbs::error_code ended;
    run(io, [&]() -> asio::awaitable<void> {
        auto const lie = [&]() -> asio::awaitable<void> {
            rcverbs::connection_request asked =
                co_await e.door.async_get_request(asio::use_awaitable);
            e.door.close();  // which would keep the context running
            copy::link l{io, std::move(asked), e.options};
            try {
                co_await l.accept();
                co_await l.receive();
                l.send(copy::welcome{copy::version, 0});
                copy::entry d = file_entry(0, "file", 0);
                d.type = copy::entry_type::directory;
                if (opens_directory) l.send(d);
                l.send(copy::finished{});
                for (;;) co_await l.receive();
            } catch (boost::system::system_error const&) {}
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            copy::result done;
            std::string const source = "file";
            std::string const target = (there / "file").string();
            try {
                co_await copy::pull(e.client, e.files, source, target, {}, e.report(), done);
            } catch (boost::system::system_error const& failed) {
                ended = failed.code();
            }
            e.client.close();
        };
        co_await (lie() && ask());
    });
    CHECK(ended == rcverbs::channel_errc::malformed_message);
}

// Its program says that it is there, and nothing else.
TEST_CASE(
    "copy: a client that only says that it is there is left", "[device][hostile][any-device]"
) {
    bool const says_hello = GENERATE(false, true);
    CAPTURE(says_hello);
    asio::io_context io;
    ends e{io};
    auto& client = e.client;  // whose own limit is a minute
    e.options.timeout = says_hello ? 1s : 2s;
    bool is_over = false;
    run(io, [&]() -> asio::awaitable<void> {
        auto const silent = [&]() -> asio::awaitable<void> {
            co_await client.connect(e.door.local_endpoint());
            if (says_hello) {
                client.send(copy::hello{});
                client.send(file_entry(0, "a", 100));
            }
            try {
                for (;;) co_await client.receive();
            } catch (boost::system::system_error const&) {}
            is_over = true;
        };
        auto const say = [&]() -> asio::awaitable<void> {
            while (!is_over) {
                co_await pause(io, 100ms);
                if (!is_over) client.send(copy::alive{});
            }
        };
        co_await ((serve_one(io, e) && silent()) && say());
    });
    CHECK(e.server_end);
    std::string const limit = says_hello ? "10 s" : "2 s";
    CHECK(e.why_server_ended == "the peer has not responded for " + limit);
    CHECK(listing(e.served / "").empty());
}

TEST_CASE(
    "copy: a client that pulls, and only says that it is there, is left",
    "[device][hostile][any-device]"
) {
    bool const grants_slots = GENERATE(false, true);
    CAPTURE(grants_slots);
    asio::io_context io;
    ends e{io};
    write_large(e.served / "file", 1'000'000, 1);
    e.options.timeout = grants_slots ? 1s : 2s;
    bool is_over = false;
    run(io, [&]() -> asio::awaitable<void> {
        auto const silent = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            copy::hello h;
            h.way = copy::direction::to_client;
            h.name = "file";
            e.client.send(h);
            rcverbs::registered_buffer const memory{
                e.client.connection().domain(),
                8192,
                rcverbs::access_flags::local_write | rcverbs::access_flags::remote_write};
            rcverbs::remote_region const all = memory.remote();
            if (grants_slots) e.client.send(copy::slots{all.address(), all.key().value, 4096, 2});
            try {
                for (;;) co_await e.client.receive();
            } catch (boost::system::system_error const&) {}
            is_over = true;
        };
        auto const say = [&]() -> asio::awaitable<void> {
            while (!is_over) {
                co_await pause(io, 100ms);
                if (!is_over) e.client.send(copy::alive{});
            }
        };
        co_await ((serve_one(io, e) && silent()) && say());
    });
    CHECK(e.server_end);
    std::string const limit = grants_slots ? "10 s" : "2 s";
    CHECK(e.why_server_ended == "the peer has not responded for " + limit);
}

TEST_CASE(
    "copy: a server counts entries, also of a deep tree, for a client that takes nothing",
    "[device][any-device]"
) {
    constexpr std::size_t levels = 2 * copy::directory_stream::open_max;
    asio::io_context io;
    ends e{io};
    fs::path at = e.served / "tree";
    for (std::size_t i = 0; i < levels; ++i) {
        fs::create_directories(at / "deeper");
        for (char const* const name : {"a", "x"}) write_file(at / name, pattern(10, i));
        fs::create_hard_link(at / "x", at / "y");
        at /= "deeper";
    }
    std::optional<copy::total> counted;
    run(io, [&]() -> asio::awaitable<void> {
        auto const client = [&]() -> asio::awaitable<void> {
            co_await e.client.connect(e.door.local_endpoint());
            copy::hello h;
            h.way = copy::direction::to_client;
            h.wants_total = true;
            h.name = "tree";
            e.client.send(h);
            while (!counted) {
                copy::copy_message const m = co_await e.client.receive();
                if (auto const* const t = std::get_if<copy::total>(&m)) counted = *t;
            }
            e.client.close();
        };
        co_await (serve_one(io, e) && client());
    });
    CHECK(counted->entries == 1 + levels * 4);
    // The two names of one file count once.
    CHECK(counted->bytes == levels * 2 * 10);
}

// What the hash was made of is not what is written.
TEST_CASE(
    "copy: a sender that writes to a slot after its hash spoils only its own file",
    "[device][hostile][any-device]"
) {
    folder here;
    write_large(here / "file", 3'000'000, 1);
    asio::io_context io;
    ends e{io};
    copy::result honest;
    copy::link rewriter{io, e.options};
    std::optional<copy::done> answer;
    run(io, [&]() -> asio::awaitable<void> {
        int error = 0;
        copy::served_directory const root{
            copy::tree::open(e.served.string(), error), "root", false};
        auto const serve = [&]() -> asio::awaitable<void> {
            rcverbs::connection_request asked =
                co_await e.door.async_get_request(asio::use_awaitable);
            copy::link l{io, std::move(asked), e.options};
            copy::result counters;
            copy::failure_report const ignored = [](auto const&, auto const&) {};
            co_await l.accept();
            co_await copy::serve(l, e.files, root, ignored, counters);
        };
        auto const both = [&]() -> asio::awaitable<void> {
            co_await (serve() && serve());
            e.door.close();  // which would keep the context running
        };
        auto const rewrite = [&]() -> asio::awaitable<void> {
            constexpr std::size_t size = 65'536;
            co_await rewriter.connect(e.door.local_endpoint());
            rewriter.send(copy::hello{});
            copy::copy_message m = co_await rewriter.receive();
            m = co_await rewriter.receive();
            copy::slots const granted = std::get<copy::slots>(m);
            rcverbs::registered_buffer mine{
                rewriter.connection().domain(), 2 * size, rcverbs::access_flags::local_write};
            std::ranges::fill(mine.bytes().subspan(size), std::byte{9});
            auto const write = [&](std::size_t from) -> asio::awaitable<void> {
                rcverbs::remote_region const to{
                    granted.address,
                    size,
                    rcverbs::remote_key{granted.key},
                    rcverbs::access_flags::remote_write};
                co_await rewriter.connection().async_write(
                    mine.slice(from, size), to, asio::use_awaitable
                );
            };
            co_await write(0);
            rewriter.send(file_entry(0, "spoiled", size));
            copy::block b = block_of(0, 0, size, 0);
            b.checksum = copy::hash_of(mine.bytes().first(size));
            rewriter.send(b);
            co_await write(size);
            rewriter.send(copy::end{0, 0});
            while (!answer) {
                m = co_await rewriter.receive();
                if (auto const* const d = std::get_if<copy::done>(&m)) answer = *d;
            }
            rewriter.send(copy::finished{});
            co_await rewriter.receive();
            co_await rewriter.finish();
        };
        std::vector<std::string> const file{(here / "file").string()};
        std::string const target;
        auto const copy_honestly = [&]() -> asio::awaitable<void> {
            co_await push_to(e, file, target, no_options, honest);
        };
        co_await ((both() && rewrite()) && copy_honestly());
    });
    CHECK(honest.failed == 0);
    CHECK((content(here / "file") == content(e.served / "file")));
    REQUIRE(answer);
    // Its own: one of both contents, or an error.
    CHECK(leftovers(e.served / "").empty());
}
