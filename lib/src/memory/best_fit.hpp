// best_fit.hpp — allocates blocks of address ranges: the smallest free block that fits, split, and
// joined with its free neighbours when it is freed. No memory of the ranges is touched.
//
// One thread at a time. Sizes are multiples of granule_bytes.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace rcverbs::detail {

class best_fit {
public:
    static constexpr std::size_t granule_bytes = 64;

    /// The size of a block that holds `size_bytes` bytes.
    static constexpr std::size_t rounded(std::size_t size_bytes) noexcept {
        return (size_bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
    }

    /// Adds a free range, or throws std::bad_alloc and changes nothing. REQUIRES: it overlaps no
    /// other, and is aligned to granule_bytes.
    void add_range(std::byte* base, std::size_t size_bytes);
    /// Removes a range if all of it is free.
    bool remove_range(std::byte* base) noexcept;

    /// A block; null if none fits. Throws std::bad_alloc and changes nothing if there is no memory
    /// to keep account of it, and of its return. REQUIRES: size_bytes is rounded and above 0,
    /// alignment a power of two.
    std::byte* allocate(std::size_t size_bytes, std::size_t alignment);
    /// Frees a block of that size; allocates nothing. REQUIRES: allocate() returned it.
    void free(std::byte* block, std::size_t size_bytes) noexcept;

    std::size_t free_bytes() const noexcept { return free_bytes_; }
    std::size_t largest_free_bytes() const noexcept {
        return by_size_.empty() ? 0 : by_size_.rbegin()->first;
    }

private:
    using by_address = std::map<std::byte*, std::size_t>;
    using by_size = std::set<std::pair<std::size_t, std::byte*>>;

    void make_spares(std::size_t count);
    void insert(std::byte* block, std::size_t size_bytes) noexcept;
    void erase(std::byte* block, std::size_t size_bytes) noexcept;
    std::pair<std::byte* const, std::size_t> const& range_of(std::byte* block) const noexcept;

    std::map<std::byte*, std::size_t> ranges_;
    by_address by_address_;
    by_size by_size_;
    // Nodes for the blocks that are allocated, each of which may become a free block of its own.
    std::vector<by_address::node_type> spare_addresses_;
    std::vector<by_size::node_type> spare_sizes_;
    std::size_t blocks_ = 0;
    std::size_t free_bytes_ = 0;
};

}  // namespace rcverbs::detail
