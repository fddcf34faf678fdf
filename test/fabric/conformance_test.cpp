// One contract for every asynchronous operation, and one test of it for all: where its handler runs, what it is made of, what
// it costs, and what becomes of it when it is cancelled, is one too many, or loses its connection.
//
// An operation is described by how it is started once it will complete at once (`finish`), so that it stays pending (`wait`),
// and by what it is allowed to do when it is cancelled.
#include <boost/asio/append.hpp>
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_future.hpp>

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "fabric/fixture.hpp"
#include "support/counting_allocator.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr access_flags all_remote = access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

/// Two connected ends with memory, and a network that can be told to keep everything back.
struct stage {
    world& w;
    asio::io_context& io;
    test::pair ends;
    buffer ours;
    buffer theirs;
    batch several;
    // A second pair's acceptor and a connection that has not begun.
    acceptor open_acceptor;
    connection fresh;
    // A connection that takes its receives from a shared queue, and a window for a peer to take away.
    shared_receive_queue shared;
    test::pair sharing;
    buffer place;
    test::window window;

    stage(world& world, asio::io_context& context, test::pair pair, shared_receive_queue queue, test::pair sharing_pair)
        : w{world},
          io{context},
          ends{std::move(pair)},
          ours{ends.client.domain(), 4096, access_flags::local_write},
          theirs{ends.server.domain(), 4096, all_remote},
          several{ends.client},
          open_acceptor{context, {"10.0.0.1", 0}, options()},
          fresh{context, stepped()},
          shared{std::move(queue)},
          sharing{std::move(sharing_pair)},
          place{shared.domain(), 64, access_flags::local_write},
          window{ends.server, theirs.bytes().first(64)} {
        several.write(ours.slice(0, 8), theirs.remote().slice(0, 8)).write(ours.slice(8, 8), theirs.remote().slice(8, 8));
    }

    static acceptor_options options() {
        acceptor_options o;
        o.connection = stepped();
        return o;
    }

    /// From here on nothing arrives anywhere.
    void silence() {
        w.on_packet([](fabric::packet_info const&) { return fabric::packet_fate{fabric::packet_fate::kind::drop, 0ns}; });
        w.on_cm_event([](fabric::cm_event_info const&) { return fabric::cm_event_fate{fabric::cm_event_fate::kind::lose, 0ns}; });
    }
};

asio::awaitable<std::shared_ptr<stage>> set(world& w, asio::io_context& io) {
    connection_options options = stepped();
    options.send_queue_depth = 4;
    options.receive_queue_depth = 4;
    options.waiting_operations_max = 4;
    test::pair p = co_await meet(io, options, options);
    shared_receive_options few;
    few.depth = 4;
    few.waiting_max = 4;
    shared_receive_queue queue{io, few};
    connection_options server = stepped();
    server.shared_receives = queue;
    test::pair sharing = co_await meet(io, stepped(), server);
    auto made = std::make_shared<stage>(w, io, std::move(p), std::move(queue), std::move(sharing));
    co_await sleep(io, 1ms);  // for the window to be bound
    co_return made;
}

/// How a handler may be called off while it waits for what does not come.
enum class honours { total, terminal, none };

// Each operation: a way to start it, what makes it complete without error, and its traits. `prepare` is called before.
#define RCVERBS_OPERATION(name_, value_, honours_, error_, limit_, start_, prepare_)                       \
    struct name_ {                                                                                         \
        using value = value_;                                                                              \
        static constexpr honours cancels = honours::honours_;                                              \
        static error_code over_the_limit() { return error_; }                                              \
        static constexpr int limit = limit_;                                                               \
        template <class Token>                                                                             \
        static auto start([[maybe_unused]] stage& s, Token&& token) {                                      \
            return s.start_;                                                                               \
        }                                                                                                  \
        static void prepare([[maybe_unused]] stage& s) { prepare_; }                                       \
    }

struct nothing {};

auto const ignore = [](auto&&...) {};

// Data operations wait when the queue is full: four posted, four waiting, and the receives' idle four.
constexpr int data_limit = 12;

RCVERBS_OPERATION(write_operation, std::size_t, terminal, errc::queue_full, data_limit,
    ends.client.async_write(s.ours.slice(0, 64), s.theirs.remote().slice(0, 64), std::forward<Token>(token)), );
RCVERBS_OPERATION(write_with_immediate_operation, std::size_t, terminal, errc::queue_full, data_limit,
    ends.client.async_write_with_immediate(s.ours.slice(0, 64), s.theirs.remote().slice(0, 64), 1, std::forward<Token>(token)),
    s.ends.server.async_receive({}, ignore));
RCVERBS_OPERATION(read_operation, std::size_t, terminal, errc::queue_full, data_limit,
    ends.client.async_read(s.theirs.remote().slice(0, 64), s.ours.slice(0, 64), std::forward<Token>(token)), );
RCVERBS_OPERATION(fetch_add_operation, std::uint64_t, terminal, errc::queue_full, data_limit,
    ends.client.async_fetch_add(s.theirs.remote().word(64), 1, std::forward<Token>(token)), );
RCVERBS_OPERATION(compare_swap_operation, std::uint64_t, terminal, errc::queue_full, data_limit,
    ends.client.async_compare_swap(s.theirs.remote().word(64), 0, 1, std::forward<Token>(token)), );
RCVERBS_OPERATION(send_operation, std::size_t, terminal, errc::queue_full, data_limit,
    ends.client.async_send(s.ours.slice(0, 64), std::forward<Token>(token)),
    s.ends.server.async_receive(s.theirs.slice(0, 64), ignore));
RCVERBS_OPERATION(send_with_immediate_operation, std::size_t, terminal, errc::queue_full, data_limit,
    ends.client.async_send_with_immediate(s.ours.slice(0, 64), 0, std::forward<Token>(token)),
    s.ends.server.async_receive(s.theirs.slice(0, 64), ignore));
RCVERBS_OPERATION(send_with_invalidate_operation, std::size_t, terminal, errc::queue_full, data_limit,
    ends.client.async_send_with_invalidate(s.ours.slice(0, 64), s.window.remote().key(), std::forward<Token>(token)),
    s.ends.server.async_receive(s.theirs.slice(64, 64), ignore));
RCVERBS_OPERATION(shared_receive_operation, received, none, errc::queue_full, 8,
    shared.async_receive(s.place.slice(), std::forward<Token>(token)),
    s.sharing.client.async_send({}, ignore));
RCVERBS_OPERATION(receive_operation, received, terminal, errc::queue_full, data_limit,
    ends.client.async_receive(s.ours.slice(0, 64), std::forward<Token>(token)),
    s.ends.server.async_send(s.theirs.slice(0, 64), ignore));
RCVERBS_OPERATION(batch_operation, std::size_t, terminal, errc::queue_full, data_limit,
    several.async_submit(std::forward<Token>(token)), );
RCVERBS_OPERATION(connect_operation, nothing, terminal, errc::operation_in_progress, 1,
    fresh.async_connect(s.open_acceptor.local(), std::forward<Token>(token)),
    s.open_acceptor.async_accept(ignore));
RCVERBS_OPERATION(resolve_operation, nothing, terminal, errc::operation_in_progress, 1,
    fresh.async_resolve(s.open_acceptor.local(), std::forward<Token>(token)), );
RCVERBS_OPERATION(disconnect_operation, nothing, terminal, errc::operation_in_progress, 1,
    ends.client.async_disconnect(std::forward<Token>(token)), );
RCVERBS_OPERATION(wait_operation, nothing, total, errc::operation_in_progress, 1,
    ends.client.async_wait_disconnected(std::forward<Token>(token)), s.ends.server.close());
RCVERBS_OPERATION(get_request_operation, connection, total, errc::operation_in_progress, 1,
    open_acceptor.async_get_request(std::forward<Token>(token)),
    s.fresh.async_connect(s.open_acceptor.local(), ignore));
RCVERBS_OPERATION(accept_operation, connection, total, errc::operation_in_progress, 1,
    open_acceptor.async_accept(std::forward<Token>(token)),
    s.fresh.async_connect(s.open_acceptor.local(), ignore));

#undef RCVERBS_OPERATION

#define RCVERBS_ALL_OPERATIONS                                                                              \
    write_operation, write_with_immediate_operation, read_operation, fetch_add_operation, compare_swap_operation, \
        send_operation, send_with_immediate_operation, receive_operation, batch_operation, connect_operation,     \
        resolve_operation, disconnect_operation, wait_operation, accept_operation, get_request_operation,         \
        send_with_invalidate_operation, shared_receive_operation

/// Runs `act` on a stage, and tears the stage down. (Of erased type, or it would be compiled two hundred times.)
void on_stage(std::function<asio::awaitable<void>(stage&)> act) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        std::shared_ptr<stage> s = co_await set(w, io);
        co_await act(*s);
        w.on_packet(nullptr);
        w.on_cm_event(nullptr);
        s->ends.client.close();
        s->ends.server.close();
        s->fresh.close();
        s->open_acceptor.close();
        s->sharing.client.close();
        s->sharing.server.close();
        s->shared.close();
        for (connection* const c : {&s->ends.client, &s->ends.server, &s->sharing.client, &s->sharing.server}) {
            if (c->is_valid()) co_await c->async_wait_disconnected(awaiting);
        }
        s.reset();
    });
    CHECK(w.live().queue_pairs == 0);
    CHECK(w.live().memory_regions == 0);
}

asio::awaitable<void> until(stage& s, std::function<bool()> done) {
    while (!done()) co_await sleep(s.io, 10us);
}

/// An executor that counts what it is given.
struct counting_executor {
    asio::any_io_executor inner;
    int* calls;

    template <class F>
    void execute(F&& f) const {
        ++*calls;
        inner.execute(std::forward<F>(f));
    }
    asio::execution_context& query(asio::execution::context_t) const { return asio::query(inner, asio::execution::context); }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) { return asio::execution::blocking.never; }
    bool operator==(counting_executor const&) const noexcept = default;
};

}  // namespace

TEMPLATE_TEST_CASE("an operation calls its handler once, and not from inside the call that starts it", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        int calls = 0;
        TestType::prepare(s);
        TestType::start(s, [&](error_code ec, auto&&...) { calls += ec ? 100 : 1; });
        CHECK(calls == 0);
        co_await until(s, [&] { return calls > 0; });
        co_await sleep(s.io, 10ms);
        CHECK(calls == 1);
    });
}

TEMPLATE_TEST_CASE("an operation completes on its handler's executor, or else on the connection's", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        int calls = 0;
        int through = 0;
        TestType::prepare(s);
        TestType::start(s, asio::bind_executor(counting_executor{s.io.get_executor(), &through}, [&](error_code ec, auto&&...) { calls += ec ? 100 : 1; }));
        co_await until(s, [&] { return calls > 0; });
        CHECK(calls == 1);
        CHECK(through >= 1);
    });
}

TEMPLATE_TEST_CASE("an operation allocates with its handler's allocator, if at all, and frees before the call", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        int live = 0;
        int ever = 0;
        counting_allocator<char> const allocator{&live, &ever};
        int live_in_call = -1;
        std::array<char, 400> large{};  // fits into no place that is made in advance
        TestType::prepare(s);
        TestType::start(s, asio::bind_allocator(allocator, [&, large](error_code, auto&&...) { live_in_call = live + large[0]; }));
        CHECK(live > 0);
        co_await until(s, [&] { return live_in_call >= 0; });
        CHECK(live_in_call == 0);
        CHECK(live == 0);
    });
}

TEMPLATE_TEST_CASE("an operation takes a handler that can only be moved", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        int value = 0;
        TestType::prepare(s);
        TestType::start(s, [&value, only = std::make_unique<int>(7)](error_code, auto&&...) { value = *only; });
        co_await until(s, [&] { return value != 0; });
        CHECK(value == 7);
    });
}

TEMPLATE_TEST_CASE("an operation works with awaitables, tuples, futures, deferred and detached", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    auto const form = GENERATE(0, 1, 2, 3, 4);
    on_stage([form](stage& s) -> asio::awaitable<void> {
        TestType::prepare(s);
        if (form == 0) {
            co_await TestType::start(s, asio::use_awaitable);
        } else if (form == 1) {
            auto outcome = co_await TestType::start(s, asio::as_tuple(asio::use_awaitable));
            CHECK_FALSE(std::get<0>(outcome));
        } else if (form == 2) {
            auto future = TestType::start(s, asio::use_future);
            co_await until(s, [&] { return future.wait_for(0s) == std::future_status::ready; });
            CHECK_NOTHROW(future.get());
        } else if (form == 3) {
            // Nothing happens before it is launched.
            auto later = TestType::start(s, asio::deferred);
            co_await sleep(s.io, 1ms);
            int calls = 0;
            std::move(later)([&](error_code ec, auto&&...) { calls += ec ? 100 : 1; });
            co_await until(s, [&] { return calls > 0; });
            CHECK(calls == 1);
        } else {
            TestType::start(s, asio::detached);
            co_await sleep(s.io, 20ms);
        }
    });
}

TEMPLATE_TEST_CASE("an operation honours the cancellations it documents, and no others", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        s.silence();
        asio::cancellation_signal signal;
        std::optional<error_code> ended;
        TestType::start(s, asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, auto&&...) { ended = ec; }));
        if (TestType::cancels == honours::terminal) {
            signal.emit(asio::cancellation_type::total);
            signal.emit(asio::cancellation_type::partial);
            co_await sleep(s.io, 1ms);
            CHECK_FALSE(ended);
            signal.emit(asio::cancellation_type::terminal);
        } else if (TestType::cancels == honours::none) {
            signal.emit(asio::cancellation_type::total);
            signal.emit(asio::cancellation_type::terminal);
            co_await sleep(s.io, 1ms);
            CHECK_FALSE(ended);
            s.shared.close();
            s.sharing.server.close();
        } else {
            signal.emit(asio::cancellation_type::total);
        }
        co_await until(s, [&] { return ended.has_value(); });
        CHECK(*ended == asio::error::operation_aborted);
        // Too late now, and without effect.
        signal.emit(asio::cancellation_type::terminal);
        co_await sleep(s.io, 1ms);
    });
}

TEMPLATE_TEST_CASE("a cancellation that races with completion leaves one completion", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    auto const after = GENERATE(range(0, 40));
    on_stage([after](stage& s) -> asio::awaitable<void> {
        asio::cancellation_signal signal;
        int calls = 0;
        TestType::prepare(s);
        TestType::start(s, asio::bind_cancellation_slot(signal.slot(), [&](error_code, auto&&...) { ++calls; }));
        co_await sleep(s.io, after * 700ns);
        signal.emit(asio::cancellation_type::terminal);
        co_await until(s, [&] { return calls > 0; });
        co_await sleep(s.io, 10ms);
        CHECK(calls == 1);
    });
}

TEMPLATE_TEST_CASE("an operation whose object is destroyed completes as aborted", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        s.silence();
        std::optional<error_code> ended;
        TestType::start(s, [&](error_code ec, auto&&...) { ended = ec; });
        co_await sleep(s.io, 100us);
        { connection const gone = std::move(s.ends.client); }
        { connection const gone = std::move(s.fresh); }
        { acceptor const gone = std::move(s.open_acceptor); }
        s.shared.close();
        { connection const gone = std::move(s.sharing.server); }
        co_await until(s, [&] { return ended.has_value(); });
        // Waiting for the end is waiting for just this.
        CHECK((*ended == asio::error::operation_aborted || (std::is_same_v<TestType, wait_operation> && !*ended)));
    });
}

TEMPLATE_TEST_CASE("an operation whose io_context is destroyed leaves nothing behind", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    auto const witness = std::make_shared<int>(0);
    world w;
    {
        auto io = std::make_unique<asio::io_context>();
        std::shared_ptr<stage> s;
        asio::co_spawn(*io, set(w, *io), [&](std::exception_ptr, std::shared_ptr<stage> made) { s = std::move(made); });
        REQUIRE(w.run_until(*io, [&] { return s != nullptr; }));
        s->silence();
        TestType::start(*s, [witness](error_code, auto&&...) {});
        w.run_for(*io, 50us);
        CHECK(witness.use_count() > 1);
        io.reset();
        CHECK(witness.use_count() == 1);
        s.reset();
    }
    CHECK(w.live() == fabric::object_counts{});
}

TEMPLATE_TEST_CASE("one operation more than there may be fails, and harms none of the others", "[fabric]", RCVERBS_ALL_OPERATIONS) {
    on_stage([](stage& s) -> asio::awaitable<void> {
        s.silence();
        std::vector<error_code> ended;
        for (int i = 0; i < TestType::limit; ++i) TestType::start(s, [&](error_code ec, auto&&...) { ended.push_back(ec); });
        co_await sleep(s.io, 100us);
        CHECK(ended.empty());
        TestType::start(s, [&](error_code ec, auto&&...) { ended.push_back(ec); });
        co_await until(s, [&] { return !ended.empty(); });
        co_await sleep(s.io, 100us);
        CHECK(ended == std::vector<error_code>{TestType::over_the_limit()});
        s.ends.client.close();
        s.fresh.close();
        s.open_acceptor.close();
        s.shared.close();
        s.sharing.server.close();
        co_await until(s, [&] { return ended.size() == static_cast<std::size_t>(TestType::limit) + 1; });
    });
}
