// timeout_and_cancel: four ways to stop waiting. A receive that owns its memory can be cancelled at any time. Cancelling an operation
// that waits for a queue slot withdraws it. A posted operation on borrowed memory cannot be withdrawn, so cancelling it ends the
// connection. stall_timeout ends the connection automatically.
#include "examples/both_ends.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

using namespace example;
using namespace asio::experimental::awaitable_operators;
using namespace std::chrono_literals;

constexpr auto as_values = asio::as_tuple(use_awaitable);

asio::awaitable<void> wait_again(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::slot_pool slots{io, client.domain(), {.slots = 4, .slot_bytes = 64}};
    rcverbs::registered_buffer message{server.domain(), 64, rcverbs::access_flags::local_read};
    asio::steady_timer timer{io, 50ms};
    auto const winner = co_await (client.async_receive(slots.try_acquire(), as_values) || timer.async_wait(use_awaitable));
    expect(winner.index() == 1 && client.is_open(), "the timer was first, and the connection goes on");
    // A message that arrives meanwhile is kept for the next receive.
    co_await server.async_send(message.slice(), use_awaitable);
    auto const got = co_await client.async_receive(slots.try_acquire(), use_awaitable);
    expect(got.bytes().size() == 64, "no message is lost");
    std::cout << "received after a timeout\n";
    client.close();
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> take_back(asio::io_context& io, std::string address) {
    rcverbs::connection_options options;
    options.queue_pair.receive_queue_depth = 1;
    auto [client, server] = co_await connect(io, address, options);
    rcverbs::registered_buffer into{client.domain(), 128, rcverbs::access_flags::local_write};
    client.async_receive(into.slice(0, 64), asio::detached);  // posted; the next one waits for a queue slot
    asio::cancellation_signal signal;
    asio::post(io, [&] { signal.emit(asio::cancellation_type::total); });
    auto const [outcome, nothing] =
        co_await client.async_receive(into.slice(64, 64), asio::bind_cancellation_slot(signal.slot(), as_values));
    expect(outcome == asio::error::operation_aborted && client.is_open(), "it is taken back and nothing else happens");
    std::cout << "taken back: " << outcome.message() << '\n';
    client.close();
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> give_up(asio::io_context& io, std::string address) {
    auto [client, server] = co_await connect(io, address);
    rcverbs::registered_buffer into{client.domain(), 64, rcverbs::access_flags::local_write};
    asio::steady_timer timer{io, 50ms};
    // The timer wins and cancels the receive; that ends the connection, after which the program may reuse the memory.
    auto const winner = co_await (client.async_receive(into.slice(), as_values) || timer.async_wait(use_awaitable));
    expect(winner.index() == 1 && !client.is_open(), "the timer was first, and the connection has ended");
    std::cout << "given up after 50 ms\n";
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> stall(asio::io_context& io, std::string address) {
    rcverbs::connection_options options;
    options.liveness.stall_timeout = 200ms;
    options.queue_pair.rnr_retry_count = 7;  // the device retries for ever while the peer has no receive posted
    auto [client, server] = co_await connect(io, address, options);
    rcverbs::registered_buffer message{client.domain(), 64, rcverbs::access_flags::local_read};
    auto const [ec, bytes] = co_await client.async_send(message.slice(), as_values);
    expect(ec == rcverbs::errc::stalled && bytes == 0, "nobody receives, so the send stalls");
    std::cout << "stalled: " << ec.message() << '\n';
    co_await server.async_wait_disconnected(as_values);
}

asio::awaitable<void> work(asio::io_context& io, std::string address) {
    co_await wait_again(io, address);
    co_await take_back(io, address);
    co_await give_up(io, address);
    co_await stall(io, address);
}

int main(int argc, char** argv) {
    asio::io_context io;
    return run(io, work(io, device_address(argc, argv)));
}
