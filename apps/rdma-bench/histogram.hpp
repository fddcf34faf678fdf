// histogram.hpp — a histogram of durations in fixed memory.
//
// Log-linear: 512 equally wide classes for each power of two of nanoseconds, so a value read back
// is at most 1/512 (0.2 %) above the recorded one; below 512 ns values are exact. The range is 1 ns
// to 2^40 ns (18 minutes); longer durations count as 2^40 ns. The shape is HdrHistogram's. Not
// thread-safe.
#pragma once

#include <bit>
#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <vector>

namespace rdma_bench {

class histogram {
public:
    /// The greatest relative amount by which a value read back exceeds the recorded one.
    static constexpr double relative_error = 1.0 / 512;

    histogram() : counts_(class_index(value_max) + 1) {}

    /// Records one duration.
    void record(std::chrono::nanoseconds value) noexcept {
        std::uint64_t const ns = value.count() < 0 ? 0 : static_cast<std::uint64_t>(value.count());
        ++counts_[class_index(ns < value_max ? ns : value_max)];
        ++total_;
        sum_ns_ += ns;
        if (ns < min_ns_) min_ns_ = ns;
        if (ns > max_ns_) max_ns_ = ns;
    }
    /// Adds the other histogram's counts.
    void add(histogram const& other) noexcept;
    /// Removes all counts.
    void clear() noexcept { *this = histogram{}; }

    /// The number of recorded durations.
    std::uint64_t total() const noexcept { return total_; }
    /// The smallest value that `share` (0 to 1) of all recorded ones do not exceed; 0 if there are
    /// none. Exact for 0 and 1.
    std::chrono::nanoseconds quantile(double share) const noexcept;
    std::chrono::nanoseconds min() const noexcept {
        return std::chrono::nanoseconds{total_ > 0 ? min_ns_ : 0};
    }
    std::chrono::nanoseconds max() const noexcept { return std::chrono::nanoseconds{max_ns_}; }
    /// The exact mean.
    double mean_ns() const noexcept {
        return total_ > 0 ? static_cast<double>(sum_ns_) / static_cast<double>(total_) : 0;
    }

    /// One class with at least one count.
    struct bin {
        std::uint64_t low_ns;
        std::uint64_t high_ns;
        std::uint64_t count;
    };
    /// All non-empty classes, in ascending order.
    std::vector<bin> bins() const;

    /// Writes HdrHistogram's percentile distribution, in microseconds, for its plotters.
    void write_percentiles(std::ostream& out) const;

private:
    static constexpr unsigned class_bits = 9;
    static constexpr std::uint64_t value_max = (std::uint64_t{1} << 40) - 1;

    static constexpr std::size_t class_index(std::uint64_t ns) noexcept {
        if (ns < (1U << class_bits)) return ns;
        auto const power = static_cast<unsigned>(std::bit_width(ns)) - class_bits - 1;
        return (std::size_t{power} << class_bits) + (ns >> power);
    }
    static constexpr std::uint64_t class_low(std::size_t index) noexcept {
        if (index < (2U << class_bits)) return index;
        std::size_t const power = (index >> class_bits) - 1;
        return ((index & ((1U << class_bits) - 1)) + (1U << class_bits)) << power;
    }

    std::vector<std::uint64_t> counts_;
    std::uint64_t total_ = 0;
    std::uint64_t sum_ns_ = 0;
    std::uint64_t min_ns_ = ~std::uint64_t{0};
    std::uint64_t max_ns_ = 0;
};

}  // namespace rdma_bench
