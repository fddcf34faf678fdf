// memory_region.hpp — memory that the RDMA device may touch.
//
// Registering pins the pages and costs about as much as copying them: register once, use often. A region must outlive
// every operation that names it, its slices and its keys included. Distinct regions are safe to use from distinct
// threads; one region is safe to slice from several.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/remote_region.hpp>

struct ibv_mr;

namespace rcverbs {

/// Memory of the caller's, registered with a protection domain. Deregisters when destroyed; frees nothing.
class RCVERBS_EXPORT memory_region {
public:
    /// No region; is_open() is false.
    memory_region() noexcept;
    /// Registers `bytes`, which the caller owns and keeps until the region is destroyed.
    ///
    /// @param domain  The domain of the connections that will use it.
    /// @param bytes   1 to domain.limits().region_bytes_max bytes.
    /// @param rights  What the device and peers may do; see access_flags for what is implied.
    /// @throws boost::system::system_error with errno: ENOMEM (the memlock limit, physical memory or the device's
    ///         tables are exhausted), EINVAL (empty or too long), EFAULT (not mapped, or not writable as asked for).
    memory_region(protection_domain const& domain, std::span<std::byte> bytes, access_flags rights);
    /// As above; reports through `ec` instead of throwing, and leaves no region on failure.
    memory_region(protection_domain const& domain, std::span<std::byte> bytes, access_flags rights, error_code& ec) noexcept;

    /// Registers the elements of an array, a vector or a span, whose bytes travel as they are: a peer of the other byte
    /// order sees them swapped.
    ///
    /// @throws as above.
    template <class T, std::size_t N>
        requires std::is_trivially_copyable_v<T> && (!std::is_const_v<T>)
    memory_region(protection_domain const& domain, std::span<T, N> elements, access_flags rights)
        : memory_region{domain, std::span<std::byte>{std::as_writable_bytes(elements)}, rights} {}

    memory_region(memory_region&&) noexcept;
    memory_region& operator=(memory_region&&) noexcept;
    ~memory_region();

    /// True if memory is registered.
    bool is_open() const noexcept { return registration_ != nullptr; }
    /// The registered memory.
    std::span<std::byte> bytes() const noexcept { return bytes_; }
    /// The size in bytes.
    std::size_t size() const noexcept { return bytes_.size(); }
    /// The rights it was registered with, the implied ones included.
    access_flags rights() const noexcept { return rights_; }
    /// The key for local use.
    local_key key() const noexcept;

    /// All of it, as operations take it.
    local_slice slice() const noexcept { return {bytes_, key(), mark()}; }
    /// `size_bytes` bytes from `offset_bytes` on.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside the region.
    local_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const;

    /// The part of it that holds these elements.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside the region.
    template <class T, std::size_t N>
        requires std::is_trivially_copyable_v<T> && (!std::is_const_v<T>)
    local_slice slice(std::span<T, N> elements) const {
        return slice_of(std::as_writable_bytes(elements));
    }

    /// The region as a peer needs to know it: to be sent to the peer, which may then use it within rights().
    remote_region remote() const noexcept;
    /// The verbs object, borrowed; null if not is_open().
    ibv_mr* native_handle() const noexcept;

private:
    detail::region_mark mark() const noexcept;
    local_slice slice_of(std::span<std::byte> part) const;

    struct registration;
    std::unique_ptr<registration> registration_;
    std::span<std::byte> bytes_;
    access_flags rights_ = access_flags::local_read;
};

}  // namespace rcverbs
