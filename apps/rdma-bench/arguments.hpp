// arguments.hpp — rdma-bench's command line.
#pragma once

#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "rdma-bench/plan.hpp"
#include "rdma-bench/connection_group.hpp"

namespace rdma_bench {

enum class command { server, client, loopback, compare };

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
    /// How often each size is measured.
    std::uint32_t repeats = 1;
    /// Of compare.
    std::string before_file;
    std::string after_file;
    std::vector<std::string> conditions;
};

/// Reads the command line, and prints help or the error. Returns true to go on, else sets `code` to
/// the exit code.
bool parse(int argc, char** argv, arguments& out, demo::exit_code& code);

/// "8", "4K,1M" or "2..8M" (powers of two). Throws CLI::ValidationError, a std::runtime_error.
std::vector<std::uint64_t> parse_sizes(std::string const& text);

}  // namespace rdma_bench
