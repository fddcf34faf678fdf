#include "rdma-bench/timeline.hpp"

#include <utility>

namespace rdma_bench {

void timeline::widen() noexcept {
    for (std::size_t i = 0; i < size; ++i) {
        interval const now = std::exchange(intervals_[i], {});
        intervals_[i / 2].add(now);
    }
    ++shift_;
}

void timeline::add(timeline other) noexcept {
    while (shift_ < other.shift_) widen();
    while (other.shift_ < shift_) other.widen();
    for (std::size_t i = 0; i < size; ++i) intervals_[i].add(other.intervals_[i]);
}

std::vector<timeline::interval> timeline::intervals() const {
    std::size_t used = size;
    while (used > 0 && intervals_[used - 1].count == 0) --used;
    return {intervals_.begin(), intervals_.begin() + static_cast<std::ptrdiff_t>(used)};
}

}  // namespace rdma_bench
