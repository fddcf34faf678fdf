// turns.hpp — work of which only so much is done at a time; the rest waits, first in, first out.
#pragma once

#include <cstddef>
#include <deque>
#include <utility>

namespace rcverbs::detail {

/// `Work` is a pointer; null for none. Its owner guards it with a lock.
template <class Work>
class turns {
public:
    using list = std::deque<Work>;

    explicit turns(std::size_t at_a_time) noexcept : left_{at_a_time} {}

    /// True if the work may start now; otherwise it waits until end() returns it.
    bool begin(Work const& one) {
        if (left_ == 0) {
            waiting_.push_back(one);
            return false;
        }
        --left_;
        return true;
    }
    /// Work that was started has ended; returns the next, which may start.
    Work end() noexcept {
        if (waiting_.empty()) {
            ++left_;
            return {};
        }
        Work next = std::move(waiting_.front());
        waiting_.pop_front();
        return next;
    }
    /// All that waits.
    list take_all() noexcept { return std::exchange(waiting_, {}); }

private:
    std::size_t left_;
    list waiting_;
};

}  // namespace rcverbs::detail
