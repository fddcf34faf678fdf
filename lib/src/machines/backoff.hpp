// backoff.hpp — how long to wait before the next attempt.
//
// Decides only; has no clock, no I/O, no threads, and is given its chance.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <rcverbs/backoff_options.hpp>

namespace rcverbs::machines {

class backoff {
public:
    explicit backoff(backoff_options const& o) noexcept : options_{o}, delay_{static_cast<double>(o.delay_first.count())} {}

    /// An attempt has failed: how long to wait for the next, or nothing if that was the last. `chance` is from 0.0 to 1.0, and
    /// 0.5 means no jitter.
    std::optional<std::chrono::milliseconds> next(double chance) noexcept;

private:
    backoff_options options_;
    double delay_;
    std::uint32_t failed_ = 0;
};

}  // namespace rcverbs::machines
