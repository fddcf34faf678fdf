// completion_budget.hpp — which queue pairs may complete into one completion queue, so that it cannot
// overflow.
//
// A queue pair takes what it can have outstanding: the depths of its own work queues. The receives of a
// shared receive queue are in one completion queue at most once each, however many queue pairs consume
// them, so its depth is taken once. What was taken is given back when the queue pair is destroyed and
// its completions are polled. Pure logic: no I/O, no threads.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rcverbs::machines {

/// The completions that one queue pair can have outstanding.
struct completion_share {
    /// Of its own work queues.
    std::uint32_t own = 0;
    /// The shared receive queue, as a name only, and its depth. Null for none.
    void const* shared_queue = nullptr;
    std::uint32_t shared_depth = 0;
};

class completion_budget {
public:
    explicit completion_budget(std::uint32_t depth) noexcept : depth_{depth} {}

    std::uint32_t depth() const noexcept { return depth_; }
    std::uint32_t taken() const noexcept { return taken_; }
    /// The number of queue pairs that have a share.
    std::size_t users() const noexcept { return users_; }

    /// What a share takes now.
    std::uint32_t cost_of(completion_share const& s) const noexcept {
        bool const is_new = s.shared_queue != nullptr && find(s.shared_queue) == shared_.end();
        return s.own + (is_new ? s.shared_depth : 0);
    }
    bool has_room_for(completion_share const& s) const noexcept {
        return cost_of(s) <= depth_ - taken_;
    }
    /// REQUIRES: has_room_for(s).
    void take(completion_share const& s) {
        assert(has_room_for(s));
        std::uint32_t const cost = cost_of(s);
        if (s.shared_queue != nullptr) {
            auto const at = find(s.shared_queue);
            if (at == shared_.end()) {
                shared_.push_back({s.shared_queue, 1});
            } else {
                ++shared_[static_cast<std::size_t>(at - shared_.begin())].users;
            }
        }
        taken_ += cost;
        ++users_;
    }
    /// REQUIRES: it was taken.
    void give_back(completion_share const& s) noexcept {
        --users_;
        taken_ -= s.own;
        if (s.shared_queue == nullptr) return;
        auto const at = find(s.shared_queue);
        assert(at != shared_.end());
        auto& one = shared_[static_cast<std::size_t>(at - shared_.begin())];
        if (--one.users > 0) return;
        taken_ -= s.shared_depth;
        shared_.erase(at);
    }

private:
    struct shared {
        void const* queue;
        std::size_t users;
    };

    std::vector<shared>::const_iterator find(void const* queue) const noexcept {
        return std::find_if(shared_.begin(), shared_.end(), [queue](shared const& each) {
            return each.queue == queue;
        });
    }

    std::uint32_t depth_;
    std::uint32_t taken_ = 0;
    std::size_t users_ = 0;
    std::vector<shared> shared_;
};

}  // namespace rcverbs::machines
