// The responder's half of a reliable connection: takes requests in the order of their numbers, once each, and does what
// they ask if it is allowed. Source: InfiniBand specification, volume 1, "Transport layer", 9.7.
#include "network.hpp"

#include <atomic>
#include <cstring>

namespace rcverbs::fabric::detail {

void network::acknowledge(queue_pair& qp, std::uint64_t number) {
    packet p;
    p.what = packet::kind::acknowledge;
    p.number = number;
    send_packet(qp, std::move(p));
}

void network::complain(queue_pair& qp, std::uint64_t number, packet::refusal why) {
    packet p;
    p.what = packet::kind::negative;
    p.number = number;
    p.why = why;
    p.rnr_timer_code = qp.rnr_timer_code;
    qp.has_complained = true;
    send_packet(qp, std::move(p));
}

// A request that is against the rules ends the connection.
void network::refuse(queue_pair& qp, packet const& p, packet::refusal why) {
    complain(qp, p.number, why);
    ibv_event_type const event =
        why == packet::refusal::remote_access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
    raise(context_of(qp.context), event, &qp);
    break_qp(qp);
}

void network::on_request(queue_pair& qp, packet const& p) {
    if (qp.state != IBV_QPS_RTR && qp.state != IBV_QPS_RTS) return;
    if (p.number < qp.expected) return on_duplicate(qp, p);
    if (p.number > qp.expected) {
        if (!qp.has_complained) complain(qp, qp.expected, packet::refusal::sequence);
        return;
    }
    execute(qp, p);
}

// What was done already is not done again, but answered again.
void network::on_duplicate(queue_pair& qp, packet const& p) {
    switch (p.what) {
    case packet::kind::read_request: return execute_read(qp, p);
    case packet::kind::atomic:
        if (qp.atomic_answers.contains(p.number)) execute_atomic(qp, p);
        return;
    default: return acknowledge(qp, qp.expected - 1);
    }
}

void network::execute(queue_pair& qp, packet const& p) {
    switch (p.what) {
    case packet::kind::send: return execute_send(qp, p);
    case packet::kind::write: return execute_write(qp, p);
    case packet::kind::read_request: return execute_read(qp, p);
    default: return execute_atomic(qp, p);
    }
}

bool network::take_receive(queue_pair& qp) {
    if (qp.receiving) return true;
    auto* const srq = static_cast<shared_receive_queue*>(qp.srq);
    std::deque<receive_work>& from = srq != nullptr ? srq->posted : qp.receives;
    if (from.empty()) return false;
    qp.receiving = std::move(from.front());
    from.pop_front();
    qp.received_bytes = 0;
    if (srq != nullptr && srq->limit > 0 && srq->posted.size() < srq->limit) {
        srq->limit = 0;
        raise(context_of(srq->context), IBV_EVENT_SRQ_LIMIT_REACHED, nullptr, nullptr, srq);
    }
    return true;
}

void network::complete_receive(queue_pair& qp, packet const& p, ibv_wc_status status) {
    receive_work const work = *std::exchange(qp.receiving, std::nullopt);
    completion c;
    if (status != IBV_WC_SUCCESS) {
        c.wc = garbage();
    } else {
        bool const is_write = p.what == packet::kind::write;
        c.wc.opcode = is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        c.wc.byte_len = static_cast<std::uint32_t>(p.message_bytes);
        c.wc.src_qp = p.source;
        if (p.opcode == IBV_WR_SEND_WITH_IMM || is_write) {
            c.wc.wc_flags = IBV_WC_WITH_IMM;
            c.wc.imm_data = p.immediate;
        } else if (p.opcode == IBV_WR_SEND_WITH_INV) {
            c.wc.wc_flags = IBV_WC_WITH_INV;
            c.wc.invalidated_rkey = p.immediate;
        }
    }
    c.wc.wr_id = work.id;
    c.wc.status = status;
    c.wc.qp_num = qp.qp_num;
    c.frees_receive = qp.srq == nullptr;
    c.shared = qp.srq != nullptr ? qp.srq->handle : 0;
    c.index = work.index;
    c.is_solicited = p.is_solicited;
    push(static_cast<completion_queue&>(*qp.recv_cq), std::move(c));
}

void network::execute_send(queue_pair& qp, packet const& p) {
    if (!take_receive(qp)) {
        ++qp.on->counters.receiver_not_ready_sent;
        return complain(qp, p.number, packet::refusal::not_ready);
    }
    std::uint64_t room = 0;
    for (ibv_sge const& s : qp.receiving->segments) room += s.length;
    if (p.offset + p.payload.size() > room) {
        complete_receive(qp, p, IBV_WC_LOC_LEN_ERR);
        return refuse(qp, p, packet::refusal::invalid_request);
    }
    if (!scatter(qp.srq != nullptr ? qp.srq->pd : qp.pd, qp.receiving->segments, p.offset, p.payload)) {
        complete_receive(qp, p, IBV_WC_LOC_PROT_ERR);
        return refuse(qp, p, packet::refusal::remote_operation);
    }
    if (p.is_last && p.opcode == IBV_WR_SEND_WITH_INV && invalidate(qp, p.immediate) != IBV_WC_SUCCESS) {
        complete_receive(qp, p, IBV_WC_REM_INV_REQ_ERR);
        return refuse(qp, p, packet::refusal::invalid_request);
    }
    qp.expected = p.number_end;
    qp.has_complained = false;
    if (p.is_last) complete_receive(qp, p, IBV_WC_SUCCESS);
    if (p.wants_acknowledge) acknowledge(qp, p.number);
}

void network::execute_write(queue_pair& qp, packet const& p) {
    std::byte* to = nullptr;
    // A message of no bytes touches nothing: its key is not looked at.
    if (p.message_bytes > 0) {
        to = remote_bytes(qp, p.remote_address, p.message_bytes, p.rkey, IBV_ACCESS_REMOTE_WRITE);
        if (to == nullptr) return refuse(qp, p, packet::refusal::remote_access);
    }
    bool const takes_receive = p.is_last && p.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (takes_receive && !take_receive(qp)) {
        ++qp.on->counters.receiver_not_ready_sent;
        return complain(qp, p.number, packet::refusal::not_ready);
    }
    if (!p.payload.empty()) std::memcpy(to + p.offset, p.payload.data(), p.payload.size());
    qp.expected = p.number_end;
    qp.has_complained = false;
    if (takes_receive) complete_receive(qp, p, IBV_WC_SUCCESS);
    if (p.wants_acknowledge) acknowledge(qp, p.number);
}

// The answers that a responder owes are limited to what was negotiated.
bool network::may_answer(queue_pair& qp, packet const& p) {
    if (p.number < qp.expected) return true;  // asked again
    if (qp.answers_under_way < qp.resources) return true;
    refuse(qp, p, packet::refusal::invalid_request);
    return false;
}

void network::execute_read(queue_pair& qp, packet const& p) {
    if (!may_answer(qp, p)) return;
    std::byte const* from = nullptr;
    if (p.message_bytes > 0) {
        from = remote_bytes(qp, p.remote_address, p.message_bytes, p.rkey, IBV_ACCESS_REMOTE_READ);
        if (from == nullptr) return refuse(qp, p, packet::refusal::remote_access);
    }
    bool const is_new = p.number == qp.expected;
    if (is_new) {
        qp.expected = p.number_end;
        qp.has_complained = false;
    }
    std::uint64_t offset = p.offset;
    for (std::uint64_t number = p.number; number < p.number_end; ++number) {
        packet part;
        part.what = packet::kind::read_response;
        part.number = number;
        part.offset = offset;
        std::uint64_t const bytes = std::min<std::uint64_t>(qp.mtu, p.message_bytes - offset);
        if (bytes > 0) part.payload.assign(from + offset, from + offset + bytes);
        offset += bytes;
        send_packet(qp, std::move(part));
    }
    if (is_new) count_answer(qp);
}

// Until its last packet has arrived.
void network::count_answer(queue_pair& qp) {
    ++qp.answers_under_way;
    at(qp.link_free, qp, &network::end_answer);
}

void network::execute_atomic(queue_pair& qp, packet const& p) {
    std::uint64_t before = 0;
    bool const is_new = p.number == qp.expected;
    if (auto const done = qp.atomic_answers.find(p.number); done != qp.atomic_answers.end()) {
        before = done->second;
    } else {
        if (!may_answer(qp, p)) return;
        if (!qp.on->options.has_atomics || p.remote_address % sizeof before != 0) {
            return refuse(qp, p, packet::refusal::invalid_request);
        }
        std::byte* const at = remote_bytes(qp, p.remote_address, sizeof before, p.rkey, IBV_ACCESS_REMOTE_ATOMIC);
        if (at == nullptr) return refuse(qp, p, packet::refusal::remote_access);
        // Aligned, as was just checked.
        std::atomic_ref<std::uint64_t> const word{*reinterpret_cast<std::uint64_t*>(at)};
        if (p.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            before = word.fetch_add(p.compare_add);
        } else {
            before = p.compare_add;
            word.compare_exchange_strong(before, p.swap);
        }
        // As many as can be asked for again.
        qp.atomic_answers[p.number] = before;
        while (qp.atomic_answers.size() > qp.resources) qp.atomic_answers.erase(qp.atomic_answers.begin());
        qp.expected = p.number_end;
        qp.has_complained = false;
    }
    packet answer;
    answer.what = packet::kind::atomic_response;
    answer.number = p.number;
    auto const* const bytes = reinterpret_cast<std::byte const*>(&before);  // host order, as the device gives it
    answer.payload.assign(bytes, bytes + sizeof before);
    send_packet(qp, std::move(answer));
    if (is_new) count_answer(qp);
}

}  // namespace rcverbs::fabric::detail
