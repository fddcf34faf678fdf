// Device contexts, queue pairs, shared receive queues: creating, modifying and posting. The
// requester (requester.cpp) and the responder (responder.cpp) process the posted work requests.
#include "network.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rcverbs::fabric::detail {

namespace {

completion_queue& cq_of(ibv_cq* raw) noexcept { return static_cast<completion_queue&>(*raw); }

bool is_legal(ibv_qp_state from, ibv_qp_state to) noexcept {
    if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return true;
    if (to == IBV_QPS_INIT) return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
    if (to == IBV_QPS_RTR) return from == IBV_QPS_INIT;
    return to == IBV_QPS_RTS && (from == IBV_QPS_RTR || from == IBV_QPS_RTS);
}

std::uint64_t total(std::vector<ibv_sge> const& segments) noexcept {
    std::uint64_t sum = 0;
    for (ibv_sge const& s : segments) sum += s.length;
    return sum;
}

receive_work make_receive(ibv_recv_wr const& wr, std::uint64_t index) {
    receive_work work;
    work.id = wr.wr_id;
    work.segments.assign(wr.sg_list, wr.sg_list + wr.num_sge);
    work.index = index;
    return work;
}

bool is_known(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_LOCAL_INV:
    case IBV_WR_BIND_MW: return true;
    default: return false;
    }
}

// Of the fabric's devices.
constexpr std::uint32_t ece_vendor = 0x77;

bool may_be_inline(ibv_wr_opcode opcode) noexcept {
    return opcode != IBV_WR_RDMA_READ && opcode != IBV_WR_ATOMIC_CMP_AND_SWP &&
           opcode != IBV_WR_ATOMIC_FETCH_AND_ADD;
}

}  // namespace

// --- devices -------------------------------------------------------------------------------------

int network::open_device(device& on, context*& out) {
    if (on.is_removed) return ENODEV;
    auto made = std::make_unique<context>();
    made->on = &on;
    made->verbs.sz = sizeof made->verbs;
    ibv_context& c = made->verbs.context;
    c.device = &on;
    c.async_fd = made->async.get();
    c.cmd_fd = -1;
    c.num_comp_vectors = on.options.completion_vectors;
    c.abi_compat = __VERBS_ABI_IS_EXTENDED;
    fill_operations(*made);
    made->number = next_serial();
    out = made.get();
    contexts_.emplace(out->number, std::move(made));
    return 0;
}

int network::close_device(ibv_context* raw) {
    contexts_.erase(context_of(raw)->number);
    return 0;
}

// --- queue pairs ---------------------------------------------------------------------------------

int network::create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes, queue_pair*& out) {
    if (!domains_.contains(pd)) return EINVAL;
    if (attributes->qp_type != IBV_QPT_RC) return EOPNOTSUPP;
    device_options const& limits = context_of(pd->context)->on->options;
    ibv_qp_cap const& cap = attributes->cap;
    bool const fits =
        cap.max_send_wr <= limits.queue_depth_max && cap.max_recv_wr <= limits.queue_depth_max &&
        cap.max_send_sge <= limits.segments_max && cap.max_recv_sge <= limits.segments_max &&
        cap.max_inline_data <= limits.inline_bytes_max;
    if (!fits || attributes->send_cq == nullptr || attributes->recv_cq == nullptr) return EINVAL;
    auto made = std::make_unique<queue_pair>();
    queue_pair& qp = *made;
    qp.context = pd->context;
    qp.qp_context = attributes->qp_context;
    qp.pd = pd;
    qp.send_cq = attributes->send_cq;
    qp.recv_cq = attributes->recv_cq;
    qp.srq = attributes->srq;
    if (faults.destroy.reuses_numbers && !free_numbers_.empty()) {
        qp.qp_num = free_numbers_.back();
        free_numbers_.pop_back();
    } else {
        qp.qp_num = next_qp_++;
    }
    qp.handle = qp.qp_num;
    qp.state = IBV_QPS_RESET;
    qp.qp_type = IBV_QPT_RC;
    qp.cap = cap;  // exact: a device may grant more, a program must not rely on it
    qp.signals_all = attributes->sq_sig_all != 0;
    qp.net = this;
    qp.serial = next_serial();
    qp.identity = qp.serial;
    qp.on = context_of(pd->context)->on;
    qp.mtu = qp.on->options.path_mtu_bytes;
    qp.ece_options = qp.on->options.ece_options;
    ++cq_of(qp.send_cq).users;
    ++cq_of(qp.recv_cq).users;
    ++static_cast<domain*>(pd)->users;
    if (qp.srq != nullptr) ++qp.shared()->users;
    out = made.get();
    numbers_[qp.qp_num] = out;
    pairs_.emplace(out, std::move(made));
    return 0;
}

int network::destroy_qp(ibv_qp* raw, guard& held) {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end()) return EINVAL;
    queue_pair& qp = *found->second;
    drop_async(qp.context, &qp);
    numbers_.erase(qp.qp_num);
    wait_acknowledged(held, "ibv_destroy_qp", [&qp] {
        return qp.async_given == qp.async_acknowledged;
    });
    qp.forget_work();
    free_numbers_.push_back(qp.qp_num);
    for (ibv_cq* const each : {qp.send_cq, qp.recv_cq}) {
        completion_queue& cq = cq_of(each);
        auto const is_of = [&qp](completion const& c) { return c.owner == qp.identity; };
        // No completion arrives after the destruction, so delayed ones arrive now.
        if (std::ranges::any_of(cq.delayed, is_of)) {
            for (completion& c : std::exchange(cq.delayed, {})) enqueue(cq, std::move(c));
            cq.delayed_until = {};
        }
        if (!faults.destroy.removes_completions) continue;
        std::erase_if(cq.entries, is_of);
        cq.count = cq.entries.size();
    }
    --cq_of(qp.send_cq).users;
    --cq_of(qp.recv_cq).users;
    --static_cast<domain*>(qp.pd)->users;
    if (qp.srq != nullptr) --qp.shared()->users;
    pairs_.erase(raw);
    return 0;
}

queue_pair* network::find_qp(std::uint32_t number) {
    auto const found = numbers_.find(number);
    return found == numbers_.end() ? nullptr : found->second;
}

void network::deliver(packet const& p) {
    if (queue_pair* const qp = find_qp(p.target)) qp->arrive(p);
}

void network::acknowledge_later(queue_pair const& qp) { acknowledging_.push_back(qp.qp_num); }

void network::flush_to_others() {
    for (std::uint32_t const number : acknowledging_) {
        if (queue_pair* const qp = find_qp(number)) qp->send_due_acknowledgement();
    }
    acknowledging_.clear();
    others->flush();
}

void network::on_room() {
    for (auto const& [number, qp] : numbers_) {
        qp->send_answers();
        qp->transmit();
    }
}

int network::modify_qp(ibv_qp* raw, ibv_qp_attr const* a, int mask) {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end()) return EINVAL;
    queue_pair& qp = *found->second;
    if (faults.modify_to_break > 0 && --faults.modify_to_break == 0) qp.move_to_error();
    ibv_qp_state const from = qp.state;
    ibv_qp_state const to = (mask & IBV_QP_STATE) != 0 ? a->qp_state : from;
    if (!is_legal(from, to)) return EINVAL;
    if (from == IBV_QPS_ERR && (mask & ~(IBV_QP_STATE | IBV_QP_CUR_STATE)) != 0) return EINVAL;
    // In RTS, only few attributes may change. Source: ibv_modify_qp(3), table for RC.
    constexpr int changeable = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS |
                               IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
    if (from == IBV_QPS_RTS && to == IBV_QPS_RTS && (mask & ~changeable) != 0) return EINVAL;
    if (to == IBV_QPS_RTR && (mask & IBV_QP_DEST_QPN) == 0) return EINVAL;
    if (to == IBV_QPS_ERR) {
        qp.send_last();
        qp.move_to_error();
        return 0;
    }
    if (to == IBV_QPS_RESET) {
        qp.forget_work();
    }
    if ((mask & IBV_QP_ACCESS_FLAGS) != 0) qp.access = static_cast<int>(a->qp_access_flags);
    if ((mask & IBV_QP_DEST_QPN) != 0) qp.remote_qp = a->dest_qp_num;
    if ((mask & IBV_QP_AV) != 0) {
        // Ethernet has no other addresses. In one process, programs may leave them out.
        if (others != nullptr && a->ah_attr.is_global == 0) return EINVAL;
        qp.gid_index = a->ah_attr.grh.sgid_index;
        qp.traffic_class = a->ah_attr.grh.traffic_class;
        qp.flow_label = a->ah_attr.grh.flow_label;
        qp.hop_limit = a->ah_attr.grh.hop_limit;
        qp.service_level = a->ah_attr.sl;
        qp.remote_gid = a->ah_attr.grh.dgid;
    }
    if ((mask & IBV_QP_PATH_MTU) != 0) qp.mtu = 128U << a->path_mtu;  // IBV_MTU_256 is 1
    if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) != 0) qp.resources = a->max_dest_rd_atomic;
    if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) != 0) qp.read_depth = a->max_rd_atomic;
    if ((mask & IBV_QP_MIN_RNR_TIMER) != 0) qp.rnr_timer_code = a->min_rnr_timer;
    if ((mask & IBV_QP_TIMEOUT) != 0) qp.timeout_code = a->timeout;
    if ((mask & IBV_QP_RETRY_CNT) != 0) qp.retry_count = qp.retries_left = a->retry_cnt;
    if ((mask & IBV_QP_RNR_RETRY) != 0) qp.rnr_retry_count = qp.rnr_retries_left = a->rnr_retry;
    if (to == IBV_QPS_RTR && from != IBV_QPS_RTR) qp.expected = 0;
    if (to == IBV_QPS_RTS && from == IBV_QPS_RTR)
        qp.next_number = qp.high_number = qp.acknowledged = 0;
    qp.state = to;
    return 0;
}

void queue_pair::forget_work() {
    send_last();
    if (receiving && srq != nullptr) --shared()->in_use;
    receiving.reset();
    sends.clear();
    receives.clear();
    sends_freed = sends_posted;
    receives_freed = receives_posted;
    position = 0;
    offset = 0;
    received_bytes = 0;
    rnr_until = nanoseconds{0};
    recovering_below = 0;
    has_timer = false;
    has_complained = false;
    atomic_answers.clear();
    answers_under_way = 0;
    answers.clear();
    due_acknowledgement.reset();
    flush_is_due = false;
    has_said_last = false;
    serial = net->next_serial();
}

int network::query_qp(ibv_qp* raw, ibv_qp_attr* a, ibv_qp_init_attr* initial) {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end()) return EINVAL;
    queue_pair const& qp = *found->second;
    *a = {};
    a->qp_state = a->cur_qp_state = qp.state;
    a->path_mtu = mtu_code(qp.mtu);
    a->dest_qp_num = qp.remote_qp;
    a->qp_access_flags = static_cast<unsigned>(qp.access);
    a->cap = qp.cap;
    a->max_rd_atomic = qp.read_depth;
    a->max_dest_rd_atomic = qp.resources;
    if (qp.on->options.is_soft_iwarp) std::swap(a->max_rd_atomic, a->max_dest_rd_atomic);
    a->min_rnr_timer = qp.rnr_timer_code;
    a->timeout = qp.timeout_code;
    a->retry_cnt = qp.retry_count;
    a->rnr_retry = qp.rnr_retry_count;
    a->port_num = 1;
    a->ah_attr.is_global = qp.remote_qp != 0 ? 1 : 0;
    a->ah_attr.port_num = 1;
    a->ah_attr.grh.sgid_index = qp.gid_index;
    a->ah_attr.grh.traffic_class = qp.traffic_class;
    a->ah_attr.grh.flow_label = qp.flow_label;
    a->ah_attr.grh.hop_limit = qp.hop_limit;
    a->ah_attr.sl = qp.service_level;
    a->ah_attr.grh.dgid = qp.remote_gid;
    *initial = {};
    initial->qp_context = qp.qp_context;
    initial->send_cq = qp.send_cq;
    initial->recv_cq = qp.recv_cq;
    initial->srq = qp.srq;
    initial->cap = qp.cap;
    initial->qp_type = qp.qp_type;
    initial->sq_sig_all = qp.signals_all ? 1 : 0;
    return 0;
}

int network::query_ece(ibv_qp* raw, ibv_ece* out) const {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end()) return EINVAL;
    queue_pair const& qp = *found->second;
    if (qp.on->options.ece_options == 0) return EOPNOTSUPP;
    *out = {ece_vendor, qp.ece_options, 0};
    return 0;
}

// A device has no other ones than its own. Source: ibv_set_ece(3).
int network::set_ece(ibv_qp* raw, ibv_ece const* wanted) {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end() || wanted->vendor_id != ece_vendor) return EINVAL;
    queue_pair& qp = *found->second;
    if (qp.on->options.ece_options == 0) return EOPNOTSUPP;
    if (qp.state != IBV_QPS_RESET && qp.state != IBV_QPS_INIT) return EINVAL;
    qp.ece_options = wanted->options & qp.on->options.ece_options;
    return 0;
}

// --- posting -------------------------------------------------------------------------------------

int queue_pair::check_send(ibv_send_wr const& wr) const {
    if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) return EINVAL;
    if (!is_known(wr.opcode) || wr.num_sge < 0) return EINVAL;
    if (static_cast<std::uint32_t>(wr.num_sge) > cap.max_send_sge) return EINVAL;
    bool const is_read = wr.opcode == IBV_WR_RDMA_READ;
    if (is_read && wr.num_sge > 1 && on->options.is_iwarp) return EINVAL;
    if (on->options.is_soft_iwarp) {
        bool const has_fence = (wr.send_flags & IBV_SEND_FENCE) != 0;
        bool const is_behind_read = std::ranges::any_of(sends, [](send_work const& w) {
            return w.wr.opcode == IBV_WR_RDMA_READ;
        });
        if (is_read ? has_fence : is_behind_read && !has_fence) return EINVAL;
    }
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        std::uint64_t bytes = 0;
        for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
        if (!may_be_inline(wr.opcode) || bytes > cap.max_inline_data) return EINVAL;
        if (on->options.is_soft_iwarp && wr.opcode == IBV_WR_SEND_WITH_INV) return EINVAL;
    }
    if (sends_posted - sends_freed >= cap.max_send_wr) return ENOMEM;
    return 0;
}

int network::post_send(ibv_qp* raw, ibv_send_wr* list, ibv_send_wr** bad) {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end()) return EINVAL;
    queue_pair& qp = *found->second;
    ++qp.on->counters.doorbells;
    int error = 0;
    for (; list != nullptr; list = list->next) {
        error = qp.check_send(*list);
        if (error != 0) break;
        ++qp.on->counters.send_requests;
        send_work work;
        work.wr = *list;
        work.wr.next = nullptr;
        work.wr.sg_list = nullptr;
        if (list->num_sge > 0) work.segments.assign(list->sg_list, list->sg_list + list->num_sge);
        work.size = total(work.segments);
        work.index = qp.sends_posted++;
        if ((list->send_flags & IBV_SEND_INLINE) != 0) {
            ++qp.on->counters.inline_requests;
            // Copied now: the program may reuse its bytes at once, and they need no key. Source:
            // ibv_post_send(3).
            work.inline_data.resize(work.size);
            std::size_t at = 0;
            for (ibv_sge const& s : work.segments) {
                if (s.length == 0) continue;
                std::memcpy(
                    &work.inline_data[at], reinterpret_cast<void const*>(s.addr), s.length
                );  // an address
                at += s.length;
            }
        }
        if (faults.work_to_fail > 0 && --faults.work_to_fail == 0)
            work.forced_status = faults.work_status;
        qp.sends.push_back(std::move(work));
    }
    if (error != 0) {
        *bad = list;
        ++qp.on->counters.posts_refused;
    }
    qp.doorbell();
    return error;
}

int network::post_receive(ibv_qp* raw, ibv_recv_wr* list, ibv_recv_wr** bad) {
    auto const found = pairs_.find(raw);
    if (found == pairs_.end()) return EINVAL;
    queue_pair& qp = *found->second;
    int error = 0;
    for (; list != nullptr; list = list->next) {
        if (qp.state == IBV_QPS_RESET || qp.srq != nullptr) error = EINVAL;
        if (list->num_sge < 0 || static_cast<std::uint32_t>(list->num_sge) > qp.cap.max_recv_sge)
            error = EINVAL;
        if (error == 0 && qp.receives_posted - qp.receives_freed >= qp.cap.max_recv_wr)
            error = ENOMEM;
        if (error != 0) {
            *bad = list;
            ++qp.on->counters.posts_refused;
            break;
        }
        qp.receives.push_back(make_receive(*list, qp.receives_posted++));
    }
    if (qp.state == IBV_QPS_ERR) qp.flush_soon();
    return error;
}

void queue_pair::doorbell() {
    is_asleep = false;
    if (state == IBV_QPS_ERR) return flush_soon();
    net->at(
        net->now() + nanoseconds{net->pick(0, net->is_stepped() ? 200 : 0)},
        *this,
        &queue_pair::transmit
    );
}

// --- the error state -----------------------------------------------------------------------------

void queue_pair::fail() {
    net->raise(context_of(context), IBV_EVENT_QP_FATAL, this);
    move_to_error();
}

void queue_pair::move_to_error() {
    if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return;
    state = IBV_QPS_ERR;
    flushed_sends = 0;
    flushed_receives = 0;
    flush_soon();
}

void queue_pair::flush_soon() {
    if (flush_is_due) return;
    flush_is_due = true;
    nanoseconds const delay =
        net->faults.flush.delay + nanoseconds{net->pick(0, net->is_stepped() ? 2000 : 0)};
    net->at(net->now() + delay, *this, &queue_pair::flush_now);
}

// Flushes the posted work requests in order, whether signaled or not.
void queue_pair::flush_now() {
    flush_is_due = false;
    if (state != IBV_QPS_ERR) return;
    std::size_t const most = net->faults.flush.completions_max.value_or(SIZE_MAX);
    auto const flushed = [&](std::uint64_t id, std::uint64_t index, bool is_send) {
        completion c;
        c.wc = net->garbage();
        c.wc.wr_id = id;
        c.wc.status = IBV_WC_WR_FLUSH_ERR;
        c.wc.qp_num = qp_num;
        c.frees_send = is_send;
        c.frees_receive = !is_send && srq == nullptr;
        c.shared = is_send || srq == nullptr ? 0 : srq->handle;
        c.index = index;
        net->push(cq_of(is_send ? send_cq : recv_cq), std::move(c));
    };
    for (; !sends.empty() && flushed_sends < most; ++flushed_sends) {
        send_work const work = std::move(sends.front());
        sends.pop_front();
        flushed(work.wr.wr_id, work.index, true);
    }
    position = 0;
    offset = 0;
    if (receiving && flushed_receives < most) {
        receive_work const work = *std::exchange(receiving, std::nullopt);
        ++flushed_receives;
        flushed(work.id, work.index, false);
    }
    for (; !receives.empty() && flushed_receives < most; ++flushed_receives) {
        receive_work const work = std::move(receives.front());
        receives.pop_front();
        flushed(work.id, work.index, false);
    }
    if (srq == nullptr || std::exchange(has_said_last, true)) return;
    net->raise(context_of(context), IBV_EVENT_QP_LAST_WQE_REACHED, this);
}

// --- shared receive queues -----------------------------------------------------------------------

int network::create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes, shared_receive_queue*& out) {
    if (!domains_.contains(pd)) return EINVAL;
    device_options const& limits = context_of(pd->context)->on->options;
    if (attributes->attr.max_wr == 0 || attributes->attr.max_wr > limits.queue_depth_max ||
        attributes->attr.max_sge > limits.segments_max) {
        return EINVAL;
    }
    auto made = std::make_unique<shared_receive_queue>();
    made->context = pd->context;
    made->srq_context = attributes->srq_context;
    made->handle = static_cast<std::uint32_t>(next_serial());
    made->pd = pd;
    made->depth = attributes->attr.max_wr;
    made->segments_max = attributes->attr.max_sge;
    ++static_cast<domain*>(pd)->users;
    out = made.get();
    shared_.emplace(out, std::move(made));
    return 0;
}

int network::modify_srq(ibv_srq* raw, ibv_srq_attr* attributes, int mask) {
    auto const found = shared_.find(raw);
    if (found == shared_.end() || (mask & IBV_SRQ_MAX_WR) != 0) return EINVAL;
    if ((mask & IBV_SRQ_LIMIT) != 0) found->second->limit = attributes->srq_limit;
    return 0;
}

int network::query_srq(ibv_srq* raw, ibv_srq_attr* attributes) {
    auto const found = shared_.find(raw);
    if (found == shared_.end()) return EINVAL;
    *attributes = {found->second->depth, found->second->segments_max, found->second->limit};
    return 0;
}

int network::destroy_srq(ibv_srq* raw, guard& held) {
    auto const found = shared_.find(raw);
    if (found == shared_.end()) return EINVAL;
    shared_receive_queue& srq = *found->second;
    if (srq.users > 0) return EBUSY;
    drop_async(srq.context, &srq);
    wait_acknowledged(held, "ibv_destroy_srq", [&srq] {
        return srq.async_given == srq.async_acknowledged;
    });
    --static_cast<domain*>(srq.pd)->users;
    shared_.erase(raw);
    return 0;
}

int network::post_shared_receive(ibv_srq* raw, ibv_recv_wr* list, ibv_recv_wr** bad) {
    auto const found = shared_.find(raw);
    if (found == shared_.end()) return EINVAL;
    shared_receive_queue& srq = *found->second;
    for (; list != nullptr; list = list->next) {
        int error = 0;
        if (list->num_sge < 0 || static_cast<std::uint32_t>(list->num_sge) > srq.segments_max)
            error = EINVAL;
        if (error == 0 && srq.in_use >= srq.depth) error = ENOMEM;
        if (error != 0) {
            *bad = list;
            ++context_of(srq.context)->on->counters.posts_refused;
            return error;
        }
        ++srq.in_use;
        srq.posted.push_back(make_receive(*list, 0));
    }
    return 0;
}

}  // namespace rcverbs::fabric::detail
