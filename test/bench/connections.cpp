// connections — opens many connections and writes on all of them, in plain verbs as one would write them by
// hand, or with rcverbs: the same queues, one thread, one completion queue or poller, sleep when nothing is there.
//
//     connections_bench server raw|rcverbs ADDRESS
//     connections_bench client raw|rcverbs ADDRESS PORT --connections 256 --writes 65536 --size 4096
//
// The client prints {"opened_per_s", "resident_bytes" of a connection, "writes_per_s", "least" and "most" writes of a
// connection, "gap_slowest_over_median": the longest time between two completions of a connection}. Client and server
// must be of the same kind.
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <rcverbs/rcverbs.hpp>

#include "bench/optimised.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

struct options {
    std::string address;
    std::uint16_t port = 0;
    std::uint32_t connections = 256;
    std::uint32_t at_a_time = 16;
    std::uint32_t send_depth = 16;
    std::uint32_t receive_depth = 1;
    std::uint32_t size = 4096;
    std::uint64_t writes = 65536;
};

/// What a server sends with its acceptance: memory that all clients write to.
struct target {
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint32_t size = 0;
};

double resident_bytes() {
    std::ifstream in{"/proc/self/statm"};
    long all = 0;
    long resident = 0;
    in >> all >> resident;
    return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

/// Counts the client's work and prints it.
class account {
public:
    explicit account(options const& o) : options_{o}, each_(o.connections) {}

    void opened() {
        opened_s_ = seconds();
        resident_ = (resident_bytes() - resident_before_) / options_.connections;
        began_ = clock_type::now();
        for (each& e : each_) e.last = began_;
    }
    bool is_done() const { return done_ == options_.writes; }
    void completed(std::size_t connection) {
        if (is_done()) return;
        each& e = each_[connection];
        auto const now = clock_type::now();
        e.gap = std::max(e.gap, now - std::exchange(e.last, now));
        ++e.count;
        ++done_;
    }
    void print() {
        double const took = seconds();
        auto const by_count = [](each const& a, each const& b) { return a.count < b.count; };
        auto const [least, most] = std::minmax_element(each_.begin(), each_.end(), by_count);
        std::uint64_t const few = least->count;
        std::uint64_t const many = most->count;
        std::sort(each_.begin(), each_.end(), [](each const& a, each const& b) {
            return a.gap < b.gap;
        });
        auto const gap = [](each const& e) { return static_cast<double>(e.gap.count()); };
        double const middle = std::max(1.0, gap(each_[each_.size() / 2]));
        std::printf(
            "{\"opened_per_s\": %.1f, \"resident_bytes\": %.0f, \"writes_per_s\": %.0f, \"least\": "
            "%llu, "
            "\"most\": %llu, \"gap_slowest_over_median\": %.2f}\n",
            options_.connections / opened_s_,
            resident_,
            static_cast<double>(options_.writes) / took,
            static_cast<unsigned long long>(few),
            static_cast<unsigned long long>(many),
            gap(each_.back()) / middle
        );
    }

private:
    struct each {
        std::uint64_t count = 0;
        clock_type::time_point last;
        clock_type::duration gap{0};
    };

    double seconds() const {
        return std::chrono::duration<double>(clock_type::now() - began_).count();
    }

    options const& options_;
    std::vector<each> each_;
    std::uint64_t done_ = 0;
    double resident_before_ = resident_bytes();
    clock_type::time_point began_ = clock_type::now();
    double opened_s_ = 0;
    double resident_ = 0;
};

// --- plain verbs ---------------------------------------------------------------------------------

void check(bool is_right, char const* what) {
    if (!is_right) throw std::system_error{errno, std::generic_category(), what};
}

sockaddr_in socket_address(options const& o) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(o.port);
    if (inet_pton(AF_INET, o.address.c_str(), &a.sin_addr) != 1)
        throw std::runtime_error{"not an IPv4 address: " + o.address};
    return a;
}

/// What all connections of a side share: made with the first one.
struct raw_side {
    explicit raw_side(options const& o) : want{o}, bytes(o.size) {}

    void make_queue_pair(rdma_cm_id* id) {
        if (pd == nullptr) {
            pd = ibv_alloc_pd(id->verbs);
            channel = ibv_create_comp_channel(id->verbs);
            check(pd != nullptr && channel != nullptr, "ibv_alloc_pd");
            std::uint32_t const depth = want.connections * (want.send_depth + want.receive_depth);
            cq = ibv_create_cq(
                id->verbs, static_cast<int>(std::min(depth, 32767U)), nullptr, channel, 0
            );
            check(cq != nullptr, "ibv_create_cq");
            mr = ibv_reg_mr(
                pd, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
            );
            check(mr != nullptr, "ibv_reg_mr");
        }
        ibv_qp_init_attr a{};
        a.send_cq = a.recv_cq = cq;
        a.qp_type = IBV_QPT_RC;
        a.cap = {want.send_depth, want.receive_depth, 1, 1, 0};
        check(rdma_create_qp(id, pd, &a) == 0, "rdma_create_qp");
    }

    options const& want;
    std::vector<std::byte> bytes;
    ibv_pd* pd = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq* cq = nullptr;
    ibv_mr* mr = nullptr;
};

rdma_cm_event next(rdma_event_channel* from, target* theirs = nullptr) {
    rdma_cm_event* e = nullptr;
    check(rdma_get_cm_event(from, &e) == 0, "rdma_get_cm_event");
    rdma_cm_event const copy = *e;
    if (theirs != nullptr && e->event == RDMA_CM_EVENT_ESTABLISHED)
        std::memcpy(theirs, e->param.conn.private_data, sizeof *theirs);
    rdma_ack_cm_event(e);
    if (copy.status != 0) throw std::runtime_error{rdma_event_str(copy.event)};
    return copy;
}

void raw_server(options const& o) {
    rdma_event_channel* const events = rdma_create_event_channel();
    rdma_cm_id* door = nullptr;
    check(events != nullptr && rdma_create_id(events, &door, nullptr, RDMA_PS_TCP) == 0, "rdma");
    sockaddr_in here = socket_address(o);
    check(rdma_bind_addr(door, reinterpret_cast<sockaddr*>(&here)) == 0, "rdma_bind_addr");
    check(rdma_listen(door, 128) == 0, "rdma_listen");
    std::printf("listens on %u\n", unsigned{ntohs(rdma_get_src_port(door))});
    raw_side side{o};
    for (std::uint32_t left = o.connections; left > 0;) {
        rdma_cm_event const e = next(events);
        if (e.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            side.make_queue_pair(e.id);
            target const mine{
                reinterpret_cast<std::uintptr_t>(side.bytes.data()), side.mr->rkey, o.size};
            rdma_conn_param p{};
            p.private_data = &mine;
            p.private_data_len = sizeof mine;
            p.rnr_retry_count = 7;
            check(rdma_accept(e.id, &p) == 0, "rdma_accept");
        } else if (e.event == RDMA_CM_EVENT_DISCONNECTED) {
            rdma_disconnect(e.id);
            rdma_destroy_qp(e.id);
            rdma_destroy_id(e.id);
            --left;
        }
    }
}

void raw_client(options const& o) {
    constexpr int patience_ms = 600000;
    account counts{o};
    rdma_event_channel* const events = rdma_create_event_channel();
    check(events != nullptr, "rdma_create_event_channel");
    sockaddr_in there = socket_address(o);
    raw_side side{o};
    std::vector<rdma_cm_id*> ids;
    auto const start = [&] {
        rdma_cm_id* id = nullptr;
        check(rdma_create_id(events, &id, nullptr, RDMA_PS_TCP) == 0, "rdma_create_id");
        ids.push_back(id);
        auto* const to = reinterpret_cast<sockaddr*>(&there);
        check(rdma_resolve_addr(id, nullptr, to, patience_ms) == 0, "rdma_resolve_addr");
    };
    target to;
    std::uint32_t open = 0;
    while (ids.size() < std::min(o.at_a_time, o.connections)) start();
    while (open < o.connections) {
        rdma_cm_event const e = next(events, &to);
        if (e.event == RDMA_CM_EVENT_ADDR_RESOLVED) {
            check(rdma_resolve_route(e.id, patience_ms) == 0, "rdma_resolve_route");
        } else if (e.event == RDMA_CM_EVENT_ROUTE_RESOLVED) {
            side.make_queue_pair(e.id);
            rdma_conn_param p{};
            p.retry_count = p.rnr_retry_count = 7;
            check(rdma_connect(e.id, &p) == 0, "rdma_connect");
        } else if (e.event == RDMA_CM_EVENT_ESTABLISHED) {
            ++open;
            if (ids.size() < o.connections) start();
        }
    }
    counts.opened();
    auto const write = [&](std::size_t i) {
        ibv_sge s{reinterpret_cast<std::uintptr_t>(side.bytes.data()), o.size, side.mr->lkey};
        ibv_send_wr wr{};
        wr.wr_id = i;
        wr.sg_list = &s;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_RDMA_WRITE;
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma = {to.address, to.key};
        ibv_send_wr* bad = nullptr;
        check(ibv_post_send(ids[i]->qp, &wr, &bad) == 0, "ibv_post_send");
    };
    check(ibv_req_notify_cq(side.cq, 0) == 0, "ibv_req_notify_cq");
    for (std::size_t i = 0; i < ids.size(); ++i) write(i);
    std::array<ibv_wc, 32> done;
    while (!counts.is_done()) {
        int const n = ibv_poll_cq(side.cq, static_cast<int>(done.size()), done.data());
        check(n >= 0, "ibv_poll_cq");
        for (ibv_wc const& one : std::span{done}.first(static_cast<std::size_t>(n))) {
            if (one.status != IBV_WC_SUCCESS)
                throw std::runtime_error{ibv_wc_status_str(one.status)};
            counts.completed(one.wr_id);
            if (!counts.is_done()) write(one.wr_id);
        }
        if (n > 0) continue;
        ibv_cq* of = nullptr;
        void* context = nullptr;
        check(ibv_get_cq_event(side.channel, &of, &context) == 0, "ibv_get_cq_event");
        ibv_ack_cq_events(of, 1);
        check(ibv_req_notify_cq(side.cq, 0) == 0, "ibv_req_notify_cq");
    }
    counts.print();
    for (rdma_cm_id* const id : ids) rdma_disconnect(id);
}

// --- rcverbs -------------------------------------------------------------------------------------

rcverbs::connection_options queues(options const& o) {
    rcverbs::connection_options c;
    c.queue_pair.send_queue_depth = o.send_depth;
    c.queue_pair.receive_queue_depth = o.receive_depth;
    c.queue_pair.initiator_depth = c.queue_pair.responder_resources = 1;
    c.placement.domain = rcverbs::domain_sharing::shared;
    // Of a virtual machine's time, which leaps.
    c.timeouts.connect = c.timeouts.resolve_address = c.timeouts.resolve_route =
        std::chrono::hours{1};
    c.liveness.stall_timeout = {};
    return c;
}

void check(rcverbs::error_code ec) {
    if (ec) throw boost::system::system_error{ec};
}

void server(options const& o) {
    boost::asio::io_context io;
    auto const where = rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
    rcverbs::acceptor_options limits;
    limits.connections_max = limits.connections_per_address_max = o.connections;
    limits.backlog = 128;
    rcverbs::acceptor door{where, {o.address, 0}, limits};
    std::printf("listens on %u\n", unsigned{door.local_endpoint().port()});
    std::vector<std::unique_ptr<rcverbs::connection>> all;
    rcverbs::registered_buffer memory;
    std::uint32_t left = o.connections;
    std::function<void()> const take = [&] {
        door.async_get_request([&](rcverbs::error_code ec, rcverbs::connection_request request) {
            check(ec);
            all.push_back(
                std::make_unique<rcverbs::connection>(where, std::move(request), queues(o))
            );
            rcverbs::connection& c = *all.back();
            if (memory.size() == 0)
                memory = {c.domain(), o.size, rcverbs::access_flags::remote_write};
            target const mine{memory.remote().address(), memory.remote().key().value, o.size};
            c.async_accept(std::as_bytes(std::span{&mine, 1}), [](rcverbs::error_code failed) {
                check(failed);
            });
            c.async_wait_disconnected([&](rcverbs::error_code) {
                if (--left == 0) door.close();
            });
            if (all.size() < o.connections) take();
        });
    };
    take();
    io.run();
}

void client(options const& o) {
    account counts{o};
    boost::asio::io_context io;
    auto const where = rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
    std::vector<std::unique_ptr<rcverbs::connection>> all;
    rcverbs::registered_buffer memory;
    rcverbs::remote_region to;
    std::uint32_t open = 0;
    std::function<void(std::size_t)> const write = [&](std::size_t i) {
        all[i]->async_write(memory.slice(), to, [&, i](rcverbs::error_code ec, std::size_t) {
            if (counts.is_done()) return;
            check(ec);
            counts.completed(i);
            if (!counts.is_done()) return write(i);
            counts.print();
            for (auto const& c : all) c->async_disconnect([](rcverbs::error_code) {});
        });
    };
    std::function<void()> const start = [&] {
        all.push_back(std::make_unique<rcverbs::connection>(where, queues(o)));
        all.back()->async_connect({o.address, o.port}, [&](rcverbs::error_code ec) {
            check(ec);
            if (all.size() < o.connections) start();
            if (++open < o.connections) return;
            target theirs;
            std::vector<std::byte> const data = all[0]->private_data();
            std::memcpy(&theirs, data.data(), sizeof theirs);
            to = rcverbs::remote_region{
                theirs.address,
                std::min(theirs.size, o.size),
                rcverbs::remote_key{theirs.key},
                rcverbs::access_flags::remote_write};
            memory = {all[0]->domain(), o.size, rcverbs::access_flags::local_read};
            counts.opened();
            for (std::size_t i = 0; i < all.size(); ++i) write(i);
        });
    };
    for (std::uint32_t i = 0; i < std::min(o.at_a_time, o.connections); ++i) start();
    io.run();
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    options o;
    std::string role;
    std::string kind;
    CLI::App app{"Opens many connections and writes on all of them."};
    app.add_option("role", role)->required()->check(CLI::IsMember({"server", "client"}));
    app.add_option("kind", kind)->required()->check(CLI::IsMember({"raw", "rcverbs"}));
    app.add_option("address", o.address, "of the server")->required();
    app.add_option("port", o.port, "of the server");
    app.add_option("--connections", o.connections, "connections")->check(CLI::Range(1, 16384));
    app.add_option("--at-a-time", o.at_a_time, "opened at a time")->check(CLI::Range(1, 128));
    app.add_option("--send-depth", o.send_depth, "of a send queue")->check(CLI::Range(2, 16384));
    app.add_option("--receive-depth", o.receive_depth, "of a receive queue")
        ->check(CLI::Range(1, 16384));
    app.add_option("--size", o.size, "bytes of a write")->check(CLI::Range(1, 1 << 20));
    app.add_option("--writes", o.writes, "in all")->check(CLI::PositiveNumber);
    CLI11_PARSE(app, argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    try {
        bool const is_raw = kind == "raw";
        if (role == "server") is_raw ? raw_server(o) : server(o);
        else is_raw ? raw_client(o) : client(o);
    } catch (std::exception const& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
