#include "error/descriptions.hpp"

namespace rcverbs::detail {

namespace is = boost::system::errc;

std::string description::text() const { return std::string{what} + ". " + remedy + '.'; }

description describe(errc e) noexcept {
    switch (e) {
    case errc::not_connected:
        return {
            "the connection is not established yet, or this side has closed it",
            "Wait until it is connected, or make a new connection",
            is::not_connected,
            0,
            "errc::not_connected"};
    case errc::already_connected:
        return {
            "the connection object was used before",
            "Make a new connection, or use a connector",
            is::already_connected,
            0,
            "errc::already_connected"};
    case errc::operation_in_progress:
        return {
            "an operation of this kind is outstanding, or has been carried out and cannot be "
            "repeated",
            "Wait for the first operation",
            is::operation_in_progress,
            conditions::operation_only,
            "errc::operation_in_progress"};
    case errc::queue_full:
        return {
            "as many operations as the options allow are posted and waiting",
            "Wait for a completion, or raise waiting_operations_max",
            is::no_buffer_space,
            conditions::operation_only,
            "errc::queue_full"};
    case errc::timed_out:
        return {
            "the peer did not answer in time",
            "Check that its program runs, or choose a longer timeout",
            is::timed_out,
            conditions::timed_out | conditions::transient,
            "errc::timed_out"};
    case errc::out_of_range:
        return {
            "the range is outside of the memory region, or local and remote sizes differ",
            "Correct offset and length; nothing was posted",
            is::invalid_argument,
            conditions::operation_only,
            "errc::out_of_range"};
    case errc::access_denied:
        return {
            "the peer's region lacks the right for this operation, or the local region lacks "
            "local_write",
            "Register the region with the right; nothing was posted",
            is::permission_denied,
            conditions::operation_only,
            "errc::access_denied"};
    case errc::misaligned:
        return {
            "the address of an atomic operation is not a multiple of 8",
            "Align the word; nothing was posted",
            is::invalid_argument,
            conditions::operation_only,
            "errc::misaligned"};
    case errc::atomics_unsupported:
        return {
            "the device has no atomic operations",
            "Send a message to the owner of the word instead",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::atomics_unsupported"};
    case errc::read_depth_zero:
        return {
            "reads and atomics are disabled: initiator_depth of this side or responder_resources "
            "of the peer is 0",
            "Raise both, and connect again",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::read_depth_zero"};
    case errc::message_too_large:
        return {
            "the message is longer than the device, the peer's buffer or encryption allows",
            "Split the message, or write it into a region; one that is to be encrypted needs "
            "larger "
            "slot_bytes on both sides",
            is::message_size,
            conditions::operation_only,
            "errc::message_too_large"};
    case errc::private_data_too_large:
        return {
            "the private data is longer than 56 bytes (connect), 196 (accept) or 148 (reject)",
            "Send the rest over the connection",
            is::message_size,
            conditions::operation_only,
            "errc::private_data_too_large"};
    case errc::invalid_option:
        return {
            "an option is out of its range",
            "Correct the option",
            is::invalid_argument,
            conditions::operation_only,
            "errc::invalid_option"};
    case errc::no_rdma_device:
        return {
            "the address does not lead to an RDMA device",
            "Use the address of an RDMA device's network interface (see: rdma link; if it has "
            "none: "
            "ip addr add), not the loopback address",
            is::no_such_device,
            conditions::transient,
            "errc::no_rdma_device"};
    case errc::rdma_unavailable:
        return {
            "this machine has no RDMA device that this program can use",
            "Load the kernel modules (modprobe rdma_ucm; see: ls /dev/infiniband, rdma link); a "
            "program that is linked statically needs rcverbs/static_providers.hpp for its device "
            "drivers",
            is::no_such_device,
            conditions::transient,
            "errc::rdma_unavailable"};
    case errc::path_mtu_too_large:
        return {
            "the peer's path MTU is larger than that of this side's port: packets would be lost",
            "Give the network interfaces of both sides the same MTU (see: ip link, ibv_devinfo)",
            is::message_size,
            conditions::transient,
            "errc::path_mtu_too_large"};
    case errc::too_many_segments:
        return {
            "the operation has more slices than a work request takes",
            "Raise send_segments_max or receive_segments_max, or use fewer slices",
            is::argument_list_too_long,
            conditions::operation_only,
            "errc::too_many_segments"};
    case errc::region_gone:
        return {
            "the local memory region was deregistered",
            "Keep the region until the handler has run",
            is::bad_address,
            conditions::operation_only,
            "errc::region_gone"};
    case errc::foreign_domain:
        return {
            "the local memory region belongs to another protection domain",
            "Register it with the connection's domain()",
            is::invalid_argument,
            conditions::operation_only,
            "errc::foreign_domain"};
    case errc::would_block:
        return {
            "the queue is full",
            "Try again after a completion, or use the async_ operation, which waits",
            is::operation_would_block,
            conditions::operation_only,
            "errc::would_block"};
    case errc::would_deadlock:
        return {
            "nobody would complete the operation: this thread runs the object's executor, or no "
            "thread "
            "does",
            "Block in another thread than the one that runs the executor, or make the object with "
            "own_thread",
            is::resource_deadlock_would_occur,
            conditions::operation_only,
            "errc::would_deadlock"};
    case errc::immediate_unsupported:
        return {
            "the device has no immediate data, as on iWARP",
            "Send a message behind the write instead; use a channel instead of a ring",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::immediate_unsupported"};
    case errc::security_mismatch:
        return {
            "one side authenticates its peers, or encrypts its messages, and the other does not",
            "Give both sides the same authentication_options, with keys",
            is::connection_refused,
            conditions::refused,
            "errc::security_mismatch"};
    case errc::authentication_failed:
        return {
            "the peer has not proved that it has a key of the identity",
            "Give both sides the same key for the identity; addresses must not be translated "
            "between them",
            is::permission_denied,
            conditions::refused | conditions::protocol_violation,
            "errc::authentication_failed"};
    case errc::unknown_identity:
        return {
            "there is no key of the identity",
            "Add a key of it on both sides, and name the identity if this side has several",
            is::permission_denied,
            conditions::refused,
            "errc::unknown_identity"};
    case errc::identity_refused:
        return {
            "the accepting side does not admit the identity",
            "See authentication_options::admits of the accepting side",
            is::permission_denied,
            conditions::refused,
            "errc::identity_refused"};
    case errc::invalid_key_file:
        return {
            "the file has no valid keys, or others may read it",
            "Give each line an identity and a key of 32 hexadecimal digits or more, and the file "
            "the mode 0600",
            is::invalid_argument,
            0,
            "errc::invalid_key_file"};
    case errc::invalidate_unsupported:
        return {
            "the device cannot send with invalidate",
            "Send without it, and deregister the region on the other side",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::invalidate_unsupported"};
    case errc::peer_disconnected:
        return {
            "the peer disconnected, or its process ended",
            "Connect again if necessary",
            is::connection_reset,
            conditions::ended_by_peer | conditions::transient,
            "errc::peer_disconnected"};
    case errc::version_mismatch:
        return {
            "the peer speaks another version of the protocol",
            "Update the older side",
            is::protocol_error,
            conditions::refused,
            "errc::version_mismatch"};
    case errc::malformed_message:
        return {
            "a message of the peer's could not be decoded",
            "Check which program the peer runs: it has a defect, or is hostile",
            is::bad_message,
            conditions::protocol_violation,
            "errc::malformed_message"};

    case errc::device_removed:
        return {
            "the RDMA device was removed, or has failed permanently",
            "Connect again when it is back, with newly registered memory. Destroy the old buffers "
            "and pools: the device stays open until then",
            is::no_such_device,
            conditions::transient,
            "errc::device_removed"};
    case errc::completion_queue_broken:
        return {
            "the completion queue failed and completions are lost",
            "Report it: the library makes queues that cannot overflow",
            is::io_error,
            conditions::transient,
            "errc::completion_queue_broken"};
    case errc::receives_are_shared:
        return {
            "the connection takes its receives from a shared queue",
            "Start the receive on its shared_receive_queue",
            is::invalid_argument,
            conditions::operation_only,
            "errc::receives_are_shared"};
    case errc::idle:
        return {
            "no operation completed for longer than idle_timeout",
            "Connect again when needed, or raise the option",
            is::timed_out,
            conditions::timed_out | conditions::transient,
            "errc::idle"};
    case errc::queue_pair_failed:
        return {
            "the device reports that the queue pair failed; the status is the number of its event",
            "Connect again, and read the kernel's log",
            is::io_error,
            conditions::transient,
            "errc::queue_pair_failed"};
    case errc::peer_violation:
        return {
            "the peer used memory without the right, or sent a message that does not fit",
            "Check the peer's keys, ranges and message sizes",
            is::protocol_error,
            conditions::protocol_violation,
            "errc::peer_violation"};
    case errc::port_down:
        return {
            "the port of the RDMA device is down",
            "Check its cable, and: ip link, rdma link; connect again when it is up",
            is::network_down,
            conditions::transient,
            "errc::port_down"};
    case errc::address_gone:
        return {
            "the network interface has lost the connection's address",
            "Restore the address, or connect again",
            is::address_not_available,
            conditions::transient,
            "errc::address_gone"};
    case errc::address_family_unsupported:
        return {
            "the device does not support addresses of this family",
            "On Ethernet (RoCE, iWARP) use the IP address of its network interface",
            is::address_family_not_supported,
            0,
            "errc::address_family_unsupported"};
    case errc::pool_exhausted:
        return {
            "the memory pool has registered as much as its bytes_max allows",
            "Free memory of the pool, raise bytes_max, or wait with async_allocate()",
            is::not_enough_memory,
            conditions::operation_only,
            "errc::pool_exhausted"};
    case errc::windows_unsupported:
        return {
            "the device has no memory windows of type 2",
            "Register a region for each peer, with the rights that it needs",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::windows_unsupported"};
    case errc::window_bound:
        return {
            "the memory window is bound already",
            "Invalidate it first; after the peer's send with invalidate, call mark_invalidated()",
            is::device_or_resource_busy,
            conditions::operation_only,
            "errc::window_bound"};
    case errc::window_unbound:
        return {
            "the memory window is not bound",
            "Bind it first, and wait for the binding's handler",
            is::invalid_argument,
            conditions::operation_only,
            "errc::window_unbound"};
    case errc::foreign_window:
        return {
            "the memory window belongs to another connection",
            "Start the operation on the connection that the window was made with",
            is::invalid_argument,
            conditions::operation_only,
            "errc::foreign_window"};
    case errc::receives_mixed:
        return {
            "the connection has receives of the other kind: into borrowed memory, or into memory "
            "that they own",
            "Use one kind for each connection",
            is::invalid_argument,
            conditions::operation_only,
            "errc::receives_mixed"};
    case errc::dmabuf_unsupported:
        return {
            "the device cannot register a dmabuf",
            "Copy through registered memory, or use a device whose driver supports it",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::dmabuf_unsupported"};
    case errc::on_demand_paging_unsupported:
        return {
            "the device cannot register memory without pinning it",
            "Register it without access_flags::on_demand",
            is::operation_not_supported,
            conditions::operation_only,
            "errc::on_demand_paging_unsupported"};
    case errc::stalled:
        return {
            "posted work stayed unanswered for longer than stall_timeout: the peer posts no "
            "receives, or has failed",
            "Check the peer's receives, or raise the option",
            is::timed_out,
            conditions::timed_out | conditions::transient,
            "errc::stalled"};
    case errc::not_drained:
        return {
            "the device did not return the posted work in time",
            "Do not free the memory of the operation; restart the program if leaked_count() grows",
            is::io_error,
            0,
            "errc::not_drained"};
    }
    return {};
}

description describe(wc_errc e) noexcept {
    constexpr char const* report = "Report it: reliable connections do not use this";
    switch (e) {
    case wc_errc::local_length:
        return {
            "local length error: a message is longer than the posted receive",
            "Post larger receives",
            is::message_size};
    case wc_errc::local_qp_operation:
        return {
            "local QP operation error: a work request is inconsistent (a wrong local key, a "
            "message "
            "longer than the receive), or the link is down",
            "Check the slices and the link",
            is::io_error};
    case wc_errc::local_eec_operation:
        return {"local EE context operation error", report, is::io_error};
    case wc_errc::local_protection:
        return {
            "local protection error: the local memory is not registered with this right in this "
            "protection domain",
            "Keep the region registered, with the connection's domain()",
            is::permission_denied};
    case wc_errc::flushed:
        return {
            "flushed: the queue pair is in the error state, because another operation failed or "
            "the "
            "connection ended",
            "See last_failure() for the cause",
            is::operation_canceled,
            conditions::transient};
    case wc_errc::memory_window_bind:
        return {"memory window bind error", "Check the rights of the region", is::io_error};
    case wc_errc::bad_response:
        return {
            "bad response: the peer's device answered with an unexpected packet",
            "Check the peer's device and firmware",
            is::io_error};
    case wc_errc::local_access:
        return {
            "local access error: a protection fault on a local buffer",
            "Check the rights of the region",
            is::permission_denied};
    case wc_errc::remote_invalid_request:
        return {
            "remote invalid request: the peer's device rejected the message; it is too long for "
            "the "
            "receive, or the peer has revoked the right",
            "Compare message and receive sizes, and do not use the peer's memory after it has "
            "finished; the peer may have ended or restarted",
            is::io_error,
            conditions::transient};
    case wc_errc::remote_access:
        return {
            "remote access error: the peer grants no such access to this range with this key",
            "Check key and range; the peer may have deregistered the memory, revoked the right, or "
            "restarted",
            is::permission_denied,
            conditions::transient};
    case wc_errc::remote_operation:
        return {
            "remote operation error: the peer's device could not complete the operation",
            "Check the peer; it may have ended or restarted",
            is::io_error,
            conditions::transient};
    case wc_errc::retry_exceeded:
        return {
            "transport retries exceeded: the peer does not answer",
            "Check that its process, its host and the path work, and that large packets pass "
            "(compare the MTUs); or its RNR timer is longer than the ACK timeout and it posts no "
            "receives",
            is::timed_out,
            conditions::timed_out | conditions::transient};
    case wc_errc::rnr_retry_exceeded:
        return {
            "receiver-not-ready retries exceeded: the peer posts no receives",
            "Post receives there before sending, or raise rnr_retry_count there",
            is::no_buffer_space,
            conditions::timed_out | conditions::transient};
    case wc_errc::local_rdd_violation: return {"local RDD violation", report, is::io_error};
    case wc_errc::remote_invalid_rd_request:
        return {"remote invalid RD request", report, is::io_error};
    case wc_errc::remote_aborted:
        return {
            "remote aborted: the peer's device aborted the operation",
            "Check the peer",
            is::connection_aborted,
            conditions::transient};
    case wc_errc::invalid_eec_number: return {"invalid EE context number", report, is::io_error};
    case wc_errc::invalid_eec_state: return {"invalid EE context state", report, is::io_error};
    case wc_errc::fatal:
        return {
            "fatal error of the device",
            "Read the kernel's log",
            is::io_error,
            conditions::transient};
    case wc_errc::response_timeout:
        return {
            "response timeout",
            "Check that the peer and the path work",
            is::timed_out,
            conditions::timed_out | conditions::transient};
    case wc_errc::general:
        return {
            "general error of the device",
            "Look up the vendor's error, which the failure's text has",
            is::io_error,
            conditions::transient};
    case wc_errc::tag_matching: return {"tag matching error", report, is::io_error};
    case wc_errc::tag_matching_rndv_incomplete:
        return {"tag matching rendezvous incomplete", report, is::io_error};
    }
    return {};
}

description describe(cm_errc e) noexcept {
    switch (e) {
    case cm_errc::address_error:
        return {
            "address not resolved: no host answers at that address on the RDMA network",
            "Check that the host is up (ping it) and in the network of an RDMA interface",
            is::host_unreachable,
            conditions::transient};
    case cm_errc::route_error:
        return {
            "route not resolved: no path to the peer is known",
            "Check ip route, and on InfiniBand the subnet manager",
            is::network_unreachable,
            conditions::transient};
    case cm_errc::connect_error:
        return {
            "the device or the kernel failed to connect",
            "Try again, and read the kernel's log",
            is::io_error,
            conditions::transient};
    case cm_errc::unreachable:
        return {
            "the peer's host does not answer the connection request",
            "Check that it is up (ping it), that UDP port 4791 is open (RoCE v2), and that its "
            "program accepts",
            is::host_unreachable,
            conditions::transient};
    case cm_errc::rejected:
        return {
            "rejected without a known reason",
            "Look up the number of the reason",
            is::connection_refused,
            conditions::refused | conditions::transient};
    case cm_errc::disconnected:
        return {
            "disconnected while connecting",
            "Try again",
            is::connection_reset,
            conditions::ended_by_peer | conditions::transient};
    case cm_errc::device_removal:
        return {
            "the RDMA device of the address was removed",
            "Connect again when it is back",
            is::no_such_device,
            conditions::transient};
    case cm_errc::address_change:
        return {
            "the address of the network interface changed",
            "Connect again",
            is::address_not_available,
            conditions::transient};
    case cm_errc::rejected_no_listener:
        return {
            "rejected: no program listens there",
            "Start the server, or check address and port; it may listen at another address of that "
            "machine",
            is::connection_refused,
            conditions::refused | conditions::transient};
    case cm_errc::rejected_stale:
        return {
            "rejected as part of an earlier connection",
            "Try again",
            is::connection_refused,
            conditions::refused | conditions::transient};
    case cm_errc::rejected_by_peer:
        return {
            "rejected by the listening program, or the program ended before it answered",
            "See private_data() for a reason, and check the server",
            is::connection_refused,
            conditions::refused | conditions::transient};
    }
    switch (static_cast<int>(e) - 1000) {
    case 3:
        return {
            "rejected: the peer's device is out of resources",
            "Try again later",
            is::connection_refused,
            conditions::refused | conditions::transient};
    case 4:
        return {
            "rejected: the peer's side timed out",
            "Try again",
            is::connection_refused,
            conditions::refused | conditions::transient};
    case 12:
        return {
            "rejected: the peer's device does not know this side's address",
            "Check on both sides: rdma link, ip addr"};
    case 26:
        return {
            "rejected: the path MTU does not fit",
            "Give the network interfaces of both sides the same MTU (ip link set mtu)"};
    case 27:
        return {
            "rejected: the peer's device serves fewer reads at a time", "Lower initiator_depth"};
    default: break;
    }
    // Without a text.
    unsigned const rejected = static_cast<int>(e) >= 1000 ? conditions::refused : 0;
    return {nullptr, nullptr, is::connection_refused, rejected | conditions::transient};
}

}  // namespace rcverbs::detail
