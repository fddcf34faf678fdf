#include "common/exit_code.hpp"

#include <rcverbs/session_error.hpp>

namespace demo {

using rcverbs::errc;

char const* const exit_code_help =
    "Exit codes:\n"
    "  0  done\n"
    "  1  any other error, such as memory that could not be registered\n"
    "  2  wrong usage\n"
    "  3  could not connect or listen\n"
    "  4  a deadline passed, or a signal ended the server before an exchange was complete\n"
    "  5  the peer, or the path to it, failed before MSG_DONE\n"
    "  6  rejected by an rcverbs peer, with the reason, or the peer broke the protocol\n"
    "  7  the data did not verify\n";

exit_code exit_code_for(rcverbs::error_code const& ec, rcverbs::step where) noexcept {
    if (!ec) return exit_code::done;
    if (ec == errc::timed_out || ec == errc::stalled || ec == errc::idle)
        return exit_code::deadline_passed;
    if (ec == errc::peer_disconnected || ec == rcverbs::session_errc::peer_closed_early)
        return exit_code::peer_gone;
    if (ec.category() == rcverbs::session_category()) return exit_code::refused;
    if (ec.category() == rcverbs::rcverbs_category()) {
        switch (static_cast<errc>(ec.value())) {
        case errc::device_removed:
        case errc::port_down:
        case errc::address_gone:
        case errc::queue_pair_failed:
        case errc::completion_queue_broken: return exit_code::peer_gone;
        case errc::security_mismatch:
        case errc::authentication_failed:
        case errc::unknown_identity:
        case errc::identity_refused:
        case errc::peer_violation:
        case errc::access_denied:
        case errc::out_of_range:
        case errc::read_depth_zero:
        case errc::misaligned: return exit_code::refused;
        default: break;
        }
    }
    if (where <= rcverbs::step::accept) return exit_code::could_not_connect;
    if (ec.category() == rcverbs::work_completion_category()) {
        switch (static_cast<rcverbs::wc_errc>(ec.value())) {
        // An invalid key, or a message longer than the receive: the peer broke the protocol.
        case rcverbs::wc_errc::local_length:
        case rcverbs::wc_errc::local_qp_operation:
        case rcverbs::wc_errc::remote_invalid_request:
        case rcverbs::wc_errc::remote_access:
        case rcverbs::wc_errc::remote_operation: return exit_code::refused;
        default: return exit_code::peer_gone;
        }
    }
    return exit_code::other;
}

}  // namespace demo
