// shared_poller: many connections, one polling thread. Without it each connection has a thread of its own.
#include "examples/both_ends.hpp"

#include <vector>

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    rcverbs::connection_options options;
    options.shared_poller = rcverbs::poller{io};
    std::vector<both_ends> pairs;
    for (int i = 0; i < 8; ++i) pairs.push_back(co_await connect(io, address, options));
    // Connections over one device share a protection domain: one region serves all of them.
    rcverbs::buffer mine{pairs[0].client.domain(), 8 * 64, rcverbs::access_flags::local_read};
    rcverbs::buffer exposed{pairs[0].server.domain(), 8 * 64, rcverbs::access_flags::remote_write};
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        co_await pairs[i].client.async_write(mine.slice(i * 64, 64), exposed.remote().slice(i * 64, 64), use_awaitable);
        expect(pairs[i].client.get_executor() == pairs[0].client.get_executor(), "all run on one executor");
    }
    std::cout << pairs.size() << " connections on one polling thread\n";
    for (both_ends& p : pairs) co_await p.client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
