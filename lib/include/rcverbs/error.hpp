// error.hpp — error codes.
//
//     auto [ec, n] = co_await c.async_write(mine.slice(), theirs, as_tuple(use_awaitable));
//     if (ec == errc::out_of_range) std::cerr << "the peer's region is smaller\n";
//     else if (ec == condition::transient) std::cerr << "connect again: " << ec.message() << '\n';
//
// Categories: errc (detected by this library), wc_errc (status of a work completion), cm_errc
// (event of the connection manager), errno of C calls in boost::system::system_category(), and one
// for each protocol on top of connections: session_errc, channel_errc. The value of a code is the
// number of the device or the kernel. Programs compare codes with conditions, which hold across
// categories: those of `condition`, and those of boost::system::errc with the same meaning: `ec ==
// boost::system::errc::timed_out`. A message has the cause and the remedy;
// connection::last_failure() adds the step and the address. Values; no threading rule.
#pragma once

#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>

#include <rcverbs/detail/asio_settings.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

using boost::system::error_code;

/// Errors that this library detects.
enum class errc {
    /// The connection is not established yet, or this side has closed it. If it ended for another
    /// reason, operations report that reason instead. Equals the condition
    /// std::errc::not_connected.
    not_connected = 1,
    /// The connection has been used already: a connection object connects once.
    already_connected = 2,
    /// An operation of this kind is outstanding and only one may be.
    operation_in_progress = 3,
    /// No room for another operation: as many as the options allow are posted and waiting, or there is
    /// no memory for one more.
    queue_full = 4,
    /// A deadline from the options passed.
    timed_out = 5,
    /// A slice or an operation reaches beyond the end of its memory region, or the local and remote
    /// sizes differ.
    out_of_range = 6,
    /// The remote or the local region does not have the rights that the operation needs.
    access_denied = 7,
    /// An atomic operation's remote address is not a multiple of 8.
    misaligned = 8,
    /// The device has no atomic operations.
    atomics_unsupported = 9,
    /// The negotiated depth of reads and atomics is 0: one of the two sides allows none.
    read_depth_zero = 10,
    /// A message is longer than the device can send at once, or than the receiver's buffer.
    message_too_large = 11,
    /// Private data is longer than the connection manager carries (56 bytes to connect, 196 to
    /// accept, 148 to reject).
    private_data_too_large = 12,
    /// An option is outside of its range.
    invalid_option = 13,
    /// The address does not lead to an RDMA device.
    no_rdma_device = 14,
    /// Too many scatter/gather entries for the queue pair.
    too_many_segments = 15,
    /// A slice's memory region has been deregistered.
    region_gone = 16,
    /// A slice's memory region belongs to another protection domain than the connection.
    foreign_domain = 17,
    /// A `try_` call found no room in the queue: the operation would have to wait for its turn.
    would_block = 18,
    /// The device cannot send with invalidate.
    invalidate_unsupported = 19,
    /// The peer disconnected.
    peer_disconnected = 20,
    /// Encoded bytes have a version that this library does not decode.
    version_mismatch = 21,
    /// Bytes of the peer could not be decoded.
    malformed_message = 22,
    /// The RDMA device was removed, or has failed permanently.
    device_removed = 23,
    /// The completion queue failed; completions are lost.
    completion_queue_broken = 24,
    /// The queue pair could be neither drained nor destroyed: the device may still use the memory
    /// of outstanding operations.
    not_drained = 25,
    /// A posted operation stayed unanswered for longer than liveness_options::stall_timeout.
    stalled = 26,
    /// The connection takes its receives from a shared receive queue: start them there.
    receives_are_shared = 27,
    /// No operation completed for longer than liveness_options::idle_timeout.
    idle = 28,
    /// The device reports that the queue pair, or the shared receive queue that it takes from,
    /// failed.
    queue_pair_failed = 29,
    /// The peer used memory without the right, or sent a message that the queue pair rejects.
    peer_violation = 30,
    /// The port of the RDMA device went down.
    port_down = 31,
    /// The port of the device has lost the address of the connection.
    address_gone = 32,
    /// The device, or its network, does not support addresses of this family.
    address_family_unsupported = 33,
    /// The memory pool has registered as many bytes as its options allow.
    pool_exhausted = 34,
    /// The device has no memory windows of type 2.
    windows_unsupported = 35,
    /// The memory window is bound already.
    window_bound = 36,
    /// The memory window is not bound.
    window_unbound = 37,
    /// The device, or the kernel, cannot register a dmabuf.
    dmabuf_unsupported = 38,
    /// The device cannot register memory without pinning it.
    on_demand_paging_unsupported = 39,
    /// The memory window belongs to another connection.
    foreign_window = 40,
    /// One connection does not mix receives into borrowed memory with receives that own theirs.
    receives_mixed = 41,
    /// This machine has no RDMA device that this program can use: none is there, the kernel modules are
    /// not loaded, or the program has no drivers.
    rdma_unavailable = 42,
    /// The peer sends packets that are larger than the port of this side receives: the network interfaces
    /// of the two sides have different MTUs.
    path_mtu_too_large = 43,
    /// The completion token `blocking` was used by a thread that runs the object's executor, or nobody
    /// runs that.
    would_deadlock = 44,
    /// One side authenticates its peers, or encrypts its messages, and the other does not.
    security_mismatch = 45,
    /// The peer has not proved that it has a key of the identity.
    authentication_failed = 46,
    /// The accepting side has no key of the identity; or this side has none itself.
    unknown_identity = 47,
    /// authentication_options::admits of the accepting side does not admit the identity.
    identity_refused = 48,
    /// The file is no file of keys, or others may read it.
    invalid_key_file = 49,
    /// The device has no immediate data, as on iWARP.
    immediate_unsupported = 50,
};

/// The status of a failed work completion, numbered as in `enum ibv_wc_status`. Source:
/// ibv_poll_cq(3).
enum class wc_errc {
    local_length = 1,
    local_qp_operation = 2,
    local_eec_operation = 3,
    local_protection = 4,
    flushed = 5,
    memory_window_bind = 6,
    bad_response = 7,
    local_access = 8,
    remote_invalid_request = 9,
    remote_access = 10,
    remote_operation = 11,
    retry_exceeded = 12,
    rnr_retry_exceeded = 13,
    local_rdd_violation = 14,
    remote_invalid_rd_request = 15,
    remote_aborted = 16,
    invalid_eec_number = 17,
    invalid_eec_state = 18,
    fatal = 19,
    response_timeout = 20,
    general = 21,
    tag_matching = 22,
    tag_matching_rndv_incomplete = 23,
};

/// A failure reported by the connection manager: an event numbered as in `enum rdma_cm_event_type`,
/// or, for a rejected connection, 1000 + the reason of the rejection. Source: rdma_get_cm_event(3);
/// the InfiniBand specification's table of rejection reasons.
enum class cm_errc {
    address_error = 1,
    route_error = 3,
    connect_error = 6,
    unreachable = 7,
    rejected = 8,
    disconnected = 10,
    device_removal = 11,
    address_change = 14,
    /// No program listens at that address and port.
    rejected_no_listener = 1008,
    /// The peer's host took this queue pair for that of an earlier connection.
    rejected_stale = 1010,
    /// The listening program refused the connection.
    rejected_by_peer = 1028,
};

/// What a program does about an error, whichever category the code is of. A code may equal several
/// conditions, or none.
enum class condition {
    /// A deadline passed, or the peer or the path did not answer: errc::timed_out, errc::stalled,
    /// wc_errc::retry_exceeded, channel_errc::request_timed_out …
    timed_out = 1,
    /// The peer violated a protocol, or used memory without the right.
    protocol_violation = 2,
    /// The peer disconnected, left early, or its process ended.
    ended_by_peer = 3,
    /// The connection was not established: the peer or its host rejected it, or the two sides do
    /// not fit.
    refused = 4,
    /// As is_transient() says.
    transient = 5,
    /// Only this operation failed: the connection and the protocol on top of it go on.
    operation_only = 6,
};

/// The category of errc.
RCVERBS_EXPORT boost::system::error_category const& rcverbs_category() noexcept;
/// The category of wc_errc.
RCVERBS_EXPORT boost::system::error_category const& work_completion_category() noexcept;
/// The category of cm_errc.
RCVERBS_EXPORT boost::system::error_category const& connection_manager_category() noexcept;

/// The category of condition.
RCVERBS_EXPORT boost::system::error_category const& condition_category() noexcept;

/// An errc as an error_code.
inline error_code make_error_code(errc e) noexcept {
    return {static_cast<int>(e), rcverbs_category()};
}
/// A wc_errc as an error_code.
inline error_code make_error_code(wc_errc e) noexcept {
    return {static_cast<int>(e), work_completion_category()};
}
/// A cm_errc as an error_code.
inline error_code make_error_code(cm_errc e) noexcept {
    return {static_cast<int>(e), connection_manager_category()};
}

/// A condition as an error_condition.
inline boost::system::error_condition make_error_condition(condition c) noexcept {
    return {static_cast<int>(c), condition_category()};
}

/// True if the connection that reported `ec` has ended, and a new one must be made.
///
/// False for condition::operation_only: the connection goes on. True for errno and for
/// operation_aborted, although an operation that was cancelled while it waited has not ended
/// the connection: for these, ask is_open().
RCVERBS_EXPORT bool is_fatal(error_code const& ec) noexcept;

/// True if an operation that failed with `ec` may succeed on a new connection later: the peer, its
/// host or the path was gone or busy. False if the two sides do not fit, or the request was wrong.
/// wc_errc::remote_access, remote_operation and remote_invalid_request are transient: the system
/// destroys the memory and the queues of a process that ends before its connection, and the next
/// connection brings new keys.
RCVERBS_EXPORT bool is_transient(error_code const& ec) noexcept;

}  // namespace rcverbs

/// @cond
template <>
struct boost::system::is_error_code_enum<rcverbs::errc> : std::true_type {};
template <>
struct boost::system::is_error_code_enum<rcverbs::wc_errc> : std::true_type {};
template <>
struct boost::system::is_error_code_enum<rcverbs::cm_errc> : std::true_type {};
template <>
struct boost::system::is_error_condition_enum<rcverbs::condition> : std::true_type {};
/// @endcond
