// libfabric_echo — raw_echo's loop with libfabric: the verbs provider, connected endpoints (FI_EP_MSG).
//
//     libfabric_echo server ADDRESS
//     libfabric_echo client ADDRESS PORT --size 64 --count 10000 --depth 16
//
// fi_cq_sread() sleeps when the queue is empty. Small messages are injected; of the others, one of 16
// has a completion.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/echo_options.hpp"

namespace {

constexpr std::uint32_t signaled_one_of = 16;
constexpr std::size_t inject_bytes = 220;  // raw_echo's inline data

void check(ssize_t status, char const* what) {
    if (status < 0)
        throw std::runtime_error{std::string{what} + ": " + fi_strerror(static_cast<int>(-status))};
}

fi_info* describe(bench::echo_options const& o, std::uint64_t flags) {
    std::uint32_t const slots = 2 * o.depth + signaled_one_of;
    fi_info* hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->tx_attr->size = hints->rx_attr->size = slots;
    hints->tx_attr->inject_size = inject_bytes;
    hints->fabric_attr->prov_name = strdup("verbs");
    fi_info* found = nullptr;
    std::string const port = std::to_string(o.port);
    int const status =
        fi_getinfo(FI_VERSION(1, 17), o.address.c_str(), port.c_str(), flags, hints, &found);
    fi_freeinfo(hints);
    check(status, "fi_getinfo");
    return found;
}

struct event_queue {
    explicit event_queue(fi_info* i) {
        check(fi_fabric(i->fabric_attr, &fabric, nullptr), "fi_fabric");
        fi_eq_attr a{};
        a.wait_obj = FI_WAIT_UNSPEC;
        check(fi_eq_open(fabric, &a, &events, nullptr), "fi_eq_open");
    }
    fi_eq_cm_entry expect(std::uint32_t wanted) const {
        fi_eq_cm_entry e{};
        std::uint32_t type = 0;
        ssize_t const n = fi_eq_sread(events, &type, &e, sizeof e, -1, 0);
        check(n, "fi_eq_sread");
        if (type != wanted) throw std::runtime_error{"unexpected event " + std::to_string(type)};
        return e;
    }

    fid_fabric* fabric = nullptr;
    fid_eq* events = nullptr;
};

// An endpoint, and memory for twice as many messages as are in flight.
struct endpoint {
    endpoint(event_queue const& q, fi_info* info, bench::echo_options const& o)
        : size{o.size},
          slots{2 * o.depth + signaled_one_of},
          bytes(std::size_t{2} * slots * size),
          contexts(2 * slots),
          is_injected{size <= std::min(inject_bytes, info->tx_attr->inject_size)} {
        check(fi_domain(q.fabric, info, &domain, nullptr), "fi_domain");
        fi_cq_attr a{};
        a.size = 2 * slots;
        a.format = FI_CQ_FORMAT_MSG;
        a.wait_obj = FI_WAIT_FD;
        check(fi_cq_open(domain, &a, &cq, nullptr), "fi_cq_open");
        check(fi_endpoint(domain, info, &ep, nullptr), "fi_endpoint");
        check(fi_ep_bind(ep, &q.events->fid, 0), "fi_ep_bind");
        check(
            fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), "fi_ep_bind"
        );
        check(fi_enable(ep), "fi_enable");
        std::uint64_t const access = FI_SEND | FI_RECV;
        check(
            fi_mr_reg(domain, bytes.data(), bytes.size(), access, 0, 1, 0, &mr, nullptr),
            "fi_mr_reg"
        );
        for (std::uint32_t i = 0; i < slots; ++i) receive(i);
    }
    endpoint(endpoint const&) = delete;
    endpoint& operator=(endpoint const&) = delete;

    std::byte* at(std::uint32_t slot) { return &bytes[std::size_t{slot} * size]; }
    void receive(std::uint32_t slot) {
        // Unlike fi_recv(), it asks for a completion, which selective completions need.
        iovec v{at(slot), size};
        void* key = fi_mr_desc(mr);
        fi_msg m{&v, &key, 1, FI_ADDR_UNSPEC, &contexts[slot], 0};
        check(fi_recvmsg(ep, &m, FI_COMPLETION), "fi_recvmsg");
    }
    /// Sends; the memory is free when this has returned if the message is injected.
    void send(std::uint32_t slot) {
        ++sent;
        if (is_injected) return check(fi_inject(ep, at(slot), size, FI_ADDR_UNSPEC), "fi_inject");
        iovec v{at(slot), size};
        void* key = fi_mr_desc(mr);
        fi_msg m{&v, &key, 1, FI_ADDR_UNSPEC, &contexts[slot], 0};
        std::uint64_t const flags = sent % signaled_one_of == 0 ? std::uint64_t{FI_COMPLETION} : 0;
        check(fi_sendmsg(ep, &m, flags), "fi_sendmsg");
    }
    /// Calls `on` with the flags and the slot of what has completed; sleeps if nothing has. False when the
    /// peer has left.
    template <class On>
    bool next(On on) {
        std::array<fi_cq_msg_entry, 32> done;
        ssize_t const n = fi_cq_sread(cq, done.data(), done.size(), nullptr, -1);
        if (n == -FI_EAGAIN) return true;
        if (n == -FI_EAVAIL) return false;
        check(n, "fi_cq_sread");
        for (fi_cq_msg_entry const& one : std::span{done}.first(static_cast<std::size_t>(n))) {
            auto const* c = static_cast<fi_context*>(one.op_context);
            on(one.flags, static_cast<std::uint32_t>(c - contexts.data()));
        }
        return true;
    }

    std::uint32_t size;
    std::uint32_t slots;
    std::vector<std::byte> bytes;
    std::vector<fi_context> contexts;
    bool is_injected;
    std::uint64_t sent = 0;
    fid_domain* domain = nullptr;
    fid_cq* cq = nullptr;
    fid_ep* ep = nullptr;
    fid_mr* mr = nullptr;
};

void serve(bench::echo_options const& o) {
    fi_info* const here = describe(o, FI_SOURCE);
    event_queue const q{here};
    fid_pep* door = nullptr;
    check(fi_passive_ep(q.fabric, here, &door, nullptr), "fi_passive_ep");
    check(fi_pep_bind(door, &q.events->fid, 0), "fi_pep_bind");
    check(fi_listen(door), "fi_listen");
    sockaddr_in name{};
    std::size_t bytes = sizeof name;
    check(fi_getname(&door->fid, &name, &bytes), "fi_getname");
    std::printf("listens on %u\n", unsigned{ntohs(name.sin_port)});
    fi_info* const asked = q.expect(FI_CONNREQ).info;
    endpoint e{q, asked, o};
    check(fi_accept(e.ep, nullptr, 0), "fi_accept");
    q.expect(FI_CONNECTED);
    // The receives whose echoes are on their way, in order.
    std::vector<std::uint32_t> leaving;
    for (std::uint64_t i = 0; i < o.count;) {
        bool const is_there = e.next([&](std::uint64_t flags, std::uint32_t slot) {
            if ((flags & FI_RECV) != 0) {
                ++i;
                e.send(slot);
                if (e.is_injected) e.receive(slot);
                else leaving.push_back(slot);
                return;
            }
            auto const last = std::ranges::find(leaving, slot);
            for (auto it = leaving.begin(); it != last + 1; ++it) e.receive(*it);
            leaving.erase(leaving.begin(), last + 1);
        });
        if (!is_there) throw std::runtime_error{"the peer has left"};
    }
    q.expect(FI_SHUTDOWN);
}

void ask(bench::echo_options const& o) {
    fi_info* const there = describe(o, 0);
    event_queue const q{there};
    endpoint e{q, there, o};
    check(fi_connect(e.ep, there->dest_addr, nullptr, 0), "fi_connect");
    q.expect(FI_CONNECTED);
    auto const began = std::chrono::steady_clock::now();
    // The memory behind the receives; a message's is free when its echo has arrived.
    std::uint64_t asked = 0;
    auto const send = [&] { e.send(static_cast<std::uint32_t>(e.slots + asked++ % o.depth)); };
    while (asked < std::min<std::uint64_t>(o.depth, o.count)) send();
    for (std::uint64_t answered = 0; answered < o.count;) {
        bool const is_there = e.next([&](std::uint64_t flags, std::uint32_t slot) {
            if ((flags & FI_RECV) == 0) return;
            ++answered;
            e.receive(slot);
            if (asked < o.count) send();
        });
        if (!is_there) throw std::runtime_error{"the peer has left"};
    }
    bench::print_rate(o, began);
    fi_shutdown(e.ep, 0);
}

}  // namespace

int main(int argc, char** argv) {
    return bench::run_echo(
        argc, argv, "Measures messages and their echoes with libfabric.", serve, ask
    );
}
