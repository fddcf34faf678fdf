// lockable.hpp — how much memory this process may lock. Registered memory is locked.
#pragma once

#include <cstdint>

namespace demo {

/// Bytes that this process may lock, in all (RLIMIT_MEMLOCK); UINT64_MAX for no limit. CAP_IPC_LOCK lifts
/// it, but not that of a user namespace other than the first. Source: ib_umem_get() in
/// drivers/infiniband/core/umem.c, which calls capable().
std::uint64_t lockable_bytes_max();
/// Those of them that it has not locked yet.
std::uint64_t lockable_bytes_left();

}  // namespace demo
