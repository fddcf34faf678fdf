// channel_hello.hpp — the first bytes of a message channel, in the connection manager's private data.
//
// 24 bytes in network byte order, the same in a request, an acceptance and a refusal, and then the
// application's own:
//
//   offset  size  field
//        0     4  magic, "RCVC"
//        4     2  version of the channel protocol, 2
//        6     2  verdict: 0 in a request and an acceptance, else why the channel is refused
//        8     4  mode, the application's own number; both sides must have the same
//       12     4  slot_bytes: the longest message that the sender of the hello receives
//       16     2  receives: how many receives the sender of the hello has posted
//       18     1  the application's bytes that follow, 0 to 32
//       19     1  the bytes of the client's identity behind them: 0 or 16, together at most 32
//       20     2  how many requests of the peer's may be unanswered, of a request channel, which
//                 fits only such a channel; else zero
//       22     2  zero
//       24     n  the application's bytes
//     24+n     i  the identity of the client, chosen at random, by which a server knows that it has
//                 connected again; of a request of a request channel only
//
// Verdicts, and what is compatible, as for the session's hello.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <rcverbs/channel_error.hpp>

#include "wire/hello.hpp"

namespace rcverbs::wire {

inline constexpr std::size_t channel_hello_bytes = 24;
inline constexpr std::size_t channel_greeting_bytes_max = 32;
inline constexpr std::size_t channel_identity_bytes = 16;
inline constexpr std::uint16_t channel_version = 2;
inline constexpr std::uint32_t channel_slot_bytes_min = 512;
inline constexpr std::uint32_t channel_slot_bytes_max = 1U << 20;
inline constexpr std::uint16_t channel_receives_min = 6;
inline constexpr std::uint16_t channel_receives_max = 32767;

struct channel_hello {
    std::uint16_t version = channel_version;
    verdict answer = verdict::welcome;
    std::uint32_t mode = 0;
    std::uint32_t slot_bytes = channel_slot_bytes_min;
    std::uint16_t receives = channel_receives_min;
    std::uint16_t requests = 0;
    std::vector<std::byte> greeting;
    std::optional<std::array<std::byte, channel_identity_bytes>> identity;
    /// False if bytes are set that this version leaves zero, or if bytes are missing.
    bool is_well_formed = true;

    friend bool operator==(channel_hello const&, channel_hello const&) = default;
};

/// REQUIRES: at most channel_greeting_bytes_max bytes of greeting and identity.
std::vector<std::byte> encode(channel_hello const& h);

/// Decodes a hello. channel_errc::foreign_peer if the magic or the size is wrong. Checks nothing else,
/// because a hello of another version has other rules.
channel_hello decode_channel_hello(std::span<std::byte const> in, error_code& ec);

/// The verdict on a peer's request: whether it is well-formed and compatible with `ours`.
verdict judge_request(channel_hello const& ours, channel_hello const& theirs) noexcept;

/// Checks a peer's acceptance. Fails if its verdict is a refusal, if it breaks the format, or if it
/// is not compatible with `ours`.
error_code check_acceptance(channel_hello const& ours, channel_hello const& theirs) noexcept;

}  // namespace rcverbs::wire
