// disk.hpp — file operations beside the event loop.
//
// They block, so threads run them; a coroutine waits for each. What takes long, such as to sync a large
// file, has threads of its own, and does not hold up the rest.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <utility>

namespace copy {

namespace asio = boost::asio;

class disk {
public:
    /// Results come back on `io`, which one thread runs.
    explicit disk(asio::io_context& io) : io_{io} {}
    ~disk() {
        short_.join();
        long_.join();
    }
    disk(disk const&) = delete;
    disk& operator=(disk const&) = delete;

    /// Runs `work()` on a thread, which does not throw, and returns what it returns.
    template <class Work>
    auto run(Work work) -> asio::awaitable<decltype(work())> {
        return run_on(short_, std::move(work));
    }
    template <class Work>
    auto run_long(Work work) -> asio::awaitable<decltype(work())> {
        return run_on(long_, std::move(work));
    }

private:
    template <class Work>
    auto run_on(asio::thread_pool& pool, Work work) -> asio::awaitable<decltype(work())> {
        using value = decltype(work());
        co_return co_await asio::async_initiate<asio::use_awaitable_t<> const, void(value)>(
            [this, &pool](auto handler, Work what) {
                auto const io = io_.get_executor();
                asio::post(
                    pool,
                    [io,
                     guard = asio::make_work_guard(io),
                     h = std::move(handler),
                     w = std::move(what)]() mutable {
                        asio::post(io, [h = std::move(h), r = w()]() mutable { h(std::move(r)); });
                    }
                );
            },
            asio::use_awaitable,
            std::move(work)
        );
    }

    static constexpr std::size_t threads = 4;

    asio::io_context& io_;
    asio::thread_pool short_{threads};
    asio::thread_pool long_{threads};
};

/// Lets coroutines of one thread wait for a change.
class change {
public:
    explicit change(asio::io_context& io) : timer_{io, asio::steady_timer::time_point::max()} {}

    asio::awaitable<void> wait() {
        boost::system::error_code ignored;
        co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    void notify() { timer_.cancel(); }

private:
    asio::steady_timer timer_;
};

}  // namespace copy
