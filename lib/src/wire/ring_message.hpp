// ring_message.hpp — what two sides of a ring say to each other, in network byte order.
//
// The hello, in the private data of the connection manager, 32 bytes:
//
//   offset  size  field
//        0     4  "RING"
//        4     2  version: 1
//        6     1  role: 1 writer, 2 reader
//        7     1  zero
//        8     4  bytes of the ring; this and the next three are zero of a writer
//       12     4  receives
//       16     8  address
//       24     4  key
//       28     4  zero
//
// In front of each record, in the ring: its bytes (4), its number (4): 0, 1, 2 …, modulo 2^32.
//
// The counts, a message of the reader's, 24 bytes: bytes consumed (8), receives posted (8), requests for
// room that are answered (4), flags (4): 1 finished.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rcverbs/channel_error.hpp>
#include <rcverbs/keys.hpp>

namespace rcverbs::wire {

inline constexpr std::uint16_t ring_version = 1;
inline constexpr std::size_t ring_hello_bytes = 32;
inline constexpr std::size_t ring_counts_bytes = 24;
inline constexpr std::size_t ring_header_bytes = 8;

enum class ring_role : std::uint8_t { writer = 1, reader = 2 };

struct ring_hello {
    std::uint16_t version = ring_version;
    ring_role role = ring_role::writer;
    std::uint32_t ring_bytes = 0;
    std::uint32_t receives = 0;
    std::uint64_t address = 0;
    remote_key key;

    friend bool operator==(ring_hello const&, ring_hello const&) = default;
};

struct ring_header {
    std::uint32_t bytes = 0;
    std::uint32_t sequence = 0;

    friend bool operator==(ring_header const&, ring_header const&) = default;
};

struct ring_counts_message {
    std::uint64_t consumed = 0;
    std::uint64_t posted = 0;
    std::uint32_t waits = 0;
    bool is_finished = false;

    friend bool operator==(ring_counts_message const&, ring_counts_message const&) = default;
};

std::array<std::byte, ring_hello_bytes> encode(ring_hello const& h) noexcept;
std::array<std::byte, ring_header_bytes> encode(ring_header const& h) noexcept;
std::array<std::byte, ring_counts_bytes> encode(ring_counts_message const& c) noexcept;

/// channel_errc::foreign_peer; of another version only the version is known. What follows the hello is
/// ignored.
ring_hello decode_ring_hello(std::span<std::byte const> in, error_code& ec) noexcept;
/// REQUIRES: ring_header_bytes.
ring_header decode_ring_header(std::span<std::byte const> in) noexcept;
/// channel_errc::malformed_message.
ring_counts_message decode_ring_counts(std::span<std::byte const> in, error_code& ec) noexcept;

}  // namespace rcverbs::wire
