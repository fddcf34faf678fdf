#include <rcverbs/detail/blocked_call.hpp>

#include <boost/asio/detail/scheduler.hpp>
#include <boost/asio/execution_context.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>

#include "hosting/executors.hpp"

namespace rcverbs::detail {

namespace {

using namespace std::chrono_literals;
namespace asio = boost::asio;

// How long nothing must have run in a context before it is taken for one that nobody runs: in steps, so that
// a process that was stopped meanwhile does not count.
constexpr auto step_of_wait = 100ms;
constexpr int steps_max = 20;

// What is known of an execution context.
class run_mark final : public asio::execution_context::service {
public:
    static asio::execution_context::id id;
    using key_type = run_mark;

    explicit run_mark(asio::execution_context& context) : service{context} {}

    // In this process: the child of a fork has none of its parent's threads.
    bool has_run() const noexcept { return process_ == ::getpid(); }

    // Waits until something has run in the context; false if nothing does.
    bool wait(asio::any_io_executor const& where) {
        std::shared_ptr<blocked_call> const probe = probe_for(where);
        for (int i = 0; i < steps_max; ++i)
            if (probe->wait_for(step_of_wait)) return true;
        return false;
    }

private:
    void shutdown() noexcept override {}

    // The threads that ask at once, and those that ask again, wait for the same one.
    std::shared_ptr<blocked_call> probe_for(asio::any_io_executor const& where) {
        std::lock_guard const lock{mutex_};
        if (probe_ != nullptr && !probe_->wait_for(0ms)) return probe_;
        probe_ = std::make_shared<blocked_call>();
        asio::post(where, [this, probe = probe_] {
            process_ = ::getpid();
            probe->end();
        });
        return probe_;
    }

    std::atomic<pid_t> process_ = 0;
    std::mutex mutex_;
    std::shared_ptr<blocked_call> probe_;
};
asio::execution_context::id run_mark::id;

// True if /proc does not say.
bool has_other_threads() {
    std::ifstream status{"/proc/self/status"};
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("Threads:")) return std::stoi(line.substr(8)) > 1;
    return true;
}

}  // namespace

errc check_wait(asio::any_io_executor const& where) {
    using asio::detail::scheduler;
    if (!where) return errc{};  // the operation fails at once
    auto& context = hosting::context_of(where);
    // An io_context and a thread_pool have one.
    auto* const threads =
        asio::has_service<scheduler>(context) ? &asio::use_service<scheduler>(context) : nullptr;
    if (threads != nullptr && threads->can_dispatch()) return errc::would_deadlock;
    auto& mark = asio::use_service<run_mark>(context);
    bool const is_stopped = threads != nullptr && threads->stopped();
    if (mark.has_run() && !is_stopped) return errc{};
    return has_other_threads() && mark.wait(where) ? errc{} : errc::would_deadlock;
}

void blocked_call::end() noexcept {
    std::lock_guard const lock{mutex_};
    is_ended_ = true;
    // Before the caller can go on, which destroys this.
    has_ended_.notify_all();
}

void blocked_call::wait() noexcept {
    std::unique_lock lock{mutex_};
    has_ended_.wait(lock, [this] { return is_ended_; });
}

bool blocked_call::wait_for(std::chrono::nanoseconds limit) noexcept {
    std::unique_lock lock{mutex_};
    // Not longer than the clock goes.
    constexpr std::chrono::nanoseconds most = std::chrono::hours{24 * 365};
    return has_ended_.wait_for(lock, std::min(limit, most), [this] { return is_ended_; });
}

}  // namespace rcverbs::detail
