// stream_peer ADDRESS PORT: connects a session, and writes increasing numbers into the peer's
// region "stream", one after the other, until the connection ends; then prints why, and exits with
// 0 if the peer ended it. stream_peer idle ADDRESS PORT: writes nothing; with a trailing "patient",
// a port that goes down does not end the connection. stream_peer serve ADDRESS: prints its port,
// serves one session, exposes such a region, and waits for the end.
#include <boost/asio.hpp>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <rcverbs/rcverbs.hpp>

namespace {

namespace asio = boost::asio;
using namespace rcverbs;
constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

asio::awaitable<void> connect(
    asio::io_context& io, endpoint to, connection_options options, bool is_idle
) {
    session s{connection{io, std::move(options)}};
    co_await s.async_connect(to, asio::use_awaitable);
    std::vector<named_region> const nothing;
    peer_regions const there = co_await s.async_exchange(nothing, asio::use_awaitable);
    auto const print_reason = [&] {
        std::cout << to_string(s.last_failure().reason) << ": " << s.last_failure().message()
                  << std::endl;
    };
    if (is_idle) {
        std::cout << "idle" << std::endl;
        co_await s.next_layer().async_wait_disconnected(awaiting);
        co_return print_reason();
    }
    registered_buffer out{s.next_layer().domain(), 4096, access_flags::local_read};
    std::cout << "streaming" << std::endl;
    for (std::uint64_t i = 1;; ++i) {
        std::memcpy(out.bytes().data(), &i, sizeof i);
        std::memcpy(out.bytes().data() + 4088, &i, sizeof i);
        auto [ec, n] = co_await s.next_layer().async_write(out.slice(), there[0], awaiting);
        if (ec) co_return print_reason();
    }
}

asio::awaitable<void> serve(asio::io_context& io, std::string address, connection_options options) {
    acceptor a{io, {address, 0}};
    std::cout << "port " << a.local_endpoint().port() << '.' << std::endl;
    connection_request request = co_await a.async_get_request(asio::use_awaitable);
    session s{connection{io, std::move(request), std::move(options)}};
    co_await s.async_accept(asio::use_awaitable);
    registered_buffer in{s.next_layer().domain(), 4096, access_flags::remote_write};
    std::vector<named_region> const exposed{{"stream", in}};
    co_await s.async_exchange(exposed, asio::use_awaitable);
    co_await s.next_layer().async_wait_disconnected(awaiting);
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> arguments{argv + 1, argv + argc};
    auto const take = [&](std::string const& word) { return std::erase(arguments, word) > 0; };
    bool const serves = take("serve");
    bool const is_idle = take("idle");
    connection_options options;
    options.liveness.ends_on_port_down = !take("patient");
    options.queue_pair.ack_timeout = std::chrono::milliseconds{67};
    options.queue_pair.retry_count = 3;
    if (arguments.size() != (serves ? 1 : 2)) return 2;
    asio::io_context io;
    std::exception_ptr failed;
    auto const ended = [&](std::exception_ptr e) { failed = e; };
    if (serves) {
        asio::co_spawn(io, serve(io, arguments[0], options), ended);
    } else {
        endpoint const to{arguments[0], static_cast<std::uint16_t>(std::stoul(arguments[1]))};
        asio::co_spawn(io, connect(io, to, options, is_idle), ended);
    }
    io.run();
    try {
        if (failed) std::rethrow_exception(failed);
    } catch (std::exception const& e) {
        std::cerr << e.what() << '\n';
        return 1;
    }
}
