#include "session/session_core.hpp"

#include <array>
#include <utility>

namespace rcverbs::detail {

session_core::session_core(connection over, session_options options)
    : handshake{std::move(over)},
      options_{std::move(options)} {
    authenticate(options_.authentication);
}

wire::hello session_core::own_hello() const noexcept {
    wire::hello h;
    h.mode = options_.mode;
    h.message_bytes_max = static_cast<std::uint32_t>(wire::message_bytes_max);
    h.receives = messages_each_way;
    return h;
}

// --- connecting ----------------------------------------------------------------------------------

// Makes the message buffers and posts the receives, before the peer can send.
error_code session_core::prepare() {
    constexpr std::size_t each = messages_each_way;
    constexpr std::size_t slot_bytes = wire::message_bytes_max + seal_bytes;
    static_assert(2 * each * slot_bytes <= session::locked_bytes);
    if (error_code const ec = slots_.open(each, each, slot_bytes)) return ec;
    keep_for_messages(2 * each);
    for (std::size_t i = 0; i < each; ++i)
        slots_.receive(i, [this, i](error_code ec, receive_result const& what, auto bytes) {
            on_received(ec, what, slots_.receive_slot(i).bytes().first(bytes.size()));
        });
    return {};
}

// The connection says why there is no second one.
void session_core::connect(endpoint const& peer, protocol::waiter<error_code> who) {
    if (!has_begun()) return handshake::connect(peer, std::move(who));
    lower().async_resolve(peer, ordered([this, w = std::move(who)](error_code ec) mutable {
                              deliver(std::move(w), ec);
                          }));
}

void session_core::accept(protocol::waiter<error_code> who) {
    if (!has_begun()) return handshake::accept(std::move(who));
    lower().async_accept({}, ordered([this, w = std::move(who)](error_code ec) mutable {
                             deliver(std::move(w), ec);
                         }));
}

std::vector<std::byte> session_core::hello(error_code refused) const {
    wire::hello ours = own_hello();
    error_code foreign;
    if (refused) ours.answer = verdict_on(peer_hello(), foreign);
    auto const bytes = wire::encode(ours);
    return {bytes.begin(), bytes.end()};
}

wire::verdict session_core::verdict_on(std::span<std::byte const> theirs, error_code& foreign)
    const noexcept {
    wire::hello const h = wire::decode_hello(theirs, foreign);
    return foreign ? wire::verdict::malformed : wire::judge_request(own_hello(), h);
}

error_code session_core::judge(std::span<std::byte const> theirs) {
    error_code foreign;
    wire::hello const h = wire::decode_hello(theirs, foreign);
    error_code why = foreign;
    if (!why && is_active()) why = wire::check_acceptance(own_hello(), h);
    else if (!why) why = wire::judgement<session_errc>(wire::judge_request(own_hello(), h));
    if (!why) peer_message_bytes_max_ = h.message_bytes_max;
    is_answer_wrong_ = is_active() && why;
    return why;
}

// Any other rejection is reported unchanged.
error_code session_core::reason(std::span<std::byte const> theirs) const {
    error_code foreign;
    wire::hello const h = wire::decode_hello(theirs, foreign);
    return foreign ? error_code{} : wire::check_refusal(h);
}

void session_core::on_result(error_code ec, bool is_of_connection) {
    if (is_answer_wrong_) fail(step::handshake, ec, close_reason::protocol_error);
    else handshake::on_result(ec, is_of_connection);
}

// --- messages to the peer ------------------------------------------------------------------------

void session_core::send(wire::message const& message, std::size_t slot, done then_call) {
    error_code ec;
    mutable_slice const place = slots_.send_slot(slot);
    std::size_t size = wire::encode(message, place.bytes().first(wire::message_bytes_max), ec);
    if (ec) return then_call(ec);
    size = seal(place.bytes(), size);
    lower().async_send(
        place.first(size), held([then_call = std::move(then_call)](error_code failed, std::size_t) {
            then_call(failed);
        })
    );
}

// A send can detect the peer's disconnect as well as a receive.
error_code session_core::fail_if_peer_left(step where, error_code ec) {
    if (ec != errc::peer_disconnected && ec != errc::not_connected) return ec;
    return fail(
        where,
        inward_end_.value_or(session_errc::peer_closed_early),
        close_reason::peer_closed_early
    );
}

void session_core::publish(std::vector<named_region> regions, done const& then_call) {
    wire::regions_message message;
    for (named_region& r : regions) message.regions.push_back({std::move(r.name), r.region});
    // A trial encoding rejects a message that does not fit before the state machine changes.
    std::array<std::byte, wire::message_bytes_max> trial;
    error_code ec;
    std::size_t const size = wire::encode(message, trial, ec);
    if (!ec && !lower().is_open()) ec = errc::not_connected;
    if (!ec && size > peer_message_bytes_max_) ec = errc::message_too_large;
    if (!ec && exchange_.resume(exchange::event::publish) == exchange::action::illegal)
        ec = errc::operation_in_progress;
    if (ec) return then_call(ec);
    send(message, 0, [this, then_call](error_code failed) {
        then_call(fail_if_peer_left(step::exchange, failed));
    });
}

void session_core::send_done(done const& then_call) {
    if (!lower().is_open()) {
        bool const has_left = lower().last_failure().reason == close_reason::peer_disconnected;
        if (!has_left) return then_call(inward_end_.value_or(errc::not_connected));
        return then_call(fail_if_peer_left(step::finish, errc::peer_disconnected));
    }
    if (exchange_.resume(exchange::event::finish) == exchange::action::illegal)
        return then_call(errc::operation_in_progress);
    // After MSG_DONE the peer revokes the access right that a keepalive needs. The next step has a
    // deadline of its own.
    lower().set_keepalive_interval({});
    send(wire::done_message{}, 1, [this, then_call](error_code ec) {
        if (ec != errc::peer_disconnected || is_active()) return on_done_sent(ec, then_call);
        // The connecting side disconnects as soon as it has both MSG_DONEs, so that its
        // acknowledgement of ours may be lost. When the connection has ended, every message that
        // arrived has been processed.
        lower().async_wait_disconnected(ordered([this, then_call, ec](error_code) {
            bool const has_both = exchange_.inward() == exchange::progress::done;
            on_done_sent(has_both ? error_code{} : ec, then_call);
        }));
    });
}

void session_core::on_done_sent(error_code ec, done const& then_call) {
    if (!ec) done_was_delivered_ = true;
    then_call(fail_if_peer_left(step::finish, ec));
}

// --- messages of the peer ------------------------------------------------------------------------

void session_core::on_received(
    error_code ec, receive_result const& what, std::span<std::byte> bytes
) {
    if (ec) return on_inward_end(ec);
    error_code bad;
    if (what.is_write)
        bad = session_errc::unexpected_message;  // with immediate data it is no message
    else bad = unseal(bytes);
    if (!bad) {
        wire::message message = wire::decode(bytes, bad);
        if (!bad) bad = take_message(std::move(message));
    }
    if (bad) inward_end_ = fail(step::exchange, bad, close_reason::protocol_error);
    look(regions_wait_);
    look(done_wait_);
}

// No message arrives any more.
void session_core::on_inward_end(error_code ec) {
    if (!inward_end_ && exchange_.inward() != exchange::progress::done) {
        bool const has_left = ec == errc::peer_disconnected;
        step const where =
            exchange_.inward() == exchange::progress::opening ? step::exchange : step::finish;
        inward_end_ =
            has_left ? fail(where, session_errc::peer_closed_early, close_reason::peer_closed_early)
                     : ec;
    }
    look(regions_wait_);
    look(done_wait_);
}

void session_core::on_end(failure const&) {
    failure const of_connection = lower().last_failure();
    bool const has_left = of_connection.reason == close_reason::peer_disconnected;
    error_code const why = has_left ? error_code{errc::peer_disconnected} : of_connection.code;
    on_inward_end(why ? why : boost::asio::error::operation_aborted);
}

void session_core::on_abandoned() noexcept {
    regions_wait_.waiting = {};
    done_wait_.waiting = {};
}

error_code session_core::take_message(wire::message message) {
    auto* const regions = std::get_if<wire::regions_message>(&message);
    auto const event =
        regions != nullptr ? exchange::event::regions_received : exchange::event::done_received;
    if (exchange_.resume(event) == exchange::action::protocol_error)
        return session_errc::unexpected_message;
    if (regions != nullptr) {
        std::vector<named_region> named;
        for (wire::region_descriptor& d : regions->regions) named.emplace_back(d.name, d.region);
        regions_ = peer_regions{std::move(named)};
        has_regions_ = true;
    } else {
        // The peer does not access our memory any more. A connection that has just ended has no
        // rights to revoke.
        error_code ec;
        lower().set_remote_access(access_flags::local_read, ec);
        if (ec && ec != errc::not_connected) return ec;
    }
    return {};
}

void session_core::start_wait(
    wait& w, step where, std::chrono::milliseconds timeout, done then_call
) {
    if (w.waiting) return then_call(errc::operation_in_progress);
    w.waiting = std::move(then_call);
    look(w);
    if (!w.waiting) return;
    w.limit.start(timeout, [this, &w, where] {
        end_wait(w, fail(where, errc::timed_out, close_reason::timed_out));
    });
}

bool session_core::has_come(wait const& w) const noexcept {
    return &w == &regions_wait_ ? has_regions_ : exchange_.inward() == exchange::progress::done;
}

// Ends a wait whose message has come, or cannot come any more. A message that arrived before the
// disconnect counts.
void session_core::look(wait& w) {
    if (!w.waiting) return;
    if (has_come(w)) return end_wait(w, {});
    if (inward_end_) return end_wait(w, *inward_end_);
    // No message follows MSG_DONE.
    if (exchange_.inward() == exchange::progress::done)
        end_wait(w, session_errc::unexpected_message);
}

void session_core::end_wait(wait& w, error_code result) {
    w.limit.cancel();
    std::exchange(w.waiting, {})(result);
}

void session_core::wait_regions(done then_call) {
    start_wait(regions_wait_, step::exchange, options_.exchange_timeout, std::move(then_call));
}

void session_core::wait_done(done then_call) {
    start_wait(done_wait_, step::finish, options_.finish_timeout, std::move(then_call));
}

// --- both, and the end ---------------------------------------------------------------------------

void session_core::exchange_regions(std::vector<named_region> own, done const& then_call) {
    publish(std::move(own), [this, then_call](error_code ec) {
        if (ec) return then_call(ec);
        wait_regions(then_call);
    });
}

void session_core::disconnect(done then_call) {
    auto finished = ordered([this, then_call = std::move(then_call)](error_code ec) {
        disconnect_limit_.cancel();
        on_disconnected(ec, then_call);
    });
    if (is_active() || !exchange_.is_complete())
        return lower().async_disconnect(std::move(finished));
    // The peer has received our MSG_DONE and disconnects. After the deadline this side disconnects.
    disconnect_limit_.start(options_.finish_timeout, [this] {
        fail(step::disconnect, errc::timed_out, close_reason::timed_out);
    });
    lower().async_wait_disconnected(std::move(finished));
}

void session_core::on_disconnected(error_code ec, done const& then_call) {
    if (ec) return then_call(ec);
    if (exchange_.is_complete() && done_was_delivered_)
        return then_call(complete() ? error_code{} : last_failure().code);
    then_call(fail(step::finish, session_errc::peer_closed_early, close_reason::peer_closed_early));
}

void session_core::finish(done then_call) {
    send_done([this, then_call = std::move(then_call)](error_code ec) {
        if (ec) return then_call(ec);
        wait_done([this, then_call](error_code failed) {
            if (failed) return then_call(failed);
            disconnect(then_call);
        });
    });
}

}  // namespace rcverbs::detail
