// symbol_tables.hpp — names of rdma-core's constants.
//
// This directory includes no C header, so the numbers are written out here; verbs/c_constants.cpp
// compares them with the headers.
#pragma once

namespace rcverbs::detail {

struct named {
    int value;
    char const* name;
};

// enum ibv_wc_status.
inline constexpr named statuses[] = {
    {1, "IBV_WC_LOC_LEN_ERR"},         {2, "IBV_WC_LOC_QP_OP_ERR"},
    {3, "IBV_WC_LOC_EEC_OP_ERR"},      {4, "IBV_WC_LOC_PROT_ERR"},
    {5, "IBV_WC_WR_FLUSH_ERR"},        {6, "IBV_WC_MW_BIND_ERR"},
    {7, "IBV_WC_BAD_RESP_ERR"},        {8, "IBV_WC_LOC_ACCESS_ERR"},
    {9, "IBV_WC_REM_INV_REQ_ERR"},     {10, "IBV_WC_REM_ACCESS_ERR"},
    {11, "IBV_WC_REM_OP_ERR"},         {12, "IBV_WC_RETRY_EXC_ERR"},
    {13, "IBV_WC_RNR_RETRY_EXC_ERR"},  {14, "IBV_WC_LOC_RDD_VIOL_ERR"},
    {15, "IBV_WC_REM_INV_RD_REQ_ERR"}, {16, "IBV_WC_REM_ABORT_ERR"},
    {17, "IBV_WC_INV_EECN_ERR"},       {18, "IBV_WC_INV_EEC_STATE_ERR"},
    {19, "IBV_WC_FATAL_ERR"},          {20, "IBV_WC_RESP_TIMEOUT_ERR"},
    {21, "IBV_WC_GENERAL_ERR"},        {22, "IBV_WC_TM_ERR"},
    {23, "IBV_WC_TM_RNDV_INCOMPLETE"},
};

// enum rdma_cm_event_type.
inline constexpr named events[] = {
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
inline constexpr named device_events[] = {
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

}  // namespace rcverbs::detail
