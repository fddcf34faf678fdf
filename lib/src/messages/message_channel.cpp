#include <rcverbs/message_channel.hpp>

#include <algorithm>
#include <utility>

#include "error/option_check.hpp"
#include "messages/channel_core.hpp"

namespace rcverbs {

// --- messages ------------------------------------------------------------------------------------

message::message() noexcept = default;

message::message(message&& other) noexcept
    : core_{std::move(other.core_)},
      slice_{std::exchange(other.slice_, local_slice{})},
      tag_{other.tag_},
      size_bytes_{other.size_bytes_},
      number_{other.number_},
      slot_{other.slot_},
      is_large_{other.is_large_},
      is_detached_{other.is_detached_},
      own_{std::move(other.own_)} {}

message& message::operator=(message&& other) noexcept {
    if (this != &other) {
        release();
        core_ = std::move(other.core_);
        slice_ = std::exchange(other.slice_, local_slice{});
        tag_ = other.tag_;
        size_bytes_ = other.size_bytes_;
        number_ = other.number_;
        slot_ = other.slot_;
        is_large_ = other.is_large_;
        is_detached_ = other.is_detached_;
        own_ = std::move(other.own_);
    }
    return *this;
}

message::~message() { release(); }

void message::detach() {
    if (core_ != nullptr) core_->detach(*this);
}

void message::release() noexcept {
    // The channel may end with this reference.
    auto const core = std::move(core_);
    slice_ = {};
    if (core != nullptr) core->release(*this);
    own_.clear();
}

namespace detail {

// --- calls from the header -----------------------------------------------------------------------

std::string problem_of(message_channel_options const& options) {
    constexpr std::chrono::milliseconds least{1};
    option_check check{"message_channel_options"};
    check
        .within(
            "receives", options.receives, wire::channel_receives_min, wire::channel_receives_max
        )
        .within("sends", options.sends, 1, 32767)
        .within(
            "slot_bytes",
            options.slot_bytes,
            wire::channel_slot_bytes_min,
            wire::channel_slot_bytes_max
        )
        .from("finish_deadline", options.finish_deadline, least)
        .from("withdraw_deadline", options.withdraw_deadline, least);
    return check.problem();
}

channel_calls::core_ptr channel_calls::make(
    connection over, message_channel_options const& options
) {
    throw_if_refused(problem_of(options));
    return channel_core::make(std::move(over), options);
}

connection_options channel_calls::needed(
    message_channel_options const& options, connection_options base
) {
    queue_pair_options& q = base.queue_pair;
    // Reads of large messages have places beside the sends.
    std::uint32_t const sends = std::uint32_t{options.sends} + 3 + q.initiator_depth;
    q.send_queue_depth = std::max(q.send_queue_depth, sends);
    // All messages that can be held may be fetched at a time: one read each.
    q.waiting_operations_max = std::max<std::uint32_t>(q.waiting_operations_max, options.receives);
    q.receive_queue_depth = std::max<std::uint32_t>(q.receive_queue_depth, options.receives);
    return base;
}

void channel_calls::start_connect(
    core_ptr const& core,
    endpoint const& peer,
    std::vector<std::byte> greeting,
    control_handler handler
) {
    core->connect(peer, std::move(greeting), std::move(handler));
}
void channel_calls::start_accept(
    core_ptr const& core, std::vector<std::byte> greeting, control_handler handler
) {
    core->accept(std::move(greeting), std::move(handler));
}
void channel_calls::start_send(
    core_ptr const& core,
    std::span<std::byte const> bytes,
    std::uint64_t tag,
    control_handler handler
) {
    core->send(bytes, tag, core->waiter_for(std::move(handler)));
}
void channel_calls::start_send(
    core_ptr const& core, local_slices const& source, std::uint64_t tag, control_handler handler
) {
    core->send(source, tag, core->waiter_for(std::move(handler)));
}
void channel_calls::start_receive(core_ptr const& core, message_handler handler) {
    core->receive(std::move(handler));
}
void channel_calls::start_fetch(
    core_ptr const& core, message what, local_slices const& into, control_handler handler
) {
    core->fetch(std::move(what), into, std::move(handler));
}
void channel_calls::start_finish(core_ptr const& core, control_handler handler) {
    core->begin_to_finish(std::move(handler));
    core->finish_sending();
}
void channel_calls::close(core_ptr const& core) noexcept { core->close(); }
std::vector<std::byte> channel_calls::greeting(core_ptr const& core) { return core->greeting(); }
close_reason channel_calls::reason(core_ptr const& core) { return core->reason(); }
failure channel_calls::last_failure(core_ptr const& core) { return core->last_failure(); }
message_channel_statistics channel_calls::statistics(core_ptr const& core) {
    return core->statistics();
}
std::uint32_t channel_calls::small_bytes_max(core_ptr const& core) noexcept {
    return core->small_bytes_max();
}

}  // namespace detail

}  // namespace rcverbs
