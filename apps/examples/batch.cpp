// batch: several small writes and a message, posted as one list: one doorbell, one completion.
#include "examples/both_ends.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>

using namespace example;
using namespace asio::experimental::awaitable_operators;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer mine{client.domain(), 4096, rcverbs::access_flags::local_read};
    rcverbs::registered_buffer exposed{server.domain(), 4096, rcverbs::access_flags::remote_write};
    rcverbs::mutable_slice const nowhere;  // immediate data alone needs no memory
    rcverbs::batch b{client};
    for (std::size_t i = 0; i < 20; ++i) b.add(rcverbs::op::write(mine.slice(i * 10, 10), exposed.remote().slice(i * 200, 10)));
    b.add(rcverbs::op::send_with_immediate({}, 20));  // arrives after all preceding writes
    auto const before = client.statistics();
    auto const [told, bytes] = co_await (server.async_receive(nowhere, use_awaitable) && b.async_submit(use_awaitable));
    auto const after = client.statistics();
    expect(bytes == 200 && told.immediate == 20U, "all pieces arrive, and the peer is told");
    expect(after.doorbells - before.doorbells == 1, "one doorbell was rung");
    std::cout << after.sends_posted - before.sends_posted << " work requests, " << after.doorbells - before.doorbells
              << " doorbell, " << after.sends_signalled - before.sends_signalled << " completion\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
