// clock.hpp — virtual CLOCK_MONOTONIC and timerfds while a stepped world exists.
//
// Asio's timers wait on a timerfd and read the steady clock. This library interposes both C
// functions; without virtual time it passes every call on to the C library.
#pragma once

#include <chrono>
#include <optional>

namespace rcverbs::fabric::detail {

/// Starts virtual time at the present time of the machine; only advance_virtual_time() moves it.
void start_virtual_time();
/// Returns to the clock of the machine.
void stop_virtual_time() noexcept;
/// Advances virtual time, and expires the timers that are due by then.
void advance_virtual_time(std::chrono::nanoseconds by);
/// The time until the next timer expires; none if no timer is set.
std::optional<std::chrono::nanoseconds> next_timer();

}  // namespace rcverbs::fabric::detail
