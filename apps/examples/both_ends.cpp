#include "examples/both_ends.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <utility>

namespace example {

std::string device_address(int argc, char** argv) {
    if (argc == 2) return argv[1];
    std::cerr << "usage: " << argv[0] << " ADDRESS   (of an RDMA network interface of this machine)\n";
    std::exit(2);
}

asio::awaitable<both_ends> connect(place where, std::string address, rcverbs::connection_options options) {
    using namespace asio::experimental::awaitable_operators;
    rcverbs::acceptor_options listening;
    listening.connection = options;
    rcverbs::acceptor acceptor{where, {address, 0}, listening};
    rcverbs::connection client{where, options};
    rcverbs::connection server =
        co_await (acceptor.async_accept(use_awaitable) && client.async_connect(acceptor.local_endpoint(), use_awaitable));
    co_return both_ends{std::move(client), std::move(server)};
}

void expect(bool is_so, char const* what) {
    if (!is_so) throw std::runtime_error{std::string{"not so: "} + what};
}

int run(asio::io_context& io, asio::awaitable<void> work) {
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
