// findings.hpp — ranks a machine's RDMA addresses and finds what is missing. Has no side effects.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rdma-doctor/firewall.hpp"
#include "rdma-doctor/machine.hpp"
#include "rdma-doctor/peer.hpp"

namespace rdma_doctor {

/// An address of a port, and the reason for its rank.
struct ranked_gid {
    gid address;
    std::string_view reason;
};

/// A port's addresses, best first.
std::vector<ranked_gid> ranked(port const& p);

/// The IP addresses by which the devices can be reached, best first: those of their active ports'
/// network interfaces; on InfiniBand, of the adapter's interfaces.
std::vector<std::string> addresses_to_try(machine const& m);

/// The chain of this machine's packet filter that drops the packets of other machines to or from
/// `address`, one of addresses_to_try(). Connections to itself are not affected: SoftRoCE does not
/// send their packets.
std::optional<dropped> firewall_at(machine const& m, std::string const& address);

/// A defect, and the shell command that fixes it, if there is one.
struct finding {
    /// True if no connection is possible until it is fixed.
    bool prevents = true;
    std::string what;
    std::string command;
};

std::vector<finding> findings(machine const& m);

/// Why a test with a peer failed; none if it succeeded.
std::optional<finding> finding_of(machine const& m, peer_result const& peer);

}  // namespace rdma_doctor
