// message.hpp — the messages of a session: MSG_MR and MSG_DONE.
//
// Network byte order throughout. Every message starts with a head of 16 bytes:
//
//   offset  size  field
//        0     4  magic, "RCVM"
//        4     1  version of the session protocol, 1
//        5     1  type: 1 MSG_MR, 2 MSG_DONE
//        6     2  count: of regions in MSG_MR, 0 in MSG_DONE
//        8     4  size of the whole message in bytes
//       12     4  zero
//
// MSG_MR goes on with `count` descriptors of 48 bytes:
//
//        0     8  address        the sender's virtual address
//        8     8  size in bytes
//       16     4  rkey
//       20     4  rights         bits as in rcverbs::access_flags
//       24    24  name           bytes, padded with zeros; all 24 may be used
//
// No host struct is ever put on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <rcverbs/session_error.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs::wire {

inline constexpr std::size_t head_bytes = 16;
inline constexpr std::size_t descriptor_bytes = 48;
inline constexpr std::size_t region_name_bytes_max = 24;
inline constexpr std::size_t regions_max = 64;
/// The longest message there is.
inline constexpr std::size_t message_bytes_max = head_bytes + regions_max * descriptor_bytes;

/// One region as MSG_MR describes it.
struct region_descriptor {
    std::string name;
    remote_region region;

    friend bool operator==(region_descriptor const&, region_descriptor const&) = default;
};

/// MSG_MR: the regions that the sender exposes.
struct regions_message {
    std::vector<region_descriptor> regions;

    friend bool operator==(regions_message const&, regions_message const&) = default;
};

/// MSG_DONE: the sender will not access the receiver's regions again, and the receiver may release
/// them.
struct done_message {
    friend bool operator==(done_message const&, done_message const&) = default;
};

using message = std::variant<regions_message, done_message>;

/// Writes a message; returns its size. errc::message_too_large if there are too many regions, a
/// name is too long, or `out` is too small.
std::size_t encode(message const& m, std::span<std::byte> out, error_code& ec) noexcept;

/// Reads a message. session_errc::malformed_message, session_errc::version_mismatch.
message decode(std::span<std::byte const> in, error_code& ec);

}  // namespace rcverbs::wire
