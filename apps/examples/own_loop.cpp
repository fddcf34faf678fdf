// own_loop: a program drives everything from its own epoll loop on its one thread; the library starts no thread.
#include <sys/epoll.h>

#include <filesystem>
#include <iterator>

#include <rcverbs/experimental/loop_descriptor.hpp>

#include "examples/both_ends.hpp"

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address, bool& is_done) {
    auto const sleeping = rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
    auto [client, server] = co_await connect(sleeping, address);
    rcverbs::registered_buffer mine{client.domain(), 4096, rcverbs::access_flags::local_write};
    rcverbs::registered_buffer theirs{server.domain(), 4096, rcverbs::access_flags::remote_write};
    for (int i = 0; i < 100; ++i) {
        mine.bytes()[0] = static_cast<std::byte>(i);
        co_await client.async_write(mine.slice(), theirs.remote(), use_awaitable);
        expect(theirs.bytes()[0] == mine.bytes()[0], "the write has arrived");
    }
    co_await client.async_disconnect(use_awaitable);
    is_done = true;
}

int main(int argc, char** argv) {
    asio::io_context io;
    rcverbs::loop_descriptor rdma{io};
    int const loop = ::epoll_create1(0);
    epoll_event wanted{EPOLLIN, {}};
    ::epoll_ctl(loop, EPOLL_CTL_ADD, rdma.native_handle(), &wanted);

    bool is_done = false;
    bool has_failed = false;
    asio::co_spawn(io, work(io, device_address(argc, argv), is_done), [&](std::exception_ptr failed) { has_failed = failed != nullptr; });
    int rounds = 0;
    std::size_t threads = 0;
    // The program's own descriptors would be in the epoll set, too. This loop ends when no work is left.
    while (!io.stopped() && !has_failed) {
        epoll_event ready;
        if (::epoll_wait(loop, &ready, 1, 1000) > 0) rdma.dispatch();
        auto const tasks = std::filesystem::directory_iterator{"/proc/self/task"};
        threads = std::max(threads, static_cast<std::size_t>(std::distance(begin(tasks), end(tasks))));
        ++rounds;
    }
    if (has_failed || !is_done || threads != 1) return 1;
    std::cout << "100 writes in " << rounds << " rounds of a loop of my own, on " << threads << " thread\n";
}
