// Initiating calls that throw leave nothing behind: as many as there are places, and then one that
// works.
#include <cstdint>
#include <new>
#include <tuple>

#include <rcverbs/connector.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/shared_receive_queue.hpp>
#include <rcverbs/slot_pool.hpp>
#include <rcverbs/experimental/window.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// Has no memory.
template <class T>
struct empty_allocator {
    using value_type = T;
    empty_allocator() = default;
    template <class U>
    empty_allocator(empty_allocator<U> const&) {}  // converts, as allocators must
    T* allocate(std::size_t) { throw std::bad_alloc{}; }
    void deallocate(T*, std::size_t) noexcept {}
    friend bool operator==(empty_allocator, empty_allocator) { return true; }
};

/// A handler that is too large for an operation, and for which there is no memory.
struct large_handler {
    using allocator_type = empty_allocator<int>;
    allocator_type get_allocator() const noexcept { return {}; }
    template <class... Arguments>
    void operator()(Arguments&&...) const {
        FAIL("called");
    }
    std::byte size[256] = {};
};

/// A handler that throws when it is moved or copied into an operation.
struct unmovable_handler {
    unmovable_handler() = default;
    unmovable_handler(unmovable_handler const&) { throw std::bad_alloc{}; }
    template <class... Arguments>
    void operator()(Arguments&&...) const {
        FAIL("called");
    }
};

template <class Call>
void must_throw(int count, Call const& call) {
    for (int i = 0; i < count; ++i) {
        CHECK_THROWS_AS(call(large_handler{}), std::bad_alloc);
        unmovable_handler const other;
        CHECK_THROWS_AS(call(other), std::bad_alloc);
    }
}

// More than any queue of these tests has places.
constexpr int many = 400;

}  // namespace

TEST_CASE("operations that throw as they are started take no place", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair ends = co_await connect(io);
        connection& client = ends.client;
        connection& server = ends.server;
        registered_buffer theirs{server.domain(), 4096, access_flags::remote_write};
        registered_buffer ours{client.domain(), 4096, access_flags::local_write};
        must_throw(many, [&](auto const& h) {
            client.async_write(ours.slice(), theirs.remote(), h);
        });
        must_throw(many, [&](auto const& h) { client.async_receive(ours.slice(0, 64), h); });
        must_throw(many, [&](auto const& h) {
            static_cast<void>(client.try_start(op::write(ours.slice(), theirs.remote()), h));
        });
        batch two{client, 2};
        two.add(op::write(ours.slice(0, 8), theirs.remote().slice(0, 8)));
        two.add(op::write(ours.slice(8, 8), theirs.remote().slice(8, 8)));
        must_throw(many, [&](auto const& h) { two.async_submit(h); });
        slot_pool slots{io, client.domain(), {.slots = 1, .slot_bytes = 64}};
        must_throw(many, [&](auto const& h) {
            client.async_start(op::write(slots.try_acquire(), 64, theirs.remote().slice(0, 64)), h);
        });
        must_throw(many, [&](auto const& h) { server.async_receive(memory_lease{}, h); });
        CHECK(slots.free_count() == 1);
        CHECK(client.statistics().operations_failed == 0);
        co_await client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        co_await two.async_submit(asio::use_awaitable);
        co_await (
            client.async_receive(ours.slice(0, 64), asio::use_awaitable) &&
            server.async_send(theirs.slice(0, 64), asio::use_awaitable)
        );
        client.close();
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("shared receives that throw as they are started take no place", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        shared_receive_options options;
        options.depth = 8;
        options.waiting_max = 8;
        shared_receive_queue queue{io, options};
        connection_options sharing;
        sharing.placement.shared_receives = queue;
        test::pair ends = co_await connect(io, {}, sharing);
        connection& client = ends.client;
        connection& server = ends.server;
        registered_buffer into{queue.domain(), 64, access_flags::local_write};
        registered_buffer from{client.domain(), 64, access_flags::local_write};
        must_throw(many, [&](auto const& h) { queue.async_receive(into.slice(), h); });
        co_await (
            queue.async_receive(into.slice(), asio::use_awaitable) &&
            client.async_send(from.slice(), asio::use_awaitable)
        );
        client.close();
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a window whose operations throw as they are started can be bound", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair ends = co_await connect(io);
        connection& client = ends.client;
        connection& server = ends.server;
        registered_buffer pages{server.domain(), 4096, access_flags::bind_windows};
        {
            window w{server};
            auto const rights = access_flags::remote_read;
            must_throw(2, [&](auto const& h) { w.async_bind(pages.slice(), rights, h); });
            co_await w.async_bind(pages.slice(), rights, asio::use_awaitable);
            must_throw(2, [&](auto const& h) { w.async_invalidate(h); });
            co_await w.async_invalidate(asio::use_awaitable);
        }
        client.close();
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE(
    "calls of a channel that throw as they are started take no place", "[device][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        request_channel_options options;
        options.requests = 4;
        acceptor door{io, {device_address(), 0}};
        request_channel client{connection{io, request_channel::needed(options)}, options};
        request_channel server;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            server = request_channel{
                connection{io, std::move(asked), request_channel::needed(options)}, options};
            co_await server.async_accept(asio::use_awaitable);
        };
        must_throw(2, [&](auto const& h) { client.async_connect(door.local_endpoint(), h); });
        co_await (answer() && client.async_connect(door.local_endpoint(), asio::use_awaitable));
        auto const body = pattern(100, 1);
        unmovable_handler const unmovable;
        must_throw(many, [&](auto const& h) { client.async_request(1, body, h); });
        must_throw(many, [&](auto const& h) { client.async_notify(1, body, h); });
        must_throw(many, [&](auto const& h) { server.async_next(h); });
        // A request whose answer throws is dropped, and its number is free again.
        auto const fail_to_answer = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 8; ++i) {
                request r = co_await server.async_next(asio::use_awaitable);
                if (i % 2 == 0)
                    CHECK_THROWS_AS(r.async_answer(7, body, large_handler{}), std::bad_alloc);
                else CHECK_THROWS_AS(r.async_answer(7, body, unmovable), std::bad_alloc);
            }
        };
        auto const get_no_answer = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 8; ++i) {
                auto [ec, none] = co_await client.async_request(1, body, awaiting);
                CHECK(ec == channel_errc::request_dropped);
            }
        };
        co_await (fail_to_answer() && get_no_answer());
        auto const serve = [&]() -> asio::awaitable<void> {
            request r = co_await server.async_next(asio::use_awaitable);
            co_await r.async_answer(7, r.slice(), asio::use_awaitable);
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            reply const r = co_await client.async_request(1, body, asio::use_awaitable);
            CHECK(r.status() == 7);
        };
        co_await (serve() && ask());
        must_throw(2, [&](auto const& h) { client.async_finish(h); });
        client.close();
        server.close();
    });
}

TEST_CASE("messages whose calls throw as they are started take no place", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        message_channel_options options;
        acceptor door{io, {device_address(), 0}};
        message_channel client{connection{io, message_channel::needed(options)}, options};
        message_channel server;
        auto const enter = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            server = message_channel{
                connection{io, std::move(asked), message_channel::needed(options)}, options};
            co_await server.async_accept(asio::use_awaitable);
        };
        co_await (enter() && client.async_connect(door.local_endpoint(), asio::use_awaitable));
        registered_buffer large{client.next_layer().domain(), 65536, access_flags::remote_read};
        registered_buffer into{server.next_layer().domain(), 65536, access_flags::local_write};
        auto const body = pattern(100, 1);
        must_throw(many, [&](auto const& h) { client.async_send(body, 1, h); });
        must_throw(many, [&](auto const& h) { client.async_send(large.slice(), 1, h); });
        must_throw(many, [&](auto const& h) { server.async_receive(h); });
        auto const receive = [&]() -> asio::awaitable<void> {
            message const small = co_await server.async_receive(asio::use_awaitable);
            CHECK(small.size() == body.size());
            // A message whose fetch throws is declined, as one that is dropped.
            message first = co_await server.async_receive(asio::use_awaitable);
            CHECK_THROWS_AS(
                server.async_fetch(std::move(first), into.slice(), large_handler{}), std::bad_alloc
            );
            message second = co_await server.async_receive(asio::use_awaitable);
            co_await server.async_fetch(std::move(second), into.slice(), asio::use_awaitable);
        };
        auto const send = [&]() -> asio::awaitable<void> {
            co_await client.async_send(body, 1, asio::use_awaitable);
            auto [declined] = co_await client.async_send(large.slice(), 2, awaiting);
            CHECK(declined == channel_errc::message_declined);
            co_await client.async_send(large.slice(), 3, asio::use_awaitable);
        };
        co_await (receive() && send());
        must_throw(2, [&](auto const& h) { client.async_finish(h); });
        client.close();
        server.close();
    });
}

TEST_CASE(
    "pools whose calls throw as they are started lend to the next one", "[device][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair ends = co_await connect(io);
        slot_pool slots{io, ends.client.domain(), {.slots = 1, .slot_bytes = 64}};
        {
            slot_lease const taken = co_await slots.async_acquire(asio::use_awaitable);
            must_throw(many, [&](auto const& h) { slots.async_acquire(h); });
            CHECK(slots.waiting_count() == 0);
        }
        slot_lease const again = co_await slots.async_acquire(asio::use_awaitable);
        CHECK(again.is_valid());
        ends.client.close();
        co_await ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a connector whose call throws connects with the next one", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        basic_connector<connection> to{io, door.local_endpoint()};
        must_throw(2, [&](auto const& h) { to.async_connect(h); });
        auto const enter = [&]() -> asio::awaitable<connection> {
            co_return co_await door.async_accept(asio::use_awaitable);
        };
        auto ends = co_await (enter() && to.async_connect(asio::use_awaitable));
        connection& server = std::get<0>(ends);
        connection& client = std::get<1>(ends);
        CHECK(client.is_open());
        must_throw(2, [&](auto const& h) { client.async_wait_disconnected(h); });
        must_throw(2, [&](auto const& h) { client.async_disconnect(h); });
        must_throw(2, [&](auto const& h) { door.async_accept(h); });
        co_await client.async_disconnect(asio::use_awaitable);
        CHECK_FALSE(server.is_open());
    });
}
