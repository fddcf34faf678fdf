// window_probe.hpp — whether a device checks the range of a memory window.
#pragma once

#include <chrono>

#include "verbs/device.hpp"

namespace rcverbs::verbs {

/// True if the device refuses an access beyond the range of a memory window, inside its region. It is
/// tried: two queue pairs of this process write into a window of half a region, and beyond it. False
/// also if the device has no windows, or the trial cannot be made, or is not over in time.
///
/// Blocks for a few round trips, and no longer than `patience`.
bool checks_window_range(device const& on, std::chrono::milliseconds patience) noexcept;

}  // namespace rcverbs::verbs
