// self_test.hpp — does RDMA work here? A connection of this program to itself, and one operation of each kind over it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace rdma_doctor {

struct self_test_result {
    std::string address;
    /// What succeeded, in order: "connect", "write", "read", "fetch-and-add", "disconnect".
    std::vector<std::string> done;
    /// What the device cannot do, and was not asked for.
    std::vector<std::string> left_out;
    /// Empty if all of it succeeded.
    std::string failure;

    bool works() const noexcept { return failure.empty(); }
};

/// Connects to `address`, an IP address of this machine, and from it. Each step has `deadline`. Never throws for what fails.
self_test_result test_address(std::string const& address, std::chrono::milliseconds deadline);

}  // namespace rdma_doctor
