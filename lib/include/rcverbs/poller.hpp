// poller.hpp — who polls completion queues, and how.
//
//     poller const shared = poller::start();
//     connection a{shared};
//     connection b{shared};
//     connection c{poller::on(io, {.polling = {.mode = poll_mode::event}})};
//     connection alone{own_thread};
//
// A poller is a thread of the library's, or an executor of the program's; what is made with it runs
// there, one handler at a time. Its connections share completion queues and one descriptor for each
// device. An object that is made with an executor has a poller with the default options of its own;
// own_thread gives it a thread of its own.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/execution_context.hpp>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <rcverbs/export.hpp>

namespace rcverbs {

namespace progress {
class poller_core;
}  // namespace progress

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

/// Where and how a poller polls.
struct poller_options {
    /// Numbers of the processors that the thread of start() may run on; empty for all that the
    /// process may use. Best on the device's NUMA node:
    /// /sys/class/infiniband/DEVICE/device/local_cpulist. Source: sched_setaffinity(2).
    std::vector<unsigned> cpus = {};
    /// How to poll.
    polling_options polling = {};
    /// The completion vector, an interrupt of the device and so a processor, that reports the
    /// events of the completion queues: taken modulo device_limits::completion_vectors. Empty to
    /// spread the connections of the process over all vectors. Without effect while a queue is
    /// polled busily. connection::limits() has the result.
    std::optional<std::uint32_t> completion_vector = {};
};

/// Polls for everything that is made with it: connections, acceptors, sessions.
///
/// A handle: copies stand for the same poller. Safe to copy and use from any thread.
class RCVERBS_EXPORT poller {
public:
    using executor_type = boost::asio::any_io_executor;

    /// Makes no poller: to be assigned to. Nothing can be made with it.
    poller() noexcept = default;

    /// Starts a polling thread, with all signals blocked. It ends when the last copy and the last
    /// object that was made with it are gone, and its run queue is empty.
    ///
    /// An exception that leaves a handler on it ends the program, as in a thread of the program's
    /// own: no caller could catch it.
    ///
    /// @param options  Where and how it polls.
    /// @throws std::system_error if no thread can be started.
    /// @throws boost::system::system_error: errc::invalid_option, also if the process may use none
    ///         of the processors.
    static poller start(poller_options const& options = {});

    /// Polls on an executor of the program's, whose context is run by the program. Starts no
    /// thread. However many threads run the context, the handlers of all connections of the poller
    /// run one at a time: make connections with the context itself to run them in parallel.
    ///
    /// @param executor  The executor; its context must outlive the poller.
    /// @param options   How it polls; no `cpus`, since the program chooses its threads.
    /// @throws boost::system::system_error: errc::invalid_option.
    template <class Executor>
    requires(std::convertible_to<Executor const&, boost::asio::any_io_executor> && !std::derived_from<Executor, boost::asio::execution_context>) static poller
        on(Executor const& executor, poller_options const& options = {}) {
        return on_executor(executor, options);
    }
    /// The same on the executor of a context: `poller::on(io)`.
    template <class Context>
    requires std::derived_from<Context, boost::asio::execution_context>
    static poller on(Context& context, poller_options const& options = {}) {
        return on_executor(context.get_executor(), options);
    }

    /// True unless default-constructed.
    bool is_valid() const noexcept { return core_ != nullptr; }

    /// Runs functions where it polls. Timers, sockets and coroutines may be used there. Valid as
    /// long as the poller, or an object made with it, exists. Empty without a poller.
    executor_type get_executor() const noexcept;

private:
    template <class Executor>
    friend class runs_on;

    explicit poller(std::shared_ptr<progress::poller_core const> core) noexcept
        : core_{std::move(core)} {}

    static poller on_executor(executor_type const& executor, poller_options const& options);

    std::shared_ptr<progress::poller_core const> core_;
};

/// Stands for a polling thread of the object's own, with default options:
/// `connection c{own_thread};`. With others: `connection c{poller::start({.cpus = {2}})};`.
struct own_thread_t {
    explicit own_thread_t() = default;
};
/// See own_thread_t.
inline constexpr own_thread_t own_thread{};

}  // namespace rcverbs
