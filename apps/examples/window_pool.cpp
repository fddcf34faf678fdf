// window_pool: each request gets a key of its own for the memory that it may write, which is invalid as soon as the request is over.
#include "examples/window_pool.hpp"

#include <boost/asio/redirect_error.hpp>

#include "examples/both_ends.hpp"

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    if (!server.domain().limits().has_memory_windows) {
        std::cout << "this device has no memory windows\n";
        co_return;
    }
    using rcverbs::access_flags;
    rcverbs::registered_buffer mine{client.domain(), 64, access_flags::local_read};
    rcverbs::registered_buffer pages{server.domain(), 4096, access_flags::local_write | access_flags::bind_windows};
    auto const windows = window_pool::make(server, 2);
    rcverbs::remote_region last;
    for (std::size_t i = 0; i < 10; ++i) {
        auto const lent = co_await windows->borrow();
        last = co_await lent->async_bind(pages.slice(i * 64, 64), access_flags::remote_write, use_awaitable);
        co_await client.async_write(mine.slice(), last, use_awaitable);  // the peer's request
        co_await lent->async_invalidate(use_awaitable);                  // now the page may change
    }
    rcverbs::error_code late;
    co_await client.async_write(mine.slice(), last, asio::redirect_error(use_awaitable, late));
    expect(late == rcverbs::wc_errc::remote_access, "a key is invalid when its request is over");
    std::cout << "10 requests, each with a key of its own: " << late.message() << " afterwards\n";
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
