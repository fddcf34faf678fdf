// leased_receives.hpp — which handler gets which message, if handlers may be cancelled while their
// receives stay posted.
//
//     start ──▶ waiting handlers, first come first served      posted receives, in the order of the
//                     │  ▲                                      messages, each with its memory
//              cancel │  │ adopt                                     │
//                     ▼  │                                           ▼
//               a posted receive more than handlers: an orphan ──▶ a message without a handler: kept
//
// A handler that starts while there is an orphan adopts it, and its own memory is not needed. A
// handler that starts while a message is kept gets the oldest one at once, and its own memory is
// posted instead. So no message is lost by a cancellation, and no more memory is posted and kept
// than handlers have waited at a time. A message that was on its way to a handler that was cancelled
// meanwhile comes back, as if it had just arrived.
//
// Pure logic: no I/O, no threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rcverbs::machines {

class leased_receives {
public:
    /// What a receive that starts does: post its memory and wait; wait for a receive that is
    /// posted, so that its memory is given back; or take the oldest kept message and post its
    /// memory.
    enum class start : std::uint8_t { post, adopt, take_kept };
    /// What a completed receive leads to: completes the handler that has waited longest; the message
    /// is kept; or nothing, for a receive that failed.
    enum class arrival : std::uint8_t { complete, keep, drop };

    start on_start() noexcept {
        if (kept_ > 0) {
            --kept_;
            ++posted_;
            return start::take_kept;
        }
        ++waiting_;
        if (posted_ >= waiting_) return start::adopt;
        ++posted_;
        return start::post;
    }

    /// The memory could not be posted.
    void on_refused(start what) noexcept {
        --posted_;
        if (what == start::post) --waiting_;
    }

    /// A waiting handler is cancelled.
    void on_cancel() noexcept { --waiting_; }

    arrival on_completion(bool is_failed) noexcept {
        --posted_;
        if (waiting_ > 0) {
            --waiting_;
            return arrival::complete;
        }
        if (is_failed) return arrival::drop;
        ++kept_;
        return arrival::keep;
    }

    /// A message comes back from a handler that has not taken it.
    arrival on_return() noexcept {
        if (waiting_ > 0) {
            --waiting_;
            return arrival::complete;
        }
        ++kept_;
        return arrival::keep;
    }

    std::size_t waiting() const noexcept { return waiting_; }
    std::size_t posted() const noexcept { return posted_; }
    std::size_t kept() const noexcept { return kept_; }

private:
    // Always: waiting_ <= posted_, and waiting_ is 0 if a message is kept.
    std::size_t waiting_ = 0;
    std::size_t posted_ = 0;
    std::size_t kept_ = 0;
};

}  // namespace rcverbs::machines
