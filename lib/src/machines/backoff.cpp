#include "machines/backoff.hpp"

#include <algorithm>
#include <cmath>

#include <rcverbs/detail/timeouts.hpp>

namespace rcverbs::machines {

std::optional<std::chrono::milliseconds> backoff::next(double chance) noexcept {
    if (++failed_ == options_.attempts_max.value_or(0)) return std::nullopt;
    double const shifted = delay_ * (1.0 + options_.jitter * (2.0 * chance - 1.0));
    delay_ = std::min(delay_ * options_.factor, static_cast<double>(options_.delay_max.count()));
    // Bounded before it is converted, which would overflow.
    auto const longest = static_cast<double>(detail::timeout_max.count());
    return std::chrono::milliseconds{std::llround(std::min(shifted, longest))};
}

}  // namespace rcverbs::machines
