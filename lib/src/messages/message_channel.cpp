#include <rcverbs/message_channel.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <algorithm>
#include <utility>

#include "messages/message_core.hpp"

namespace rcverbs {

// --- messages ------------------------------------------------------------------------------------

message::message() noexcept = default;

message::message(message&& other) noexcept
    : core_{std::move(other.core_)},
      slice_{std::exchange(other.slice_, mutable_slice{})},
      tag_{other.tag_},
      size_bytes_{other.size_bytes_},
      number_{other.number_},
      slot_{other.slot_},
      is_large_{other.is_large_},
      is_detached_{other.is_detached_},
      is_elsewhere_{other.is_elsewhere_},
      head_{std::exchange(other.head_, std::span<std::byte const>{})},
      own_{std::move(other.own_)} {}

message& message::operator=(message&& other) noexcept {
    if (this != &other) {
        if (core_ != nullptr) release();
        core_ = std::move(other.core_);
        slice_ = std::exchange(other.slice_, mutable_slice{});
        tag_ = other.tag_;
        size_bytes_ = other.size_bytes_;
        number_ = other.number_;
        slot_ = other.slot_;
        is_large_ = other.is_large_;
        is_detached_ = other.is_detached_;
        is_elsewhere_ = other.is_elsewhere_;
        head_ = std::exchange(other.head_, std::span<std::byte const>{});
        own_ = std::move(other.own_);
    }
    return *this;
}

message::~message() {
    if (core_ != nullptr) release();
}

void message::detach() {
    if (core_ != nullptr) core_->detach(*this);
}

boost::asio::any_io_executor message::executor() const { return core_->executor(); }

protection_domain message::domain() const { return core_->domain(); }

std::string message::peer_identity() const { return core_->peer_identity(); }

void message::start_take(
    message what, mutable_slices const& into, detail::control_handler handler
) {
    auto const core = what.core_;
    core->fetch(std::move(what), into, std::move(handler));
}

void message::release() noexcept {
    // The channel may end with this reference.
    auto const core = std::move(core_);
    slice_ = {};
    head_ = {};
    if (core != nullptr) core->release(*this);
    own_.clear();
}

namespace detail {

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
        .from("finish_timeout", options.finish_timeout, least)
        .from("withdraw_timeout", options.withdraw_timeout, least)
        .inside(protocol::problem_of(options.authentication));
    return check.problem();
}

// --- the members of channels ---------------------------------------------------------------------

void channel_base::cancel() {
    if (core_ != nullptr) core_->cancel();
}
void channel_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
failure channel_base::last_failure() const { return core_->last_failure(); }
std::vector<std::byte> channel_base::greeting() const { return core_->greeting(); }
std::string channel_base::peer_identity() const { return core_->peer_identity(); }
std::uint32_t channel_base::small_bytes_max() const noexcept { return core_->small_bytes_max(); }

void channel_base::start_connect(
    core_ptr const& core,
    endpoint const& peer,
    std::vector<std::byte> greeting,
    control_handler handler
) {
    core->connect(peer, std::move(greeting), std::move(handler));
}
void channel_base::start_accept(
    core_ptr const& core, std::vector<std::byte> greeting, control_handler handler
) {
    core->accept(std::move(greeting), std::move(handler));
}
void channel_base::start_fetch(
    core_ptr const& core, message what, mutable_slices const& into, control_handler handler
) {
    core->fetch(std::move(what), into, std::move(handler));
}
void channel_base::start_finish(core_ptr const& core, control_handler handler) {
    core->finish(std::move(handler));
}

}  // namespace detail

namespace {

std::shared_ptr<detail::message_core> make(
    connection over, message_channel_options const& options
) {
    detail::throw_if_refused(detail::problem_of(options));
    return protocol::make<detail::message_core>(std::move(over), options);
}

std::shared_ptr<detail::message_core> make(
    connection over, message_channel_options const& options, error_code& ec
) {
    if (!ec && !detail::problem_of(options).empty()) ec = errc::invalid_option;
    return ec ? nullptr : protocol::make<detail::message_core>(std::move(over), options);
}

detail::message_core& as_messages(detail::channel_core& core) {
    return static_cast<detail::message_core&>(core);
}

}  // namespace

message_channel_base::message_channel_base(connection over, message_channel_options const& options)
    : channel_base{make(std::move(over), options)} {}

message_channel_base::message_channel_base(
    connection over, message_channel_options const& options, error_code& ec
)
    : channel_base{make(std::move(over), options, ec)} {}

connection_options message_channel_base::needed(message_channel_options const& options) {
    connection_options all = options.connection;
    queue_pair_options& q = all.queue_pair;
    // Reads of large messages have places beside the sends.
    std::uint32_t const proofs = options.authentication.keys.is_empty() ? 0 : 1;
    std::uint32_t const sends = std::uint32_t{options.sends} + 3 + q.initiator_depth + proofs;
    q.send_queue_depth = std::max(q.send_queue_depth, sends);
    // All messages that can be held may be fetched at a time: one read each. All sends may be
    // answers that are written, which take more than one place.
    q.waiting_operations_max = std::max<std::uint32_t>(
        q.waiting_operations_max, std::uint32_t{options.receives} + options.sends
    );
    q.receive_queue_depth =
        std::max<std::uint32_t>(q.receive_queue_depth, options.receives + proofs);
    return all;
}

void message_channel_base::start_send(
    core_ptr const& core,
    detail::body_source const& body,
    std::uint64_t tag,
    detail::control_handler handler
) {
    as_messages(*core).send(body, tag, std::move(handler));
}
void message_channel_base::start_receive(core_ptr const& core, detail::message_handler handler) {
    as_messages(*core).receive(std::move(handler));
}
message_channel_statistics message_channel_base::statistics() const {
    return as_messages(*core()).statistics();
}

}  // namespace rcverbs
