#include "machines/backoff.hpp"

#include <algorithm>
#include <cmath>

namespace rcverbs::machines {

std::optional<std::chrono::milliseconds> backoff::next(double chance) noexcept {
    if (++failed_ == options_.attempts_max.value_or(0)) return std::nullopt;
    double const shifted = delay_ * (1.0 + options_.jitter * (2.0 * chance - 1.0));
    delay_ = std::min(delay_ * options_.factor, static_cast<double>(options_.delay_max.count()));
    return std::chrono::milliseconds{std::llround(shifted)};
}

}  // namespace rcverbs::machines
