// region_record.hpp — what is known of a registration without holding it: whether it still is, where, and with which rights.
//
// Slices are values and may outlive their region. A record is never freed, only used again under the next generation,
// so a slice can always be asked about. The records of a process are as many as it has had regions at a time.
//
// Written by who registers and deregisters, read by operations on any thread. A slice that races with the end of its own
// region is a program's error, which this finds often, not always.
#pragma once

#include <atomic>
#include <cstdint>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/local_slice.hpp>

namespace rcverbs::verbs {
class domain;
}

namespace rcverbs::detail {

struct region_record {
    // Even while nothing is registered, odd while something is.
    std::atomic<std::uint32_t> generation{0};
    std::atomic<verbs::domain const*> domain{nullptr};
    std::atomic<access_flags> rights{access_flags::local_read};
};

/// A record for a region that has just been registered. Throws std::bad_alloc.
region_mark open_record(verbs::domain const* domain, access_flags rights);
/// The region is about to be deregistered: its slices are refused from here on.
void close_record(region_mark const& mark) noexcept;

/// errc::region_gone, errc::foreign_domain or errc::access_denied if the slice is not to be used in `domain` for `needed`.
inline errc check(local_slice const& slice, verbs::domain const* domain, access_flags needed) noexcept {
    region_mark const mark = slice.mark();
    if (mark.record == nullptr) return {};
    if (mark.record->generation.load(std::memory_order_acquire) != mark.generation) return errc::region_gone;
    if (mark.record->domain.load(std::memory_order_relaxed) != domain) return errc::foreign_domain;
    return allows(mark.record->rights.load(std::memory_order_relaxed), needed) ? errc{} : errc::access_denied;
}

}  // namespace rcverbs::detail
