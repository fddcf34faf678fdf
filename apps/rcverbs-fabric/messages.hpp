// messages.hpp — what two bridges say to each other, and what a network looks like to the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rcverbs::fabric {

/// A process: its node and its slot.
using place = std::pair<std::uint32_t, std::uint32_t>;

/// The nodes, processes and listening ports of one side.
struct network_state {
    struct port {
        std::uint32_t node = 0;
        std::uint16_t number = 0;
        std::uint32_t slot = 0;
        auto operator<=>(port const&) const = default;
    };
    std::set<std::uint32_t> nodes;
    std::set<place> places;
    std::set<port> ports;
    bool operator==(network_state const&) const = default;

    /// Lines: "3" for a node, "3.1" for a process, "3:7471 1" for a port and its slot.
    std::string encode() const;
    /// None if a line is malformed, or if a process or port has no node there.
    static std::optional<network_state> decode(std::string_view text);
};

/// state: a network_state. want_node, node: a token of who asks; the number, 0 for none. open: a channel to a process.
/// data: a datagram. taken: bytes that have left for their process. close: nothing more follows.
enum class message_type : std::uint8_t {
    hello = 1,
    state,
    want_node,
    node,
    open,
    data,
    taken,
    close
};

inline constexpr std::size_t datagram_bytes_max = 64 * 1024;
/// The most content of a message.
inline constexpr std::size_t content_bytes_max = 1024 * 1024;
/// Datagrams of a channel that have not been taken.
inline constexpr std::size_t window_bytes = 256 * 1024;

/// A message with numbers of 4 bytes and, behind them, bytes.
std::vector<std::byte> encode(
    message_type what,
    std::initializer_list<std::uint32_t> numbers,
    std::span<std::byte const> bytes = {}
);
/// Takes a number off the content; none if it is too short.
std::optional<std::uint32_t> take_number(std::span<std::byte const>& content) noexcept;

}  // namespace rcverbs::fabric
