#include "rdma-bench/layout.hpp"

#include <algorithm>

#include "rdma-bench/memory.hpp"

namespace rdma_bench {

namespace {

// Memory limits for each direction, of all connections and of one. The limit for one keeps its
// memory in a processor's cache, as in programs that process the data they move.
constexpr std::size_t memory_bytes_max = std::size_t{256} << 20;
constexpr std::size_t connection_bytes_max = std::size_t{1} << 20;

// Of a connection without its queues, and of a place in a queue: two operations of the library's,
// the device's work request, and the program's slot. Measured: docs/benchmarks/method.md, "Memory
// of a connection".
constexpr std::uint64_t connection_bytes = std::uint64_t{64} << 10;
constexpr std::uint64_t place_bytes = std::uint64_t{2} << 10;

// Of one direction's memory, as pages maps it: small pages that are not used take no memory.
std::uint64_t mapped_bytes(plan const& p, std::uint64_t size_bytes) noexcept {
    if (p.pages == page_kind::small) return size_bytes + 2 * small_page_bytes;
    return size_bytes + 2 * p.alignment_bytes + huge_page_bytes;
}

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

std::uint64_t memory_bytes(plan const& p) noexcept {
    // plan::problem() bounds every factor: the product is below 2^60.
    layout const shape{p};
    std::uint64_t places = p.send_queue_depth();
    if (is_received(p.what)) places += shape.receives;
    std::uint64_t each = connection_bytes + places * place_bytes;
    if (p.what != operation::connect) {
        std::size_t const in_slots = p.what == operation::send ? shape.receive_slots : shape.slots;
        each += mapped_bytes(p, shape.stride_bytes * shape.slots);
        each += mapped_bytes(p, shape.stride_bytes * in_slots);
    }
    return each * p.connections;
}

}  // namespace rdma_bench
