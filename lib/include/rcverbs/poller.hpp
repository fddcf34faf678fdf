// poller.hpp — the thread that polls completion queues and runs their connections' handlers.
//
// By default every connection makes a poller of its own; make one here to let several connections share a thread.
// A handle: copies share one poller, whose thread ends when the last copy and the last connection on it are gone and
// its run queue is empty. Safe to copy and use from any thread.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>

#include <chrono>
#include <memory>

#include <rcverbs/export.hpp>

namespace rcverbs {

namespace progress {
class poller_thread;
}

/// How a completion queue that is empty is waited on.
enum class poll_mode {
    /// Never sleeps: the least latency, one processor per polling thread.
    busy,
    /// Polls for polling_options::spin after the last completion, then sleeps until the device's next event.
    adaptive,
    /// Sleeps as soon as the queue is empty: the least processor time.
    event,
};

/// How and how long to poll.
struct polling_options {
    /// What to do when there is nothing to do.
    poll_mode mode = poll_mode::adaptive;
    /// How long `adaptive` polls before it sleeps. 0 or more.
    std::chrono::nanoseconds spin = std::chrono::microseconds{50};
};

/// One polling thread.
///
/// An exception that leaves a handler on it ends the program, as in a thread of the program's own: there is nobody who could
/// catch it. Handlers on the caller's io_context (progress_on::context) throw through its run().
class RCVERBS_EXPORT poller {
public:
    /// No poller; is_open() is false.
    poller() = default;
    /// Starts a thread that lives at most as long as `context`, whose destruction stops and joins it.
    explicit poller(boost::asio::io_context& context);

    /// True unless default-constructed.
    bool is_open() const noexcept { return impl_ != nullptr; }
    /// Runs functions on the thread. Timers, sockets and coroutines may be used on it. REQUIRES: is_open().
    boost::asio::any_io_executor get_executor() const;

    /// For the library's own use.
    std::shared_ptr<progress::poller_thread> const& impl() const noexcept { return impl_; }

private:
    std::shared_ptr<progress::poller_thread> impl_;
};

}  // namespace rcverbs
