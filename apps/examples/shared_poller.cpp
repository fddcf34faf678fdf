// shared_poller: many connections on one polling thread of the library.
#include "examples/both_ends.hpp"

#include <vector>

using namespace example;

asio::awaitable<void> work(std::string address) {
    rcverbs::connection_options options;
    rcverbs::poller const thread = rcverbs::poller::start();
    std::vector<both_ends> pairs;
    // One protection domain for all connections: memory registered once is valid on all connections of the device.
    options.placement.domain = rcverbs::domain_sharing::shared;
    for (int i = 0; i < 8; ++i) pairs.push_back(co_await connect(thread, address, options));
    rcverbs::registered_buffer mine{pairs[0].client.domain(), 8 * 64, rcverbs::access_flags::local_read};
    rcverbs::registered_buffer exposed{pairs[0].server.domain(), 8 * 64, rcverbs::access_flags::remote_write};
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        co_await pairs[i].client.async_write(mine.slice(i * 64, 64), exposed.remote().slice(i * 64, 64), use_awaitable);
        expect(pairs[i].client.get_executor() == pairs[0].client.get_executor(), "all run on one executor");
    }
    std::cout << pairs.size() << " connections on one polling thread\n";
    for (both_ends& p : pairs) co_await p.client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(device_address(argc, argv)));
}
