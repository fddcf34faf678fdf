// Compiled once: each coroutine with a distinct type passed to Asio costs a quarter of a second of
// compile time.
#include "device/fixture.hpp"

#include <boost/asio/multiple_exceptions.hpp>

#include <catch2/catch.hpp>

// Two operations that `&&` awaits may both fail; the first failure names the cause.
CATCH_TRANSLATE_EXCEPTION(boost::asio::multiple_exceptions const& several) {
    try {
        std::rethrow_exception(several.first_exception());
    } catch (std::exception const& first) {
        return std::string{"several exceptions, the first: "} + first.what();
    } catch (...) {
        return std::string{"several exceptions, the first of an unknown type"};
    }
}

namespace test {

namespace {

/// A test that sets no rnr_retry_count does not test it. The default ends after 4 ms, and on a
/// machine with more threads than processors a receive may be posted later than that.
void wait_for_receives(rcverbs::connection_options& o) {
    if (o.queue_pair.rnr_retry_count == rcverbs::queue_pair_options{}.rnr_retry_count)
        o.queue_pair.rnr_retry_count = 7;
}

}  // namespace

asio::awaitable<void> operator&&(asio::awaitable<void> a, asio::awaitable<void> b) {
    namespace operators = asio::experimental::awaitable_operators;
    co_await operators::operator&&(std::move(a), std::move(b));
}

void run(asio::io_context& io, test_body test) {
    std::exception_ptr failed;
    asio::co_spawn(io, std::move(test), [&](std::exception_ptr e) {
        failed = e;
        if (e) io.stop();
    });
    io.run();
    if (failed) std::rethrow_exception(failed);
}

asio::awaitable<pair> connect(
    home client_at,
    home server_at,
    rcverbs::connection_options client,
    rcverbs::connection_options server
) {
    wait_for_receives(client);
    wait_for_receives(server);
    rcverbs::acceptor_options options;
    options.connection = std::move(server);
    rcverbs::acceptor acceptor{server_at, {device_address(), 0}, options};
    rcverbs::connection active{client_at, std::move(client)};
    rcverbs::connection passive = co_await (
        acceptor.async_accept(asio::use_awaitable) &&
        active.async_connect(acceptor.local_endpoint(), asio::use_awaitable)
    );
    co_return pair{std::move(active), std::move(passive)};
}

asio::awaitable<void> disconnect(pair& p) {
    co_await (
        p.client.async_disconnect(asio::use_awaitable) &&
        p.server.async_wait_disconnected(asio::use_awaitable)
    );
}

asio::awaitable<rcverbs::connection> requested(
    rcverbs::acceptor& a, rcverbs::connection_options options
) {
    wait_for_receives(options);
    rcverbs::connection_request request = co_await a.async_get_request(asio::use_awaitable);
    co_return rcverbs::connection{a.get_executor(), std::move(request), std::move(options)};
}

asio::awaitable<rcverbs::session> accept_session(
    rcverbs::acceptor& a,
    rcverbs::session_options options,
    std::optional<home> at,
    rcverbs::connection_options connection
) {
    rcverbs::connection_request request = co_await a.async_get_request(asio::use_awaitable);
    rcverbs::session s{
        rcverbs::connection{
            at ? *at : home{a.get_executor()}, std::move(request), std::move(connection)},
        options};
    co_await s.async_accept(asio::use_awaitable);
    co_return s;
}

}  // namespace test
