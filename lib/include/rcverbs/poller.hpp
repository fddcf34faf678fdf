// poller.hpp — polling threads, and how completion queues are polled.
//
//     poller thread;
//     connection a{thread};
//     connection b{thread};
//     connection alone{own_thread};
//
// The executor that an object is made with polls for it and runs everything else of it. A poller is
// a thread of the library's for any number of objects; own_thread gives one object a thread to
// itself.
#pragma once

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <memory>
#include <vector>

#include <rcverbs/export.hpp>

namespace rcverbs {

namespace hosting {
class poller_thread;
}  // namespace hosting

/// How a completion queue that is empty is waited on.
enum class poll_mode {
    /// Never sleeps: the least latency, one processor per polling thread.
    busy,
    /// Polls for polling_options::spin after the last completion, then sleeps until the device's
    /// next event.
    adaptive,
    /// Sleeps as soon as the queue is empty: the least processor time.
    event,
};

/// How and how long to poll.
struct polling_options {
    /// How to wait while the queue is empty.
    poll_mode mode = poll_mode::adaptive;
    /// How long `adaptive` polls before it sleeps. 0 or more.
    std::chrono::nanoseconds spin = std::chrono::microseconds{50};
};

/// Where a polling thread runs.
struct poller_options {
    /// Numbers of the processors that the thread may run on; empty for all that the process may use.
    /// Best on the device's NUMA node: /sys/class/infiniband/DEVICE/device/local_cpulist. Source:
    /// sched_setaffinity(2).
    std::vector<unsigned> cpus = {};
};

/// One polling thread, for everything that is made with it: connections, acceptors, sessions.
///
/// A handle: copies share one thread, which ends when the last copy and the last connection on it
/// are gone and its run queue is empty. Safe to copy and use from any thread.
///
/// An exception that leaves a handler on it ends the program, as in a thread of the program's own:
/// no caller could catch it.
class RCVERBS_EXPORT poller {
public:
    using executor_type = boost::asio::io_context::executor_type;

    /// Starts a thread, with all signals blocked.
    ///
    /// @param options  Where it runs. For a connection with a thread of its own on some processors:
    ///                 `connection c{poller{{.cpus = {2}}}};`.
    /// @throws std::system_error if no thread can be started.
    /// @throws boost::system::system_error: errc::invalid_option if the process may use none of the
    ///         processors.
    explicit poller(poller_options const& options = {});

    /// Runs functions on the thread. Timers, sockets and coroutines may be used on it. Valid as
    /// long as the poller, or an object made with it, exists.
    executor_type get_executor() const noexcept;

private:
    template <class Executor>
    friend class runs_on;

    std::shared_ptr<hosting::poller_thread> impl_;
};

/// Stands for a polling thread of the object's own: `connection c{own_thread};`.
struct own_thread_t {
    explicit own_thread_t() = default;
};
/// See own_thread_t.
inline constexpr own_thread_t own_thread{};

}  // namespace rcverbs
