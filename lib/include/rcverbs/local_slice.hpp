// local_slice.hpp — local registered memory, as operations take it: a range, or a list of ranges.
//
// Values that own nothing: the region must outlive them, and the operations they are passed to. What was sliced from a
// memory_region remembers it, so that an operation on a region that is gone, or that belongs to another protection
// domain, is refused before anything is posted. No threading rule.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>

namespace rcverbs {

namespace detail {

struct region_record;

/// Which registration a slice was made of; none for one made by hand.
struct region_mark {
    region_record const* record = nullptr;
    std::uint32_t generation = 0;
};

}  // namespace detail

/// A range of local registered memory.
class local_slice {
public:
    /// Nothing: the local side of a zero-length operation.
    local_slice() = default;
    /// `bytes`, which lie in the region that `key` names. The way for memory that was registered without this library:
    /// nothing is checked of it.
    local_slice(std::span<std::byte> bytes, local_key key) noexcept
        : data_{bytes.data()}, size_bytes_{bytes.size()}, key_{key} {}
    /// For the library's own use: a slice that can be checked.
    local_slice(std::span<std::byte> bytes, local_key key, detail::region_mark mark) noexcept
        : data_{bytes.data()}, size_bytes_{bytes.size()}, record_{mark.record}, generation_{mark.generation}, key_{key} {}

    /// The first byte.
    std::byte* data() const noexcept { return data_; }
    /// The size in bytes.
    std::size_t size() const noexcept { return size_bytes_; }
    /// The memory itself.
    std::span<std::byte> bytes() const noexcept { return {data_, size_bytes_}; }
    /// The key of the region it lies in.
    local_key key() const noexcept { return key_; }
    /// For the library's own use.
    detail::region_mark mark() const noexcept { return {record_, generation_}; }

    /// The first `size_bytes` bytes of it. REQUIRES: it has so many.
    local_slice first(std::size_t size_bytes) const noexcept { return {bytes().first(size_bytes), key_, mark()}; }

private:
    // Flat, so that it takes no more room than it must: it is copied with every operation.
    std::byte* data_ = nullptr;
    std::size_t size_bytes_ = 0;
    detail::region_record const* record_ = nullptr;
    std::uint32_t generation_ = 0;
    local_key key_;
};

/// The local side of an operation: one slice, or a list of them, which the device gathers from or scatters to in order.
///
/// A list is not copied: it must stay as it is until the operation's handler runs, like the memory that it names.
class local_slices {
public:
    /// Nothing.
    local_slices() = default;
    /// One slice, copied.
    local_slices(local_slice const& one) noexcept : one_{one}, count_{1}, size_bytes_{one.size()} {}
    /// A list, referred to: an array, a vector or a span of local_slice.
    local_slices(std::span<local_slice const> list) noexcept
        : list_{list.empty() ? nullptr : list.data()}, count_{list.size()} {
        for (local_slice const& slice : list) size_bytes_ += slice.size();
    }
    /// The same.
    template <class List>
        requires std::is_convertible_v<List const&, std::span<local_slice const>>
    local_slices(List const& list) noexcept : local_slices{std::span<local_slice const>{list}} {}

    /// All bytes together.
    std::size_t size_bytes() const noexcept { return size_bytes_; }
    /// The first of them; an empty one if there is none.
    local_slice const& front() const noexcept { return list_ != nullptr ? *list_ : one_; }
    /// How many slices there are.
    std::size_t count() const noexcept { return count_; }
    /// One of them. REQUIRES: index < count().
    local_slice const& operator[](std::size_t index) const noexcept { return list_ != nullptr ? list_[index] : one_; }

private:
    local_slice one_;
    local_slice const* list_ = nullptr;
    std::size_t count_ = 0;
    std::size_t size_bytes_ = 0;
};

}  // namespace rcverbs
