// queue_pair_address.hpp — connects two queue pairs without the connection manager.
//
//     queue_pair_address const ours = c.prepare("rxe0");
//     queue_pair_address const theirs = swap_over_tcp(ours);
//     c.establish(theirs);
//
// The two sides exchange their addresses over any channel: a TCP socket, a file, a job scheduler. A
// value; no threading rule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

/// The address and the parameters of a queue pair.
struct RCVERBS_EXPORT queue_pair_address {
    /// The number of the queue pair, 24 bits.
    std::uint32_t queue_pair_number = 0;
    /// The sequence number (PSN) of the first packet that it sends: 24 bits, best at random.
    std::uint32_t starting_psn = 0;
    /// The address of its port.
    std::array<std::uint8_t, 16> gid{};
    /// The local identifier of its port on InfiniBand; 0 on Ethernet.
    std::uint16_t lid = 0;
    /// The MTU of its port, or the smaller one that it asks for: 1 to 5 for 256, 512, 1024, 2048 and 4096 bytes. Source: enum ibv_mtu.
    std::uint8_t mtu = 0;
    /// Reads and atomics that it may have outstanding.
    std::uint8_t initiator_depth = 0;
    /// Reads and atomics of the other side that it serves at a time.
    std::uint8_t responder_resources = 0;
    /// How often the other side retries a send that finds no receive posted here.
    std::uint8_t rnr_retry_count = 0;
    /// What its device offers beyond the specification, such as selective retransmission, and whose
    /// meaning that is; both 0 if nothing. Devices of the same vendor use what both offer. Source:
    /// ibv_query_ece(3).
    std::uint32_t ece_vendor = 0;
    /// See above.
    std::uint32_t ece_options = 0;

    /// The size on the wire in bytes.
    static constexpr std::size_t encoded_bytes = 48;

    /// In network byte order, with a magic number and a version.
    std::array<std::byte, encoded_bytes> encode() const noexcept;
    /// Decodes a result of encode(). errc::version_mismatch,
    /// errc::malformed_message.
    static queue_pair_address decode(std::span<std::byte const> in, error_code& ec) noexcept;

    friend bool operator==(queue_pair_address const&, queue_pair_address const&) = default;
};

}  // namespace rcverbs
