// registered_buffer.hpp — page-aligned, zeroed and registered memory.
//
//     registered_buffer page{c.domain(), 4096, access_flags::local_write};
//     page.bytes()[0] = std::byte{42};
//     co_await c.async_write(page.slice(0, 64), theirs.slice(0, 64), use_awaitable);
//
// The memory is zeroed because a peer that may read it must not see earlier contents of the
// process. Lifetime and threads: as for memory_region.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>

#include <rcverbs/memory_region.hpp>

namespace rcverbs {

namespace detail {

/// Gives pages back to the system.
struct RCVERBS_EXPORT unmap {
    std::size_t size_bytes = 0;
    void operator()(std::byte* memory) const noexcept;
};
using mapped_memory = std::unique_ptr<std::byte, unmap>;

}  // namespace detail

/// A memory_region that owns its memory.
class RCVERBS_EXPORT registered_buffer {
public:
    /// No memory.
    registered_buffer() = default;
    /// Allocates `size_bytes` bytes (1 to the device's region_bytes_max), page-aligned and zero,
    /// and registers them.
    ///
    /// @throws boost::system::system_error as memory_region does, and ENOMEM if the memory cannot
    ///                                     be allocated.
    registered_buffer(
        protection_domain const& domain,
        std::size_t size_bytes,
        access_flags rights = access_flags::local_write
    );
    /// The same in the domain of a connection, session or channel: `registered_buffer page{s, 4096};`.
    template <class Handle>
    requires requires(Handle const& h) {
        { h.domain() } -> std::same_as<protection_domain>;
    }
    registered_buffer(
        Handle const& of, std::size_t size_bytes, access_flags rights = access_flags::local_write
    )
        : registered_buffer{of.domain(), size_bytes, rights} {}
    /// As above; reports through `ec` instead of throwing.
    template <class Handle>
    requires requires(Handle const& h) {
        { h.domain() } -> std::same_as<protection_domain>;
    }
    registered_buffer(Handle const& of, std::size_t size_bytes, access_flags rights, error_code& ec)
        : registered_buffer{of.domain(), size_bytes, rights, ec} {}
    /// As above; reports through `ec` instead of throwing.
    registered_buffer(
        protection_domain const& domain, std::size_t size_bytes, access_flags rights, error_code& ec
    ) noexcept;

    registered_buffer(registered_buffer&&) noexcept = default;
    /// Deregisters its own memory first, then frees it.
    registered_buffer& operator=(registered_buffer&& other) noexcept {
        region_ = std::move(other.region_);
        memory_ = std::move(other.memory_);
        return *this;
    }

    /// The registered region.
    memory_region const& region() const noexcept { return region_; }
    /// The memory.
    std::span<std::byte> bytes() const noexcept { return region_.bytes(); }
    /// The size in bytes.
    std::size_t size() const noexcept { return region_.size(); }
    /// All of it, as operations take it.
    mutable_slice slice() const noexcept { return region_.slice(); }
    /// The same; boost::asio::buffer() accepts it, too.
    operator mutable_slice() const noexcept { return slice(); }
    /// `size_bytes` bytes from `offset_bytes` on; throws errc::out_of_range beyond the buffer.
    mutable_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const {
        return region_.slice(offset_bytes, size_bytes);
    }
    /// The region as a peer needs to know it.
    remote_region remote() const noexcept { return region_.remote(); }

private:
    // The memory is declared first, so that it is deregistered before it is freed.
    detail::mapped_memory memory_;
    memory_region region_;
};

}  // namespace rcverbs
