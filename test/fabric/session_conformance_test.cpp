// Every asynchronous operation of sessions and connectors, and of connections set up in two steps,
// keeps the contract in conformance.hpp.
#include "fabric/conformance.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// Connections and sessions in every state.
struct stage {
    world& w;
    asio::io_context& io;
    acceptor open_acceptor;
    // A client with a resolved route, an incoming connection, and the client that requested it.
    connection resolved;
    connection incoming;
    connection caller;
    // Sessions that are new, that have an incoming request, that are connected, and that have
    // exchanged MSG_DONE.
    session fresh;
    session arriving;
    session calling;
    session client;
    session server;
    session finished_client;
    session finished_server;
    connector again;
    // The acceptor's side of a request.
    session served;

    static asio::awaitable<std::shared_ptr<stage>> set(world& w, asio::io_context& io);

    /// Serves the next request as a session.
    void serve() {
        open_acceptor.async_get_request([this](error_code ec, connection_request request) {
            if (ec) return;
            try {
                served = session{connection{stepped(io), std::move(request)}};
            } catch (boost::system::system_error const& e) {
                // The client was cancelled after its request had been sent.
                if (e.code() != errc::peer_disconnected) throw;
                return;
            }
            served.async_accept(ignore);
        });
    }

    void close() {
        open_acceptor.close();
        again.cancel();
        for (connection* const c : connections()) c->close();
    }

    void destroy() {
        { acceptor const gone = std::move(open_acceptor); }
        { connector const gone = std::move(again); }
        { session const gone = std::move(fresh); }
        { session const gone = std::move(arriving); }
        { session const gone = std::move(client); }
        { session const gone = std::move(finished_client); }
        { connection const gone = std::move(resolved); }
        { connection const gone = std::move(incoming); }
    }

    asio::awaitable<void> ended() {
        for (connection* const c : connections()) {
            if (c->is_valid()) co_await c->async_wait_disconnected(awaiting);
        }
    }

private:
    std::vector<connection*> connections() {
        return {
            &resolved,
            &incoming,
            &caller,
            &fresh.next_layer(),
            &arriving.next_layer(),
            &calling.next_layer(),
            &client.next_layer(),
            &server.next_layer(),
            &finished_client.next_layer(),
            &finished_server.next_layer(),
            &served.next_layer()};
    }
};

asio::awaitable<std::pair<session, session>> meet_in_session(
    asio::io_context& io, acceptor& listener
) {
    session client{connection{stepped(io)}};
    auto const serve = [&]() -> asio::awaitable<session> {
        session s{
            connection{stepped(io), co_await listener.async_get_request(asio::use_awaitable)}};
        co_await s.async_accept(asio::use_awaitable);
        co_return s;
    };
    session server =
        co_await (client.async_connect(listener.local_endpoint(), asio::use_awaitable) && serve());
    co_return std::pair{std::move(client), std::move(server)};
}

asio::awaitable<std::shared_ptr<stage>> stage::set(world& w, asio::io_context& io) {
    acceptor listener{stepped(io), {"10.0.0.1", 0}};
    auto [client, server] = co_await meet_in_session(io, listener);
    auto [finished_client, finished_server] = co_await meet_in_session(io, listener);
    co_await (
        finished_client.async_send_done(asio::use_awaitable) &&
        finished_server.async_send_done(asio::use_awaitable) &&
        finished_client.async_wait_done(asio::use_awaitable) &&
        finished_server.async_wait_done(asio::use_awaitable)
    );
    connection resolved{stepped(io)};
    co_await resolved.async_resolve(listener.local_endpoint(), asio::use_awaitable);
    connection caller{stepped(io)};
    caller.async_connect(listener.local_endpoint(), ignore);
    connection incoming{stepped(io), co_await listener.async_get_request(asio::use_awaitable)};
    session calling{connection{stepped(io)}};
    calling.async_connect(listener.local_endpoint(), ignore);
    session arriving{
        connection{stepped(io), co_await listener.async_get_request(asio::use_awaitable)}};
    endpoint const where = listener.local_endpoint();
    co_return std::make_shared<stage>(stage{
        w,
        io,
        std::move(listener),
        std::move(resolved),
        std::move(incoming),
        std::move(caller),
        session{connection{stepped(io)}},
        std::move(arriving),
        std::move(calling),
        std::move(client),
        std::move(server),
        std::move(finished_client),
        std::move(finished_server),
        connector{stepped(io), where},
        session{}});
}

RCVERBS_OPERATION(
    establish_operation,
    terminal,
    errc::operation_in_progress,
    1,
    resolved.async_establish({}, std::forward<Token>(token)),
    s.open_acceptor.async_accept(ignore)
);
RCVERBS_OPERATION(
    connection_accept_operation,
    terminal,
    errc::operation_in_progress,
    1,
    incoming.async_accept({}, std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    session_connect_operation,
    terminal,
    errc::operation_in_progress,
    1,
    fresh.async_connect(s.open_acceptor.local_endpoint(), std::forward<Token>(token)),
    s.serve()
);
RCVERBS_OPERATION(
    session_accept_operation,
    terminal,
    errc::operation_in_progress,
    1,
    arriving.async_accept(std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    publish_operation,
    terminal,
    errc::operation_in_progress,
    1,
    client.async_publish({}, std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    wait_regions_operation,
    terminal,
    errc::operation_in_progress,
    1,
    client.async_wait_regions(std::forward<Token>(token)),
    s.server.async_publish({}, ignore)
);
RCVERBS_OPERATION(
    exchange_operation,
    terminal,
    errc::operation_in_progress,
    1,
    client.async_exchange({}, std::forward<Token>(token)),
    s.server.async_publish({}, ignore)
);
RCVERBS_OPERATION(
    send_done_operation,
    terminal,
    errc::operation_in_progress,
    1,
    client.async_send_done(std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    wait_done_operation,
    terminal,
    errc::operation_in_progress,
    1,
    client.async_wait_done(std::forward<Token>(token)),
    s.server.async_send_done(ignore)
);
RCVERBS_OPERATION(
    session_disconnect_operation,
    terminal,
    errc::operation_in_progress,
    1,
    finished_client.async_disconnect(std::forward<Token>(token)),
);
RCVERBS_OPERATION(
    finish_operation,
    terminal,
    errc::operation_in_progress,
    1,
    client.async_finish(std::forward<Token>(token)),
    s.server.async_finish(ignore)
);
RCVERBS_OPERATION(
    connector_operation,
    total,
    errc::operation_in_progress,
    1,
    again.async_connect(std::forward<Token>(token)),
    s.serve()
);

}  // namespace

#define RCVERBS_ALL_OPERATIONS                                                                    \
    establish_operation, connection_accept_operation, session_connect_operation,                  \
        session_accept_operation, publish_operation, wait_regions_operation, exchange_operation,  \
        send_done_operation, wait_done_operation, session_disconnect_operation, finish_operation, \
        connector_operation

#include "fabric/conformance_cases.hpp"
