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

namespace rcverbs {

/// How long to wait between attempts: each time longer by `factor`, up to `delay_max`, and a little
/// more or less, so that the clients of a server that comes back do not come all at once.
struct backoff_options {
    /// After the first attempt that failed. Above 0.
    std::chrono::milliseconds delay_first{100};
    /// The longest, before jitter. Not below delay_first.
    std::chrono::milliseconds delay_max{10'000};
    /// 1.0 to 100.0.
    double factor = 2.0;
    /// How far a delay may be off, as a part of it: 0.0 to 1.0.
    double jitter = 0.25;
    /// Attempts of one async_connect(); 0 for no limit.
    std::uint32_t attempts_max = 0;
};

}  // namespace rcverbs
