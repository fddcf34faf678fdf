// frame_type.hpp — the types of frames, and the one frame that rcverbs-fabric sends itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace rcverbs::fabric::detail {

enum class frame_type : std::uint8_t { hello = 1, packet, cm_message, control };

/// A command to a running process: its length without the length itself, its type and its words.
inline std::vector<std::byte> control_frame(std::string_view words) {
    std::size_t const size = words.size() + 1;
    std::vector<std::byte> bytes;
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(size >> (8 * i)));
    bytes.push_back(static_cast<std::byte>(frame_type::control));
    auto const text = std::as_bytes(std::span{words});
    bytes.insert(bytes.end(), text.begin(), text.end());
    return bytes;
}

}  // namespace rcverbs::fabric::detail
