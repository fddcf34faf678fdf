// registration_limit.hpp — which limit a registration of memory has met.
//
//     error_code ec;
//     memory_region region{domain, large, access_flags::remote_read, ec};
//     if (ec) std::cerr << ec.message() << ". " << limit_met(domain, large.size(), ec).message() << '\n';
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

class protection_domain;

/// A limit that a registration has met, with both numbers.
struct registration_limit {
    /// What is limited.
    enum class kind : std::uint8_t {
        /// The device refused for a reason that it does not tell.
        unknown,
        /// Bytes in one region: device_limits::region_bytes_max.
        region_bytes,
        /// Bytes that the process may lock: RLIMIT_MEMLOCK. Source: ib_umem_get() in
        /// drivers/infiniband/core/umem.c.
        locked_bytes,
        /// Regions of the device: device_limits::regions_max.
        regions,
        /// Bytes of memory that the machine has left. Source: proc(5), MemAvailable.
        memory_bytes,
    };

    kind what = kind::unknown;
    /// What would have been needed: with what this process has already, for locked_bytes and regions.
    std::uint64_t needed = 0;
    /// What there is.
    std::uint64_t allowed = 0;

    /// One sentence with both numbers and what to do, without a full stop; empty for `unknown`.
    RCVERBS_EXPORT std::string message() const;

    friend bool operator==(registration_limit const&, registration_limit const&) = default;
};

/// Finds out which limit a registration has met. Call it soon afterwards: the numbers are those of
/// now.
///
/// @param domain      Where the memory was to be registered.
/// @param size_bytes  Its size.
/// @param why         What the registration failed with.
/// @return `unknown` if no limit explains the failure, which another process may have caused. Does not
///         throw, except std::bad_alloc.
RCVERBS_EXPORT registration_limit
limit_met(protection_domain const& domain, std::uint64_t size_bytes, error_code const& why);

}  // namespace rcverbs
