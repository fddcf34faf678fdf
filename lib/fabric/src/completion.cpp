// Completion queues, their channels, and the devices' asynchronous events.
#include "network.hpp"

#include <cerrno>
#include <cstring>

namespace rcverbs::fabric::detail {

namespace {
completion_queue& cq_of(ibv_cq* raw) noexcept { return static_cast<completion_queue&>(*raw); }
}  // namespace

int network::create_channel(ibv_context* in, completion_channel*& out) {
    auto made = std::make_unique<completion_channel>();
    made->context = in;
    made->fd = made->ready.get();
    made->refcnt = 0;
    out = made.get();
    channels_.emplace(out, std::move(made));
    return 0;
}

int network::destroy_channel(ibv_comp_channel* raw) {
    auto const found = channels_.find(raw);
    if (found == channels_.end()) return EINVAL;
    if (raw->refcnt > 0) return EBUSY;
    channels_.erase(found);
    return 0;
}

int network::create_cq(
    ibv_context* in, int depth, void* context, ibv_comp_channel* channel, completion_queue*& out
) {
    auto const depth_max = context_of(in)->on->options.completion_queue_depth_max;
    if (depth < 1 || static_cast<std::uint32_t>(depth) > depth_max) return EINVAL;
    auto made = std::make_unique<completion_queue>();
    made->context = in;
    made->cq_context = context;
    made->channel = channel;
    made->serial = next_serial();
    made->handle = static_cast<std::uint32_t>(made->serial);
    made->cqe = depth;  // exact: a device may grant more, a program must not rely on it
    if (channel != nullptr) ++channel->refcnt;
    out = made.get();
    queues_.emplace(out, std::move(made));
    return 0;
}

int network::destroy_cq(ibv_cq* raw, guard& held) {
    auto const found = queues_.find(raw);
    if (found == queues_.end()) return EINVAL;
    completion_queue& cq = *found->second;
    if (cq.users > 0) return EBUSY;
    if (auto* const channel = static_cast<completion_channel*>(cq.channel)) {
        // Events that were not taken are dropped with the queue.
        channel->ready.drop(std::erase(channel->events, &cq));
    }
    drop_async(cq.context, &cq);
    wait_acknowledged(held, "ibv_destroy_cq", [&cq] {
        return cq.events_given == cq.events_acknowledged && cq.async_given == cq.async_acknowledged;
    });
    if (cq.channel != nullptr) --cq.channel->refcnt;
    queues_.erase(raw);
    return 0;
}

int network::poll(ibv_cq* raw, int count, ibv_wc* into) {
    completion_queue& cq = cq_of(raw);
    int taken = 0;
    while (taken < count && !cq.entries.empty()) {
        completion const c = cq.entries.front();
        cq.entries.pop_front();
        into[taken++] = c.wc;
        if (c.shared != 0) {
            for (auto const& [key, srq] : shared_) {
                if (srq->handle == c.shared) --srq->in_use;
            }
        }
        queue_pair* const qp = find_qp(c.wc.qp_num);
        if (qp == nullptr || qp->identity != c.owner) continue;
        // A completion frees the slots of all work up to it. Source: ibv_post_send(3); the drivers
        // of adapters.
        if (c.frees_send) qp->sends_freed = std::max(qp->sends_freed, c.index + 1);
        if (c.frees_receive) qp->receives_freed = std::max(qp->receives_freed, c.index + 1);
    }
    cq.count = cq.entries.size();
    if (taken == 0 && cq.is_broken) return -1;
    return taken;
}

int network::arm(ibv_cq* raw, bool solicited_only) {
    completion_queue& cq = cq_of(raw);
    using arming = completion_queue::arming;
    // Arming for solicited completions does not narrow an arming for all. Source:
    // ibv_req_notify_cq(3) and the specification.
    if (cq.armed != arming::next) cq.armed = solicited_only ? arming::solicited : arming::next;
    return 0;
}

int network::take_cq_event(ibv_comp_channel* raw, ibv_cq** cq, void** context) {
    auto const found = channels_.find(raw);
    if (found == channels_.end() || found->second->events.empty()) return EAGAIN;
    completion_queue* const source = found->second->events.front();
    found->second->events.pop_front();
    ++source->events_given;
    *cq = source;
    *context = source->cq_context;
    return 0;
}

void network::acknowledge(ibv_cq* raw, unsigned count) {
    cq_of(raw).events_acknowledged += count;
    acknowledged_.notify_all();
}

ibv_wc network::garbage() {
    ibv_wc wc{};
    wc.byte_len = static_cast<std::uint32_t>(pick(0, ~0U));
    wc.opcode = static_cast<ibv_wc_opcode>(pick(0, 255));
    wc.imm_data = static_cast<std::uint32_t>(pick(0, ~0U));
    wc.src_qp = static_cast<std::uint32_t>(pick(0, ~0U));
    wc.wc_flags = static_cast<unsigned>(pick(0, 15));
    wc.vendor_err = static_cast<std::uint32_t>(pick(1, 255));
    return wc;
}

// A delayed completion holds up those behind it.
void network::push(completion_queue& cq, completion c) {
    if (queue_pair const* const qp = find_qp(c.wc.qp_num)) c.owner = qp->identity;
    completion_fate fate;
    if (faults.completion_decision) {
        fate = faults.completion_decision(
            {c.wc.qp_num, c.frees_receive || c.shared != 0, c.wc.status == IBV_WC_SUCCESS}
        );
    }
    if (fate.what == completion_fate::kind::lose) return;
    nanoseconds due = std::max(now(), cq.delayed_until);
    if (fate.what == completion_fate::kind::delay) due += fate.by;
    if (due <= now() && cq.delayed.empty()) return enqueue(cq, std::move(c));
    cq.delayed_until = due;
    cq.delayed.push_back(std::move(c));
    at(due, [this, &cq, serial = cq.serial] {
        auto const found = queues_.find(static_cast<ibv_cq*>(&cq));
        if (found == queues_.end() || found->second->serial != serial || cq.delayed.empty()) return;
        completion next = std::move(cq.delayed.front());
        cq.delayed.pop_front();
        enqueue(cq, std::move(next));
    });
}

void network::enqueue(completion_queue& cq, completion c) {
    if (cq.is_broken) return;
    if (cq.entries.size() >= static_cast<std::size_t>(cq.cqe)) return overrun(cq);
    ++context_of(cq.context)->on->counters.completions;
    bool const wakes = cq.armed == completion_queue::arming::next ||
                       (cq.armed == completion_queue::arming::solicited &&
                        (c.is_solicited || c.wc.status != IBV_WC_SUCCESS));
    cq.entries.push_back(std::move(c));
    cq.count = cq.entries.size();
    if (!wakes || cq.channel == nullptr) return;
    cq.armed = completion_queue::arming::none;
    auto& channel = static_cast<completion_channel&>(*cq.channel);
    channel.events.push_back(&cq);
    channel.ready.ring();
}

// A completion that does not fit is lost, so the queue pairs that use this queue fail. Source:
// ibv_create_cq(3); the specification's "CQ error".
void network::overrun(completion_queue& cq) {
    if (cq.is_broken) return;
    cq.is_broken = true;
    ++context_of(cq.context)->on->counters.overruns;
    raise(context_of(cq.context), IBV_EVENT_CQ_ERR, nullptr, &cq);
    for (auto const& [number, qp] : numbers_) {
        if (qp->send_cq == &cq || qp->recv_cq == &cq) qp->fail();
    }
}

void network::raise(context* in, ibv_event_type type, ibv_qp* qp, ibv_cq* cq, ibv_srq* srq) {
    async_event e{};
    e.event.event_type = type;
    if (qp != nullptr) e.event.element.qp = qp;
    if (cq != nullptr) e.event.element.cq = cq;
    if (srq != nullptr) e.event.element.srq = srq;
    if (qp == nullptr && cq == nullptr && srq == nullptr) e.event.element.port_num = 1;
    e.object = qp != nullptr   ? static_cast<void*>(qp)
               : cq != nullptr ? static_cast<void*>(cq)
                               : srq;
    in->events.push_back(e);
    in->async.ring();
}

void network::drop_async(ibv_context* in, void const* object) {
    context& c = *context_of(in);
    c.async.drop(std::erase_if(c.events, [object](async_event const& e) {
        return e.object == object;
    }));
}

void network::raise_port(device& on, ibv_event_type type) {
    for (auto const& [key, c] : contexts_) {
        if (c->on == &on) raise(c.get(), type);
    }
}

namespace {

// Calls `visit` with the counters of the object of an event; not for events of ports and devices.
template <class Visit>
void with_counts(ibv_async_event const& e, Visit&& visit) {
    switch (e.event_type) {
    case IBV_EVENT_CQ_ERR: {
        auto& cq = static_cast<completion_queue&>(*e.element.cq);
        return visit(cq.async_given, cq.async_acknowledged);
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
        auto& qp = static_cast<queue_pair&>(*e.element.qp);
        return visit(qp.async_given, qp.async_acknowledged);
    }
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
        auto& srq = static_cast<shared_receive_queue&>(*e.element.srq);
        return visit(srq.async_given, srq.async_acknowledged);
    }
    default: return;
    }
}

}  // namespace

int network::take_async_event(ibv_context* in, ibv_async_event* out) {
    context& c = *context_of(in);
    if (c.events.empty()) return EAGAIN;
    *out = c.events.front().event;
    c.events.pop_front();
    with_counts(*out, [](unsigned& given, unsigned&) { ++given; });
    return 0;
}

void network::acknowledge_async(ibv_async_event* event) {
    with_counts(*event, [](unsigned&, unsigned& acknowledged) { ++acknowledged; });
    acknowledged_.notify_all();
}

}  // namespace rcverbs::fabric::detail
