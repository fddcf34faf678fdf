// slot_pool.hpp — registered slots of one size, lent one at a time.
//
//     slot_pool slots{io, c.domain(), {.slots = 64, .slot_bytes = 4096}};
//     slot_lease lease = co_await slots.async_acquire(use_awaitable);
//     auto const [ec, got] = co_await c.async_receive(std::move(lease), as_tuple(use_awaitable));
//     if (!ec) handle(got.bytes());
//
// For receives and for blocks of storage: the memory is registered once, and each slot has a
// lease that returns the slot when it is destroyed. Move a lease into an operation, which keeps it
// until the device has finished with the slot; or keep it until the handler of every operation on
// its slot has run.
//
// Waiting is first come, first served, for asynchronous and blocking callers alike. Threads: any
// thread may acquire and release; construction, moves and destruction of the pool need its owner.
// The memory exists until the pool and its last lease are gone.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/detail/lender.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/memory_lease.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

namespace detail {

class slot_pool_core;

}  // namespace detail

/// Size and rights of a slot pool.
struct slot_pool_options {
    /// Number of slots. 1 to 2^24.
    std::uint32_t slots = 64;
    /// Bytes in a slot. 1 to the device's region_bytes_max / slots.
    std::size_t slot_bytes = 4096;
    /// Alignment of each slot in bytes: a power of two, 1 to 4096. 64 keeps slots in cache lines of
    /// their own.
    std::size_t alignment_bytes = 64;
    /// Rights of the device and of peers to the memory.
    access_flags rights = access_flags::local_write;
};

/// The right to use one slot; returns the slot when it is destroyed.
///
/// A lease may be moved to any thread; one thread at a time uses it.
class RCVERBS_EXPORT slot_lease {
public:
    /// No slot; is_valid() is false.
    slot_lease() noexcept;
    slot_lease(slot_lease&& other) noexcept;
    /// Returns its own slot first.
    slot_lease& operator=(slot_lease&& other) noexcept;
    /// Returns the slot.
    ~slot_lease();

    /// True if it has a slot.
    bool is_valid() const noexcept { return pool_ != nullptr; }
    /// The slot's memory; its contents are those of the last use.
    std::span<std::byte> bytes() const noexcept { return slice_.bytes(); }
    /// The size in bytes.
    std::size_t size() const noexcept { return slice_.size(); }
    /// All of the slot, as operations take it.
    mutable_slice const& slice() const noexcept { return slice_; }
    /// The same.
    operator mutable_slice() const noexcept { return slice_; }
    /// `size_bytes` bytes from `offset_bytes` on.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if the range is not inside the slot.
    mutable_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const {
        return slice_.slice(offset_bytes, size_bytes);
    }
    /// The slot for a peer, with the rights of the pool. REQUIRES: is_valid().
    remote_region remote() const;
    /// The number of the slot, 0 to slots - 1. REQUIRES: is_valid().
    std::uint32_t index() const noexcept { return index_; }

    /// Returns the slot now; is_valid() is false afterwards.
    void release() noexcept;

private:
    friend class detail::slot_pool_core;
    friend class detail::lending<slot_lease>;
    friend class memory_lease;
    slot_lease(
        std::shared_ptr<detail::slot_pool_core> pool, mutable_slice slice, std::uint32_t index
    ) noexcept;
    void disarm() noexcept;

    std::shared_ptr<detail::slot_pool_core> pool_;
    mutable_slice slice_;
    std::uint32_t index_ = 0;
};

namespace detail {

extern template class RCVERBS_EXPORT lender_base<slot_lease>;

}  // namespace detail

/// The members of basic_slot_pool that do not depend on its executor type.
class RCVERBS_EXPORT slot_pool_base : public detail::lender_base<slot_lease> {
public:
    /// The options that it was made with.
    slot_pool_options const& options() const noexcept;
    /// The registered region of all slots.
    memory_region const& region() const noexcept;

protected:
    slot_pool_base(
        detail::place const& where,
        protection_domain const& domain,
        slot_pool_options const& options
    );
    slot_pool_base(slot_pool_base&&) noexcept = default;
    slot_pool_base& operator=(slot_pool_base&&) noexcept = default;
    ~slot_pool_base() = default;
};

/// A pool of registered slots.
///
/// Outstanding operations: any number; they get slots in the order of the calls.
template <class Executor = boost::asio::any_io_executor>
class basic_slot_pool : public detail::basic_lender<slot_pool_base, slot_lease, Executor> {
    using base = detail::basic_lender<slot_pool_base, slot_lease, Executor>;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_slot_pool<Other>;
    };

    /// Allocates and registers the memory of all slots.
    ///
    /// @param where    The executor that calls handlers without an associated executor.
    /// @param domain   The domain of the connections that use the slots.
    /// @param options  Number, size, alignment, rights.
    /// @throws boost::system::system_error: errc::invalid_option, and the errors of memory_region.
    basic_slot_pool(
        runs_on<Executor> where,
        protection_domain const& domain,
        slot_pool_options const& options = {}
    )
        : base{where.get_executor(), detail::access::place_of(where), domain, options} {}
};

/// With executors of any type.
using slot_pool = basic_slot_pool<>;

}  // namespace rcverbs
