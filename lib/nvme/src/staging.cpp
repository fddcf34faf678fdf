#include "staging.hpp"

#include <algorithm>
#include <utility>

namespace rcverbs::nvme::detail {

namespace {

memory_pool_options pool_options(std::size_t bytes) {
    memory_pool_options o;
    o.bytes_max = bytes;
    o.chunk_bytes = std::min(bytes, std::size_t{4} << 20);
    return o;
}

}  // namespace

staging_memory::staging_memory(
    protection_domain const& domain, std::size_t common_bytes, std::shared_ptr<std::mutex> accounts
)
    : pool_{domain, pool_options(common_bytes)},
      host_bytes_max_{common_bytes / 2},
      address_bytes_max_{common_bytes / 4 * 3},
      mutex_{std::move(accounts)} {}

void* staging_memory::allocate(std::size_t size_bytes, host_account& of) {
    std::lock_guard const lock{*mutex_};
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
    std::lock_guard const lock{*mutex_};
    pool_.deallocate(memory, size_bytes, alignment);
    of.staged_bytes -= size_bytes;
    of.of_address->staged_bytes -= size_bytes;
}

}  // namespace rcverbs::nvme::detail
