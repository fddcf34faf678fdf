// self_test.hpp — tests RDMA by connecting this program to itself and running each kind of
// operation once.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <rcverbs/options.hpp>

namespace rdma_doctor {

struct self_test_result {
    std::string address;
    /// The steps that succeeded, in order: "connect", "write", "read", "fetch-and-add",
    /// "disconnect".
    std::vector<std::string> done;
    /// The steps skipped because the device does not support them.
    std::vector<std::string> left_out;
    /// The failure; empty if all steps succeeded.
    std::string failure;

    bool works() const noexcept { return failure.empty(); }
};

/// Options of a connection each of whose steps has this deadline.
rcverbs::connection_options options_with(std::chrono::milliseconds deadline);

/// Connects to and from `address`, an IP address of this machine. `deadline` applies to each step.
/// Failures are returned, never thrown.
self_test_result test_address(std::string const& address, std::chrono::milliseconds deadline);

}  // namespace rdma_doctor
