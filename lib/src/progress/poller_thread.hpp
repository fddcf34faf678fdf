// poller_thread.hpp — a thread that runs one private io_context, and the owner that joins such threads.
//
// The last holder of a poller_thread may be a handler on that very thread, which cannot join itself: so the thread is
// asked to end and handed to its owner, a service of the caller's io_context, which joins it there, or at the latest
// when that io_context is destroyed.
#pragma once

#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace rcverbs::progress {

/// What a thread runs. Lives until the thread has ended and nobody holds an executor's owner any more.
struct run_loop {
    // The hint 1 says that one thread runs it; starting work from other threads stays safe.
    boost::asio::io_context context{1};
    std::atomic<bool> is_finished{false};
};

/// Keeps the thread going: it ends when the last holder is gone and the run queue is empty.
class poller_thread {
public:
    explicit poller_thread(std::shared_ptr<run_loop> loop)
        : loop_{std::move(loop)}, work_{loop_->context.get_executor()} {}

    boost::asio::io_context& context() noexcept { return loop_->context; }

private:
    std::shared_ptr<run_loop> loop_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
};

/// Owns the threads of one io_context.
class thread_owner final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = thread_owner;

    explicit thread_owner(boost::asio::execution_context& context);

    /// Starts a thread with all signals blocked: the host's handlers run on the host's threads.
    std::shared_ptr<poller_thread> start();

    /// Ends and joins all threads; their run loops stay until this object is destroyed. For shutdown.
    void stop_all() noexcept;

private:
    struct owned_thread {
        std::thread thread;
        std::shared_ptr<run_loop> loop;
    };

    void shutdown() noexcept override { stop_all(); }
    void join_finished() noexcept;

    std::mutex mutex_;
    std::vector<owned_thread> threads_;
    std::vector<std::shared_ptr<run_loop>> stopped_;
};

}  // namespace rcverbs::progress
