// two_threads: two threads start operations on one connection at the same time. The program needs no lock; the operations of each
// thread keep their order.
#include "examples/both_ends.hpp"

#include <atomic>
#include <semaphore>
#include <thread>

using namespace example;

asio::awaitable<void> work(std::string address) {
    // Both ends poll on a thread of the library, so this thread may block.
    rcverbs::poller const polling = rcverbs::poller::start();
    auto [client, server] = co_await connect(polling, address);
    rcverbs::registered_buffer mine{client.domain(), 2 * 64, rcverbs::access_flags::local_read};
    rcverbs::registered_buffer exposed{server.domain(), 2 * 64, rcverbs::access_flags::remote_write};
    constexpr int each = 500;
    // Limits the operations in flight to the connection's capacity: 64 posted and 192 waiting by default.
    constexpr int in_flight = 128;
    std::counting_semaphore<> room{in_flight};
    std::atomic<int> written{0};
    auto const write_many = [&, &to = client](std::size_t half) {
        for (int i = 0; i < each; ++i) {
            room.acquire();
            to.async_write(mine.slice(half * 64, 64), exposed.remote().slice(half * 64, 64), [&](rcverbs::error_code ec, std::size_t) {
                if (!ec) ++written;
                room.release();
            });
        }
    };
    std::thread one{write_many, 0};
    std::thread two{write_many, 1};
    one.join();
    two.join();
    for (int i = 0; i < in_flight; ++i) room.acquire();
    expect(written == 2 * each, "no write fails");
    std::cout << written << " writes from two threads\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(device_address(argc, argv)));
}
