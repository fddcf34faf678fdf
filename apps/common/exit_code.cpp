#include "common/exit_code.hpp"

namespace demo {

using rcverbs::errc;

char const* const exit_code_help =
    "Exit codes:\n"
    "  0  done\n"
    "  1  anything not named below, such as memory that could not be registered\n"
    "  2  wrong usage\n"
    "  3  could not connect or listen\n"
    "  4  a deadline passed\n"
    "  5  the peer, or the way to it, was gone before MSG_DONE\n"
    "  6  refused by an rcverbs peer, which says why, or the peer broke the protocol\n"
    "  7  the data did not verify\n";

exit_code exit_code_for(rcverbs::error_code const& ec, rcverbs::step where) noexcept {
    if (!ec) return exit_code::done;
    if (ec == errc::timed_out || ec == errc::stalled || ec == errc::idle) return exit_code::deadline_passed;
    if (ec.category() == rcverbs::rcverbs_category()) {
        switch (static_cast<errc>(ec.value())) {
        case errc::peer_disconnected:
        case errc::peer_closed_early:
        case errc::device_removed:
        case errc::port_down:
        case errc::address_gone:
        case errc::queue_pair_failed:
        case errc::completion_queue_broken: return exit_code::peer_gone;
        case errc::peer_violation:
        case errc::foreign_peer:
        case errc::version_mismatch:
        case errc::mode_mismatch:
        case errc::peer_busy:
        case errc::malformed_message:
        case errc::unexpected_message:
        case errc::access_denied:
        case errc::out_of_range: return exit_code::refused;
        default: break;
        }
    }
    if (where <= rcverbs::step::accept) return exit_code::could_not_connect;
    if (ec.category() == rcverbs::work_completion_category()) return exit_code::peer_gone;
    return exit_code::other;
}

}  // namespace demo
