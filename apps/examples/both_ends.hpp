// both_ends.hpp — code that the examples share: both ends of a connection in one program, started by one command.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <rcverbs/rcverbs.hpp>

#include <iostream>
#include <string>

namespace example {

namespace asio = boost::asio;
using asio::use_awaitable;

/// The address of an RDMA device's network interface: the program's only argument.
std::string device_address(int argc, char** argv);

struct both_ends {
    rcverbs::connection client;
    rcverbs::connection server;
};

using place = rcverbs::runs_on<asio::any_io_executor>;

/// Connects a client to a server of the same program.
asio::awaitable<both_ends> connect(place where, std::string address, rcverbs::connection_options options = {});

/// Throws unless the condition holds.
void expect(bool is_so, char const* what);

/// Runs an example's coroutine to its end. Returns 0, or 1 after an exception.
int run(asio::io_context& io, asio::awaitable<void> work);

}  // namespace example
