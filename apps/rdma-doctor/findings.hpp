// findings.hpp — what follows from what a machine has: which addresses serve best, and what is missing. Decides only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rdma-doctor/machine.hpp"

namespace rdma_doctor {

/// An address of a port, and why it has its place.
struct ranked_gid {
    gid address;
    std::string_view reason;
};

/// A port's addresses, the best first.
std::vector<ranked_gid> ranked(port const& p);

/// The IP addresses by which the devices can be reached, the best first: those of their active ports' network interfaces, on
/// InfiniBand of the adapter's.
std::vector<std::string> addresses_to_try(machine const& m);

/// Something that is missing or not good, and the command that mends it, if one does, as a shell takes it.
struct finding {
    /// True if there can be no connection as long as it is so.
    bool prevents = true;
    std::string what;
    std::string command;
};

std::vector<finding> findings(machine const& m);

}  // namespace rdma_doctor
