// memory_region.hpp — registered memory of the program's.
//
//     std::vector<double> values(1000);
//     memory_region region{c.domain(), std::span{values}, access_flags::local_write};
//     mutable_slice some = region.slice(std::span{values}.subspan(10, 5));
//
// Registration pins the pages and costs about as much as copying them: register once, use often. A
// region must outlive every operation that uses it, its slices and its keys. Distinct regions may
// be used from distinct threads; several threads may slice one region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/remote_region.hpp>

struct ibv_mr;

namespace rcverbs {

/// Memory of the caller's, registered with a protection domain. Deregisters when destroyed; frees
/// nothing.
class RCVERBS_EXPORT memory_region {
public:
    /// No region; is_open() is false.
    memory_region() noexcept;
    /// Registers `bytes`, which the caller owns and keeps until the region is destroyed.
    ///
    /// @param domain  The domain of the connections that will use it.
    /// @param bytes   1 to domain.limits().region_bytes_max bytes.
    /// @param rights  What the device and peers may do; see access_flags for what is implied.
    /// @throws boost::system::system_error with errno: ENOMEM (the memlock limit, physical memory
    ///         or the device's tables are exhausted), EINVAL (empty or too long), EFAULT (not
    ///         mapped, or not writable as asked for); errc::on_demand_paging_unsupported;
    ///         errc::not_connected (the domain is not open: that of a connection is from
    ///         async_resolve() or async_connect() on).
    memory_region(protection_domain const& domain, std::span<std::byte> bytes, access_flags rights);
    /// As above; reports through `ec` instead of throwing, and leaves no region on failure.
    memory_region(
        protection_domain const& domain,
        std::span<std::byte> bytes,
        access_flags rights,
        error_code& ec
    ) noexcept;

    /// Registers the elements of an array, a vector or a span, whose bytes travel as they are: a
    /// peer of the other byte order sees them swapped.
    ///
    /// @throws as above.
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T> &&(!std::is_const_v<T>)memory_region(
        protection_domain const& domain, std::span<T, N> elements, access_flags rights
    )
        : memory_region{domain, std::span<std::byte>{std::as_writable_bytes(elements)}, rights} {}
    /// Registers memory that another driver has exported as a dmabuf, such as that of a GPU.
    ///
    /// @param domain        As above.
    /// @param fd            The dmabuf's descriptor; the caller may close it afterwards.
    /// @param offset_bytes  Where in the dmabuf the range begins.
    /// @param bytes         The addresses by which slices and peers identify the range: the
    ///                      program's mapping of it, or those of the exporting device. Only inline
    ///                      sends and writes read them with the CPU: if it has no access, leave
    ///                      queue_pair_options::inline_bytes_max at 0.
    /// @param rights        As above, without bind_windows and on_demand.
    /// @throws as above, EINVAL also if `offset_bytes` and `bytes` begin at different offsets
    ///         within a page; errc::dmabuf_unsupported (SoftRoCE, and kernels before 5.12). Source:
    ///         ibv_reg_dmabuf_mr(3).
    static memory_region from_dmabuf(
        protection_domain const& domain,
        int fd,
        std::uint64_t offset_bytes,
        std::span<std::byte> bytes,
        access_flags rights
    );
    /// As above; reports through `ec` instead of throwing, and leaves no region on failure.
    static memory_region from_dmabuf(
        protection_domain const& domain,
        int fd,
        std::uint64_t offset_bytes,
        std::span<std::byte> bytes,
        access_flags rights,
        error_code& ec
    ) noexcept;

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
    mutable_slice slice() const noexcept {
        return detail::access::make<mutable_slice>(bytes_, key(), mark());
    }
    /// The same.
    operator mutable_slice() const noexcept { return slice(); }
    /// `size_bytes` bytes from `offset_bytes` on.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside the
    ///                                     region.
    mutable_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const;

    /// The part of it that holds these elements.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside the
    ///                                     region.
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T> &&(!std::is_const_v<T>)mutable_slice
        slice(std::span<T, N> elements) const {
        return slice_of(std::as_bytes(elements));
    }

    /// The region as a peer needs to know it: to be sent to the peer, which may then use it within
    /// rights().
    remote_region remote() const noexcept;
    /// The verbs object, borrowed; null if not is_open().
    ibv_mr* native_handle() const noexcept;

private:
    friend class const_memory_region;

    detail::region_mark mark() const noexcept;
    mutable_slice slice_of(std::span<std::byte const> part) const;

    struct registration;
    template <class Register>
    void open(
        protection_domain const& domain,
        std::span<std::byte> bytes,
        access_flags rights,
        error_code& ec,
        Register const& register_with
    ) noexcept;

    std::unique_ptr<registration> registration_;
    std::span<std::byte> bytes_;
    access_flags rights_ = access_flags::local_read;
};

/// Memory of the caller's that is only read, by this side and, with remote_read, by the peer: a span
/// of constant bytes or elements, which may be mapped read-only. Deregisters when destroyed.
///
/// Before Linux 6.2 a mapping that is shared and read-only cannot be registered (EFAULT), one with
/// MAP_PRIVATE can.
class RCVERBS_EXPORT const_memory_region {
public:
    /// No region; is_open() is false.
    const_memory_region() noexcept = default;
    /// Registers `bytes`, which the caller owns and keeps unchanged until the region is destroyed.
    ///
    /// @param domain  The domain of the connections that will use it.
    /// @param bytes   1 to domain.limits().region_bytes_max bytes.
    /// @param rights  local_read, with or without remote_read.
    /// @throws as memory_region; EINVAL for other rights.
    const_memory_region(
        protection_domain const& domain,
        std::span<std::byte const> bytes,
        access_flags rights = access_flags::local_read
    );
    /// As above; reports through `ec` instead of throwing, and leaves no region on failure.
    const_memory_region(
        protection_domain const& domain,
        std::span<std::byte const> bytes,
        access_flags rights,
        error_code& ec
    ) noexcept;
    /// Registers the elements of an array, a vector or a span.
    ///
    /// @throws as above.
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T> const_memory_region(
        protection_domain const& domain,
        std::span<T, N> elements,
        access_flags rights = access_flags::local_read
    )
        : const_memory_region{domain, std::span<std::byte const>{std::as_bytes(elements)}, rights} {
    }
    /// As above; reports through `ec` instead of throwing.
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T> const_memory_region(
        protection_domain const& domain,
        std::span<T, N> elements,
        access_flags rights,
        error_code& ec
    )
    noexcept
        : const_memory_region{
              domain, std::span<std::byte const>{std::as_bytes(elements)}, rights, ec} {}

    /// True if memory is registered.
    bool is_open() const noexcept { return region_.is_open(); }
    /// The registered memory.
    std::span<std::byte const> bytes() const noexcept { return region_.bytes(); }
    /// The size in bytes.
    std::size_t size() const noexcept { return region_.size(); }
    /// The rights it was registered with.
    access_flags rights() const noexcept { return region_.rights(); }
    /// The key for local use.
    local_key key() const noexcept { return region_.key(); }

    /// All of it, as operations take it.
    const_slice slice() const noexcept { return region_.slice(); }
    /// The same.
    operator const_slice() const noexcept { return slice(); }
    /// As memory_region::slice().
    const_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const {
        return region_.slice(offset_bytes, size_bytes);
    }
    /// As memory_region::slice().
    template <class T, std::size_t N>
    requires std::is_trivially_copyable_v<T> const_slice slice(std::span<T, N> elements)
    const { return region_.slice_of(std::as_bytes(elements)); }

    /// As memory_region::remote().
    remote_region remote() const noexcept { return region_.remote(); }
    /// The verbs object, borrowed; null if not is_open().
    ibv_mr* native_handle() const noexcept { return region_.native_handle(); }

private:
    // Hands out no slice that can be written to.
    memory_region region_;
};

}  // namespace rcverbs
