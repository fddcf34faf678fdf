// layout.hpp — divides a plan's memory into slots; the same on both sides.
#pragma once

#include <cstddef>
#include <cstdint>

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

/// The most memory in bytes that one side uses for a plan's connections: their regions, and an
/// estimate from above of their queues and operations. REQUIRES: p.problem() is empty.
std::uint64_t memory_bytes(plan const& p) noexcept;

}  // namespace rdma_bench
