#include "store_regions.hpp"

namespace rcverbs::nvme::detail {

mutable_slice store_regions::slice(
    protection_domain const& domain, std::uint64_t offset_bytes, std::size_t size_bytes
) {
    std::lock_guard const lock{mutex_};
    for (auto const& [of, region] : regions_) {
        if (of == domain) return region.slice(offset_bytes, size_bytes);
    }
    regions_.emplace_back(
        domain, memory_region{domain, store_->memory(), access_flags::local_write}
    );
    return regions_.back().second.slice(offset_bytes, size_bytes);
}

void store_regions::forget(protection_domain const& domain) {
    std::lock_guard const lock{mutex_};
    std::erase_if(regions_, [&](auto const& one) { return one.first == domain; });
}

store_regions& regions_of(disk const& d) {
    std::lock_guard const lock{d.state->regions_mutex};
    auto& regions = d.state->regions;
    if (regions == nullptr) regions = std::make_shared<store_regions>(d.options.store);
    return *regions;
}

}  // namespace rcverbs::nvme::detail
