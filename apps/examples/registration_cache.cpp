// registration_cache: memory that comes from elsewhere is registered at its first use, and stays so until it is forgotten.
#include "examples/registration_cache.hpp"

#include <vector>

#include "examples/both_ends.hpp"

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer exposed{server.domain(), 1 << 20, rcverbs::access_flags::remote_write};
    registration_cache cache{client.domain(), {.rights = rcverbs::access_flags::local_read}};
    std::vector<std::byte> message(1 << 20);  // as a plugin might give it
    for (int i = 0; i < 100; ++i) {
        message[0] = static_cast<std::byte>(i);
        region_lease const lease = cache.get(message);
        co_await client.async_write(lease.slice(), exposed.remote(), use_awaitable);
        expect(exposed.bytes()[0] == message[0], "the write has arrived");
    }
    auto const counts = cache.statistics();
    expect(counts.misses == 1 && counts.hits == 99, "it was registered once");
    cache.forget(message);  // before the memory is freed
    std::cout << counts.hits + counts.misses << " uses, " << counts.misses << " registration\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
