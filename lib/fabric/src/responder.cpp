// The responder of a reliable connection: accepts requests in the order of their numbers, checks
// their rights, and executes them once. Source: InfiniBand specification, volume 1, "Transport
// layer", 9.7.
#include "network.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace rcverbs::fabric::detail {

void queue_pair::acknowledge(std::uint64_t number) {
    // What has arrived together is acknowledged together.
    if (net->others != nullptr) {
        if (!due_acknowledgement) net->acknowledge_later(*this);
        due_acknowledgement = std::max(number, due_acknowledgement.value_or(0));
        return;
    }
    packet p;
    p.what = packet::kind::acknowledge;
    p.number = number;
    reply(std::move(p));
}

void queue_pair::send_due_acknowledgement() {
    if (!due_acknowledgement) return;
    packet p;
    p.what = packet::kind::acknowledge;
    p.number = *std::exchange(due_acknowledgement, std::nullopt);
    reply(std::move(p));
}

void queue_pair::complain(std::uint64_t number, packet::refusal why) {
    packet p;
    p.what = packet::kind::negative;
    p.number = number;
    p.why = why;
    p.rnr_timer_code = rnr_timer_code;
    has_complained = true;
    reply(std::move(p));
}

// An invalid request ends the connection: NAK, asynchronous event, error state.
void queue_pair::refuse(packet const& p, packet::refusal why) {
    complain(p.number, why);
    ibv_event_type const event =
        why == packet::refusal::remote_access ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR;
    net->raise(context_of(context), event, this);
    move_to_error();
}

// True if the fields of a request agree. A peer in another process may send anything.
bool queue_pair::is_consistent(packet const& p) const {
    bool const is_new = p.number == expected;
    if (p.what == packet::kind::atomic)
        return p.number_end == p.number + 1 && p.message_bytes == sizeof(std::uint64_t);
    if (p.message_bytes > on->options.message_bytes_max || p.offset > p.message_bytes) return false;
    std::uint64_t const left = p.message_bytes - p.offset;
    if (p.what == packet::kind::read_request)
        return p.number_end - p.number == packets_for(left, mtu) && p.payload.empty();
    return p.number_end == p.number + 1 && p.payload.size() == std::min<std::uint64_t>(mtu, left) &&
           p.is_last == (p.payload.size() == left) && (!is_new || p.offset == received_bytes);
}

void queue_pair::on_request(packet const& p) {
    if (state != IBV_QPS_RTR && state != IBV_QPS_RTS) return;
    if (p.number < expected) return on_duplicate(p);
    if (p.number > expected) {
        if (!has_complained) complain(expected, packet::refusal::sequence);
        return;
    }
    if (!is_consistent(p)) return refuse(p, packet::refusal::invalid_request);
    execute(p);
}

// A duplicate is answered again; sends, writes and atomics are not executed again.
void queue_pair::on_duplicate(packet const& p) {
    if (!is_consistent(p)) return;
    switch (p.what) {
    case packet::kind::read_request: return execute_read(p);
    case packet::kind::atomic:
        if (atomic_answers.contains(p.number)) execute_atomic(p);
        return;
    default: return acknowledge(expected - 1);
    }
}

void queue_pair::execute(packet const& p) {
    switch (p.what) {
    case packet::kind::send: return execute_send(p);
    case packet::kind::write: return execute_write(p);
    case packet::kind::read_request: return execute_read(p);
    default: return execute_atomic(p);
    }
}

bool queue_pair::take_receive() {
    if (receiving) return true;
    shared_receive_queue* const from_all = shared();
    std::deque<receive_work>& from = from_all != nullptr ? from_all->posted : receives;
    if (from.empty()) return false;
    receiving = std::move(from.front());
    from.pop_front();
    if (from_all != nullptr && from_all->limit > 0 && from_all->posted.size() < from_all->limit) {
        from_all->limit = 0;
        net->raise(
            context_of(from_all->context), IBV_EVENT_SRQ_LIMIT_REACHED, nullptr, nullptr, from_all
        );
    }
    return true;
}

void queue_pair::complete_receive(packet const& p, ibv_wc_status status) {
    receive_work const work = *std::exchange(receiving, std::nullopt);
    completion c;
    if (status != IBV_WC_SUCCESS) {
        c.wc = net->garbage();
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
    c.wc.qp_num = qp_num;
    c.frees_receive = srq == nullptr;
    c.shared = srq != nullptr ? srq->handle : 0;
    c.index = work.index;
    c.is_solicited = p.is_solicited;
    net->push(static_cast<completion_queue&>(*recv_cq), std::move(c));
}

// Counts a packet of a send or a write as executed.
void queue_pair::take(packet const& p) {
    expected = p.number_end;
    has_complained = false;
    received_bytes = p.is_last ? 0 : p.offset + p.payload.size();
}

void queue_pair::execute_send(packet const& p) {
    if (!take_receive()) {
        ++on->counters.receiver_not_ready_sent;
        return complain(p.number, packet::refusal::not_ready);
    }
    std::uint64_t room = 0;
    for (ibv_sge const& s : receiving->segments) room += s.length;
    if (p.offset + p.payload.size() > room) {
        complete_receive(p, IBV_WC_LOC_LEN_ERR);
        return refuse(p, packet::refusal::invalid_request);
    }
    if (!net->scatter(srq != nullptr ? srq->pd : pd, receiving->segments, p.offset, p.payload)) {
        complete_receive(p, IBV_WC_LOC_PROT_ERR);
        return refuse(p, packet::refusal::remote_operation);
    }
    if (p.is_last && p.opcode == IBV_WR_SEND_WITH_INV &&
        net->invalidate(*this, p.immediate) != IBV_WC_SUCCESS) {
        complete_receive(p, IBV_WC_REM_INV_REQ_ERR);
        return refuse(p, packet::refusal::invalid_request);
    }
    take(p);
    if (p.is_last) complete_receive(p, IBV_WC_SUCCESS);
    if (p.wants_acknowledge) acknowledge(p.number);
}

void queue_pair::execute_write(packet const& p) {
    std::byte* to = nullptr;
    // A message of zero bytes accesses no memory: its key is not checked.
    if (p.message_bytes > 0) {
        to = net->remote_bytes(
            *this, p.remote_address, p.message_bytes, p.rkey, IBV_ACCESS_REMOTE_WRITE
        );
        if (to == nullptr) return refuse(p, packet::refusal::remote_access);
    }
    bool const takes_receive = p.is_last && p.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (takes_receive && !take_receive()) {
        ++on->counters.receiver_not_ready_sent;
        return complain(p.number, packet::refusal::not_ready);
    }
    if (!p.payload.empty()) std::memcpy(to + p.offset, p.payload.data(), p.payload.size());
    take(p);
    if (takes_receive) complete_receive(p, IBV_WC_SUCCESS);
    if (p.wants_acknowledge) acknowledge(p.number);
}

// The number of outstanding responses is limited to the negotiated depth.
bool queue_pair::may_answer(packet const& p) {
    // A duplicate; a peer that asks for more than it may is not answered.
    if (p.number < expected) return answers.size() <= 2U * resources;
    if (answers_under_way < resources) return true;
    refuse(p, packet::refusal::invalid_request);
    return false;
}

void queue_pair::execute_read(packet const& p) {
    if (!may_answer(p)) return;
    if (p.message_bytes > 0 &&
        net->remote_bytes(
            *this, p.remote_address, p.message_bytes, p.rkey, IBV_ACCESS_REMOTE_READ
        ) == nullptr) {
        return refuse(p, packet::refusal::remote_access);
    }
    bool const is_new = p.number == expected;
    if (is_new) {
        expected = p.number_end;
        has_complained = false;
    }
    packet request = p;
    request.is_first = true;  // no packet of the response was sent yet
    reply(std::move(request), is_new);
}

// --- responses -----------------------------------------------------------------------------------

void queue_pair::reply(packet p, bool is_counted) {
    send_due_acknowledgement();  // in their order
    if (is_counted) ++answers_under_way;
    // An acknowledgement includes those before it.
    bool const replaces = !answers.empty() && p.what == packet::kind::acknowledge &&
                          answers.back().what.what == packet::kind::acknowledge;
    if (replaces) answers.pop_back();
    answers.push_back({std::move(p), is_counted});
    send_answers();
}

void queue_pair::send_answers() {
    while (!answers.empty() && has_room()) {
        answer& next = answers.front();
        if (next.what.what != packet::kind::read_request) {
            send_packet(std::move(next.what));
        } else if (send_read_part(next)) {
            continue;
        }
        if (next.is_counted) finish_answer();
        answers.pop_front();
    }
}

void queue_pair::send_last() {
    if (net->others == nullptr) return;
    if (state == IBV_QPS_RTS) transmit();
    send_due_acknowledgement();
    for (answer& a : answers) {
        if (a.what.what == packet::kind::read_request) break;
        send_packet(std::move(a.what));
    }
    answers.clear();
}

// Sends one packet of a read response; true if another one follows.
bool queue_pair::send_read_part(answer& next) {
    packet& request = next.what;
    packet part;
    part.what = packet::kind::read_response;
    part.number = request.number;
    part.offset = request.offset;
    part.is_first = std::exchange(request.is_first, false);
    part.is_last = request.number + 1 == request.number_end;
    if (request.message_bytes > 0) {
        // Checked again: the region may have been deregistered while the response had to wait.
        std::byte const* const from = net->remote_bytes(
            *this,
            request.remote_address,
            request.message_bytes,
            request.rkey,
            IBV_ACCESS_REMOTE_READ
        );
        if (from == nullptr || state == IBV_QPS_ERR) return false;
        std::uint64_t const bytes =
            std::min<std::uint64_t>(mtu, request.message_bytes - request.offset);
        part.payload = packet_payload{{from + request.offset, bytes}};
        request.offset += bytes;
    }
    send_packet(std::move(part));
    return ++request.number < request.number_end;
}

// A response is outstanding until its last packet has arrived; from another process, the next request
// can only come then.
void queue_pair::finish_answer() {
    if (net->others != nullptr) return end_answer();
    net->at(link_free, *this, &queue_pair::end_answer);
}

void queue_pair::execute_atomic(packet const& p) {
    std::uint64_t before = 0;
    bool const is_new = p.number == expected;
    if (auto const done = atomic_answers.find(p.number); done != atomic_answers.end()) {
        before = done->second;
    } else {
        if (!may_answer(p)) return;
        if (!on->options.has_atomics || p.remote_address % sizeof before != 0) {
            return refuse(p, packet::refusal::invalid_request);
        }
        std::byte* const at = net->remote_bytes(
            *this, p.remote_address, sizeof before, p.rkey, IBV_ACCESS_REMOTE_ATOMIC
        );
        if (at == nullptr) return refuse(p, packet::refusal::remote_access);
        // Aligned, as was just checked.
        std::atomic_ref<std::uint64_t> const word{*reinterpret_cast<std::uint64_t*>(at)};
        if (p.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            before = word.fetch_add(p.compare_add);
        } else {
            before = p.compare_add;
            word.compare_exchange_strong(before, p.swap);
        }
        // The peer may request at most this many again.
        atomic_answers[p.number] = before;
        while (atomic_answers.size() > resources) atomic_answers.erase(atomic_answers.begin());
        expected = p.number_end;
        has_complained = false;
    }
    packet response;
    response.what = packet::kind::atomic_response;
    response.number = p.number;
    auto const* const bytes =
        reinterpret_cast<std::byte const*>(&before);  // in host byte order, as a device returns it
    response.payload = packet_payload{{bytes, sizeof before}};
    response.payload.own();  // it may have to wait
    reply(std::move(response), is_new);
}

}  // namespace rcverbs::fabric::detail
