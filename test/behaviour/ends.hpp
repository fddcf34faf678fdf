// ends.hpp — two connected ends in plain C calls, without rcverbs.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/device_address.hpp"

namespace test {

template <auto Destroy>
struct destroyed_by {
    template <class T>
    void operator()(T* p) const {
        Destroy(p);
    }
};
template <class T, auto Destroy>
using owned = std::unique_ptr<T, destroyed_by<Destroy>>;

using owned_channel = owned<rdma_event_channel, &rdma_destroy_event_channel>;
using owned_id = owned<rdma_cm_id, &rdma_destroy_id>;
using owned_pd = owned<ibv_pd, &ibv_dealloc_pd>;
using owned_cq = owned<ibv_cq, &ibv_destroy_cq>;
using owned_comp_channel = owned<ibv_comp_channel, &ibv_destroy_comp_channel>;
using owned_mr = owned<ibv_mr, &ibv_dereg_mr>;
using owned_srq = owned<ibv_srq, &ibv_destroy_srq>;

/// A connection manager event, copied and acknowledged.
struct received_event {
    int type = -1;
    int status = 0;
    rdma_cm_id* id = nullptr;
    std::vector<std::byte> private_data;
    rdma_conn_param parameters{};
};

/// Waits for an event; none after the timeout.
inline std::optional<received_event> wait_for_event(
    rdma_event_channel* channel, int patience_ms = 10000
) {
    pollfd p{channel->fd, POLLIN, 0};
    if (::poll(&p, 1, patience_ms) != 1) return std::nullopt;
    rdma_cm_event* e = nullptr;
    if (rdma_get_cm_event(channel, &e) != 0) return std::nullopt;
    received_event h{e->event, e->status, e->id, {}, e->param.conn};
    auto const* const data = static_cast<std::byte const*>(e->param.conn.private_data);
    if (data != nullptr) h.private_data.assign(data, data + e->param.conn.private_data_len);
    rdma_ack_cm_event(e);
    return h;
}

inline received_event expect(rdma_event_channel* channel, int type) {
    std::optional<received_event> const h = wait_for_event(channel);
    REQUIRE(h);
    INFO("event " << h->type << " with status " << h->status);
    REQUIRE(h->type == type);
    return *h;
}

inline sockaddr_in address_of(std::string const& text, std::uint16_t port = 0) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(port);
    if (::inet_pton(AF_INET, text.c_str(), &a.sin_addr) != 1) throw std::invalid_argument{text};
    return a;
}
inline sockaddr* raw(sockaddr_in& a) { return reinterpret_cast<sockaddr*>(&a); }

struct settings {
    std::uint32_t send_depth = 16;
    std::uint32_t receive_depth = 16;
    std::uint32_t completion_depth = 64;
    std::uint32_t segments = 4;
    std::uint32_t inline_bytes = 0;
    std::uint8_t initiator_depth = 4;
    std::uint8_t responder_resources = 4;
    std::uint8_t rnr_retry_count = 7;
    bool is_shared = false;  // receives come from a shared queue
};

/// One side: its objects in an order that allows destruction.
struct end {
    owned_channel channel;
    owned_id id;
    owned_pd pd;
    owned_comp_channel completions;
    owned_cq cq;
    owned_srq srq;

    end() : channel{rdma_create_event_channel()} { REQUIRE(channel); }
    end(end&&) = default;
    ~end() {
        if (id && id->qp != nullptr) rdma_destroy_qp(id.get());
        srq.reset();
        cq.reset();
        completions.reset();
    }

    void make_queue_pair(settings const& s) {
        pd.reset(ibv_alloc_pd(id->verbs));
        REQUIRE(pd);
        completions.reset(ibv_create_comp_channel(id->verbs));
        cq.reset(ibv_create_cq(
            id->verbs, static_cast<int>(s.completion_depth), nullptr, completions.get(), 0
        ));
        REQUIRE(cq);
        if (s.is_shared) {
            ibv_srq_init_attr shared{};
            shared.attr.max_wr = s.receive_depth;
            shared.attr.max_sge = s.segments;
            srq.reset(ibv_create_srq(pd.get(), &shared));
            REQUIRE(srq);
        }
        ibv_qp_init_attr a{};
        a.send_cq = a.recv_cq = cq.get();
        a.srq = srq.get();
        a.qp_type = IBV_QPT_RC;
        a.cap = {s.send_depth, s.receive_depth, s.segments, s.segments, s.inline_bytes};
        REQUIRE(rdma_create_qp(id.get(), pd.get(), &a) == 0);
    }

    ibv_qp* qp() const { return id->qp; }

    ibv_qp_state state() const {
        ibv_qp_attr a{};
        ibv_qp_init_attr i{};
        REQUIRE(ibv_query_qp(qp(), &a, IBV_QP_STATE, &i) == 0);
        return a.qp_state;
    }

    /// The next completion; none after the timeout.
    std::optional<ibv_wc> poll(std::chrono::milliseconds patience = std::chrono::seconds{10}) {
        auto const until = std::chrono::steady_clock::now() + patience;
        ibv_wc wc{};
        for (;;) {
            int const n = ibv_poll_cq(cq.get(), 1, &wc);
            if (n == 1) return wc;
            if (n < 0 || std::chrono::steady_clock::now() > until) return std::nullopt;
            std::this_thread::yield();
        }
    }

    ibv_wc await() {
        std::optional<ibv_wc> const wc = poll();
        REQUIRE(wc);
        return *wc;
    }

    int post(ibv_send_wr& wr, ibv_send_wr** bad = nullptr) {
        ibv_send_wr* unused = nullptr;
        return ibv_post_send(qp(), &wr, bad != nullptr ? bad : &unused);
    }

    int receive(std::uint64_t wr_id, ibv_sge* segments, int count) {
        ibv_recv_wr wr{};
        wr.wr_id = wr_id;
        wr.sg_list = segments;
        wr.num_sge = count;
        ibv_recv_wr* bad = nullptr;
        return srq ? ibv_post_srq_recv(srq.get(), &wr, &bad) : ibv_post_recv(qp(), &wr, &bad);
    }
};

/// Registered memory, zeroed, and aligned for atomics.
struct memory {
    std::vector<std::uint64_t> words;
    owned_mr mr;

    memory(end& e, std::size_t size, int access = IBV_ACCESS_LOCAL_WRITE)
        : words((size + 7) / 8),
          mr{ibv_reg_mr(e.pd.get(), words.data(), size, access)} {
        REQUIRE(mr);
    }

    std::byte* bytes() { return reinterpret_cast<std::byte*>(words.data()); }
    std::uint64_t at(std::size_t offset = 0) {
        return reinterpret_cast<std::uintptr_t>(words.data()) + offset;
    }
    ibv_sge segment(std::size_t offset, std::size_t size) {
        return {at(offset), static_cast<std::uint32_t>(size), mr->lkey};
    }
};

constexpr int all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                           IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

inline ibv_send_wr work(
    ibv_wr_opcode opcode, ibv_sge* segments, int count, std::uint64_t wr_id = 1
) {
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.sg_list = segments;
    wr.num_sge = count;
    wr.send_flags = IBV_SEND_SIGNALED;
    return wr;
}

inline ibv_send_wr remote(
    ibv_wr_opcode opcode, ibv_sge* segments, int count, std::uint64_t at, std::uint32_t rkey
) {
    ibv_send_wr wr = work(opcode, segments, count);
    wr.wr.rdma.remote_addr = at;
    wr.wr.rdma.rkey = rkey;
    return wr;
}

inline rdma_conn_param parameters_of(settings const& s) {
    rdma_conn_param p{};
    p.initiator_depth = s.initiator_depth;
    p.responder_resources = s.responder_resources;
    p.retry_count = 3;
    p.rnr_retry_count = s.rnr_retry_count;
    return p;
}

/// A listener, and a client whose route is resolved.
struct meeting {
    end listener;
    end client;

    meeting() {
        rdma_cm_id* made = nullptr;
        REQUIRE(rdma_create_id(listener.channel.get(), &made, nullptr, RDMA_PS_TCP) == 0);
        listener.id.reset(made);
        sockaddr_in any = address_of("0.0.0.0");
        REQUIRE(rdma_bind_addr(made, raw(any)) == 0);
        REQUIRE(rdma_listen(made, 8) == 0);
        REQUIRE(rdma_create_id(client.channel.get(), &made, nullptr, RDMA_PS_TCP) == 0);
        client.id.reset(made);
    }

    std::uint16_t port() { return ntohs(rdma_get_src_port(listener.id.get())); }

    void resolve() {
        sockaddr_in to = address_of(device_address(), port());
        REQUIRE(rdma_resolve_addr(client.id.get(), nullptr, raw(to), 2000) == 0);
        expect(client.channel.get(), RDMA_CM_EVENT_ADDR_RESOLVED);
        REQUIRE(rdma_resolve_route(client.id.get(), 2000) == 0);
        expect(client.channel.get(), RDMA_CM_EVENT_ROUTE_RESOLVED);
    }

    /// Resolves, requests a connection, and waits for the request on the listener's channel.
    received_event ask(settings const& s = {}) {
        resolve();
        client.make_queue_pair(s);
        rdma_conn_param p = parameters_of(s);
        REQUIRE(rdma_connect(client.id.get(), &p) == 0);
        return expect(listener.channel.get(), RDMA_CM_EVENT_CONNECT_REQUEST);
    }
};

/// Two connected ends. The server uses the listener's event channel.
struct connected {
    meeting m;
    end server;
    end& client = m.client;

    explicit connected(settings const& for_client = {}, settings const& for_server = {}) {
        server.id.reset(m.ask(for_client).id);
        server.make_queue_pair(for_server);
        rdma_conn_param p = parameters_of(for_server);
        REQUIRE(rdma_accept(server.id.get(), &p) == 0);
        expect(client.channel.get(), RDMA_CM_EVENT_ESTABLISHED);
        expect(m.listener.channel.get(), RDMA_CM_EVENT_ESTABLISHED);
    }
};

}  // namespace test
