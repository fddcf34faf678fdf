// region_record.hpp — registration records for checks of slices: validity, domain and rights.
//
// Slices are values and may outlive their region. A record is never freed, only reused with the
// next generation number, so a slice can always be checked. The number of records is the largest
// number of regions that existed at the same time.
//
// Registration and deregistration write the records; operations read them on any thread. Using a
// slice while its region is being deregistered is a programming error. The check detects it often,
// not always.
#pragma once

#include <atomic>
#include <cstdint>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/slice.hpp>

struct ibv_mr;

namespace rcverbs::verbs {
class domain;
}  // namespace rcverbs::verbs

namespace rcverbs::detail {

struct region_record {
    // Even while no region uses the record, odd while one does.
    std::atomic<std::uint32_t> generation{0};
    std::atomic<verbs::domain const*> domain{nullptr};
    std::atomic<access_flags> rights{access_flags::local_read};
    // For binding memory windows.
    std::atomic<ibv_mr*> handle{nullptr};
};

/// Opens a record for a region that has just been registered. Throws std::bad_alloc.
region_mark open_record(verbs::domain const* domain, access_flags rights, ibv_mr* handle);
/// Call it before the region is deregistered: its slices are rejected from then on.
void close_record(region_mark const& mark) noexcept;

/// errc::region_gone, errc::foreign_domain or errc::access_denied if the slice must not be used in
/// `domain` with the rights `needed`; else errc{}, also for a slice without a record.
inline errc check(
    region_mark const& mark, verbs::domain const* domain, access_flags needed
) noexcept {
    if (mark.record == nullptr) return {};
    // Behind this generation, domain and rights are those of its region, or of a later one: open_record().
    if (mark.record->generation.load(std::memory_order_acquire) != mark.generation)
        return errc::region_gone;
    if (mark.record->domain.load(std::memory_order_relaxed) != domain) return errc::foreign_domain;
    return allows(mark.record->rights.load(std::memory_order_relaxed), needed)
               ? errc{}
               : errc::access_denied;
}

}  // namespace rcverbs::detail
