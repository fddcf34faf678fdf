// channel_message.hpp — the messages of a message channel.
//
// Network byte order. Every message starts with a head of 16 bytes:
//
//   offset  size  field
//        0     1  type: 1 EAGER, 2 LARGE, 3 LARGE_DONE, 4 CREDIT, 5 CLOSE, 6 WITHDRAW
//        1     1  CREDITs that the sender has ever taken, modulo 2^8
//        2     2  receives that the sender has ever given back, but for CREDITs and CLOSE, modulo
//                 2^16
//        4     4  EAGER: bytes that follow; LARGE: number of segments; LARGE_DONE: 0 fetched,
//                 1 declined; else zero
//        8     8  EAGER, LARGE: tag, the application's number; LARGE_DONE and WITHDRAW: the
//                 number of the LARGE that they concern, counted from 0; else zero
//
// EAGER goes on with the bytes of the message. LARGE goes on with 1 to 16 segments of memory that
// the receiver reads, 24 bytes each: address, size, rkey, rights, as in MSG_MR; and then, on a
// request channel, with the prefix of the request or answer (request_tag.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs::wire {

inline constexpr std::size_t channel_head_bytes = 16;
inline constexpr std::size_t channel_segments_max = 16;

enum class channel_type : std::uint8_t {
    eager = 1,
    large = 2,
    large_done = 3,
    credit = 4,
    close = 5,
    withdraw = 6,
};

struct channel_head {
    channel_type type = channel_type::eager;
    std::uint8_t credits_taken = 0;
    std::uint16_t given_back = 0;
    std::uint32_t count = 0;
    std::uint64_t tag = 0;

    friend bool operator==(channel_head const&, channel_head const&) = default;
};

/// REQUIRES: channel_head_bytes of room.
void encode(channel_head const& h, std::span<std::byte> out) noexcept;

/// Decodes the head of a message, and checks it against the size of the whole.
/// channel_errc::malformed_message.
channel_head decode_channel_head(std::span<std::byte const> in, error_code& ec) noexcept;

/// What the segments of a LARGE with this head take.
constexpr std::size_t segments_bytes(channel_head const& h) noexcept {
    return h.count * remote_region::encoded_bytes;
}

/// Writes the segments of a LARGE behind its head. REQUIRES: room for them.
void encode_segments(std::span<remote_region const> segments, std::span<std::byte> out) noexcept;

/// The segments of a LARGE, and their bytes together.
struct channel_segments {
    std::array<remote_region, channel_segments_max> list;
    std::size_t count = 0;
    std::uint64_t size_bytes = 0;
};

/// Decodes the segments of a LARGE. channel_errc::malformed_message if one may not be read, or if all
/// together have more bytes than 64 bits can count.
///
/// @param in  The message up to its last segment; the head has been decoded.
channel_segments decode_segments(std::span<std::byte const> in, error_code& ec) noexcept;

}  // namespace rcverbs::wire
