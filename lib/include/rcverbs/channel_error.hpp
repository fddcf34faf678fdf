// channel_error.hpp — the errors of message channels and request channels.
//
//     auto [ec, answer] = co_await c.async_request(7, body, as_tuple(use_awaitable));
//     if (ec == channel_errc::request_dropped) std::cerr << "the server did not answer\n";
//     else if (ec == condition::operation_only) std::cerr << "the channel goes on\n";
//
// Values; no threading rule.
#pragma once

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

/// Errors that a message channel, a request channel or a region channel detects.
enum class channel_errc {
    /// The peer left before both sides had finished.
    peer_closed_early = 1,
    /// The peer does not speak the protocol of channels.
    foreign_peer = 2,
    /// The peer speaks another version of the protocol.
    version_mismatch = 3,
    /// The peer wants another mode than this side.
    mode_mismatch = 4,
    /// A message of the peer could not be decoded.
    malformed_message = 5,
    /// A message of the peer arrived out of order.
    unexpected_message = 6,
    /// The peer has as many connections as it allows.
    peer_busy = 7,
    /// The peer sent more messages than this side had granted.
    credit_exceeded = 8,
    /// The receiver released a large message without fetching it.
    message_declined = 9,
    /// The sender took a large message back before it was fetched.
    message_withdrawn = 10,
    /// The peer's program destroyed a request without answering it.
    request_dropped = 11,
    /// No answer arrived within the answer_timeout of the request.
    request_timed_out = 12,
    /// The request has been answered already, or is a notice, which has no answer.
    already_answered = 13,
    /// The connection's queues are too small for the channel: see needed().
    queues_too_small = 14,
    /// While this side finished, the peer did not answer its requests, or take its notices.
    peer_not_answered = 15,
    /// While both sides finished, this side did not answer the peer's requests.
    not_answered = 16,
    /// While this side finished, the peer did not receive its messages.
    peer_not_received = 17,
    /// The peer did not finish.
    peer_not_finished = 18,
    /// The peer offers no region of this name; or this side does not, in async_withdraw().
    no_such_region = 19,
    /// The owner has taken the region back: nothing was posted.
    region_withdrawn = 20,
    /// This side has, or would have, more of the peer's pool than it may.
    quota_exceeded = 21,
    /// The peer's pool has no free block of this size.
    pool_exhausted = 22,
    /// This side has no such allocation: it was freed, or never made, or is another side's.
    no_such_allocation = 23,
    /// The peer has no pool.
    no_pool = 24,
    /// The client has connected again: its newer channel takes the place of this one.
    client_reconnected = 25,
    /// The request was for a connection of a request_client that has ended: it was not sent.
    other_connection = 26,
};

/// The category of channel_errc.
RCVERBS_EXPORT boost::system::error_category const& channel_category() noexcept;

/// A channel_errc as an error_code.
inline error_code make_error_code(channel_errc e) noexcept {
    return {static_cast<int>(e), channel_category()};
}

}  // namespace rcverbs

/// @cond
template <>
struct boost::system::is_error_code_enum<rcverbs::channel_errc> : std::true_type {};
/// @endcond
