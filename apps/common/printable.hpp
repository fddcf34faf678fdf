// printable.hpp — makes text from a peer safe for a terminal and for scripts that read lines.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace demo {

/// The longest part of a peer's text that is printed, in bytes.
inline constexpr std::size_t peer_text_max = 512;

/// A peer's text in printable ASCII: every other byte, and the backslash, becomes \xNN. Text longer
/// than `bytes_max` is cut, and the result states the number of bytes left out.
std::string printable(std::string_view text, std::size_t bytes_max = peer_text_max);

/// A line of this program's own output in UTF-8: what is no character, or a control character, becomes
/// \xNN for each byte.
std::string one_line(std::string_view text);

}  // namespace demo
