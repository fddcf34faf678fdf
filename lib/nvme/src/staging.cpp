#include "staging.hpp"

#include <algorithm>

#include "queue.hpp"

namespace rcverbs::nvme::detail {

namespace {

memory_pool_options pool_options(std::size_t bytes) {
    memory_pool_options o;
    o.bytes_max = bytes;
    o.chunk_bytes = std::min(bytes, std::size_t{4} << 20);
    return o;
}

}  // namespace

staging_memory::staging_memory(protection_domain const& domain, std::size_t common_bytes)
    : pool_{domain, pool_options(common_bytes)},
      host_bytes_max_{common_bytes / 2},
      address_bytes_max_{common_bytes / 4 * 3} {}

void* staging_memory::allocate(std::size_t size_bytes, host_account& of) {
    if (of.staged_bytes + size_bytes > host_bytes_max_) return nullptr;
    if (of.of_address->staged_bytes + size_bytes > address_bytes_max_) return nullptr;
    try {
        void* const memory = pool_.allocate(size_bytes, alignment);
        of.staged_bytes += size_bytes;
        of.of_address->staged_bytes += size_bytes;
        return memory;
    } catch (memory_pool_exhausted const&) {
        return nullptr;
    }
}

void staging_memory::free(void* memory, std::size_t size_bytes, host_account& of) {
    pool_.deallocate(memory, size_bytes, alignment);
    of.staged_bytes -= size_bytes;
    of.of_address->staged_bytes -= size_bytes;
    // Each queue once; those that still wait stand in line again.
    for (std::size_t left = line_.size(); left > 0; --left) {
        auto const next = line_.front().lock();
        line_.pop_front();
        if (next != nullptr) next->serve_waiting();
    }
}

void staging_memory::stand_in_line(std::shared_ptr<queue> const& waits) { line_.push_back(waits); }

}  // namespace rcverbs::nvme::detail
