// exposed_slice.hpp — whether a peer may read a slice of local memory.
#pragma once

#include <rcverbs/error.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/remote_region.hpp>

#include "verbs/region_record.hpp"

namespace rcverbs::detail {

/// The slice for a peer that reads it. errc::region_gone, errc::foreign_domain or
/// errc::access_denied if no peer in `domain` can.
inline remote_region readable_by_peer(
    plain_slice const& slice, protection_domain const& domain, error_code& ec
) noexcept {
    bool const has_region = slice.record != nullptr;
    errc const found = has_region ? check(
                                        detail::access::mark_of(slice),
                                        detail::access::impl_of(domain).get(),
                                        access_flags::remote_read
                                    )
                                  : errc::access_denied;
    if (found == errc{}) return remote_of(slice, ec);
    ec = found;
    return {};
}

}  // namespace rcverbs::detail
