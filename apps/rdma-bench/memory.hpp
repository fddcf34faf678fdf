// memory.hpp — the memory that operations read and write: its pages, its alignment, and what it holds.
//
// Memory is divided into slots, one after another; operation n uses slot n modulo their number, on either side. What a slot
// holds follows from a seed, so that the receiver can tell whether it got what was sent. Values; no threading rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rdma-bench/plan.hpp"

namespace rdma_bench {

/// Zeroed pages of their own.
class pages {
public:
    pages() = default;
    /// `size_bytes` bytes, aligned as asked and no better. Throws boost::system::system_error if they cannot be had.
    pages(std::size_t size_bytes, page_kind kind, std::uint64_t alignment_bytes);
    pages(pages&& other) noexcept;
    pages& operator=(pages&& other) noexcept;
    ~pages();

    std::span<std::byte> bytes() const noexcept { return bytes_; }

private:
    std::byte* mapped_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::span<std::byte> bytes_;
};

/// Fills a slot with what follows from the seed and the slot's number.
void fill(std::span<std::byte> slot, std::uint64_t seed, std::uint64_t slot_index) noexcept;
/// True if it holds that.
bool holds(std::span<std::byte const> slot, std::uint64_t seed, std::uint64_t slot_index) noexcept;

}  // namespace rdma_bench
