// atomic_counter: fetch-and-add and compare-and-swap on a word of the peer's memory, without the peer's CPU.
#include "examples/both_ends.hpp"

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer exposed{server.domain(), 4096, rcverbs::access_flags::remote_atomic};
    rcverbs::remote_atomic const counter = exposed.remote().word(0);  // 8 bytes, aligned to 8

    std::uint64_t before = 0;
    for (int i = 0; i < 10; ++i) before = co_await client.async_fetch_add(counter, 5, use_awaitable);
    expect(before == 45, "nine additions before the last");
    // Takes effect only if the counter has the expected value.
    std::uint64_t const seen = co_await client.async_compare_swap(counter, 50, 1000, use_awaitable);
    std::uint64_t const missed = co_await client.async_compare_swap(counter, 50, 2000, use_awaitable);
    expect(seen == 50 && missed == 1000, "the second swap finds another value and does nothing");
    std::cout << "the counter was " << seen << ", then " << missed << '\n';
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
