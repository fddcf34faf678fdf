#include "rdma-bench/layout.hpp"

#include <algorithm>

namespace rdma_bench {

namespace {

// Memory limits for each direction, of all connections and of one. The limit for one keeps its
// memory in a processor's cache, as in programs that process the data they move.
constexpr std::size_t memory_bytes_max = std::size_t{256} << 20;
constexpr std::size_t connection_bytes_max = std::size_t{1} << 20;

}  // namespace

layout::layout(plan const& p) noexcept
    : stride_bytes{(static_cast<std::size_t>(p.size_bytes()) + 63) / 64 * 64},
      slots{1},
      receives{p.receives},
      receive_slots{1} {
    std::size_t const budget = std::min(connection_bytes_max, memory_bytes_max / p.connections);
    // A message to be verified must not be overwritten before; without verification, messages may
    // share slots.
    std::size_t const receive_budget = p.verifies ? memory_bytes_max / p.connections : budget;
    slots = std::clamp<std::size_t>(budget / stride_bytes, 1, p.depth);
    // Each atomic in flight needs its own slot for the result.
    if (is_atomic(p.what)) slots = p.depth;
    receive_slots = std::clamp<std::size_t>(receive_budget / stride_bytes, 1, p.receives);
    if (p.verifies) receives = receive_slots;
}

}  // namespace rdma_bench
