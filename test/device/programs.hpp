// programs.hpp — rdma-server and rdma-client as processes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

namespace test {

// Exit codes.
inline constexpr int exit_done = 0;
inline constexpr int exit_could_not_connect = 3;
inline constexpr int exit_deadline_passed = 4;
inline constexpr int exit_peer_gone = 5;
inline constexpr int exit_refused = 6;
inline constexpr int exit_not_verified = 7;

inline std::string program(std::string const& name) {
    return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

inline std::vector<std::string> command(
    std::string const& name, std::vector<std::string> arguments
) {
    arguments.insert(arguments.begin(), program(name));
    return arguments;
}

struct server {
    explicit server(std::vector<std::string> arguments)
        : process{command("rdma-server", std::move(arguments))} {
        std::string const before = "listening on port ";
        REQUIRE(process.wait_for_output(".\n"));
        std::string const& out = process.output();
        port = out.substr(before.size(), out.find('.') - before.size());
    }

    child_process client(
        std::string const& mode,
        std::vector<std::string> more = {},
        std::string host = device_address()
    ) const {
        std::vector<std::string> arguments{mode, std::move(host), port};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return child_process{command("rdma-client", std::move(arguments))};
    }

    /// A complete exchange with a well-behaved client must succeed.
    void must_serve(std::string const& mode, std::vector<std::string> more = {}) const {
        child_process c = client(mode, std::move(more));
        auto const status = c.wait();
        INFO(c.error());
        CHECK(status == exit_done);
    }

    child_process process;
    std::string port;
};

}  // namespace test
