// completion_queue.hpp — completion queues, and the completion channel that their events come by.
//
// A channel owns its descriptor, which is non-blocking. A waiter must release the descriptor before
// the channel is destroyed, and the queues are destroyed before their channel. One thread at a time.
#pragma once

#include <cstdint>
#include <span>

#include <rcverbs/error.hpp>

#include "verbs/handles.hpp"

namespace rcverbs::verbs {

class completion_channel {
public:
    completion_channel() = default;
    completion_channel(ibv_context* device, error_code& ec);

    bool is_open() const noexcept { return channel_ != nullptr; }
    ibv_comp_channel* get() const noexcept { return channel_.get(); }
    /// Becomes readable when an armed queue receives a completion.
    int descriptor() const noexcept { return channel_->fd; }
    /// Takes and acknowledges one event. Returns the context of its queue; null if no event is
    /// pending, which costs a system call, too. Source: ibv_get_cq_event(3).
    void* take_event() noexcept;
    /// Leaks it.
    void release() noexcept { static_cast<void>(channel_.release()); }

private:
    channel_handle channel_;
};

class completion_queue {
public:
    completion_queue() = default;
    /// Creates a queue for at least `depth` completions, whose events come by this channel and vector
    /// and have this context. Source: ibv_create_cq(3).
    completion_queue(
        ibv_context* device,
        completion_channel const& channel,
        void* context,
        std::uint32_t depth,
        std::uint32_t vector,
        error_code& ec
    );

    ibv_cq* get() const noexcept { return queue_.get(); }

    /// Polls completions; returns their number, or -1 if the queue is broken. Source:
    /// ibv_poll_cq(3).
    int poll(std::span<ibv_wc> into) noexcept {
        return ibv_poll_cq(queue_.get(), static_cast<int>(into.size()), into.data());
    }
    /// Arms the queue for one event at the next completion. Completions that are already in the
    /// queue raise no event: poll again after arming.
    error_code arm() noexcept;
    /// Destroys the queue, or leaks it if that fails. REQUIRES: no queue pair uses it.
    error_code destroy() noexcept;
    /// Leaks it.
    void release() noexcept { static_cast<void>(queue_.release()); }

private:
    cq_handle queue_;
};

}  // namespace rcverbs::verbs
