// remote_region.hpp — a range of a peer's memory.
//
//     auto const bytes = page.remote().encode();
//     std::copy(bytes.begin(), bytes.end(), message.begin());
//     error_code ec;
//     remote_region const theirs = remote_region::decode(received, ec);
//
// A value that is sent in messages and copied freely; it owns nothing. Only an operation can tell
// whether the peer still has the memory registered. No threading rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>

namespace rcverbs {

/// One 8-byte cell of remote memory, for atomic operations.
struct remote_atomic {
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

    /// `size_bytes` bytes at the peer's virtual address `address`, named by `key`, usable with
    /// `rights`.
    remote_region(
        std::uint64_t address, std::uint64_t size_bytes, remote_key key, access_flags rights
    ) noexcept
        : address_{address},
          size_bytes_{size_bytes},
          key_{key},
          rights_{rights} {}

    /// The peer's virtual address of the first byte.
    std::uint64_t address() const noexcept { return address_; }
    /// The size in bytes.
    std::uint64_t size() const noexcept { return size_bytes_; }
    /// The key to use it with.
    remote_key key() const noexcept { return key_; }
    /// What the peer allows.
    access_flags rights() const noexcept { return rights_; }

    /// The `size_bytes` bytes that start `offset_bytes` into this region.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside it.
    remote_region slice(std::uint64_t offset_bytes, std::uint64_t size_bytes) const;

    /// The `count` elements of type T from the one numbered `first` on, the region being an array
    /// of them.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if they are not all inside it.
    template <class T>
    requires std::is_trivially_copyable_v<T> remote_region
    elements(std::uint64_t first, std::uint64_t count)
    const {
        // A product that overflows is out of range, too.
        constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max() / sizeof(T);
        return first > most || count > most ? slice(size_bytes_, 1)
                                            : slice(first * sizeof(T), count * sizeof(T));
    }

    /// The 8-byte cell that starts `offset_bytes` into this region.
    ///
    /// @throws boost::system::system_error (errc::out_of_range) if it is not all inside.
    remote_atomic word(std::uint64_t offset_bytes) const;

    /// The size of encode()'s result.
    static constexpr std::size_t encoded_bytes = 24;
    /// The region in bytes, for messages of a protocol of one's own. In network byte order:
    ///
    ///   offset  size  field
    ///        0     8  address
    ///        8     8  size in bytes
    ///       16     4  key
    ///       20     4  rights, bits as in access_flags
    std::array<std::byte, encoded_bytes> encode() const noexcept;
    /// Decodes a result of encode(). Rejects a range that wraps around the address space, and
    /// unknown rights.
    ///
    /// @param in  At least encoded_bytes bytes; further ones are ignored.
    /// @param ec  errc::malformed_message.
    static remote_region decode(std::span<std::byte const> in, error_code& ec) noexcept;
    /// The same.
    ///
    /// @throws boost::system::system_error (errc::malformed_message).
    static remote_region decode(std::span<std::byte const> in);

    friend bool operator==(remote_region const&, remote_region const&) = default;

private:
    std::uint64_t address_ = 0;
    std::uint64_t size_bytes_ = 0;
    remote_key key_;
    access_flags rights_ = access_flags::local_read;
};

}  // namespace rcverbs
