#include "pauses.hpp"

#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

namespace rcverbs::fabric::detail {

namespace {

// A sleep of at most this is for looking again. A longer one is a rest.
constexpr std::chrono::nanoseconds pause_max = std::chrono::milliseconds{100};
constexpr std::chrono::milliseconds poll_rest_max{1};
constexpr unsigned polls_before_rest = 2;

thread_local std::uint64_t begun_at = 0;

template <class Function>
Function next(char const* name) noexcept {
    return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool is_pause(timespec const* time) noexcept {
    return pauses::instance().is_on() && time != nullptr && time->tv_sec == 0 &&
           time->tv_nsec <= pause_max.count();
}

}  // namespace

pauses& pauses::instance() noexcept {
    static auto* const all = new pauses;
    return *all;
}

void pauses::end_step(std::uint64_t step) {
    {
        std::lock_guard const lock{mutex_};
        step_ = step;
    }
    stepped_.notify_all();
}

bool pauses::is_restless() {
    std::lock_guard const lock{mutex_};
    return !begun_.empty() && *begun_.begin() < step_;
}

void pauses::begin() {
    std::lock_guard const lock{mutex_};
    begun_at = step_;
    begun_.insert(begun_at);
}

void pauses::end() {
    std::lock_guard const lock{mutex_};
    begun_.erase(begun_.find(begun_at));
}

void pauses::on_empty_poll() {
    thread_local std::uint64_t polled_in = 0;
    thread_local unsigned polls = 0;
    std::unique_lock lock{mutex_};
    if (polled_in != step_) {
        polled_in = step_;
        polls = 0;
    }
    if (++polls < polls_before_rest) return;
    auto const mine = begun_.insert(polled_in);
    stepped_.wait_for(lock, poll_rest_max, [this] { return step_ != polled_in; });
    begun_.erase(mine);
}

}  // namespace rcverbs::fabric::detail

extern "C" {

using rcverbs::fabric::detail::is_pause;
using rcverbs::fabric::detail::next;
using rcverbs::fabric::detail::pauses;

int clock_nanosleep(clockid_t clock, int flags, timespec const* time, timespec* left) {
    static auto const real = next<decltype(&clock_nanosleep)>("clock_nanosleep");
    auto const sleep = [=] { return real(clock, flags, time, left); };
    return flags == 0 && is_pause(time) ? pauses::instance().during(sleep) : sleep();
}

int nanosleep(timespec const* time, timespec* left) {
    static auto const real = next<decltype(&nanosleep)>("nanosleep");
    auto const sleep = [=] { return real(time, left); };
    return is_pause(time) ? pauses::instance().during(sleep) : sleep();
}

int usleep(useconds_t microseconds) {
    constexpr useconds_t in_a_second = 1'000'000;
    timespec const time{
        static_cast<time_t>(microseconds / in_a_second),
        static_cast<long>(microseconds % in_a_second) * 1000};
    return nanosleep(&time, nullptr);
}
}
