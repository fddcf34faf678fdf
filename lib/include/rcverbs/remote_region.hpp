// remote_region.hpp — memory of a peer, as the peer described it.
//
// A value: it travels in messages, is copied freely, and owns nothing. Whether the peer still keeps the memory
// registered only an operation on it can tell. No threading rule.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>

namespace rcverbs {

/// One 8-byte cell of remote memory, for atomic operations.
struct remote_word {
    /// The peer's virtual address; a multiple of 8 for an atomic operation to be accepted.
    std::uint64_t address = 0;
    /// The key of the region that holds the cell.
    remote_key key;
    /// The rights that the peer granted.
    access_flags rights = access_flags::remote_atomic;
};

/// A range of a peer's registered memory.
class RCVERBS_EXPORT remote_region {
public:
    /// An empty region at address 0.
    remote_region() = default;

    /// `size_bytes` bytes at the peer's virtual address `address`, named by `key`, usable with `rights`.
    remote_region(std::uint64_t address, std::uint64_t size_bytes, remote_key key, access_flags rights) noexcept
        : address_{address}, size_bytes_{size_bytes}, key_{key}, rights_{rights} {}

    /// The peer's virtual address of the first byte.
    std::uint64_t address() const noexcept { return address_; }
    /// The size in bytes.
    std::uint64_t size_bytes() const noexcept { return size_bytes_; }
    /// The key to use it with.
    remote_key key() const noexcept { return key_; }
    /// What the peer allows.
    access_flags rights() const noexcept { return rights_; }

    /// The `size_bytes` bytes that start `offset_bytes` into this region.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside it.
    remote_region slice(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;

    /// The `count` elements of type T from the one numbered `first` on, the region being an array of them.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside it.
    template <class T>
        requires std::is_trivially_copyable_v<T>
    remote_region elements(std::uint64_t first, std::uint64_t count) const {
        // Where the product does not fit, the range does not either.
        constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / sizeof(T);
        return first > most || count > most ? slice(size_bytes_, 1) : slice(first * sizeof(T), count * sizeof(T));
    }

    /// The 8-byte cell that starts `offset_bytes` into this region.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if it is not all inside.
    remote_word word(std::uint64_t offset_bytes) const;

    friend bool operator==(remote_region const&, remote_region const&) = default;

private:
    std::uint64_t address_ = 0;
    std::uint64_t size_bytes_ = 0;
    remote_key key_;
    access_flags rights_ = access_flags::local_read;
};

}  // namespace rcverbs
