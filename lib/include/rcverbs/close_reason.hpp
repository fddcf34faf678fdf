// close_reason.hpp — why a connection or session ended.
//
//     failure const f = c.last_failure();
//     if (f.reason == close_reason::peer_disconnected) std::cout << "the peer left\n";
//     else std::cout << f.message() << '\n';
//
// Values; no threading rule.
#pragma once

#include <rcverbs/export.hpp>

namespace rcverbs {

/// Why a connection, a session or a channel ended. Only `completed` is success. Sessions and channels
/// report it, because their protocols say when the peer has finished; a connection alone reports
/// `peer_disconnected` for a peer that has finished as for one that left early.
enum class close_reason {
    /// It has not ended.
    open,
    /// Both sides finished (a session's MSG_DONE, a channel's CLOSE) and disconnected gracefully.
    completed,
    /// This side closed or disconnected.
    closed_locally,
    /// The peer disconnected, or its process ended; verbs do not distinguish the two.
    peer_disconnected,
    /// The peer left before it finished, or before it received that this side has.
    peer_closed_early,
    /// A work request failed: the peer or the path failed, or the peer's device rejected an
    /// operation.
    transport_error,
    /// A deadline passed.
    timed_out,
    /// The connection was not established: rejected, unreachable, or the hellos do not match.
    refused,
    /// The peer broke the protocol of the session or channel.
    protocol_error,
    /// The RDMA device was removed or failed, its port went down, or its address is gone.
    device_gone,
};

/// The reason in text, such as "peer closed early".
RCVERBS_EXPORT char const* to_string(close_reason reason) noexcept;

}  // namespace rcverbs
