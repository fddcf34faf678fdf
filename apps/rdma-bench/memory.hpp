// memory.hpp — the memory that operations read and write: its pages, alignment and contents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "rdma-bench/plan.hpp"

namespace rdma_bench {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
inline constexpr std::size_t small_page_bytes = 4096;

/// A mapping of zeroed pages.
class pages {
public:
    pages() = default;
    /// `size_bytes` bytes at an address that is a multiple of `alignment_bytes` but not of twice
    /// that. Throws boost::system::system_error if the pages cannot be mapped.
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

/// Fills a slot with the contents that follow from the seed and the slot's index.
void fill(std::span<std::byte> slot, std::uint64_t seed, std::uint64_t slot_index) noexcept;
/// True if the slot has these contents.
bool holds(std::span<std::byte const> slot, std::uint64_t seed, std::uint64_t slot_index) noexcept;

}  // namespace rdma_bench
