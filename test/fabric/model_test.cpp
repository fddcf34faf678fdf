// Regression tests of the fabric's model for behaviour that cannot be provoked on a device: one
// case for each former bug, and for behaviour that only the fabric has. Plain C calls.
#include "behaviour/ends.hpp"
#include "support/fabric_world.hpp"

#include <cerrno>

using namespace test;
using namespace std::chrono_literals;
using rcverbs::fabric::packet_fate;
using rcverbs::fabric::packet_info;

namespace {

ibv_qp_attr attributes_of(ibv_qp* qp) {
    ibv_qp_attr a{};
    ibv_qp_init_attr i{};
    REQUIRE(ibv_query_qp(qp, &a, IBV_QP_STATE, &i) == 0);
    return a;
}

/// Resets the queue pair and moves it back to RTS.
void restart(ibv_qp* qp) {
    ibv_qp_attr a = attributes_of(qp);
    a.qp_state = IBV_QPS_RESET;
    REQUIRE(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
    a.qp_state = IBV_QPS_INIT;
    REQUIRE(
        ibv_modify_qp(
            qp, &a, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_PKEY_INDEX
        ) == 0
    );
    a.qp_state = IBV_QPS_RTR;
    REQUIRE(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_MAX_DEST_RD_ATOMIC) == 0);
    a.qp_state = IBV_QPS_RTS;
    REQUIRE(
        ibv_modify_qp(
            qp, &a, IBV_QP_STATE | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT
        ) == 0
    );
}

}  // namespace

TEST_CASE("a queue pair that was reset keeps no earlier state", "[model]") {
    connected c;
    memory result{c.client, 8};
    memory word{c.server, 8, all_access};
    ibv_sge segment = result.segment(0, 8);
    ibv_send_wr wr = work(IBV_WR_ATOMIC_FETCH_AND_ADD, &segment, 1);
    wr.wr.atomic = {word.at(), 1, 0, word.mr->rkey};
    for (int round = 0; round < 2; ++round) {
        for (std::uint64_t i = 0; i < 3; ++i) {
            REQUIRE(c.client.post(wr) == 0);
            CHECK(c.client.await().status == IBV_WC_SUCCESS);
        }
        CHECK(word.words[0] == 3U * (static_cast<unsigned>(round) + 1));
        if (round == 0) {
            restart(c.client.qp());
            restart(c.server.qp());
        }
    }
}

TEST_CASE(
    "receives posted in the error state are flushed, up to the depth of the queue", "[model]"
) {
    connected c;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(c.server.qp(), &a, IBV_QP_STATE) == 0);
    std::vector<ibv_recv_wr> list(40);
    for (std::size_t i = 0; i + 1 < list.size(); ++i) list[i].next = &list[i + 1];
    ibv_recv_wr* bad = nullptr;
    CHECK(ibv_post_recv(c.server.qp(), list.data(), &bad) == ENOMEM);
    CHECK(bad == &list[16]);
    for (int i = 0; i < 16; ++i) CHECK(c.server.await().status == IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE(
    "a shared receive queue uses its own protection domain, and a later one starts empty", "[model]"
) {
    connected c;
    memory from{c.client, 8};
    ibv_send_wr* bad_send = nullptr;
    for (int round = 0; round < 2; ++round) {
        owned_pd const pd{ibv_alloc_pd(c.server.id->verbs)};
        std::uint64_t into = 0;
        owned_mr const mr{ibv_reg_mr(pd.get(), &into, sizeof into, int{IBV_ACCESS_LOCAL_WRITE})};
        ibv_srq_init_attr shared{};
        shared.attr = {2, 1, 0};
        owned_srq const srq{ibv_create_srq(pd.get(), &shared)};
        ibv_qp_init_attr init{};
        init.send_cq = init.recv_cq = c.server.cq.get();
        init.srq = srq.get();
        init.qp_type = IBV_QPT_RC;
        init.cap = {1, 0, 1, 0, 0};
        ibv_qp* const one = ibv_create_qp(c.server.pd.get(), &init);
        init.send_cq = init.recv_cq = c.client.cq.get();
        init.srq = nullptr;
        ibv_qp* const other = ibv_create_qp(c.client.pd.get(), &init);
        for (auto const& [qp, peer] : {std::pair{one, other}, std::pair{other, one}}) {
            ibv_qp_attr a{};
            a.qp_state = IBV_QPS_INIT;
            REQUIRE(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
            a.qp_state = IBV_QPS_RTR;
            a.dest_qp_num = peer->qp_num;
            REQUIRE(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_DEST_QPN) == 0);
            a.qp_state = IBV_QPS_RTS;
            REQUIRE(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
        }
        ibv_sge place{reinterpret_cast<std::uintptr_t>(&into), sizeof into, mr->lkey};
        ibv_recv_wr receive{};
        receive.sg_list = &place;
        receive.num_sge = 1;
        ibv_recv_wr* bad = nullptr;
        REQUIRE(ibv_post_srq_recv(srq.get(), &receive, &bad) == 0);
        from.words[0] = 42;
        ibv_sge segment = from.segment(0, 8);
        ibv_send_wr wr = work(IBV_WR_SEND, &segment, 1);
        REQUIRE(ibv_post_send(other, &wr, &bad_send) == 0);
        CHECK(c.client.await().status == IBV_WC_SUCCESS);
        CHECK(into == 42);
        REQUIRE(ibv_post_srq_recv(srq.get(), &receive, &bad) == 0);
        // The first round's completion is polled in the second round, after its queue pair was
        // destroyed.
        if (round == 1) {
            while (c.server.poll(10ms)) {}
            REQUIRE(ibv_post_srq_recv(srq.get(), &receive, &bad) == 0);
            CHECK(ibv_post_srq_recv(srq.get(), &receive, &bad) == ENOMEM);
        }
        ibv_destroy_qp(one);
        ibv_destroy_qp(other);
    }
}

TEST_CASE(
    "deallocating a window invalidates its key, whatever the program wrote to ibv_mw::rkey",
    "[model]"
) {
    connected c;
    memory from{c.client, 8};
    memory region{c.server, 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND};
    ibv_mw* const window = ibv_alloc_mw(c.server.pd.get(), IBV_MW_TYPE_2);
    ibv_send_wr bind = work(IBV_WR_BIND_MW, nullptr, 0, 50);
    bind.bind_mw.mw = window;
    bind.bind_mw.bind_info = {region.mr.get(), region.at(), 8, IBV_ACCESS_REMOTE_WRITE};
    bool const is_strange = GENERATE(false, true);
    bind.bind_mw.rkey = is_strange ? window->rkey + 0x1000 : ibv_inc_rkey(window->rkey);
    REQUIRE(c.server.post(bind) == 0);
    CHECK(c.server.await().status == (is_strange ? IBV_WC_MW_BIND_ERR : IBV_WC_SUCCESS));
    window->rkey = ibv_inc_rkey(ibv_inc_rkey(bind.bind_mw.rkey));
    CHECK(ibv_dealloc_mw(window) == 0);
    if (is_strange) return;
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, region.at(), bind.bind_mw.rkey);
    REQUIRE(c.client.post(wr) == 0);
    CHECK(c.client.await().status == IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("an id leaves from where it is bound", "[model]") {
    meeting m;
    sockaddr_in own = address_of(device_address(), 5555);
    REQUIRE(rdma_bind_addr(m.client.id.get(), raw(own)) == 0);
    m.resolve();
    CHECK(ntohs(rdma_get_src_port(m.client.id.get())) == 5555);
}

TEST_CASE("a killed program no longer listens", "[model]") {
    meeting m;
    m.resolve();
    the_world().kill_program("fab0");
    meeting second;
    sockaddr_in to = address_of(device_address(), m.port());
    REQUIRE(rdma_resolve_addr(second.client.id.get(), nullptr, raw(to), 2000) == 0);
    expect(second.client.channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
    REQUIRE(rdma_resolve_route(second.client.id.get(), 2000) == 0);
    expect(second.client.channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
    second.client.make_queue_pair({});
    rdma_conn_param p = parameters_of({});
    REQUIRE(rdma_connect(second.client.id.get(), &p) == 0);
    CHECK(expect(second.client.channel.get(), RDMA_CM_EVENT_REJECTED).status == 8);
}

TEST_CASE("failures of ports and devices raise asynchronous events", "[model]") {
    connected c;
    pollfd readable{c.client.id->verbs->async_fd, POLLIN, 0};
    auto const next = [&] {
        REQUIRE(::poll(&readable, 1, 5000) == 1);
        ibv_async_event event{};
        REQUIRE(ibv_get_async_event(c.client.id->verbs, &event) == 0);
        ibv_ack_async_event(&event);
        return event.event_type;
    };
    the_world().port_down("fab0");
    CHECK(next() == IBV_EVENT_PORT_ERR);
    ibv_port_attr port{};
    REQUIRE(ibv_query_port(c.client.id->verbs, 1, &port) == 0);
    CHECK(port.state == IBV_PORT_DOWN);
    the_world().port_up("fab0");
    CHECK(next() == IBV_EVENT_PORT_ACTIVE);
    memory from{c.client, 8};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, 0x1000, 1);
    REQUIRE(c.client.post(wr) == 0);
    CHECK(c.client.await().status == IBV_WC_REM_ACCESS_ERR);
    CHECK(next() == IBV_EVENT_QP_ACCESS_ERR);
    the_world().remove_device("fab0");
    CHECK(next() == IBV_EVENT_DEVICE_FATAL);
    CHECK(expect(c.client.channel.get(), RDMA_CM_EVENT_DEVICE_REMOVAL).status == 0);
}

TEST_CASE("a failed completion has no valid opcode or byte_len", "[model]") {
    int truthful = 0;
    for (int i = 0; i < 8; ++i) {
        connected c;
        memory from{c.client, 8};
        ibv_sge segment = from.segment(0, 8);
        ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, 0x1000, 1);
        REQUIRE(c.client.post(wr) == 0);
        ibv_wc const wc = c.client.await();
        CHECK(wc.wr_id == 1);
        CHECK(wc.qp_num == c.client.qp()->qp_num);
        truthful += wc.opcode == IBV_WC_RDMA_WRITE && wc.byte_len == 8 ? 1 : 0;
    }
    CHECK(truthful == 0);
}

TEST_CASE("reads that come twice are answered twice, and nothing else is lost by it", "[model]") {
    settings one;
    one.initiator_depth = 1;
    one.responder_resources = 1;
    connected c{one, one};
    memory into{c.client, 64};
    memory from{c.server, 64, all_access};
    the_world().on_packet([](packet_info const& p) {
        return p.what == packet_info::kind::read_request
                   ? packet_fate{packet_fate::kind::duplicate, {}}
                   : packet_fate{};
    });
    ibv_sge segment = into.segment(0, 64);
    ibv_send_wr wr = remote(IBV_WR_RDMA_READ, &segment, 1, from.at(), from.mr->rkey);
    for (int i = 0; i < 200; ++i) {
        REQUIRE(c.client.post(wr) == 0);
        CHECK(c.client.await().status == IBV_WC_SUCCESS);
    }
    the_world().on_packet(nullptr);
}

TEST_CASE(
    "a read that is never answered runs out of tries, whatever else is acknowledged", "[model]"
) {
    connected c;
    memory ours{c.client, 64};
    memory theirs{c.server, 64, all_access};
    the_world().on_packet([](packet_info const& p) {
        return p.what == packet_info::kind::read_response ? packet_fate{packet_fate::kind::drop, {}}
                                                          : packet_fate{};
    });
    ibv_sge segment = ours.segment(0, 64);
    ibv_send_wr read = remote(IBV_WR_RDMA_READ, &segment, 1, theirs.at(), theirs.mr->rkey);
    ibv_send_wr write = remote(IBV_WR_RDMA_WRITE, &segment, 1, theirs.at(), theirs.mr->rkey);
    read.next = &write;
    ibv_qp_attr a = attributes_of(c.client.qp());
    restart(c.server.qp());
    a.timeout = 8;  // about 1 ms
    a.qp_state = IBV_QPS_RESET;
    REQUIRE(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE) == 0);
    a.qp_state = IBV_QPS_INIT;
    REQUIRE(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE) == 0);
    a.qp_state = IBV_QPS_RTR;
    REQUIRE(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE | IBV_QP_DEST_QPN) == 0);
    a.qp_state = IBV_QPS_RTS;
    REQUIRE(
        ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_MAX_QP_RD_ATOMIC) ==
        0
    );
    REQUIRE(c.client.post(read) == 0);
    CHECK(c.client.await().status == IBV_WC_RETRY_EXC_ERR);
    the_world().on_packet(nullptr);
}
