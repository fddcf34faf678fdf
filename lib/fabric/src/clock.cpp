#include "clock.hpp"

#include <dlfcn.h>
#include <sys/timerfd.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

namespace rcverbs::fabric::detail {

namespace {

using std::chrono::nanoseconds;

using get_time = int (*)(clockid_t, timespec*);
using set_timer = int (*)(int, int, itimerspec const*, itimerspec*);

// The function of the C library that is interposed here. dlsym returns its address as a pointer to
// an object: dlsym(3), NOTES.
template <class Function>
Function hidden(char const* name) noexcept {
    return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

int machine_time(clockid_t clock, timespec* out) noexcept {
    static get_time const next = hidden<get_time>("clock_gettime");
    return next(clock, out);
}

int machine_timer(int descriptor, int flags, itimerspec const* value, itimerspec* old) noexcept {
    static set_timer const next = hidden<set_timer>("timerfd_settime");
    return next(descriptor, flags, value, old);
}

struct virtual_clock {
    // Nanoseconds of CLOCK_MONOTONIC; negative: no virtual time.
    std::atomic<std::int64_t> now{-1};
    std::mutex mutex;
    std::map<int, std::int64_t> timers;  // descriptor → expiry time
};

virtual_clock& the_clock() noexcept {
    // Never destroyed: static objects may read the time.
    static virtual_clock* const instance = new virtual_clock;
    return *instance;
}

std::int64_t to_count(timespec const& t) noexcept {
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void expire(int descriptor) noexcept {
    itimerspec at_once{};
    at_once.it_value.tv_nsec = 1;
    static_cast<void>(machine_timer(descriptor, TFD_TIMER_ABSTIME, &at_once, nullptr));
}

}  // namespace

void start_virtual_time() {
    timespec t{};
    static_cast<void>(machine_time(CLOCK_MONOTONIC, &t));
    virtual_clock& c = the_clock();
    std::lock_guard const lock{c.mutex};
    c.timers.clear();
    c.now = to_count(t);
}

void stop_virtual_time() noexcept { the_clock().now = -1; }

void advance_virtual_time(nanoseconds by) {
    virtual_clock& c = the_clock();
    std::lock_guard const lock{c.mutex};
    c.now += by.count();
    for (auto it = c.timers.begin(); it != c.timers.end();) {
        if (it->second > c.now) {
            ++it;
            continue;
        }
        expire(it->first);
        it = c.timers.erase(it);
    }
}

std::optional<nanoseconds> next_timer() {
    virtual_clock& c = the_clock();
    std::lock_guard const lock{c.mutex};
    std::optional<nanoseconds> first;
    for (auto const& [descriptor, when] : c.timers) {
        nanoseconds const left{when - c.now};
        if (!first || left < *first) first = left;
    }
    return first;
}

}  // namespace rcverbs::fabric::detail

// --- interposed functions of the C library -------------------------------------------------------

extern "C" {

int clock_gettime(clockid_t clock, timespec* out) noexcept {
    using namespace rcverbs::fabric::detail;
    // Relaxed: the value orders nothing, and one thread writes it.
    std::int64_t const now =
        clock == CLOCK_MONOTONIC ? the_clock().now.load(std::memory_order_relaxed) : -1;
    if (now < 0) return machine_time(clock, out);
    out->tv_sec = now / 1'000'000'000;
    out->tv_nsec = now % 1'000'000'000;
    return 0;
}

int timerfd_settime(int descriptor, int flags, itimerspec const* value, itimerspec* old) noexcept {
    using namespace rcverbs::fabric::detail;
    virtual_clock& c = the_clock();
    if (c.now < 0) return machine_timer(descriptor, flags, value, old);
    std::lock_guard const lock{c.mutex};
    c.timers.erase(descriptor);
    std::int64_t const wanted = to_count(value->it_value);
    bool const is_absolute = (flags & TFD_TIMER_ABSTIME) != 0;
    std::int64_t const when = is_absolute ? wanted : c.now + wanted;
    if (wanted == 0 || when <= c.now) return machine_timer(descriptor, flags, value, old);
    itimerspec const disarmed{};
    int const result = machine_timer(descriptor, 0, &disarmed, old);
    if (result == 0) c.timers[descriptor] = when;
    return result;
}
}
