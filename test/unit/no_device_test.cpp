// A machine without RDMA: every operation fails with a reason; nothing hangs or leaks.
#include <rcverbs/rcverbs.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include "hosting/sequence.hpp"
#include "support/catch.hpp"

using namespace rcverbs;
namespace asio = boost::asio;

namespace {

bool has_rdma_cm() { return std::filesystem::exists("/dev/infiniband/rdma_cm"); }

runs_on<asio::any_io_executor> home_of(asio::io_context& io, bool on_own_thread) {
    if (on_own_thread) return own_thread;
    return io;
}

}  // namespace

TEST_CASE(
    "connecting where there is no RDMA fails at the first step, with a remedy", "[no_device]"
) {
    if (has_rdma_cm()) {
        WARN("skipped: this machine has RDMA");
        return;
    }
    bool const on_own_thread = GENERATE(true, false);
    asio::io_context io;
    connection c{home_of(io, on_own_thread)};
    error_code result;
    c.async_connect({"10.0.0.1", 1}, asio::bind_executor(io, [&](error_code ec) { result = ec; }));
    CHECK_FALSE(result);  // not from inside the call
    io.run();
    CHECK(result == errc::rdma_unavailable);
    CHECK(result == boost::system::errc::no_such_device);
    CHECK_THAT(
        boost::system::system_error{result}.what(), test::ContainsSubstring("modprobe rdma_ucm")
    );
    CHECK(c.last_failure().where == step::open);
    CHECK(c.last_failure().reason == close_reason::refused);
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

TEST_CASE(
    "an operation on a connection that is not connected is refused, not inside the call",
    "[no_device]"
) {
    bool const on_own_thread = GENERATE(true, false);
    asio::io_context io;
    connection c{home_of(io, on_own_thread)};
    std::promise<error_code> written;
    std::promise<error_code> received_nothing;
    c.async_write({}, {}, [&](error_code ec, std::size_t) { written.set_value(ec); });
    c.async_receive({}, [&](error_code ec, receive_result) { received_nothing.set_value(ec); });
    std::promise<error_code> not_disconnected;
    c.async_disconnect([&](error_code ec) {
        c.close();
        // Must be the last statement: the connection may be destroyed as soon as the future is
        // ready.
        not_disconnected.set_value(ec);
    });
    io.run();
    CHECK(not_disconnected.get_future().get() == errc::not_connected);
    CHECK(written.get_future().get() == errc::access_denied);
    CHECK(received_nothing.get_future().get() == errc::not_connected);
}

TEST_CASE(
    "closing an idle connection lets run() return, and closing again does no harm", "[no_device]"
) {
    bool const on_own_thread = GENERATE(true, false);
    asio::io_context io;
    connection c{home_of(io, on_own_thread)};
    error_code waited = errc::not_drained;
    c.async_wait_disconnected(asio::bind_executor(io, [&](error_code ec) { waited = ec; }));
    c.close();
    c.close();
    io.run();
    CHECK_FALSE(waited);
    CHECK(c.last_failure().reason == close_reason::closed_locally);
    c.close();
}

TEST_CASE("a connection can be destroyed on its own polling thread", "[no_device]") {
    for (int i = 0; i < 20; ++i) {
        auto c = std::make_unique<connection>(own_thread);
        auto* const raw = c.get();
        std::promise<void> is_gone;
        raw->async_wait_disconnected([c = std::move(c), &is_gone](error_code) mutable {
            c.reset();
            is_gone.set_value();
        });
        raw->close();
        is_gone.get_future().wait();
    }
}

TEST_CASE(
    "an io_context destroyed with operations pending drops their handlers uncalled", "[no_device]"
) {
    bool const on_own_thread = GENERATE(true, false);
    auto const token = std::make_shared<int>();
    bool called = false;
    {
        asio::io_context io;
        auto c = std::make_shared<connection>(home_of(io, on_own_thread));
        // The handler keeps its own connection alive, as a suspended coroutine does.
        c->async_wait_disconnected(asio::bind_executor(io, [c, token, &called](error_code) {
            called = true;
        }));
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

TEST_CASE("functions that wait in a sequence are destroyed with its context", "[no_device]") {
    auto const token = std::make_shared<int>();
    bool called = false;
    auto const fill = [&](asio::any_io_executor const& executor) {
        auto const order = std::make_shared<hosting::sequence>(executor);
        // The function keeps its own sequence alive, as a connection's functions do.
        order->call([order, token, &called] { called = true; });
        order->call([order, token, &called] { called = true; });
    };
    SECTION("an io_context") {
        asio::io_context io;
        fill(io.get_executor());
        CHECK(token.use_count() == 3);
    }
    SECTION("a strand of a thread_pool") {
        asio::thread_pool pool{1};
        pool.stop();
        pool.wait();
        fill(asio::make_strand(pool));
        CHECK(token.use_count() == 3);
    }
    CHECK(token.use_count() == 1);
    CHECK_FALSE(called);
}

TEST_CASE(
    "coroutines, timers and posted functions work on a connection's executor", "[no_device]"
) {
    bool const on_own_thread = GENERATE(true, false);
    asio::io_context io;
    connection c{home_of(io, on_own_thread)};
    std::atomic<bool> done = false;
    bool ended = false;
    asio::co_spawn(
        c.get_executor(),
        [&]() -> asio::awaitable<void> {
            asio::steady_timer timer{
                co_await asio::this_coro::executor, std::chrono::milliseconds{5}};
            co_await timer.async_wait(asio::use_awaitable);
            done = true;
            c.close();
        },
        asio::bind_executor(io, [&](std::exception_ptr) { ended = true; })
    );
    io.run();
    CHECK(done);
    CHECK(ended);
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
    c.async_wait_disconnected(
        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(io, note))
    );
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
        connection c{own_thread};
        c.close();
    }
    io.run();
    io.restart();
    // A thread posts its own joining when it ends.
    auto const threads = [] {
        return std::distance(
            std::filesystem::directory_iterator{"/proc/self/task"},
            std::filesystem::directory_iterator{}
        );
    };
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
    while (threads() > 3 && std::chrono::steady_clock::now() < until) {
        io.poll();
        io.restart();
        std::this_thread::yield();
    }
    CHECK(threads() <= 3);  // this one, and a sanitizer's
}

TEST_CASE("a poller is a thread, an executor, or empty", "[no_device]") {
    asio::io_context io;
    SECTION("empty") {
        poller const p;
        CHECK_FALSE(p.is_valid());
        CHECK(p.get_executor() == asio::any_io_executor{});
        try {
            connection const c{p};
            FAIL("made with no executor");
        } catch (boost::system::system_error const& refused) {
            CHECK(refused.code() == errc::invalid_option);
            CHECK(std::string{refused.what()}.find("poller::start()") != std::string::npos);
        }
    }
    SECTION("an executor, a context, a strand") {
        CHECK(poller::on(io).get_executor() == asio::any_io_executor{io.get_executor()});
        CHECK(poller::on(io.get_executor()).get_executor() == poller::on(io).get_executor());
        auto const strand = asio::make_strand(io);
        CHECK(poller::on(strand).get_executor() == asio::any_io_executor{strand});
        CHECK(connection{poller::on(strand)}.get_executor() == asio::any_io_executor{strand});
    }
    SECTION("a thread, which copies and objects keep") {
        poller p = poller::start();
        poller const copy = p;
        CHECK(copy.get_executor() == p.get_executor());
        connection const c{p};
        p = {};
        std::thread::id const there =
            asio::post(
                copy.get_executor(), asio::use_future([] { return std::this_thread::get_id(); })
            ).get();
        CHECK(there != std::this_thread::get_id());
    }
    SECTION("for objects of a concrete executor type") {
        using executor = asio::io_context::executor_type;
        CHECK(basic_connection<executor>{poller::on(io)}.get_executor() == io.get_executor());
        CHECK(basic_connection<executor>{poller::start()}.is_valid());
        CHECK_THROWS_AS(
            basic_connection<executor>{poller::on(asio::make_strand(io))},
            asio::execution::bad_executor
        );
    }
    SECTION("with options that are refused") {
        auto const code_of = [](auto&& f) {
            try {
                f();
            } catch (boost::system::system_error const& e) {
                return e.code();
            }
            return error_code{};
        };
        poller_options const spinning{.polling = {.spin = std::chrono::nanoseconds{-1}}};
        CHECK(code_of([&] { poller::on(io, spinning); }) == errc::invalid_option);
        CHECK(code_of([&] { poller::start(spinning); }) == errc::invalid_option);
        CHECK(code_of([&] { poller::on(io, {.cpus = {0}}); }) == errc::invalid_option);
    }
}

TEST_CASE(
    "handlers that wait on a polling thread for an io_context are destroyed with it, uncalled",
    "[no_device]"
) {
    poller const thread = poller::start();
    connection c{thread};
    auto const token = std::make_shared<int>();
    {
        asio::io_context io;
        c.async_wait_disconnected(asio::bind_executor(io, [token](error_code) { FAIL("called"); }));
        CHECK(token.use_count() == 2);
    }
    CHECK(token.use_count() == 1);
    c.close();
    std::promise<void> ended;
    // The destroyed wait has freed its slot.
    c.async_wait_disconnected([&](error_code ec) {
        CHECK_FALSE(ec);
        ended.set_value();
    });
    ended.get_future().wait();
}
