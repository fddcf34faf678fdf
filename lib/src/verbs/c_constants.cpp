// Compares every copied constant of rdma-core with the C headers, at compile time.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>
#include <string_view>

#include <rcverbs/error.hpp>

#include "error/symbol_tables.hpp"

namespace rcverbs::detail {

namespace {

#define RCVERBS_NAMED(constant) \
    { static_cast<int>(constant), #constant }

template <std::size_t N, std::size_t M>
constexpr bool same(named const (&ours)[N], named const (&theirs)[M]) {
    if (N != M) return false;
    for (std::size_t i = 0; i < N; ++i) {
        if (ours[i].value != theirs[i].value || std::string_view{ours[i].name} != theirs[i].name)
            return false;
    }
    return true;
}

constexpr named statuses_of_c[] = {
    RCVERBS_NAMED(IBV_WC_LOC_LEN_ERR),        RCVERBS_NAMED(IBV_WC_LOC_QP_OP_ERR),
    RCVERBS_NAMED(IBV_WC_LOC_EEC_OP_ERR),     RCVERBS_NAMED(IBV_WC_LOC_PROT_ERR),
    RCVERBS_NAMED(IBV_WC_WR_FLUSH_ERR),       RCVERBS_NAMED(IBV_WC_MW_BIND_ERR),
    RCVERBS_NAMED(IBV_WC_BAD_RESP_ERR),       RCVERBS_NAMED(IBV_WC_LOC_ACCESS_ERR),
    RCVERBS_NAMED(IBV_WC_REM_INV_REQ_ERR),    RCVERBS_NAMED(IBV_WC_REM_ACCESS_ERR),
    RCVERBS_NAMED(IBV_WC_REM_OP_ERR),         RCVERBS_NAMED(IBV_WC_RETRY_EXC_ERR),
    RCVERBS_NAMED(IBV_WC_RNR_RETRY_EXC_ERR),  RCVERBS_NAMED(IBV_WC_LOC_RDD_VIOL_ERR),
    RCVERBS_NAMED(IBV_WC_REM_INV_RD_REQ_ERR), RCVERBS_NAMED(IBV_WC_REM_ABORT_ERR),
    RCVERBS_NAMED(IBV_WC_INV_EECN_ERR),       RCVERBS_NAMED(IBV_WC_INV_EEC_STATE_ERR),
    RCVERBS_NAMED(IBV_WC_FATAL_ERR),          RCVERBS_NAMED(IBV_WC_RESP_TIMEOUT_ERR),
    RCVERBS_NAMED(IBV_WC_GENERAL_ERR),        RCVERBS_NAMED(IBV_WC_TM_ERR),
    RCVERBS_NAMED(IBV_WC_TM_RNDV_INCOMPLETE),
};
static_assert(same(statuses, statuses_of_c));

constexpr named events_of_c[] = {
    RCVERBS_NAMED(RDMA_CM_EVENT_ADDR_RESOLVED),
    RCVERBS_NAMED(RDMA_CM_EVENT_ADDR_ERROR),
    RCVERBS_NAMED(RDMA_CM_EVENT_ROUTE_RESOLVED),
    RCVERBS_NAMED(RDMA_CM_EVENT_ROUTE_ERROR),
    RCVERBS_NAMED(RDMA_CM_EVENT_CONNECT_REQUEST),
    RCVERBS_NAMED(RDMA_CM_EVENT_CONNECT_RESPONSE),
    RCVERBS_NAMED(RDMA_CM_EVENT_CONNECT_ERROR),
    RCVERBS_NAMED(RDMA_CM_EVENT_UNREACHABLE),
    RCVERBS_NAMED(RDMA_CM_EVENT_REJECTED),
    RCVERBS_NAMED(RDMA_CM_EVENT_ESTABLISHED),
    RCVERBS_NAMED(RDMA_CM_EVENT_DISCONNECTED),
    RCVERBS_NAMED(RDMA_CM_EVENT_DEVICE_REMOVAL),
    RCVERBS_NAMED(RDMA_CM_EVENT_MULTICAST_JOIN),
    RCVERBS_NAMED(RDMA_CM_EVENT_MULTICAST_ERROR),
    RCVERBS_NAMED(RDMA_CM_EVENT_ADDR_CHANGE),
    RCVERBS_NAMED(RDMA_CM_EVENT_TIMEWAIT_EXIT),
};
static_assert(same(events, events_of_c));

constexpr named device_events_of_c[] = {
    RCVERBS_NAMED(IBV_EVENT_CQ_ERR),
    RCVERBS_NAMED(IBV_EVENT_QP_FATAL),
    RCVERBS_NAMED(IBV_EVENT_QP_REQ_ERR),
    RCVERBS_NAMED(IBV_EVENT_QP_ACCESS_ERR),
    RCVERBS_NAMED(IBV_EVENT_COMM_EST),
    RCVERBS_NAMED(IBV_EVENT_SQ_DRAINED),
    RCVERBS_NAMED(IBV_EVENT_PATH_MIG),
    RCVERBS_NAMED(IBV_EVENT_PATH_MIG_ERR),
    RCVERBS_NAMED(IBV_EVENT_DEVICE_FATAL),
    RCVERBS_NAMED(IBV_EVENT_PORT_ACTIVE),
    RCVERBS_NAMED(IBV_EVENT_PORT_ERR),
    RCVERBS_NAMED(IBV_EVENT_LID_CHANGE),
    RCVERBS_NAMED(IBV_EVENT_PKEY_CHANGE),
    RCVERBS_NAMED(IBV_EVENT_SM_CHANGE),
    RCVERBS_NAMED(IBV_EVENT_SRQ_ERR),
    RCVERBS_NAMED(IBV_EVENT_SRQ_LIMIT_REACHED),
    RCVERBS_NAMED(IBV_EVENT_QP_LAST_WQE_REACHED),
    RCVERBS_NAMED(IBV_EVENT_CLIENT_REREGISTER),
    RCVERBS_NAMED(IBV_EVENT_GID_CHANGE),
    RCVERBS_NAMED(IBV_EVENT_WQ_FATAL),
};
static_assert(same(device_events, device_events_of_c));

#define RCVERBS_SAME(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))

RCVERBS_SAME(wc_errc::local_length, IBV_WC_LOC_LEN_ERR);
RCVERBS_SAME(wc_errc::local_qp_operation, IBV_WC_LOC_QP_OP_ERR);
RCVERBS_SAME(wc_errc::local_eec_operation, IBV_WC_LOC_EEC_OP_ERR);
RCVERBS_SAME(wc_errc::local_protection, IBV_WC_LOC_PROT_ERR);
RCVERBS_SAME(wc_errc::flushed, IBV_WC_WR_FLUSH_ERR);
RCVERBS_SAME(wc_errc::memory_window_bind, IBV_WC_MW_BIND_ERR);
RCVERBS_SAME(wc_errc::bad_response, IBV_WC_BAD_RESP_ERR);
RCVERBS_SAME(wc_errc::local_access, IBV_WC_LOC_ACCESS_ERR);
RCVERBS_SAME(wc_errc::remote_invalid_request, IBV_WC_REM_INV_REQ_ERR);
RCVERBS_SAME(wc_errc::remote_access, IBV_WC_REM_ACCESS_ERR);
RCVERBS_SAME(wc_errc::remote_operation, IBV_WC_REM_OP_ERR);
RCVERBS_SAME(wc_errc::retry_exceeded, IBV_WC_RETRY_EXC_ERR);
RCVERBS_SAME(wc_errc::rnr_retry_exceeded, IBV_WC_RNR_RETRY_EXC_ERR);
RCVERBS_SAME(wc_errc::local_rdd_violation, IBV_WC_LOC_RDD_VIOL_ERR);
RCVERBS_SAME(wc_errc::remote_invalid_rd_request, IBV_WC_REM_INV_RD_REQ_ERR);
RCVERBS_SAME(wc_errc::remote_aborted, IBV_WC_REM_ABORT_ERR);
RCVERBS_SAME(wc_errc::invalid_eec_number, IBV_WC_INV_EECN_ERR);
RCVERBS_SAME(wc_errc::invalid_eec_state, IBV_WC_INV_EEC_STATE_ERR);
RCVERBS_SAME(wc_errc::fatal, IBV_WC_FATAL_ERR);
RCVERBS_SAME(wc_errc::response_timeout, IBV_WC_RESP_TIMEOUT_ERR);
RCVERBS_SAME(wc_errc::general, IBV_WC_GENERAL_ERR);
RCVERBS_SAME(wc_errc::tag_matching, IBV_WC_TM_ERR);
RCVERBS_SAME(wc_errc::tag_matching_rndv_incomplete, IBV_WC_TM_RNDV_INCOMPLETE);

RCVERBS_SAME(cm_errc::address_error, RDMA_CM_EVENT_ADDR_ERROR);
RCVERBS_SAME(cm_errc::route_error, RDMA_CM_EVENT_ROUTE_ERROR);
RCVERBS_SAME(cm_errc::connect_error, RDMA_CM_EVENT_CONNECT_ERROR);
RCVERBS_SAME(cm_errc::unreachable, RDMA_CM_EVENT_UNREACHABLE);
RCVERBS_SAME(cm_errc::rejected, RDMA_CM_EVENT_REJECTED);
RCVERBS_SAME(cm_errc::disconnected, RDMA_CM_EVENT_DISCONNECTED);
RCVERBS_SAME(cm_errc::device_removal, RDMA_CM_EVENT_DEVICE_REMOVAL);
RCVERBS_SAME(cm_errc::address_change, RDMA_CM_EVENT_ADDR_CHANGE);

#undef RCVERBS_SAME
#undef RCVERBS_NAMED

}  // namespace

}  // namespace rcverbs::detail
