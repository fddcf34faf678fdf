// raw_echo — messages and their echoes in plain verbs, as one would write them by hand: what request
// channels and message channels are measured beside.
//
//     raw_echo server ADDRESS
//     raw_echo client ADDRESS PORT --size 64 --count 10000 --depth 16
//
// One completion queue, and sleep when it is empty; one send of 16 signaled; small messages inline. The
// server echoes from the receive's own memory, and posts the receive again when the echo has left. The
// client prints {"rate": ROUND TRIPS PER SECOND}. With --written, a message is a request of 16 bytes that says where its answer of
// SIZE bytes is to be: the server writes it there, with the request's number as immediate.
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "bench/optimised.hpp"

namespace {

constexpr std::uint32_t signaled_one_of = 16;
constexpr std::uint32_t inline_bytes = 220;  // as messages_bench has

struct options {
    std::string address;
    std::uint16_t port = 0;
    std::uint32_t size = 64;
    std::uint64_t count = 10000;
    std::uint32_t depth = 16;
    bool is_written = false;
};

// What a request with --written says; both sides have the same byte order.
struct place {
    std::uint64_t address;
    std::uint32_t key;
    std::uint32_t number;
};

void check(bool is_right, char const* what) {
    if (!is_right) throw std::system_error{errno, std::generic_category(), what};
}

rdma_cm_event expect(rdma_event_channel* from, rdma_cm_event_type wanted) {
    rdma_cm_event* e = nullptr;
    check(rdma_get_cm_event(from, &e) == 0, "rdma_get_cm_event");
    rdma_cm_event const copy = *e;
    rdma_ack_cm_event(e);
    if (copy.event != wanted) throw std::runtime_error{rdma_event_str(copy.event)};
    return copy;
}

// A queue pair, and memory for twice as many messages as are in flight.
struct endpoint {
    endpoint(rdma_cm_id* of, options const& o)
        : id{of},
          size{o.is_written ? std::uint32_t{sizeof(place)} : o.size},
          slots{2 * o.depth + signaled_one_of},
          bytes(std::size_t{2} * slots * size) {
        pd = ibv_alloc_pd(id->verbs);
        channel = ibv_create_comp_channel(id->verbs);
        check(pd != nullptr && channel != nullptr, "ibv_alloc_pd");
        cq = ibv_create_cq(id->verbs, static_cast<int>(2 * slots), nullptr, channel, 0);
        check(cq != nullptr, "ibv_create_cq");
        ibv_qp_init_attr a{};
        a.send_cq = a.recv_cq = cq;
        a.qp_type = IBV_QPT_RC;
        a.cap = {slots, slots, 1, 1, inline_bytes};
        check(rdma_create_qp(id, pd, &a) == 0, "rdma_create_qp");
        int const access = IBV_ACCESS_LOCAL_WRITE;
        mr = ibv_reg_mr(pd, bytes.data(), bytes.size(), access);
        check(mr != nullptr, "ibv_reg_mr");
        if (o.is_written) {
            answers.resize(std::size_t{o.depth} * o.size);
            int const written = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
            answer_mr = ibv_reg_mr(pd, answers.data(), answers.size(), written);
            check(answer_mr != nullptr, "ibv_reg_mr");
        }
        for (std::uint32_t i = 0; i < slots; ++i) receive(i);
        check(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
    }
    endpoint(endpoint const&) = delete;
    endpoint& operator=(endpoint const&) = delete;

    ibv_sge slice(std::uint32_t slot) {
        return {reinterpret_cast<std::uintptr_t>(&bytes[std::size_t{slot} * size]), size, mr->lkey};
    }
    void receive(std::uint32_t slot) {
        ibv_sge s = slice(slot);
        ibv_recv_wr wr{slot, nullptr, &s, 1};
        ibv_recv_wr* bad = nullptr;
        check(ibv_post_recv(id->qp, &wr, &bad) == 0, "ibv_post_recv");
    }
    void send(std::uint32_t slot) {
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_SEND;
        post(wr, slice(slot));
    }
    /// Says where the answer to request `number` is to be.
    void ask(std::uint32_t slot, std::uint32_t number, std::uint32_t answer_bytes) {
        std::byte* const into = &answers[std::size_t{number} * answer_bytes];
        place const p{reinterpret_cast<std::uintptr_t>(into), answer_mr->rkey, number};
        std::memcpy(&bytes[std::size_t{slot} * size], &p, sizeof p);
        send(slot);
    }
    /// The answer to the request in a receive.
    void write(std::uint32_t slot, std::uint32_t answer_bytes) {
        place p;
        std::memcpy(&p, &bytes[std::size_t{slot} * size], sizeof p);
        ibv_send_wr wr{};
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(p.number);
        wr.wr.rdma.remote_addr = p.address;
        wr.wr.rdma.rkey = p.key;
        std::byte* const from = &answers[std::size_t{p.number} * answer_bytes];
        post(wr, {reinterpret_cast<std::uintptr_t>(from), answer_bytes, answer_mr->lkey});
    }
    void post(ibv_send_wr& wr, ibv_sge s) {
        wr.wr_id = sent++;
        wr.sg_list = &s;
        wr.num_sge = 1;
        wr.send_flags = (sent % signaled_one_of == 0 ? unsigned{IBV_SEND_SIGNALED} : 0U) |
                        (s.length <= inline_bytes ? unsigned{IBV_SEND_INLINE} : 0U);
        ibv_send_wr* bad = nullptr;
        check(ibv_post_send(id->qp, &wr, &bad) == 0, "ibv_post_send");
    }
    /// Calls `on` for what has completed; sleeps if nothing has. False when the peer has left.
    template <class On>
    bool next(On on) {
        std::array<ibv_wc, 32> done;
        for (;;) {
            int const n = ibv_poll_cq(cq, static_cast<int>(done.size()), done.data());
            check(n >= 0, "ibv_poll_cq");
            for (ibv_wc const& one : std::span{done}.first(static_cast<std::size_t>(n))) {
                if (one.status == IBV_WC_WR_FLUSH_ERR) return false;
                if (one.status != IBV_WC_SUCCESS)
                    throw std::runtime_error{ibv_wc_status_str(one.status)};
                on(one);
            }
            if (n > 0) return true;
            ibv_cq* of = nullptr;
            void* context = nullptr;
            check(ibv_get_cq_event(channel, &of, &context) == 0, "ibv_get_cq_event");
            ibv_ack_cq_events(of, 1);
            check(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
        }
    }

    rdma_cm_id* id;
    std::uint32_t size;
    std::uint32_t slots;
    std::vector<std::byte> bytes;
    std::uint64_t sent = 0;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_mr* mr = nullptr;
    std::vector<std::byte> answers;
    ibv_mr* answer_mr = nullptr;
};

sockaddr_in socket_address(options const& o) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(o.port);
    if (inet_pton(AF_INET, o.address.c_str(), &a.sin_addr) != 1)
        throw std::runtime_error{"not an IPv4 address: " + o.address};
    return a;
}

void serve(options const& o) {
    rdma_event_channel* const events = rdma_create_event_channel();
    rdma_cm_id* door = nullptr;
    check(events != nullptr && rdma_create_id(events, &door, nullptr, RDMA_PS_TCP) == 0, "rdma");
    sockaddr_in here = socket_address(o);
    check(rdma_bind_addr(door, reinterpret_cast<sockaddr*>(&here)) == 0, "rdma_bind_addr");
    check(rdma_listen(door, 1) == 0, "rdma_listen");
    std::printf("listens on %u\n", unsigned{ntohs(rdma_get_src_port(door))});
    rdma_cm_id* const id = expect(events, RDMA_CM_EVENT_CONNECT_REQUEST).id;
    endpoint e{id, o};
    rdma_conn_param p{};
    p.rnr_retry_count = 7;
    check(rdma_accept(id, &p) == 0, "rdma_accept");
    expect(events, RDMA_CM_EVENT_ESTABLISHED);
    // The receives whose echoes are on their way, in order.
    std::vector<std::uint32_t> leaving;
    std::uint64_t echoed = 0;
    auto const on = [&](ibv_wc const& one) {
        if (one.opcode == IBV_WC_RECV) {
            auto const slot = static_cast<std::uint32_t>(one.wr_id);
            if (o.is_written) {
                e.write(slot, o.size);
                return e.receive(slot);
            }
            leaving.push_back(slot);
            return e.send(slot);
        }
        if (o.is_written) return;
        std::size_t const left = one.wr_id + 1 - echoed;
        echoed = one.wr_id + 1;
        for (std::size_t i = 0; i < left; ++i) e.receive(leaving[i]);
        leaving.erase(leaving.begin(), leaving.begin() + static_cast<std::ptrdiff_t>(left));
    };
    for (std::uint64_t i = 0; i < o.count;) {
        e.next([&](ibv_wc const& one) {
            i += one.opcode == IBV_WC_RECV;
            on(one);
        });
    }
    expect(events, RDMA_CM_EVENT_DISCONNECTED);
}

void ask(options const& o) {
    rdma_event_channel* const events = rdma_create_event_channel();
    rdma_cm_id* id = nullptr;
    check(events != nullptr && rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) == 0, "rdma");
    sockaddr_in there = socket_address(o);
    constexpr int patience_ms = 60000;
    check(
        rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&there), patience_ms) == 0,
        "rdma_resolve_addr"
    );
    expect(events, RDMA_CM_EVENT_ADDR_RESOLVED);
    check(rdma_resolve_route(id, patience_ms) == 0, "rdma_resolve_route");
    expect(events, RDMA_CM_EVENT_ROUTE_RESOLVED);
    endpoint e{id, o};
    rdma_conn_param p{};
    p.retry_count = p.rnr_retry_count = 7;
    check(rdma_connect(id, &p) == 0, "rdma_connect");
    expect(events, RDMA_CM_EVENT_ESTABLISHED);
    auto const began = std::chrono::steady_clock::now();
    // The memory behind the receives; a message's is free when its echo has arrived.
    std::uint64_t asked = 0;
    auto const send = [&](std::uint32_t number) {
        ++asked;
        if (o.is_written) e.ask(e.slots + number, number, o.size);
        else e.send(e.slots + number);
    };
    while (asked < std::min<std::uint64_t>(o.depth, o.count))
        send(static_cast<std::uint32_t>(asked));
    for (std::uint64_t answered = 0; answered < o.count;) {
        e.next([&](ibv_wc const& one) {
            bool const is_written = one.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
            if (!is_written && one.opcode != IBV_WC_RECV) return;
            ++answered;
            e.receive(static_cast<std::uint32_t>(one.wr_id));
            if (asked < o.count)
                send(
                    is_written ? ntohl(one.imm_data) : static_cast<std::uint32_t>(asked % o.depth)
                );
        });
    }
    std::chrono::duration<double> const took = std::chrono::steady_clock::now() - began;
    std::printf("{\"rate\": %.3f}\n", static_cast<double>(o.count) / took.count());
    rdma_disconnect(id);
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    options o;
    std::string role;
    CLI::App app{"Measures messages and their echoes in plain verbs."};
    app.add_option("role", role)->required()->check(CLI::IsMember({"server", "client"}));
    app.add_option("address", o.address, "of the server")->required();
    app.add_option("port", o.port, "of the server");
    app.add_option("--size", o.size, "bytes of a message")->check(CLI::Range(1, 1 << 20));
    app.add_option("--count", o.count, "messages")->check(CLI::PositiveNumber);
    app.add_option("--depth", o.depth, "messages in flight")->check(CLI::Range(1, 4096));
    app.add_flag("--written", o.is_written, "answers are written into memory of the request");
    CLI11_PARSE(app, argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        if (role == "server") serve(o);
        else ask(o);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
