// close_reason.hpp — why a connection or session ended. Values; no threading rule.
#pragma once

#include <rcverbs/export.hpp>

namespace rcverbs {

/// Why it ended. Only `completed` is success, and only a session can tell it from a peer that merely left.
enum class close_reason {
    /// It has not ended.
    open,
    /// Both sides sent MSG_DONE and disconnected in order.
    completed,
    /// This side closed or disconnected.
    closed_locally,
    /// The peer disconnected, or its process ended (the two look the same at verbs level).
    peer_disconnected,
    /// The peer went away before its MSG_DONE, or before ours reached it.
    peer_closed_early,
    /// A work request failed: the peer or the path is gone, or an operation was refused by the peer's device.
    transport_error,
    /// A deadline passed.
    timed_out,
    /// The connection never came about: refused, not reachable, or the hello did not fit.
    refused,
    /// The peer broke the session protocol.
    protocol_error,
    /// The RDMA device was removed or failed, its port went down, or its address is gone.
    device_gone,
};

/// The reason in text, such as "peer closed early".
RCVERBS_EXPORT char const* to_string(close_reason reason) noexcept;

}  // namespace rcverbs
