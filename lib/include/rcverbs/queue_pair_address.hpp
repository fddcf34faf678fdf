// queue_pair_address.hpp — connects two queue pairs without the connection manager.
//
//     error_code ec;
//     queue_pair_address const ours = c.prepare("rxe0", {}, ec);
//     queue_pair_address const theirs = swap_over_tcp(ours);
//     if (!ec) ec = c.establish(theirs);
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

/// Where a queue pair is found, and what it can do.
struct RCVERBS_EXPORT queue_pair_address {
    /// 24 bits.
    std::uint32_t queue_pair_number = 0;
    /// Of the first packet that it sends: 24 bits, best at random.
    std::uint32_t starting_psn = 0;
    /// Its port's address.
    std::array<std::uint8_t, 16> gid{};
    /// Its port's local identifier on InfiniBand; 0 on Ethernet.
    std::uint16_t lid = 0;
    /// Its port's packets: 1 to 5 for 256, 512, 1024, 2048 and 4096 bytes. Source: enum ibv_mtu.
    std::uint8_t mtu = 0;
    /// Reads and atomics that it may have outstanding, and answers at a time.
    std::uint8_t initiator_depth = 0;
    /// As above.
    std::uint8_t responder_resources = 0;
    /// How often the other side tries again when it finds no receive here.
    std::uint8_t rnr_retry_count = 0;

    /// How many bytes it takes on the wire.
    static constexpr std::size_t encoded_bytes = 40;

    /// In network byte order, with a magic number and a version.
    std::array<std::byte, encoded_bytes> encode() const noexcept;
    /// The other way round. errc::foreign_peer, errc::version_mismatch, errc::malformed_message.
    static queue_pair_address decode(std::span<std::byte const> in, error_code& ec) noexcept;

    friend bool operator==(queue_pair_address const&, queue_pair_address const&) = default;
};

}  // namespace rcverbs
