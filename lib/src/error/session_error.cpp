#include <rcverbs/session_error.hpp>

#include "error/descriptions.hpp"

namespace rcverbs {

namespace is = boost::system::errc;

detail::description detail::describe(session_errc e) noexcept {
    switch (e) {
    case session_errc::peer_closed_early:
        return {
            "the peer left before both sides had finished",
            "Assume that its work is incomplete, and connect again",
            is::connection_reset,
            conditions::ended_by_peer | conditions::transient,
            "session_errc::peer_closed_early"};
    case session_errc::foreign_peer:
        return {
            "the peer speaks another protocol",
            "Check address and port",
            is::protocol_error,
            conditions::refused,
            "session_errc::foreign_peer"};
    case session_errc::version_mismatch:
        return {
            "the peer speaks another version of the protocol",
            "Update the older side",
            is::protocol_error,
            conditions::refused,
            "session_errc::version_mismatch"};
    case session_errc::mode_mismatch:
        return {
            "the peer runs in another mode",
            "Start both sides in the same one",
            is::protocol_error,
            conditions::refused,
            "session_errc::mode_mismatch"};
    case session_errc::malformed_message:
        return {
            "a message of the peer's could not be decoded",
            "Check which program the peer runs: it has a defect, or is hostile",
            is::bad_message,
            conditions::protocol_violation,
            "session_errc::malformed_message"};
    case session_errc::unexpected_message:
        return {
            "a message of the peer's arrived out of order",
            "Compare the order of the calls on both sides",
            is::protocol_error,
            conditions::protocol_violation,
            "session_errc::unexpected_message"};
    case session_errc::peer_busy:
        return {
            "the peer has as many connections as it allows",
            "Try again later, as a connector does",
            is::device_or_resource_busy,
            conditions::refused | conditions::transient,
            "session_errc::peer_busy"};
    }
    return {};
}

boost::system::error_category const& session_category() noexcept {
    static detail::category_of<session_errc> const category{"rcverbs.session"};
    return category;
}

}  // namespace rcverbs
