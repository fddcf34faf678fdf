// arguments.hpp — command-line options that rdma-server, rdma-client and rdma-bench share.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/authentication.hpp>
#include <rcverbs/session.hpp>

#include "common/counter.hpp"
#include "common/exchange.hpp"
#include "common/exit_code.hpp"

// CLI11 takes seconds to compile: only files that define options include it.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace demo {

/// The values of the shared options.
struct arguments {
    exchange_options exchange;
    counter_options counter;
    std::chrono::milliseconds timeout{10000};
    rcverbs::connection_options connection;
    rcverbs::polling_options polling;
    rcverbs::authentication_options authentication;

    /// The session's options; the mode is the number sent on the wire.
    rcverbs::session_options session() const;
    /// Derives the deadlines from --timeout. To be called after parsing.
    void apply_timeout();
};

/// Adds an option that takes a duration with a unit; `usual` is shown as the default.
CLI::Option* add_duration(
    CLI::App& app,
    std::string const& name,
    std::chrono::milliseconds& out,
    std::string const& what,
    std::string const& usual
);
/// Adds an option that takes an IP address; empty for none. `usual`, if not empty, is shown as the
/// default.
CLI::Option* add_address(
    CLI::App& app,
    std::string const& name,
    std::string& out,
    std::string const& what,
    std::string const& usual = ""
);
/// Adds --poll.
CLI::Option* add_poll(CLI::App& app, rcverbs::poll_mode& out);
/// Adds --key-file and, for a client, --identity.
void add_keys(CLI::App& app, rcverbs::authentication_options& out, bool is_client);
/// Reads the key file again, if there is one: a key may have been replaced. Prints what is wrong with it, once.
void reload(rcverbs::authentication_options const& what);
/// Adds the options that rdma-server and rdma-client share.
void add_shared(CLI::App& app, arguments& out);

/// The addresses that a host name resolves to, with the port; none, after printing an error, if it is
/// unknown or empty.
std::vector<rcverbs::endpoint> resolve(std::string const& host, std::uint16_t port);
/// The first of them to which a route over RDMA leads; if there is only one, or none has a route, the
/// first. Nothing as above.
///
/// @param from  The local address to connect from; empty for any.
std::optional<rcverbs::endpoint> resolve_with_route(
    std::string const& host, std::uint16_t port, std::string const& from = {}
);

/// Listens at an address or, if that is empty, at the wildcard address. `make` receives the
/// endpoint; it is called again with the IPv4 wildcard where there is no IPv6. Throws what `make`
/// throws.
template <class Make>
auto listen_at(std::string const& address, std::uint16_t port, Make make) {
    if (!address.empty()) return make(rcverbs::endpoint{address, port});
    try {
        // Where IPv6 is available, the IPv6 wildcard accepts IPv4 clients, too.
        return make(rcverbs::endpoint{"::", port});
    } catch (boost::system::system_error const&) {
        return make(rcverbs::endpoint{"0.0.0.0", port});
    }
}

/// Adds --version. `program` is the path that the program was started by.
void add_version(CLI::App& app, char const* program);
/// Adds --version, parses, and prints help, the version or the error. Returns true to go on, else sets `code` to the exit code.
bool parse(CLI::App& app, int argc, char** argv, exit_code& code);

}  // namespace demo
