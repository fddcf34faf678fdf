// settings.hpp — what `rcverbs-fabric run` tells the programs that it starts, in environment variables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rcverbs::fabric::detail {

struct settings {
    std::string network = "default";
    /// The directory of the network; empty: that of this user with the network's name.
    std::string directory_path;
    /// 0: a node of its own.
    std::uint32_t node = 0;
    std::uint32_t devices = 1;
    std::optional<std::uint64_t> seed;
    /// The share of packets that are lost.
    double loss = 0;
    /// How much later packets arrive.
    std::uint32_t delay_us = 0;
    /// Empty, or NODE@PACKET.
    std::string kill;
    /// The network goes on step by step: it has a stepper.
    bool is_stepped = false;
    /// The file for the packets that cross the network; empty: none.
    std::string capture;

    /// Throws std::runtime_error for a value that is out of range.
    static settings of_environment();
    void to_environment() const;
};

/// The node that is to be killed, and the number of the packet before which it happens; the first is
/// 1.
struct kill_order {
    std::uint32_t node = 0;
    std::uint64_t packet = 0;
};

/// Throws std::runtime_error if the text is not NODE@PACKET.
kill_order parse_kill(std::string const& text);

}  // namespace rcverbs::fabric::detail
