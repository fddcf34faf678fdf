// Peers that use another library: plain C calls on the other side of a connection and of a session.
// (On a device, rping is such a peer.)
#include <boost/asio/use_future.hpp>

#include <thread>

#include "behaviour/ends.hpp"
#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

TEST_CASE(
    "a foreign client is refused by a session, and the next client is served", "[plain verbs]"
) {
    asio::io_context io;
    acceptor a{io, {device_address(), 0}};
    std::vector<error_code> outcomes;
    auto const serve = [&]() -> asio::awaitable<void> {
        for (int i = 0; i < 2; ++i) {
            session s{co_await requested(a)};
            auto [ec] = co_await s.async_accept(awaiting);
            outcomes.push_back(ec);
            if (!ec) co_await s.async_finish(asio::use_awaitable);
        }
    };
    auto served = asio::co_spawn(io, serve(), asio::use_future);
    std::thread runner{[&] { io.run(); }};

    end foreign;
    rdma_cm_id* made = nullptr;
    REQUIRE(rdma_create_id(foreign.channel.get(), &made, nullptr, RDMA_PS_TCP) == 0);
    foreign.id.reset(made);
    sockaddr_in to = address_of(device_address(), a.local_endpoint().port());
    REQUIRE(rdma_resolve_addr(made, nullptr, raw(to), 2000) == 0);
    expect(foreign.channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(made, 2000) == 0);
    expect(foreign.channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
    foreign.make_queue_pair({});
    rdma_conn_param p = parameters_of({});
    REQUIRE(rdma_connect(made, &p) == 0);
    CHECK(expect(foreign.channel.get(), RDMA_CM_EVENT_REJECTED).status == 28);

    session own{connection{io}};
    own.async_connect(a.local_endpoint(), asio::use_future).get();
    own.async_finish(asio::use_future).get();
    served.get();
    a.close();
    runner.join();
    REQUIRE(outcomes.size() == 2);
    CHECK(outcomes[0] == session_errc::foreign_peer);
    CHECK_FALSE(outcomes[1]);
}

TEST_CASE(
    "a plain connection adds nothing that a plain C server would have to know", "[plain verbs]"
) {
    meeting m;
    asio::io_context io;
    connection client{io};
    auto connected = client.async_connect({device_address(), m.port()}, asio::use_future);
    std::thread runner{[&] { io.run(); }};
    end server;
    server.id.reset(expect(m.listener.channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST).id);
    server.make_queue_pair({});
    memory theirs{server, 64};
    ibv_sge into = theirs.segment(0, 64);
    REQUIRE(server.receive(100, &into, 1) == 0);
    rdma_conn_param p = parameters_of({});
    REQUIRE(rdma_accept(server.id.get(), &p) == 0);
    connected.get();
    expect(m.listener.channel.get(), RDMA_CM_EVENT_ESTABLISHED);

    registered_buffer ours{client.domain(), 64, access_flags::remote_write};
    std::ranges::fill(ours.bytes(), std::byte{42});
    CHECK(client.async_send(ours.slice(0, 7), asio::use_future).get() == 7);
    ibv_wc const arrived = server.await();
    CHECK(arrived.byte_len == 7);
    CHECK(theirs.bytes()[6] == std::byte{42});
    theirs.bytes()[0] = std::byte{9};
    ibv_sge from = theirs.segment(0, 1);
    remote_region const open = ours.remote();
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &from, 1, open.address() + 63, open.key().value);
    REQUIRE(server.post(wr) == 0);
    CHECK(server.await().status == IBV_WC_SUCCESS);
    CHECK(ours.bytes()[63] == std::byte{9});

    auto ended = client.async_disconnect(asio::use_future);
    expect(m.listener.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    REQUIRE(rdma_disconnect(server.id.get()) == 0);
    ended.get();
    client = connection{};
    ours = registered_buffer{};
    runner.join();
    rdma_destroy_qp(server.id.get());
    server.id.reset();
}
