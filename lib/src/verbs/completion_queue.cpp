#include "verbs/completion_queue.hpp"

#include "verbs/errno_map.hpp"

namespace rcverbs::verbs {

completion_queue::completion_queue(
    ibv_context* device, std::uint32_t depth, std::uint32_t vector, error_code& ec
) {
    channel_.reset(ibv_create_comp_channel(device));
    ec = from_pointer(channel_.get());
    if (ec) return;
    ec = set_non_blocking(channel_->fd);
    if (ec) return;
    queue_.reset(ibv_create_cq(
        device, static_cast<int>(depth), nullptr, channel_.get(), static_cast<int>(vector)
    ));
    ec = from_pointer(queue_.get());
}

error_code completion_queue::arm() noexcept {
    return from_returned_code(ibv_req_notify_cq(queue_.get(), 0));
}

bool completion_queue::take_event() noexcept {
    ibv_cq* source = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &source, &context) != 0) return false;
    ibv_ack_cq_events(queue_.get(), 1);
    return true;
}

void completion_queue::take_events() noexcept {
    while (take_event()) {}
}

error_code completion_queue::destroy() noexcept {
    if (queue_ == nullptr) return {};
    error_code const ec = from_returned_code(ibv_destroy_cq(queue_.get()));
    static_cast<void>(queue_.release());
    if (ec) {
        static_cast<void>(channel_.release());
        return ec;
    }
    channel_.reset();
    return {};
}

}  // namespace rcverbs::verbs
