#include <rcverbs/channel_error.hpp>

#include "error/descriptions.hpp"

namespace rcverbs {

namespace is = boost::system::errc;

detail::description detail::describe(channel_errc e) noexcept {
    switch (e) {
    case channel_errc::peer_closed_early:
        return {
            "the peer left before both sides had finished",
            "Assume that its work is incomplete, and connect again",
            is::connection_reset,
            conditions::ended_by_peer | conditions::transient,
            "channel_errc::peer_closed_early"};
    case channel_errc::foreign_peer:
        return {
            "the peer speaks another protocol",
            "Check address and port",
            is::protocol_error,
            conditions::refused,
            "channel_errc::foreign_peer"};
    case channel_errc::version_mismatch:
        return {
            "the peer speaks another version of the protocol",
            "Update the older side",
            is::protocol_error,
            conditions::refused,
            "channel_errc::version_mismatch"};
    case channel_errc::mode_mismatch:
        return {
            "the peer runs in another mode",
            "Start both sides in the same one",
            is::protocol_error,
            conditions::refused,
            "channel_errc::mode_mismatch"};
    case channel_errc::malformed_message:
        return {
            "a message of the peer's could not be decoded",
            "Check which program the peer runs: it has a defect, or is hostile",
            is::bad_message,
            conditions::protocol_violation,
            "channel_errc::malformed_message"};
    case channel_errc::unexpected_message:
        return {
            "a message of the peer's arrived out of order",
            "Compare the order of the calls on both sides",
            is::protocol_error,
            conditions::protocol_violation,
            "channel_errc::unexpected_message"};
    case channel_errc::peer_busy:
        return {
            "the peer has as many connections as it allows",
            "Try again later, as a connector does",
            is::device_or_resource_busy,
            conditions::refused | conditions::transient,
            "channel_errc::peer_busy"};
    case channel_errc::credit_exceeded:
        return {
            "the peer sent more messages than it had credits for",
            "Check which program the peer runs: it has a defect, or is hostile",
            is::protocol_error,
            conditions::protocol_violation,
            "channel_errc::credit_exceeded"};
    case channel_errc::message_declined:
        return {
            "the receiver released a large message without fetching it",
            "Find out from the peer's program why; the channel goes on",
            is::operation_canceled,
            conditions::operation_only,
            "channel_errc::message_declined"};
    case channel_errc::message_withdrawn:
        return {
            "the sender took a large message back before it was fetched",
            "Discard the message: its sender has cancelled it; the channel goes on",
            is::operation_canceled,
            conditions::operation_only,
            "channel_errc::message_withdrawn"};
    case channel_errc::request_dropped:
        return {
            "the peer's program destroyed a request without answering it",
            "Find out from the peer's program why; the channel goes on",
            is::operation_canceled,
            conditions::operation_only,
            "channel_errc::request_dropped"};
    case channel_errc::request_timed_out:
        return {
            "no answer arrived within answer_timeout",
            "Check that the peer is there and what it waits for, or raise the option; a channel "
            "goes on",
            is::timed_out,
            conditions::timed_out | conditions::operation_only,
            "channel_errc::request_timed_out"};
    case channel_errc::already_answered:
        return {
            "the request has been answered already, or is a notice",
            "Answer each request once; the channel goes on",
            is::invalid_argument,
            conditions::operation_only,
            "channel_errc::already_answered"};
    case channel_errc::queues_too_small:
        return {
            "the connection's queues are too small for the channel",
            "Make the connection with the options that the channel's needed() gives; if the device "
            "has no such queues, lower receives or sends",
            is::invalid_argument,
            0,
            "channel_errc::queues_too_small"};
    case channel_errc::peer_not_answered:
        return {
            "the peer did not answer all requests, or take all notices, within finish_timeout",
            "Check that the peer's program calls async_next() until the end",
            is::timed_out,
            conditions::timed_out,
            "channel_errc::peer_not_answered"};
    case channel_errc::not_answered:
        return {
            "this side did not answer all requests of the peer's within finish_timeout",
            "Answer or destroy each request while async_finish() runs",
            is::timed_out,
            conditions::timed_out,
            "channel_errc::not_answered"};
    case channel_errc::peer_not_received:
        return {
            "the peer did not receive all messages within finish_timeout",
            "Check that the peer's program receives, and fetches large messages, until the end",
            is::timed_out,
            conditions::timed_out,
            "channel_errc::peer_not_received"};
    case channel_errc::peer_not_finished:
        return {
            "the peer did not finish within finish_timeout",
            "Check that the peer's program calls async_finish(), or raise the option",
            is::timed_out,
            conditions::timed_out,
            "channel_errc::peer_not_finished"};
    case channel_errc::no_such_region:
        return {
            "there is no region of this name",
            "Check the name, or wait until it is offered: the channel goes on",
            is::no_such_file_or_directory,
            conditions::operation_only,
            "channel_errc::no_such_region"};
    case channel_errc::region_withdrawn:
        return {
            "the owner has withdrawn the region",
            "Find it again when it is offered again: the channel goes on",
            is::operation_canceled,
            conditions::operation_only,
            "channel_errc::region_withdrawn"};
    case channel_errc::quota_exceeded:
        return {
            "this side may not have so much of the peer's pool",
            "Free something first, or raise peer_bytes_max or peer_allocations_max of the pool",
            is::no_buffer_space,
            conditions::operation_only,
            "channel_errc::quota_exceeded"};
    case channel_errc::pool_exhausted:
        return {
            "the peer's pool has no free block of this size",
            "Try again later, allocate less at once, or give the pool more memory",
            is::not_enough_memory,
            conditions::operation_only | conditions::transient,
            "channel_errc::pool_exhausted"};
    case channel_errc::no_such_allocation:
        return {
            "there is no such allocation of this side's",
            "Free memory once, on the channel that allocated it; kept memory is resumed in time",
            is::invalid_argument,
            conditions::operation_only,
            "channel_errc::no_such_allocation"};
    case channel_errc::no_pool:
        return {
            "the peer has no pool",
            "The peer's program must make a remote_pool of its list of offers",
            is::operation_not_supported,
            conditions::operation_only,
            "channel_errc::no_pool"};
    case channel_errc::client_reconnected:
        return {
            "the client has connected again, and its newer channel takes the place of this one",
            "Answer or destroy its requests: the newer channel waits for that",
            is::connection_aborted,
            conditions::ended_by_peer,
            "channel_errc::client_reconnected"};
    case channel_errc::other_connection:
        return {
            "the connection that the request was for has ended; it was not sent",
            "Do again what only that connection's server knew, and ask on the present connection",
            is::not_connected,
            conditions::operation_only,
            "channel_errc::other_connection"};
    }
    return {};
}

boost::system::error_category const& channel_category() noexcept {
    static detail::category_of<channel_errc> const category{"rcverbs.channel"};
    return category;
}

}  // namespace rcverbs
