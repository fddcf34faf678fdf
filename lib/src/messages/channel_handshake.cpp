// The handshake of a channel: connecting and accepting, with the hellos of both sides, until it is open
// or has been refused.
#include <boost/asio/error.hpp>

#include <algorithm>
#include <utility>

#include "messages/channel_core.hpp"
#include "probes/probe.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

wire::channel_hello channel_core::own_hello() const {
    wire::channel_hello h;
    h.mode = options_.mode;
    h.slot_bytes = options_.slot_bytes;
    h.receives = options_.receives;
    h.requests = requests_;
    return h;
}

wire::channel_hello channel_core::theirs() const {
    error_code ignored;
    return wire::decode_channel_hello(peer_hello(), ignored);
}

// Makes the memory and posts the receives, before the peer can send.
error_code channel_core::prepare() {
    connection_limits const limits = lower().limits();
    std::uint32_t const slots = options_.sends + machine::control_slots;
    if (limits.receive_queue_depth < options_.receives || limits.send_queue_depth < slots)
        return channel_errc::queues_too_small;
    if (error_code const ec = slots_.open(options_.receives, slots, options_.slot_bytes)) return ec;
    keep_for_messages(options_.receives + slots);
    for (std::uint32_t i = 0; i < options_.receives; ++i) repost(i);
    return {};
}

// Begins to connect or to accept, once.
error_code channel_core::begin(bool is_active, std::span<std::byte const> greeting) {
    if (state_ != state::idle) return errc::already_connected;
    std::size_t const own = is_active && identity() ? wire::channel_identity_bytes : 0;
    if (greeting.size() + own > wire::channel_greeting_bytes_max)
        return errc::private_data_too_large;
    state_ = state::connecting;
    own_greeting_.assign(greeting.begin(), greeting.end());
    return {};
}

void channel_core::connect(
    endpoint const& peer, std::vector<std::byte> greeting, control_handler handler
) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    enter(
        [this](endpoint const& to, std::vector<std::byte> const& own, waiter& w) {
            if (error_code const refused = begin(true, own)) deliver(std::move(w), refused);
            else handshake::connect(to, std::move(w));
        },
        peer,
        std::move(greeting),
        std::move(who)
    );
}

void channel_core::accept(std::vector<std::byte> greeting, control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    enter(
        [this](std::vector<std::byte> const& own, waiter& w) {
            if (error_code const refused = begin(false, own)) deliver(std::move(w), refused);
            else handshake::accept(std::move(w));
        },
        std::move(greeting),
        std::move(who)
    );
}

std::vector<std::byte> channel_core::hello(error_code refused) const {
    wire::channel_hello ours = own_hello();
    if (is_active()) ours.identity = identity();
    if (!refused) {
        ours.greeting = own_greeting_;
        return wire::encode(ours);
    }
    error_code foreign;
    auto const said = wire::decode_channel_hello(peer_hello(), foreign);
    ours.answer = foreign ? wire::verdict::malformed : wire::judge_request(ours, said);
    // Judged well, and refused all the same.
    if (ours.answer == wire::verdict::welcome) ours.answer = wire::verdict::busy;
    return wire::encode(ours);
}

error_code channel_core::judge(std::span<std::byte const> theirs) {
    error_code foreign;
    wire::channel_hello const h = wire::decode_channel_hello(theirs, foreign);
    if (foreign) return foreign;
    return is_active() ? wire::check_acceptance(own_hello(), h)
                       : wire::judgement<channel_errc>(wire::judge_request(own_hello(), h));
}

// Any other rejection is reported unchanged.
error_code channel_core::reason(std::span<std::byte const> theirs) const {
    error_code foreign;
    wire::channel_hello const h = wire::decode_channel_hello(theirs, foreign);
    return foreign ? error_code{} : wire::refusal<channel_errc>(h.answer);
}

bool channel_core::holds_back() {
    if (!waits_for_older(theirs())) return false;
    accept_limit_.start(options_.finish_timeout, [this] { go_on(errc::timed_out); });
    return true;
}

void channel_core::proceed_accept(error_code refused) {
    enter([this, refused] {
        accept_limit_.cancel();
        go_on(refused);
    });
}

error_code channel_core::on_established() {
    // The connection takes its receives from a shared queue.
    if (!early_.empty() && early_.front().code == errc::receives_are_shared)
        return errc::receives_are_shared;
    // Closed meanwhile.
    if (state_ != state::connecting) return asio::error::operation_aborted;
    open(theirs());
    RCVERBS_PROBE2(channel_open, this, lower().queue_pair_number());
    if (!early_.empty()) in_order([this] { take_early(); });
    return {};
}

void channel_core::on_result(error_code ec, bool is_of_connection) {
    if (!ec) return;
    if (is_of_connection && state_ == state::connecting) stop(ec);
    else end(ec, step::handshake, close_reason::refused);
    early_.clear();
}

// What has arrived before the channel was open, in its order; what arrives meanwhile waits behind
// it.
void channel_core::take_early() {
    if (early_.empty()) return;
    early_arrival const a = early_.front();
    if (early_.size() > 1) in_order([this] { take_early(); });
    early_.erase(early_.begin());
    process(a.slot, a.code, a.what);
}

void channel_core::open(wire::channel_hello const& peer) {
    state_ = state::open;
    peer_requests_ = peer.requests;
    // A peer that asks and does not fetch the answers must not decide how many this side keeps.
    std::uint64_t const large_max =
        requests_ > 0 ? options_.sends + 2 * std::uint64_t{requests_} : UINT64_MAX;
    machine_ = machine{
        {options_.receives,
         peer.receives,
         options_.sends,
         std::uint32_t{requests_} + peer.requests,
         is_active(),
         large_max}};
    std::size_t const around = wire::channel_head_bytes + (seals_messages() ? seal_bytes : 0);
    small_bytes_max_ =
        std::min(options_.slot_bytes, peer.slot_bytes) - static_cast<std::uint32_t>(around);
    on_open();
}

}  // namespace rcverbs::detail
