#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <rcverbs/fabric.hpp>
#include <rcverbs/rcverbs.hpp>

using namespace rcverbs;
using namespace boost::asio;
using namespace boost::asio::experimental::awaitable_operators;

awaitable<void> test(io_context& io, fabric::world& world, bool& passed) {
    acceptor a{io, {"10.0.0.1", 0}};
    connection client{io};
    connection server = co_await (a.async_accept(use_awaitable) && client.async_connect(a.local_endpoint(), use_awaitable));
    rcverbs::registered_buffer theirs{server.domain(), 4096, access_flags::remote_write};
    rcverbs::registered_buffer ours{client.domain(), 4096, access_flags::local_write};
    world.power_off("fab0");  // the server's machine no longer answers
    auto [ec, n] = co_await client.async_write(ours.slice(), theirs.remote(), as_tuple(use_awaitable));
    passed = ec == wc_errc::retry_exceeded && client.last_failure().reason == close_reason::transport_error;
    server.close();
}

int main() {
    fabric::world world;
    io_context io;
    bool passed = false;
    co_spawn(io, test(io, world, passed), detached);
    return world.run(io) && passed ? 0 : 1;
}
