// The requester's half of a reliable connection: sends work as packets, takes acknowledgements and answers in, sends
// again from the first packet that was lost. Source: InfiniBand specification, volume 1, "Transport layer", 9.7.
//
// Packets are numbered from 0 and never wrap. A read takes a number for each packet of its answer.
#include "network.hpp"

#include <algorithm>

namespace rcverbs::fabric::detail {

namespace {

// Packets that may be under way before an acknowledgement must have come.
constexpr std::uint64_t window_max = 256;
// Long messages are acknowledged on the way, too.
constexpr std::uint64_t acknowledge_every = 64;

std::uint64_t packets_for(std::uint64_t bytes, std::uint32_t mtu) noexcept {
    return bytes == 0 ? 1 : (bytes + mtu - 1) / mtu;
}

ibv_wc_opcode completed(ibv_wr_opcode opcode) noexcept {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
    case IBV_WR_BIND_MW: return IBV_WC_BIND_MW;
    default: return IBV_WC_SEND;
    }
}

ibv_wc_status status_of(packet::refusal why) noexcept {
    switch (why) {
    case packet::refusal::remote_access: return IBV_WC_REM_ACCESS_ERR;
    case packet::refusal::remote_operation: return IBV_WC_REM_OP_ERR;
    default: return IBV_WC_REM_INV_REQ_ERR;
    }
}

// The specification's table of RNR NAK timer codes, in units of 10 us. Source: ibv_modify_qp(3).
nanoseconds rnr_delay(std::uint8_t code) noexcept {
    constexpr std::uint32_t tens_of_us[32] = {65536, 1,   2,   3,   4,    6,    8,    12,   16,   24,   32,
                                              48,    64,  96,  128, 192,  256,  384,  512,  768,  1024, 1536,
                                              2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return std::chrono::microseconds{10} * tens_of_us[code & 31];
}

}  // namespace

// --- sending -----------------------------------------------------------------------------------------------------

void network::transmit(queue_pair& qp) {
    if (qp.is_asleep) return;
    bool const was_idle = qp.acknowledged >= qp.next_number;
    while (send_next(qp)) {}
    if (was_idle) qp.deadline = std::max(now(), qp.rnr_until) + patience(qp);
    if (qp.state == IBV_QPS_RTS && qp.acknowledged < qp.next_number) start_timer(qp);
}

// What is done without a packet, or cannot be sent; none if it can.
std::optional<ibv_wc_status> network::settle_locally(queue_pair& qp, send_work const& work) {
    if (work.forced_status >= 0) return static_cast<ibv_wc_status>(work.forced_status);
    if (work.wr.opcode == IBV_WR_LOCAL_INV) return invalidate(qp, work.wr.invalidate_rkey);
    if (work.wr.opcode == IBV_WR_BIND_MW) return bind_window(qp, work.wr);
    if (work.is_atomic() && work.size != sizeof(std::uint64_t)) return IBV_WC_LOC_LEN_ERR;
    if (work.size > qp.on->options.message_bytes_max) return IBV_WC_LOC_LEN_ERR;
    if (work.expects_answer() && qp.read_depth == 0) return IBV_WC_LOC_QP_OP_ERR;
    bool const is_inline = (work.wr.send_flags & IBV_SEND_INLINE) != 0;
    for (ibv_sge const& s : work.segments) {
        if (!is_inline && s.length > 0 && local_bytes(qp.pd, s, work.expects_answer()) == nullptr) {
            return IBV_WC_LOC_PROT_ERR;
        }
    }
    return std::nullopt;
}

// Reads and atomics are limited to the negotiated depth; a fence waits for all of them.
bool network::fits_in_flight(queue_pair const& qp, send_work const& work) const {
    if (qp.next_number - qp.acknowledged >= window_max) return false;
    bool const has_fence = (work.wr.send_flags & IBV_SEND_FENCE) != 0;
    if (qp.offset > 0 || (!has_fence && !work.expects_answer())) return true;
    auto const end = qp.sends.begin() + static_cast<std::ptrdiff_t>(qp.position);
    auto const reads = static_cast<std::size_t>(std::count_if(qp.sends.begin(), end, [](send_work const& w) {
        return w.expects_answer() && !w.is_answered;
    }));
    if (has_fence && reads > 0) return false;
    return !work.expects_answer() || reads < qp.read_depth;
}

packet network::make_request(queue_pair const& qp, send_work const& work) {
    packet p;
    p.number = qp.next_number;
    p.opcode = work.wr.opcode;
    p.message_bytes = work.size;
    p.offset = qp.offset;
    p.is_first = qp.offset == 0;
    p.is_solicited = (work.wr.send_flags & IBV_SEND_SOLICITED) != 0;
    p.immediate = work.wr.imm_data;  // or invalidate_rkey, which shares its place
    if (work.is_atomic()) {
        p.what = packet::kind::atomic;
        p.remote_address = work.wr.wr.atomic.remote_addr;
        p.rkey = work.wr.wr.atomic.rkey;
        p.compare_add = work.wr.wr.atomic.compare_add;
        p.swap = work.wr.wr.atomic.swap;
        p.number_end = p.number + 1;
        return p;
    }
    p.remote_address = work.wr.wr.rdma.remote_addr;
    p.rkey = work.wr.wr.rdma.rkey;
    if (work.is_read()) {
        p.what = packet::kind::read_request;
        p.number_end = work.last + 1;
        return p;
    }
    bool const is_write = work.wr.opcode == IBV_WR_RDMA_WRITE || work.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    p.what = is_write ? packet::kind::write : packet::kind::send;
    p.number_end = p.number + 1;
    std::uint64_t const bytes = std::min<std::uint64_t>(qp.mtu, work.size - qp.offset);
    p.is_last = qp.offset + bytes == work.size;
    p.wants_acknowledge = p.is_last || p.number % acknowledge_every == 0;
    p.payload.resize(bytes);
    return p;
}

// Sends one packet; false if nothing can be sent now.
bool network::send_next(queue_pair& qp) {
    if (qp.state != IBV_QPS_RTS || now() < qp.rnr_until || qp.position >= qp.sends.size()) return false;
    send_work& work = qp.sends[qp.position];
    if (!work.has_numbers || work.forced_status >= 0) {
        // Completions come in order: what needs no packet waits for what is before it.
        if (work.is_local() && qp.position > 0) return false;
        if (std::optional<ibv_wc_status> const status = settle_locally(qp, work)) {
            if (qp.position > 0) return false;
            if (*status != IBV_WC_SUCCESS) {
                fail_oldest(qp, *status);
                return false;
            }
            complete_send(qp, IBV_WC_SUCCESS);
            return true;
        }
    }
    if (!fits_in_flight(qp, work)) return false;
    if (!work.has_numbers) {
        work.has_numbers = true;
        work.first = qp.next_number;
        work.last = work.first + (work.is_atomic() ? 1 : packets_for(work.size, qp.mtu)) - 1;
    }
    packet p = make_request(qp, work);
    if (!p.payload.empty()) {
        bool const is_inline = (work.wr.send_flags & IBV_SEND_INLINE) != 0;
        if (is_inline) {
            std::copy_n(work.inline_data.begin() + static_cast<std::ptrdiff_t>(p.offset), p.payload.size(), p.payload.begin());
        } else if (!gather(qp.pd, work.segments, p.offset, p.payload)) {
            // Its key was withdrawn while it was under way.
            if (qp.position > 0) return false;
            fail_oldest(qp, IBV_WC_LOC_PROT_ERR);
            return false;
        }
    }
    if (p.number < qp.high_number) ++qp.on->counters.packets_sent_again;
    qp.next_number = p.number_end;
    qp.high_number = std::max(qp.high_number, qp.next_number);
    qp.offset += p.payload.size();
    if (p.is_last || work.expects_answer()) {
        ++qp.position;
        qp.offset = 0;
    }
    send_packet(qp, std::move(p));
    return true;
}

nanoseconds network::travel(queue_pair& from) {
    nanoseconds arrival = now();
    if (is_stepped()) {
        arrival += nanoseconds{pick(
            static_cast<std::uint64_t>(options_.latency_min.count()),
            static_cast<std::uint64_t>(options_.latency_max.count())
        )};
    }
    // Later, if only by the least: at the same time they could change places.
    from.link_free = std::max(from.link_free + nanoseconds{1}, arrival);
    return from.link_free;
}

void network::send_packet(queue_pair& from, packet p) {
    p.source = from.qp_num;
    p.target = from.remote_qp;
    if (!from.on->is_powered || !from.on->is_up || from.on->is_removed) return;
    ++from.on->counters.packets_sent;
    packet_fate fate;
    if (packet_decision) {
        fate = packet_decision(
            {static_cast<packet_info::kind>(p.what), p.source, p.target, p.number, p.payload.size()}
        );
    }
    if (fate.what == packet_fate::kind::drop) return;
    nanoseconds arrival = travel(from);
    if (fate.what == packet_fate::kind::delay) arrival += fate.by;
    if (fate.what == packet_fate::kind::duplicate) at(arrival, [this, p] { arrive(p); });
    at(arrival, [this, p = std::move(p)] { arrive(p); });
}

void network::arrive(packet const& p) {
    queue_pair* const qp = find_qp(p.target);
    if (qp == nullptr || qp->remote_qp != p.source) return;
    if (!qp->on->is_powered || !qp->on->is_up || qp->on->is_removed) return;
    switch (p.what) {
    case packet::kind::acknowledge: return on_acknowledge(*qp, p);
    case packet::kind::negative: return on_negative(*qp, p);
    case packet::kind::read_response:
    case packet::kind::atomic_response: return on_answer(*qp, p);
    default: return on_request(*qp, p);
    }
}

// --- being answered ----------------------------------------------------------------------------------------------

void network::complete_send(queue_pair& qp, ibv_wc_status status) {
    send_work const work = std::move(qp.sends.front());
    qp.sends.pop_front();
    if (qp.position > 0) {
        --qp.position;
    } else {
        qp.offset = 0;
        // An answer to what was to be sent again: its numbers are used.
        if (work.has_numbers) qp.next_number = std::max(qp.next_number, work.last + 1);
    }
    bool const is_wanted = qp.signals_all || (work.wr.send_flags & IBV_SEND_SIGNALED) != 0;
    if (status == IBV_WC_SUCCESS && !is_wanted) return;
    completion c;
    if (status != IBV_WC_SUCCESS) {
        c.wc = garbage();
    } else {
        c.wc.opcode = completed(work.wr.opcode);
        c.wc.byte_len = work.expects_answer() ? static_cast<std::uint32_t>(work.size) : 0;
    }
    c.wc.wr_id = work.wr.wr_id;
    c.wc.status = status;
    c.wc.qp_num = qp.qp_num;
    c.frees_send = true;
    c.index = work.index;
    push(static_cast<completion_queue&>(*qp.send_cq), std::move(c));
}

void network::fail_oldest(queue_pair& qp, ibv_wc_status status) {
    complete_send(qp, status);
    break_qp(qp);
}

void network::progress(queue_pair& qp) {
    qp.retries_left = qp.retry_count;
    qp.rnr_retries_left = qp.rnr_retry_count;
    qp.deadline = now() + patience(qp);
}

// Completes what the peer has taken: everything below a number. An answer that should have come by then was lost.
void network::retire_sends(queue_pair& qp, std::uint64_t taken_below) {
    std::uint64_t const before = qp.acknowledged;
    while (!qp.sends.empty() && qp.sends.front().has_numbers) {
        send_work const& work = qp.sends.front();
        if (work.expects_answer() && !work.is_answered) {
            std::uint64_t const missing = work.first + work.answered;
            if (missing >= taken_below) break;
            qp.acknowledged = std::max(qp.acknowledged, missing);
            if (qp.acknowledged > before) progress(qp);
            if (taken_below > qp.recovering_below) go_back(qp, missing);
            return;
        }
        if (work.last >= taken_below) break;
        complete_send(qp, IBV_WC_SUCCESS);
    }
    qp.acknowledged = std::max(qp.acknowledged, taken_below);
    if (qp.acknowledged > before) progress(qp);
}

void network::go_back(queue_pair& qp, std::uint64_t number) {
    qp.recovering_below = qp.high_number;
    for (std::size_t i = 0; i < qp.sends.size(); ++i) {
        send_work const& work = qp.sends[i];
        if (!work.has_numbers || number > work.last) continue;
        qp.position = i;
        qp.next_number = std::max(number, work.first);
        qp.offset = work.is_atomic() ? 0 : (qp.next_number - work.first) * qp.mtu;
        return;
    }
}

void network::on_acknowledge(queue_pair& qp, packet const& p) {
    if (qp.state != IBV_QPS_RTS || p.number + 1 <= qp.acknowledged || p.number >= qp.high_number) return;
    retire_sends(qp, p.number + 1);
    transmit(qp);
}

void network::on_negative(queue_pair& qp, packet const& p) {
    if (qp.state != IBV_QPS_RTS || p.number < qp.acknowledged || p.number >= qp.high_number) return;
    retire_sends(qp, p.number);
    bool const is_at_front = !qp.sends.empty() && qp.sends.front().has_numbers &&
                             p.number >= qp.sends.front().first && p.number <= qp.sends.front().last;
    if (!is_at_front) return transmit(qp);
    switch (p.why) {
    case packet::refusal::sequence:
        if (qp.retries_left == 0) return fail_oldest(qp, IBV_WC_RETRY_EXC_ERR);
        --qp.retries_left;
        go_back(qp, p.number);
        return transmit(qp);
    case packet::refusal::not_ready: {
        if (now() < qp.rnr_until) return;  // said twice
        // 7 means for ever. Source: ibv_modify_qp(3).
        if (qp.rnr_retry_count != 7) {
            if (qp.rnr_retries_left == 0) return fail_oldest(qp, IBV_WC_RNR_RETRY_EXC_ERR);
            --qp.rnr_retries_left;
        }
        qp.rnr_until = now() + rnr_delay(p.rnr_timer_code);
        qp.deadline = qp.rnr_until + patience(qp);
        go_back(qp, p.number);
        return at(qp.rnr_until, qp, &network::transmit);
    }
    default: return fail_oldest(qp, status_of(p.why));
    }
}

void network::on_answer(queue_pair& qp, packet const& p) {
    if (qp.state != IBV_QPS_RTS || p.number < qp.acknowledged || p.number >= qp.high_number) return;
    retire_sends(qp, p.number);
    if (qp.sends.empty()) return;
    send_work& work = qp.sends.front();
    bool const is_expected = work.expects_answer() && work.has_numbers && work.first + work.answered == p.number;
    if (!is_expected) return transmit(qp);
    if (!scatter(qp.pd, work.segments, p.offset, p.payload)) return fail_oldest(qp, IBV_WC_LOC_PROT_ERR);
    ++work.answered;
    qp.acknowledged = p.number + 1;
    progress(qp);
    if (p.number == work.last) {
        work.is_answered = true;
        complete_send(qp, IBV_WC_SUCCESS);
    }
    transmit(qp);
}

// --- not being answered --------------------------------------------------------------------------------------------

// 4.096 us x 2^code; 0 means for ever. Source: ibv_modify_qp(3).
nanoseconds network::patience(queue_pair const& qp) const {
    return qp.timeout_code == 0 ? std::chrono::hours{24 * 365} : nanoseconds{4096} * (std::int64_t{1} << qp.timeout_code);
}

void network::start_timer(queue_pair& qp) {
    if (qp.has_timer || qp.timeout_code == 0) return;
    qp.has_timer = true;
    qp.deadline = std::max(now(), qp.rnr_until) + patience(qp);
    at(qp.deadline, qp, &network::on_timer);
}

void network::on_timer(queue_pair& qp) {
    qp.has_timer = false;
    if (qp.is_asleep || qp.state != IBV_QPS_RTS || qp.acknowledged >= qp.next_number) return;
    if (now() < qp.deadline) {
        // There was progress meanwhile.
        qp.has_timer = true;
        return at(qp.deadline, qp, &network::on_timer);
    }
    if (qp.retries_left == 0) return fail_oldest(qp, IBV_WC_RETRY_EXC_ERR);
    --qp.retries_left;
    go_back(qp, qp.acknowledged);
    transmit(qp);
}

}  // namespace rcverbs::fabric::detail
