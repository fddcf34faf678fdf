// rdma-server — waits for rdma-client, exchanges a message with each or lets it count, and goes on.
#include <cstdio>
#include <exception>

#include "rdma-server/server.hpp"

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a script reads the port from it
    demo::server_arguments a;
    a.exchange.side = "passive/server";
    a.exchange.farewell = "peer disconnected.";
    CLI::App app{"Exchanges messages with any number of rdma-clients by RDMA write or read, or lets them count by RDMA atomics."};
    demo::add_shared(app, a);
    app.add_option("--bind", a.bind, "the local address to listen on; all of them without")->option_text("ADDR");
    app.add_option("--port", a.port, "the port to listen on; 0 picks a free one")
        ->check(CLI::Range(0, 65535))
        ->option_text("N [0]");
    app.add_option("--count", a.count, "end after so many clients; 0 for never")
        ->check(CLI::Range(0, 1000000))
        ->option_text("N [0]");
    app.add_option("--max-clients", a.clients_max, "how many clients to serve at a time; one more is refused. 0 for no limit")
        ->check(CLI::Range(0, 1000000))
        ->option_text("N [1024]");
    app.add_option("--max-per-address", a.clients_per_address_max, "the same for clients of one address")
        ->check(CLI::Range(0, 1000000))
        ->option_text("N [0]");
    demo::exit_code code = demo::exit_code::other;
    if (!demo::parse(app, argc, argv, code)) return static_cast<int>(code);
    boost::system::error_code bad;
    if (!a.bind.empty()) boost::asio::ip::make_address(a.bind, bad);
    if (bad) {
        demo::complain("--bind takes an IP address, not " + a.bind);
        return static_cast<int>(demo::exit_code::usage);
    }
    a.apply_timeout();
    try {
        boost::asio::io_context io;
        demo::server server{io, a};
        try {
            server.start();
        } catch (boost::system::system_error const& e) {
            demo::complain(e.what());
            return static_cast<int>(demo::exit_code::could_not_connect);
        }
        io.run();
        code = server.result();
    } catch (std::exception const& e) {
        demo::complain(e.what());
    }
    return static_cast<int>(code);
}
