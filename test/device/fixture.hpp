// fixture.hpp — two connected ends in one process, and the device's own counters for comparison.
//
// Tests are coroutines on an io_context that the test's thread runs, so that assertions stay on
// that thread.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <rcverbs/rcverbs.hpp>

#include "support/catch.hpp"
#include "support/device_address.hpp"

namespace test {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using boost::asio::experimental::awaitable_operators::operator||;
using rcverbs::errc;
using rcverbs::error_code;

constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

/// Awaits both; if one throws, the other is cancelled. As Asio's operator, but its implementation is
/// compiled once, and a result that is a tuple stays one.
asio::awaitable<void> operator&&(asio::awaitable<void> a, asio::awaitable<void> b);

template <class T>
asio::awaitable<void> store(asio::awaitable<T> from, std::optional<T>& to) {
    to.emplace(co_await std::move(from));
}
template <class A, class B>
asio::awaitable<std::pair<A, B>> operator&&(asio::awaitable<A> a, asio::awaitable<B> b) {
    std::optional<A> first;
    std::optional<B> second;
    co_await (store(std::move(a), first) && store(std::move(b), second));
    co_return std::pair<A, B>{std::move(*first), std::move(*second)};
}
template <class A>
asio::awaitable<A> operator&&(asio::awaitable<A> a, asio::awaitable<void> b) {
    std::optional<A> first;
    co_await (store(std::move(a), first) && std::move(b));
    co_return std::move(*first);
}
template <class B>
asio::awaitable<B> operator&&(asio::awaitable<void> a, asio::awaitable<B> b) {
    std::optional<B> second;
    co_await (std::move(a) && store(std::move(b), second));
    co_return std::move(*second);
}

/// The IPv6 address of the device under test; empty if it has none.
inline std::string device_address_v6() {
    char const* const given = std::getenv("RCVERBS_TEST_ADDRESS6");
    return given != nullptr ? given : "fd00::1";
}
/// True in the virtual machine's network, or one like it: 10.0.0.0/24 without a host at .99, and
/// without other routes.
inline bool has_known_network() { return std::getenv("RCVERBS_TEST_ADDRESS") == nullptr; }

/// Timing checks apply to the library as it ships; a sanitizer slows it down.
#if defined(RCVERBS_ADDRESS_SANITIZER) || defined(RCVERBS_THREAD_SANITIZER)
constexpr int slowness = 10;
#else
constexpr int slowness = 1;
#endif

using test_body = std::function<asio::awaitable<void>()>;

/// Runs a test to its end. An exception, including that of a failed REQUIRE, fails the test.
void run(asio::io_context& io, test_body test);

/// What a function reports through its error_code.
template <class Function>
rcverbs::error_code reported(Function&& f) {
    rcverbs::error_code ec;
    f(ec);
    return ec;
}

struct pair {
    rcverbs::connection client;
    rcverbs::connection server;
};

/// Options of accepted connections that share a protection domain.
inline rcverbs::connection_options sharing() {
    rcverbs::connection_options o;
    o.placement.domain = rcverbs::domain_sharing::shared;
    return o;
}

/// The executor or poller that runs a connection.
using home = rcverbs::runs_on<asio::any_io_executor>;

/// Connects two connections, each with its own executor.
asio::awaitable<pair> connect(
    home client_at,
    home server_at,
    rcverbs::connection_options client = {},
    rcverbs::connection_options server = {}
);
/// Both with the same executor.
inline asio::awaitable<pair> connect(
    home at, rcverbs::connection_options client = {}, rcverbs::connection_options server = {}
) {
    return connect(at, at, std::move(client), std::move(server));
}
/// Disconnects the client, and waits until both ends have ended.
asio::awaitable<void> disconnect(pair& p);

/// Takes one request and accepts it as a connection on the acceptor's executor.
asio::awaitable<rcverbs::connection> requested(
    rcverbs::acceptor& a, rcverbs::connection_options options = {}
);

/// Takes one request and accepts it as a session, by default on the acceptor's executor.
asio::awaitable<rcverbs::session> accept_session(
    rcverbs::acceptor& a,
    rcverbs::session_options options = {},
    std::optional<home> at = std::nullopt,
    rcverbs::connection_options connection = {}
);

/// The ways to run a connection.
enum class drive { own_thread, poller, context };

/// Executors of one kind; `poller` returns the same one each time.
class places {
public:
    places(asio::io_context& io, drive how, rcverbs::polling_options polling = {})
        : io_{io},
          how_{how},
          polling_{polling} {}

    home operator()() {
        if (how_ == drive::context) return rcverbs::poller::on(io_, {.polling = polling_});
        if (how_ == drive::own_thread) return rcverbs::poller::start({.polling = polling_});
        if (!shared_.is_valid()) shared_ = rcverbs::poller::start({.polling = polling_});
        return shared_;
    }

private:
    asio::io_context& io_;
    drive const how_;
    rcverbs::polling_options const polling_;
    rcverbs::poller shared_;
};

}  // namespace test
