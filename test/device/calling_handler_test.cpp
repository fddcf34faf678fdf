// Handlers, allocators and executors that call the object whose operation they belong to, wherever
// the library moves, copies, compares, asks or destroys them: it does so without its locks. A lock
// that is held would never be released.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/execution.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <rcverbs/connector.hpp>
#include <rcverbs/memory_pool.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/shared_receive_queue.hpp>
#include <rcverbs/slot_pool.hpp>
#include <rcverbs/experimental/window.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// What they all call; nothing from inside of it.
std::function<void()> intrusion;
std::size_t intrusions = 0;
/// The blocks of a memory pool that handlers got.
std::vector<void*> given;

void intrude() noexcept {
    if (intrusion == nullptr) return;
    auto const now = std::exchange(intrusion, nullptr);
    now();
    ++intrusions;
    intrusion = now;
}

struct intruder {
    intruder() = default;
    intruder(intruder const&) noexcept { intrude(); }
    intruder(intruder&&) noexcept { intrude(); }
    intruder& operator=(intruder const&) noexcept {
        intrude();
        return *this;
    }
    intruder& operator=(intruder&&) noexcept {
        intrude();
        return *this;
    }
    ~intruder() { intrude(); }
};

template <class T>
struct calling_allocator : intruder {
    using value_type = T;
    calling_allocator() = default;
    template <class U>
    calling_allocator(calling_allocator<U> const&) noexcept {}  // converts, as allocators must
    T* allocate(std::size_t n) {
        intrude();
        return std::allocator<T>{}.allocate(n);
    }
    void deallocate(T* p, std::size_t n) noexcept {
        intrude();
        std::allocator<T>{}.deallocate(p, n);
    }
    friend bool operator==(calling_allocator const&, calling_allocator const&) noexcept {
        intrude();
        return true;
    }
};

/// An executor around one of an io_context.
template <class Inner>
struct calling_executor : intruder {
    Inner inner;

    explicit calling_executor(Inner around) : inner{std::move(around)} {}

    template <class Property>
    requires asio::can_require_v<Inner const&, Property>
    auto require(Property const& p) const {
        intrude();
        return calling_executor<std::decay_t<decltype(asio::require(inner, p))>>{
            asio::require(inner, p)};
    }
    template <class Property>
    requires asio::can_query_v<Inner const&, Property>
    decltype(auto) query(Property const& p) const noexcept {
        intrude();
        return asio::query(inner, p);
    }
    template <class Function>
    void execute(Function&& f) const {
        intrude();
        inner.execute(std::forward<Function>(f));
    }
    friend bool operator==(calling_executor const& a, calling_executor const& b) noexcept {
        intrude();
        return a.inner == b.inner;
    }
    friend bool operator!=(calling_executor const& a, calling_executor const& b) noexcept {
        return !(a == b);
    }
};

/// `Bytes` decides whether the handler fits into an operation.
template <std::size_t Bytes>
struct calling_handler : intruder {
    using allocator_type = calling_allocator<std::byte>;
    using executor_type = calling_executor<asio::io_context::executor_type>;

    calling_handler(asio::io_context& io, int& count)
        : calls{&count},
          executor{io.get_executor()} {}

    allocator_type get_allocator() const noexcept { return {}; }
    executor_type get_executor() const noexcept { return executor; }
    template <class... Arguments>
    void operator()(error_code ec, Arguments&&... arguments) const {
        CHECK_FALSE(ec);
        ++*calls;
        if constexpr ((std::is_same_v<std::decay_t<Arguments>, void*> || ...))
            (given.push_back(arguments), ...);
    }

    int* calls;
    executor_type executor;
    std::byte more[Bytes] = {};
};

/// Starts an operation with each kind of handler, and waits until both are called.
struct tester {
    asio::io_context& io;
    std::function<void()> look;

    template <class Start>
    asio::awaitable<void> operator()(Start start) {
        co_await each<1>(start);
        co_await each<256>(start);
    }
    /// For an operation that can be started once.
    template <class Start>
    asio::awaitable<void> once(Start start) {
        co_await each<256>(start);
    }

private:
    template <std::size_t Bytes, class Start>
    asio::awaitable<void> each(Start& start) {
        int calls = 0;
        std::size_t const before = intrusions;
        intrusion = look;
        start(calling_handler<Bytes>{io, calls});
        // Refused or not, the handler is moved before the call returns.
        CHECK(intrusions > before);
        for (int i = 0; i < 5000 && calls == 0; ++i) co_await pause(io, 1ms);
        intrusion = nullptr;
        CHECK(calls == 1);
    }
};

}  // namespace

TEST_CASE("a connection's handlers may call it while they are moved", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        connection client{io};
        tester early{io, [&] {
                         static_cast<void>(client.is_open());
                         static_cast<void>(client.last_failure());
                         static_cast<void>(door.local_endpoint());
                     }};
        connection server;
        door.async_accept([&](error_code ec, connection made) {
            CHECK_FALSE(ec);
            server = std::move(made);
        });
        co_await early.once([&](auto h) {
            client.async_connect(door.local_endpoint(), std::move(h));
        });
        while (!server.is_open()) co_await pause(io, 1ms);
        tester all{io, [&] {
                       static_cast<void>(client.is_open());
                       static_cast<void>(client.statistics());
                       static_cast<void>(server.statistics());
                   }};
        auto const rights =
            access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;
        registered_buffer theirs{server.domain(), 4096, rights};
        registered_buffer ours{client.domain(), 4096, access_flags::local_write};
        co_await all([&](auto h) {
            client.async_write(ours.slice(), theirs.remote(), std::move(h));
        });
        co_await all([&](auto h) { client.async_read(theirs.remote(), ours.slice(), std::move(h)); }
        );
        co_await all([&](auto h) {
            client.async_fetch_add(theirs.remote().word(0), 1, std::move(h));
        });
        co_await all([&](auto h) {
            CHECK_FALSE(client.try_start(op::write(ours.slice(), theirs.remote()), std::move(h)));
        });
        batch two{client, 2};
        two.add(op::write(ours.slice(0, 8), theirs.remote().slice(0, 8)));
        two.add(op::write(ours.slice(8, 8), theirs.remote().slice(8, 8)));
        co_await all([&](auto h) { two.async_submit(std::move(h)); });
        co_await all([&](auto h) {
            client.async_receive(ours.slice(0, 64), std::move(h));
            server.async_send(theirs.slice(0, 64), [](error_code, std::size_t) {});
        });
        co_await all([&](auto h) {
            server.async_receive(theirs.slice(0, 64), [](error_code, receive_result) {});
            client.async_send(ours.slice(0, 64), std::move(h));
        });
        co_await all.once([&](auto h) {
            client.async_wait_disconnected(std::move(h));
            client.close();
        });
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("an operation whose connection ends while its handler is moved reports it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair ends = co_await connect(io);
        connection& client = ends.client;
        registered_buffer theirs{ends.server.domain(), 64, access_flags::remote_write};
        registered_buffer ours{client.domain(), 64, access_flags::local_write};
        error_code ended;
        int calls = 0;
        struct closing : intruder {
            error_code* ended;
            int* calls;
            closing(error_code& e, int& c) : ended{&e}, calls{&c} {}
            void operator()(error_code ec, std::size_t) const {
                *ended = ec;
                ++*calls;
            }
        };
        closing handler{ended, calls};
        intrusion = [&] { client.close(); };
        client.async_write(ours.slice(), theirs.remote(), handler);
        intrusion = nullptr;
        co_await client.async_wait_disconnected(awaiting);
        while (calls == 0) co_await pause(io, 1ms);
        CHECK(calls == 1);
        CHECK(ended == errc::not_connected);
        CHECK(client.statistics().operations_failed == 1);
        co_await ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("an operation that a handler starts while it is moved goes first", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair ends = co_await connect(io);
        connection& client = ends.client;
        registered_buffer theirs{ends.server.domain(), 64, access_flags::remote_write};
        registered_buffer ours{client.domain(), 64, access_flags::local_write};
        std::vector<int> order;
        struct starting : intruder {
            std::vector<int>* order;
            explicit starting(std::vector<int>& o) : order{&o} {}
            void operator()(error_code ec, std::size_t) const {
                CHECK_FALSE(ec);
                order->push_back(2);
            }
        };
        starting const handler{order};
        bool is_started = false;
        intrusion = [&] {
            if (std::exchange(is_started, true)) return;
            client.async_write(ours.slice(), theirs.remote(), [&](error_code ec, std::size_t) {
                CHECK_FALSE(ec);
                order.push_back(1);
            });
        };
        client.async_write(ours.slice(), theirs.remote(), handler);
        intrusion = nullptr;
        while (order.size() < 2) co_await pause(io, 1ms);
        CHECK(order == std::vector<int>{1, 2});
        co_await disconnect(ends);
    });
}

TEST_CASE("handlers of shared receives and windows may call their owner", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        shared_receive_queue queue{io};
        connection_options sharing;
        sharing.placement.shared_receives = queue;
        test::pair ends = co_await connect(io, {}, sharing);
        connection& client = ends.client;
        connection& server = ends.server;
        registered_buffer into{queue.domain(), 64, access_flags::local_write};
        registered_buffer from{client.domain(), 64, access_flags::local_write};
        tester all{io, [&] {
                       static_cast<void>(queue.credits());
                       static_cast<void>(client.statistics());
                       static_cast<void>(server.statistics());
                   }};
        co_await all([&](auto h) {
            queue.async_receive(into.slice(), std::move(h));
            client.async_send(from.slice(), [](error_code, std::size_t) {});
        });
        registered_buffer pages{server.domain(), 4096, access_flags::bind_windows};
        {
            window w{server};
            co_await all.once([&](auto h) {
                w.async_bind(pages.slice(), access_flags::remote_read, std::move(h));
            });
            co_await all.once([&](auto h) { w.async_invalidate(std::move(h)); });
        }
        co_await all.once([&](auto h) { client.async_disconnect(std::move(h)); });
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("handlers that wait for memory may call the pool", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair ends = co_await connect(io);
        slot_pool slots{io, ends.client.domain(), {.slots = 1, .slot_bytes = 64}};
        constexpr std::size_t chunk = std::size_t{64} << 10;
        memory_pool pool{ends.client.domain(), {.bytes_max = chunk, .chunk_bytes = chunk}};
        tester all{io, [&] {
                       static_cast<void>(slots.free_count());
                       static_cast<void>(pool.statistics());
                   }};
        auto const free_all = [&] {
            for (void* const block : std::exchange(given, {})) pool.deallocate(block, 64, 64);
        };
        co_await all([&](auto h) { slots.async_acquire(std::move(h)); });
        co_await all([&](auto h) {
            slot_lease const held = slots.try_acquire();
            CHECK(held.is_valid());
            slots.async_acquire(std::move(h));
        });
        co_await all([&](auto h) {
            free_all();
            void* const block = pool.allocate(chunk, 64);
            pool.async_allocate(64, 64, std::move(h));
            pool.deallocate(block, chunk, 64);
        });
        free_all();
        co_await disconnect(ends);
    });
}

TEST_CASE("handlers of acceptors and channels may call them", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        request_channel_options options;
        acceptor door{io, {device_address(), 0}};
        request_channel client{connection{io, request_channel::needed(options)}, options};
        request_channel server;
        tester all{io, [&] {
                       static_cast<void>(client.statistics());
                       static_cast<void>(client.is_open());
                       static_cast<void>(door.statistics());
                   }};
        door.async_get_request([&](error_code ec, connection_request asked) {
            CHECK_FALSE(ec);
            server = request_channel{
                connection{io, std::move(asked), request_channel::needed(options)}, options};
            server.async_accept([](error_code) {});
        });
        co_await all.once([&](auto h) { client.async_connect(door.local_endpoint(), std::move(h)); }
        );
        auto const body = pattern(100, 1);
        auto const large = pattern(10000, 1);
        for (auto const& bytes : {body, large}) {
            co_await all([&](auto h) {
                client.async_request(7, bytes, std::move(h));
                server.async_next([&](error_code ec, request r) {
                    CHECK_FALSE(ec);
                    r.async_answer(0, body, [](error_code) {});
                });
            });
            co_await all([&](auto h) {
                client.async_notify(7, bytes, std::move(h));
                server.async_next([](error_code, request) {});
            });
            co_await all([&](auto h) {
                client.async_next(std::move(h));
                server.async_notify(7, bytes, [](error_code) {});
            });
            co_await all([&](auto h) {
                server.async_request(7, bytes, [](error_code, reply) {});
                client.async_next([h = std::make_shared<decltype(h)>(std::move(h)),
                                   &body](error_code ec, request r) mutable {
                    CHECK_FALSE(ec);
                    r.async_answer(0, body, std::move(*h));
                });
            });
        }
        co_await all.once([&](auto h) {
            client.async_finish(std::move(h));
            server.async_finish([](error_code) {});
        });
        co_await all.once([&](auto h) {
            door.async_accept(std::move(h));
            connection one{io};
            auto const kept = std::make_shared<connection>(std::move(one));
            kept->async_connect(door.local_endpoint(), [kept](error_code) {});
        });
    });
}
