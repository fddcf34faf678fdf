// local_slice.hpp — a range of local registered memory, or a list of ranges.
//
//     local_slice const page = pages.slice(0, 4096);
//     co_await boost::asio::async_read(socket, page, use_awaitable);
//     co_await c.async_write(page, theirs.slice(0, 4096), use_awaitable);
//
// A slice is a buffer of Asio's, and a list of slices is a buffer sequence, so a socket and an RDMA
// operation share memory without a copy. Slices own nothing: the region must outlive them and every
// operation that uses them. A slice of a memory_region refers to its region, so that an operation
// is rejected before posting if the region is gone or belongs to another protection domain. No
// threading rule.
#pragma once

#include <boost/asio/buffer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <type_traits>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>

namespace rcverbs {

class remote_region;

namespace detail {

struct region_record;

/// The registration that a slice belongs to; none for a slice of foreign memory.
struct region_mark {
    region_record const* record = nullptr;
    std::uint32_t generation = 0;
};

}  // namespace detail

/// A range of local registered memory: Asio's mutable_buffer, with the key of its region.
class RCVERBS_EXPORT local_slice : public boost::asio::mutable_buffer {
public:
    /// Nothing: the local side of a zero-length operation.
    local_slice() = default;
    /// Makes a slice of memory that was registered without this library, with its key. Nothing is
    /// checked.
    local_slice(std::span<std::byte> bytes, local_key key) noexcept
        : mutable_buffer{bytes.data(), bytes.size()},
          key_{key} {}
    /// For the library's own use: a slice that can be checked.
    local_slice(std::span<std::byte> bytes, local_key key, detail::region_mark mark) noexcept
        : mutable_buffer{bytes.data(), bytes.size()},
          record_{mark.record},
          generation_{mark.generation},
          key_{key} {}

    /// The first byte.
    std::byte* data() const noexcept { return static_cast<std::byte*>(mutable_buffer::data()); }
    using boost::asio::mutable_buffer::size;
    /// The memory itself.
    std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
    /// The key of its region.
    local_key key() const noexcept { return key_; }
    /// For the library's own use.
    detail::region_mark mark() const noexcept { return {record_, generation_}; }

    /// The first `size_bytes` bytes. REQUIRES: size_bytes <= size().
    local_slice first(std::size_t size_bytes) const noexcept {
        return {bytes().first(size_bytes), key_, mark()};
    }
    /// `size_bytes` bytes from `offset_bytes` on.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if the range is not inside the
    /// slice.
    local_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const;

    /// The slice for a peer, with the rights of its region; an empty region if the slice has none.
    ///
    /// @throws boost::system::system_error (errc::region_gone).
    remote_region remote() const;
    /// The same; reports through `ec` instead of throwing.
    remote_region remote(error_code& ec) const noexcept;

    /// Deleted: slice() moves the start of a slice with a check.
    local_slice& operator+=(std::size_t) = delete;

private:
    // Flat, to keep the slice small: it is copied with every operation.
    detail::region_record const* record_ = nullptr;
    std::uint32_t generation_ = 0;
    local_key key_;
};

class local_slices;

namespace detail {

template <class List>
concept slice_list = !std::same_as<List, local_slices> &&
                     std::convertible_to<List const&, std::span<local_slice const>>;

}  // namespace detail

/// The local side of an operation: one slice, or a list of slices that the device gathers from or
/// scatters to in order.
///
/// A list of two or more is not copied: it must stay unchanged until the operation's handler runs,
/// like the memory itself.
class local_slices {
public:
    /// Nothing.
    local_slices() = default;
    /// One slice, copied.
    local_slices(local_slice const& one) noexcept : one_{one}, count_{1}, size_bytes_{one.size()} {}
    /// A list: an array, a vector or a span of local_slice.
    local_slices(std::span<local_slice const> list) noexcept : count_{list.size()} {
        if (count_ == 1) one_ = list.front();
        if (count_ > 1) list_ = list.data();
        for (local_slice const& slice : list) size_bytes_ += slice.size();
    }
    /// The same.
    template <detail::slice_list List>
    local_slices(List const& list) noexcept : local_slices{std::span<local_slice const>{list}} {}
    /// Deleted: a temporary list would be gone when the call returns.
    template <detail::slice_list List>
    requires(!std::ranges::borrowed_range<List>) local_slices(List const&& list)
    = delete;

    /// The total number of bytes.
    std::size_t size() const noexcept { return size_bytes_; }
    /// The first slice; an empty one if there is none.
    local_slice const& front() const noexcept { return count_ > 1 ? *list_ : one_; }
    /// The only slice; an empty one if there is none. REQUIRES: count() <= 1.
    local_slice const& only() const noexcept { return one_; }
    /// Number of slices.
    std::size_t count() const noexcept { return count_; }
    /// A slice. REQUIRES: index < count().
    local_slice const& operator[](std::size_t index) const noexcept {
        return count_ > 1 ? list_[index] : one_;
    }

private:
    local_slice one_;
    // Null unless there are two or more.
    local_slice const* list_ = nullptr;
    std::size_t count_ = 0;
    std::size_t size_bytes_ = 0;
};

}  // namespace rcverbs
