// slice.hpp — ranges of local registered memory.
//
//     mutable_slice const page = pages.slice(0, 4096);
//     co_await boost::asio::async_read(socket, page, use_awaitable);
//     co_await c.async_write(page, theirs.slice(0, 4096), use_awaitable);
//     co_await c.async_send(std::array{head.slice(), page.first(100)}, use_awaitable);
//
// const_slice and mutable_slice are Asio's const_buffer and mutable_buffer with the key of their
// region, and a range of them is a buffer sequence: a socket and an RDMA operation share memory
// without a copy. Slices own nothing: the region must outlive them and every operation that uses
// them. A slice of a memory_region refers to its region, so that an operation is rejected before
// posting if the region is gone or belongs to another protection domain. No threading rule.
#pragma once

#include <boost/asio/buffer.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/access.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>

namespace rcverbs {

class mutable_slice;
class remote_region;

namespace detail {

struct region_record;

/// The registration that a slice belongs to; none for a slice of foreign memory.
struct region_mark {
    region_record const* record = nullptr;
    std::uint32_t generation = 0;
};

/// A slice of either class, for the compiled part of the library.
struct plain_slice {
    // Flat, to keep it small: it is copied with every operation. Written by operations only if it
    // is a mutable slice's.
    std::byte* data;
    std::size_t size;
    region_record const* record;
    std::uint32_t generation;
    std::uint32_t key;

    region_mark mark() const noexcept { return {record, generation}; }
};

/// The slice for a peer; empty if the slice has no region, errc::region_gone if it has ended.
RCVERBS_EXPORT remote_region remote_of(plain_slice const& slice, error_code& ec) noexcept;
/// The same; throws.
RCVERBS_EXPORT remote_region remote_of(plain_slice const& slice);
/// Throws errc::out_of_range unless the range is inside `size` bytes.
RCVERBS_EXPORT void check_range(std::size_t size, std::size_t offset, std::size_t length);

}  // namespace detail

/// A range of local registered memory that is read only: Asio's const_buffer, with the key of its
/// region.
class const_slice : public boost::asio::const_buffer {
public:
    /// Nothing: the local side of a zero-length operation.
    const_slice() noexcept = default;
    /// Makes a slice of memory that was registered without this library, with its key. Nothing is
    /// checked.
    const_slice(std::span<std::byte const> bytes, local_key key) noexcept
        : const_slice{bytes, key, {}} {}
    /// The same range, to be read only.
    const_slice(mutable_slice const& slice) noexcept;
    /// The first byte.
    std::byte const* data() const noexcept {
        return static_cast<std::byte const*>(const_buffer::data());
    }
    using boost::asio::const_buffer::size;
    /// The memory itself.
    std::span<std::byte const> bytes() const noexcept { return {data(), size()}; }
    /// The key of its region.
    local_key key() const noexcept { return key_; }

    /// The first `size_bytes` bytes. REQUIRES: size_bytes <= size().
    const_slice first(std::size_t size_bytes) const noexcept {
        return {bytes().first(size_bytes), key_, mark()};
    }
    /// `size_bytes` bytes from `offset_bytes` on.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if the range is not inside the
    /// slice.
    const_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const {
        detail::check_range(size(), offset_bytes, size_bytes);
        return {bytes().subspan(offset_bytes, size_bytes), key_, mark()};
    }

    /// The slice for a peer, with the rights of its region; an empty region if the slice has none.
    ///
    /// @throws boost::system::system_error (errc::region_gone).
    RCVERBS_EXPORT remote_region remote() const;
    /// The same; reports through `ec` instead of throwing.
    RCVERBS_EXPORT remote_region remote(error_code& ec) const noexcept;

    /// Deleted: slice() moves the start of a slice with a check.
    const_slice& operator+=(std::size_t) = delete;

private:
    friend struct detail::access;
    // A slice that can be checked.
    const_slice(std::span<std::byte const> bytes, local_key key, detail::region_mark mark) noexcept
        : const_buffer{bytes.data(), bytes.size()},
          record_{mark.record},
          generation_{mark.generation},
          key_{key} {}
    detail::region_mark mark() const noexcept { return {record_, generation_}; }
    detail::plain_slice plain() const noexcept {
        // Read only: see detail::plain_slice.
        return {const_cast<std::byte*>(data()), size(), record_, generation_, key_.value};
    }

    detail::region_record const* record_ = nullptr;
    std::uint32_t generation_ = 0;
    local_key key_;
};

/// A range of local registered memory: Asio's mutable_buffer, with the key of its region.
class mutable_slice : public boost::asio::mutable_buffer {
public:
    /// Nothing: the local side of a zero-length operation.
    mutable_slice() noexcept = default;
    /// Makes a slice of memory that was registered without this library, with its key. Nothing is
    /// checked.
    mutable_slice(std::span<std::byte> bytes, local_key key) noexcept
        : mutable_slice{bytes, key, {}} {}
    /// The first byte.
    std::byte* data() const noexcept { return static_cast<std::byte*>(mutable_buffer::data()); }
    using boost::asio::mutable_buffer::size;
    /// The memory itself.
    std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
    /// The key of its region.
    local_key key() const noexcept { return key_; }

    /// The first `size_bytes` bytes. REQUIRES: size_bytes <= size().
    mutable_slice first(std::size_t size_bytes) const noexcept {
        return {bytes().first(size_bytes), key_, mark()};
    }
    /// As const_slice::slice().
    mutable_slice slice(std::size_t offset_bytes, std::size_t size_bytes) const {
        detail::check_range(size(), offset_bytes, size_bytes);
        return {bytes().subspan(offset_bytes, size_bytes), key_, mark()};
    }

    /// As const_slice::remote().
    RCVERBS_EXPORT remote_region remote() const;
    /// As const_slice::remote().
    RCVERBS_EXPORT remote_region remote(error_code& ec) const noexcept;

    /// Deleted: slice() moves the start of a slice with a check.
    mutable_slice& operator+=(std::size_t) = delete;

private:
    friend struct detail::access;
    // A slice that can be checked.
    mutable_slice(std::span<std::byte> bytes, local_key key, detail::region_mark mark) noexcept
        : mutable_buffer{bytes.data(), bytes.size()},
          record_{mark.record},
          generation_{mark.generation},
          key_{key} {}
    detail::region_mark mark() const noexcept { return {record_, generation_}; }
    detail::plain_slice plain() const noexcept {
        return {data(), size(), record_, generation_, key_.value};
    }

    detail::region_record const* record_ = nullptr;
    std::uint32_t generation_ = 0;
    local_key key_;
};

inline const_slice::const_slice(mutable_slice const& slice) noexcept
    : const_slice{slice.bytes(), slice.key(), detail::access::mark_of(slice)} {}

namespace detail {

/// Converts to a slice; to a const_slice also what converts to a mutable_slice, such as a registered_buffer.
template <class T, class Slice>
concept convertible_to_slice = std::convertible_to<T, Slice> ||
    (std::same_as<Slice, const_slice>&& std::convertible_to<T, mutable_slice>);
template <class T, class Slice>
concept range_of_slices = !convertible_to_slice<T, Slice> && std::ranges::forward_range<T> &&
                          convertible_to_slice<std::ranges::range_reference_t<T>, Slice>;

/// The opposite of access::plain_of().
template <class Slice>
Slice slice_of(plain_slice const& plain) noexcept {
    return access::make<Slice>(
        std::span{plain.data, plain.size}, local_key{plain.key}, plain.mark()
    );
}

template <class Slice, class T>
plain_slice plain_of(T const& convertible) {
    if constexpr (std::convertible_to<T const&, Slice>) {
        return access::plain_of(static_cast<Slice>(convertible));
    } else {
        return access::plain_of(static_cast<mutable_slice>(convertible));
    }
}

/// The slices of an operation, copied: up to four in place, more in shared memory.
class slice_list {
public:
    static constexpr std::size_t in_place_max = 4;

    slice_list() noexcept { in_place_[0] = {}; }
    explicit slice_list(plain_slice const& one) noexcept : size_bytes_{one.size}, count_{1} {
        in_place_[0] = one;
    }
    /// A range that is not transferred: longer than any message, so that an operation with it takes
    /// the way of those that need more than one check.
    static slice_list untransferred(plain_slice const& range) noexcept {
        slice_list made{range};
        made.size_bytes_ = SIZE_MAX;
        return made;
    }
    template <class Slice, class Range>
    slice_list(std::type_identity<Slice>, Range const& range) : slice_list{} {
        auto const length = static_cast<std::size_t>(std::ranges::distance(range));
        if (length > in_place_max) more_ = std::make_shared<plain_slice[]>(length);
        plain_slice* const out = length > in_place_max ? more_.get() : in_place_;
        for (auto const& element : range) {
            out[count_] = plain_of<Slice>(element);
            size_bytes_ += out[count_++].size;
        }
        in_place_[0] = count_ > 0 ? out[0] : plain_slice{};
    }
    slice_list(slice_list const& other) noexcept
        : size_bytes_{other.size_bytes_},
          count_{other.count_},
          more_{other.more_} {
        copy_in_place(other);
    }
    slice_list(slice_list&& other) noexcept
        : size_bytes_{other.size_bytes_},
          count_{other.count_},
          more_{std::move(other.more_)} {
        copy_in_place(other);
        other.count_ = 0;
        other.size_bytes_ = 0;
    }
    slice_list& operator=(slice_list const& other) noexcept {
        if (this == &other) return *this;
        size_bytes_ = other.size_bytes_;
        count_ = other.count_;
        more_ = other.more_;
        copy_in_place(other);
        return *this;
    }
    ~slice_list() = default;

    /// The total number of bytes.
    std::size_t size() const noexcept { return size_bytes_; }
    std::size_t count() const noexcept { return count_; }
    /// The first slice; an empty one if there is none.
    plain_slice const& front() const noexcept { return in_place_[0]; }
    plain_slice const& operator[](std::size_t index) const noexcept { return all()[index]; }
    std::span<plain_slice const> all() const noexcept {
        return {more_ != nullptr ? more_.get() : in_place_, count_};
    }

private:
    // What is not used is not copied: nearly all operations have one slice.
    void copy_in_place(slice_list const& other) noexcept {
        in_place_[0] = other.in_place_[0];
        if (other.count_ > 1 && other.count_ <= in_place_max) {
            for (std::size_t i = 1; i < other.count_; ++i) in_place_[i] = other.in_place_[i];
        }
    }

    std::size_t size_bytes_ = 0;
    std::size_t count_ = 0;
    std::shared_ptr<plain_slice[]> more_;
    // Unused ones are not initialised.
    plain_slice in_place_[in_place_max];
};

}  // namespace detail

/// The memory that an operation reads: one slice, or several that the device gathers in order.
///
/// Converts from what converts to a const_slice, and from any range of it: an array, a vector, a
/// list, a span. The slices are copied, up to four in place, more into memory that is allocated;
/// only the bytes are borrowed.
class const_slices {
public:
    /// Nothing.
    const_slices() noexcept = default;
    /// One slice.
    template <class One>
    requires detail::convertible_to_slice<One const&, const_slice> const_slices(One const& one)
    noexcept : list_{detail::plain_of<const_slice>(one)} {}
    /// Several: `const_slices const both{head.slice(), page.slice()};`. In the arguments of a call that
    /// is awaited g++ 12 refuses every braced list of slices, so write
    /// `std::array{head.slice(), page.slice()}` there.
    const_slices(std::initializer_list<const_slice> list)
        : list_{std::type_identity<const_slice>{}, list} {}
    /// A range.
    ///
    /// @throws std::bad_alloc for more than four slices.
    template <class Range>
    requires detail::range_of_slices<Range const&, const_slice> const_slices(Range const& range)
        : list_{std::type_identity<const_slice>{}, range} {}

    /// The total number of bytes.
    std::size_t size() const noexcept { return list_.size(); }
    /// Number of slices.
    std::size_t count() const noexcept { return list_.count(); }

private:
    friend struct detail::access;

    detail::slice_list list_;
};

/// The memory that an operation writes to: one slice, or several that the device fills in order.
///
/// As const_slices, of what converts to a mutable_slice.
class mutable_slices {
public:
    /// Nothing.
    mutable_slices() noexcept = default;
    /// One slice.
    template <class One>
    requires detail::convertible_to_slice<One const&, mutable_slice> mutable_slices(One const& one)
    noexcept : list_{detail::plain_of<mutable_slice>(one)} {}
    /// Several: as for const_slices.
    mutable_slices(std::initializer_list<mutable_slice> list)
        : list_{std::type_identity<mutable_slice>{}, list} {}
    /// A range.
    ///
    /// @throws std::bad_alloc for more than four slices.
    template <class Range>
    requires detail::range_of_slices<Range const&, mutable_slice> mutable_slices(Range const& range)
        : list_{std::type_identity<mutable_slice>{}, range} {}

    /// The total number of bytes.
    std::size_t size() const noexcept { return list_.size(); }
    /// Number of slices.
    std::size_t count() const noexcept { return list_.count(); }

private:
    friend struct detail::access;

    detail::slice_list list_;
};

}  // namespace rcverbs
