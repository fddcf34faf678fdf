// arguments.hpp — what the programs' command lines share.
#pragma once

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
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

/// The first address that a host's name stands for, with a port; none if it is unknown or empty, which has been said then.
std::optional<rcverbs::endpoint> resolve(std::string const& host, std::uint16_t port);

/// Listens at an address, or, if that is empty, at all of them: `make` is given the endpoint, and called again for IPv4 alone
/// where there is no IPv6. Throws what it throws.
template <class Make>
auto listen_at(std::string const& address, std::uint16_t port, Make make) {
    if (!address.empty()) return make(rcverbs::endpoint{address, port});
    try {
        // The IPv6 wildcard serves IPv4 clients, too, where there is IPv6.
        return make(rcverbs::endpoint{"::", port});
    } catch (boost::system::system_error const&) {
        return make(rcverbs::endpoint{"0.0.0.0", port});
    }
}

/// Parses, and prints help or what was wrong. Returns true to go on, else sets `code` to what to exit with.
bool parse(CLI::App& app, int argc, char** argv, exit_code& code);

}  // namespace demo
