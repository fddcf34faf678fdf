// output.hpp — what the doctor says, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "rdma-doctor/findings.hpp"
#include "rdma-doctor/machine.hpp"
#include "rdma-doctor/self_test.hpp"

namespace rdma_doctor {

/// All that was found out.
struct examination {
    machine seen;
    std::vector<finding> found;
    /// One for each address that was tried; the last one is the verdict.
    std::vector<self_test_result> tests;

    /// True if an RDMA connection worked.
    bool works() const noexcept { return !tests.empty() && tests.back().works(); }
};

std::string text(examination const& e);
/// One object; its members are the fields of what it shows.
std::string json(examination const& e);

}  // namespace rdma_doctor
