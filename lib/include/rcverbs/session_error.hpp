// session_error.hpp — the errors of the session protocol.
//
//     auto [ec] = co_await s.async_connect(peer, as_tuple(use_awaitable));
//     if (ec == session_errc::mode_mismatch) std::cerr << "the server runs in another mode\n";
//     else if (ec == condition::transient) std::cerr << "connect again: " << ec.message() << '\n';
//
// Values; no threading rule.
#pragma once

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

/// Errors that a session detects.
enum class session_errc {
    /// The peer left before both sides had sent MSG_DONE.
    peer_closed_early = 1,
    /// The peer does not speak the session protocol.
    foreign_peer = 2,
    /// The peer speaks another version of the session protocol.
    version_mismatch = 3,
    /// The peer wants another mode than this side.
    mode_mismatch = 4,
    /// A message of the peer could not be decoded.
    malformed_message = 5,
    /// A message of the peer arrived out of order.
    unexpected_message = 6,
    /// The peer has as many connections as it allows.
    peer_busy = 7,
};

/// The category of session_errc.
RCVERBS_EXPORT boost::system::error_category const& session_category() noexcept;

/// A session_errc as an error_code.
inline error_code make_error_code(session_errc e) noexcept {
    return {static_cast<int>(e), session_category()};
}

}  // namespace rcverbs

/// @cond
template <>
struct boost::system::is_error_code_enum<rcverbs::session_errc> : std::true_type {};
/// @endcond
