// output.hpp — the doctor's output: text and JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rdma-doctor/findings.hpp"
#include "rdma-doctor/machine.hpp"
#include "rdma-doctor/self_test.hpp"

namespace rdma_doctor {

/// The results of an examination.
struct examination {
    machine seen;
    std::vector<finding> found;
    /// One for each address that was tried; the last one decides works_here().
    std::vector<self_test_result> tests;
    /// The test with another machine, if one was asked for.
    std::optional<peer_result> peer;

    /// True if an RDMA connection of this machine to itself worked.
    bool works_locally() const noexcept { return !tests.empty() && tests.back().works(); }
    /// True if one did, and the firewall does not drop those of other machines.
    bool works_here() const { return works_locally() && !firewall_at(seen, tests.back().address); }
    /// The verdict: about the connection to the peer, if one was asked for.
    bool works() const { return peer ? peer->works() : works_here(); }
};

std::string text(examination const& e);
/// One JSON object; its members are the fields of `e`.
std::string json(examination const& e);

}  // namespace rdma_doctor
