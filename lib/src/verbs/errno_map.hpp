// errno_map.hpp — how each family of C calls says that it failed, in one place.
//
// The families differ, and taking one for the other gives a wrong diagnosis or none. Only errno_map.cpp reads errno.
#pragma once

#include <rcverbs/error.hpp>

namespace rcverbs::verbs {

/// For calls that return a pointer and, on failure, null with the code in errno: ibv_alloc_pd, ibv_reg_mr, ibv_create_*,
/// ibv_open_device, rdma_create_event_channel. Source: their manual pages, RETURN VALUE.
error_code from_pointer(void const* returned) noexcept;

/// For calls that return 0 or the code itself: ibv_modify_qp, ibv_query_*, ibv_post_*, ibv_dealloc_pd, ibv_dereg_mr,
/// ibv_destroy_*, ibv_req_notify_cq. Some providers return -1 and set errno, or a negative code: all are understood.
error_code from_returned_code(int returned) noexcept;

/// For calls that return -1 with the code in errno: the rdma_* functions, and the system's own.
error_code from_minus_one(int returned) noexcept;

/// Makes reading from a descriptor return instead of waiting. Source: fcntl(2).
error_code set_non_blocking(int descriptor) noexcept;

/// The status of a work completion, an ibv_wc_status: the code is the status. Source: ibv_poll_cq(3).
inline error_code from_status(int status) noexcept { return {status, work_completion_category()}; }

/// A status that an rdmacm event carries: 0 or a negative errno.
error_code from_event_status(int status) noexcept;

}  // namespace rcverbs::verbs
