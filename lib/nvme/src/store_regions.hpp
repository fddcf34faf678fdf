// store_regions.hpp — the memory of a store in memory, registered with the devices of its hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rcverbs/memory_region.hpp>
#include <rcverbs/nvme/block_store.hpp>

#include "subsystem.hpp"

namespace rcverbs::nvme::detail {

/// Registers the memory once for each protection domain. Safe from any thread.
class store_regions {
public:
    explicit store_regions(std::shared_ptr<block_store> store) : store_{std::move(store)} {}

    /// A range of the memory, to transfer. @throws the errors of memory_region.
    mutable_slice slice(
        protection_domain const& domain, std::uint64_t offset_bytes, std::size_t size_bytes
    );
    /// Removes the registration in a domain.
    void forget(protection_domain const& domain);

private:
    std::shared_ptr<block_store> const store_;
    std::mutex mutex_;
    std::vector<std::pair<protection_domain, memory_region>> regions_;  // guarded by mutex_
};

/// Those of a disk. Any thread.
store_regions& regions_of(disk const& d);

}  // namespace rcverbs::nvme::detail
