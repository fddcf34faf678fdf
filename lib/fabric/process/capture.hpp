// capture.hpp — packets as RoCE v2 frames in a file that Wireshark reads.
//
// Each process appends what it sends, one write for each packet, so that several may write to one
// file. Sources: InfiniBand specification, volume 1, "Transport layer" and annex A17 (RoCE v2); the
// pcap file format (draft-ietf-opsawg-pcap).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "../src/objects.hpp"
#include "../src/packet.hpp"
#include "directory.hpp"

namespace rcverbs::fabric::detail {

/// The Ethernet frame of a packet, without its frame check sequence.
std::vector<std::byte> roce_frame(packet const& p);
/// The same of a message of the connection manager: a management datagram to queue pair 1. Its numbers of ids are those of
/// their slots and the last 24 bits of the numbers that processes use.
std::vector<std::byte> roce_frame(cm_message const& m, ibv_gid const& from, ibv_gid const& to);

class capture {
public:
    /// Writes the head of a file that is new or empty; leaves a capture of earlier commands as it is. Throws
    /// std::runtime_error, also if the file is something else.
    static void create(std::string const& path);
    /// Appends to a file that was created. Throws std::runtime_error.
    explicit capture(std::string const& path);

    /// @param when  Since the epoch.
    void write(std::vector<std::byte> const& frame, std::chrono::nanoseconds when) const noexcept;

private:
    descriptor file_;
};

}  // namespace rcverbs::fabric::detail
