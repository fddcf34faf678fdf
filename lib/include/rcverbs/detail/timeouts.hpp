// timeouts.hpp — time limits that do not overflow the clock. Internal.
#pragma once

#include <algorithm>
#include <chrono>

namespace rcverbs::detail {

/// No time limit of the library's is longer: what is set to milliseconds::max() must not end at once.
inline constexpr std::chrono::milliseconds timeout_max = std::chrono::hours{24 * 365};

constexpr std::chrono::milliseconds bounded(std::chrono::milliseconds limit) noexcept {
    return std::min(limit, timeout_max);
}

}  // namespace rcverbs::detail
