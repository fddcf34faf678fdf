// hello.hpp — the first bytes of a session, carried in the connection manager's private data.
//
// 24 bytes in network byte order, the same in a request, an acceptance and a refusal:
//
//   offset  size  field
//        0     4  magic, "RCVS"
//        4     2  version of the session protocol, 1
//        6     2  verdict: 0 in a request and an acceptance, else why the session is refused
//        8     4  mode, the application's own number; both sides must have the same
//       12     4  message_bytes_max: the longest message that the sender of the hello receives
//       16     2  receives: how many receives the sender of the hello keeps posted
//       18     6  zero
//
// The connection manager pads private data with zeros to the length of its field, so a longer field is no error; a
// later version may use what is zero here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <rcverbs/error.hpp>

namespace rcverbs::wire {

inline constexpr std::size_t hello_bytes = 24;
inline constexpr std::uint16_t protocol_version = 1;

/// Why a session is refused; numbers on the wire.
enum class verdict : std::uint16_t {
    welcome = 0,
    version_mismatch = 1,
    mode_mismatch = 2,
    busy = 3,
    malformed = 4,
};

struct hello {
    std::uint16_t version = protocol_version;
    verdict answer = verdict::welcome;
    std::uint32_t mode = 0;
    std::uint32_t message_bytes_max = 0;
    std::uint16_t receives = 0;

    friend bool operator==(hello const&, hello const&) = default;
};

std::array<std::byte, hello_bytes> encode(hello const& h) noexcept;

/// Reads a hello. errc::foreign_peer if it is none. A version other than ours is no error here.
hello decode_hello(std::span<std::byte const> in, error_code& ec) noexcept;

/// The error that a verdict stands for; none for `welcome`.
error_code to_error(verdict v) noexcept;

/// What to answer to a peer's hello: whether it fits `ours`.
verdict judge(hello const& ours, hello const& theirs) noexcept;

}  // namespace rcverbs::wire
