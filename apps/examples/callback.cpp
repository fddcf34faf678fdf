// callback: a chain of writes with plain callbacks. Between a completion and the next write there is no thread switch, no
// allocation and no contended lock.
#include "examples/both_ends.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>

using namespace example;

struct chain {
    rcverbs::connection& client;
    rcverbs::mutable_slice source;
    rcverbs::remote_region target;
    std::function<void(rcverbs::error_code)> then;
    int left = 1000;

    void next() {
        client.async_write(source, target, [this](rcverbs::error_code ec, std::size_t) {
            if (ec || --left == 0) return then(ec);
            next();
        });
    }
};

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer mine{client.domain(), 64, rcverbs::access_flags::local_read};
    rcverbs::registered_buffer exposed{server.domain(), 64, rcverbs::access_flags::remote_write};
    asio::steady_timer ended{io, asio::steady_timer::time_point::max()};
    rcverbs::error_code result;
    chain writes{client, mine.slice(), exposed.remote(), [&](rcverbs::error_code ec) {
                     result = ec;
                     ended.cancel();
                 }};
    writes.next();
    co_await ended.async_wait(asio::as_tuple(use_awaitable));
    expect(!result, "every write succeeds");
    std::cout << client.statistics().operations_completed << " writes, one after the other\n";
    co_await client.async_disconnect(use_awaitable);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
