// completion_queue.hpp — a completion queue and the channel that tells when it has something.
//
// The channel's descriptor is non-blocking and stays the channel's: who waits on it must let go of it before this
// object is destroyed, and must have acknowledged every event it took (acknowledge). One thread at a time.
#pragma once

#include <cstdint>
#include <span>

#include <rcverbs/error.hpp>

#include "verbs/handles.hpp"

namespace rcverbs::verbs {

class completion_queue {
public:
    completion_queue() = default;
    /// Makes a queue for at least `depth` completions.
    completion_queue(ibv_context* device, std::uint32_t depth, error_code& ec);

    bool is_open() const noexcept { return queue_ != nullptr; }
    ibv_cq* get() const noexcept { return queue_.get(); }
    /// The descriptor that becomes readable when an armed queue gets a completion.
    int descriptor() const noexcept { return channel_->fd; }

    /// Takes completions; returns how many, or -1 if the queue is broken. Source: ibv_poll_cq(3).
    int poll(std::span<ibv_wc> into) noexcept {
        return ibv_poll_cq(queue_.get(), static_cast<int>(into.size()), into.data());
    }
    /// Asks for one event for the next completion. What is in the queue already gives none: poll again afterwards.
    error_code arm() noexcept;
    /// Takes all events that the channel has and acknowledges them in one call, which takes a lock.
    void take_events() noexcept;
    /// Destroys the queue and the channel. REQUIRES: no queue pair uses it. A failure leaves them for ever.
    error_code destroy() noexcept;

private:
    channel_handle channel_;
    cq_handle queue_;
};

}  // namespace rcverbs::verbs
