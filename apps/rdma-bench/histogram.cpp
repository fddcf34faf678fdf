#include "rdma-bench/histogram.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>

namespace rdma_bench {

void histogram::add(histogram const& other) noexcept {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    sum_ns_ += other.sum_ns_;
    min_ns_ = std::min(min_ns_, other.min_ns_);
    max_ns_ = std::max(max_ns_, other.max_ns_);
}

std::chrono::nanoseconds histogram::quantile(double share) const noexcept {
    if (total_ == 0) return {};
    if (share <= 0) return min();
    if (share >= 1) return max();
    auto const wanted = std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(total_)))
    );
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
        seen += counts_[i];
        // The class's upper end, so that at least `share` of the values do not exceed it.
        if (seen >= wanted)
            return std::chrono::nanoseconds{std::clamp(class_low(i + 1) - 1, min_ns_, max_ns_)};
    }
    return max();
}

std::vector<histogram::bin> histogram::bins() const {
    std::vector<bin> all;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
        if (counts_[i] > 0) all.push_back({class_low(i), class_low(i + 1) - 1, counts_[i]});
    }
    return all;
}

void histogram::write_percentiles(std::ostream& out) const {
    out << std::fixed << std::setw(12) << "Value" << std::setw(15) << "Percentile" << std::setw(12)
        << "TotalCount" << std::setw(15) << "1/(1-Percentile)"
        << "\n\n";
    std::uint64_t seen = 0;
    double squares = 0;
    for (bin const& b : bins()) {
        seen += b.count;
        double const share = static_cast<double>(seen) / static_cast<double>(total_);
        double const us = static_cast<double>(std::min(b.high_ns, max_ns_)) / 1000;
        double const middle_ns =
            (static_cast<double>(b.low_ns) + static_cast<double>(b.high_ns)) / 2;
        squares += (middle_ns - mean_ns()) * (middle_ns - mean_ns()) * static_cast<double>(b.count);
        out << std::setw(12) << std::setprecision(3) << us << std::setw(15) << std::setprecision(12)
            << share << std::setw(12) << seen;
        if (seen < total_) out << std::setw(15) << std::setprecision(2) << 1 / (1 - share);
        out << '\n';
    }
    double const deviation_us =
        total_ > 0 ? std::sqrt(squares / static_cast<double>(total_)) / 1000 : 0;
    out << std::setprecision(3) << "#[Mean    = " << std::setw(12) << mean_ns() / 1000
        << ", StdDeviation   = " << std::setw(12) << deviation_us << "]\n"
        << "#[Max     = " << std::setw(12) << static_cast<double>(max_ns_) / 1000
        << ", Total count    = " << std::setw(12) << total_ << "]\n"
        << "#[Buckets = " << std::setw(12) << 41 - class_bits
        << ", SubBuckets     = " << std::setw(12) << (2U << class_bits) << "]\n";
}

}  // namespace rdma_bench
