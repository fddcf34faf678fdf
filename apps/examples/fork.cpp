// fork: a program whose process forks while memory is registered. The child has its own copy of the memory and may use it, but must
// not use any object of the library; the device accesses the parent's memory only.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "examples/both_ends.hpp"

using namespace example;

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer mine{client.domain(), 1 << 20, rcverbs::access_flags::local_write};
    rcverbs::registered_buffer theirs{server.domain(), 1 << 20, rcverbs::access_flags::remote_write | rcverbs::access_flags::remote_read};
    std::ranges::fill(theirs.bytes(), std::byte{1});

    pid_t const child = ::fork();
    if (child == 0) {
        // The write triggers copy-on-write: parent and child must end up with separate pages.
        std::ranges::fill(theirs.bytes(), std::byte{2});
        std::ranges::fill(mine.bytes(), std::byte{2});
        ::_exit(theirs.bytes()[0] == std::byte{2} ? 0 : 1);
    }
    expect(child > 0, "the process forks");
    std::ranges::fill(mine.bytes(), std::byte{3});
    co_await client.async_write(mine.slice(), theirs.remote(), use_awaitable);
    auto const is = [&](std::byte b) { return std::ranges::all_of(theirs.bytes(), [b](std::byte x) { return x == b; }); };
    expect(is(std::byte{3}), "the parent's memory has what was written to it");
    int status = 0;
    ::waitpid(child, &status, 0);
    expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child has its own copy");
    std::ranges::fill(mine.bytes(), std::byte{0});
    co_await client.async_read(theirs.remote(), mine.slice(), use_awaitable);
    expect(mine.bytes()[12345] == std::byte{3}, "and goes on after the child has ended");
    std::cout << "parent and child: 1 MiB each, neither saw the other's\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    // Must precede every other call of the library.
    rcverbs::error_code ec;
    rcverbs::prepare_for_fork(ec);
    if (ec) {
        std::cerr << "prepare_for_fork: " << ec.message() << '\n';
        return 1;
    }
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
