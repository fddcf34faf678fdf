// errno_map.hpp — converts the failure conventions of the C calls to error codes, in one place.
//
// The conventions differ between families of calls. Using the wrong one gives a wrong error or
// none. Only errno_map.cpp reads errno.
#pragma once

#include <rcverbs/error.hpp>

namespace rcverbs::verbs {

/// For calls that return a pointer and, on failure, null with the code in errno: ibv_alloc_pd,
/// ibv_reg_mr, ibv_create_*, ibv_open_device, rdma_create_event_channel. Source: their manual
/// pages, RETURN VALUE.
error_code from_pointer(void const* returned) noexcept;

/// For calls that return 0 or the code itself: ibv_modify_qp, ibv_query_*, ibv_post_*,
/// ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_*, ibv_req_notify_cq. Some providers return -1 and set
/// errno, or return a negative code: all three forms are handled.
error_code from_returned_code(int returned) noexcept;

/// For calls that return -1 with the code in errno: the rdma_* functions and system calls.
error_code from_minus_one(int returned) noexcept;

/// True if this process may open `count` more descriptors.
bool has_free_descriptors(unsigned count) noexcept;

/// Returns `ec`, or EMFILE if `ec` is an error and the process has almost no free descriptors.
/// rdma-core reports that condition as various errors: no such device, no route, an address that
/// cannot be resolved.
error_code or_out_of_descriptors(error_code ec) noexcept;

/// Returns `ec`, or errc::rdma_unavailable if it means that the machine has no RDMA device, or no kernel
/// module for one.
error_code or_unavailable(error_code ec) noexcept;

/// Makes a descriptor non-blocking. Source: fcntl(2).
error_code set_non_blocking(int descriptor) noexcept;

/// The error code of a work completion: its value is the ibv_wc_status. Source: ibv_poll_cq(3).
inline error_code from_status(int status) noexcept { return {status, work_completion_category()}; }

/// The error code of the status in an rdmacm event: 0 or a negative errno.
error_code from_event_status(int status) noexcept;

}  // namespace rcverbs::verbs
