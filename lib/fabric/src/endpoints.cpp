// librdmacm's endpoints, and ids without an event channel: functions that wait for their events themselves. They are made of the
// other functions. Source: rdma_create_id(3), rdma_create_ep(3), rdma_getaddrinfo(3), rdma_get_request(3).
#include "endpoints.hpp"

#include <netdb.h>

#include <cstdlib>
#include <cstring>

#include "entry.hpp"

using namespace rcverbs::fabric::detail;

namespace rcverbs::fabric::detail {

int await_event(rdma_cm_id* id) {
    if (static_cast<cm_id*>(id)->is_synchronous == 0) return 0;
    if (id->event != nullptr) rdma_ack_cm_event(std::exchange(id->event, nullptr));
    if (rdma_get_cm_event(id->channel, &id->event) != 0) return -1;
    int const status = id->event->status;
    if (status == 0) return 0;
    bool const is_refused = id->event->event == RDMA_CM_EVENT_REJECTED;
    errno = is_refused ? ECONNREFUSED : std::abs(status);
    return -1;
}

int create_missing_queues(rdma_cm_id* id, ibv_qp_init_attr& a) {
    auto const create = [id](ibv_comp_channel*& channel, ibv_cq*& cq, std::uint32_t depth) {
        channel = ibv_create_comp_channel(id->verbs);
        if (channel == nullptr) return errno;
        cq = ibv_create_cq(id->verbs, static_cast<int>(std::max(depth, 1U)), id, channel, 0);
        return cq == nullptr ? errno : 0;
    };
    int error = 0;
    if (a.send_cq == nullptr) {
        error = create(id->send_cq_channel, id->send_cq, a.cap.max_send_wr);
        a.send_cq = id->send_cq;
    }
    if (error == 0 && a.recv_cq == nullptr) {
        error = create(id->recv_cq_channel, id->recv_cq, a.cap.max_recv_wr);
        a.recv_cq = id->recv_cq;
    }
    return error;
}

void destroy_own_queues(rdma_cm_id* id) {
    if (id->send_cq != nullptr) ibv_destroy_cq(std::exchange(id->send_cq, nullptr));
    if (id->recv_cq != nullptr) ibv_destroy_cq(std::exchange(id->recv_cq, nullptr));
    if (id->send_cq_channel != nullptr)
        ibv_destroy_comp_channel(std::exchange(id->send_cq_channel, nullptr));
    if (id->recv_cq_channel != nullptr)
        ibv_destroy_comp_channel(std::exchange(id->recv_cq_channel, nullptr));
}

namespace {

struct endpoint_info : rdma_addrinfo {
    sockaddr_storage source{};
    sockaddr_storage target{};
};

int error_of(int code) noexcept {
    switch (code) {
    case EAI_MEMORY: return ENOMEM;
    case EAI_AGAIN: return EAGAIN;
    case EAI_SYSTEM: return errno;
    default: return EADDRNOTAVAIL;
    }
}

void set(
    sockaddr_storage& to, sockaddr*& field, socklen_t& size, sockaddr const* from, socklen_t n
) {
    if (from == nullptr || n == 0 || n > sizeof to) return;
    std::memcpy(&to, from, n);
    field = reinterpret_cast<sockaddr*>(&to);
    size = n;
}

}  // namespace

}  // namespace rcverbs::fabric::detail

extern "C" {

int rdma_getaddrinfo(
    char const* node, char const* service, rdma_addrinfo const* hints, rdma_addrinfo** out
) {
    rdma_addrinfo const none{};
    if (hints == nullptr) hints = &none;
    addrinfo wanted{};
    wanted.ai_family = hints->ai_family;
    wanted.ai_socktype = SOCK_STREAM;
    bool const is_passive = (hints->ai_flags & RAI_PASSIVE) != 0;
    if (is_passive) wanted.ai_flags |= AI_PASSIVE;
    if ((hints->ai_flags & RAI_NUMERICHOST) != 0) wanted.ai_flags |= AI_NUMERICHOST;
    auto made = std::make_unique<endpoint_info>();
    static_cast<rdma_addrinfo&>(*made) = {};
    made->ai_flags = hints->ai_flags;
    made->ai_qp_type = hints->ai_qp_type != 0 ? hints->ai_qp_type : IBV_QPT_RC;
    made->ai_port_space = hints->ai_port_space != 0 ? hints->ai_port_space : RDMA_PS_TCP;
    if (node != nullptr || service != nullptr) {
        addrinfo* found = nullptr;
        if (int const code = ::getaddrinfo(node, service, &wanted, &found)) {
            errno = error_of(code);
            return -1;
        }
        if (is_passive) {
            set(made->source, made->ai_src_addr, made->ai_src_len, found->ai_addr, found->ai_addrlen
            );
        } else {
            set(made->target, made->ai_dst_addr, made->ai_dst_len, found->ai_addr, found->ai_addrlen
            );
        }
        made->ai_family = found->ai_family;
        ::freeaddrinfo(found);
    }
    // Where no name says it, the hints do.
    if (made->ai_src_addr == nullptr)
        set(made->source, made->ai_src_addr, made->ai_src_len, hints->ai_src_addr, hints->ai_src_len
        );
    if (made->ai_dst_addr == nullptr)
        set(made->target, made->ai_dst_addr, made->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len
        );
    if (made->ai_family == 0) made->ai_family = hints->ai_family;
    *out = made.release();
    return 0;
}

void rdma_freeaddrinfo(rdma_addrinfo* info) { delete static_cast<endpoint_info*>(info); }

int rdma_create_ep(
    rdma_cm_id** out, rdma_addrinfo* info, ibv_pd* pd, ibv_qp_init_attr* attributes
) {
    rdma_cm_id* id = nullptr;
    if (rdma_create_id(nullptr, &id, nullptr, static_cast<rdma_port_space>(info->ai_port_space)) !=
        0)
        return -1;
    auto const step = [&] {
        if ((info->ai_flags & RAI_PASSIVE) != 0) {
            auto& own = static_cast<cm_id&>(*id);
            own.accepted_pd = pd;
            if (attributes != nullptr) own.accepted_attributes = *attributes;
            return rdma_bind_addr(id, info->ai_src_addr);
        }
        constexpr int timeout_ms = 2000;  // as librdmacm
        if (rdma_resolve_addr(id, info->ai_src_addr, info->ai_dst_addr, timeout_ms) != 0 ||
            rdma_resolve_route(id, timeout_ms) != 0) {
            return -1;
        }
        if (attributes == nullptr) return 0;
        attributes->qp_type = static_cast<ibv_qp_type>(info->ai_qp_type);
        return rdma_create_qp(id, pd, attributes);
    };
    if (step() != 0) {
        int const error = errno;
        rdma_destroy_ep(id);
        errno = error;
        return -1;
    }
    *out = id;
    return 0;
}

void rdma_destroy_ep(rdma_cm_id* id) {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    rdma_destroy_id(id);
}

int rdma_get_request(rdma_cm_id* listener, rdma_cm_id** out) {
    auto& own = static_cast<cm_id&>(*listener);
    if (own.is_synchronous == 0) {
        errno = EINVAL;
        return -1;
    }
    if (await_event(listener) != 0) return -1;
    rdma_cm_event* const event = listener->event;
    if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
        errno = EINVAL;
        return -1;
    }
    rdma_cm_id* const id = event->id;
    if (own.accepted_attributes) {
        ibv_qp_init_attr a = *own.accepted_attributes;
        a.qp_type = IBV_QPT_RC;
        if (rdma_create_qp(id, own.accepted_pd, &a) != 0) {
            int const error = errno;
            rdma_reject(id, nullptr, 0);
            rdma_destroy_id(id);
            errno = error;
            return -1;
        }
    }
    id->event = std::exchange(listener->event, nullptr);
    *out = id;
    return 0;
}

int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* a) {
    constexpr std::uint32_t known = IBV_QP_INIT_ATTR_PD;
    if ((a->comp_mask & ~known) != 0) {
        errno = EOPNOTSUPP;
        return -1;
    }
    // The plain attributes are a prefix of the extended ones.
    auto* const plain = reinterpret_cast<ibv_qp_init_attr*>(a);
    return rdma_create_qp(id, (a->comp_mask & IBV_QP_INIT_ATTR_PD) != 0 ? a->pd : nullptr, plain);
}
}
