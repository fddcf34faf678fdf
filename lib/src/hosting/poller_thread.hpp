// poller_thread.hpp — a thread that runs one private io_context, and how such threads are joined.
//
// The last holder of a poller_thread may be a handler on that very thread, which cannot join
// itself. So the last release only lets the thread end. It is joined when the next one starts, or
// when the process ends or unloads the library.
#pragma once

#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>

namespace rcverbs::hosting {

class poller_thread;

/// Marks an io_context that one of the library's threads runs: objects on it need no strand, and
/// keep the thread running.
class single_thread final : public boost::asio::execution_context::service {
public:
    static boost::asio::execution_context::id id;
    using key_type = single_thread;

    explicit single_thread(boost::asio::execution_context& context)
        : boost::asio::execution_context::service{context} {}

    std::weak_ptr<poller_thread> thread;

private:
    void shutdown() noexcept override {}
};

/// The io_context of a polling thread.
class run_loop {
public:
    run_loop();

    boost::asio::io_context& context() noexcept { return context_; }
    /// Lets the thread end once the run queue is empty.
    void release_work() noexcept;
    /// The thread's function.
    void run();

    /// Destroys the handlers that are left in the run queue, uncalled. REQUIRES: its thread has
    /// ended.
    void drop_handlers() noexcept { context_.shutdown(); }

    std::atomic<bool> is_finished{false};

private:
    // Exposes shutdown(), which destroys the pending handlers before the io_context is destroyed.
    struct emptiable_context : boost::asio::io_context {
        using boost::asio::io_context::io_context;
        using boost::asio::io_context::shutdown;
    };

    // The concurrency hint 1: one thread runs it. Posting from other threads stays safe.
    emptiable_context context_{1};
    std::mutex mutex_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
};

/// Keeps the thread running: it ends when the last holder is gone and the run queue is empty.
class poller_thread {
public:
    /// Starts a thread with all signals blocked, so that the program's signal handlers run on the
    /// program's threads; on all processors of the process if `cpus` is empty. Throws the exceptions
    /// of std::thread's constructor, and errc::invalid_option.
    static std::shared_ptr<poller_thread> start(std::span<unsigned const> cpus);

    explicit poller_thread(std::shared_ptr<run_loop> loop) noexcept : loop_{std::move(loop)} {}
    poller_thread(poller_thread const&) = delete;
    poller_thread& operator=(poller_thread const&) = delete;
    ~poller_thread() { loop_->release_work(); }

    boost::asio::io_context& context() noexcept { return loop_->context(); }
    bool is_this_thread() const noexcept;
    /// True once the thread runs no more handlers: the process is ending.
    bool has_ended() const noexcept { return loop_->is_finished; }

private:
    std::shared_ptr<run_loop> loop_;
};

}  // namespace rcverbs::hosting
