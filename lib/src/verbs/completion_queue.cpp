#include "verbs/completion_queue.hpp"

#include "verbs/errno_map.hpp"

namespace rcverbs::verbs {

completion_channel::completion_channel(ibv_context* device, error_code& ec)
    : channel_{ibv_create_comp_channel(device)} {
    ec = from_pointer(channel_.get());
    if (!ec) ec = set_non_blocking(channel_->fd);
    if (ec) channel_.reset();
}

void* completion_channel::take_event() noexcept {
    ibv_cq* source = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &source, &context) != 0) return nullptr;
    // At once, because unacknowledged events would block the destruction of the queue for ever.
    ibv_ack_cq_events(source, 1);
    return context;
}

completion_queue::completion_queue(
    ibv_context* device,
    completion_channel const& channel,
    void* context,
    std::uint32_t depth,
    std::uint32_t vector,
    error_code& ec
)
    : queue_{ibv_create_cq(
          device, static_cast<int>(depth), context, channel.get(), static_cast<int>(vector)
      )} {
    ec = from_pointer(queue_.get());
}

error_code completion_queue::arm() noexcept {
    return from_returned_code(ibv_req_notify_cq(queue_.get(), 0));
}

error_code completion_queue::destroy() noexcept {
    if (queue_ == nullptr) return {};
    return from_returned_code(ibv_destroy_cq(queue_.release()));
}

}  // namespace rcverbs::verbs
