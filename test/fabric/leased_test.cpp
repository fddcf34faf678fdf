// Operations that own their memory, where the order of events decides: many seeds of a stepped world.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <utility>
#include <vector>

#include <rcverbs/slot_pool.hpp>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

TEST_CASE("a message does not overtake one that was kept", "[fabric]") {
    // Two receives start while message 0 is kept and message 1 is under way.
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
        CAPTURE(seed);
        fabric::world_options options;
        options.seed = seed;
        world w{options};
        asio::io_context io;
        run(w, io, [&]() -> asio::awaitable<void> {
            test::pair both = co_await meet(io);
            slot_pool slots{both.server.get_executor(), both.server.domain(), {.slots = 8}};
            registered_buffer from{both.client.domain(), 2, access_flags::local_write};
            from.bytes()[1] = std::byte{1};
            std::vector<std::pair<char, int>> got;
            auto const take = [&got](char who) {
                return [&got, who](error_code ec, leased_receive_result r) {
                    if (!ec) got.emplace_back(who, std::to_integer<int>(r.bytes()[0]));
                };
            };
            // Both receives stay posted.
            asio::cancellation_signal first;
            asio::cancellation_signal second;
            both.server.async_receive(
                slots.try_acquire(), asio::bind_cancellation_slot(first.slot(), take('x'))
            );
            both.server.async_receive(
                slots.try_acquire(), asio::bind_cancellation_slot(second.slot(), take('y'))
            );
            co_await sleep(io, std::chrono::microseconds{100});
            first.emit(asio::cancellation_type::total);
            second.emit(asio::cancellation_type::total);
            co_await both.client.async_send(from.slice(0, 1), asio::use_awaitable);
            co_await sleep(io, std::chrono::microseconds{100});
            both.client.async_send(from.slice(1, 1), [](error_code, std::size_t) {});
            co_await sleep(io, std::chrono::nanoseconds{seed * 40});
            both.server.async_receive(slots.try_acquire(), take('A'));
            both.server.async_receive(slots.try_acquire(), take('B'));
            co_await sleep(io, std::chrono::microseconds{100});
            CHECK(got == std::vector<std::pair<char, int>>{{'A', 0}, {'B', 1}});
            both.client.close();
            both.server.close();
        });
    }
}

TEST_CASE("a receive that starts after cancel() gets the next message", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options narrow;
        narrow.queue_pair.receive_queue_depth = 1;
        test::pair both = co_await connect(stepped(io), narrow, narrow);
        slot_pool slots{both.server.get_executor(), both.server.domain(), {.slots = 4}};
        registered_buffer from{both.client.domain(), 1, access_flags::local_write};
        std::vector<std::pair<char, error_code>> got;
        auto const take = [&got](char who) {
            return [&got, who](error_code ec, leased_receive_result const&) {
                got.emplace_back(who, ec);
            };
        };
        // One is posted, and one waits for room.
        both.server.async_receive(slots.try_acquire(), take('a'));
        both.server.async_receive(slots.try_acquire(), take('b'));
        co_await sleep(io, std::chrono::microseconds{100});
        both.server.cancel();
        both.server.async_receive(slots.try_acquire(), take('c'));
        both.server.async_receive(slots.try_acquire(), take('d'));
        co_await sleep(io, std::chrono::microseconds{100});
        for (int i = 0; i < 2; ++i)
            co_await both.client.async_send(from.slice(), asio::use_awaitable);
        co_await sleep(io, std::chrono::microseconds{100});
        error_code const aborted = asio::error::operation_aborted;
        CHECK(
            got ==
            std::vector<std::pair<char, error_code>>{
                {'a', aborted}, {'b', aborted}, {'c', {}}, {'d', {}}}
        );
        both.client.close();
        both.server.close();
    });
}
