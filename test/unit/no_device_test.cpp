// A machine without RDMA: everything fails with a reason, and nothing hangs or leaks.
#include <rcverbs/rcverbs.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "support/catch.hpp"

using namespace rcverbs;
namespace asio = boost::asio;

namespace {

bool has_rdma_cm() { return std::filesystem::exists("/dev/infiniband/rdma_cm"); }

connection_options with(progress_on where) {
    connection_options o;
    o.progress = where;
    return o;
}

}  // namespace

TEST_CASE("connecting where there is no RDMA fails at the first step, with errno", "[no_device]") {
    if (has_rdma_cm()) {
        WARN("skipped: this machine has RDMA");
        return;
    }
    auto const where = GENERATE(progress_on::poller, progress_on::context);
    asio::io_context io;
    connection c{io, with(where)};
    error_code result;
    c.async_connect({"10.0.0.1", 1}, asio::bind_executor(io, [&](error_code ec) { result = ec; }));
    CHECK_FALSE(result);  // not from inside the call
    io.run();
    CHECK(result.category() == boost::system::system_category());
    CHECK(c.last_failure().where == step::open);
    CHECK(c.reason() == close_reason::refused);
    CHECK_FALSE(c.is_open());
}

TEST_CASE("listening where there is no RDMA throws", "[no_device]") {
    if (has_rdma_cm()) {
        WARN("skipped: this machine has RDMA");
        return;
    }
    asio::io_context io;
    CHECK_THROWS_AS((acceptor{io, {"0.0.0.0", 0}}), boost::system::system_error);
}

TEST_CASE("an operation on a connection that is not connected is refused, not inside the call", "[no_device]") {
    auto const where = GENERATE(progress_on::poller, progress_on::context);
    asio::io_context io;
    connection c{io, with(where)};
    std::promise<error_code> written;
    std::promise<error_code> received_nothing;
    c.async_write({}, {}, [&](error_code ec, std::size_t) { written.set_value(ec); });
    c.async_receive({}, [&](error_code ec, received) { received_nothing.set_value(ec); });
    c.async_disconnect([&](error_code ec) {
        CHECK(ec == errc::not_connected);
        c.close();
    });
    io.run();
    CHECK(written.get_future().get() == errc::access_denied);
    CHECK(received_nothing.get_future().get() == errc::not_connected);
}

TEST_CASE("closing an idle connection lets run() return, and closing again does no harm", "[no_device]") {
    auto const where = GENERATE(progress_on::poller, progress_on::context);
    asio::io_context io;
    connection c{io, with(where)};
    error_code waited = errc::not_drained;
    c.async_wait_disconnected(asio::bind_executor(io, [&](error_code ec) { waited = ec; }));
    c.close();
    c.close();
    io.run();
    CHECK_FALSE(waited);
    CHECK(c.reason() == close_reason::closed_locally);
    c.close();
}

TEST_CASE("a connection can be destroyed on its own polling thread", "[no_device]") {
    asio::io_context io;
    for (int i = 0; i < 20; ++i) {
        auto c = std::make_unique<connection>(io);
        auto* const raw = c.get();
        raw->async_wait_disconnected([c = std::move(c)](error_code) mutable { c.reset(); });
        raw->close();
    }
    io.run();
}

TEST_CASE("an io_context destroyed with operations pending drops their handlers uncalled", "[no_device]") {
    auto const where = GENERATE(progress_on::poller, progress_on::context);
    auto const token = std::make_shared<int>();
    bool called = false;
    {
        asio::io_context io;
        auto c = std::make_shared<connection>(io, with(where));
        // The handler keeps its own connection alive, as a suspended coroutine does.
        c->async_wait_disconnected([c, token, &called](error_code) { called = true; });
        c.reset();
        asio::co_spawn(
            io,
            [](asio::io_context& context, std::shared_ptr<int>) -> asio::awaitable<void> {
                connection inside{context};
                co_await inside.async_wait_disconnected(asio::use_awaitable);
            }(io, token),
            asio::detached
        );
        io.poll();
        CHECK(token.use_count() > 1);
    }
    CHECK(token.use_count() == 1);
    CHECK_FALSE(called);
}

TEST_CASE("coroutines, timers and posted functions work on a connection's executor", "[no_device]") {
    auto const where = GENERATE(progress_on::poller, progress_on::context);
    asio::io_context io;
    connection c{io, with(where)};
    std::atomic<bool> done = false;
    asio::co_spawn(
        c.get_executor(),
        [&]() -> asio::awaitable<void> {
            asio::steady_timer timer{co_await asio::this_coro::executor, std::chrono::milliseconds{5}};
            co_await timer.async_wait(asio::use_awaitable);
            done = true;
            c.close();
        },
        asio::detached
    );
    io.run();
    CHECK(done);
}

TEST_CASE("waiting can be cancelled, and a second wait is refused", "[no_device]") {
    asio::io_context io;
    connection c{io};
    asio::cancellation_signal signal;
    std::vector<error_code> results;
    std::mutex mutex;
    auto const note = [&](error_code ec) {
        std::lock_guard const lock{mutex};
        results.push_back(ec);
        if (results.size() == 2) c.close();
    };
    c.async_wait_disconnected(asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, note)));
    c.async_wait_disconnected(asio::bind_executor(io, [&](error_code ec) {
        note(ec);
        signal.emit(asio::cancellation_type::total);
    }));
    io.run();
    REQUIRE(results.size() == 2);
    CHECK(results[0] == errc::operation_in_progress);
    CHECK(results[1] == asio::error::operation_aborted);
}

TEST_CASE("threads of ended connections are joined while the program goes on", "[no_device]") {
    asio::io_context io;
    for (int i = 0; i < 100; ++i) {
        connection c{io};
        c.close();
    }
    io.run();
    io.restart();
    // The last threads post their joining when they end.
    auto const threads = [] {
        return std::distance(std::filesystem::directory_iterator{"/proc/self/task"}, std::filesystem::directory_iterator{});
    };
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (threads() > 3 && std::chrono::steady_clock::now() < until) {
        io.poll();
        io.restart();
        std::this_thread::yield();
    }
    CHECK(threads() <= 3);  // this one, and what a sanitizer keeps
}

TEST_CASE("what waits on a polling thread may hold what lives on the program's io_context, and is destroyed before that", "[no_device]") {
    bool was_destroyed = false;
    {
        asio::io_context io;
        // Made first, and so destroyed last: after the timers' service.
        poller threads{io};
        auto const end = [&](asio::steady_timer* t) {
            was_destroyed = true;
            delete t;
        };
        std::shared_ptr<asio::steady_timer> timer{new asio::steady_timer{io, std::chrono::hours{1}}, end};
        std::promise<void> is_busy;
        auto& loop = static_cast<asio::io_context&>(asio::query(threads.get_executor(), asio::execution::context));
        asio::post(loop, [&is_busy, &loop] {
            is_busy.set_value();
            // Until the io_context is destroyed, and with it the thread stopped.
            while (!loop.stopped()) std::this_thread::yield();
        });
        is_busy.get_future().wait();
        // Queued behind it, and never called.
        asio::post(threads.get_executor(), [t = std::move(timer)] { t->cancel(); });
    }
    CHECK(was_destroyed);
}
