// libibverbs' functions. Failure conventions: each function's manual page, RETURN VALUE.
#include "entry.hpp"

#include <algorithm>
#include <cstring>

// The header wraps some of the functions in macros.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace rcverbs::fabric::detail {

namespace {

void describe_port(device const& on, ibv_port_attr& out) noexcept {
    out = {};
    out.state = on.is_up && on.is_powered ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    out.max_mtu = IBV_MTU_4096;
    out.active_mtu = mtu_code(on.options.path_mtu_bytes);
    out.gid_tbl_len = static_cast<int>(on.addresses.size());
    out.max_msg_sz = on.options.message_bytes_max;
    out.pkey_tbl_len = 1;
    out.active_width = 2;
    out.active_speed = 32;
    out.phys_state = 5;
    out.link_layer = IBV_LINK_LAYER_ETHERNET;
}

int query_port(ibv_context* in, std::uint8_t port, ibv_port_attr* out, std::size_t size) {
    return returning_code("ibv_query_port", [&](network&, auto&) {
        if (port != 1) return EINVAL;
        ibv_port_attr all;
        describe_port(*context_of(in)->on, all);
        std::memcpy(out, &all, std::min(size, sizeof all));
        return 0;
    });
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* into) {
    auto& queue = static_cast<completion_queue&>(*cq);
    network* const n = network::current();
    if (n == nullptr) return -1;
    if (queue.count == 0 && n->others != nullptr && n->others->note_poll()) n->work_for_poll();
    if (queue.count == 0 && !queue.is_broken && !n->faults.expects_failures) {
        n->faults.empty_polls.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
        return 0;
    }
    inside const mark;
    auto const held = n->lock();
    if (n->faults.failure_of("ibv_poll_cq") != 0) return -1;
    return n->poll(cq, count, into);
}

int req_notify_cq(ibv_cq* cq, int solicited_only) {
    return returning_code("ibv_req_notify_cq", [&](network& n, auto&) {
        if (n.others != nullptr) n.others->note_arm();
        return n.arm(cq, solicited_only != 0);
    });
}

int post_send(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
    *bad = list;
    return returning_code("ibv_post_send", [&](network& n, auto&) {
        return n.post_send(qp, list, bad);
    });
}

int post_recv(ibv_qp* qp, ibv_recv_wr* list, ibv_recv_wr** bad) {
    *bad = list;
    return returning_code("ibv_post_recv", [&](network& n, auto&) {
        return n.post_receive(qp, list, bad);
    });
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
    *bad = list;
    return returning_code("ibv_post_srq_recv", [&](network& n, auto&) {
        return n.post_shared_receive(srq, list, bad);
    });
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
    return returning_object<window>("ibv_alloc_mw", [&](network& n, auto&, window*& out) {
        return n.alloc_mw(pd, type, out);
    });
}

int dealloc_mw(ibv_mw* mw) {
    return returning_code("ibv_dealloc_mw", [&](network& n, auto&) { return n.dealloc_mw(mw); });
}

}  // namespace

int query_device_ex(
    ibv_context* in,
    ibv_query_device_ex_input const*,
    ibv_device_attr_ex* out,
    std::size_t size_bytes
) {
    if (size_bytes < sizeof *out) return EINVAL;
    *out = {};
    out->phys_port_cnt_ex = 1;
    if (context_of(in)->on->options.has_on_demand_paging) {
        out->odp_caps.general_caps = IBV_ODP_SUPPORT;
        out->odp_caps.per_transport_caps.rc_odp_caps =
            IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
            IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    }
    return ibv_query_device(in, &out->orig_attr);
}

void fill_operations(context& c) noexcept {
    c.verbs.query_port = query_port;
    c.verbs.query_device_ex = query_device_ex;
    ibv_context_ops& ops = c.verbs.context.ops;
    ops.poll_cq = poll_cq;
    ops.req_notify_cq = req_notify_cq;
    ops.post_send = post_send;
    ops.post_recv = post_recv;
    ops.post_srq_recv = post_srq_recv;
    ops.alloc_mw = alloc_mw;
    ops.dealloc_mw = dealloc_mw;
}

}  // namespace rcverbs::fabric::detail

using namespace rcverbs::fabric::detail;

extern "C" {

// --- devices -------------------------------------------------------------------------------------

ibv_device** ibv_get_device_list(int* count) {
    if (network::current() == nullptr) {  // as on a machine without devices
        if (count != nullptr) *count = 0;
        return new ibv_device* [1] {};
    }
    return returning_list<ibv_device>("ibv_get_device_list", count, [](network&, device& d) {
        return &d;
    });
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }

char const* ibv_get_device_name(ibv_device* of) { return of->name; }

__be64 ibv_get_device_guid(ibv_device* of) { return htobe64(static_cast<device*>(of)->guid); }

ibv_context* ibv_open_device(ibv_device* which) {
    context* const made =
        returning_object<context>("ibv_open_device", [&](network& n, auto&, context*& out) {
            return n.open_device(static_cast<device&>(*which), out);
        });
    return made != nullptr ? &made->verbs.context : nullptr;
}

int ibv_close_device(ibv_context* in) {
    return returning_minus_one("ibv_close_device", [&](network& n, auto&) {
        return n.close_device(in);
    });
}

int ibv_query_device(ibv_context* in, ibv_device_attr* out) {
    return returning_code("ibv_query_device", [&](network&, auto&) {
        rcverbs::fabric::device_options const& o = context_of(in)->on->options;
        *out = {};
        std::snprintf(out->fw_ver, sizeof out->fw_ver, "fabric");
        // Source: RXE_VENDOR_ID in drivers/infiniband/sw/rxe/rxe_param.h.
        out->vendor_id = o.is_softroce ? 0xFFFFFF : o.is_soft_iwarp ? 0x626d74 : 0;
        out->node_guid = out->sys_image_guid = htobe64(context_of(in)->on->guid);
        out->max_mr_size = o.region_bytes_max;
        out->page_size_cap = 4096;
        out->max_qp = 1 << 20;
        out->max_qp_wr = static_cast<int>(o.queue_depth_max);
        if (o.has_memory_windows) out->device_cap_flags |= IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        if (o.has_send_with_invalidate) out->device_cap_flags |= IBV_DEVICE_MEM_MGT_EXTENSIONS;
        out->max_sge = static_cast<int>(o.segments_max);
        out->max_sge_rd = o.is_iwarp ? 1 : static_cast<int>(o.segments_max);
        out->max_cq = 1 << 20;
        out->max_cqe = static_cast<int>(o.completion_queue_depth_max);
        out->max_mr = static_cast<int>(o.regions_max);
        out->max_pd = 1 << 20;
        out->max_qp_rd_atom = static_cast<int>(o.read_depth_max);
        out->max_qp_init_rd_atom = static_cast<int>(o.read_depth_max);
        out->atomic_cap = o.has_atomics ? IBV_ATOMIC_HCA : IBV_ATOMIC_NONE;
        out->max_mw = 1 << 20;
        out->max_srq = 1 << 16;
        out->max_srq_wr = static_cast<int>(o.queue_depth_max);
        out->max_srq_sge = static_cast<int>(o.segments_max);
        out->max_pkeys = 1;
        out->phys_port_cnt = 1;
        return 0;
    });
}

int ibv_query_port(ibv_context* in, std::uint8_t port, _compat_ibv_port_attr* out) {
    // The old structure is a prefix of the present one.
    return query_port(in, port, reinterpret_cast<ibv_port_attr*>(out), sizeof(std::uint32_t) * 11);
}

int ibv_query_gid(ibv_context* in, std::uint8_t port, int index, ibv_gid* out) {
    return returning_minus_one("ibv_query_gid", [&](network&, auto&) {
        device const& on = *context_of(in)->on;
        if (port != 1 || index < 0 || static_cast<std::size_t>(index) >= on.addresses.size())
            return EINVAL;
        *out = on.has_lost_addresses ? ibv_gid{}
                                     : gid_of(on.addresses[static_cast<std::size_t>(index)]);
        return 0;
    });
}

int _ibv_query_gid_ex(
    ibv_context* in,
    std::uint32_t port,
    std::uint32_t index,
    ibv_gid_entry* out,
    std::uint32_t flags,
    std::size_t size
) {
    if (flags != 0 || size < sizeof *out) return EINVAL;
    ibv_gid_entry entry{};
    entry.gid_index = index;
    entry.port_num = port;
    entry.gid_type = IBV_GID_TYPE_ROCE_V2;
    if (port > 255 ||
        ibv_query_gid(in, static_cast<std::uint8_t>(port), static_cast<int>(index), &entry.gid) !=
            0)
        return ENODATA;
    *out = entry;
    return 0;
}

ssize_t _ibv_query_gid_table(
    ibv_context* in, ibv_gid_entry* out, std::size_t count, std::uint32_t flags, std::size_t size
) {
    std::size_t found = 0;
    for (ibv_gid_entry one;
         _ibv_query_gid_ex(in, 1, static_cast<std::uint32_t>(found), &one, flags, size) == 0;
         ++found) {
        if (found == count) return -EINVAL;
        out[found] = one;
    }
    return static_cast<ssize_t>(found);
}

int ibv_get_async_event(ibv_context* in, ibv_async_event* out) {
    return taking("ibv_get_async_event", context_of(in)->async, [&](network& n) {
        return n.take_async_event(in, out);
    });
}

void ibv_ack_async_event(ibv_async_event* event) {
    always("ibv_ack_async_event", [&](network& n, auto&) { n.acknowledge_async(event); });
}

int ibv_fork_init() { return 0; }
enum ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }

// --- protection domains and memory ---------------------------------------------------------------

ibv_pd* ibv_alloc_pd(ibv_context* in) {
    return returning_object<domain>("ibv_alloc_pd", [&](network& n, auto&, domain*& out) {
        return n.alloc_pd(in, out);
    });
}

int ibv_dealloc_pd(ibv_pd* pd) {
    return returning_code("ibv_dealloc_pd", [&](network& n, auto&) { return n.dealloc_pd(pd); });
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* at, std::size_t size, int access) {
    return returning_object<region>("ibv_reg_mr", [&](network& n, auto&, region*& out) {
        return n.reg_mr(pd, at, size, reinterpret_cast<std::uintptr_t>(at), access, out);
    });
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* at, std::size_t size, std::uint64_t iova, int access) {
    return returning_object<region>("ibv_reg_mr", [&](network& n, auto&, region*& out) {
        return n.reg_mr(pd, at, size, iova, access, out);
    });
}

ibv_mr* ibv_reg_mr_iova2(
    ibv_pd* pd, void* at, std::size_t size, std::uint64_t iova, unsigned access
) {
    return ibv_reg_mr_iova(pd, at, size, iova, static_cast<int>(access));
}

ibv_mr* ibv_reg_dmabuf_mr(
    ibv_pd* pd, std::uint64_t offset, std::size_t size, std::uint64_t iova, int fd, int access
) {
    return returning_object<region>("ibv_reg_dmabuf_mr", [&](network& n, auto&, region*& out) {
        return n.reg_dmabuf_mr(pd, offset, size, iova, fd, access, out);
    });
}

int ibv_dereg_mr(ibv_mr* mr) {
    return returning_code("ibv_dereg_mr", [&](network& n, auto&) { return n.dereg_mr(mr); });
}

// --- completions ---------------------------------------------------------------------------------

ibv_comp_channel* ibv_create_comp_channel(ibv_context* in) {
    return returning_object<completion_channel>(
        "ibv_create_comp_channel",
        [&](network& n, auto&, completion_channel*& out) { return n.create_channel(in, out); }
    );
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
    return returning_code("ibv_destroy_comp_channel", [&](network& n, auto&) {
        return n.destroy_channel(channel);
    });
}

ibv_cq* ibv_create_cq(
    ibv_context* in, int depth, void* context, ibv_comp_channel* channel, int vector
) {
    return returning_object<completion_queue>(
        "ibv_create_cq",
        [&](network& n, auto&, completion_queue*& out) {
            if (vector < 0 || vector >= in->num_comp_vectors) return EINVAL;
            return n.create_cq(in, depth, context, channel, out);
        }
    );
}

int ibv_destroy_cq(ibv_cq* cq) {
    return returning_code("ibv_destroy_cq", [&](network& n, auto& held) {
        return n.destroy_cq(cq, held);
    });
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** context) {
    return taking(
        "ibv_get_cq_event",
        static_cast<completion_channel*>(channel)->ready,
        [&](network& n) { return n.take_cq_event(channel, cq, context); }
    );
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
    always("ibv_ack_cq_events", [&](network& n, auto&) { n.acknowledge(cq, count); });
}

// --- queue pairs and shared receive queues -------------------------------------------------------

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
    return returning_object<queue_pair>("ibv_create_qp", [&](network& n, auto&, queue_pair*& out) {
        return n.create_qp(pd, attributes, out);
    });
}

int ibv_destroy_qp(ibv_qp* qp) {
    return returning_code("ibv_destroy_qp", [&](network& n, auto& held) {
        return n.destroy_qp(qp, held);
    });
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) {
    return returning_code("ibv_modify_qp", [&](network& n, auto&) {
        return n.modify_qp(qp, attributes, mask);
    });
}

int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
    return returning_code("ibv_query_ece", [&](network& n, auto&) { return n.query_ece(qp, ece); });
}

int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
    return returning_code("ibv_set_ece", [&](network& n, auto&) { return n.set_ece(qp, ece); });
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* initial) {
    return returning_code("ibv_query_qp", [&](network& n, auto&) {
        return n.query_qp(qp, attributes, initial);
    });
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes) {
    return returning_object<shared_receive_queue>(
        "ibv_create_srq",
        [&](network& n, auto&, shared_receive_queue*& out) {
            return n.create_srq(pd, attributes, out);
        }
    );
}

int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask) {
    return returning_code("ibv_modify_srq", [&](network& n, auto&) {
        return n.modify_srq(srq, attributes, mask);
    });
}

int ibv_query_srq(ibv_srq* srq, ibv_srq_attr* attributes) {
    return returning_code("ibv_query_srq", [&](network& n, auto&) {
        return n.query_srq(srq, attributes);
    });
}

int ibv_destroy_srq(ibv_srq* srq) {
    return returning_code("ibv_destroy_srq", [&](network& n, auto& held) {
        return n.destroy_srq(srq, held);
    });
}

// --- texts ---------------------------------------------------------------------------------------

int ibv_query_pkey(ibv_context*, std::uint8_t, int index, __be16* out) {
    if (index != 0) return -1;
    *out = 0xffff;
    return 0;
}

int ibv_get_pkey_index(ibv_context*, std::uint8_t, __be16 pkey) { return pkey == 0xffff ? 0 : -1; }

char const* ibv_node_type_str(ibv_node_type) { return "InfiniBand channel adapter"; }

char const* ibv_port_state_str(ibv_port_state state) {
    return state == IBV_PORT_ACTIVE ? "PORT_ACTIVE" : "PORT_DOWN";
}

char const* ibv_event_type_str(ibv_event_type event) {
    switch (event) {
    case IBV_EVENT_CQ_ERR: return "CQ error";
    case IBV_EVENT_QP_FATAL: return "local work queue catastrophic error";
    case IBV_EVENT_QP_REQ_ERR: return "invalid request local work queue error";
    case IBV_EVENT_QP_ACCESS_ERR: return "local access violation work queue error";
    case IBV_EVENT_QP_LAST_WQE_REACHED: return "last WQE reached";
    case IBV_EVENT_SRQ_LIMIT_REACHED: return "SRQ limit reached";
    case IBV_EVENT_PORT_ACTIVE: return "port active";
    case IBV_EVENT_PORT_ERR: return "port error";
    case IBV_EVENT_DEVICE_FATAL: return "local catastrophic error";
    default: return "unknown";
    }
}

char const* ibv_wc_status_str(ibv_wc_status status) {
    static char const* const texts[] = {
        "success",
        "local length error",
        "local QP operation error",
        "local EE context operation error",
        "local protection error",
        "Work Request Flushed Error",
        "memory management operation error",
        "bad response error",
        "local access error",
        "remote invalid request error",
        "remote access error",
        "remote operation error",
        "transport retry counter exceeded",
        "RNR retry counter exceeded",
        "local RDD violation error",
        "remote invalid RD request",
        "aborted error",
        "invalid EE context number",
        "invalid EE context state",
        "fatal error",
        "response timeout error",
        "general error",
        "TM error",
        "TM software rendezvous"};
    auto const index = static_cast<std::size_t>(status);
    return index < std::size(texts) ? texts[index] : "unknown";
}
}
