// completion_queue.hpp — a completion queue and its completion channel.
//
// The channel owns its descriptor, which is non-blocking. A waiter must release the descriptor, and
// must have acknowledged all events with take_events(), before this object is destroyed. One thread
// at a time.
#pragma once

#include <cstdint>
#include <span>

#include <rcverbs/error.hpp>

#include "verbs/handles.hpp"

namespace rcverbs::verbs {

class completion_queue {
public:
    completion_queue() = default;
    /// Creates a queue for at least `depth` completions, whose events come by this vector.
    completion_queue(
        ibv_context* device, std::uint32_t depth, std::uint32_t vector, error_code& ec
    );

    bool is_open() const noexcept { return queue_ != nullptr; }
    ibv_cq* get() const noexcept { return queue_.get(); }
    /// Becomes readable when an armed queue receives a completion.
    int descriptor() const noexcept { return channel_->fd; }

    /// Polls completions; returns their number, or -1 if the queue is broken. Source:
    /// ibv_poll_cq(3).
    int poll(std::span<ibv_wc> into) noexcept {
        return ibv_poll_cq(queue_.get(), static_cast<int>(into.size()), into.data());
    }
    /// Arms the queue for one event at the next completion. Completions that are already in the
    /// queue raise no event: poll again after arming.
    error_code arm() noexcept;
    /// Takes and acknowledges one event; false if none is pending, which costs a system call, too.
    bool take_event() noexcept;
    /// The same with all pending events.
    void take_events() noexcept;
    /// Destroys the queue and the channel. If that fails, both are leaked. REQUIRES: no queue pair
    /// uses the queue.
    error_code destroy() noexcept;

private:
    channel_handle channel_;
    cq_handle queue_;
};

}  // namespace rcverbs::verbs
