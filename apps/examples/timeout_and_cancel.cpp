// timeout_and_cancel: three ways to stop waiting. An operation that waits for its turn is taken back; one that the device has
// cannot be, so giving it up ends the connection; and stall_timeout does that by itself.
#include "examples/both_ends.hpp"

#include <boost/asio/experimental/awaitable_operators.hpp>

#include <optional>

using namespace example;
using namespace asio::experimental::awaitable_operators;
using namespace std::chrono_literals;

constexpr auto as_values = asio::as_tuple(use_awaitable);

asio::awaitable<void> take_back(asio::io_context& io, std::string address) {
    rcverbs::connection_options options;
    options.receive_queue_depth = 1;
    auto [client, server] = co_await connect(io, address, options);
    rcverbs::buffer into{client.domain(), 128, rcverbs::access_flags::local_write};
    client.async_receive(into.slice(0, 64), asio::detached);  // posted; the next one waits for its place
    asio::cancellation_signal signal;
    std::optional<rcverbs::error_code> outcome;
    client.async_receive(
        into.slice(64, 64),
        asio::bind_cancellation_slot(
            signal.slot(),
            asio::bind_executor(io, [&](rcverbs::error_code ec, rcverbs::received) { outcome = ec; })
        )
    );
    signal.emit(asio::cancellation_type::total);
    while (!outcome) co_await asio::post(io, use_awaitable);
    expect(*outcome == asio::error::operation_aborted && client.is_open(), "it is taken back and nothing else happens");
    std::cout << "taken back: " << outcome->message() << '\n';
    client.close();
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> give_up(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::buffer into{client.domain(), 64, rcverbs::access_flags::local_write};
    asio::steady_timer timer{io, 50ms};
    // The timer wins and cancels the receive; that breaks the connection, after which the memory is ours again.
    auto const winner = co_await (client.async_receive(into.slice(), as_values) || timer.async_wait(use_awaitable));
    expect(winner.index() == 1 && !client.is_open(), "the timer was first, and the connection has ended");
    std::cout << "given up after 50 ms\n";
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> stall(asio::io_context& io, std::string address) {
    rcverbs::connection_options options;
    options.stall_timeout = 200ms;
    options.rnr_retry_count = 7;  // tries for ever if the peer posts no receive
    auto [client, server] = co_await connect(io, address, options);
    rcverbs::buffer message{client.domain(), 64, rcverbs::access_flags::local_read};
    auto const [ec, bytes] = co_await client.async_send(message.slice(), as_values);
    expect(ec == rcverbs::errc::stalled && bytes == 0, "nobody receives, so the send stalls");
    std::cout << "stalled: " << ec.message() << '\n';
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    co_await take_back(io, address);
    co_await give_up(io, address);
    co_await stall(io, address);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
