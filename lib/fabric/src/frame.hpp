// frame.hpp — packets and the connection manager's messages as bytes, between processes.
//
// Integers are little-endian. A frame is its length without the length itself (4 bytes), its type
// (1 byte) and its fields. The bytes of another process are checked here for their form: lengths,
// enumerations, address families. Their meaning is checked by who executes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "frame_type.hpp"
#include "objects.hpp"
#include "packet.hpp"

namespace rcverbs::fabric::detail {

/// The first frame of a connection between two processes: who connects.
struct hello {
    std::uint32_t node = 0;
    std::uint32_t slot = 0;
    bool operator==(hello const&) const = default;
};

/// A command of rcverbs-fabric to a running process: a word and its argument.
struct control {
    std::string text;
};

using frame = std::variant<hello, packet, cm_message, control>;

/// The largest frame: the largest packet with its header.
inline constexpr std::size_t frame_bytes_max = 4096 + 256;
/// The most private data of a message.
inline constexpr std::size_t private_data_max = 256;

void append(std::vector<std::byte>& to, hello const& h);
void append(std::vector<std::byte>& to, packet const& p);
void append(std::vector<std::byte>& to, cm_message const& m);

/// Takes the first frame off `from`; none if it is malformed. A packet's payload stays where it is.
std::optional<frame> take_frame(std::span<std::byte const>& from);

}  // namespace rcverbs::fabric::detail
