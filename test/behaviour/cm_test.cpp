// The behaviour of the connection manager, in plain C calls: the same on SoftRoCE and on the
// fabric.
#include "behaviour/provider_quirks.hpp"
#include "behaviour/ends.hpp"

#include <atomic>
#include <cerrno>

using namespace test;

namespace {

std::vector<std::byte> pattern(std::size_t size) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i + 1);
    return bytes;
}

bool starts_with(std::vector<std::byte> const& all, std::vector<std::byte> const& start) {
    return all.size() >= start.size() && std::equal(start.begin(), start.end(), all.begin());
}

}  // namespace

TEST_CASE("private data travels, padded to its field's size", "[behaviour]") {
    meeting m;
    m.resolve();
    m.client.make_queue_pair({});
    rdma_conn_param p = parameters_of({});
    std::vector<std::byte> const asked = pattern(57);
    p.private_data = asked.data();
    p.private_data_len = 57;
    CHECK(rdma_connect(m.client.id.get(), &p) == -1);
    CHECK(errno == EINVAL);
    p.private_data_len = 56;
    REQUIRE(rdma_connect(m.client.id.get(), &p) == 0);
    received_event const request = expect(m.listener.channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(request.private_data == pattern(56));

    end server;
    server.id.reset(request.id);
    server.make_queue_pair({});
    p = parameters_of({});
    std::vector<std::byte> const answered = pattern(100);
    p.private_data = answered.data();
    p.private_data_len = 100;
    REQUIRE(rdma_accept(server.id.get(), &p) == 0);
    received_event const established = expect(m.client.channel.get(), RDMA_CM_EVENT_ESTABLISHED);
    CHECK(established.private_data.size() == 196);
    CHECK(starts_with(established.private_data, answered));
    expect(m.listener.channel.get(), RDMA_CM_EVENT_ESTABLISHED);
    // The server's id must be destroyed before its event channel.
    rdma_destroy_qp(server.id.get());
    server.id.reset();
}

TEST_CASE("a rejection carries a reason and private data", "[behaviour]") {
    meeting m;
    received_event const request = m.ask();
    std::vector<std::byte> const why = pattern(20);
    REQUIRE(rdma_reject(request.id, why.data(), 20) == 0);
    received_event const refused = expect(m.client.channel.get(), RDMA_CM_EVENT_REJECTED);
    CHECK(refused.status == 28);
    CHECK(refused.private_data.size() == 148);
    CHECK(starts_with(refused.private_data, why));
    CHECK(m.client.state() == IBV_QPS_ERR);  // librdmacm moves it to the error state
    CHECK(rdma_destroy_id(request.id) == 0);
}

TEST_CASE("destroying the id of an unanswered request rejects the request", "[behaviour]") {
    meeting m;
    received_event const request = m.ask();
    CHECK(rdma_destroy_id(request.id) == 0);
    CHECK(expect(m.client.channel.get(), RDMA_CM_EVENT_REJECTED).status == 28);
}

TEST_CASE("a connect without a listener is rejected with reason 8", "[behaviour]") {
    meeting m;
    m.resolve();
    m.listener.id.reset();
    m.client.make_queue_pair({});
    rdma_conn_param p = parameters_of({});
    REQUIRE(rdma_connect(m.client.id.get(), &p) == 0);
    CHECK(expect(m.client.channel.get(), RDMA_CM_EVENT_REJECTED).status == 8);
}

TEST_CASE(
    "no route, loopback, a foreign local address and a listen out of order each fail with their "
    "errno",
    "[behaviour]"
) {
    meeting m;
    SECTION("no route") {
        if (std::getenv("RCVERBS_TEST_ADDRESS") != nullptr) {
            WARN("skipped: the machine's own network may have a route");
            return;
        }
        sockaddr_in to = address_of("203.0.113.1", 1);
        CHECK(rdma_resolve_addr(m.client.id.get(), nullptr, raw(to), 500) == -1);
        CHECK(errno == ENETUNREACH);
    }
    SECTION("loopback has no RDMA device") {
        sockaddr_in to = address_of("127.0.0.1", 1);
        REQUIRE(rdma_resolve_addr(m.client.id.get(), nullptr, raw(to), 500) == 0);
        expect(m.client.channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
        CHECK(rdma_resolve_route(m.client.id.get(), 500) == -1);
        CHECK(errno == ENODEV);
    }
    SECTION("an address of ours that nobody has") {
        CHECK(m.client.id->verbs == nullptr);
        sockaddr_in own = address_of("203.0.113.1");
        CHECK(rdma_bind_addr(m.client.id.get(), raw(own)) == -1);
        CHECK((errno == EADDRNOTAVAIL || errno == ENODEV));
    }
    SECTION("out of order") {
        CHECK(rdma_listen(m.listener.id.get(), 1) == -1);
        CHECK(errno == EINVAL);
    }
}

TEST_CASE("a port has one listener", "[behaviour]") {
    meeting m;
    sockaddr_in within = address_of(device_address(), m.port());
    CHECK(rdma_bind_addr(m.client.id.get(), raw(within)) == -1);
    CHECK(errno == EADDRNOTAVAIL);
    sockaddr_in own = address_of(device_address());
    REQUIRE(rdma_bind_addr(m.client.id.get(), raw(own)) == 0);
    rdma_cm_id* made = nullptr;
    REQUIRE(rdma_create_id(m.client.channel.get(), &made, nullptr, RDMA_PS_TCP) == 0);
    owned_id const other{made};
    own.sin_port = rdma_get_src_port(m.client.id.get());
    CHECK(rdma_bind_addr(made, raw(own)) == -1);
    CHECK(errno == EADDRINUSE);
}

TEST_CASE("depths are what the accepting side grants", "[behaviour]") {
    settings asks;
    asks.initiator_depth = 8;
    asks.responder_resources = 4;
    settings grants;
    grants.initiator_depth = 2;
    grants.responder_resources = 2;
    connected c{asks, grants};
    for (end const* const e : {&c.client, &c.server}) {
        ibv_qp_attr a{};
        ibv_qp_init_attr i{};
        REQUIRE(
            ibv_query_qp(e->qp(), &a, IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC, &i) == 0
        );
        CHECK(int{a.max_rd_atomic} == 2);
        CHECK(int{a.max_dest_rd_atomic} == 2);
    }
}

TEST_CASE(
    "rdma_disconnect moves the own queue pair to the error state, and only the peer's program "
    "answers it",
    "[behaviour]"
) {
    connected c;
    REQUIRE(rdma_disconnect(c.client.id.get()) == 0);
    CHECK(c.client.state() == IBV_QPS_ERR);
    expect(c.m.listener.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    CHECK(c.server.state() == IBV_QPS_RTS);  // only the program changes its state
    CHECK_FALSE(wait_for_event(c.client.channel.get(), 100));
    REQUIRE(rdma_disconnect(c.server.id.get()) == 0);
    expect(c.client.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
}

TEST_CASE("destroying an id disconnects its peer", "[behaviour]") {
    connected c;
    rdma_destroy_qp(c.client.id.get());
    c.client.id.reset();
    expect(c.m.listener.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
}

TEST_CASE("both sides may disconnect at once", "[behaviour]") {
    connected c;
    REQUIRE(rdma_disconnect(c.client.id.get()) == 0);
    REQUIRE(rdma_disconnect(c.server.id.get()) == 0);
    expect(c.client.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    expect(c.m.listener.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
}

TEST_CASE(
    "a client that goes before it is accepted leaves the server with a request that fails",
    "[behaviour]"
) {
    meeting m;
    received_event const request = m.ask();
    rdma_destroy_qp(m.client.id.get());
    m.client.id.reset();
    // The kernel reports no event for an id that the program has not accepted yet.
    CHECK_FALSE(wait_for_event(m.listener.channel.get(), 200));
    owned_id const late{request.id};
    owned_pd const pd{ibv_alloc_pd(late->verbs)};
    owned_cq const cq{ibv_create_cq(late->verbs, 8, nullptr, nullptr, 0)};
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq.get();
    a.qp_type = IBV_QPT_RC;
    a.cap = {1, 1, 1, 1, 0};
    CHECK(rdma_create_qp(late.get(), pd.get(), &a) == -1);
    CHECK(errno == EINVAL);
}

TEST_CASE("after both sides have disconnected, TIMEWAIT_EXIT is reported", "[behaviour]") {
    connected c;
    REQUIRE(rdma_disconnect(c.client.id.get()) == 0);
    expect(c.m.listener.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    REQUIRE(rdma_disconnect(c.server.id.get()) == 0);
    expect(c.client.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    expect(c.client.channel.get(), RDMA_CM_EVENT_TIMEWAIT_EXIT);
}

TEST_CASE("an id is destroyed only when its events have been acknowledged", "[behaviour]") {
    meeting m;
    sockaddr_in to = address_of(device_address(), m.port());
    REQUIRE(rdma_resolve_addr(m.client.id.get(), nullptr, raw(to), 2000) == 0);
    rdma_cm_event* e = nullptr;
    REQUIRE(rdma_get_cm_event(m.client.channel.get(), &e) == 0);
    std::atomic<bool> is_destroyed{false};
    std::thread destroyer{[&] {
        m.client.id.reset();
        is_destroyed = true;
    }};
    std::this_thread::sleep_for(std::chrono::milliseconds{100});
    CHECK_FALSE(is_destroyed);
    rdma_ack_cm_event(e);
    destroyer.join();
    CHECK(is_destroyed);
}

TEST_CASE("rdma_migrate_id moves an id and its later events to another channel", "[behaviour]") {
    meeting m;
    m.resolve();
    m.client.make_queue_pair({});
    end elsewhere;
    REQUIRE(rdma_migrate_id(m.client.id.get(), elsewhere.channel.get()) == 0);
    m.listener.id.reset();
    rdma_conn_param p = parameters_of({});
    REQUIRE(rdma_connect(m.client.id.get(), &p) == 0);
    expect(elsewhere.channel.get(), RDMA_CM_EVENT_REJECTED);
    rdma_destroy_qp(m.client.id.get());
    m.client.id.reset();
}

TEST_CASE("an id has a protection domain with its device", "[behaviour]") {
    meeting m;
    CHECK(m.client.id->pd == nullptr);
    m.resolve();
    REQUIRE(m.client.id->pd != nullptr);
    CHECK(m.client.id->pd->context == m.client.id->verbs);
    m.client.make_queue_pair({});
    rdma_conn_param p = parameters_of({});
    REQUIRE(rdma_connect(m.client.id.get(), &p) == 0);
    received_event const request = expect(m.listener.channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK(request.id->pd != nullptr);
    CHECK(rdma_destroy_id(request.id) == 0);
}

namespace {

// A queue pair that the connection manager does not know.
struct own_queue_pair {
    owned_pd pd;
    owned_cq cq;
    owned<ibv_qp, &ibv_destroy_qp> qp;
    rdma_cm_id* id;

    explicit own_queue_pair(rdma_cm_id* of)
        : pd{ibv_alloc_pd(of->verbs)},
          cq{ibv_create_cq(of->verbs, 16, nullptr, nullptr, 0)},
          id{of} {
        ibv_qp_init_attr a{};
        a.send_cq = a.recv_cq = cq.get();
        a.qp_type = IBV_QPT_RC;
        a.cap = {4, 4, 1, 1, 0};
        qp.reset(ibv_create_qp(pd.get(), &a));
        REQUIRE(qp);
    }

    void move_to(ibv_qp_state state) {
        INFO("to state " << state);
        ibv_qp_attr a{};
        int mask = 0;
        a.qp_state = state;
        REQUIRE(rdma_init_qp_attr(id, &a, &mask) == 0);
        REQUIRE(ibv_modify_qp(qp.get(), &a, mask) == 0);
    }

    rdma_conn_param parameters() const {
        rdma_conn_param p = parameters_of({});
        p.qp_num = qp->qp_num;
        return p;
    }

    ibv_wc await() {
        ibv_wc wc{};
        for (int n = 0; n == 0;) n = ibv_poll_cq(cq.get(), 1, &wc);
        return wc;
    }
};

}  // namespace

TEST_CASE(
    "a program with queue pairs of its own connects them, and says when it has", "[behaviour]"
) {
    meeting m;
    m.resolve();
    own_queue_pair client{m.client.id.get()};
    // Without a peer, only what INIT needs.
    ibv_qp_attr early{};
    int mask = 0;
    early.qp_state = IBV_QPS_INIT;
    REQUIRE(rdma_init_qp_attr(m.client.id.get(), &early, &mask) == 0);
    CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    rdma_conn_param p = client.parameters();
    REQUIRE(rdma_connect(m.client.id.get(), &p) == 0);
    received_event const request = expect(m.listener.channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    own_queue_pair server{request.id};
    server.move_to(IBV_QPS_INIT);
    server.move_to(IBV_QPS_RTR);
    std::vector<std::byte> bytes(64);
    owned_mr const memory{
        ibv_reg_mr(server.pd.get(), bytes.data(), bytes.size(), int{IBV_ACCESS_LOCAL_WRITE})};
    ibv_sge to{reinterpret_cast<std::uintptr_t>(bytes.data()), 64, memory->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &to;
    receive.num_sge = 1;
    ibv_recv_wr* bad_receive = nullptr;
    REQUIRE(ibv_post_recv(server.qp.get(), &receive, &bad_receive) == 0);
    p = server.parameters();
    REQUIRE(rdma_accept(request.id, &p) == 0);

    expect(m.client.channel.get(), RDMA_CM_EVENT_CONNECT_RESPONSE);
    client.move_to(IBV_QPS_INIT);
    client.move_to(IBV_QPS_RTR);
    client.move_to(IBV_QPS_RTS);
    REQUIRE(rdma_establish(m.client.id.get()) == 0);
    expect(m.listener.channel.get(), RDMA_CM_EVENT_ESTABLISHED);
    server.move_to(IBV_QPS_RTS);

    std::vector<std::byte> const message = pattern(64);
    owned_mr const source{
        ibv_reg_mr(client.pd.get(), const_cast<std::byte*>(message.data()), 64, 0)};
    ibv_sge from{reinterpret_cast<std::uintptr_t>(message.data()), 64, source->lkey};
    ibv_send_wr send = work(IBV_WR_SEND, &from, 1);
    ibv_send_wr* bad_send = nullptr;
    REQUIRE(ibv_post_send(client.qp.get(), &send, &bad_send) == 0);
    CHECK(client.await().status == IBV_WC_SUCCESS);
    CHECK(server.await().status == IBV_WC_SUCCESS);
    CHECK(bytes == message);
    REQUIRE(rdma_disconnect(m.client.id.get()) == 0);
    expect(m.listener.channel.get(), RDMA_CM_EVENT_DISCONNECTED);
    CHECK(rdma_destroy_id(request.id) == 0);
}
