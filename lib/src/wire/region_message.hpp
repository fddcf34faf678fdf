// region_message.hpp — the bodies of the requests and notices by which two sides exchange regions.
//
// They are requests and notices of a request channel, with operations of their own. All numbers in
// network byte order.
//
//   operation     kind      body                                   answer
//   0xffffff00    REQUEST   FIND: version (2), zero (2), name      FOUND, or a status
//   0xffffff01    REQUEST   KEYS: number (8), first piece (4),     keys, or a status
//                           pieces (4)
//   0xffffff02    REQUEST   WITHDRAW: number (8)                   none: it is no longer used
//   0xffffff03    NOTICE    OFFERED: name
//   0xffffff04    NOTICE    WITHDRAWN: name
//   0xffffff05    NOTICE    DROPPED: number (8), times found (4), zero (4)
//   0xffffff06    REQUEST   ALLOCATE: version (2), flags (2): 1   ALLOCATED, or a status
//                           keep; zero (4), bytes (8),
//                           alignment (8)
//   0xffffff07    REQUEST   FREE: number (8)                       none: the memory is free
//   0xffffff08    REQUEST   SHARE: number (8), name                none
//   0xffffff09    REQUEST   RESUME: version (2), zero (6),         ALLOCATED, or a status
//                           token (16)
//
// A name has 1 to 255 bytes. ALLOCATED, with status 0: bytes that may still be allocated (8), token
// (16, zero if the memory is not kept), FOUND. FOUND, with status 0:
//
//   offset  size  field
//        0     8  number: of the offer, never used again by that side
//        8     4  rights, bits as in access_flags: remote_read, remote_write, remote_atomic
//       12     2  ranges: 1 to 16
//       14     2  keys that follow: those of the first pieces; 0 to 64
//       16     8  piece: bytes of a piece, the last of a range may be shorter
//       24    8n  sizes of the ranges
//        …   12k  keys: address (8), key (4)
//
// Statuses of answers: 0; 1 there is none of this name or number; 2 refused, with an errno (4), the
// limit that was met (4), what was needed of it (8) and what there is (8); 3 another version; 4 more than the sender may have, and 5 more than there is, each with
// the bytes that the sender may still allocate (8) and those of the largest free block (8).
#pragma once

#include <boost/container/small_vector.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/channel_error.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/registration_limit.hpp>

namespace rcverbs::wire {

inline constexpr std::uint16_t region_version = 1;
inline constexpr std::size_t offer_name_bytes_max = 255;
inline constexpr std::size_t region_keys_max = 64;
inline constexpr std::size_t region_key_bytes = 12;
inline constexpr std::size_t region_ranges_max = 16;

enum class region_operation : std::uint32_t {
    find = 0xffffff00,
    keys = 0xffffff01,
    withdraw = 0xffffff02,
    offered = 0xffffff03,
    withdrawn = 0xffffff04,
    dropped = 0xffffff05,
    allocate = 0xffffff06,
    free = 0xffffff07,
    share = 0xffffff08,
    resume = 0xffffff09,
};
/// Operations from here on belong to the layer.
inline constexpr std::uint32_t region_operation_first = 0xffffff00;

enum class region_status : std::uint32_t {
    found = 0,
    none = 1,
    refused = 2,
    other_version = 3,
    over_quota = 4,
    exhausted = 5,
};

/// Why the owner refuses.
struct region_refused {
    /// An errno, above 0.
    int why = 0;
    registration_limit limit;
};

/// What a piece is used with.
struct piece_key {
    std::uint64_t address = 0;
    remote_key key;

    friend bool operator==(piece_key const&, piece_key const&) = default;
};

/// Most regions have one piece.
using piece_keys = boost::container::small_vector<piece_key, 1>;

struct region_find {
    std::uint16_t version = region_version;
    std::string_view name;
};

struct region_found {
    std::uint64_t number = 0;
    access_flags rights = access_flags::local_read;
    std::uint64_t piece_bytes = 0;
    boost::container::small_vector<std::uint64_t, 1> range_bytes;
    piece_keys keys;
};

struct region_keys {
    std::uint64_t number = 0;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
};

struct region_dropped {
    std::uint64_t number = 0;
    std::uint32_t founds = 0;
};

using region_token = std::array<std::byte, 16>;

struct region_allocate {
    std::uint16_t version = region_version;
    bool is_kept = false;
    std::uint64_t bytes = 0;
    /// A power of two.
    std::uint64_t alignment = 1;
};

struct region_resume {
    std::uint16_t version = region_version;
    region_token token{};
};

struct region_allocated {
    std::uint64_t bytes_left = 0;
    region_token token{};
    region_found memory;
};

struct region_left {
    std::uint64_t bytes_left = 0;
    std::uint64_t largest_bytes = 0;
};

struct region_share {
    std::uint64_t number = 0;
    std::string_view name;
};

constexpr bool is_region_name(std::string_view name) noexcept {
    return !name.empty() && name.size() <= offer_name_bytes_max;
}

/// The size of a FOUND.
constexpr std::size_t found_bytes(std::size_t ranges, std::size_t keys) noexcept {
    constexpr std::size_t fixed_bytes = 24;
    return fixed_bytes + ranges * sizeof(std::uint64_t) + keys * region_key_bytes;
}

/// What precedes the FOUND of an ALLOCATED.
inline constexpr std::size_t allocated_head_bytes = 24;

std::vector<std::byte> encode_find(std::string_view name);
std::vector<std::byte> encode(region_found const& f);
std::vector<std::byte> encode(std::span<piece_key const> keys);
std::array<std::byte, 16> encode(region_keys const& k) noexcept;
std::array<std::byte, 16> encode(region_dropped const& d) noexcept;
std::array<std::byte, 24> encode(region_allocate const& a) noexcept;
std::array<std::byte, 24> encode(region_resume const& r) noexcept;
std::vector<std::byte> encode(region_allocated const& a);
std::array<std::byte, 16> encode(region_left const& l) noexcept;
std::vector<std::byte> encode(region_share const& s);
std::array<std::byte, 8> encode_number(std::uint64_t number) noexcept;
std::array<std::byte, 24> encode(region_refused const& r) noexcept;

// Decoders: channel_errc::malformed_message. The names of a FIND and a SHARE refer to the input.
region_find decode_find(std::span<std::byte const> in, error_code& ec) noexcept;
region_found decode_found(std::span<std::byte const> in, error_code& ec);
piece_keys decode_piece_keys(std::span<std::byte const> in, std::size_t count, error_code& ec);
region_keys decode_keys(std::span<std::byte const> in, error_code& ec) noexcept;
region_dropped decode_dropped(std::span<std::byte const> in, error_code& ec) noexcept;
region_allocate decode_allocate(std::span<std::byte const> in, error_code& ec) noexcept;
region_resume decode_resume(std::span<std::byte const> in, error_code& ec) noexcept;
region_allocated decode_allocated(std::span<std::byte const> in, error_code& ec);
region_left decode_left(std::span<std::byte const> in, error_code& ec) noexcept;
region_share decode_share(std::span<std::byte const> in, error_code& ec) noexcept;
std::uint64_t decode_number(std::span<std::byte const> in, error_code& ec) noexcept;
region_refused decode_refused(std::span<std::byte const> in, error_code& ec) noexcept;

}  // namespace rcverbs::wire
