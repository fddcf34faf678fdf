// scheduler.hpp — the network's pending events in the order of their times.
//
// The seed decides ties. Guarded by the network's lock; actions run with the lock held.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <vector>

namespace rcverbs::fabric::detail {

using std::chrono::nanoseconds;

class scheduler {
public:
    explicit scheduler(std::uint64_t seed) : random_{seed} {}

    void at(nanoseconds when, std::function<void()> action) {
        events_.push({when, random_(), ++serial_, std::move(action)});
    }
    bool empty() const noexcept { return events_.empty(); }
    nanoseconds next() const noexcept { return events_.top().when; }

    /// Removes and returns the first action. REQUIRES: not empty.
    std::function<void()> take() {
        // top() is const to protect the order. The element is removed next, so moving from it is
        // safe.
        std::function<void()> action = std::move(const_cast<event&>(events_.top()).action);
        events_.pop();
        return action;
    }

    /// A number from `low` to `high`, both included.
    std::uint64_t pick(std::uint64_t low, std::uint64_t high) {
        return low >= high ? low : low + random_() % (high - low + 1);
    }

private:
    struct event {
        nanoseconds when;
        std::uint64_t tie;
        std::uint64_t serial;
        std::function<void()> action;

        // Reversed, so that the earliest event is the top of the queue.
        bool operator<(event const& other) const noexcept {
            if (when != other.when) return when > other.when;
            if (tie != other.tie) return tie > other.tie;
            return serial > other.serial;
        }
    };

    std::mt19937_64 random_;
    std::uint64_t serial_ = 0;
    std::priority_queue<event> events_;
};

}  // namespace rcverbs::fabric::detail
