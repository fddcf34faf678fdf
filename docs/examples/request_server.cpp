// A store of texts, and its client: a whole program with requests.
//
//     request_server serve ADDRESS           until it is interrupted; then what was asked is answered
//     request_server put ADDRESS KEY TEXT
//     request_server get ADDRESS KEY
#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>

#include <algorithm>
#include <csignal>
#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>

using namespace rcverbs;
namespace asio = boost::asio;
using asio::use_awaitable;

enum operation : std::uint32_t { put = 1, get = 2 };
enum status : std::uint32_t { done = 0, unknown = 1, wrong = 2 };
constexpr std::uint16_t port = 7471;
constexpr std::size_t text_bytes_max = 1 << 20;

std::string text_of(std::span<std::byte const> bytes) { return {reinterpret_cast<char const*>(bytes.data()), bytes.size()}; }

// --- the server -------------------------------------------------------------------------------------------------------

asio::awaitable<void> serve(request_server& server, protection_domain domain) {
    std::map<std::string, std::string> texts;
    registered_buffer body{domain, text_bytes_max, access_flags::local_write};
    for (;;) {
        auto [ec, r] = co_await server.async_next(asio::as_tuple(use_awaitable));
        if (ec) break;  // the server has ended
        std::string const key = text_of(r.head());  // copied: it goes with the body
        if (r.operation() == get) {
            auto const found = texts.find(key);
            bool const is_there = found != texts.end();
            std::string const text = is_there ? found->second : "";
            co_await r.async_answer(is_there ? done : unknown, text, asio::as_tuple(use_awaitable));
        } else if (r.operation() == put && r.size() <= body.size()) {
            auto const place = body.slice(0, static_cast<std::size_t>(r.size()));
            auto [failed] = co_await r.async_take(place, asio::as_tuple(use_awaitable));
            if (failed) continue;  // the client has left, or taken the request back
            texts[key] = text_of(place.bytes());
            co_await r.async_answer(done, {}, asio::as_tuple(use_awaitable));
        } else {
            co_await r.async_answer(wrong, {}, asio::as_tuple(use_awaitable));
        }
    }
}

int run_server(std::string const& address) {
    asio::io_context io;
    endpoint const here{address, port};
    request_server_options options;
    // One domain for all clients, so that one buffer is good for the bodies of all.
    protection_domain const domain = open_domain(io, here);
    options.channel.messages.connection.placement.domain = domain;
    request_server server{io, here, options};
    asio::co_spawn(io, serve(server, domain), asio::detached);
    asio::signal_set interrupted{io, SIGINT, SIGTERM};
    interrupted.async_wait([&](error_code const&, int) { server.async_finish([](error_code) {}); });
    std::cout << "listening at " << server.local_endpoint().to_string() << std::endl;
    io.run();
    return 0;
}

// --- the client -------------------------------------------------------------------------------------------------------

asio::awaitable<void> perform(request_client& c, operation what, std::string key, std::string text) {
    reply r = co_await c.async_request(ask{what}.head(key).body(text).may_repeat(), use_awaitable);
    if (r.status() != done) throw std::runtime_error{r.status() == unknown ? "unknown key" : "refused"};
    if (what == get) {
        registered_buffer into{c.domain(), std::max<std::size_t>(static_cast<std::size_t>(r.size()), 1), access_flags::local_write};
        auto const place = into.slice(0, static_cast<std::size_t>(r.size()));
        co_await r.async_take(place, use_awaitable);
        std::cout << text_of(place.bytes()) << '\n';
    }
    co_await c.async_finish(use_awaitable);
}

int run_client(operation what, std::string const& address, std::string const& key, std::string const& text) {
    asio::io_context io;
    request_client c{io, {address, port}};
    int code = 0;
    asio::co_spawn(io, perform(c, what, key, text), [&](std::exception_ptr failed) {
        try {
            if (failed) std::rethrow_exception(failed);
        } catch (std::exception const& e) {
            std::cerr << e.what() << '\n';
            code = 1;
        }
        c.close();
    });
    io.run();
    return code;
}

int main(int argc, char** argv) try {
    std::string const what = argc > 2 ? argv[1] : "";
    if (what == "serve") return run_server(argv[2]);
    if (what == "put" && argc == 5) return run_client(put, argv[2], argv[3], argv[4]);
    if (what == "get" && argc == 4) return run_client(get, argv[2], argv[3], "");
    std::cerr << "request_server serve ADDRESS | put ADDRESS KEY TEXT | get ADDRESS KEY\n";
    return 2;
} catch (std::exception const& e) {
    std::cerr << e.what() << '\n';
    return 1;
}
