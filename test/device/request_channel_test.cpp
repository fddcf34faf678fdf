// Requests and answers. No receiver may ever be not ready: rnr_retry_count is 0 throughout, so that a
// send without a receive fails.
#include <boost/asio/deferred.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

request_channel_options small(std::uint16_t requests = 16) {
    request_channel_options o;
    o.messages.mode = 3;
    o.messages.receives = 8;
    o.messages.sends = 8;
    o.messages.slot_bytes = 512;
    o.requests = requests;
    o.answer_timeout = 60s;
    return o;
}

connection_options strict(request_channel_options const& o) {
    connection_options all = request_channel::needed(o);
    all.queue_pair.rnr_retry_count = 0;
    return all;
}

struct ends {
    explicit ends(asio::io_context& io) : door{io, {device_address(), 0}} {}

    acceptor door;
    request_channel client;
    request_channel server;
};

asio::awaitable<void> meet(
    asio::io_context& io,
    ends& e,
    request_channel_options const& options = small(),
    std::optional<request_channel_options> const& of_server = std::nullopt
) {
    request_channel_options const theirs = of_server.value_or(options);
    e.client = request_channel{connection{io, strict(options)}, options};
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        e.server = request_channel{connection{io, std::move(asked), strict(theirs)}, theirs};
        auto const greeting = bytes_of("hello, client");
        co_await e.server.async_accept(greeting, asio::use_awaitable);
    };
    auto const greeting = bytes_of("hello, server");
    co_await (
        answer() && e.client.async_connect(e.door.local_endpoint(), greeting, asio::use_awaitable)
    );
}

asio::awaitable<void> part(ends& e) {
    co_await (
        e.client.async_finish(asio::use_awaitable) && e.server.async_finish(asio::use_awaitable)
    );
    CHECK(e.client.last_failure().reason == close_reason::completed);
    CHECK(e.server.last_failure().reason == close_reason::completed);
}

/// The bytes of a request or a reply, of any size.
asio::awaitable<std::vector<std::byte>> body_of(request_channel& at, message& m) {
    if (!m.is_large()) co_return std::vector<std::byte>(m.bytes().begin(), m.bytes().end());
    registered_buffer into{
        at.next_layer().domain(), static_cast<std::size_t>(m.size()), access_flags::local_write};
    co_await at.async_fetch(std::move(m), into.slice(), asio::use_awaitable);
    co_return std::vector<std::byte>(into.bytes().begin(), into.bytes().end());
}

/// Answers requests, not notices, with their own bytes and operation + 1, until the peer asks no more.
asio::awaitable<void> echo(request_channel& at) {
    for (;;) {
        auto [ec, r] = co_await at.async_next(awaiting);
        if (ec == asio::error::eof) co_return;
        REQUIRE_FALSE(ec);
        std::uint32_t const status = r.operation() + 1;
        auto const bytes = co_await body_of(at, r);
        if (!r.wants_answer()) continue;
        auto [failed] = co_await r.async_answer(status, bytes, awaiting);
        CHECK_FALSE(failed);
    }
}

}  // namespace

TEST_CASE("requests are answered in both directions, with status and bytes", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        CHECK(text_of(e.client.greeting()) == "hello, client");
        CHECK(text_of(e.server.greeting()) == "hello, server");
        auto const ask = [](request_channel& at) -> asio::awaitable<void> {
            for (std::size_t const size : {0UL, 1UL, 300UL, 496UL, 497UL, 5000UL, 200'000UL}) {
                auto const bytes = pattern(size, size);
                auto const operation = static_cast<std::uint32_t>(size);
                reply r = co_await at.async_request(operation, bytes, asio::use_awaitable);
                CHECK(r.status() == size + 1);
                CHECK(r.size() == size);
                CHECK(r.is_large() == (size > 496));
                auto const back = co_await body_of(at, r);
                CHECK(back == bytes);
            }
            co_await at.async_finish(asio::use_awaitable);
        };
        co_await (ask(e.client) && ask(e.server) && echo(e.client) && echo(e.server));
        CHECK(e.client.last_failure().reason == close_reason::completed);
        CHECK(e.server.last_failure().reason == close_reason::completed);
        CHECK(e.client.statistics().answered == 7);
        CHECK(e.client.statistics().arrived == 7);
    });
}

TEST_CASE("requests and notices have bodies of registered slices", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        registered_buffer memory{e.client.next_layer().domain(), 10'000, access_flags::remote_read};
        auto const bytes = pattern(memory.size(), 3);
        std::ranges::copy(bytes, memory.bytes().begin());
        auto const ask = [&]() -> asio::awaitable<void> {
            for (std::size_t const size : {100UL, 5000UL}) {
                // Two pieces, the last first.
                std::array<const_slice, 2> const body{
                    memory.slice(size, size), memory.slice(0, size)};
                reply r = co_await e.client.async_request(7, body, asio::use_awaitable);
                auto const back = co_await body_of(e.client, r);
                REQUIRE(back.size() == 2 * size);
                CHECK(
                    std::equal(back.begin(), back.begin() + long(size), bytes.begin() + long(size))
                );
                CHECK(std::equal(back.begin() + long(size), back.end(), bytes.begin()));
                co_await e.client.async_notify(8, body, asio::use_awaitable);
            }
            // A large body needs the right for the peer.
            registered_buffer own{e.client.next_layer().domain(), 5000, access_flags::local_write};
            auto [ec, none] = co_await e.client.async_request(7, own.slice(), awaiting);
            CHECK(ec == errc::access_denied);
            CHECK_FALSE(none.is_valid());
            // A small one is copied.
            co_await e.client.async_request(7, own.slice(0, 10), asio::use_awaitable);
            co_await e.client.async_finish(asio::use_awaitable);
        };
        co_await (
            ask() && echo(e.server) && echo(e.client) && e.server.async_finish(asio::use_awaitable)
        );
        CHECK(e.client.statistics().answered == 3);
        CHECK(e.client.statistics().failed == 1);
        CHECK(e.server.statistics().arrived == 5);
    });
}

TEST_CASE("an answer is given when its operation is launched, and not before", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        for (std::size_t const size : {10UL, 5000UL}) {
            auto const bytes = pattern(size, size);
            std::optional<std::uint32_t> status;
            e.client.async_request(7, bytes, [&](error_code ec, reply r) {
                CHECK_FALSE(ec);
                status = r.status();
            });
            request r = co_await e.server.async_next(asio::use_awaitable);
            // Never launched.
            static_cast<void>(r.async_answer(1, bytes_of("one"), asio::deferred));
            CHECK(r.wants_answer());
            auto const arrived = co_await body_of(e.server, r);
            CHECK(arrived == bytes);
            auto const text = bytes_of("two");
            auto later = r.async_answer(2, text, asio::deferred);
            CHECK(r.wants_answer());
            CHECK_FALSE(status);
            co_await std::move(later)(asio::use_awaitable);
            CHECK_FALSE(r.wants_answer());
            co_await until(io, [&] { return status.has_value(); });
            CHECK(status == 2U);
        }
        co_await part(e);
    });
}

TEST_CASE("a request and an answer are values that are sent any number of times", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const serve = [&]() -> asio::awaitable<void> {
            answer given{9};
            std::string const text = "given";
            given.head(text);
            for (int i = 0; i < 3; ++i) {
                request r = co_await e.server.async_next(asio::use_awaitable);
                CHECK(r.operation() == 5);
                CHECK(text_of(r.head()) == "before");
                CHECK(r.size() == (i == 0 ? 0U : 4000U));
                co_await r.async_answer(given, asio::use_awaitable);
            }
        };
        ask wanted{5};
        {
            // The head is copied, the body is borrowed.
            std::string before = "before";
            wanted.head(before);
            before = "behind";
        }
        auto const bytes = pattern(4000, 1);
        auto const ask_all = [&]() -> asio::awaitable<void> {
            reply const empty = co_await e.client.async_request(wanted, asio::use_awaitable);
            CHECK(text_of(empty.head()) == "given");
            wanted.body(bytes);
            ask const same = wanted;
            for (ask const& each : {wanted, same}) {
                reply const r = co_await e.client.async_request(each, asio::use_awaitable);
                CHECK(r.status() == 9);
            }
            // Only a client has several connections.
            auto [refused, none] =
                co_await e.client.async_request(ask{same}.on_connection(1), awaiting);
            CHECK(refused == errc::invalid_option);
        };
        co_await (serve() && ask_all());
        co_await part(e);
    });
}

TEST_CASE("an answer that nobody wants is refused, also when the peer has left", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const nothing = bytes_of("");
        auto const notify = [&]() -> asio::awaitable<void> {
            co_await e.client.async_notify(1, nothing, asio::use_awaitable);
        };
        co_await notify();
        request notice = co_await e.server.async_next(asio::use_awaitable);
        error_code asked_got;
        e.client.async_request(2, nothing, [&](error_code ec, reply) { asked_got = ec; });
        request answered = co_await e.server.async_next(asio::use_awaitable);
        co_await answered.async_answer(0, nothing, asio::use_awaitable);
        e.client.close();
        co_await e.server.next_layer().async_wait_disconnected(awaiting);
        // Nothing else happens on the channel that could deliver the result.
        co_await pause(io, 20ms);
        auto const [to_notice] = co_await notice.async_answer(0, nothing, awaiting);
        CHECK(to_notice == channel_errc::already_answered);
        auto const [again] = co_await answered.async_answer(0, nothing, awaiting);
        CHECK(again == channel_errc::already_answered);
    });
}

TEST_CASE("requests are answered in any order, and each gets its own answer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        std::vector<std::uint32_t> order;
        std::vector<std::vector<std::byte>> bodies;
        for (std::uint32_t i = 0; i < 6; ++i) bodies.push_back(pattern(i * 200, i));
        for (std::uint32_t i = 0; i < 6; ++i)
            e.client.async_request(i, bodies[i], [&order, i](error_code ec, reply r) {
                CHECK_FALSE(ec);
                CHECK(r.status() == 100 + i);
                CHECK(text_of(r.bytes()) == std::to_string(i));
                order.push_back(i);
            });
        std::vector<request> asked;
        for (std::uint32_t i = 0; i < 6; ++i) {
            asked.push_back(co_await e.server.async_next(asio::use_awaitable));
            CHECK(asked.back().operation() == i);
            CHECK(asked.back().wants_answer());
            CHECK_FALSE(asked.back().is_cancelled());
        }
        for (std::uint32_t const i : {3U, 0U, 5U, 1U, 4U, 2U}) {
            auto const text = bytes_of(std::to_string(i));
            co_await asked[i].async_answer(100 + i, text, asio::use_awaitable);
            CHECK_FALSE(asked[i].wants_answer());
            auto [again] = co_await asked[i].async_answer(1, text, awaiting);
            CHECK(again == channel_errc::already_answered);
        }
        while (order.size() < 6) co_await pause(io, 1ms);
        CHECK(order == std::vector<std::uint32_t>{3, 0, 5, 1, 4, 2});
        asked.clear();
        co_await part(e);
    });
}

TEST_CASE("two sides that ask, and keep everything that they get, never stall", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const receives = GENERATE(std::uint16_t{6}, std::uint16_t{7}, std::uint16_t{9});
        CAPTURE(receives);
        // Far more requests than there are receives.
        auto options = small(100);
        options.messages.receives = receives;
        ends e{io};
        co_await meet(io, e, options);
        constexpr std::uint32_t count = 100;
        struct one_side {
            std::vector<reply> replies;
            std::vector<request> requests;
            std::uint32_t answered = 0;
        };
        one_side sides[2];
        request_channel* const channels[2] = {&e.client, &e.server};
        std::vector<std::vector<std::byte>> bodies;
        for (std::uint32_t i = 0; i < count; ++i) bodies.push_back(pattern(i * 4, i));
        for (std::size_t s = 0; s < 2; ++s)
            for (std::uint32_t i = 0; i < count; ++i)
                channels[s]->async_request(i, bodies[i], [&sides, s](error_code ec, reply r) {
                    CHECK_FALSE(ec);
                    sides[s].replies.push_back(std::move(r));
                });
        auto const serve = [&](std::size_t s) -> asio::awaitable<void> {
            for (std::uint32_t i = 0; i < count; ++i)
                sides[s].requests.push_back(co_await channels[s]->async_next(asio::use_awaitable));
            for (request& r : sides[s].requests)
                r.async_answer(r.operation(), r.bytes(), [&sides, s](error_code ec) {
                    sides[s].answered += !ec;
                });
        };
        co_await (serve(0) && serve(1));
        for (one_side& side : sides)
            while (side.replies.size() < count || side.answered < count) co_await pause(io, 1ms);
        for (one_side& side : sides)
            for (std::uint32_t i = 0; i < count; ++i) {
                CHECK(side.replies[i].status() == i);
                CHECK(test::same(side.replies[i].bytes(), bodies[i]));
                CHECK(test::same(side.requests[i].bytes(), bodies[i]));
            }
        co_await part(e);
    });
}

TEST_CASE("requests beyond the peer's limit wait, and arrive in order", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(3));
        std::uint32_t ended = 0;
        auto const bytes = pattern(10, 1);
        for (std::uint32_t i = 0; i < 10; ++i)
            e.client.async_request(i, bytes, [&](error_code ec, reply const&) {
                ended += ec == channel_errc::request_dropped;
            });
        co_await pause(io, 20ms);
        CHECK(e.client.statistics().waiting == 7);
        CHECK(e.client.statistics().outstanding == 3);
        CHECK(e.server.statistics().arrived == 3);
        for (std::uint32_t i = 0; i < 10; ++i) {
            // Dropped at once.
            request const r = co_await e.server.async_next(asio::use_awaitable);
            CHECK(r.operation() == i);
        }
        while (ended < 10) co_await pause(io, 1ms);
        CHECK(e.client.statistics().failed == 10);
        co_await part(e);
    });
}

TEST_CASE("a request that is not answered in time fails, and its late answer harms nothing") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(2));
        auto const bytes = pattern(10, 1);
        auto const big = pattern(3000, 2);
        auto [ec, none] =
            co_await e.client.async_request(ask{1}.body(bytes).within(20ms), awaiting);
        CHECK(ec == channel_errc::request_timed_out);
        request late = co_await e.server.async_next(asio::use_awaitable);
        while (!late.is_cancelled()) co_await pause(io, 1ms);
        auto [mistake, nought] =
            co_await e.client.async_request(ask{1}.body(bytes).within(0ms), awaiting);
        CHECK(mistake == errc::invalid_option);
        // A large body is free when the handler runs: the peer can no longer fetch it.
        auto [too_late, nothing] =
            co_await e.client.async_request(ask{2}.body(big).within(20ms), awaiting);
        CHECK(too_late == channel_errc::request_timed_out);
        request large = co_await e.server.async_next(asio::use_awaitable);
        registered_buffer into{
            e.server.next_layer().domain(), big.size(), access_flags::local_write};
        auto [refused] = co_await e.server.async_fetch(std::move(large), into.slice(), awaiting);
        CHECK(refused == channel_errc::message_withdrawn);
        // Both numbers of the peer's are in use still: this one waits, and is late without having
        // been sent.
        auto [unsent, nobody] =
            co_await e.client.async_request(ask{3}.body(bytes).within(20ms), awaiting);
        CHECK(unsent == channel_errc::request_timed_out);
        CHECK(e.server.statistics().arrived == 2);
        late.async_answer(9, big, asio::detached);
        late.release();
        co_await large.async_answer(9, bytes, asio::use_awaitable);
        auto const answer = [&]() -> asio::awaitable<void> {
            request r = co_await e.server.async_next(asio::use_awaitable);
            CHECK(r.operation() == 4);
            co_await r.async_answer(44, bytes, asio::use_awaitable);
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            reply const r = co_await e.client.async_request(4, bytes, asio::use_awaitable);
            CHECK(r.status() == 44);
        };
        co_await (answer() && ask());
        co_await part(e);
    });
}

TEST_CASE("requests are cancelled while they wait and when they are with the peer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(1));
        auto const bytes = pattern(10, 1);
        auto const big = pattern(3000, 2);
        for (auto const* body : {&bytes, &big}) {
            asio::cancellation_signal stop_first;
            asio::cancellation_signal stop_second;
            std::optional<error_code> first;
            std::optional<error_code> second;
            e.client.async_request(
                1,
                *body,
                asio::bind_cancellation_slot(
                    stop_first.slot(), [&](error_code ec, reply const&) { first = ec; }
                )
            );
            e.client.async_request(
                2,
                *body,
                asio::bind_cancellation_slot(
                    stop_second.slot(), [&](error_code ec, reply const&) { second = ec; }
                )
            );
            request r = co_await e.server.async_next(asio::use_awaitable);
            CHECK_FALSE(first);
            stop_second.emit(asio::cancellation_type::total);
            while (!second) co_await pause(io, 1ms);
            CHECK(*second == asio::error::operation_aborted);
            stop_first.emit(asio::cancellation_type::all);
            while (!first) co_await pause(io, 1ms);
            CHECK(*first == asio::error::operation_aborted);
            while (!r.is_cancelled()) co_await pause(io, 1ms);
            r = {};
        }
        // A wait for a request, without a loss.
        asio::cancellation_signal stop;
        std::optional<error_code> waited;
        e.server.async_next(asio::bind_cancellation_slot(
            stop.slot(), [&](error_code ec, request const&) { waited = ec; }
        ));
        stop.emit(asio::cancellation_type::total);
        while (!waited) co_await pause(io, 1ms);
        CHECK(*waited == asio::error::operation_aborted);
        e.client.async_request(5, bytes, asio::detached);
        request const r = co_await e.server.async_next(asio::use_awaitable);
        CHECK(r.operation() == 5);
    });
}

TEST_CASE("cancel() ends what a request channel waits for, and the channel goes on", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(2));
        auto const bytes = pattern(10, 1);
        auto const big = pattern(3000, 2);
        std::vector<error_code> ended;
        for (std::uint32_t i = 0; i < 4; ++i)
            e.client.async_request(i, i == 1 ? big : bytes, [&](error_code ec, reply const&) {
                ended.push_back(ec);
            });
        request first = co_await e.server.async_next(asio::use_awaitable);
        request second = co_await e.server.async_next(asio::use_awaitable);
        std::optional<error_code> waited;
        e.client.async_next([&](error_code ec, request const&) { waited = ec; });
        e.client.cancel();
        while (ended.size() < 4 || !waited) co_await pause(io, 1ms);
        CHECK(ended == std::vector<error_code>(4, asio::error::operation_aborted));
        CHECK(*waited == asio::error::operation_aborted);
        while (!first.is_cancelled() || !second.is_cancelled()) co_await pause(io, 1ms);
        // Nothing of an idle channel.
        e.client.cancel();
        e.server.cancel();
        first = {};
        second = {};
        e.client.async_request(5, bytes, asio::detached);
        first = co_await e.server.async_next(asio::use_awaitable);
        CHECK(first.operation() == 5);
    });
}

TEST_CASE("a request has a head without options, and without memory for the answer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const key = pattern(20, 1);
        auto const body = pattern(30, 2);
        registered_buffer registered{
            e.client.next_layer().domain(), body.size(), access_flags::remote_read};
        std::ranges::copy(body, registered.bytes().begin());
        for (int i = 0; i < 2; ++i) {
            std::optional<error_code> ended;
            auto const on_reply = [&](error_code ec, reply const&) { ended = ec; };
            if (i == 0) e.client.async_request(ask{4}.head(key).body(body), on_reply);
            else e.client.async_request(ask{4}.head(key).body(registered.slice()), on_reply);
            request r = co_await e.server.async_next(asio::use_awaitable);
            CHECK(test::same(r.head(), key));
            CHECK(test::same(r.bytes(), body));
            CHECK(r.target_bytes() == 0);
            co_await r.async_answer(0, {}, asio::use_awaitable);
            while (!ended) co_await pause(io, 1ms);
            CHECK_FALSE(*ended);
        }
        co_await part(e);
    });
}

TEST_CASE("an answer that is cancelled before it is sent becomes none", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(10, 1);
        std::optional<error_code> ended;
        std::vector<reply> held;
        int answered = 0;
        std::vector<request> asked;
        asio::cancellation_signal stop;
        for (std::uint32_t i = 0; i < 12; ++i)
            e.client.async_request(i, bytes, [&](error_code ec, reply r) {
                if (ec) ended = ec;
                else held.push_back(std::move(r));
            });
        for (std::uint32_t i = 0; i < 12; ++i)
            asked.push_back(co_await e.server.async_next(asio::use_awaitable));
        // In one turn, so that the last waits for a credit.
        for (std::uint32_t i = 0; i < 11; ++i)
            asked[i].async_answer(0, bytes, [&](error_code ec) { answered += !ec; });
        std::optional<error_code> taken_back;
        asked[11].async_answer(
            0,
            bytes,
            asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) { taken_back = ec; })
        );
        stop.emit(asio::cancellation_type::total);
        while (!taken_back || answered < 11) co_await pause(io, 1ms);
        CHECK(*taken_back == asio::error::operation_aborted);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == channel_errc::request_dropped);
        CHECK(held.size() == 11);
        held.clear();
        asked.clear();
        co_await part(e);
    });
}

TEST_CASE("notices arrive in order among requests, and want no answer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(4));
        auto const serve = [&]() -> asio::awaitable<void> {
            for (std::uint32_t i = 0; i < 30; ++i) {
                request r = co_await e.server.async_next(asio::use_awaitable);
                CHECK(r.operation() == i);
                CHECK(r.wants_answer() == (i % 3 == 0));
                auto const body = co_await body_of(e.server, r);
                CHECK(body == pattern(i * 40, i));
                auto [ec] = co_await r.async_answer(7, pattern(3, i), awaiting);
                CHECK(
                    ec ==
                    (i % 3 == 0 ? error_code{} : make_error_code(channel_errc::already_answered))
                );
            }
        };
        auto const tell = [&]() -> asio::awaitable<void> {
            for (std::uint32_t i = 0; i < 30; ++i) {
                auto const body = pattern(i * 40, i);
                if (i % 3 == 0) co_await e.client.async_request(i, body, asio::use_awaitable);
                else co_await e.client.async_notify(i, body, asio::use_awaitable);
            }
        };
        co_await (serve() && tell());
        co_await part(e);
    });
}

TEST_CASE("a channel finishes when all requests of both sides are answered", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(10, 1);
        bool is_answered = false;
        std::optional<error_code> client_end;
        std::optional<error_code> server_end;
        e.client.async_request(1, bytes, [&](error_code ec, reply const&) {
            CHECK_FALSE(ec);
            is_answered = true;
            CHECK_FALSE(client_end);
        });
        e.client.async_finish([&](error_code ec) { client_end = ec; });
        auto [refused, none] = co_await e.client.async_request(2, bytes, awaiting);
        CHECK(refused == errc::operation_in_progress);
        request r = co_await e.server.async_next(asio::use_awaitable);
        e.server.async_finish([&](error_code ec) { server_end = ec; });
        co_await pause(io, 20ms);
        CHECK_FALSE(client_end);
        CHECK_FALSE(server_end);
        co_await r.async_answer(1, bytes, asio::use_awaitable);
        auto [ended, nothing] = co_await e.server.async_next(awaiting);
        CHECK(ended == asio::error::eof);
        while (!client_end || !server_end) co_await pause(io, 1ms);
        CHECK(is_answered);
        CHECK_FALSE(*client_end);
        CHECK_FALSE(*server_end);
        CHECK(e.client.last_failure().reason == close_reason::completed);
        auto [over, nobody] = co_await e.client.async_request(2, bytes, awaiting);
        CHECK(over.failed());
    });
}

TEST_CASE("who finishes a channel that finishes gets the same result", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        // As a server does that ends in order while its loop serves.
        std::vector<error_code> results;
        auto const serve = [&]() -> asio::awaitable<void> {
            co_await echo(e.server);
            auto const [ec] = co_await e.server.async_finish(awaiting);
            results.push_back(ec);
        };
        auto const stop = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 2; ++i) {
                e.server.async_finish([&](error_code ec) { results.push_back(ec); });
            }
            auto const bytes = pattern(10, 1);
            reply const last = co_await e.client.async_request(1, bytes, asio::use_awaitable);
            CHECK(last.status() == 2);
            co_await e.client.async_finish(asio::use_awaitable);
        };
        co_await (serve() && stop());
        CHECK(results == std::vector<error_code>(3));
        auto const [again] = co_await e.server.async_finish(awaiting);
        CHECK_FALSE(again);
        CHECK(e.server.last_failure().reason == close_reason::completed);
        // A failure, too.
        ends f{io};
        co_await meet(io, f);
        std::vector<error_code> failures;
        for (int i = 0; i < 2; ++i)
            f.client.async_finish([&](error_code ec) { failures.push_back(ec); });
        f.server.close();
        while (failures.size() < 2) co_await pause(io, 1ms);
        CHECK(failures[0].failed());
        CHECK(failures[0] == failures[1]);
        auto const [late] = co_await f.client.async_finish(awaiting);
        CHECK(late == failures[0]);
    });
}

TEST_CASE("a request channel that cannot finish says for what it waits", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto hasty = small();
        hasty.messages.finish_timeout = 200ms;
        auto const patient = small();
        ends idle{io};
        co_await meet(io, idle, hasty, patient);
        auto [only] = co_await idle.client.async_finish(awaiting);
        CHECK(only == channel_errc::peer_not_finished);
        // A notice that nobody takes.
        ends e{io};
        co_await meet(io, e, hasty, patient);
        co_await e.client.async_notify(1, {}, asio::use_awaitable);
        auto [of_notice] = co_await e.client.async_finish(awaiting);
        CHECK(of_notice == channel_errc::peer_not_answered);
        CHECK(of_notice == condition::timed_out);
        // A request that is kept: of both sides.
        for (bool const is_client_hasty : {true, false}) {
            ends kept{io};
            co_await meet(
                io, kept, is_client_hasty ? hasty : patient, is_client_hasty ? patient : hasty
            );
            auto [late, none] = co_await kept.client.async_request(ask{1}.within(20ms), awaiting);
            CHECK(late == channel_errc::request_timed_out);
            request const held = co_await kept.server.async_next(asio::use_awaitable);
            request_channel& first = is_client_hasty ? kept.client : kept.server;
            auto [of_request] = co_await first.async_finish(awaiting);
            CHECK(
                of_request ==
                (is_client_hasty ? channel_errc::peer_not_answered : channel_errc::not_answered)
            );
        }
    });
}

TEST_CASE("an answer after the server's finish_timeout fails, and its client knows", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto hasty = small();
        hasty.messages.finish_timeout = 200ms;
        ends e{io};
        co_await meet(io, e, small(), hasty);
        std::optional<error_code> asked;
        e.client.async_request(ask{1}, [&](error_code ec, reply const&) { asked = ec; });
        request held = co_await e.server.async_next(asio::use_awaitable);
        auto const [finished] = co_await e.server.async_finish(awaiting);
        CHECK(finished == channel_errc::not_answered);
        while (!held.is_cancelled()) co_await pause(io, 1ms);
        auto const [late] = co_await held.async_answer(answer{0}, awaiting);
        CHECK(late == channel_errc::not_answered);
        while (!asked) co_await pause(io, 1ms);
        CHECK(*asked == channel_errc::peer_closed_early);
    });
}

TEST_CASE("a peer that leaves ends all requests, and those that arrived are there", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(4));
        auto const bytes = pattern(10, 1);
        auto const big = pattern(3000, 2);
        int failed = 0;
        for (std::uint32_t i = 0; i < 8; ++i)
            e.client.async_request(i, i == 1 ? big : bytes, [&](error_code ec, reply const&) {
                failed += ec.failed();
            });
        request const r = co_await e.server.async_next(asio::use_awaitable);
        e.server.close();
        while (failed < 8) co_await pause(io, 1ms);
        CHECK_FALSE(e.client.is_open());
        auto [ec, none] = co_await e.client.async_next(awaiting);
        CHECK(ec.failed());
        CHECK(test::same(r.bytes(), bytes));
        auto [unsent] = co_await e.client.async_notify(1, bytes, awaiting);
        CHECK(unsent.failed());
    });
}

TEST_CASE("a request channel is refused by one of messages, and its options are checked") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        request_channel c{connection{io, strict(small())}, small()};
        auto [early, none] = co_await c.async_next(awaiting);
        CHECK(early == errc::not_connected);
        auto [unsent, nothing] = co_await c.async_request(1, bytes_of("x"), awaiting);
        CHECK(unsent == errc::not_connected);
        auto const refuse = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            message_channel m{connection{io, std::move(asked), strict(small())}, small().messages};
            auto [ec] = co_await m.async_accept(awaiting);
            CHECK(ec == channel_errc::mode_mismatch);
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            auto [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
            CHECK(ec == channel_errc::mode_mismatch);
        };
        co_await (refuse() && ask());
        auto const problem = [&](request_channel_options const& o) {
            try {
                request_channel const made{connection{io}, o};
                return std::string{};
            } catch (boost::system::system_error const& x) {
                CHECK(x.code() == errc::invalid_option);
                return std::string{x.what()};
            }
        };
        auto o = small();
        CHECK(problem(o).empty());
        o.requests = 0;
        CHECK(problem(o).find("requests") != std::string::npos);
        o = small();
        o.answer_timeout = 0ms;
        CHECK(problem(o).find("answer_timeout") != std::string::npos);
        o = small();
        o.messages.withdraw_timeout = 0ms;
        CHECK(problem(o).find("withdraw_timeout") != std::string::npos);
        o = small();
        o.messages.receives = 5;
        CHECK(problem(o).find("receives") != std::string::npos);
    });
}

TEST_CASE("a context that is destroyed takes its requests with it", "[device]") {
    std::optional<asio::io_context> io{std::in_place};
    auto e = std::make_unique<ends>(*io);
    std::vector<request> held;
    auto const bytes = pattern(10, 1);
    auto const big = pattern(3000, 1);
    bool is_called = false;
    asio::co_spawn(
        *io,
        [&]() -> asio::awaitable<void> {
            co_await meet(*io, *e, small(4));
            for (std::uint32_t i = 0; i < 8; ++i)
                e->client.async_request(i, i == 1 ? big : bytes, [&](error_code, reply const&) {
                    is_called = true;
                });
            held.push_back(co_await e->server.async_next(asio::use_awaitable));
            held.push_back(co_await e->server.async_next(asio::use_awaitable));
            e->client.async_next([&](error_code, request const&) { is_called = true; });
            e->client.async_finish([&](error_code) { is_called = true; });
            io->stop();
        },
        asio::detached
    );
    io->run();
    auto client = std::move(e->client);
    auto server = std::move(e->server);
    e.reset();
    io.reset();
    CHECK_FALSE(is_called);
    REQUIRE(held.size() == 2);
    CHECK(test::same(held[0].bytes(), bytes));
}

TEST_CASE("callers of many threads block until they are answered", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        auto const options = small(20);
        request_channel client{connection{own_thread, strict(options)}, options};
        request_channel server;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            server = request_channel{connection{io, std::move(asked), strict(options)}, options};
            co_await server.async_accept(asio::use_awaitable);
        };
        auto connected = client.async_connect(door.local_endpoint(), asio::use_future);
        co_await answer();
        connected.get();
        std::atomic<int> answered{0};
        std::atomic<int> running{4};
        auto const ask = [&](std::uint32_t first) {
            for (std::uint32_t i = first; i < first + 50; ++i) {
                auto const bytes = pattern(i % 700, i);
                reply r = client.async_request(i, bytes, asio::use_future).get();
                if (r.status() != i + 1) continue;
                std::vector<std::byte> back(r.bytes().begin(), r.bytes().end());
                if (r.is_large()) {
                    registered_buffer into{
                        client.next_layer().domain(), bytes.size(), access_flags::local_write};
                    client.async_fetch(std::move(r), into.slice(), asio::use_future).get();
                    back.assign(into.bytes().begin(), into.bytes().end());
                }
                answered += back == bytes;
            }
            --running;
        };
        std::vector<std::jthread> callers;
        for (std::uint32_t t = 0; t < 4; ++t) callers.emplace_back(ask, t * 1000);
        bool is_over = false;
        auto const watch = [&]() -> asio::awaitable<void> {
            while (running > 0) co_await pause(io, 1ms);
            callers.clear();
            auto finished = client.async_finish(asio::use_future);
            co_await server.async_finish(asio::use_awaitable);
            finished.get();
            is_over = true;
        };
        co_await (echo(server) && watch());
        CHECK(is_over);
        CHECK(answered == 200);
    });
}

TEST_CASE("a connector connects a request channel again", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        connector_options<request_channel> o;
        o.protocol = small();
        o.protocol.messages.connection = strict(small());
        basic_connector<request_channel> to{io, door.local_endpoint(), o};
        auto const bytes = pattern(20, 1);
        auto const serve = [&]() -> asio::awaitable<void> {
            for (std::uint32_t i = 0; i < 3; ++i) {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                request_channel c{connection{io, std::move(asked), strict(small())}, small()};
                co_await c.async_accept(asio::use_awaitable);
                request r = co_await c.async_next(asio::use_awaitable);
                co_await r.async_answer(i, bytes, asio::use_awaitable);
                auto [ec, none] = co_await c.async_next(awaiting);
            }
        };
        auto const visit = [&]() -> asio::awaitable<void> {
            for (std::uint32_t i = 0; i < 3; ++i) {
                request_channel c = co_await to.async_connect(asio::use_awaitable);
                reply const r = co_await c.async_request(i, bytes, asio::use_awaitable);
                CHECK(r.status() == i);
            }
        };
        co_await (serve() && visit());
    });
}

TEST_CASE("an answer that cannot be sent reaches the peer as none", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(10, 1);
        auto const answer = [&]() -> asio::awaitable<void> {
            request r = co_await e.server.async_next(asio::use_awaitable);
            registered_buffer secret{
                e.server.next_layer().domain(), 5000, access_flags::local_write};
            auto [ec] = co_await r.async_answer(1, secret.slice(), awaiting);
            CHECK(ec == errc::access_denied);
        };
        auto const ask_one = [&]() -> asio::awaitable<void> {
            auto [ec, none] = co_await e.client.async_request(
                ask{1}.body(bytes).within(std::chrono::milliseconds::max()), awaiting
            );
            CHECK(ec == channel_errc::request_dropped);
        };
        co_await (answer() && ask_one());
        co_await part(e);
    });
}

TEST_CASE("a request that is dropped while its body is fetched costs nothing else", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const big = pattern(400'000, 1);
        registered_buffer into{
            e.server.next_layer().domain(), big.size(), access_flags::local_write};
        auto const serve = [&]() -> asio::awaitable<void> {
            std::optional<error_code> fetched;
            {
                request r = co_await e.server.async_next(asio::use_awaitable);
                e.server.async_fetch(std::move(r), into.slice(), [&](error_code ec) {
                    fetched = ec;
                });
            }
            while (!fetched) co_await pause(io, 1ms);
            CHECK_FALSE(*fetched);
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            auto [ec, none] = co_await e.client.async_request(1, big, awaiting);
            CHECK(ec == channel_errc::request_dropped);
        };
        co_await (serve() && ask());
        // A large notice stays to be fetched after an attempt to answer it.
        auto const take = [&]() -> asio::awaitable<void> {
            request r = co_await e.server.async_next(asio::use_awaitable);
            auto [ec] = co_await r.async_answer(1, std::span<std::byte const>{}, awaiting);
            CHECK(ec == channel_errc::already_answered);
            auto const body = co_await body_of(e.server, r);
            CHECK(body == big);
        };
        co_await (take() && e.client.async_notify(2, big, asio::use_awaitable));
        co_await part(e);
    });
}

TEST_CASE("hundreds of large bodies are fetched at a time", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(300));
        auto const big = pattern(600, 1);
        registered_buffer into{
            e.server.next_layer().domain(), 300 * big.size(), access_flags::local_write};
        int answered = 0;
        std::deque<request> asked;
        for (std::uint32_t i = 0; i < 300; ++i)
            e.client.async_request(i, big, [&](error_code ec, reply const&) { answered += !ec; });
        for (std::uint32_t i = 0; i < 300; ++i)
            asked.push_back(co_await e.server.async_next(asio::use_awaitable));
        for (std::uint32_t i = 0; i < 300; ++i) {
            request& r = asked[i];
            e.server.async_fetch(
                std::move(r),
                into.slice(i * big.size(), big.size()),
                [&r](error_code ec) {
                    CHECK_FALSE(ec);
                    r.async_answer(0, std::span<std::byte const>{}, asio::detached);
                }
            );
        }
        while (answered < 300) co_await pause(io, 1ms);
        for (std::uint32_t i = 0; i < 300; ++i)
            CHECK(test::same(into.bytes().subspan(i * big.size(), big.size()), big));
        co_await part(e);
    });
}

TEST_CASE("a channel can be connected after a greeting that is too long", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        request_channel_options const options = small();
        e.client = request_channel{connection{io, strict(options)}, options};
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            e.server = request_channel{connection{io, std::move(asked), strict(options)}, options};
            co_await e.server.async_accept(asio::use_awaitable);
        };
        bool is_connected = false;
        std::vector<std::byte> const greeting(33);
        e.client.async_connect(e.door.local_endpoint(), greeting, [&](error_code ec) {
            CHECK(ec == errc::private_data_too_large);
            e.client.async_connect(e.door.local_endpoint(), [&](error_code failed) {
                CHECK_FALSE(failed);
                is_connected = true;
            });
        });
        co_await answer();
        while (!is_connected) co_await pause(io, 1ms);
        auto const ask = [&]() -> asio::awaitable<void> {
            auto const bytes = pattern(10, 1);
            reply const r = co_await e.client.async_request(5, bytes, asio::use_awaitable);
            CHECK(r.status() == 6);
            co_await e.client.async_finish(asio::use_awaitable);
        };
        auto const serve = [&]() -> asio::awaitable<void> {
            co_await echo(e.server);
            co_await e.server.async_finish(asio::use_awaitable);
        };
        co_await (ask() && serve());
    });
}

TEST_CASE("a handler whose context is destroyed delays no other request", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(10, 1);
        std::optional<asio::io_context> other{std::in_place};
        bool is_called = false;
        e.client.async_request(
            ask{1}.body(bytes).within(10ms),
            asio::bind_executor(
                other->get_executor(), [&](error_code, reply const&) { is_called = true; }
            )
        );
        request late = co_await e.server.async_next(asio::use_awaitable);
        other.reset();
        co_await pause(io, 30ms);
        CHECK_FALSE(is_called);
        co_await late.async_answer(0, bytes, asio::use_awaitable);
        late = {};
        auto [ec, none] =
            co_await e.client.async_request(ask{2}.body(bytes).within(10ms), awaiting);
        CHECK(ec == channel_errc::request_timed_out);
        static_cast<void>(co_await e.server.async_next(asio::use_awaitable));
        co_await part(e);
    });
}

// --- hostile peers -------------------------------------------------------------------------------

namespace {

using hostile = hostile_ends<request_channel>;

std::uint64_t tag(std::uint8_t kind, std::uint16_t id, std::uint32_t value = 0) {
    return std::uint64_t{kind} << 56 | std::uint64_t{id} << 32 | value;
}

/// What a peer sends, in order, and whether it breaks the rules with the last one. The server has a
/// request and a notice outstanding, with the numbers 0 and 1.
struct exchange {
    char const* what;
    std::vector<forged> sent;
    bool is_violation;
};

forged eager(std::uint64_t tag, std::uint8_t body_bytes = 0) {
    return {"", 1, 0, 0, body_bytes, tag, body_bytes};
}
forged large(std::uint64_t tag, std::uint64_t body_bytes) {
    return {"", 2, 0, 0, 1, tag, 0, body_bytes};
}

constexpr std::uint64_t body_bytes_max = std::uint64_t{1} << 32;

}  // namespace

TEST_CASE("what a peer of requests may send, and what ends its channel", "[device]") {
    // REQUEST 1, NOTICE 2, ANSWER 3, DROPPED 4, CANCEL 5, END 6.
    std::vector<exchange> const cases{
        {"the end twice", {eager(tag(6, 0)), eager(tag(6, 0))}, true},
        {"a notice after the end", {eager(tag(6, 0)), eager(tag(2, 0))}, true},
        {"a large request after the end", {eager(tag(6, 0)), large(tag(1, 0), 5000)}, true},
        {"a cancellation after the end", {eager(tag(6, 0)), eager(tag(5, 0))}, false},
        {"an answer after the end", {eager(tag(6, 0)), eager(tag(3, 0, 7), 4)}, false},
        {"two answers", {eager(tag(3, 0)), eager(tag(3, 0))}, true},
        {"two refusals", {eager(tag(4, 0)), eager(tag(4, 0))}, true},
        {"a refusal and an answer", {eager(tag(4, 0)), eager(tag(3, 0))}, true},
        {"an answer and a refusal", {eager(tag(3, 0)), eager(tag(4, 0))}, true},
        {"an answer to a number that is not in use", {eager(tag(3, 2))}, true},
        {"an answer to the largest number", {eager(tag(3, 65535))}, true},
        {"an answer to a notice", {eager(tag(3, 1))}, false},
        {"a refusal of a notice", {eager(tag(4, 1))}, false},
        {"an answer with a body to a notice", {eager(tag(3, 1), 1)}, true},
        {"an answer with a large body to a notice", {large(tag(3, 1), 5000)}, true},
        {"an answer with a status to a notice", {eager(tag(3, 1, 1))}, true},
        {"the largest status", {eager(tag(3, 0, 0xffffffff))}, false},
        {"the largest operation", {eager(tag(1, 15, 0xffffffff), 8)}, false},
        {"the largest request", {eager(tag(1, 65535))}, true},
        {"a notice with a number beyond the limit", {eager(tag(2, 16))}, true},
        {"a cancellation of what was never asked", {eager(tag(5, 15))}, false},
        {"two cancellations", {eager(tag(1, 3)), eager(tag(5, 3)), eager(tag(5, 3))}, false},
        {"the largest cancellation", {eager(tag(5, 65535))}, true},
        {"a cancellation with a body", {eager(tag(5, 0), 1)}, true},
        {"a large cancellation", {large(tag(5, 0), 5000)}, true},
        {"a large end", {large(tag(6, 0), 5000)}, true},
        {"the largest body", {large(tag(1, 0), body_bytes_max)}, false},
        {"a larger body", {large(tag(1, 0), body_bytes_max + 1)}, true},
        {"the largest answer", {large(tag(3, 0), body_bytes_max)}, false},
        {"a larger answer", {large(tag(3, 0), body_bytes_max + 1)}, true},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (exchange const& each : cases) {
            CAPTURE(each.what);
            hostile e{io};
            co_await meet_hostile(io, e, small(), 16);
            int ended = 0;
            e.server.async_request(5, bytes_of("a request"), [&](error_code ec, reply const& r) {
                ++ended;
                bool const is_refused = ec == channel_errc::request_dropped;
                if (!each.is_violation) CHECK((!ec || is_refused || !e.server.is_open()));
                if (!ec && each.what == std::string{"the largest status"})
                    CHECK(r.status() == 0xffffffff);
            });
            e.server.async_notify(6, bytes_of("a notice"), [&](error_code) { ++ended; });
            while (e.server.statistics().messages.sent < 2) co_await pause(io, 1ms);
            auto const before = e.server.statistics().messages.arrived;
            std::vector<request> kept;
            std::function<void(error_code, request)> const keep = [&](error_code ec, request r) {
                if (ec) return;
                kept.push_back(std::move(r));
                e.server.async_next(keep);
            };
            e.server.async_next(keep);
            for (forged const& f : each.sent) co_await send(e, f.bytes());
            if (each.is_violation) {
                while (e.server.last_failure().reason == close_reason::open)
                    co_await pause(io, 1ms);
                CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            } else {
                while (e.server.statistics().messages.arrived < before + each.sent.size())
                    co_await pause(io, 1ms);
                co_await pause(io, 5ms);
                CHECK(e.server.last_failure().reason == close_reason::open);
            }
            kept.clear();
            e.peer.close();
            while (e.server.last_failure().reason == close_reason::open) co_await pause(io, 1ms);
            while (ended < 2) co_await pause(io, 1ms);
        }
    });
}

TEST_CASE("a peer that breaks the rules of requests ends its own channel", "[device]") {
    forged const cases[] = {
        {"an unknown kind", 1, 0, 0, 0, tag(8, 0)},
        {"a number beyond the limit", 1, 0, 0, 0, tag(1, 16)},
        {"an answer to nothing", 1, 0, 0, 0, tag(3, 0)},
        {"a refusal of nothing", 1, 0, 0, 0, tag(4, 3)},
        {"a cancellation beyond the limit", 1, 0, 0, 0, tag(5, 16)},
        {"an end with a body", 1, 0, 0, 4, tag(6, 0), 4},
        {"the end of messages before that of requests", 5},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (forged const& f : cases) {
            CAPTURE(f.what);
            hostile e{io};
            co_await meet_hostile(io, e, small(), 16);
            co_await send(e, f.bytes());
            std::optional<error_code> ended;
            e.server.async_request(1, {}, [&](error_code ec, reply const&) { ended = ec; });
            auto [ec, none] = co_await e.server.async_next(awaiting);
            bool const is_malformed = f.what == std::string{"an unknown kind"} || f.more > 0;
            CHECK(
                ec ==
                (is_malformed ? channel_errc::malformed_message : channel_errc::unexpected_message)
            );
            while (!ended) co_await pause(io, 1ms);
            CHECK(*ended == ec);
            while (e.server.last_failure().reason == close_reason::open) co_await pause(io, 1ms);
            CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            e.peer.close();
        }
        for (bool const is_notice : {false, true}) {
            hostile e{io};
            co_await meet_hostile(io, e, small(), 16);
            co_await send(e, forged{"a request", 1, 0, 0, 0, tag(1, 4)}.bytes());
            co_await send(
                e, forged{"its number again", 1, 0, 0, 0, tag(is_notice ? 2 : 1, 4)}.bytes()
            );
            while (e.server.last_failure().reason == close_reason::open) co_await pause(io, 1ms);
            CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            request const r = co_await e.server.async_next(asio::use_awaitable);
            CHECK(r.wants_answer());
            e.peer.close();
        }
        hostile e{io};
        co_await meet_hostile(io, e, small(), 16);
        co_await send(e, forged{"the end", 1, 0, 0, 0, tag(6, 0)}.bytes());
        co_await send(e, forged{"a request after it", 1, 0, 0, 0, tag(1, 4)}.bytes());
        while (e.server.last_failure().reason == close_reason::open) co_await pause(io, 1ms);
        CHECK(e.server.last_failure().reason == close_reason::protocol_error);
        e.peer.close();
    });
}

TEST_CASE("a peer that never reads the answers to its requests ends its channel", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        co_await meet_hostile(io, e, small(), 16);
        // Drops every request.
        e.server.async_next([](error_code, request const&) {});
        for (int i = 0; i < 60 && e.server.is_open(); ++i) {
            co_await send(e, forged{"the same request", 1, 0, 0, 0, tag(1, 0)}.bytes());
            e.server.async_next([](error_code, request const&) {});
            // Not faster than receives are posted again.
            auto const count = static_cast<std::uint64_t>(i) + 1;
            while (e.server.is_open() && e.server.statistics().arrived < count)
                co_await pause(io, 1ms);
        }
        INFO(e.server.last_failure().message());
        CHECK(e.server.last_failure().reason == close_reason::protocol_error);
        e.peer.close();
    });
}

TEST_CASE("a peer does not decide how many large answers are kept for it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto options = small(4);
        hostile e{io};
        // It says that it takes as many as there can be, and fetches none.
        co_await meet_hostile(io, e, options, 65535, 32767);
        auto const big = pattern(3000, 1);
        std::size_t answered = 0;
        std::size_t unanswered = 0;
        std::size_t unanswered_max = 0;
        std::function<void(error_code, request)> const answer = [&](error_code ec, request r) {
            if (ec) return;
            unanswered_max = std::max(unanswered_max, ++unanswered);
            ++answered;
            r.async_answer(1, big, [&](error_code) { --unanswered; });
            e.server.async_next(answer);
        };
        e.server.async_next(answer);
        for (std::size_t i = 0; i < 100 && e.server.is_open(); ++i) {
            co_await send(e, forged{"the same request", 1, 0, 0, 0, tag(1, 0)}.bytes());
            while (e.server.is_open() && answered <= i) co_await pause(io, 1ms);
        }
        INFO(e.server.last_failure().message());
        CHECK(e.server.last_failure().reason == close_reason::protocol_error);
        // sends + 2 * requests that it may read, and as many again that wait.
        CHECK(unanswered_max >= 8 + 2 * 4);
        CHECK(unanswered_max <= 2 * (8 + 2 * 4));
        while (unanswered > 0) co_await pause(io, 1ms);
        e.peer.close();
    });
}

TEST_CASE("a peer that ends before it has answered ends its channel", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        co_await meet_hostile(io, e, small(), 16);
        auto const big = pattern(3000, 1);
        std::optional<error_code> ended;
        e.server.async_request(1, big, [&](error_code ec, reply const&) { ended = ec; });
        co_await pause(io, 10ms);
        co_await send(e, forged{"END", 1, 0, 0, 0, tag(6, 0)}.bytes());
        co_await send(e, forged{"CLOSE", 5}.bytes());
        while (!ended) co_await pause(io, 1ms);
        CHECK(ended->failed());
        CHECK(e.server.last_failure().reason == close_reason::protocol_error);
        e.peer.close();
    });
}

TEST_CASE("a peer that keeps a withdrawn large body loses the channel") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        auto options = small();
        options.messages.withdraw_timeout = 50ms;
        co_await meet_hostile(io, e, options, 16);
        auto const big = pattern(3000, 1);
        auto [ec, none] = co_await e.server.async_request(ask{1}.body(big).within(20ms), awaiting);
        CHECK(ec == channel_errc::request_timed_out);
        CHECK_FALSE(e.server.is_open());
        CHECK(e.server.last_failure().reason == close_reason::timed_out);
        // Its region is gone: the memory cannot be read over a connection that still stands, either.
        auto const head = e.memory.bytes().subspan(8192, 40);
        CHECK(head[0] == std::byte{2});
        e.peer.close();
    });
}
