// backoff.hpp — the delays between attempts: exponential backoff with jitter.
//
// Pure logic: no clock, no I/O, no threads; the caller supplies the random number.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include <rcverbs/backoff_options.hpp>

namespace rcverbs::machines {

class backoff {
public:
    explicit backoff(backoff_options const& o) noexcept
        : options_{o},
          delay_{static_cast<double>(o.delay_first.count())} {}

    /// To be called after a failed attempt. Returns the delay before the next attempt, or nothing
    /// if that was the last. `chance` is a random number from 0.0 to 1.0; 0.5 means no jitter.
    std::optional<std::chrono::milliseconds> next(double chance) noexcept;

private:
    backoff_options options_;
    double delay_;
    std::uint32_t failed_ = 0;
};

}  // namespace rcverbs::machines
