#include "error/symbols.hpp"

#include <cstring>
#include <span>

namespace rcverbs::detail {

namespace {

struct named {
    int value;
    char const* name;
};

constexpr named ours[] = {
    {1, "errc::not_connected"},
    {2, "errc::already_connected"},
    {3, "errc::operation_in_progress"},
    {4, "errc::queue_full"},
    {5, "errc::timed_out"},
    {6, "errc::out_of_range"},
    {7, "errc::access_denied"},
    {8, "errc::misaligned"},
    {9, "errc::atomics_unsupported"},
    {10, "errc::read_depth_zero"},
    {11, "errc::message_too_large"},
    {12, "errc::private_data_too_large"},
    {13, "errc::invalid_option"},
    {14, "errc::no_rdma_device"},
    {15, "errc::too_many_segments"},
    {16, "errc::region_gone"},
    {17, "errc::foreign_domain"},
    {18, "errc::would_block"},
    {19, "errc::invalidate_unsupported"},
    {20, "errc::peer_disconnected"},
    {21, "errc::peer_closed_early"},
    {22, "errc::foreign_peer"},
    {23, "errc::version_mismatch"},
    {24, "errc::mode_mismatch"},
    {25, "errc::peer_busy"},
    {26, "errc::malformed_message"},
    {27, "errc::unexpected_message"},
    {28, "errc::device_removed"},
    {29, "errc::completion_queue_broken"},
    {30, "errc::not_drained"},
    {31, "errc::stalled"},
    {32, "errc::receives_are_shared"},
    {33, "errc::idle"},
    {34, "errc::queue_pair_failed"},
    {35, "errc::peer_violation"},
    {36, "errc::port_down"},
    {37, "errc::address_gone"},
    {38, "errc::address_family_unsupported"},
};

// enum ibv_wc_status.
constexpr named statuses[] = {
    {1, "IBV_WC_LOC_LEN_ERR"},
    {2, "IBV_WC_LOC_QP_OP_ERR"},
    {3, "IBV_WC_LOC_EEC_OP_ERR"},
    {4, "IBV_WC_LOC_PROT_ERR"},
    {5, "IBV_WC_WR_FLUSH_ERR"},
    {6, "IBV_WC_MW_BIND_ERR"},
    {7, "IBV_WC_BAD_RESP_ERR"},
    {8, "IBV_WC_LOC_ACCESS_ERR"},
    {9, "IBV_WC_REM_INV_REQ_ERR"},
    {10, "IBV_WC_REM_ACCESS_ERR"},
    {11, "IBV_WC_REM_OP_ERR"},
    {12, "IBV_WC_RETRY_EXC_ERR"},
    {13, "IBV_WC_RNR_RETRY_EXC_ERR"},
    {14, "IBV_WC_LOC_RDD_VIOL_ERR"},
    {15, "IBV_WC_REM_INV_RD_REQ_ERR"},
    {16, "IBV_WC_REM_ABORT_ERR"},
    {17, "IBV_WC_INV_EECN_ERR"},
    {18, "IBV_WC_INV_EEC_STATE_ERR"},
    {19, "IBV_WC_FATAL_ERR"},
    {20, "IBV_WC_RESP_TIMEOUT_ERR"},
    {21, "IBV_WC_GENERAL_ERR"},
    {22, "IBV_WC_TM_ERR"},
    {23, "IBV_WC_TM_RNDV_INCOMPLETE"},
};

// enum rdma_cm_event_type.
constexpr named events[] = {
    {0, "RDMA_CM_EVENT_ADDR_RESOLVED"},
    {1, "RDMA_CM_EVENT_ADDR_ERROR"},
    {2, "RDMA_CM_EVENT_ROUTE_RESOLVED"},
    {3, "RDMA_CM_EVENT_ROUTE_ERROR"},
    {4, "RDMA_CM_EVENT_CONNECT_REQUEST"},
    {5, "RDMA_CM_EVENT_CONNECT_RESPONSE"},
    {6, "RDMA_CM_EVENT_CONNECT_ERROR"},
    {7, "RDMA_CM_EVENT_UNREACHABLE"},
    {8, "RDMA_CM_EVENT_REJECTED"},
    {9, "RDMA_CM_EVENT_ESTABLISHED"},
    {10, "RDMA_CM_EVENT_DISCONNECTED"},
    {11, "RDMA_CM_EVENT_DEVICE_REMOVAL"},
    {12, "RDMA_CM_EVENT_MULTICAST_JOIN"},
    {13, "RDMA_CM_EVENT_MULTICAST_ERROR"},
    {14, "RDMA_CM_EVENT_ADDR_CHANGE"},
    {15, "RDMA_CM_EVENT_TIMEWAIT_EXIT"},
};

// enum ibv_event_type.
constexpr named device_events[] = {
    {0, "IBV_EVENT_CQ_ERR"},
    {1, "IBV_EVENT_QP_FATAL"},
    {2, "IBV_EVENT_QP_REQ_ERR"},
    {3, "IBV_EVENT_QP_ACCESS_ERR"},
    {4, "IBV_EVENT_COMM_EST"},
    {5, "IBV_EVENT_SQ_DRAINED"},
    {6, "IBV_EVENT_PATH_MIG"},
    {7, "IBV_EVENT_PATH_MIG_ERR"},
    {8, "IBV_EVENT_DEVICE_FATAL"},
    {9, "IBV_EVENT_PORT_ACTIVE"},
    {10, "IBV_EVENT_PORT_ERR"},
    {11, "IBV_EVENT_LID_CHANGE"},
    {12, "IBV_EVENT_PKEY_CHANGE"},
    {13, "IBV_EVENT_SM_CHANGE"},
    {14, "IBV_EVENT_SRQ_ERR"},
    {15, "IBV_EVENT_SRQ_LIMIT_REACHED"},
    {16, "IBV_EVENT_QP_LAST_WQE_REACHED"},
    {17, "IBV_EVENT_CLIENT_REREGISTER"},
    {18, "IBV_EVENT_GID_CHANGE"},
    {19, "IBV_EVENT_WQ_FATAL"},
};

// Source: InfiniBand specification, table of rejection reasons.
constexpr named reasons[] = {
    {1, "no queue pair available"},
    {3, "no resources available"},
    {4, "timeout"},
    {5, "unsupported request"},
    {6, "invalid communication id"},
    {8, "invalid service id"},
    {9, "invalid service type"},
    {10, "stale connection"},
    {12, "invalid GID"},
    {13, "invalid LID"},
    {14, "invalid service level"},
    {15, "invalid traffic class"},
    {16, "invalid hop limit"},
    {17, "invalid packet rate"},
    {24, "port and CM redirection"},
    {25, "port redirection"},
    {26, "invalid path MTU"},
    {27, "insufficient responder resources"},
    {28, "consumer defined"},
    {29, "invalid RNR retry count"},
    {33, "unsupported class version"},
    {34, "invalid flow label"},
    {35, "invalid alternate flow label"},
};

// What an event of the connection manager carries with a rejection, on top of its own number.
constexpr int rejections = 1000;

char const* find(std::span<named const> in, int value) noexcept {
    for (named const& n : in) {
        if (n.value == value) return n.name;
    }
    return nullptr;
}

std::string or_empty(char const* name) { return name != nullptr ? name : ""; }

}  // namespace

std::string symbol_of(error_code const& ec) {
    int const value = ec.value();
    if (ec.category() == rcverbs_category()) return or_empty(find(ours, value));
    if (ec.category() == work_completion_category()) return or_empty(find(statuses, value));
    if (ec.category() == connection_manager_category()) {
        if (value < rejections) return or_empty(find(events, value));
        char const* const reason = find(reasons, value - rejections);
        return "RDMA_CM_EVENT_REJECTED, reason: " + (reason != nullptr ? reason : std::to_string(value - rejections));
    }
    if (ec.category() == boost::system::system_category()) return or_empty(::strerrorname_np(value));
    return "";
}

std::string describe_status(error_code const& ec, int status) {
    if (status == 0) return "";
    std::string const number = std::to_string(status);
    if (ec.category() == work_completion_category()) return "vendor error " + number;
    char const* const event = ec.category() == rcverbs_category() ? find(device_events, status) : nullptr;
    if (event != nullptr) return event + (" (" + number + ')');
    char const* const name = status < 0 ? ::strerrorname_np(-status) : nullptr;
    return "status " + number + (name != nullptr ? std::string{' '} + name : "");
}

}  // namespace rcverbs::detail
