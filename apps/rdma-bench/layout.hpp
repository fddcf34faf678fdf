// layout.hpp — divides a plan's memory into slots; the same on both sides.
#pragma once

#include <cstddef>

#include "rdma-bench/plan.hpp"

namespace rdma_bench {

struct layout {
    /// The distance between slots, in bytes.
    std::size_t stride_bytes;
    /// Operation n reads and writes slot n % slots.
    std::size_t slots;
    /// The number of receives kept posted, and of the slots that they use in turn.
    std::size_t receives;
    std::size_t receive_slots;

    explicit layout(plan const& p) noexcept;
};

}  // namespace rdma_bench
