// gate.hpp — lets one thread at a time run short functions on an object's state. Nobody waits: what a
// thread cannot run, because another one is inside, is run by that one before it leaves.
//
//     free ── try_enter() ──▶ inside ── try_leave(), nothing was handed over ──▶ free
//                              ▲ │└── else run_handed_over() ──┐
//                              │ └─── close() ──▶ closed       │
//                              └───────────────────────────────┘
//
// What is handed over runs in the order in which it came, and before whoever enters later. A thread that
// is inside and tries to enter again cannot: what it hands over runs before it leaves. Any thread.
// test/memory_order shows that each memory order is needed.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <rcverbs/detail/order_task.hpp>

namespace rcverbs::hosting {

class gate {
public:
    gate() = default;
    gate(gate const&) = delete;
    gate& operator=(gate const&) = delete;

    bool try_enter() noexcept {
        std::uintptr_t expected = free;
        return state_.compare_exchange_strong(
            expected, inside, std::memory_order_acquire, std::memory_order_relaxed
        );
    }
    /// Has the thread that is inside run the task, which does not throw. False if there is none: then
    /// this thread is inside now, and has the task. Cleans the task up if the gate is closed.
    bool hand_over(order_task& what) noexcept {
        auto const pointer = reinterpret_cast<std::uintptr_t>(&what);
        std::uintptr_t seen = state_.load(std::memory_order_relaxed);
        for (;;) {
            if (seen == closed) {
                what.run(false);
                return true;
            }
            std::uintptr_t const wanted = seen == free ? inside : pointer;
            // The newest first.
            what.next_ = seen == free || seen == inside ? nullptr : to_task(seen);
            if (state_.compare_exchange_weak(
                    seen, wanted, std::memory_order_acq_rel, std::memory_order_relaxed
                ))
                return wanted == pointer;
        }
    }
    /// Leaves. False if something was handed over: then this thread is still inside. REQUIRES: it is.
    bool try_leave() noexcept {
        std::uintptr_t expected = inside;
        return state_.compare_exchange_strong(
            expected, free, std::memory_order_release, std::memory_order_relaxed
        );
    }
    /// Runs what was handed over. REQUIRES: this thread is inside.
    void run_handed_over() noexcept { take_handed_over(inside, true); }
    /// Lets nobody in any more, and cleans up what was handed over. REQUIRES: this thread is inside.
    void close() noexcept { take_handed_over(closed, false); }

private:
    static constexpr std::uintptr_t free = 0;
    static constexpr std::uintptr_t inside = 1;
    static constexpr std::uintptr_t closed = 2;

    static order_task* to_task(std::uintptr_t state) noexcept {
        return reinterpret_cast<order_task*>(state);
    }
    [[gnu::noinline]] void take_handed_over(std::uintptr_t next, bool is_wanted) noexcept {
        std::uintptr_t const seen = state_.exchange(next, std::memory_order_acquire);
        order_task* newest = seen == inside ? nullptr : to_task(seen);
        order_task* oldest = nullptr;
        while (newest != nullptr) {
            order_task* const t = newest;
            newest = std::exchange(t->next_, oldest);
            oldest = t;
        }
        while (oldest != nullptr) {
            order_task* const t = oldest;
            oldest = t->next_;
            t->run(is_wanted);
        }
    }

    // Free, inside, closed, or the newest task that was handed over to the thread that is inside.
    std::atomic<std::uintptr_t> state_{free};
};

}  // namespace rcverbs::hosting
