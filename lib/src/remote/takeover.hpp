// takeover.hpp — what a channel that loses a block keeps as long as it has a key to it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

namespace rcverbs::detail {

/// Calls its function when the last of those who have it lets go. Takeovers of the same block that come
/// later wait for it, too.
class takeover {
public:
    explicit takeover(std::function<void()> then) : then_{std::move(then)} {}
    takeover(takeover const&) = delete;
    takeover& operator=(takeover const&) = delete;
    ~takeover() {
        then_();
        // One behind the other and not one inside of the other: peers decide how many there are.
        waiting all = std::move(later_);
        while (!all.empty()) {
            std::shared_ptr<takeover> const next = std::move(all.front());
            all.pop_front();
            // Nobody else has it, so nothing that waits for it has to wait any more.
            if (next.use_count() == 1) next->let_go(all);
        }
    }

    /// Any thread.
    void add(std::shared_ptr<takeover> next) {
        std::lock_guard const lock{mutex_};
        later_.push_back(std::move(next));
    }

private:
    using waiting = std::list<std::shared_ptr<takeover>>;

    void let_go(waiting& to) {
        std::lock_guard const lock{mutex_};
        to.splice(to.begin(), later_);
    }

    std::function<void()> const then_;
    std::mutex mutex_;
    waiting later_;
};

}  // namespace rcverbs::detail
