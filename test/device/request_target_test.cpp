// The head beside the body of a request or answer, and answers that are written to memory of the
// request.
#include <boost/asio/bind_executor.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

request_channel_options narrow(std::uint16_t requests = 16) {
    request_channel_options o;
    o.messages.mode = 3;
    o.messages.receives = 8;
    o.messages.sends = 8;
    o.messages.slot_bytes = 512;
    o.messages.connection.queue_pair.rnr_retry_count = 0;
    o.requests = requests;
    o.answer_timeout = 60s;
    return o;
}

struct asking_ends {
    explicit asking_ends(asio::io_context& io) : door{io, {device_address(), 0}} {}

    acceptor door;
    request_channel client;
    request_channel server;
};

asio::awaitable<void> meet_asking(
    asio::io_context& io, asking_ends& e, request_channel_options const& options = narrow()
) {
    e.client = request_channel{io, options};
    auto const answer_all = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        e.server = request_channel{io, std::move(asked), options};
        co_await e.server.async_accept(asio::use_awaitable);
    };
    co_await (answer_all() && e.client.async_connect(e.door.local_endpoint(), asio::use_awaitable));
}

asio::awaitable<void> finish_asking(asking_ends& e) {
    co_await (
        e.client.async_finish(asio::use_awaitable) && e.server.async_finish(asio::use_awaitable)
    );
    CHECK(e.client.last_failure().reason == close_reason::completed);
    CHECK(e.server.last_failure().reason == close_reason::completed);
}

std::vector<std::byte> copy_of(std::span<std::byte const> bytes) {
    return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("a request has a head beside its body, which is there before the fetch", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        registered_buffer fetched{e.server.next_layer().domain(), 5000, access_flags::local_write};
        registered_buffer body{e.client.next_layer().domain(), 5000, access_flags::remote_read};
        fill(body.bytes(), 9);
        std::size_t served = 0;
        auto const serve = [&]() -> asio::awaitable<void> {
            for (;; ++served) {
                auto [ec, r] = co_await e.server.async_next(awaiting);
                if (ec == asio::error::eof) co_return;
                REQUIRE_FALSE(ec);
                // The head's size is the operation; what follows is the body's.
                CHECK(copy_of(r.head()) == pattern(r.operation(), r.operation()));
                CHECK(r.target_bytes() == 0);
                if (served % 2 == 1) r.detach();
                CHECK(copy_of(r.head()) == pattern(r.operation(), r.operation()));
                auto const head = copy_of(r.head());
                auto const size = static_cast<std::size_t>(r.size());
                if (!r.is_large()) {
                    CHECK(test::same(r.bytes(), body.bytes().first(size)));
                } else {
                    message& large = r;  // the request is answered all the same
                    co_await e.server.async_fetch(
                        std::move(large), fetched.slice(0, size), asio::use_awaitable
                    );
                    CHECK(test::same(fetched.bytes().first(size), body.bytes().first(size)));
                }
                if (!r.wants_answer()) continue;
                auto [failed] = co_await r.async_answer(
                    answer{static_cast<std::uint32_t>(size)}.head(head).body(
                        body.bytes().first(size / 2)
                    ),
                    awaiting
                );
                // The peer does not fetch a large one.
                bool const is_sent_large = size / 2 + head.size() > 496;
                CHECK(
                    failed ==
                    (is_sent_large ? error_code{channel_errc::message_declined} : error_code{})
                );
            }
        };
        auto const ask_all = [&]() -> asio::awaitable<void> {
            for (std::uint32_t const of_head : {0U, 1U, 64U}) {
                // The longest that is copied with a head of 64 bytes is 432.
                for (std::size_t const size : {0UL, 1UL, 432UL, 433UL, 496UL, 5000UL}) {
                    CAPTURE(of_head, size);
                    auto const head = pattern(of_head, of_head);
                    auto const bytes = body.bytes().first(size);
                    for (bool const is_registered : {false, true}) {
                        reply r;
                        if (is_registered)
                            r = co_await e.client.async_request(
                                ask{of_head}.head(head).body(body.slice(0, size)),
                                asio::use_awaitable
                            );
                        else
                            r = co_await e.client.async_request(
                                ask{of_head}.head(head).body(bytes), asio::use_awaitable
                            );
                        CHECK(r.status() == size);
                        CHECK(r.size() == size / 2);
                        CHECK_FALSE(r.is_written());
                        CHECK(copy_of(r.head()) == head);
                        if (!r.is_large()) CHECK(test::same(r.bytes(), bytes.first(size / 2)));
                        r.detach();
                        CHECK(copy_of(r.head()) == head);
                        if (!r.is_large()) CHECK(test::same(r.bytes(), bytes.first(size / 2)));
                    }
                    co_await e.client.async_notify(
                        ask{of_head}.head(head).body(bytes), asio::use_awaitable
                    );
                    co_await e.client.async_notify(
                        ask{of_head}.head(head).body(body.slice(0, size)), asio::use_awaitable
                    );
                }
            }
            auto const long_head = pattern(65, 1);
            auto [ec, r] = co_await e.client.async_request(
                ask{65}.head(long_head).body(body.slice()), awaiting
            );
            CHECK(ec == errc::message_too_large);
            auto [failed] = co_await e.client.async_notify(
                ask{65}.head(long_head).body(body.slice()), awaiting
            );
            CHECK(failed == errc::message_too_large);
            co_await e.client.async_finish(asio::use_awaitable);
        };
        co_await (ask_all() && serve() && e.server.async_finish(asio::use_awaitable));
        CHECK(served == std::size_t{3} * 6 * 4);
        CHECK(
            e.server.statistics().messages.arrived_bytes ==
            e.client.statistics().messages.sent_bytes
        );
    });
}

TEST_CASE("an answer with a head that is too long is none", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        auto const serve = [&]() -> asio::awaitable<void> {
            request r = co_await e.server.async_next(asio::use_awaitable);
            auto const head = pattern(65, 1);
            auto [ec] = co_await r.async_answer(answer{0}.head(head), awaiting);
            CHECK(ec == errc::message_too_large);
        };
        auto const ask_all = [&]() -> asio::awaitable<void> {
            auto [ec, r] = co_await e.client.async_request(1, {}, awaiting);
            CHECK(ec == channel_errc::request_dropped);
        };
        co_await (serve() && ask_all());
        co_await finish_asking(e);
    });
}

TEST_CASE("an answer is written into the memory of its request", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        registered_buffer memory{e.client.next_layer().domain(), 6000, access_flags::remote_write};
        registered_buffer store{e.server.next_layer().domain(), 7000, access_flags::local_read};
        fill(store.bytes(), 4);
        auto const head = pattern(10, 10);
        mutable_slice const target = memory.slice(500, 5000);
        bool is_registered = false;
        auto const serve = [&]() -> asio::awaitable<void> {
            for (;;) {
                auto [ec, r] = co_await e.server.async_next(awaiting);
                if (ec == asio::error::eof) co_return;
                REQUIRE_FALSE(ec);
                CHECK(r.target_bytes() == 5000);
                std::size_t const size = r.operation();
                // In three pieces, one of which is empty.
                std::array<const_slice, 3> const pieces{
                    store.slice(0, size / 3),
                    store.slice(0, 0),
                    store.slice(size / 3, size - size / 3)};
                error_code failed;
                if (is_registered) {
                    auto [answered] =
                        co_await r.async_answer(answer{7}.head(head).body(pieces), awaiting);
                    failed = answered;
                } else {
                    auto [answered] = co_await r.async_answer(
                        answer{7}.head(head).body(store.bytes().first(size)), awaiting
                    );
                    failed = answered;
                }
                CHECK(r.target_bytes() == 0);
                bool const is_sent_large = size > 5000;
                CHECK(
                    failed ==
                    (is_sent_large ? error_code{channel_errc::message_declined} : error_code{})
                );
            }
        };
        auto const ask_all = [&]() -> asio::awaitable<void> {
            for (std::size_t const size : {0UL, 1UL, 486UL, 487UL, 5000UL, 5001UL}) {
                is_registered = size % 2 == 1 && size < 5001;
                CAPTURE(size);
                std::ranges::fill(memory.bytes(), std::byte{0xee});
                reply r = co_await e.client.async_request(
                    ask{static_cast<std::uint32_t>(size)}.into(target), asio::use_awaitable
                );
                CHECK(r.status() == 7);
                CHECK(r.size() == size);
                CHECK(copy_of(r.head()) == head);
                CHECK(r.is_written() == (size <= 5000));
                CHECK(r.is_large() == (size > 5000));
                auto const untouched = [](std::byte b) { return b == std::byte{0xee}; };
                std::size_t const written = size <= 5000 ? size : 0;
                CHECK(test::same(memory.bytes().subspan(500, written), store.bytes().first(written))
                );
                CHECK(std::ranges::all_of(memory.bytes().first(500), untouched));
                CHECK(std::ranges::all_of(memory.bytes().subspan(500 + written), untouched));
                if (size <= 5000) {
                    CHECK(r.bytes().data() == target.data());
                    CHECK(r.bytes().size() == size);
                    r.detach();
                    CHECK(r.bytes().data() == target.data());
                    CHECK(copy_of(r.head()) == head);
                }
            }
            co_await e.client.async_finish(asio::use_awaitable);
        };
        co_await (ask_all() && serve() && e.server.async_finish(asio::use_awaitable));
        CHECK(e.client.statistics().messages.held == 0);
        CHECK(e.client.statistics().answered == 6);
        CHECK(
            e.client.statistics().messages.arrived_bytes ==
            e.server.statistics().messages.sent_bytes + 5001 + 10
        );
    });
}

TEST_CASE("many answers are written at a time, each to its own memory", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e, narrow(64));
        constexpr std::size_t each = 1500;
        constexpr std::size_t count = 60;
        registered_buffer memory{
            e.client.next_layer().domain(), count * each, access_flags::remote_write};
        auto const serve = [&]() -> asio::awaitable<void> {
            std::vector<request> waiting;
            std::size_t answered = 0;
            while (answered < count) {
                waiting.push_back(co_await e.server.async_next(asio::use_awaitable));
                if (waiting.size() < 10) continue;
                for (; !waiting.empty(); waiting.pop_back()) {
                    request& last = waiting.back();
                    auto const body = pattern(each, last.operation());
                    co_await last.async_answer(0, body, asio::use_awaitable);
                    ++answered;
                }
            }
        };
        std::size_t done = 0;
        for (std::size_t i = 0; i < count; ++i) {
            e.client.async_request(
                ask{static_cast<std::uint32_t>(i)}.into(memory.slice(i * each, each)),
                [&, i](error_code ec, reply const& r) {
                    CHECK_FALSE(ec);
                    CHECK(r.is_written());
                    CHECK(copy_of(r.bytes()) == pattern(each, i));
                    ++done;
                }
            );
        }
        co_await serve();
        while (done < count) co_await pause(io, 1ms);
        co_await finish_asking(e);
        for (std::size_t i = 0; i < count; ++i)
            CHECK(copy_of(memory.bytes().subspan(i * each, each)) == pattern(each, i));
    });
}

TEST_CASE("memory for an answer is checked before anything is sent", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        auto const domain = e.client.next_layer().domain();
        registered_buffer private_memory{domain, 4096, access_flags::local_write};
        auto [denied, r1] =
            co_await e.client.async_request(ask{1}.into(private_memory.slice()), awaiting);
        CHECK(denied == errc::access_denied);
        mutable_slice gone;
        {
            registered_buffer const memory{domain, 4096, access_flags::remote_write};
            gone = memory.slice();
        }
        auto [deregistered, r2] = co_await e.client.async_request(ask{1}.into(gone), awaiting);
        CHECK(deregistered == errc::region_gone);
        CHECK(e.client.statistics().messages.sent == 0);
        CHECK(e.client.statistics().failed == 2);
        co_await finish_asking(e);
    });
}

TEST_CASE("after a timeout nothing is written to the memory of a request", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        registered_buffer memory{e.client.next_layer().domain(), 5000, access_flags::remote_write};
        auto const big = pattern(5000, 1);
        for (bool const is_answered : {true, false}) {
            auto [ec, r] =
                co_await e.client.async_request(ask{1}.into(memory.slice()).within(10ms), awaiting);
            // The peer's library has confirmed it; its program has the request still.
            CHECK(ec == channel_errc::request_timed_out);
            CHECK_FALSE(r.is_valid());
            request late = co_await e.server.async_next(asio::use_awaitable);
            CHECK(late.is_cancelled());
            CHECK(late.target_bytes() == 0);
            if (!is_answered) continue;
            auto [failed] = co_await late.async_answer(0, big, awaiting);
            bool const is_fair = !failed || failed == channel_errc::message_declined;
            CHECK(is_fair);
        }
        co_await finish_asking(e);
        bool const is_untouched =
            std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{}; });
        CHECK(is_untouched);
    });
}

TEST_CASE("memory of a request whose handler is gone is not touched", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        registered_buffer memory{e.client.next_layer().domain(), 400, access_flags::remote_write};
        auto other = std::make_unique<asio::io_context>();
        e.client.async_request(
            ask{1}.into(memory.slice()),
            asio::bind_executor(*other, [](error_code, reply const&) { FAIL("called"); })
        );
        request r = co_await e.server.async_next(asio::use_awaitable);
        other.reset();
        auto const small = pattern(300, 1);
        co_await r.async_answer(0, small, asio::use_awaitable);
        co_await finish_asking(e);
        bool const is_untouched =
            std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{}; });
        CHECK(is_untouched);
    });
}

// --- hostile peers -------------------------------------------------------------------------------

namespace {

using target_hostile = hostile_ends<request_channel>;

/// Parts: the second byte of the tag.
std::uint64_t tag_of(std::uint8_t kind, std::uint16_t id, std::uint8_t parts) {
    return std::uint64_t{kind} << 56 | std::uint64_t{parts} << 48 | std::uint64_t{id} << 32;
}

std::vector<std::byte> eager_with(std::uint64_t tag, std::vector<std::byte> const& payload) {
    auto all = forged{"", 1, 0, 0, static_cast<std::uint32_t>(payload.size()), tag}.bytes();
    all.insert(all.end(), payload.begin(), payload.end());
    return all;
}

std::vector<std::byte> number_of(std::uint64_t value) {
    std::vector<std::byte> b;
    put(b, value, 8);
    return b;
}

std::vector<std::byte> region_of(std::uint64_t size, std::uint32_t rights) {
    std::vector<std::byte> b;
    put(b, 4096, 8);
    put(b, size, 8);
    put(b, 1, 4);
    put(b, rights, 4);
    return b;
}

}  // namespace

TEST_CASE(
    "what a peer may say of written answers and of memory, and what ends its channel", "[device]"
) {
    // REQUEST 1, NOTICE 2, ANSWER 3, RELEASED 7. The server's request has the number 0 and memory of
    // 4000 bytes, another without has the number 1.
    struct saying {
        char const* what;
        std::vector<std::byte> message;
        bool is_violation;
    };
    auto large = forged{"", 2, 0, 0, 1, tag_of(1, 3, 0x8a), 0, 5000}.bytes();
    auto const target = region_of(4000, 2);
    large.insert(large.end(), target.begin(), target.end());
    large.resize(large.size() + 10);
    auto shorter = large;
    shorter.pop_back();
    auto longer = large;
    longer.push_back({});
    std::vector<saying> const cases{
        {"written as much as there is", eager_with(tag_of(3, 0, 0x80), number_of(4000)), false},
        {"written nothing", eager_with(tag_of(3, 0, 0x80), number_of(0)), false},
        {"written more than there is", eager_with(tag_of(3, 0, 0x80), number_of(4001)), true},
        {"written without end", eager_with(tag_of(3, 0, 0x80), number_of(UINT64_MAX)), true},
        {"written where no memory was", eager_with(tag_of(3, 1, 0x80), number_of(1)), true},
        {"written without a size", eager_with(tag_of(3, 0, 0x80), {}), true},
        {"written nothing where no memory was", eager_with(tag_of(3, 1, 0x80), number_of(0)), true},
        {"released without a cancellation", eager_with(tag_of(7, 0, 0), {}), true},
        {"released of what was never asked", eager_with(tag_of(7, 9, 0), {}), true},
        {"released with a body", eager_with(tag_of(7, 0, 0), number_of(1)), true},
        {"a request with memory", eager_with(tag_of(1, 3, 0x80), region_of(4000, 2)), false},
        {"memory that may only be read", eager_with(tag_of(1, 3, 0x80), region_of(4000, 4)), true},
        {"memory of no bytes", eager_with(tag_of(1, 3, 0x80), region_of(0, 2)), true},
        {"memory that wraps around",
         eager_with(tag_of(1, 3, 0x80), region_of(UINT64_MAX, 2)),
         true},
        {"half of a region", eager_with(tag_of(1, 3, 0x80), number_of(1)), true},
        {"a notice with memory", eager_with(tag_of(2, 3, 0x80), region_of(4000, 2)), true},
        {"a head as long as the message", eager_with(tag_of(1, 3, 8), number_of(1)), false},
        {"a head longer than the message", eager_with(tag_of(1, 3, 9), number_of(1)), true},
        {"a head that is too long", eager_with(tag_of(1, 3, 65), pattern(80, 1)), true},
        {"a large request with both", large, false},
        {"a large request with less", shorter, true},
        {"a large request with more", longer, true},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (saying const& each : cases) {
            CAPTURE(each.what);
            target_hostile e{io};
            co_await meet_hostile(io, e, narrow(), 16);
            registered_buffer memory{
                e.server.next_layer().domain(), 4000, access_flags::remote_write};
            int ended = 0;
            e.server.async_request(ask{5}.into(memory.slice()), [&](error_code ec, reply const& r) {
                ++ended;
                // Success is an answer.
                CHECK((ec || (!each.is_violation && r.is_valid() && r.size() <= 4000)));
            });
            e.server.async_request(ask{6}, [&](error_code ec, reply const&) {
                ++ended;
                CHECK(ec);
            });
            while (e.server.statistics().messages.sent < 2) co_await pause(io, 1ms);
            auto const before = e.server.statistics().messages.arrived;
            std::optional<request> kept;
            e.server.async_next([&](error_code ec, request r) {
                if (!ec) kept = std::move(r);
            });
            co_await send(e, each.message);
            if (each.is_violation) {
                while (e.server.last_failure().reason == close_reason::open)
                    co_await pause(io, 1ms);
                CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            } else {
                while (e.server.statistics().messages.arrived < before + 1) co_await pause(io, 1ms);
                co_await pause(io, 5ms);
                CHECK(e.server.last_failure().reason == close_reason::open);
            }
            kept.reset();
            e.peer.close();
            while (ended < 2) co_await pause(io, 1ms);
        }
    });
}

TEST_CASE("a peer that does not let the memory of a request go loses the channel") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (bool const is_answered_late : {false, true}) {
            target_hostile e{io};
            auto options = narrow();
            options.messages.withdraw_timeout = 50ms;
            if (is_answered_late) options.messages.withdraw_timeout = 60s;
            co_await meet_hostile(io, e, options, 16);
            registered_buffer memory{
                e.server.next_layer().domain(), 4000, access_flags::remote_write};
            std::optional<error_code> ended;
            bool is_connected = true;
            e.server.async_request(
                ask{1}.into(memory.slice()).within(10ms),
                [&](error_code ec, reply const&) {
                    ended = ec;
                    is_connected = e.server.is_open();
                }
            );
            if (is_answered_late) {
                // CANCEL is out: what comes now is late, and was written before.
                while (e.server.statistics().messages.sent < 2) co_await pause(io, 1ms);
                CHECK_FALSE(ended);
                co_await send(e, eager_with(tag_of(3, 0, 0x80), number_of(4000)));
            }
            while (!ended) co_await pause(io, 1ms);
            CHECK(*ended == channel_errc::request_timed_out);
            CHECK(is_connected == is_answered_late);
            if (!is_answered_late) CHECK(e.server.last_failure().reason == close_reason::timed_out);
            e.peer.close();
        }
    });
}

TEST_CASE("a request whose memory the peer may write ends with the connection", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        target_hostile e{io};
        co_await meet_hostile(io, e, narrow(), 16);
        registered_buffer memory{e.server.next_layer().domain(), 4000, access_flags::remote_write};
        std::optional<error_code> plain;
        std::optional<error_code> written;
        e.server.async_request(ask{1}.into(memory.slice()), [&](error_code ec, reply const&) {
            written = ec;
            // Of the connection: nothing of the peer's arrives any more.
            CHECK_FALSE(e.server.next_layer().is_open());
        });
        e.server.async_request(ask{2}, [&](error_code ec, reply const&) { plain = ec; });
        while (e.server.statistics().messages.sent < 2) co_await pause(io, 1ms);
        co_await send(e, forged{"nonsense", 1, 0, 0, 0, tag_of(9, 0, 0)}.bytes());
        while (!plain || !written) co_await pause(io, 1ms);
        CHECK(*plain == channel_errc::malformed_message);
        CHECK(*written == channel_errc::malformed_message);
        e.peer.close();
    });
}

TEST_CASE(
    "a request with memory for its answer ends when its channel is destroyed or replaced",
    "[device]"
) {
    bool const is_replaced = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        asking_ends e{io};
        co_await meet_asking(io, e);
        registered_buffer into{e.client.next_layer().domain(), 64, access_flags::remote_write};
        std::optional<error_code> ended;
        e.client.async_request(
            ask{1}.body(pattern(8, 1)).into(into.slice()),
            [&](error_code ec, reply const&) { ended = ec; }
        );
        auto [ec, taken] = co_await e.server.async_next(awaiting);
        CHECK_FALSE(ec);
        if (is_replaced) {
            e.client = request_channel{io, narrow()};
        } else {
            auto const gone = std::make_unique<request_channel>(std::move(e.client));
        }
        while (!ended) co_await asio::post(io, asio::use_awaitable);
        CHECK(*ended == asio::error::operation_aborted);
        e.server.close();
    });
}
