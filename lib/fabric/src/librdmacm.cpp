// librdmacm's functions. All of them return -1 or null with errno. Source: rdma_cm(7) and each
// function's manual page.
#include "endpoints.hpp"
#include "entry.hpp"

using namespace rcverbs::fabric::detail;

extern "C" {

rdma_event_channel* rdma_create_event_channel() {
    return returning_object<cm_channel>(
        "rdma_create_event_channel",
        [](network& n, auto&, cm_channel*& out) { return n.cm.create_channel(out); }
    );
}

void rdma_destroy_event_channel(rdma_event_channel* channel) {
    always("rdma_destroy_event_channel", [&](network& n, auto&) { n.cm.destroy_channel(channel); });
}

int rdma_create_id(
    rdma_event_channel* channel, rdma_cm_id** out, void* context, rdma_port_space space
) {
    return returning_minus_one("rdma_create_id", [&](network& n, auto&) {
        cm_id* made = nullptr;
        int const error = n.cm.create_id(channel, context, space, made);
        if (error == 0) *out = made;
        return error;
    });
}

int rdma_destroy_id(rdma_cm_id* id) {
    if (id->event != nullptr) rdma_ack_cm_event(std::exchange(id->event, nullptr));
    return returning_minus_one("rdma_destroy_id", [&](network& n, auto& held) {
        return n.cm.destroy_id(id, held);
    });
}

int rdma_bind_addr(rdma_cm_id* id, sockaddr* to) {
    return returning_minus_one("rdma_bind_addr", [&](network& n, auto&) {
        return n.cm.bind(id, to);
    });
}

int rdma_listen(rdma_cm_id* id, int backlog) {
    return returning_minus_one("rdma_listen", [&](network& n, auto&) {
        return n.cm.listen(id, backlog);
    });
}

int rdma_resolve_addr(rdma_cm_id* id, sockaddr* from, sockaddr* to, int timeout_ms) {
    int const result = returning_minus_one("rdma_resolve_addr", [&](network& n, auto&) {
        return n.cm.resolve_address(id, from, to, timeout_ms);
    });
    return result != 0 ? result : await_event(id);
}

int rdma_resolve_route(rdma_cm_id* id, int timeout_ms) {
    int const result = returning_minus_one("rdma_resolve_route", [&](network& n, auto&) {
        return n.cm.resolve_route(id, timeout_ms);
    });
    return result != 0 ? result : await_event(id);
}

int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes) {
    if (id->verbs == nullptr) {
        errno = EINVAL;
        return -1;
    }
    int error = create_missing_queues(id, *attributes);
    if (error == 0) {
        int const result = returning_minus_one("rdma_create_qp", [&](network& n, auto&) {
            return n.cm.create_queue_pair(id, pd, attributes);
        });
        if (result == 0) return 0;
        error = errno;
    }
    destroy_own_queues(id);
    errno = error;
    return -1;
}

int rdma_init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) {
    return returning_minus_one("rdma_init_qp_attr", [&](network& n, auto&) {
        return n.cm.init_qp_attr(id, *attributes, *mask);
    });
}

int rdma_establish(rdma_cm_id* id) {
    return returning_minus_one("rdma_establish", [&](network& n, auto&) {
        return n.cm.establish(id);
    });
}

void rdma_destroy_qp(rdma_cm_id* id) {
    always("rdma_destroy_qp", [&](network& n, auto& held) { n.destroy_qp(id->qp, held); });
    id->qp = nullptr;
    destroy_own_queues(id);
}

int rdma_connect(rdma_cm_id* id, rdma_conn_param* parameters) {
    int const result = returning_minus_one("rdma_connect", [&](network& n, auto&) {
        return n.cm.connect(id, parameters);
    });
    return result != 0 ? result : await_event(id);
}

int rdma_accept(rdma_cm_id* id, rdma_conn_param* parameters) {
    int const result = returning_minus_one("rdma_accept", [&](network& n, auto&) {
        return n.cm.accept(id, parameters);
    });
    return result != 0 ? result : await_event(id);
}

int rdma_reject(rdma_cm_id* id, void const* data, std::uint8_t size) {
    return returning_minus_one("rdma_reject", [&](network& n, auto&) {
        return n.cm.reject(id, data, size);
    });
}

int rdma_disconnect(rdma_cm_id* id) {
    int const result = returning_minus_one("rdma_disconnect", [&](network& n, auto&) {
        return n.cm.disconnect(id);
    });
    return result != 0 ? result : await_event(id);
}

int rdma_set_option(rdma_cm_id* id, int level, int name, void* value, std::size_t size) {
    return returning_minus_one("rdma_set_option", [&](network& n, auto&) {
        return n.cm.set_option(id, level, name, value, size);
    });
}

int rdma_migrate_id(rdma_cm_id* id, rdma_event_channel* to) {
    if (id->event != nullptr) rdma_ack_cm_event(std::exchange(id->event, nullptr));
    return returning_minus_one("rdma_migrate_id", [&](network& n, auto&) {
        return n.cm.migrate(id, to);
    });
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** out) {
    return taking("rdma_get_cm_event", static_cast<cm_channel*>(channel)->ready, [&](network& n) {
        return n.cm.take_event(channel, out);
    });
}

int rdma_ack_cm_event(rdma_cm_event* event) {
    always("rdma_ack_cm_event", [&](network& n, auto&) { n.cm.acknowledge(event); });
    return 0;
}

__be16 rdma_get_src_port(rdma_cm_id* id) {
    sockaddr const* const a = rdma_get_local_addr(id);
    return a->sa_family == AF_INET6 ? id->route.addr.src_sin6.sin6_port
                                    : id->route.addr.src_sin.sin_port;
}

__be16 rdma_get_dst_port(rdma_cm_id* id) {
    sockaddr const* const a = rdma_get_peer_addr(id);
    return a->sa_family == AF_INET6 ? id->route.addr.dst_sin6.sin6_port
                                    : id->route.addr.dst_sin.sin_port;
}

char const* rdma_event_str(rdma_cm_event_type event) {
    switch (event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: return "RDMA_CM_EVENT_ADDR_RESOLVED";
    case RDMA_CM_EVENT_ADDR_ERROR: return "RDMA_CM_EVENT_ADDR_ERROR";
    case RDMA_CM_EVENT_ROUTE_RESOLVED: return "RDMA_CM_EVENT_ROUTE_RESOLVED";
    case RDMA_CM_EVENT_ROUTE_ERROR: return "RDMA_CM_EVENT_ROUTE_ERROR";
    case RDMA_CM_EVENT_CONNECT_REQUEST: return "RDMA_CM_EVENT_CONNECT_REQUEST";
    case RDMA_CM_EVENT_CONNECT_RESPONSE: return "RDMA_CM_EVENT_CONNECT_RESPONSE";
    case RDMA_CM_EVENT_CONNECT_ERROR: return "RDMA_CM_EVENT_CONNECT_ERROR";
    case RDMA_CM_EVENT_UNREACHABLE: return "RDMA_CM_EVENT_UNREACHABLE";
    case RDMA_CM_EVENT_REJECTED: return "RDMA_CM_EVENT_REJECTED";
    case RDMA_CM_EVENT_ESTABLISHED: return "RDMA_CM_EVENT_ESTABLISHED";
    case RDMA_CM_EVENT_DISCONNECTED: return "RDMA_CM_EVENT_DISCONNECTED";
    case RDMA_CM_EVENT_DEVICE_REMOVAL: return "RDMA_CM_EVENT_DEVICE_REMOVAL";
    case RDMA_CM_EVENT_TIMEWAIT_EXIT: return "RDMA_CM_EVENT_TIMEWAIT_EXIT";
    default: return "UNKNOWN EVENT";
    }
}

ibv_context** rdma_get_devices(int* count) {
    int found = 0;
    ibv_context** const list =
        returning_list<ibv_context>("rdma_get_devices", &found, [](network& n, device& d) {
            // It does not look for those that were removed unless there is another one.
            n.cm.forget_removed_devices();
            return n.cm.borrow(d) == 0 ? &d.borrowed->verbs.context : nullptr;
        });
    if (count != nullptr) *count = found;
    if (list == nullptr || found > 0) return list;
    delete[] list;
    errno = ENODEV;
    return nullptr;
}

void rdma_free_devices(ibv_context** list) {
    always("rdma_free_devices", [&](network& n, auto&) { n.cm.give_back(list); });
    delete[] list;
}
}
