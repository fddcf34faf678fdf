#include "error/descriptions.hpp"

namespace rcverbs::detail {

std::string description::text() const { return std::string{what} + ". " + remedy + '.'; }

description describe(errc e) noexcept {
    switch (e) {
    case errc::not_connected:
        return {
            "the connection is not established yet, or this side has closed it",
            "Wait until it is connected, or make a new connection"};
    case errc::already_connected:
        return {
            "the connection object was used before", "Make a new connection, or use a connector"};
    case errc::operation_in_progress:
        return {
            "an operation of this kind is outstanding, or has been carried out and cannot be "
            "repeated",
            "Wait for the first operation"};
    case errc::queue_full:
        return {
            "as many operations as the options allow are posted and waiting",
            "Wait for a completion, or raise waiting_operations_max"};
    case errc::timed_out:
        return {
            "the peer did not answer before the deadline",
            "Check that its program runs, or raise the deadline"};
    case errc::out_of_range:
        return {
            "the range is outside of the memory region, or local and remote sizes differ",
            "Correct offset and length; nothing was posted"};
    case errc::access_denied:
        return {
            "the peer's region lacks the right for this operation, or the local region lacks "
            "local_write",
            "Register the region with the right; nothing was posted"};
    case errc::misaligned:
        return {
            "the address of an atomic operation is not a multiple of 8",
            "Align the word; nothing was posted"};
    case errc::atomics_unsupported:
        return {
            "the device has no atomic operations",
            "Send a message to the owner of the word instead"};
    case errc::read_depth_zero:
        return {
            "reads and atomics are disabled: initiator_depth of this side or responder_resources "
            "of the peer is 0",
            "Raise both, and connect again"};
    case errc::message_too_large:
        return {
            "the message is longer than the device or the peer's buffer allows",
            "Split the message, or write it into a region"};
    case errc::private_data_too_large:
        return {
            "the private data is longer than 56 bytes (connect), 196 (accept) or 148 (reject)",
            "Send the rest over the connection"};
    case errc::invalid_option: return {"an option is out of its range", "Correct the option"};
    case errc::no_rdma_device:
        return {
            "the address does not lead to an RDMA device",
            "Use the address of an RDMA device's network interface (see: rdma link; if it has "
            "none: "
            "ip addr add), not the loopback address"};
    case errc::too_many_segments:
        return {
            "the operation has more slices than a work request takes",
            "Raise send_segments_max or receive_segments_max, or use fewer slices"};
    case errc::region_gone:
        return {
            "the local memory region was deregistered",
            "Keep the region until the handler has run"};
    case errc::foreign_domain:
        return {
            "the local memory region belongs to another protection domain",
            "Register it with the connection's domain()"};
    case errc::would_block:
        return {
            "the queue is full",
            "Try again after a completion, or use the async_ operation, which waits"};
    case errc::invalidate_unsupported:
        return {
            "the device cannot send with invalidate",
            "Send without it, and deregister the region on the other side"};
    case errc::peer_disconnected:
        return {"the peer disconnected, or its process ended", "Connect again if necessary"};
    case errc::peer_closed_early:
        return {
            "the peer left before both sides had finished",
            "Assume that its work is incomplete, and connect again"};
    case errc::foreign_peer: return {"the peer speaks another protocol", "Check address and port"};
    case errc::version_mismatch:
        return {"the peer speaks another version of the protocol", "Update the older side"};
    case errc::mode_mismatch:
        return {"the peer runs in another mode", "Start both sides in the same one"};
    case errc::peer_busy:
        return {
            "the peer has as many connections as it allows",
            "Try again later, as a connector does"};
    case errc::malformed_message:
        return {
            "a message of the peer's could not be decoded",
            "Check which program the peer runs: it has a defect, or is hostile"};
    case errc::unexpected_message:
        return {
            "a message of the peer's arrived out of order, or without a credit for it",
            "Compare the order of the calls on both sides"};
    case errc::device_removed:
        return {
            "the RDMA device was removed, or has failed permanently",
            "Connect again when it is back"};
    case errc::completion_queue_broken:
        return {
            "the completion queue failed and completions are lost",
            "Report it: the library makes queues that cannot overflow"};
    case errc::receives_are_shared:
        return {
            "the connection takes its receives from a shared queue",
            "Start the receive on its shared_receive_queue"};
    case errc::idle:
        return {
            "no operation completed for longer than idle_timeout",
            "Connect again when needed, or raise the option"};
    case errc::queue_pair_failed:
        return {
            "the device reports that the queue pair failed; the status is the number of its event",
            "Connect again, and read the kernel's log"};
    case errc::peer_violation:
        return {
            "the peer used memory without the right, or sent a message that does not fit",
            "Check the peer's keys, ranges and message sizes"};
    case errc::port_down:
        return {
            "the port of the RDMA device is down",
            "Check its cable, and: ip link, rdma link; connect again when it is up"};
    case errc::address_gone:
        return {
            "the network interface has lost the connection's address",
            "Restore the address, or connect again"};
    case errc::address_family_unsupported:
        return {
            "the device does not support addresses of this family",
            "On Ethernet (RoCE, iWARP) use the IP address of its network interface"};
    case errc::pool_exhausted:
        return {
            "the memory pool has registered as much as its bytes_max allows",
            "Free memory of the pool, raise bytes_max, or wait with async_allocate()"};
    case errc::windows_unsupported:
        return {
            "the device has no memory windows of type 2",
            "Register a region for each peer, with the rights that it needs"};
    case errc::window_bound:
        return {
            "the memory window is bound already",
            "Invalidate it first; after the peer's send with invalidate, call mark_invalidated()"};
    case errc::window_unbound:
        return {
            "the memory window is not bound", "Bind it first, and wait for the binding's handler"};
    case errc::foreign_window:
        return {
            "the memory window belongs to another connection",
            "Start the operation on the connection that the window was made with"};
    case errc::dmabuf_unsupported:
        return {
            "the device cannot register a dmabuf",
            "Copy through registered memory, or use a device whose driver supports it"};
    case errc::on_demand_paging_unsupported:
        return {
            "the device cannot register memory without pinning it",
            "Register it without access_flags::on_demand"};
    case errc::message_declined:
        return {
            "the receiver released a large message without fetching it",
            "Find out from the peer's program why; the channel goes on"};
    case errc::message_withdrawn:
        return {
            "the sender took a large message back before it was fetched",
            "Discard the message: its sender has cancelled it; the channel goes on"};
    case errc::request_dropped:
        return {
            "the peer's program destroyed a request without answering it",
            "Find out from the peer's program why; the channel goes on"};
    case errc::stalled:
        return {
            "posted work stayed unanswered for longer than stall_timeout: the peer posts no "
            "receives, or has failed",
            "Check the peer's receives, or raise the option"};
    case errc::not_drained:
        return {
            "the device did not return the posted work in time",
            "Do not free the memory of the operation; restart the program if leaked_count() grows"};
    }
    return {};
}

description describe(wc_errc e) noexcept {
    constexpr char const* report = "Report it: reliable connections do not use this";
    switch (e) {
    case wc_errc::local_length:
        return {
            "local length error: a message is longer than the posted receive",
            "Post larger receives"};
    case wc_errc::local_qp_operation:
        return {
            "local QP operation error: a work request is inconsistent (a wrong local key, a "
            "message "
            "longer than the receive), or the link is down",
            "Check the slices and the link"};
    case wc_errc::local_eec_operation: return {"local EE context operation error", report};
    case wc_errc::local_protection:
        return {
            "local protection error: the local memory is not registered with this right in this "
            "protection domain",
            "Keep the region registered, with the connection's domain()"};
    case wc_errc::flushed:
        return {
            "flushed: the queue pair is in the error state, because another operation failed or "
            "the "
            "connection ended",
            "See last_failure() for the cause"};
    case wc_errc::memory_window_bind:
        return {"memory window bind error", "Check the rights of the region"};
    case wc_errc::bad_response:
        return {
            "bad response: the peer's device answered with an unexpected packet",
            "Check the peer's device and firmware"};
    case wc_errc::local_access:
        return {
            "local access error: a protection fault on a local buffer",
            "Check the rights of the region"};
    case wc_errc::remote_invalid_request:
        return {
            "remote invalid request: the peer's device rejected the message; it is too long for "
            "the "
            "receive, or the peer has revoked the right",
            "Compare message and receive sizes, and do not use the peer's memory after it has "
            "finished"};
    case wc_errc::remote_access:
        return {
            "remote access error: the peer grants no such access to this range with this key",
            "Check key and range; the peer may have deregistered the memory, revoked the right, or "
            "restarted"};
    case wc_errc::remote_operation:
        return {
            "remote operation error: the peer's device could not complete the operation",
            "Check the peer"};
    case wc_errc::retry_exceeded:
        return {
            "transport retries exceeded: the peer does not answer",
            "Check that its process, its host and the path work, and that large packets pass "
            "(compare the MTUs); or its RNR timer is longer than the ACK timeout and it posts no "
            "receives"};
    case wc_errc::rnr_retry_exceeded:
        return {
            "receiver-not-ready retries exceeded: the peer posts no receives",
            "Post receives there before sending, or raise rnr_retry_count there"};
    case wc_errc::local_rdd_violation: return {"local RDD violation", report};
    case wc_errc::remote_invalid_rd_request: return {"remote invalid RD request", report};
    case wc_errc::remote_aborted:
        return {"remote aborted: the peer's device aborted the operation", "Check the peer"};
    case wc_errc::invalid_eec_number: return {"invalid EE context number", report};
    case wc_errc::invalid_eec_state: return {"invalid EE context state", report};
    case wc_errc::fatal: return {"fatal error of the device", "Read the kernel's log"};
    case wc_errc::response_timeout:
        return {"response timeout", "Check that the peer and the path work"};
    case wc_errc::general:
        return {
            "general error of the device",
            "Look up the vendor's error, which the failure's text has"};
    case wc_errc::tag_matching: return {"tag matching error", report};
    case wc_errc::tag_matching_rndv_incomplete:
        return {"tag matching rendezvous incomplete", report};
    }
    return {};
}

description describe(cm_errc e) noexcept {
    switch (e) {
    case cm_errc::address_error:
        return {
            "address not resolved: no host answers at that address on the RDMA network",
            "Check that the host is up (ping it) and in the network of an RDMA interface"};
    case cm_errc::route_error:
        return {
            "route not resolved: no path to the peer is known",
            "Check ip route, and on InfiniBand the subnet manager"};
    case cm_errc::connect_error:
        return {
            "the device or the kernel failed to connect", "Try again, and read the kernel's log"};
    case cm_errc::unreachable:
        return {
            "the peer's host does not answer the connection request",
            "Check that it is up (ping it), that UDP port 4791 is open (RoCE v2), and that its "
            "program accepts"};
    case cm_errc::rejected:
        return {"rejected without a known reason", "Look up the number of the reason"};
    case cm_errc::disconnected: return {"disconnected while connecting", "Try again"};
    case cm_errc::device_removal:
        return {"the RDMA device of the address was removed", "Connect again when it is back"};
    case cm_errc::address_change:
        return {"the address of the network interface changed", "Connect again"};
    case cm_errc::rejected_no_listener:
        return {
            "rejected: no program listens there",
            "Start the server, or check address and port; it may listen at another address of that "
            "machine"};
    case cm_errc::rejected_stale: return {"rejected as part of an earlier connection", "Try again"};
    case cm_errc::rejected_by_peer:
        return {
            "rejected by the listening program, or the program ended before it answered",
            "See private_data() for a reason, and check the server"};
    }
    switch (static_cast<int>(e) - 1000) {
    case 3: return {"rejected: the peer's device is out of resources", "Try again later"};
    case 4: return {"rejected: the peer's side timed out", "Try again"};
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
    default: return {};
    }
}

}  // namespace rcverbs::detail
