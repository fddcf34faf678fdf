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

/// Why a connection or session ended. Only `completed` is success, and only a session can
/// distinguish it from a peer that left early.
enum class close_reason {
    /// It has not ended.
    open,
    /// Both sides sent MSG_DONE and disconnected in order.
    completed,
    /// This side closed or disconnected.
    closed_locally,
    /// The peer disconnected, or its process ended; verbs do not distinguish the two.
    peer_disconnected,
    /// The peer left before its MSG_DONE, or before it received ours.
    peer_closed_early,
    /// A work request failed: the peer or the path failed, or the peer's device rejected an
    /// operation.
    transport_error,
    /// A deadline passed.
    timed_out,
    /// The connection was not established: rejected, unreachable, or the hellos do not match.
    refused,
    /// The peer broke the session protocol.
    protocol_error,
    /// The RDMA device was removed or failed, its port went down, or its address is gone.
    device_gone,
};

/// The reason in text, such as "peer closed early".
RCVERBS_EXPORT char const* to_string(close_reason reason) noexcept;

}  // namespace rcverbs
