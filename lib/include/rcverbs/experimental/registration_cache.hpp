// registration_cache.hpp — keeps memory of the program's registered, for as long as it is in use.
//
//     registration_cache cache{c.domain()};
//     std::vector<std::byte> message(1 << 20);
//     region_lease const lease = cache.get(message);
//     co_await c.async_send(lease.slice(), use_awaitable);
//     cache.forget(message);  // before the memory is freed
//
// For programs that cannot choose where their memory comes from: the first get() of a range
// registers it, later ones find the registration. Where the program can choose, memory_pool and
// slot_pool are faster. Ranges are rounded out to pages; ranges that overlap share a registration.
//
// The cache keeps the registrations that were used last, within its bounds, and never deregisters
// one that has a lease. It cannot know when the program frees memory and gets other memory at the
// same address: call forget() before. (No allocation function is intercepted.) Threads: any thread
// may call any function; construction and destruction need the owner. Leases may outlive the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs {

namespace detail {

class registration_cache_core;
struct cached_region;

}  // namespace detail

/// Bounds and rights of a registration cache.
struct registration_cache_options {
    /// Registered bytes that the cache keeps. A registration beyond this is deregistered with its last
    /// lease. 0 keeps nothing.
    std::size_t bytes_max = std::size_t{256} << 20;
    /// Registrations that the cache keeps; as bytes_max.
    std::size_t regions_max = 1024;
    /// Rights of the device and of peers to the memory. With a remote right, a peer that has the
    /// key may use the whole pages, also the bytes beside the range.
    access_flags rights = access_flags::local_write;
};

/// Counters of a registration cache; a snapshot.
struct registration_cache_statistics {
    /// Calls of get() that found a registration.
    std::uint64_t hits = 0;
    /// Calls of get() that registered memory.
    std::uint64_t misses = 0;
    /// Registrations that were evicted because of the bounds.
    std::uint64_t evictions = 0;
    /// Registrations in the cache at this moment.
    std::size_t regions = 0;
    /// Bytes of them.
    std::size_t bytes = 0;
};

/// Keeps a range registered.
class RCVERBS_EXPORT region_lease {
public:
    /// No range; is_valid() is false.
    region_lease() noexcept = default;

    /// True if it has a range.
    bool is_valid() const noexcept { return region_ != nullptr; }
    /// The range, as operations take it.
    mutable_slice const& slice() const noexcept { return slice_; }
    /// The same.
    operator mutable_slice() const noexcept { return slice_; }
    /// The range for a peer, with the rights of the cache. REQUIRES: is_valid().
    remote_region remote() const;

private:
    friend class detail::registration_cache_core;
    region_lease(std::shared_ptr<detail::cached_region> region, mutable_slice slice) noexcept
        : region_{std::move(region)},
          slice_{slice} {}

    std::shared_ptr<detail::cached_region> region_;
    mutable_slice slice_;
};

/// Registrations of the program's memory, by address.
class RCVERBS_EXPORT registration_cache {
public:
    /// Makes an empty cache.
    ///
    /// @param domain   The domain of the connections that use the memory.
    /// @param options  Bounds and rights.
    explicit registration_cache(
        protection_domain const& domain, registration_cache_options const& options = {}
    );
    registration_cache(registration_cache const&) = delete;
    registration_cache& operator=(registration_cache const&) = delete;
    /// Deregisters all ranges without a lease.
    ~registration_cache();

    /// Registers a range, or finds its registration.
    ///
    /// @param bytes  1 byte or more, owned by the caller until forget() or the end of the cache and
    ///               of all leases.
    /// @throws boost::system::system_error with the errors of memory_region.
    region_lease get(std::span<std::byte> bytes);
    /// As above; reports through `ec` instead of throwing.
    region_lease get(std::span<std::byte> bytes, error_code& ec);
    /// Registers the elements of an array, a vector or a span.
    ///
    /// @throws as above.
    template <class T>
    requires std::is_trivially_copyable_v<T> region_lease get(std::span<T> elements) {
        return get(std::as_writable_bytes(elements));
    }

    /// Forgets every registration that overlaps the range; one with a lease is deregistered with
    /// its last lease. Call it before the memory is freed.
    void forget(std::span<std::byte const> bytes) noexcept;

    /// A snapshot of the counters.
    registration_cache_statistics statistics() const;

private:
    std::unique_ptr<detail::registration_cache_core> core_;
};

}  // namespace rcverbs
