// arguments.hpp — rdma-bench's command line.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "rdma-bench/plan.hpp"
#include "rdma-bench/team.hpp"

namespace rdma_bench {

enum class command { server, client, loopback };

struct arguments {
    command what = command::server;
    plan wanted;
    limits bounds;
    std::string host;
    std::uint16_t port = 0;
    std::string bind;
    std::string from;
    std::string address;
    std::uint32_t count = 0;
    std::string json_file;
    std::string histogram_file;
    std::string report_file;
};

/// Describes the command line; parsing it fills `out`.
void describe(CLI::App& app, arguments& out);
/// What follows from what was given: defaults that depend on the test. Throws CLI::ValidationError on what does not go together.
void complete(CLI::App& app, arguments& out);

/// "8", "4K,1M" or "2..8M" (powers of two). Throws CLI::ValidationError.
std::vector<std::uint64_t> parse_sizes(std::string const& text);

}  // namespace rdma_bench
