// coroutine: write into the peer's memory and read it back, as a coroutine. Errors are exceptions.
#include "examples/both_ends.hpp"

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer mine{client.domain(), 4096, rcverbs::access_flags::local_write};
    rcverbs::registered_buffer exposed{server.domain(), 4096, rcverbs::access_flags::remote_read | rcverbs::access_flags::remote_write};
    rcverbs::remote_region const theirs = exposed.remote();  // a real server would send it to the client in a message

    mine.bytes()[0] = std::byte{42};
    co_await client.async_write(mine.slice(0, 1), theirs.slice(100, 1), use_awaitable);
    std::size_t const read = co_await client.async_read(theirs.slice(96, 8), mine.slice(8, 8), use_awaitable);
    expect(read == 8 && mine.bytes()[12] == std::byte{42}, "what was written is read back");
    std::cout << "read " << read << " bytes back\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
