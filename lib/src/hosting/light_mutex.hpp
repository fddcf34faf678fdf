// light_mutex.hpp — a mutex for short, rarely contended sections: one instruction each way.
//
// A connection takes its lock about three times per operation, nearly always on its own polling
// thread. The function calls behind std::mutex would cost more there than the rest of the
// bookkeeping. A thread that finds the mutex locked sleeps in the kernel. Not recursive, not fair,
// no priority inheritance. Any thread. test/memory_order shows that each memory order is needed.
#pragma once

#include <atomic>

namespace rcverbs::hosting {

class light_mutex {
public:
    light_mutex() = default;
    light_mutex(light_mutex const&) = delete;
    light_mutex& operator=(light_mutex const&) = delete;

    void lock() noexcept {
        if (!try_lock()) wait();
    }
    bool try_lock() noexcept {
        int expected = free;
        return word_.compare_exchange_strong(
            expected, taken, std::memory_order_acquire, std::memory_order_relaxed
        );
    }
    void unlock() noexcept {
        if (word_.exchange(free, std::memory_order_release) == awaited) wake();
    }

private:
    static constexpr int free = 0;
    static constexpr int taken = 1;
    static constexpr int awaited = 2;

    // A thread that has waited locks it as `awaited`, because other threads may still wait. One
    // wake-up too many does no harm.
    [[gnu::noinline]] void wait() noexcept {
        while (word_.exchange(awaited, std::memory_order_acquire) != free) {
            word_.wait(awaited, std::memory_order_relaxed);
        }
    }

    [[gnu::noinline]] void wake() noexcept { word_.notify_one(); }

    std::atomic<int> word_{free};
};

/// Holds a light_mutex until unlock() or its own destruction. Not std::unique_lock, because the
/// checks and exceptions of that would not be inlined.
class light_lock {
public:
    explicit light_lock(light_mutex& mutex) noexcept : mutex_{&mutex} { mutex.lock(); }
    light_lock(light_lock const&) = delete;
    light_lock& operator=(light_lock const&) = delete;
    ~light_lock() {
        if (mutex_ != nullptr) mutex_->unlock();
    }
    /// REQUIRES: it is held.
    void unlock() noexcept {
        mutex_->unlock();
        mutex_ = nullptr;
    }

private:
    light_mutex* mutex_;
};

}  // namespace rcverbs::hosting
