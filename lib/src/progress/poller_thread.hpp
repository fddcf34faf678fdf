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

/// What a thread runs.
class run_loop {
public:
    // The hint 1 says that one thread runs it; starting work from other threads stays safe.
    run_loop() : context_{std::make_unique<emptiable_context>(1)}, work_{context_->get_executor()} {}

    boost::asio::io_context& context() noexcept { return *context_; }
    /// Lets the thread end once the run queue is empty.
    void release_work() noexcept {
        std::lock_guard const lock{mutex_};
        work_.reset();
    }
    /// Destroys what is left in the run queue, uncalled, as an io_context's end does: while everything that handlers may hold is
    /// still there. Executors stay good. REQUIRES: its thread has ended.
    void drop_handlers() noexcept { context_->shutdown(); }
    /// The end of it. REQUIRES: its thread has ended.
    void destroy_context() noexcept { context_.reset(); }

    std::atomic<bool> is_finished{false};
    // Set when the owner goes before the thread does.
    std::atomic<bool> is_orphaned{false};

private:
    // What Asio does in two steps, here in two steps, too.
    struct emptiable_context : boost::asio::io_context {
        using boost::asio::io_context::io_context;
        using boost::asio::io_context::shutdown;
    };

    std::unique_ptr<emptiable_context> context_;
    std::mutex mutex_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
};

/// Keeps the thread going: it ends when the last holder is gone and the run queue is empty.
class poller_thread {
public:
    explicit poller_thread(std::shared_ptr<run_loop> loop) noexcept : loop_{std::move(loop)} {}
    poller_thread(poller_thread const&) = delete;
    poller_thread& operator=(poller_thread const&) = delete;
    ~poller_thread() { loop_->release_work(); }

    boost::asio::io_context& context() noexcept { return loop_->context(); }

private:
    std::shared_ptr<run_loop> loop_;
};

/// Owns the threads of one io_context.
class thread_owner final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = thread_owner;

    explicit thread_owner(boost::asio::execution_context& context);
    ~thread_owner() override;

    /// Starts a thread with all signals blocked: the host's handlers run on the host's threads.
    std::shared_ptr<poller_thread> start();

    /// Ends and joins all threads; their run loops stay until this object is destroyed. For shutdown.
    void stop_all() noexcept;
    /// Destroys the handlers that wait on threads which have been stopped. For shutdown: they may hold objects of other
    /// services, which are destroyed before this one.
    void drop_handlers() noexcept;

private:
    struct owned_thread {
        std::thread thread;
        std::shared_ptr<run_loop> loop;
    };

    void shutdown() noexcept override {
        stop_all();
        drop_handlers();
    }
    void join_finished() noexcept;

    std::mutex mutex_;
    std::vector<owned_thread> threads_;
    std::vector<std::shared_ptr<run_loop>> stopped_;
};

}  // namespace rcverbs::progress
