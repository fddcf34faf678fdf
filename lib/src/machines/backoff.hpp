// backoff.hpp — how long to wait before the next attempt.
//
// Decides only; has no clock, no I/O, no threads, and is given its chance.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace rcverbs::machines {

class backoff {
public:
    struct terms {
        std::chrono::milliseconds first{100};
        std::chrono::milliseconds max{10'000};
        double factor = 2.0;
        double jitter = 0.25;
        std::uint32_t attempts_max = 0;
    };

    explicit backoff(terms const& t) noexcept : terms_{t}, delay_{static_cast<double>(t.first.count())} {}

    /// An attempt has failed: how long to wait for the next, or nothing if that was the last. `chance` is from 0.0 to 1.0, and
    /// 0.5 means no jitter.
    std::optional<std::chrono::milliseconds> next(double chance) noexcept;

private:
    terms terms_;
    double delay_;
    std::uint32_t failed_ = 0;
};

}  // namespace rcverbs::machines
