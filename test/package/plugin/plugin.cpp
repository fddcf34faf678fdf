// plugin.cpp — a shared library that uses rcverbs, as a plugin of a program that does not know of it.
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>

#include <rcverbs/connection.hpp>
#include <rcverbs/poller.hpp>
#include <rcverbs/request_channel.hpp>

#include <chrono>
#include <string_view>

// Connects to an address that leads nowhere, on the caller's thread and on a polling thread. Returns the number of handlers that ran; in
// `*of_rcverbs`, of those with an error of the library's or the connection manager's.
extern "C" int visit_nobody(int* of_rcverbs) {
    namespace asio = boost::asio;
    asio::io_context io;
    int ran = 0;
    *of_rcverbs = 0;
    auto const on_connected = [&](rcverbs::error_code ec) {
        ++ran;
        if (std::string_view{ec.category().name()}.substr(0, 7) == "rcverbs" ||
            ec == std::errc::no_such_device)
            ++*of_rcverbs;
    };
    rcverbs::connection_options hasty;
    hasty.timeouts.resolve_address = std::chrono::milliseconds{50};
    rcverbs::connection own{io, hasty};
    own.async_connect({"192.0.2.1", 1}, on_connected);
    rcverbs::connection polled{rcverbs::poller::start(), hasty};
    polled.async_connect({"192.0.2.1", 1}, asio::bind_executor(io, on_connected));
    rcverbs::request_channel_options options;
    options.messages.connection = hasty;
    rcverbs::request_channel channel{io, options};
    channel.async_connect({"192.0.2.1", 1}, on_connected);
    io.run_for(std::chrono::seconds{20});
    return ran;
}
