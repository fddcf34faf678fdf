// rdma-server — listens for rdma-client, and exchanges a message with each client or serves its
// counter.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "rdma-server/server.hpp"

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered: a script reads the port from it
    demo::server_arguments a;
    a.exchange.side = "passive/server";
    a.exchange.farewell = "peer disconnected.";
    CLI::App app{
        "Exchanges messages with any number of rdma-clients by RDMA write or read, or lets them "
        "add to a counter by RDMA atomics."};
    demo::add_shared(app, a);
    demo::add_keys(app, a.authentication, false);
    demo::add_address(
        app, "--bind", a.bind, "the local address to listen on; without it, all addresses"
    );
    app.add_option("--port", a.port, "the port to listen on; 0 picks a free one")
        ->check(CLI::Range(0, 65535))
        ->option_text("N [0]");
    app.add_option(
           "--count", a.count, "serve this many clients, refuse all others, and end; 0 for no limit"
    )
        ->check(CLI::Range(0, 1000000))
        ->option_text("N [0]");
    app.add_option(
           "--max-clients",
           a.clients_max,
           "the number of clients to serve at a time; one more is rejected. 0 for no limit. "
           "Without "
           "it: as many as the limits of open files and locked memory allow (ulimit -n, ulimit "
           "-l), "
           "at most 4096"
    )
        ->check(CLI::Range(0, 1000000))
        ->option_text("N");
    app.add_option(
           "--max-per-address", a.clients_per_address_max, "the same for the clients of one address"
    )
        ->check(CLI::Range(0, 1000000))
        ->option_text("N [0]");
    bool shares_domain = false;
    app.add_flag(
        "--shared-domain",
        shares_domain,
        "let all clients share a protection domain: every client can then use a memory key that "
        "one "
        "client learns"
    );
    demo::exit_code code = demo::exit_code::other;
    if (!demo::parse(app, argc, argv, code)) return static_cast<int>(code);
    a.apply_timeout();
    if (shares_domain) a.connection.placement.domain = rcverbs::domain_sharing::shared;
    demo::background_printing const printing;
    try {
        boost::asio::io_context io;
        demo::server server{io, a};
        try {
            server.start();
        } catch (boost::system::system_error const& e) {
            demo::print_error(e.what());
            return static_cast<int>(demo::exit_code::could_not_connect);
        }
        io.run();
        code = server.result();
    } catch (std::exception const& e) {
        code = demo::report_start_failure(e);
    }
    return static_cast<int>(code);
}
