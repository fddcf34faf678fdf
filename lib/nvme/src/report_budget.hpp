// report_budget.hpp — limits how many events are reported, so that no host fills a log.
//
// Pure logic: the caller passes the time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace rcverbs::nvme::detail {

class report_budget {
public:
    using clock = std::chrono::steady_clock;
    static constexpr std::chrono::seconds period{10};

    /// @param reports_max  In each period, which begins with its first event.
    explicit constexpr report_budget(std::uint32_t reports_max) noexcept
        : reports_max_{reports_max} {}

    /// An event. If it is to be reported: the number of events before it that were not.
    std::optional<std::uint64_t> admit(clock::time_point now) noexcept {
        if (!begin_ || now - *begin_ >= period) {
            begin_ = now;
            reported_ = 0;
        }
        if (reported_ == reports_max_) {
            ++missed_;
            return std::nullopt;
        }
        ++reported_;
        std::uint64_t const missed = missed_;
        missed_ = 0;
        return missed;
    }

private:
    std::uint32_t reports_max_;
    std::optional<clock::time_point> begin_;
    std::uint32_t reported_ = 0;
    std::uint64_t missed_ = 0;
};

}  // namespace rcverbs::nvme::detail
