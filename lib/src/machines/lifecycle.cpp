#include "machines/lifecycle.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace rcverbs::machines {

namespace {

using state = lifecycle::state;
using event_kind = lifecycle::event_kind;
using action = lifecycle::action;
using deadline = lifecycle::deadline;
using answer = lifecycle::answer;

struct rule {
    state from;
    event_kind on;
    state to;
    action then;
    deadline until;
};

// The regular transitions. resume() handles all other events, among them those that end a
// connection.
constexpr std::array rules{
    rule{
        state::idle,
        event_kind::resolve,
        state::resolving_address,
        action::resolve_address,
        deadline::resolve_address},
    rule{
        state::idle,
        event_kind::resolve_and_connect,
        state::resolving_address,
        action::resolve_address,
        deadline::resolve_address},
    rule{
        state::resolving_address,
        event_kind::address_resolved,
        state::resolving_route,
        action::resolve_route,
        deadline::resolve_route},
    rule{
        state::resolving_route,
        event_kind::route_resolved,
        state::making_queue_pair,
        action::make_queue_pair,
        deadline::none},
    rule{
        state::idle,
        event_kind::prepare,
        state::making_queue_pair,
        action::make_queue_pair,
        deadline::same},
    rule{
        state::making_queue_pair,
        event_kind::queue_pair_made,
        state::ready,
        action::none,
        deadline::same},
    rule{state::ready, event_kind::connect, state::connecting, action::connect, deadline::connect},
    rule{state::ready, event_kind::establish, state::opening, action::open, deadline::same},
    rule{state::requested, event_kind::accept, state::accepting, action::accept, deadline::connect},
    rule{state::connecting, event_kind::established, state::opening, action::open, deadline::none},
    rule{state::accepting, event_kind::established, state::opening, action::open, deadline::none},
    rule{state::opening, event_kind::opened, state::open, action::none, deadline::same},
    rule{
        state::disconnecting,
        event_kind::drained,
        state::awaiting_peer,
        action::none,
        deadline::same},
};

// True for the errors that posted work completes with when the peer disconnects.
bool follows_from_leaving(error_code ec) noexcept {
    return ec == wc_errc::flushed || ec == wc_errc::retry_exceeded ||
           ec == wc_errc::rnr_retry_exceeded;
}

}  // namespace

answer lifecycle::resume(event const& e) noexcept {
    auto const rule = std::find_if(rules.begin(), rules.end(), [&](auto const& r) {
        return r.from == state_ && r.on == e.what;
    });
    if (rule != rules.end()) {
        state_ = rule->to;
        answer a{rule->then, rule->until};
        if (e.what == event_kind::resolve_and_connect) connects_at_once_ = true;
        if (e.what == event_kind::prepare) is_out_of_band_ = true;
        if (e.what == event_kind::address_resolved) a.done = step::resolve_address;
        if (e.what == event_kind::route_resolved) a.done = step::resolve_route;
        if (state_ == state::open) {
            a.done = is_passive_ ? step::accept : step::connect;
            a.setup = error_code{};
        }
        if (state_ == state::ready) {
            if (connects_at_once_) return resume({event_kind::connect});
            a.setup = error_code{};
        }
        return a;
    }
    switch (e.what) {
    // Requests that are not due.
    case event_kind::resolve:
    case event_kind::resolve_and_connect:
    case event_kind::prepare: return {.setup = make_error_code(errc::already_connected)};
    case event_kind::connect:
    case event_kind::establish: return {.setup = make_error_code(errc::not_connected)};
    case event_kind::accept:
        return {.setup = failure_.code ? failure_.code : make_error_code(errc::not_connected)};
    case event_kind::reject:
        if (state_ != state::requested) return {};
        note(step::accept, {e.what}, close_reason::refused);
        return stop(action::reject);

    case event_kind::disconnect:
        if (state_ == state::ended) return {.disconnect = end_code()};
        if (state_ > state::open) return {};  // completes when the connection has ended
        if (state_ != state::open) return {.disconnect = make_error_code(errc::not_connected)};
        note(step::disconnect, {e.what}, close_reason::closed_locally);
        if (is_out_of_band_) return stop(action::stop);
        state_ = state::disconnecting;
        return {action::stop, deadline::disconnect};
    case event_kind::close:
    case event_kind::violated: return on_close(e);

    case event_kind::failed:
        // An idle connection has no step in progress that could fail.
        if (state_ >= state::open || state_ == state::idle) return {};
        note(
            e.where.value_or(present_step()),
            e,
            // In `opening` the peer has accepted already, so an error of the queue pair is no
            // refusal.
            state_ == state::opening && !e.where ? close_reason::transport_error
                                                 : close_reason::refused
        );
        return stop(action::stop, e.code);

    case event_kind::deadline:
        switch (state_) {
        case state::idle:
        case state::open:
        case state::finishing:
        case state::ended: return {};
        case state::disconnecting:
        case state::awaiting_peer:
            // The peer did not answer in time, so this is not an orderly end.
            replace(step::disconnect, {e.what, errc::timed_out}, close_reason::timed_out);
            if (state_ == state::awaiting_peer) return finish();
            state_ = state::draining;
            return {action::none, deadline::drain};
        case state::draining: return finish();
        default:
            note(present_step(), {e.what, errc::timed_out}, close_reason::timed_out);
            return stop(action::stop, make_error_code(errc::timed_out));
        }

    case event_kind::peer_gone:
        switch (state_) {
        case state::open:
            note(
                step::transfer,
                {e.what, errc::peer_disconnected, e.status},
                close_reason::peer_disconnected
            );
            return stop(action::stop);
        case state::disconnecting: state_ = state::draining; return {action::none, deadline::drain};
        case state::awaiting_peer: return finish();
        case state::draining:
        case state::finishing:
        case state::ended: return {};
        default: return resume({event_kind::failed, errc::peer_disconnected, e.status});
        }
    case event_kind::work_failed: return on_work_failed(e);
    case event_kind::stopped: return on_stopped();
    case event_kind::broken:
        if (state_ == state::ended) return {};
        forget_inferred();
        note(step::transfer, e, e.reason);
        return is_live() ? stop(action::stop) : answer{};

    case event_kind::drained: return state_ == state::draining ? finish() : answer{};
    case event_kind::kept:
        if (state_ != state::finishing) return {};
        replace(step::drain, {e.what, errc::not_drained}, close_reason::transport_error);
        return end();
    case event_kind::finished: return state_ == state::finishing ? end() : answer{};
    case event_kind::gone:
        if (reason_ == close_reason::open) reason_ = close_reason::closed_locally;
        state_ = state::ended;
        return {};

    case event_kind::address_resolved:
    case event_kind::route_resolved:
    case event_kind::queue_pair_made:
    case event_kind::established:
    case event_kind::opened: return {};
    }
    return {};
}

answer lifecycle::on_close(event const& e) noexcept {
    if (state_ == state::ended) return {};
    bool const is_ours = e.what == event_kind::close;
    // If cancelling an operation caused the close (`code` is set), the failed step is the transfer.
    step const where = is_ours && !e.code ? step::disconnect : step::transfer;
    note(where, e, is_ours ? close_reason::closed_locally : close_reason::protocol_error);
    answer a;
    switch (state_) {
    case state::requested: a = stop(action::reject); break;
    case state::disconnecting:
        state_ = state::draining;
        a.until = deadline::drain;
        break;
    case state::awaiting_peer: a = finish(); break;
    case state::draining:
    case state::finishing:
    case state::ended: break;
    default: a = stop(action::stop);
    }
    // close() aborts a pending disconnect.
    if (is_ours && !e.code) a.disconnect = error_code{boost::asio::error::operation_aborted};
    return a;
}

answer lifecycle::on_work_failed(event const& e) noexcept {
    // During setup the connection manager moves the queue pair to the error state if the peer
    // rejects the connection. The flushed work names no cause then; a later event does.
    if (e.code == wc_errc::flushed) return state_ == state::open ? on_stopped() : answer{};
    if (state_ == state::ended) return {};
    bool const was_inferred = forget_inferred();
    bool const is_cause = !follows_from_leaving(e.code);
    if (was_inferred && !is_cause) {
        note(step::transfer, {e.what, errc::peer_disconnected}, close_reason::peer_disconnected);
    } else if (was_inferred || is_live()) {
        note(step::transfer, e, close_reason::transport_error);
    } else if (reason_ == close_reason::peer_disconnected && is_cause) {
        replace(step::transfer, e, close_reason::transport_error);
    }
    return is_live() ? stop(action::stop) : answer{};
}

// On InfiniBand and RoCE the device moves a queue pair to the error state when it rejects a request
// of the peer; on iWARP, when the peer has closed. Source: InfiniBand specification, C9-197.
answer lifecycle::on_stopped() noexcept {
    if (!is_live()) return {};
    if (is_iwarp_) {
        note(
            step::transfer,
            {event_kind::stopped, errc::peer_disconnected},
            close_reason::peer_disconnected
        );
    } else {
        note(
            step::transfer,
            {event_kind::stopped, errc::peer_violation},
            close_reason::transport_error
        );
    }
    is_inferred_ = true;
    return stop(action::stop);
}

answer lifecycle::stop(action how) noexcept {
    error_code const aborted{boost::asio::error::operation_aborted};
    error_code const why = failure_.code ? failure_.code : make_error_code(errc::not_connected);
    return stop(how, reason_ == close_reason::closed_locally ? aborted : why);
}

answer lifecycle::stop(action how, error_code setup) noexcept {
    answer a{how, deadline::drain};
    if (state_ < state::open) a.setup = setup;
    state_ = state::draining;
    return a;
}

answer lifecycle::finish() noexcept {
    state_ = state::finishing;
    return {action::finish, deadline::none};
}

answer lifecycle::end() noexcept {
    state_ = state::ended;
    error_code const code = end_code();
    error_code const aborted{boost::asio::error::operation_aborted};
    return {action::none, deadline::none, code ? code : aborted, code, code};
}

// Keeps the first cause. Later failures are its consequences and would hide it.
void lifecycle::note(step where, event const& e, close_reason why) noexcept {
    if (reason_ == close_reason::open) reason_ = why;
    if (e.code && !failure_.code && reason_ == why) failure_ = {where, e.code, e.status};
}

void lifecycle::replace(step where, event const& e, close_reason why) noexcept {
    reason_ = why;
    failure_ = {where, e.code, e.status};
}

// Drops an inferred cause, because an event names the actual one.
bool lifecycle::forget_inferred() noexcept {
    if (!std::exchange(is_inferred_, false)) return false;
    reason_ = close_reason::open;
    failure_ = {};
    return true;
}

step lifecycle::present_step() const noexcept {
    switch (state_) {
    case state::resolving_address: return step::resolve_address;
    case state::resolving_route: return step::resolve_route;
    case state::making_queue_pair: return step::create_queue_pair;
    default: return is_passive_ ? step::accept : step::connect;
    }
}

error_code lifecycle::end_code() const noexcept {
    switch (reason_) {
    case close_reason::closed_locally:
    case close_reason::peer_disconnected:
    case close_reason::completed: return {};
    default: return failure_.code;
    }
}

error_code lifecycle::flush_code() const noexcept {
    switch (reason_) {
    case close_reason::closed_locally: return boost::asio::error::operation_aborted;
    case close_reason::peer_disconnected: return errc::peer_disconnected;
    case close_reason::timed_out:
        return failure_.code ? failure_.code : make_error_code(errc::timed_out);
    case close_reason::device_gone: return failure_.code;
    default:
        // If the failure did not come from a work request, every flushed operation reports it.
        return failure_.code && failure_.code.category() != work_completion_category()
                   ? failure_.code
                   : make_error_code(wc_errc::flushed);
    }
}

error_code lifecycle::refusal_code() const noexcept {
    bool const is_ours = reason_ == close_reason::open || reason_ == close_reason::closed_locally;
    return is_ours || !failure_.code ? make_error_code(errc::not_connected) : failure_.code;
}

// --- names ---------------------------------------------------------------------------------------

namespace {

template <class Enum, std::size_t N>
char const* name_in(std::array<char const*, N> const& names, Enum value) noexcept {
    auto const i = static_cast<std::size_t>(value);
    return i < N ? names[i] : "?";
}

}  // namespace

char const* to_string(lifecycle::state s) noexcept {
    static constexpr std::array names{
        "idle",
        "resolving_address",
        "resolving_route",
        "making_queue_pair",
        "ready",
        "connecting",
        "requested",
        "accepting",
        "opening",
        "open",
        "disconnecting",
        "awaiting_peer",
        "draining",
        "finishing",
        "ended"};
    return name_in(names, s);
}

char const* to_string(lifecycle::event_kind h) noexcept {
    static constexpr std::array names{
        "resolve",
        "resolve_and_connect",
        "prepare",
        "connect",
        "establish",
        "accept",
        "reject",
        "disconnect",
        "close",
        "violated",
        "address_resolved",
        "route_resolved",
        "queue_pair_made",
        "established",
        "opened",
        "failed",
        "peer_gone",
        "work_failed",
        "broken",
        "stopped",
        "deadline",
        "drained",
        "finished",
        "kept",
        "gone"};
    return name_in(names, h);
}

char const* to_string(lifecycle::action a) noexcept {
    static constexpr std::array names{
        "none",
        "resolve_address",
        "resolve_route",
        "make_queue_pair",
        "connect",
        "accept",
        "open",
        "reject",
        "stop",
        "finish"};
    return name_in(names, a);
}

char const* to_string(lifecycle::deadline d) noexcept {
    static constexpr std::array names{
        "same", "none", "resolve_address", "resolve_route", "connect", "disconnect", "drain"};
    return name_in(names, d);
}

}  // namespace rcverbs::machines
