// message_frame.hpp — the layout of a message in a region, with its length and checksum.
//
// Layout, numbers in network byte order: magic "RCVD" (4), text length (4), frame length (8),
// checksum of the bytes after the header (8, XXH64 with the text length as its seed), the text, and
// padding up to the frame length.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace demo {

inline constexpr std::size_t frame_head_bytes = 24;
/// The smallest region that holds a frame.
inline constexpr std::size_t frame_bytes_min = 128;

/// Fills `region` with a frame that holds as much of `text` as fits. REQUIRES: region.size() >=
/// frame_bytes_min.
void write_frame(std::span<std::byte> region, std::string_view text);

/// The text of the frame in `region`, or the reason why it does not verify.
struct frame_text {
    std::optional<std::string> text;
    std::string problem;
};
frame_text read_frame(std::span<std::byte const> region);

}  // namespace demo
