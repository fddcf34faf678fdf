// arguments.hpp — what the programs' command lines share.
#pragma once

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <string>

#include <rcverbs/session.hpp>

#include "common/counter.hpp"
#include "common/exchange.hpp"

namespace demo {

/// What the shared options came to.
struct arguments {
    exchange_options exchange;
    counter_options counter;
    std::chrono::milliseconds timeout{10000};
    rcverbs::connection_options connection;

    /// The session's options; the mode is its number on the wire.
    rcverbs::session_options session() const;
    /// Spreads --timeout over the deadlines. To be called after parsing.
    void apply_timeout();
};

/// Adds an option that takes a duration with its unit; `usual` is shown as the default.
CLI::Option* add_duration(
    CLI::App& app, std::string const& name, std::chrono::milliseconds& out, std::string const& what, std::string const& usual
);
/// Adds --poll.
CLI::Option* add_poll(CLI::App& app, rcverbs::poll_mode& out);
/// Adds the options that rdma-server and rdma-client share.
void add_shared(CLI::App& app, arguments& out);

/// Parses, and prints help or what was wrong. Returns true to go on, else sets `code` to what to exit with.
bool parse(CLI::App& app, int argc, char** argv, exit_code& code);

}  // namespace demo
