// clock.hpp — CLOCK_MONOTONIC and timerfds as the program sees them, while a stepped world exists.
//
// Asio's timers wait on a timerfd and read the steady clock. Both are C functions that this library defines in front of
// the C library's own; while no virtual time is set they pass every call on.
#pragma once

#include <chrono>
#include <optional>

namespace rcverbs::fabric::detail {

/// Time stands still from now on, and starts at the machine's present time.
void start_virtual_time();
/// The machine's clock again.
void stop_virtual_time() noexcept;
/// Moves the virtual time by this much, and lets the timers that are due by then expire.
void advance_virtual_time(std::chrono::nanoseconds by);
/// How far in the future the next timer expires; none if none is set.
std::optional<std::chrono::nanoseconds> next_timer();

}  // namespace rcverbs::fabric::detail
