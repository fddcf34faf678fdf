// rights.hpp — access_flags as verbs say them.
#pragma once

#include <infiniband/verbs.h>

#include <rcverbs/access_flags.hpp>

namespace rcverbs::verbs {

/// As enum ibv_access_flags. Source: ibv_reg_mr(3), ibv_modify_qp(3).
constexpr int to_ibv_access(access_flags rights) noexcept {

    int flags = 0;
    if (allows(rights, access_flags::local_write)) flags |= IBV_ACCESS_LOCAL_WRITE;
    if (allows(rights, access_flags::remote_write)) flags |= IBV_ACCESS_REMOTE_WRITE;
    if (allows(rights, access_flags::remote_read)) flags |= IBV_ACCESS_REMOTE_READ;
    if (allows(rights, access_flags::remote_atomic)) flags |= IBV_ACCESS_REMOTE_ATOMIC;
    return flags;
}

}  // namespace rcverbs::verbs
