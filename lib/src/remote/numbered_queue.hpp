// numbered_queue.hpp — what a program may take, in the order of arrival, also what comes back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

namespace rcverbs::detail {

template <class Value>
class numbered_queue {
public:
    struct entry {
        std::uint64_t number;
        Value value;
    };

    bool empty() const noexcept { return all_.empty(); }
    std::size_t size() const noexcept { return all_.size(); }
    void push(Value value) { all_.push_back({++last_, std::move(value)}); }
    /// At its place.
    void put_back(std::uint64_t number, Value value) {
        auto const behind =
            std::ranges::upper_bound(all_, number, std::ranges::less{}, &entry::number);
        all_.insert(behind, {number, std::move(value)});
    }
    /// REQUIRES: !empty().
    entry take_first() {
        entry first = std::move(all_.front());
        all_.pop_front();
        return first;
    }
    void clear() noexcept { all_.clear(); }

private:
    std::deque<entry> all_;
    std::uint64_t last_ = 0;
};

}  // namespace rcverbs::detail
