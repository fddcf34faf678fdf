// scheduler.hpp — the network's clock and its list of things to come, in the order of their times.
//
// Ties are broken by the seed. Guarded by the network's lock; actions run with the lock held.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <vector>

namespace rcverbs::fabric::detail {

using nanoseconds = std::chrono::nanoseconds;

class scheduler {
public:
    explicit scheduler(std::uint64_t seed) : random_{seed} {}

    void at(nanoseconds when, std::function<void()> action) {
        events_.push({when, random_(), ++serial_, std::move(action)});
    }
    bool empty() const noexcept { return events_.empty(); }
    nanoseconds next() const noexcept { return events_.top().when; }

    /// Takes the first one out. REQUIRES: there is one.
    std::function<void()> take() {
        // The top is const only because of its place in the order, which ends here.
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

        bool operator<(event const& other) const noexcept {  // the queue's top is the greatest: the earliest
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
