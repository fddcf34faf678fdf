// fixture.hpp — two connected ends in one process, and the device's own counters as a second opinion.
//
// Tests are coroutines on an io_context that the test's thread runs, so that assertions stay on that thread.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include <rcverbs/rcverbs.hpp>

#include "support/catch.hpp"
#include "support/device_address.hpp"

namespace test {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using namespace boost::asio::experimental::awaitable_operators;
using rcverbs::errc;
using rcverbs::error_code;

constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

/// Awaits two outcomes, whatever they are. (The operator && would flatten the left one, which is a tuple.)
template <class A, class B>
asio::awaitable<std::pair<A, B>> both(asio::awaitable<A> a, asio::awaitable<B> b) {
    struct box {
        A value;
    };
    // In two steps: g++ 12 destroys what is awaited inside of an aggregate's braces twice.
    auto const boxed = [](asio::awaitable<A> inner) -> asio::awaitable<box> {
        A value = co_await std::move(inner);
        co_return box{std::move(value)};
    };
    auto [first, second] = co_await (boxed(std::move(a)) && std::move(b));
    co_return std::pair<A, B>{std::move(first.value), std::move(second)};
}

/// The IPv6 address of the device under test; empty if it has none.
inline std::string device_address_v6() {
    char const* const given = std::getenv("RCVERBS_TEST_ADDRESS6");
    return given != nullptr ? given : "fd00::1";
}
/// True in the virtual machine's network, or one like it: 10.0.0.0/24 with nobody at .99, and no route elsewhere.
inline bool has_known_network() { return std::getenv("RCVERBS_TEST_ADDRESS") == nullptr; }

/// Deadlines of behaviour hold for the library as it ships; a sanitizer's checks take their time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int slowness = 10;
#else
constexpr int slowness = 1;
#endif

/// Runs a test to its end. What it throws, and with it a failed REQUIRE, fails the test.
template <class Test>
void run(asio::io_context& io, Test test) {
    std::exception_ptr failed;
    asio::co_spawn(io, std::move(test), [&](std::exception_ptr e) {
        failed = e;
        if (e) io.stop();
    });
    io.run();
    if (failed) std::rethrow_exception(failed);
}

struct pair {
    rcverbs::connection client;
    rcverbs::connection server;
};

/// Connects two connections.
inline asio::awaitable<pair> connect(
    asio::io_context& io, rcverbs::connection_options client = {}, rcverbs::connection_options server = {}
) {
    rcverbs::acceptor_options options;
    options.connection = std::move(server);
    rcverbs::acceptor acceptor{io, {device_address(), 0}, options};
    rcverbs::connection active{io, std::move(client)};
    rcverbs::connection passive = co_await (
        acceptor.async_accept(asio::use_awaitable) && active.async_connect(acceptor.local(), asio::use_awaitable)
    );
    co_return pair{std::move(active), std::move(passive)};
}

/// Takes one request and accepts it as a session.
inline asio::awaitable<rcverbs::session> accept_session(rcverbs::acceptor& a, rcverbs::session_options options = {}) {
    rcverbs::session s{co_await a.async_get_request(asio::use_awaitable), options};
    co_await s.async_accept(asio::use_awaitable);
    co_return s;
}

/// The three ways to drive a connection.
enum class drive { own_poller, shared_poller, context };

inline rcverbs::connection_options driven(asio::io_context& io, drive how) {
    rcverbs::connection_options o;
    if (how == drive::context) o.progress = rcverbs::progress_on::context;
    if (how == drive::shared_poller) o.shared_poller = rcverbs::poller{io};
    return o;
}

}  // namespace test
