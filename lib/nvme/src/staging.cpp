#include "staging.hpp"

#include <algorithm>
#include <utility>

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
    std::vector<std::weak_ptr<queue>> line;
    {
        std::lock_guard const lock{*mutex_};
        pool_.deallocate(memory, size_bytes, alignment);
        of.staged_bytes -= size_bytes;
        of.of_address->staged_bytes -= size_bytes;
        ++frees_;
        line = std::exchange(line_, {});
    }
    // Each queue once; those that still wait stand in line again.
    for (auto const& one : line) {
        if (auto const next = one.lock()) next->serve_waiting();
    }
}

std::uint64_t staging_memory::frees() const {
    std::lock_guard const lock{*mutex_};
    return frees_;
}

bool staging_memory::stand_in_line(std::shared_ptr<queue> const& waits, std::uint64_t frees_seen) {
    std::lock_guard const lock{*mutex_};
    if (frees_ != frees_seen) return false;
    line_.push_back(waits);
    return true;
}

}  // namespace rcverbs::nvme::detail
