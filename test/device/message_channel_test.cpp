// Messages of any size, in order, with credits. No receiver may ever be not ready: rnr_retry_count is
// 0 throughout, so that a send without a receive fails.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

message_channel_options small(std::uint16_t receives = 8, std::uint32_t slot_bytes = 512) {
    message_channel_options o;
    o.mode = 3;
    o.receives = receives;
    o.sends = receives;
    o.slot_bytes = slot_bytes;
    return o;
}

connection_options strict(message_channel_options const& o) {
    connection_options all = message_channel::needed(o);
    all.queue_pair.rnr_retry_count = 0;
    return all;
}

/// Two ends of a channel, each with an acceptor's and a connector's role.
struct ends {
    explicit ends(asio::io_context& io) : door{io, {device_address(), 0}} {}

    acceptor door;
    message_channel client;
    message_channel server;
};

asio::awaitable<void> meet(
    asio::io_context& io,
    ends& e,
    message_channel_options const& client = small(),
    std::optional<message_channel_options> const& server = std::nullopt
) {
    message_channel_options const theirs = server.value_or(client);
    e.client = message_channel{connection{io, strict(client)}, client};
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        e.server = message_channel{connection{io, std::move(asked), strict(theirs)}, theirs};
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

/// Receives a message of any size.
asio::awaitable<std::vector<std::byte>> receive_all(message_channel& from, std::uint64_t& tag) {
    message m = co_await from.async_receive(asio::use_awaitable);
    tag = m.tag();
    if (!m.is_large()) co_return std::vector<std::byte>(m.bytes().begin(), m.bytes().end());
    registered_buffer into{
        from.next_layer().domain(), static_cast<std::size_t>(m.size()), access_flags::local_write};
    co_await from.async_fetch(std::move(m), into.slice(), asio::use_awaitable);
    co_return std::vector<std::byte>(into.bytes().begin(), into.bytes().end());
}

}  // namespace

TEST_CASE(
    "a program that fills the queue of a channel's connection does not end the channel", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        registered_buffer const ours{e.client.next_layer().domain(), 8, access_flags::local_read};
        registered_buffer const theirs{
            e.server.next_layer().domain(), 8, access_flags::remote_write};
        int written = 0;
        int refused = 0;
        int const all = 1000;
        for (int i = 0; i < all; ++i) {
            e.client.next_layer()
                .async_write(ours.slice(), theirs.remote(), [&](error_code ec, std::size_t) {
                    ++(ec ? refused : written);
                    CHECK((!ec || ec == errc::queue_full));
                });
        }
        auto const [ec] = co_await e.client.async_send(std::string_view{"hello"}, 7, awaiting);
        CHECK_FALSE(ec);
        std::uint64_t tag = 0;
        auto const got = co_await receive_all(e.server, tag);
        CHECK(got.size() == 5);
        co_await part(e);
        CHECK(refused > 0);
        CHECK(written + refused == all);
    });
}

TEST_CASE("a channel over a shared receive queue does not open", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        shared_receive_queue shared{io, {.depth = 256}};
        connection_options all = strict(small());
        all.placement.shared_receives = shared;
        e.client = message_channel{connection{io, all}, small()};
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            e.server = message_channel{connection{io, std::move(asked), strict(small())}, small()};
            co_await e.server.async_accept(awaiting);
        };
        auto const [connected] =
            co_await (answer() && e.client.async_connect(e.door.local_endpoint(), awaiting));
        CHECK(connected == errc::receives_are_shared);
        CHECK_FALSE(e.client.is_open());
        e.server.close();
    });
}

TEST_CASE("a channel whose timeouts are of any length does not end at once", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        auto options = small();
        options.finish_timeout = std::chrono::milliseconds::max();
        options.withdraw_timeout = std::chrono::milliseconds::max();
        co_await meet(io, e, options);
        auto const big = pattern(5000, 1);
        asio::cancellation_signal cancel;
        std::optional<error_code> ended;
        e.client.async_send(big, 1, asio::bind_cancellation_slot(cancel.slot(), [&](error_code ec) {
                                ended = ec;
                            }));
        message const held = co_await e.server.async_receive(asio::use_awaitable);
        cancel.emit(asio::cancellation_type::total);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == channel_errc::message_withdrawn);
        auto const finish_late = [&]() -> asio::awaitable<void> {
            co_await pause(io, 20ms);
            co_await e.server.async_finish(asio::use_awaitable);
        };
        co_await (e.client.async_finish(asio::use_awaitable) && finish_late());
        CHECK(e.client.last_failure().reason == close_reason::completed);
    });
}

TEST_CASE("a channel carries messages both ways, with greetings, and finishes", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        CHECK(text_of(e.client.greeting()) == "hello, client");
        CHECK(text_of(e.server.greeting()) == "hello, server");
        CHECK(e.client.small_bytes_max() == 496);
        auto const question = bytes_of("what is it?");
        co_await e.client.async_send(question, 41, asio::use_awaitable);
        message asked = co_await e.server.async_receive(asio::use_awaitable);
        CHECK(asked.tag() == 41);
        CHECK(asked.size() == question.size());
        CHECK_FALSE(asked.is_large());
        CHECK(text_of(asked.bytes()) == "what is it?");
        // An answer from where the question arrived.
        co_await e.server.async_send(asked.slice(), 42, asio::use_awaitable);
        asked.release();
        message answer = co_await e.client.async_receive(asio::use_awaitable);
        CHECK(answer.tag() == 42);
        CHECK(text_of(answer.bytes()) == "what is it?");
        // Nothing is a message, too.
        co_await e.server.async_send(std::span<std::byte const>{}, 43, asio::use_awaitable);
        answer = co_await e.client.async_receive(asio::use_awaitable);
        CHECK(answer.tag() == 43);
        CHECK(answer.size() == 0);
        CHECK(e.client.statistics().sent == 1);
        CHECK(e.client.statistics().arrived == 2);
        CHECK(e.server.statistics().sent_bytes == question.size());
        co_await part(e);
        auto [ec, none] = co_await e.server.async_receive(awaiting);
        CHECK(ec == asio::error::eof);
        CHECK_FALSE(none.is_valid());
        // A message outlives its channel.
        CHECK(answer.tag() == 43);
    });
}

TEST_CASE("messages of all sizes arrive whole and in order, both ways at a time", "[device]") {
    auto const receives = GENERATE(std::uint16_t{6}, std::uint16_t{7}, std::uint16_t{32});
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(receives), small(receives == 6 ? std::uint16_t{16} : receives));
        constexpr std::uint64_t count = 70;
        auto const size_of = [](std::uint64_t i) -> std::size_t {
            std::size_t const sizes[] = {0, 1, 495, 496, 497, 4096, 70'000};
            return sizes[i * 5 % 7];
        };
        auto const send = [&](message_channel& from) -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < count; ++i) {
                auto const bytes = pattern(size_of(i), i);
                co_await from.async_send(bytes, i, asio::use_awaitable);
            }
        };
        auto const receive = [&](message_channel& from) -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < count; ++i) {
                std::uint64_t tag = 0;
                auto const bytes = co_await receive_all(from, tag);
                if (tag != i || bytes != pattern(size_of(i), i)) FAIL("message " << i);
            }
        };
        co_await (send(e.client) && receive(e.server) && send(e.server) && receive(e.client));
        CHECK(e.client.statistics().sent == count);
        co_await part(e);
    });
}

TEST_CASE("a sender waits for a receiver that holds its messages", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        std::vector<std::vector<std::byte>> sent;
        int acknowledged = 0;
        for (std::uint64_t i = 0; i < 40; ++i) sent.push_back(pattern(100, i));
        for (std::uint64_t i = 0; i < 40; ++i) {
            e.client.async_send(sent[i], i, [&](error_code ec) {
                CHECK_FALSE(ec);
                ++acknowledged;
            });
        }
        std::deque<message> held;
        for (int i = 0; i < 4; ++i)
            held.push_back(co_await e.server.async_receive(asio::use_awaitable));
        while (acknowledged < 4) co_await pause(io, 1ms);
        co_await pause(io, 50ms);
        CHECK(acknowledged == 4);
        CHECK(e.client.statistics().waiting == 36);
        // One place, one message: in order, and none is ever refused.
        for (std::uint64_t i = 4; i < 40; ++i) {
            held.pop_front();
            held.push_back(co_await e.server.async_receive(asio::use_awaitable));
            CHECK(held.back().tag() == i);
            CHECK(test::same(held.back().bytes(), sent[i]));
        }
        held.clear();
        co_await part(e);
        CHECK(acknowledged == 40);
    });
}

TEST_CASE("two sides that send without receiving wait, and both go on", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(6));
        int done = 0;
        auto const bytes = pattern(200, 1);
        for (message_channel* const c : {&e.client, &e.server}) {
            for (std::uint64_t i = 0; i < 100; ++i)
                c->async_send(bytes, i, [&](error_code ec) { done += !ec; });
        }
        while (done < 4) co_await pause(io, 1ms);
        co_await pause(io, 50ms);
        CHECK(done == 4);
        for (std::uint64_t i = 0; i < 100; ++i) {
            for (message_channel* const c : {&e.client, &e.server}) {
                message const m = co_await c->async_receive(asio::use_awaitable);
                CHECK(m.tag() == i);
            }
        }
        co_await part(e);
        CHECK(done == 200);
    });
}

TEST_CASE(
    "a large message is fetched into memory of the receiver's choice, or declined", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        protection_domain const ours = e.client.next_layer().domain();
        protection_domain const theirs = e.server.next_layer().domain();
        registered_buffer from{ours, 100'000, access_flags::remote_read};
        std::ranges::copy(pattern(from.size(), 9), from.bytes().begin());
        // Three pieces of the sender's into two of the receiver's.
        std::vector<mutable_slice> const pieces{
            from.slice(0, 10'000), from.slice(10'000, 1), from.slice(10'001, 50'000)};
        registered_buffer into{theirs, 80'000, access_flags::local_write};
        std::vector<mutable_slice> const places{into.slice(0, 20'001), into.slice(30'000, 40'000)};
        error_code sent;
        bool is_sent = false;
        e.client.async_send(pieces, 1, [&](error_code ec) {
            sent = ec;
            is_sent = true;
        });
        message large = co_await e.server.async_receive(asio::use_awaitable);
        CHECK(large.is_large());
        CHECK(large.size() == 60'001);
        CHECK(large.bytes().empty());
        co_await pause(io, 20ms);
        CHECK_FALSE(is_sent);
        auto [wrong] = co_await e.server.async_fetch(message{}, into.slice(0, 1), awaiting);
        CHECK(wrong == errc::out_of_range);
        co_await e.server.async_fetch(std::move(large), places, asio::use_awaitable);
        CHECK(test::same(into.bytes().first(20'001), from.bytes().first(20'001)));
        CHECK(test::same(into.bytes().subspan(30'000, 40'000), from.bytes().subspan(20'001, 40'000))
        );
        while (!is_sent) co_await pause(io, 1ms);
        CHECK_FALSE(sent);
        // Declined, and the channel goes on.
        auto const decline = [&]() -> asio::awaitable<void> {
            message const m = co_await e.server.async_receive(asio::use_awaitable);
            CHECK(m.is_large());
        };
        auto const offer = [&]() -> asio::awaitable<void> {
            auto [ec] = co_await e.client.async_send(from.slice(0, 5000), 2, awaiting);
            CHECK(ec == channel_errc::message_declined);
        };
        co_await (decline() && offer());
        // Memory of another domain, and memory that the peer may not read.
        registered_buffer foreign{theirs, 5000, access_flags::remote_read};
        auto [elsewhere] = co_await e.client.async_send(foreign.slice(), 3, awaiting);
        CHECK(elsewhere == errc::foreign_domain);
        registered_buffer secret{ours, 5000, access_flags::local_write};
        auto [refused] = co_await e.client.async_send(secret.slice(), 3, awaiting);
        CHECK(refused == errc::access_denied);
        co_await part(e);
    });
}

TEST_CASE("a message of any size is brought to where the program wants it", "[device]") {
    bool const is_detached = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const& domain = e.server.next_layer().domain();
        registered_buffer into{domain, 6000, access_flags::local_write};
        for (std::size_t const size : {0UL, 1UL, 300UL, 496UL, 497UL, 5000UL}) {
            auto const bytes = pattern(size, size);
            e.client.async_send(std::span{bytes}, 1, [](error_code ec) { CHECK_FALSE(ec); });
            message m = co_await e.server.async_receive(asio::use_awaitable);
            CHECK(m.is_large() == (size > 496));
            if (is_detached) m.detach();
            // In two pieces, of which one may be empty.
            std::size_t const half = size / 2;
            std::vector<mutable_slice> const places{
                into.slice(0, half), into.slice(3000, size - half)};
            if (size % 2 == 0) {
                co_await e.server.async_fetch(std::move(m), places, asio::use_awaitable);
            } else {
                co_await m.async_take(places, asio::use_awaitable);
                CHECK_FALSE(m.is_valid());
            }
            CHECK(test::same(into.bytes().first(half), std::span{bytes}.first(half)));
            CHECK(
                test::same(into.bytes().subspan(3000, size - half), std::span{bytes}.subspan(half))
            );
            CHECK(e.server.statistics().held == 0);
        }
        // Another size, and another channel's.
        for (bool const is_other : {false, true}) {
            auto const bytes = pattern(10, 1);
            e.client.async_send(std::span{bytes}, 1, [](error_code) {});
            message m = co_await e.server.async_receive(asio::use_awaitable);
            message_channel& at = is_other ? e.client : e.server;
            auto const place = into.slice(0, is_other ? 10 : 11);
            auto [ec] = co_await at.async_fetch(std::move(m), place, awaiting);
            CHECK(ec == errc::out_of_range);
        }
        co_await part(e);
    });
}

TEST_CASE("a message that is detached gives its receive back, and keeps its bytes", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(6));
        std::vector<message> kept;
        std::vector<std::byte> const big = pattern(3000, 99);
        int sent = 0;
        int is_big_sent = 0;
        // Far more than the receiver has receives.
        for (std::uint64_t i = 0; i < 40; ++i) {
            auto const bytes = pattern(i, i);
            co_await e.client.async_send(bytes, i, asio::use_awaitable);
            ++sent;
            kept.push_back(co_await e.server.async_receive(asio::use_awaitable));
            CHECK(e.server.statistics().held == 1);
            kept.back().detach();
            CHECK(e.server.statistics().held == 0);
        }
        e.client.async_send(big, 99, [&](error_code ec) { is_big_sent = ec ? -1 : 1; });
        message large = co_await e.server.async_receive(asio::use_awaitable);
        large.detach();
        CHECK(e.server.statistics().held == 0);
        CHECK(large.is_large());
        CHECK(large.bytes().empty());
        registered_buffer into{e.server.next_layer().domain(), 3000, access_flags::local_write};
        co_await e.server.async_fetch(std::move(large), into.slice(), asio::use_awaitable);
        CHECK(test::same(into.bytes(), big));
        for (std::uint64_t i = 0; i < kept.size(); ++i) {
            CHECK(kept[i].tag() == i);
            CHECK(test::same(kept[i].bytes(), pattern(i, i)));
        }
        // Its slice can be sent back, but not be written from: it is not registered any more.
        for (std::size_t const i : {0UL, 7UL, 39UL}) {
            co_await e.server.async_send(kept[i].slice(), i, asio::use_awaitable);
            message const back = co_await e.client.async_receive(asio::use_awaitable);
            CHECK(test::same(back.bytes(), pattern(i, i)));
        }
        registered_buffer theirs{e.client.next_layer().domain(), 64, access_flags::remote_write};
        auto [ec, none] = co_await e.server.next_layer().async_write(
            kept[39].slice(), theirs.remote().slice(0, 39), awaiting
        );
        CHECK(ec == errc::region_gone);
        while (is_big_sent == 0) co_await pause(io, 1ms);
        CHECK(is_big_sent == 1);
        co_await part(e);
    });
}

TEST_CASE("a large message that is cancelled is taken back before its memory is free", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(5000, 1);
        registered_buffer into{e.server.next_layer().domain(), 5000, access_flags::local_write};
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        auto const offer = [&](std::uint64_t tag) {
            ended.reset();
            auto const on_end = [&](error_code ec) { ended = ec; };
            e.client.async_send(bytes, tag, asio::bind_cancellation_slot(stop.slot(), on_end));
        };
        // The receiver has it and has not begun to fetch it.
        offer(1);
        message m = co_await e.server.async_receive(asio::use_awaitable);
        stop.emit(asio::cancellation_type::all);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == channel_errc::message_withdrawn);
        auto [late] = co_await e.server.async_fetch(std::move(m), into.slice(), awaiting);
        CHECK(late == channel_errc::message_withdrawn);
        // It was not received yet, or is released.
        offer(2);
        co_await pause(io, 10ms);
        stop.emit(asio::cancellation_type::total);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == channel_errc::message_withdrawn);
        m = co_await e.server.async_receive(asio::use_awaitable);
        CHECK(m.tag() == 2);
        m.release();
        // It is being fetched: the end of that decides.
        for (std::uint64_t i = 0; i < 20; ++i) {
            offer(3);
            m = co_await e.server.async_receive(asio::use_awaitable);
            if (i % 2 == 0) stop.emit(asio::cancellation_type::total);
            std::optional<error_code> fetched;
            e.server.async_fetch(std::move(m), into.slice(), [&](error_code ec) { fetched = ec; });
            if (i % 2 == 1) stop.emit(asio::cancellation_type::total);
            while (!ended || !fetched) co_await pause(io, 1ms);
            CHECK((!*fetched || *fetched == channel_errc::message_withdrawn));
            CHECK((*ended ? *ended == channel_errc::message_withdrawn : !*fetched));
        }
        co_await part(e);
    });
}

TEST_CASE("a withdrawal that the peer has answered in time ends nothing later", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        auto options = small();
        options.withdraw_timeout = 500ms;
        co_await meet(io, e, options);
        auto const bytes = pattern(5000, 1);
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        e.client.async_send(bytes, 1, asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) {
                                ended = ec;
                            }));
        message const kept = co_await e.server.async_receive(asio::use_awaitable);
        stop.emit(asio::cancellation_type::total);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == channel_errc::message_withdrawn);
        co_await pause(io, 600ms);
        CHECK(e.client.is_open());
        co_await part(e);
    });
}

TEST_CASE("messages before the end are delivered, and then both sides finish", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(300, 5);
        int sent = 0;
        for (std::uint64_t i = 0; i < 50; ++i)
            e.client.async_send(bytes, i, [&](error_code ec) { sent += !ec; });
        auto const drain = [&]() -> asio::awaitable<void> {
            std::uint64_t next = 0;
            for (;;) {
                auto [ec, m] = co_await e.server.async_receive(awaiting);
                if (ec == asio::error::eof) break;
                REQUIRE_FALSE(ec);
                CHECK(m.tag() == next++);
            }
            CHECK(next == 50);
            // One side may go on when the other has finished.
            co_await e.server.async_send(bytes, 99, asio::use_awaitable);
            co_await e.server.async_finish(asio::use_awaitable);
        };
        auto const last = [&]() -> asio::awaitable<void> {
            message const m = co_await e.client.async_receive(asio::use_awaitable);
            CHECK(m.tag() == 99);
        };
        co_await (e.client.async_finish(asio::use_awaitable) && drain() && last());
        CHECK(sent == 50);
        auto [late] = co_await e.client.async_send(bytes, 0, awaiting);
        CHECK(late.failed());
        CHECK(e.client.last_failure().reason == close_reason::completed);
        CHECK(e.server.last_failure().reason == close_reason::completed);
    });
}

TEST_CASE("every unacknowledged send reports a peer that leaves early", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        std::vector<error_code> codes;
        auto const bytes = pattern(300, 5);
        for (std::uint64_t i = 0; i < 20; ++i)
            e.client.async_send(bytes, i, [&](error_code ec) { codes.push_back(ec); });
        message const one = co_await e.server.async_receive(asio::use_awaitable);
        while (codes.size() < 4) co_await pause(io, 1ms);
        e.server.close();
        auto [ec, none] = co_await e.client.async_receive(awaiting);
        CHECK(ec == channel_errc::peer_closed_early);
        while (codes.size() < 20) co_await pause(io, 1ms);
        CHECK(std::count(codes.begin(), codes.end(), error_code{}) == 4);
        CHECK(std::count(codes.begin(), codes.end(), channel_errc::peer_closed_early) == 16);
        CHECK(e.client.last_failure().reason == close_reason::peer_closed_early);
        // What had arrived is there, also now.
        for (std::uint64_t i = 1; i < 4; ++i) {
            message const m = co_await e.server.async_receive(asio::use_awaitable);
            CHECK(m.tag() == i);
        }
        auto [closed, nothing] = co_await e.server.async_receive(awaiting);
        CHECK(closed == asio::error::operation_aborted);
        auto [refused] = co_await e.client.async_finish(awaiting);
        CHECK(refused.failed());
    });
}

TEST_CASE("a channel that refuses its peer calls nobody from inside async_accept", "[device]") {
    bool const is_too_small = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        message_channel_options o = small();
        message_channel_options many = small();
        many.receives = 100;
        std::optional<error_code> accepted;
        bool is_inside = false;
        message_channel c;
        auto const serve = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            c = message_channel{
                connection{io, std::move(asked), strict(small())}, is_too_small ? many : o};
            // On the thread of the channel's own executor.
            is_inside = true;
            c.async_accept([&](error_code ec) {
                CHECK_FALSE(is_inside);
                accepted = ec;
            });
            is_inside = false;
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            message_channel_options other = small();
            if (!is_too_small) other.mode = 4;
            message_channel client{connection{io, strict(other)}, other};
            co_await client.async_connect(door.local_endpoint(), awaiting);
        };
        auto const stop = [&]() -> asio::awaitable<void> {
            co_await until(io, [&] { return accepted.has_value(); });
            c = {};
        };
        co_await (serve() && ask() && stop());
        CHECK(
            accepted == (is_too_small ? make_error_code(channel_errc::queues_too_small)
                                      : make_error_code(channel_errc::mode_mismatch))
        );
    });
}

TEST_CASE("channels of other modes, sessions and strangers are refused", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        auto const serve = [&](error_code wanted) -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            message_channel c{connection{io, std::move(asked), strict(small())}, small()};
            auto [ec] = co_await c.async_accept(awaiting);
            CHECK(ec == wanted);
            CHECK(c.last_failure().reason == close_reason::refused);
        };
        auto const other_mode = [&]() -> asio::awaitable<void> {
            message_channel_options o = small();
            o.mode = 4;
            message_channel c{connection{io, strict(o)}, o};
            auto [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
            CHECK(ec == channel_errc::mode_mismatch);
        };
        co_await (serve(channel_errc::mode_mismatch) && other_mode());
        auto const as_session = [&]() -> asio::awaitable<void> {
            session s{io};
            auto [ec] = co_await s.async_connect(door.local_endpoint(), awaiting);
            CHECK(ec == cm_errc::rejected_by_peer);
        };
        co_await (serve(channel_errc::foreign_peer) && as_session());
        auto const stranger = [&]() -> asio::awaitable<void> {
            connection c{io};
            auto [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
            CHECK(ec == cm_errc::rejected_by_peer);
        };
        co_await (serve(channel_errc::foreign_peer) && stranger());
    });
}

TEST_CASE("a channel's options are checked, and its connection's", "[device]") {
    asio::io_context io;
    message_channel_options o;
    o.receives = 3;
    CHECK_THROWS_AS((message_channel{connection{io}, o}), boost::system::system_error);
    o = {};
    o.slot_bytes = 100;
    CHECK_THROWS_AS((message_channel{connection{io}, o}), boost::system::system_error);
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        message_channel_options many;
        many.receives = 100;
        message_channel c{connection{io}, many};
        auto [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
        CHECK(ec == channel_errc::queues_too_small);
        CHECK(ec.message().find("needed()") != std::string::npos);
        message_channel long_winded{connection{io, strict(small())}, small()};
        std::vector<std::byte> const greeting(33);
        auto [refused] =
            co_await long_winded.async_connect(door.local_endpoint(), greeting, awaiting);
        CHECK(refused == errc::private_data_too_large);
        message_channel idle{connection{io, strict(small())}, small()};
        auto [unsent] = co_await idle.async_send(greeting, 0, awaiting);
        CHECK(unsent == errc::not_connected);
        auto [nothing, none] = co_await idle.async_receive(awaiting);
        CHECK(nothing == errc::not_connected);
    });
}

TEST_CASE(
    "cancel() ends what a channel of messages waits for, and the channel goes on", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(6));
        std::vector<error_code> received;
        for (int i = 0; i < 2; ++i)
            e.server.async_receive([&](error_code ec, message) { received.push_back(ec); });
        e.server.cancel();
        while (received.size() < 2) co_await pause(io, 1ms);
        CHECK(received == std::vector<error_code>(2, asio::error::operation_aborted));

        // Two have receives of the peer's, the large one is withdrawn, and the rest was never sent.
        auto const bytes = pattern(10, 1);
        auto const big = pattern(3000, 2);
        std::vector<error_code> sent;
        std::optional<error_code> withdrawn;
        e.client.async_send(big, 9, [&](error_code ec) { withdrawn = ec; });
        while (e.server.statistics().arrived == 0) co_await pause(io, 1ms);
        for (std::uint64_t i = 0; i < 4; ++i)
            e.client.async_send(bytes, i, [&](error_code ec) { sent.push_back(ec); });
        while (e.server.statistics().arrived < 2) co_await pause(io, 1ms);
        std::size_t const waiting = e.client.statistics().waiting;
        REQUIRE(waiting > 0);
        e.client.cancel();
        while (sent.size() < 4 || !withdrawn) co_await pause(io, 1ms);
        CHECK(*withdrawn == channel_errc::message_withdrawn);
        auto const aborted = std::ranges::count(sent, error_code{asio::error::operation_aborted});
        CHECK(static_cast<std::size_t>(aborted) == waiting);
        CHECK(static_cast<std::size_t>(std::ranges::count(sent, error_code{})) == 4 - waiting);

        e.client.async_send(bytes, 77, asio::detached);
        for (;;) {
            message const m = co_await e.server.async_receive(asio::use_awaitable);
            if (m.tag() == 77) break;
        }
        co_await part(e);
    });
}

TEST_CASE("receives and waiting sends are cancelled without a loss", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(6));
        asio::cancellation_signal stop;
        std::optional<error_code> received;
        e.server.async_receive(asio::bind_cancellation_slot(
            stop.slot(), [&](error_code ec, message) { received = ec; }
        ));
        stop.emit(asio::cancellation_type::total);
        while (!received) co_await pause(io, 1ms);
        CHECK(*received == asio::error::operation_aborted);
        auto const bytes = pattern(10, 1);
        int sent = 0;
        for (std::uint64_t i = 0; i < 2; ++i)
            e.client.async_send(bytes, i, [&](error_code ec) { sent += !ec; });
        std::optional<error_code> withdrawn;
        e.client.async_send(
            bytes,
            77,
            asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) { withdrawn = ec; })
        );
        e.client.async_send(bytes, 2, [&](error_code ec) { sent += !ec; });
        co_await pause(io, 20ms);
        CHECK_FALSE(withdrawn);
        stop.emit(asio::cancellation_type::total);
        while (!withdrawn) co_await pause(io, 1ms);
        CHECK(*withdrawn == asio::error::operation_aborted);
        for (std::uint64_t i = 0; i < 3; ++i) {
            message const m = co_await e.server.async_receive(asio::use_awaitable);
            CHECK(m.tag() == i);
        }
        co_await part(e);
        CHECK(sent == 3);
    });
}

TEST_CASE(
    "a server that answers each request with a large message never waits for the next", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(6));
        registered_buffer page{e.server.next_layer().domain(), 20'000, access_flags::remote_read};
        constexpr std::uint64_t count = 50;
        // The requests that follow take all credits of data; the answer's fetch must not need one.
        auto const serve = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < count; ++i) {
                message const request = co_await e.server.async_receive(asio::use_awaitable);
                co_await e.server.async_send(page.slice(), request.tag(), asio::use_awaitable);
            }
        };
        auto const bytes = pattern(10, 1);
        int sent = 0;
        for (std::uint64_t i = 0; i < count; ++i)
            e.client.async_send(bytes, i, [&](error_code ec) { sent += !ec; });
        auto const collect = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < count; ++i) {
                std::uint64_t tag = 0;
                auto const answer = co_await receive_all(e.client, tag);
                CHECK(tag == i);
                CHECK(answer.size() == page.size());
            }
        };
        co_await (serve() && collect());
        co_await part(e);
        CHECK(sent == static_cast<int>(count));
    });
}

TEST_CASE("calls on a channel in the wrong state fail, and harm nothing", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        message_channel unused{connection{io, strict(small())}, small()};
        unused.close();
        auto [aborted, none] = co_await unused.async_receive(awaiting);
        CHECK(aborted == asio::error::operation_aborted);
        ends e{io};
        co_await meet(io, e);
        auto [twice] = co_await e.server.async_accept(awaiting);
        CHECK(twice == errc::already_connected);
        auto [again] = co_await e.client.async_connect(e.door.local_endpoint(), awaiting);
        CHECK(again == errc::already_connected);
        auto const bytes = pattern(10, 1);
        co_await e.client.async_send(bytes, 1, asio::use_awaitable);
        message const m = co_await e.server.async_receive(asio::use_awaitable);
        CHECK(m.tag() == 1);
        co_await part(e);
        // It has finished: so it says again.
        auto [over] = co_await e.client.async_finish(awaiting);
        CHECK_FALSE(over);
    });
}

TEST_CASE("a channel finishes when the last waiting send is withdrawn", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e, small(6));
        auto const bytes = pattern(10, 1);
        asio::cancellation_signal stop;
        int sent = 0;
        for (std::uint64_t i = 0; i < 2; ++i)
            e.client.async_send(bytes, i, [&](error_code ec) { sent += !ec; });
        std::optional<error_code> withdrawn;
        e.client.async_send(bytes, 2, asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) {
                                withdrawn = ec;
                            }));
        while (sent < 2) co_await pause(io, 1ms);
        auto const end = [&]() -> asio::awaitable<void> {
            co_await pause(io, 20ms);
            stop.emit(asio::cancellation_type::total);
            // Both messages are still with the receiver's channel.
            co_await e.server.async_finish(asio::use_awaitable);
        };
        co_await (e.client.async_finish(asio::use_awaitable) && end());
        CHECK(withdrawn == asio::error::operation_aborted);
        CHECK(e.client.last_failure().reason == close_reason::completed);
    });
}

TEST_CASE("a context that is destroyed takes its channels and messages with it", "[device]") {
    std::optional<asio::io_context> io{std::in_place};
    auto e = std::make_unique<ends>(*io);
    std::vector<message> held;
    auto const bytes = pattern(10, 1);
    bool is_called = false;
    asio::co_spawn(
        *io,
        [&]() -> asio::awaitable<void> {
            co_await meet(*io, *e);
            for (std::uint64_t i = 0; i < 20; ++i)
                e->client.async_send(bytes, i, [&](error_code) {});
            held.push_back(co_await e->server.async_receive(asio::use_awaitable));
            held.push_back(co_await e->server.async_receive(asio::use_awaitable));
            e->client.async_receive([&](error_code, message) { is_called = true; });
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
    CHECK(held[1].tag() == 1);
    CHECK(test::same(held[1].bytes(), bytes));
}

TEST_CASE("handlers of a channel do not overlap on a pool of threads", "[device]") {
    asio::thread_pool pool{4};
    auto ran = asio::co_spawn(
        pool,
        [&]() -> asio::awaitable<void> {
            acceptor door{pool, {device_address(), 0}};
            message_channel client{connection{pool, strict(small())}, small()};
            message_channel server;
            auto const answer = [&]() -> asio::awaitable<void> {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                server =
                    message_channel{connection{pool, std::move(asked), strict(small())}, small()};
                co_await server.async_accept(asio::use_awaitable);
            };
            co_await (answer() && client.async_connect(door.local_endpoint(), asio::use_awaitable));
            std::atomic<int> inside{0};
            std::atomic<int> overlaps{0};
            std::atomic<int> received{0};
            std::atomic<int> sent{0};
            constexpr int count = 400;
            auto const enter = [&] {
                if (inside++ > 0) ++overlaps;
                std::this_thread::yield();
                --inside;
            };
            std::function<void()> receive = [&] {
                server.async_receive([&](error_code ec, message) {
                    enter();
                    if (!ec && ++received < count) receive();
                });
            };
            auto const bytes = pattern(10, 1);
            receive();
            for (int i = 0; i < count; ++i)
                client.async_send(bytes, 0, [&](error_code ec) { sent += !ec; });
            asio::steady_timer timer{pool};
            while (received < count || sent < count) {
                timer.expires_after(1ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
            CHECK(overlaps == 0);
            co_await (
                client.async_finish(asio::use_awaitable) && server.async_finish(asio::use_awaitable)
            );
        },
        asio::use_future
    );
    pool.join();
    CHECK_NOTHROW(ran.get());
}

TEST_CASE("a channel that cannot finish says for what it waits", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        message_channel_options hasty = small();
        hasty.finish_timeout = 200ms;
        co_await meet(io, e, hasty, small());
        // A large message that nobody fetches.
        auto const big = pattern(5000, 1);
        std::optional<error_code> sent;
        e.client.async_send(big, 1, [&](error_code ec) { sent = ec; });
        message const held = co_await e.server.async_receive(asio::use_awaitable);
        auto [ec] = co_await e.client.async_finish(awaiting);
        CHECK(ec == channel_errc::peer_not_received);
        CHECK(ec == condition::timed_out);
        while (!sent) co_await pause(io, 1ms);
        CHECK(sent->failed());
    });
}

TEST_CASE("a peer that does not finish is left after the deadline", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        message_channel_options hasty = small();
        hasty.finish_timeout = 500ms;
        co_await meet(io, e, hasty, small());
        auto [ec] = co_await e.client.async_finish(awaiting);
        CHECK(ec == channel_errc::peer_not_finished);
        CHECK(ec == condition::timed_out);
        CHECK(e.client.last_failure().reason == close_reason::timed_out);
        auto [end, none] = co_await e.server.async_receive(awaiting);
        CHECK(end == asio::error::eof);
    });
}

TEST_CASE(
    "handlers of a channel run on executors of their own, messages move between threads", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends e{io};
        co_await meet(io, e);
        auto const bytes = pattern(64, 1);
        auto const send = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < 500; ++i)
                co_await e.client.async_send(bytes, i, asio::use_awaitable);
        };
        auto const receive = [&]() -> asio::awaitable<void> {
            std::vector<std::thread> releasing;
            for (std::uint64_t i = 0; i < 500; ++i) {
                message m = co_await e.server.async_receive(asio::use_awaitable);
                CHECK(m.tag() == i);
                if (i % 50 == 0)
                    releasing.emplace_back([moved = std::move(m)]() mutable { moved.release(); });
            }
            for (std::thread& t : releasing) t.join();
        };
        co_await (send() && receive());
        co_await part(e);
    });
}

TEST_CASE("a connector connects a channel again when its server has left", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        connector_options<message_channel> o;
        o.protocol = small();
        o.protocol.connection = strict(small());
        int steps = 0;
        o.protocol.connection.on_step = [&](step) { ++steps; };
        basic_connector<message_channel> to{io, door.local_endpoint(), o};
        auto const bytes = pattern(20, 1);
        auto const serve = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < 3; ++i) {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                message_channel c{connection{io, std::move(asked), strict(small())}, small()};
                co_await c.async_accept(asio::use_awaitable);
                message const m = co_await c.async_receive(asio::use_awaitable);
                CHECK(m.tag() == i);
            }
        };
        auto const visit = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < 3; ++i) {
                message_channel c = co_await to.async_connect(asio::use_awaitable);
                co_await c.async_send(bytes, i, asio::use_awaitable);
                auto [ec, none] = co_await c.async_receive(awaiting);
                CHECK(ec == channel_errc::peer_closed_early);
            }
        };
        co_await (serve() && visit());
        CHECK(steps > 0);  // the channel's options are those of the connections
    });
}

// --- hostile peers -------------------------------------------------------------------------------

namespace {

using hostile = hostile_ends<message_channel>;

}  // namespace

TEST_CASE(
    "a peer that breaks a channel's format ends its own channel, with the reason", "[device]"
) {
    forged const cases[] = {
        {"an unknown type", 9},
        {"a CREDIT taken that was not sent", 4, 1},
        {"receives given back that were never used", 4, 0, 7},
        {"more bytes than it has", 1, 0, 0, 100, 0, 50},
        {"fewer bytes than it has", 1, 0, 0, 10, 0, 50},
        {"a large message without segments", 2, 0, 0, 0},
        {"a large message that may not be read", 2, 0, 0, 1, 0, 24},
        {"an answer to what was not sent", 3},
        {"a withdrawal of what was not sent", 6},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends bystanders{io};
        co_await meet(io, bystanders);
        for (forged const& f : cases) {
            CAPTURE(f.what);
            hostile e{io};
            co_await meet_hostile(io, e, small());
            co_await send(e, f.bytes());
            auto [ec, none] = co_await e.server.async_receive(awaiting);
            bool const is_answer = f.type == 3 || f.type == 6;
            CHECK(
                ec ==
                (is_answer ? channel_errc::unexpected_message : channel_errc::malformed_message)
            );
            CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            CHECK(e.server.last_failure().code == ec);
            e.peer.close();
        }
        {
            // Longer than the peer's own receives, though not than ours.
            hostile e{io};
            co_await meet_hostile(io, e, small(8, 1024));
            co_await send(e, forged{"the longest", 1, 0, 0, 496, 0, 496}.bytes());
            message const m = co_await e.server.async_receive(asio::use_awaitable);
            CHECK(m.size() == 496);
            co_await send(e, forged{"one byte more", 1, 0, 0, 497, 0, 497}.bytes());
            auto [ec, none] = co_await e.server.async_receive(awaiting);
            CHECK(ec == channel_errc::malformed_message);
            e.peer.close();
        }
        hostile e{io};
        co_await meet_hostile(io, e, small());
        co_await send(e, forged{"the end", 5}.bytes());
        co_await send(e, forged{"something after it", 1, 0, 0, 1, 0, 1}.bytes());
        auto [ec, none] = co_await e.server.async_receive(awaiting);
        CHECK((ec == asio::error::eof || ec == channel_errc::unexpected_message));
        while (e.server.last_failure().reason == close_reason::open) co_await pause(io, 1ms);
        CHECK(e.server.last_failure().reason == close_reason::protocol_error);
        e.peer.close();
        auto const bytes = pattern(10, 1);
        co_await bystanders.client.async_send(bytes, 5, asio::use_awaitable);
        message const m = co_await bystanders.server.async_receive(asio::use_awaitable);
        CHECK(m.tag() == 5);
        co_await part(bystanders);
    });
}

TEST_CASE("a large message that points nowhere ends the channel of its sender", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        co_await meet_hostile(io, e, small());
        auto bytes = forged{"large", 2, 0, 0, 1, 77}.bytes();
        put(bytes, 0x1000, 8);
        put(bytes, 1000, 8);
        put(bytes, 0x12345678, 4);
        put(bytes, 4, 4);
        co_await send(e, bytes);
        message m = co_await e.server.async_receive(asio::use_awaitable);
        CHECK(m.size() == 1000);
        registered_buffer into{e.server.next_layer().domain(), 1000, access_flags::local_write};
        auto [ec] = co_await e.server.async_fetch(std::move(m), into.slice(), awaiting);
        CHECK(ec.failed());
        auto [end, none] = co_await e.server.async_receive(awaiting);
        CHECK(end.failed());
        CHECK_FALSE(e.server.is_open());
        e.peer.close();
    });
}

TEST_CASE(
    "a message beyond the peer's credits ends its channel, and is not delivered", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        // With 8 receives, 4 messages of data, one answer, two CREDITs and CLOSE may be on their way.
        for (std::uint8_t const type : std::initializer_list<std::uint8_t>{1, 2, 4}) {
            CAPTURE(int{type});
            hostile e{io};
            co_await meet_hostile(io, e, small());
            auto one = forged{"one", type, 0, 0, type == 2 ? 1U : 0U}.bytes();
            if (type == 2) {
                for (std::uint64_t const field : {0x1000UL, 1000UL}) put(one, field, 8);
                put(one, 1, 4);
                put(one, 4, 4);
            }
            int const allowed = type == 4 ? 2 : 4;
            for (int i = 0; i < allowed; ++i) co_await send(e, one);
            while (e.server.statistics().arrived < (type == 4 ? 0U : 4U)) co_await pause(io, 1ms);
            CHECK(e.server.is_open());
            co_await send(e, one);
            std::vector<message> held;
            for (int i = 0; type != 4 && i < allowed; ++i)
                held.push_back(co_await e.server.async_receive(asio::use_awaitable));
            auto [ec, none] = co_await e.server.async_receive(awaiting);
            CHECK(ec == channel_errc::credit_exceeded);
            CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            e.peer.close();
        }
    });
}

TEST_CASE("the end of a peer that floods is heard, whatever the program holds", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        co_await meet_hostile(io, e, small());
        // More than there are receives: the peer's device tries until it gives up.
        auto const one = forged{"one", 1}.bytes();
        error_code flooded;
        for (int i = 0; i < 12 && !flooded; ++i) flooded = co_await send(e, one);
        CHECK(flooded.failed());
        e.peer.close();
        std::vector<message> held;
        error_code end;
        while (!end) {
            auto [ec, m] = co_await e.server.async_receive(awaiting);
            end = ec;
            if (!ec) held.push_back(std::move(m));
        }
        CHECK(held.size() <= 4);
        CHECK_FALSE(e.server.is_open());
    });
}

TEST_CASE("large messages that a peer never takes the answers to end its channel", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        co_await meet_hostile(io, e, small());
        // It takes CREDITs, and gives back nothing.
        std::uint8_t taken = 0;
        int sent = 0;
        error_code failed;
        while (!failed && e.server.is_open() && sent < 200) {
            auto large = forged{"large", 2, taken, 0, 1}.bytes();
            for (std::uint64_t const field : {0x1000UL, 1000UL}) put(large, field, 8);
            put(large, 1, 4);
            put(large, 4, 4);
            failed = co_await send(e, large);
            ++sent;
            // Declined.
            auto [ec, m] = co_await e.server.async_receive(awaiting);
            if (ec) break;
            m.release();
            std::uint64_t const credits = e.server.statistics().credits_sent;
            taken = static_cast<std::uint8_t>(credits);
            // A receive for what the channel sends next.
            for (int i = 0; i < 2; ++i)
                e.peer.async_receive(
                    e.memory.slice(8192 + 512 * static_cast<std::size_t>(i), 512),
                    [](error_code const&, receive_result) {}
                );
            co_await pause(io, 1ms);
        }
        CHECK(e.server.last_failure().reason == close_reason::protocol_error);
        // Five answers find a receive of the peer's, eight wait, and the next one is too many.
        CHECK(sent == 5 + 8 + 1);
        e.peer.close();
    });
}

TEST_CASE("a cancelled large message is given up by a silent peer in time, or ends the channel") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile e{io};
        auto options = small();
        options.withdraw_timeout = 50ms;
        co_await meet_hostile(io, e, options);
        auto const big = pattern(3000, 1);
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        e.server.async_send(big, 1, asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) {
                                ended = ec;
                            }));
        co_await pause(io, 10ms);
        stop.emit(asio::cancellation_type::total);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == errc::timed_out);
        CHECK(e.server.last_failure().reason == close_reason::timed_out);
        CHECK_FALSE(e.server.is_open());
        e.peer.close();
    });
}

TEST_CASE("rights that concern this side only do not reach the peer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ends c{io};
        co_await meet(io, c);
        std::size_t const size = 3 * std::size_t{c.client.small_bytes_max()};
        for (access_flags const own :
             {access_flags::bind_windows, access_flags::relaxed_ordering}) {
            registered_buffer from{
                c.client.next_layer().domain(), size, access_flags::remote_read | own};
            registered_buffer into{
                c.server.next_layer().domain(), size, access_flags::local_write | own};
            fill(from.bytes(), 5);
            auto const receive = [&]() -> asio::awaitable<void> {
                message m = co_await c.server.async_receive(asio::use_awaitable);
                co_await c.server.async_fetch(std::move(m), into.slice(), asio::use_awaitable);
            };
            co_await (c.client.async_send(from.slice(), 1, asio::use_awaitable) && receive());
            CHECK(same(from.bytes(), into.bytes()));
        }
        c.client.close();
    });
}

TEST_CASE("a channel that cannot connect says at which step", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        message_channel c{io};
        auto [ec] = co_await c.async_connect({device_address(), 1}, awaiting);
        CHECK(ec == cm_errc::rejected_no_listener);
        CHECK(c.last_failure().where == step::connect);
        CHECK(c.last_failure().code == ec);
        CHECK(c.last_failure().reason == close_reason::refused);
        message_channel none{io};
        auto [nothing] = co_await none.async_accept(awaiting);
        CHECK(nothing == errc::not_connected);
    });
}

TEST_CASE("finishing has its deadline, also if its handler has gone with its context", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        message_channel_options hasty = small();
        hasty.finish_timeout = 100ms;
        ends c{io};
        co_await meet(io, c, hasty);
        auto other = std::make_unique<asio::io_context>();
        c.client.async_finish(asio::bind_executor(other->get_executor(), [](error_code) {
            FAIL("called");
        }));
        other.reset();
        // The peer never finishes.
        co_await c.server.next_layer().async_wait_disconnected(awaiting);
        CHECK(c.client.last_failure().code == channel_errc::peer_not_finished);
    });
}
