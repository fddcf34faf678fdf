// echo_options.hpp — the command line and the output of the programs that test/bench/others compares.
#pragma once

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "bench/optimised.hpp"

namespace bench {

struct echo_options {
    std::string address;
    std::uint16_t port = 0;
    std::uint32_t size = 64;
    std::uint64_t count = 10000;
    std::uint32_t depth = 16;
};

inline void print_rate(echo_options const& o, std::chrono::steady_clock::time_point began) {
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - began;
    std::printf("{\"rate\": %.3f}\n", static_cast<double>(o.count) / took.count());
}

/// Parses the command line and calls `serve` or `ask`; returns the exit status.
template <class Serve, class Ask>
int run_echo(int argc, char** argv, char const* what, Serve serve, Ask ask) {
    if (!may_run(argc, argv)) return 2;
    echo_options o;
    std::string role;
    CLI::App app{what};
    app.add_option("role", role)->required()->check(CLI::IsMember({"server", "client"}));
    app.add_option("address", o.address, "of the server")->required();
    app.add_option("port", o.port, "of the server");
    app.add_option("--size", o.size, "bytes of a message")->check(CLI::Range(1, 1 << 20));
    app.add_option("--count", o.count, "messages")->check(CLI::PositiveNumber);
    app.add_option("--depth", o.depth, "messages in flight")->check(CLI::Range(1, 4096));
    CLI11_PARSE(app, argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        if (role == "server") serve(o);
        else ask(o);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return 0;
}

}  // namespace bench
