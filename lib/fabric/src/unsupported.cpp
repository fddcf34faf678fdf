// Functions that the fabric does not support. They are defined nevertheless, because the real
// libraries' functions must not access the objects of the fabric.
#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace {

int unsupported_errno() noexcept {
    errno = ENOSYS;
    return -1;
}

template <class T>
T* unsupported_object() noexcept {
    errno = EOPNOTSUPP;
    return nullptr;
}

}  // namespace

extern "C" {

// --- librdmacm -----------------------------------------------------------------------------------

int rdma_notify(rdma_cm_id*, ibv_event_type) { return unsupported_errno(); }
int rdma_create_srq(rdma_cm_id*, ibv_pd*, ibv_srq_init_attr*) { return unsupported_errno(); }
int rdma_create_srq_ex(rdma_cm_id*, ibv_srq_init_attr_ex*) { return unsupported_errno(); }
void rdma_destroy_srq(rdma_cm_id*) {}
int rdma_join_multicast(rdma_cm_id*, sockaddr*, void*) { return unsupported_errno(); }
int rdma_join_multicast_ex(rdma_cm_id*, rdma_cm_join_mc_attr_ex*, void*) {
    return unsupported_errno();
}
int rdma_leave_multicast(rdma_cm_id*, sockaddr*) { return unsupported_errno(); }
int rdma_reject_ece(rdma_cm_id*, void const*, std::uint8_t) { return unsupported_errno(); }
int rdma_set_local_ece(rdma_cm_id*, ibv_ece*) { return unsupported_errno(); }
int rdma_get_remote_ece(rdma_cm_id*, ibv_ece*) { return unsupported_errno(); }

// --- libibverbs ----------------------------------------------------------------------------------

int ibv_resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }
int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, std::size_t, int) { return EOPNOTSUPP; }
ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) { return unsupported_object<ibv_ah>(); }
ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, std::uint8_t) {
    return unsupported_object<ibv_ah>();
}
int ibv_destroy_ah(ibv_ah*) { return EOPNOTSUPP; }
int ibv_attach_mcast(ibv_qp*, ibv_gid const*, std::uint16_t) { return EOPNOTSUPP; }
int ibv_detach_mcast(ibv_qp*, ibv_gid const*, std::uint16_t) { return EOPNOTSUPP; }
ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp*) { return unsupported_object<ibv_qp_ex>(); }
}
