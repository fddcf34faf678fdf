// firewall.hpp — whether the packet filter of this machine drops RDMA packets: decided on the rules
// as nft prints them. Has no side effects.
#pragma once

#include <optional>
#include <string>

namespace rdma_doctor {

/// RoCE v2 packets between another machine and this one: UDP with destination port 4791 in both
/// directions, from source ports that differ, so that none belongs to a connection that the packet
/// filter tracks.
struct roce_packets {
    bool is_ipv6 = false;
    /// The interface by which they come and go.
    std::string netdev;
};

struct dropped {
    /// The base chain that drops them: family, table and chain, "inet filter input".
    std::string chain;
    /// The command that lets them pass.
    std::string command;
};

/// The chain that certainly drops the packets; none if they pass, or if a condition that is not
/// known here (an address, a rate) decides.
///
/// @param rules  What `nft --json list ruleset` prints. Text that is no JSON has no rules.
std::optional<dropped> dropping_chain(std::string const& rules, roce_packets const& packets);

}  // namespace rdma_doctor
