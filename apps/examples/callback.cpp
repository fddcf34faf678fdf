// callback: a chain of writes driven by plain callbacks on the polling thread: from each completion to the next write there is
// no hop to another thread, no allocation and no lock that anybody else holds.
#include "examples/both_ends.hpp"

using namespace example;

struct chain {
    rcverbs::connection& client;
    rcverbs::local_slice source;
    rcverbs::remote_region target;
    asio::io_context& io;
    int left = 1000;
    bool failed = false;
    bool ended = false;

    void next() {
        client.async_write(source, target, [this](rcverbs::error_code ec, std::size_t) {
            if (ec || --left == 0) {
                // Back to the program's own thread.
                asio::post(io, [this, ec] {
                    failed = ec.failed();
                    ended = true;
                });
                return;
            }
            next();
        });
    }
};

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::buffer mine{client.domain(), 64, rcverbs::access_flags::local_read};
    rcverbs::buffer exposed{server.domain(), 64, rcverbs::access_flags::remote_write};
    chain writes{client, mine.slice(), exposed.remote(), io};
    writes.next();
    while (!writes.ended) co_await asio::post(io, use_awaitable);
    expect(!writes.failed, "every write succeeds");
    std::cout << client.statistics().operations_completed << " writes, one after the other\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
