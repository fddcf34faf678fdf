// bridge.hpp — joins the networks of two machines over TCP: a process that stands for the nodes of the other machine.
//
//     machine A: a directory          TCP           machine B: a directory
//     node 1 ──▶ 2.1 (bridge) ─────────────────── bridge ──▶ 2.1, the process
//
// A bridge has the sockets, locks and ports of the other side's nodes in its own directory, so that programs find
// them as they find those of this machine. What arrives at such a socket goes through one TCP connection, on a channel
// for each pair of processes, unchanged. A channel has at most window_bytes under way, so that a process that
// does not read holds up those only that send to it. The bridge that listens gives out the numbers of nodes.
//
// TCP carries messages: length (4 bytes, little-endian, without itself), type (1 byte), content.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "directory.hpp"

namespace rcverbs::fabric {

/// tcp:HOST:PORT; an IPv6 address in brackets.
struct tcp_address {
    std::string host;
    std::string port;

    /// Throws std::runtime_error if it is none.
    static tcp_address parse(std::string const& text);
};

/// Starts a bridge as a process of its own, which ends when no node of this machine is left and the descriptor
/// that is returned, which child processes inherit, is closed everywhere.
struct bridge {
    /// Listens for bridges of other machines. Throws std::runtime_error if it cannot.
    static detail::descriptor listen(detail::directory const& where, tcp_address const& at);

    /// Joins the network of a bridge that listens, which gives the numbers of nodes from then on. Throws
    /// std::runtime_error if it cannot.
    static detail::descriptor join(detail::directory const& where, tcp_address const& to);
};

}  // namespace rcverbs::fabric
