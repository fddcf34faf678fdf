// own_context: no thread of the library. Completions are polled and handlers run where the program runs its io_context, here in
// main.
#include "examples/both_ends.hpp"

#include <thread>

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    // Sleeps at once when there is nothing to poll.
    auto const sleeping = rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
    auto [client, server] = co_await connect(sleeping, address);
    rcverbs::registered_buffer mine{client.domain(), 64, rcverbs::access_flags::local_read};
    rcverbs::registered_buffer exposed{server.domain(), 64, rcverbs::access_flags::remote_write};
    auto const here = std::this_thread::get_id();
    co_await client.async_write(mine.slice(), exposed.remote(), use_awaitable);
    expect(std::this_thread::get_id() == here, "everything runs on the program's only thread");
    std::cout << "one thread, " << client.statistics().sleeps << " sleeps\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
