#include <rcverbs/error.hpp>

#include <string>

namespace rcverbs {

namespace {

char const* text(errc e) noexcept {
    switch (e) {
    case errc::not_connected: return "the connection is not established";
    case errc::already_connected: return "the connection object has been used; make a new one to connect again";
    case errc::operation_in_progress: return "an operation of this kind is outstanding already";
    case errc::queue_full: return "as many operations as the options allow are posted and waiting; wait for one to complete";
    case errc::timed_out: return "the deadline passed: the peer did not answer in time; look whether it still runs, or raise the deadline";
    case errc::out_of_range: return "the range reaches beyond its memory region, or local and remote sizes differ";
    case errc::access_denied: return "the peer did not expose the region for this kind of access, or the local region lacks local_write";
    case errc::misaligned: return "an atomic operation needs an address that is a multiple of 8";
    case errc::atomics_unsupported: return "the device has no atomic operations";
    case errc::read_depth_zero: return "one of the two sides allows no reads and atomics (initiator_depth or responder_resources is 0)";
    case errc::message_too_large: return "the message is longer than the device or the peer's buffer takes";
    case errc::private_data_too_large: return "private data is limited to 56 bytes to connect, 196 to accept, 148 to reject";
    case errc::invalid_option: return "an option is out of its range";
    case errc::no_rdma_device: return "the address does not lead to an RDMA device; use the address of one of its network interfaces (see: rdma link), which needs one (ip addr add), not the loopback address";
    case errc::too_many_segments: return "more scatter/gather entries than the queue pair was made for";
    case errc::region_gone: return "the local memory region has been deregistered; keep it until the handler has run";
    case errc::foreign_domain: return "the local memory region belongs to another protection domain; register it with the connection's domain()";
    case errc::would_block: return "no room in the queue just now; try again when an operation has completed, or use the async_ call, which waits";
    case errc::invalidate_unsupported: return "the device cannot send with invalidate";
    case errc::peer_disconnected: return "the peer disconnected, or its process ended";
    case errc::peer_closed_early: return "the peer went away before both sides had said MSG_DONE; what it was to do may be incomplete";
    case errc::foreign_peer: return "the peer does not speak the rcverbs session protocol";
    case errc::version_mismatch: return "the peer speaks another version of the session protocol; update the older side";
    case errc::mode_mismatch: return "the peer runs in another mode; start both sides in the same one";
    case errc::peer_busy: return "the peer has as many connections as it allows; try again later";
    case errc::malformed_message: return "a message of the session protocol could not be decoded";
    case errc::unexpected_message: return "a message of the session protocol came when it was not due";
    case errc::device_removed: return "the RDMA device was removed, or has failed for good";
    case errc::completion_queue_broken: return "the completion queue failed and completions are lost";
    case errc::receives_are_shared: return "the connection's receives are shared; start them on its shared_receive_queue";
    case errc::idle: return "nothing happened on the connection for longer than idle_timeout";
    case errc::queue_pair_failed: return "the device reports that the queue pair failed; the failure's status is the number of its event";
    case errc::peer_violation: return "the peer asked for memory that it was not given, or sent what is not taken here; look at its keys, ranges and message sizes";
    case errc::port_down: return "the port of the RDMA device is down; look at its cable and at: ip link, rdma link";
    case errc::address_gone: return "the network interface has lost the address that the connection was made with; connect again";
    case errc::address_family_unsupported: return "the device does not go by addresses of that family; on Ethernet (RoCE, iWARP) use the IP address of its network interface";
    case errc::stalled: return "posted work stayed unanswered for longer than stall_timeout; the peer posts no receives, or is gone";
    case errc::not_drained: return "the device did not return the posted work in time; its memory stays registered";
    }
    return "unknown error";
}

char const* text(wc_errc e) noexcept {
    switch (e) {
    case wc_errc::local_length: return "local length error: a message did not fit into the posted receive";
    case wc_errc::local_qp_operation: return "local QP operation error: a work request was inconsistent (a wrong local key, or a message longer than the receive)";
    case wc_errc::local_eec_operation: return "local EE context operation error";
    case wc_errc::local_protection: return "local protection error: the local memory is not registered for this, or not in this protection domain";
    case wc_errc::flushed: return "flushed: the queue pair broke before this work was done; the operation that failed first tells why";
    case wc_errc::memory_window_bind: return "memory window bind error";
    case wc_errc::bad_response: return "bad response: the peer's device answered with an unexpected packet";
    case wc_errc::local_access: return "local access error: a protection fault on a local data buffer";
    case wc_errc::remote_invalid_request: return "remote invalid request: the peer's device refused the message (too long for its receive, or not enabled)";
    case wc_errc::remote_access: return "remote access error: the peer grants no such access to that range under that key, or has gone";
    case wc_errc::remote_operation: return "remote operation error: the peer's device could not complete the operation";
    case wc_errc::retry_exceeded: return "transport retries exceeded: the peer does not answer; its process or host is gone, or the path is broken or drops large packets (compare the MTUs)";
    case wc_errc::rnr_retry_exceeded: return "receiver-not-ready retries exceeded: the peer posts no receives";
    case wc_errc::local_rdd_violation: return "local RDD violation";
    case wc_errc::remote_invalid_rd_request: return "remote invalid RD request";
    case wc_errc::remote_aborted: return "remote aborted";
    case wc_errc::invalid_eec_number: return "invalid EE context number";
    case wc_errc::invalid_eec_state: return "invalid EE context state";
    case wc_errc::fatal: return "fatal error of the device";
    case wc_errc::response_timeout: return "response timeout";
    case wc_errc::general: return "general error of the device";
    case wc_errc::tag_matching: return "tag matching error";
    case wc_errc::tag_matching_rndv_incomplete: return "tag matching rendezvous incomplete";
    }
    return "unknown completion status";
}

char const* text(cm_errc e) noexcept {
    switch (e) {
    case cm_errc::address_error: return "address not resolved: no host answers at that address on the RDMA network; check that it is up (ping it) and on the same network";
    case cm_errc::route_error: return "route not resolved: no path to the peer";
    case cm_errc::connect_error: return "the connection could not be made";
    case cm_errc::unreachable: return "the peer is not reachable, or does not answer";
    case cm_errc::rejected: return "rejected";
    case cm_errc::disconnected: return "disconnected while connecting";
    case cm_errc::device_removal: return "the RDMA device that the address led to was removed";
    case cm_errc::address_change: return "the address of the network interface changed";
    case cm_errc::rejected_no_listener: return "rejected: nobody listens there; start the server, or check address and port";
    case cm_errc::rejected_stale: return "rejected as the remains of an earlier connection; try again";
    case cm_errc::rejected_by_peer: return "rejected by the listening program, or it ended before it answered";
    }
    return nullptr;
}

// Source: InfiniBand specification, table of rejection reasons.
std::string rejection(int reason) {
    switch (reason) {
    case 3: return "rejected: the peer's device is out of resources";
    case 4: return "rejected: the peer's side timed out";
    case 12: return "rejected: the peer's device does not know this side's address; look at: rdma link, ip addr, on both sides";
    case 26: return "rejected: the path MTU does not fit; give the network interfaces of both sides the same (ip link set mtu)";
    case 27: return "rejected: the peer's device answers fewer reads at a time; ask for less initiator_depth";
    default: return "rejected with reason " + std::to_string(reason);
    }
}

class rcverbs_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs"; }
    std::string message(int value) const override { return text(static_cast<errc>(value)); }
};

class completion_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs.work_completion"; }
    std::string message(int value) const override { return text(static_cast<wc_errc>(value)); }
};

class manager_errors final : public boost::system::error_category {
public:
    char const* name() const noexcept override { return "rcverbs.connection_manager"; }
    std::string message(int value) const override {
        char const* const known = text(static_cast<cm_errc>(value));
        if (known != nullptr) return known;
        if (value >= 1000) return rejection(value - 1000);
        return "connection manager event " + std::to_string(value);
    }
};

}  // namespace

boost::system::error_category const& rcverbs_category() noexcept {
    static rcverbs_errors const category;
    return category;
}

boost::system::error_category const& work_completion_category() noexcept {
    static completion_errors const category;
    return category;
}

boost::system::error_category const& connection_manager_category() noexcept {
    static manager_errors const category;
    return category;
}

bool is_transient(error_code const& ec) noexcept {
    if (!ec) return false;
    if (ec.category() == connection_manager_category()) return true;
    if (ec.category() == work_completion_category()) {
        switch (static_cast<wc_errc>(ec.value())) {
        case wc_errc::flushed:
        case wc_errc::retry_exceeded:
        case wc_errc::rnr_retry_exceeded:
        case wc_errc::remote_aborted:
        case wc_errc::fatal:
        case wc_errc::response_timeout:
        case wc_errc::general: return true;
        default: return false;  // the same request would fail again
        }
    }
    if (ec.category() == rcverbs_category()) {
        switch (static_cast<errc>(ec.value())) {
        case errc::timed_out:
        case errc::no_rdma_device:  // a device that is being reset has no addresses for a while
        case errc::peer_disconnected:
        case errc::peer_closed_early:
        case errc::peer_busy:
        case errc::device_removed:
        case errc::completion_queue_broken:
        case errc::queue_pair_failed:
        case errc::port_down:
        case errc::address_gone:
        case errc::stalled:
        case errc::idle: return true;
        default: return false;
        }
    }
    namespace e = boost::system::errc;
    return ec == e::timed_out || ec == e::network_unreachable || ec == e::host_unreachable || ec == e::network_down ||
           ec == e::connection_refused || ec == e::connection_reset || ec == e::resource_unavailable_try_again ||
           ec == e::not_enough_memory || ec == e::too_many_files_open || ec == e::address_not_available;
}

bool is_fatal(error_code const& ec) noexcept {
    if (!ec) return false;
    if (ec.category() != rcverbs_category()) return true;
    switch (static_cast<errc>(ec.value())) {
    case errc::operation_in_progress:
    case errc::queue_full:
    case errc::out_of_range:
    case errc::access_denied:
    case errc::misaligned:
    case errc::atomics_unsupported:
    case errc::read_depth_zero:
    case errc::message_too_large:
    case errc::private_data_too_large:
    case errc::too_many_segments:
    case errc::region_gone:
    case errc::foreign_domain:
    case errc::would_block:
    case errc::receives_are_shared:
    case errc::invalidate_unsupported: return false;
    default: return true;
    }
}

}  // namespace rcverbs
