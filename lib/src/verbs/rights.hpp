// rights.hpp — converts access_flags to enum ibv_access_flags.
#pragma once

#include <infiniband/verbs.h>

#include <rcverbs/access_flags.hpp>

namespace rcverbs::verbs {

/// Source: ibv_reg_mr(3), ibv_modify_qp(3).
constexpr int to_ibv_access(access_flags rights) noexcept {
    int flags = 0;
    if (allows(rights, access_flags::local_write)) flags |= IBV_ACCESS_LOCAL_WRITE;
    if (allows(rights, access_flags::remote_write)) flags |= IBV_ACCESS_REMOTE_WRITE;
    if (allows(rights, access_flags::remote_read)) flags |= IBV_ACCESS_REMOTE_READ;
    if (allows(rights, access_flags::remote_atomic)) flags |= IBV_ACCESS_REMOTE_ATOMIC;
    if (allows(rights, access_flags::bind_windows)) flags |= IBV_ACCESS_MW_BIND;
    // libibverbs drops this flag where the kernel does not know it.
    if (allows(rights, access_flags::relaxed_ordering)) flags |= IBV_ACCESS_RELAXED_ORDERING;
    if (allows(rights, access_flags::on_demand)) flags |= IBV_ACCESS_ON_DEMAND;
    return flags;
}

}  // namespace rcverbs::verbs
