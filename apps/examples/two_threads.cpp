// two_threads: operations of one connection started from two threads at a time. No lock of the program's is needed; what each
// thread starts stays in its order.
#include "examples/both_ends.hpp"

#include <atomic>
#include <thread>

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::buffer mine{client.domain(), 2 * 64, rcverbs::access_flags::local_read};
    rcverbs::buffer exposed{server.domain(), 2 * 64, rcverbs::access_flags::remote_write};
    constexpr int each = 500;
    std::atomic<int> written{0};
    std::atomic<int> failed{0};
    auto const write_many = [&, &to = client](std::size_t half) {
        for (int i = 0; i < each; ++i) {
            to.async_write(mine.slice(half * 64, 64), exposed.remote().slice(half * 64, 64), [&](rcverbs::error_code ec, std::size_t) {
                // One that finds no room to wait has to be started again by who wants it: here, none does.
                ++(ec ? failed : written);
            });
            // No more in flight than the connection holds: 64 posted and 192 waiting by default.
            while (i - written.load() / 2 > 60 && failed == 0) std::this_thread::yield();
        }
    };
    std::thread one{write_many, 0};
    std::thread two{write_many, 1};
    one.join();
    two.join();
    while (written + failed < 2 * each) co_await asio::post(io, use_awaitable);
    expect(failed == 0, "no write fails");
    std::cout << written << " writes from two threads\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
