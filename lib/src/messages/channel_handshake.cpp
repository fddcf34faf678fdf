// The handshake of a channel: connecting and accepting, with the hellos of both sides, until it is open
// or has been refused.
#include <boost/asio/error.hpp>

#include <algorithm>
#include <utility>

#include "messages/channel_core.hpp"
#include "probes/probe.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

wire::channel_hello channel_core::own_hello(std::vector<std::byte> greeting) const {
    wire::channel_hello h;
    h.mode = options_.mode;
    h.slot_bytes = options_.slot_bytes;
    h.receives = options_.receives;
    h.requests = requests_;
    h.greeting = std::move(greeting);
    return h;
}

// Makes the memory and posts the receives, before the peer can send.
error_code channel_core::prepare() {
    connection_limits const limits = lower().limits();
    std::uint32_t const slots = options_.sends + machine::control_slots;
    if (limits.receive_queue_depth < options_.receives || limits.send_queue_depth < slots)
        return channel_errc::queues_too_small;
    error_code ec;
    registered_buffer made{
        lower().domain(),
        std::size_t{options_.slot_bytes} * (options_.receives + slots),
        access_flags::local_write,
        ec};
    if (ec) return ec;
    keep_for_messages(options_.receives + slots);
    memory_ = std::move(made);
    all_slots_ = memory_.slice();
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
    is_active_ = is_active;
    return {};
}

void channel_core::connect(
    endpoint const& peer, std::vector<std::byte> greeting, control_handler handler
) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    enter(
        [this](endpoint const& to, std::vector<std::byte>& own, waiter& w) {
            start_connect(to, std::move(own), std::move(w));
        },
        peer,
        std::move(greeting),
        std::move(who)
    );
}

void channel_core::start_connect(
    endpoint const& peer, std::vector<std::byte> greeting, waiter who
) {
    if (error_code const refused = begin(true, greeting)) return deliver(std::move(who), refused);
    close_when_cancelled(who, self());
    wire::channel_hello ours = own_hello(std::move(greeting));
    ours.identity = identity();
    lower().async_resolve(
        peer,
        ordered([this, hello = wire::encode(ours), w = std::move(who)](error_code ec) mutable {
            if (!ec) ec = prepare();
            if (ec) return on_established(ec, std::move(w));
            lower().async_establish(
                hello, ordered([this, v = std::move(w)](error_code failed) mutable {
                    on_established(failed, std::move(v));
                })
            );
        })
    );
}

void channel_core::accept(std::vector<std::byte> greeting, control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    enter(
        [this](std::vector<std::byte>& own, waiter& w) {
            start_accept(std::move(own), std::move(w));
        },
        std::move(greeting),
        std::move(who)
    );
}

void channel_core::start_accept(std::vector<std::byte> greeting, waiter who) {
    error_code foreign;
    wire::channel_hello const theirs = wire::decode_channel_hello(lower().private_data(), foreign);
    if (error_code const refused = begin(false, greeting)) return deliver(std::move(who), refused);
    close_when_cancelled(who, self());
    wire::channel_hello ours = own_hello(std::move(greeting));
    ours.answer = foreign ? wire::verdict::malformed : wire::judge_request(ours, theirs);
    error_code why;
    if (ours.answer != wire::verdict::welcome) {
        why = foreign ? foreign : wire::judgement<channel_errc>(ours.answer);
        refuse(ours, why);
    }
    held_back_.emplace(held_back{std::move(ours), std::move(who)});
    if (why || !holds_back(theirs)) return finish_accept(why);
    accept_limit_.start(options_.finish_timeout, [this] { proceed_accept(errc::timed_out); });
}

void channel_core::proceed_accept(error_code refused) {
    enter([this, refused] {
        accept_limit_.cancel();
        finish_accept(refused);
    });
}

// Accepts, unless the peer has been refused, or is now.
void channel_core::finish_accept(error_code why) {
    std::optional<held_back> mine;
    mine.swap(held_back_);
    if (!mine) return;  // the channel has ended meanwhile
    if (why && mine->ours.answer == wire::verdict::welcome) {
        mine->ours.answer = wire::verdict::busy;
        refuse(mine->ours, why);
    }
    if (!why) why = prepare();
    if (why) return on_established(why, std::move(mine->who));
    lower().async_accept(
        wire::encode(mine->ours), ordered([this, w = std::move(mine->who)](error_code ec) mutable {
            on_established(ec, std::move(w));
        })
    );
}

// Rejects the peer with a verdict.
void channel_core::refuse(wire::channel_hello ours, error_code& why) {
    ours.greeting.clear();
    error_code ignored;
    lower().reject(wire::encode(ours), ignored);
    if (ignored == errc::not_connected) why = ignored;  // there is no request
}

void channel_core::on_established(error_code ec, waiter who) {
    // Then the connection's own failure says at which step.
    bool const is_of_connection = ec && ec == lower().last_failure().code;
    error_code foreign;
    wire::channel_hello const theirs = wire::decode_channel_hello(lower().private_data(), foreign);
    // The reason of a channel's rejection is in its hello; any other is reported unchanged.
    bool const has_reason = ec == cm_errc::rejected_by_peer && !foreign;
    if (has_reason) ec = wire::refusal<channel_errc>(theirs.answer);
    if (!ec) ec = foreign ? foreign : wire::check_acceptance(own_hello({}), theirs);
    // The connection takes its receives from a shared queue.
    bool const are_shared = !early_.empty() && early_.front().code == errc::receives_are_shared;
    if (!ec && are_shared) ec = errc::receives_are_shared;
    // Closed meanwhile.
    if (!ec && state_ != state::connecting) ec = asio::error::operation_aborted;
    if (ec && is_of_connection && !has_reason && state_ == state::connecting) stop(ec);
    else if (ec) end(ec, step::handshake, close_reason::refused);
    else open(theirs);
    if (!ec) RCVERBS_PROBE2(channel_open, this, lower().queue_pair_number());
    if (ec) early_.clear();
    if (!early_.empty()) in_order([this] { take_early(); });
    deliver(std::move(who), ec);
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

void channel_core::open(wire::channel_hello const& theirs) {
    state_ = state::open;
    peer_requests_ = theirs.requests;
    // A peer that asks and does not fetch the answers must not decide how many this side keeps.
    std::uint64_t const large_max =
        requests_ > 0 ? options_.sends + 2 * std::uint64_t{requests_} : UINT64_MAX;
    machine_ = machine{
        {options_.receives,
         theirs.receives,
         options_.sends,
         std::uint32_t{requests_} + theirs.requests,
         is_active_,
         large_max}};
    small_bytes_max_ = std::min(options_.slot_bytes, theirs.slot_bytes) -
                       static_cast<std::uint32_t>(wire::channel_head_bytes);
    on_open();
}

}  // namespace rcverbs::detail
