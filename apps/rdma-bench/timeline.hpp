// timeline.hpp — durations over time, in fixed memory: for each interval of a measurement how many, their
// mean and the longest.
//
// 64 intervals at most. When a measurement outgrows them, two neighbours become one, and intervals are
// twice as long. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace rdma_bench {

class timeline {
public:
    struct interval {
        std::uint64_t count = 0;
        std::uint64_t sum_ns = 0;
        std::uint64_t max_ns = 0;

        void add(interval const& other) noexcept {
            count += other.count;
            sum_ns += other.sum_ns;
            max_ns = std::max(max_ns, other.max_ns);
        }
        double mean_ns() const noexcept {
            return count > 0 ? static_cast<double>(sum_ns) / static_cast<double>(count) : 0;
        }
    };

    /// Records a duration that ended at this time after the beginning.
    void record(std::chrono::nanoseconds at, std::chrono::nanoseconds duration) noexcept {
        auto const index = [&] { return static_cast<std::uint64_t>(at.count()) >> shift_; };
        while (index() >= size) widen();
        std::uint64_t const ns =
            duration.count() < 0 ? 0 : static_cast<std::uint64_t>(duration.count());
        intervals_[index()].add({1, ns, ns});
    }
    /// Adds the durations of another one with the same beginning.
    void add(timeline other) noexcept;
    void clear() noexcept { *this = {}; }

    /// The length of an interval.
    std::chrono::nanoseconds width() const noexcept {
        return std::chrono::nanoseconds{std::int64_t{1} << shift_};
    }
    /// The intervals from the beginning to the last one with a duration.
    std::vector<interval> intervals() const;

private:
    static constexpr std::size_t size = 64;
    // 1.05 ms.
    static constexpr unsigned shift_min = 20;

    void widen() noexcept;

    unsigned shift_ = shift_min;
    std::array<interval, size> intervals_{};
};

}  // namespace rdma_bench
