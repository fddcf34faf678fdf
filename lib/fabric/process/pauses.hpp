// pauses.hpp — threads that sleep for a short time and then look again, of a program in stepped time.
//
// The stepper takes the next step when all threads of all processes wait. A thread that sleeps for a short time, or
// polls an empty queue, is only done with a step when it has looked after it: a pause that began before it is no rest.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

namespace rcverbs::fabric::detail {

class pauses {
public:
    /// Those of this process, for ever.
    static pauses& instance() noexcept;

    void start() noexcept { is_on_ = true; }
    // Relaxed: it is set before the first step, and not again.
    bool is_on() const noexcept { return is_on_.load(std::memory_order_relaxed); }
    /// A step has been taken.
    void end_step(std::uint64_t step);
    /// True if a pause began before the last step.
    bool is_restless();
    /// A thread polls an empty queue: the second time in one step it rests until the next one, at most a
    /// millisecond.
    void on_empty_poll();

    /// Calls `sleep`, which takes a short time.
    template <class Sleep>
    auto during(Sleep sleep) {
        begin();
        auto const result = sleep();
        end();
        return result;
    }

private:
    void begin();
    void end();

    std::atomic<bool> is_on_{false};
    std::mutex mutex_;
    std::condition_variable stepped_;
    std::uint64_t step_ = 0;
    std::multiset<std::uint64_t> begun_;
};

}  // namespace rcverbs::fabric::detail
