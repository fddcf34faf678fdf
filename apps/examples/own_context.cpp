// own_context: no thread of the library's at all. Completions are taken in and handlers run where the program runs its
// io_context, here: in main.
#include "examples/both_ends.hpp"

#include <thread>

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    rcverbs::connection_options options;
    options.progress = rcverbs::progress_on::context;
    options.polling.mode = rcverbs::poll_mode::event;  // sleep at once when there is nothing to do
    auto [client, server] = co_await connect(io, address, options);
    rcverbs::buffer mine{client.domain(), 64, rcverbs::access_flags::local_read};
    rcverbs::buffer exposed{server.domain(), 64, rcverbs::access_flags::remote_write};
    auto const here = std::this_thread::get_id();
    bool is_here = false;
    bool ended = false;
    client.async_write(mine.slice(), exposed.remote(), [&](rcverbs::error_code ec, std::size_t) {
        is_here = !ec && std::this_thread::get_id() == here;
        ended = true;
    });
    while (!ended) co_await asio::post(io, use_awaitable);
    expect(is_here, "the handler runs on the program's only thread");
    std::cout << "one thread, " << client.statistics().sleeps << " sleeps\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
