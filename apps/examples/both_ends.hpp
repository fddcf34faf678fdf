// both_ends.hpp — what the examples leave out of their way: both ends of a connection in one program, so that one command
// shows them, and a memory that the other end exposes.
#pragma once

#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>

#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

namespace example {

namespace asio = boost::asio;
using asio::use_awaitable;

/// The address of an RDMA device's network interface: the program's only argument.
inline std::string device_address(int argc, char** argv) {
    if (argc == 2) return argv[1];
    std::cerr << "usage: " << argv[0] << " ADDRESS   (of an RDMA network interface of this machine)\n";
    std::exit(2);
}

struct both_ends {
    rcverbs::connection client;
    rcverbs::connection server;
};

/// Connects a client to a server of the same program.
inline asio::awaitable<both_ends> connect(
    asio::io_context& io, std::string address, rcverbs::connection_options options = {}
) {
    rcverbs::acceptor_options listening;
    listening.connection = options;
    rcverbs::acceptor acceptor{io, {address, 0}, listening};
    rcverbs::connection client{io, options};
    rcverbs::connection server;
    acceptor.async_accept([&](rcverbs::error_code ec, rcverbs::connection made) {
        if (!ec) server = std::move(made);
    });
    co_await client.async_connect(acceptor.local(), use_awaitable);
    while (!server.is_valid()) co_await asio::post(io, use_awaitable);
    co_return both_ends{std::move(client), std::move(server)};
}

/// What an example expects to be so.
inline void expect(bool is_so, char const* what) {
    if (!is_so) throw std::runtime_error{std::string{"not so: "} + what};
}

/// Runs an example's coroutine to its end; 0, or 1 after an exception.
inline int run(asio::io_context& io, asio::awaitable<void> work) {
    int result = 0;
    asio::co_spawn(io, std::move(work), [&](std::exception_ptr failed) {
        try {
            if (failed) std::rethrow_exception(failed);
        } catch (std::exception const& e) {
            std::cerr << e.what() << '\n';
            result = 1;
            io.stop();
        }
    });
    io.run();
    return result;
}

}  // namespace example
