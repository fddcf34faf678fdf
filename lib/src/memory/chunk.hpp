// chunk.hpp — memory from the system, with the wanted pages on the wanted NUMA node, registered in
// each of a pool's protection domains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/memory_pool.hpp>

namespace rcverbs::detail {

class chunk {
public:
    /// Maps and registers `size_bytes` bytes, a multiple of page_bytes(). Leaves nothing behind on
    /// failure.
    static std::optional<chunk> make(
        std::span<protection_domain const> domains,
        std::size_t size_bytes,
        memory_pool_options const& options,
        error_code& ec
    );
    /// The size of the pages that are asked for.
    static std::size_t page_bytes(page_size pages) noexcept;

    std::byte* base() const noexcept { return memory_.get(); }
    std::size_t size() const noexcept { return memory_.get_deleter().size_bytes; }
    bool is_huge() const noexcept { return is_huge_; }
    bool is_on_node() const noexcept { return is_on_node_; }
    /// Its registration in the domain of that number.
    memory_region const& region(std::size_t domain) const noexcept { return regions_[domain]; }

private:
    chunk() = default;

    // Deregistered before it is unmapped.
    mapped_memory memory_;
    std::vector<memory_region> regions_;
    bool is_huge_ = false;
    bool is_on_node_ = false;
};

}  // namespace rcverbs::detail
