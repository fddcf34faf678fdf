// backoff_options.hpp — the delays between a connector's attempts.
//
//     connector_options options;
//     options.backoff.delay_first = 50ms;
//     options.backoff.delay_max = 5s;
//
// Values; no threading rule.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace rcverbs {

/// The delays between attempts. Each is `factor` times the one before, up to `delay_max`, and is
/// changed at random by `jitter`, so that the clients of a restarted server do not all connect at
/// once.
struct backoff_options {
    /// The delay after the first attempt that failed. Above 0.
    std::chrono::milliseconds delay_first{100};
    /// The longest delay, before jitter. Not below delay_first.
    std::chrono::milliseconds delay_max{10'000};
    /// Each delay is this many times the one before. 1.0 to 100.0.
    double factor = 2.0;
    /// The largest random change of a delay, up or down, as a fraction of it. 0.0 to 1.0.
    double jitter = 0.25;
    /// Attempts of one async_connect(), at each endpoint. At least 1; empty for no limit.
    std::optional<std::uint32_t> attempts_max = {};
};

}  // namespace rcverbs
