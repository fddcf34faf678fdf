// first.cpp by hand, with librdmacm and libibverbs alone. It has no deadlines, and the first failure ends the program. Compiled, so
// that the guide that shows it stays correct.
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The server's first message: its page's address, key and size. Both ends must use the same layout.
struct page_message {
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t size;
};

static void must(bool is_so, char const* what) {
    if (is_so) return;
    std::perror(what);
    std::exit(1);
}

static void expect(rdma_event_channel* events, rdma_cm_event_type wanted) {
    rdma_cm_event* event = nullptr;
    must(rdma_get_cm_event(events, &event) == 0, "rdma_get_cm_event");
    must(event->event == wanted, rdma_event_str(event->event));
    rdma_ack_cm_event(event);
}

static void wait_for_completion(ibv_cq* cq) {
    ibv_wc wc;
    int found = 0;
    while (found == 0) found = ibv_poll_cq(cq, 1, &wc);
    must(found == 1 && wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
}

int main(int argc, char** argv) {
    rdma_event_channel* const events = rdma_create_event_channel();
    rdma_cm_id* id = nullptr;
    must(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
    sockaddr_in server{};
    server.sin_family = AF_INET;
    server.sin_port = htons(7471);
    inet_pton(AF_INET, argc > 1 ? argv[1] : "192.168.0.1", &server.sin_addr);
    must(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&server), 2000) == 0, "rdma_resolve_addr");
    expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
    must(rdma_resolve_route(id, 2000) == 0, "rdma_resolve_route");
    expect(events, RDMA_CM_EVENT_ROUTE_RESOLVED);

    ibv_pd* const pd = ibv_alloc_pd(id->verbs);
    ibv_cq* const cq = ibv_create_cq(id->verbs, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr attributes{};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.cap = {8, 8, 1, 1, 0};
    must(rdma_create_qp(id, pd, &attributes) == 0, "rdma_create_qp");

    static char memory[4096];
    ibv_mr* const mine = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    static page_message page;
    ibv_mr* const told = ibv_reg_mr(pd, &page, sizeof page, IBV_ACCESS_LOCAL_WRITE);
    must(mine != nullptr && told != nullptr, "ibv_reg_mr");

    // Before the server can send.
    ibv_sge into{reinterpret_cast<std::uint64_t>(&page), sizeof page, told->lkey};
    ibv_recv_wr receive{};
    receive.sg_list = &into;
    receive.num_sge = 1;
    ibv_recv_wr* bad_receive = nullptr;
    must(ibv_post_recv(id->qp, &receive, &bad_receive) == 0, "ibv_post_recv");

    rdma_conn_param terms{};
    terms.initiator_depth = terms.responder_resources = 1;
    terms.rnr_retry_count = 7;
    must(rdma_connect(id, &terms) == 0, "rdma_connect");
    expect(events, RDMA_CM_EVENT_ESTABLISHED);
    wait_for_completion(cq);  // the message

    memory[0] = 42;
    ibv_sge from{reinterpret_cast<std::uint64_t>(memory), sizeof memory, mine->lkey};
    ibv_send_wr write{};
    write.opcode = IBV_WR_RDMA_WRITE;
    write.send_flags = IBV_SEND_SIGNALED;
    write.sg_list = &from;
    write.num_sge = 1;
    write.wr.rdma.remote_addr = page.address;
    write.wr.rdma.rkey = page.key;
    ibv_send_wr* bad_send = nullptr;
    must(ibv_post_send(id->qp, &write, &bad_send) == 0, "ibv_post_send");
    wait_for_completion(cq);

    rdma_disconnect(id);
    expect(events, RDMA_CM_EVENT_DISCONNECTED);
    rdma_destroy_qp(id);
    ibv_dereg_mr(told);
    ibv_dereg_mr(mine);
    ibv_destroy_cq(cq);
    ibv_dealloc_pd(pd);
    rdma_destroy_id(id);
    rdma_destroy_event_channel(events);
}
