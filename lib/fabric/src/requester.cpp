// The requester of a reliable connection: sends work requests as packets, processes
// acknowledgements and responses, and retransmits from the first lost packet on. Source: InfiniBand
// specification, volume 1, "Transport layer", 9.7.
//
// Packets are numbered from 0 and never wrap. A read takes one number for each packet of its
// response.
#include "network.hpp"

#include <algorithm>
#include <cstring>

namespace rcverbs::fabric::detail {

namespace {

// The maximum number of unacknowledged packets.
constexpr std::uint64_t window_max = 256;
// The interval, in packets, of the acknowledgements within a long message.
constexpr std::uint64_t acknowledge_every = 64;

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
    constexpr std::uint32_t tens_of_us[32] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                              16,    24,   32,   48,    64,    96,    128,   192,
                                              256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                              4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return std::chrono::microseconds{10} * tens_of_us[code & 31];
}

}  // namespace

// --- sending -------------------------------------------------------------------------------------

void queue_pair::transmit() {
    if (is_asleep) return;
    bool const was_idle = acknowledged >= next_number;
    while (send_next()) {}
    if (was_idle) deadline = std::max(net->now(), rnr_until) + patience();
    if (state == IBV_QPS_RTS && acknowledged < next_number) start_timer();
}

// The status of work that completes without a packet or fails locally; none if it has to be sent.
std::optional<ibv_wc_status> queue_pair::settle_locally(send_work const& work) {
    if (work.forced_status >= 0) return static_cast<ibv_wc_status>(work.forced_status);
    if (work.wr.opcode == IBV_WR_LOCAL_INV) return net->invalidate(*this, work.wr.invalidate_rkey);
    if (work.wr.opcode == IBV_WR_BIND_MW) return net->bind_window(*this, work.wr);
    if (work.is_atomic() && work.size != sizeof(std::uint64_t)) return IBV_WC_LOC_LEN_ERR;
    if (work.size > on->options.message_bytes_max) return IBV_WC_LOC_LEN_ERR;
    if (work.expects_answer() && read_depth == 0) return IBV_WC_LOC_QP_OP_ERR;
    bool const is_inline = (work.wr.send_flags & IBV_SEND_INLINE) != 0;
    for (ibv_sge const& s : work.segments) {
        if (!is_inline && s.length > 0 &&
            net->local_bytes(pd, s, work.expects_answer()) == nullptr) {
            return IBV_WC_LOC_PROT_ERR;
        }
    }
    return std::nullopt;
}

// Reads and atomics are limited to the negotiated depth; a fence waits for all of them.
bool queue_pair::fits_in_flight(send_work const& work) const {
    if (next_number - acknowledged >= window_max || !has_room()) return false;
    bool const has_fence = (work.wr.send_flags & IBV_SEND_FENCE) != 0;
    if (offset > 0 || (!has_fence && !work.expects_answer())) return true;
    auto const end = sends.begin() + static_cast<std::ptrdiff_t>(position);
    auto const reads =
        static_cast<std::size_t>(std::count_if(sends.begin(), end, [](send_work const& w) {
            return w.expects_answer() && !w.is_answered;
        }));
    if (has_fence && reads > 0) return false;
    return !work.expects_answer() || reads < read_depth;
}

// Without its bytes.
packet queue_pair::make_request(send_work const& work) const {
    packet p;
    p.number = next_number;
    p.opcode = work.wr.opcode;
    p.message_bytes = work.size;
    p.offset = offset;
    p.is_first = offset == 0;
    p.is_solicited = (work.wr.send_flags & IBV_SEND_SOLICITED) != 0;
    p.immediate = work.wr.imm_data;  // or invalidate_rkey: they share a union
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
    bool const is_write =
        work.wr.opcode == IBV_WR_RDMA_WRITE || work.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    p.what = is_write ? packet::kind::write : packet::kind::send;
    p.number_end = p.number + 1;
    std::uint64_t const bytes = std::min<std::uint64_t>(mtu, work.size - offset);
    p.is_last = offset + bytes == work.size;
    p.wants_acknowledge = p.is_last || p.number % acknowledge_every == 0;
    return p;
}

// The bytes of the message from `offset` on; none if a region is gone.
std::optional<packet_payload> queue_pair::bytes_of(send_work const& work) const {
    std::uint64_t const size = std::min<std::uint64_t>(mtu, work.size - offset);
    if ((work.wr.send_flags & IBV_SEND_INLINE) != 0)
        return packet_payload{std::span{work.inline_data}.subspan(offset, size)};
    if (auto const whole = net->find_whole(pd, work.segments, offset, size))
        return packet_payload{*whole};
    packet_payload all;
    if (!net->gather(pd, work.segments, offset, all.make(size))) return std::nullopt;
    return all;
}

// Sends one packet; false if nothing can be sent now.
bool queue_pair::send_next() {
    if (state != IBV_QPS_RTS || net->now() < rnr_until || position >= sends.size()) return false;
    send_work& work = sends[position];
    if (!work.has_numbers || work.forced_status >= 0) {
        // Completions are in order: work without packets waits for the work before it.
        if (work.is_local() && position > 0) return false;
        if (std::optional<ibv_wc_status> const status = settle_locally(work)) {
            if (position > 0) return false;
            if (*status != IBV_WC_SUCCESS) {
                fail_oldest(*status);
                return false;
            }
            complete_send(IBV_WC_SUCCESS);
            return true;
        }
    }
    if (!fits_in_flight(work)) return false;
    if (!work.has_numbers) {
        work.has_numbers = true;
        work.first = next_number;
        work.last = work.first + (work.is_atomic() ? 1 : packets_for(work.size, mtu)) - 1;
    }
    packet p = make_request(work);
    if (!work.expects_answer()) {
        std::optional<packet_payload> bytes = bytes_of(work);
        if (!bytes) {
            // The region was deregistered while the message was in flight.
            if (position > 0) return false;
            fail_oldest(IBV_WC_LOC_PROT_ERR);
            return false;
        }
        p.payload = *std::move(bytes);
    }
    if (p.number < high_number) ++on->counters.packets_sent_again;
    next_number = p.number_end;
    high_number = std::max(high_number, next_number);
    offset += p.payload.size();
    if (p.is_last || work.expects_answer()) {
        ++position;
        offset = 0;
    }
    send_packet(std::move(p));
    return true;
}

nanoseconds queue_pair::travel() {
    nanoseconds arrival = net->now();
    if (net->is_stepped()) {
        arrival += nanoseconds{net->pick(
            static_cast<std::uint64_t>(net->options().latency_min.count()),
            static_cast<std::uint64_t>(net->options().latency_max.count())
        )};
    }
    // At least 1 ns later: packets with the same arrival time could be reordered.
    link_free = std::max(link_free + nanoseconds{1}, arrival);
    return link_free;
}

void queue_pair::send_packet(packet p) {
    p.source = qp_num;
    p.target = remote_qp;
    if (!on->is_reachable()) return;
    if (gid_index < on->addresses.size()) p.from = gid_of(on->addresses[gid_index]);
    p.to = remote_gid;
    ++on->counters.packets_sent;
    packet_fate fate;
    if (net->faults.packet_decision) {
        fate = net->faults.packet_decision(
            {static_cast<packet_info::kind>(p.what), p.source, p.target, p.number, p.payload.size()}
        );
    }
    if (fate.what == packet_fate::kind::drop) return;
    if (net->others != nullptr && net->others->is_elsewhere(p.to, p.target)) {
        if (fate.what == packet_fate::kind::duplicate) net->others->send(p);
        if (fate.what != packet_fate::kind::delay) return net->others->send(p);
        ++net->delayed;
        p.payload.own();
        return net->at(net->now() + fate.by, [net = net, p = std::move(p)] {
            --net->delayed;
            net->others->send(p);
        });
    }
    p.payload.own();
    nanoseconds arrival = travel();
    if (fate.what == packet_fate::kind::delay) arrival += fate.by;
    if (fate.what == packet_fate::kind::duplicate)
        net->at(arrival, [net = net, p] { net->deliver(p); });
    net->at(arrival, [net = net, p = std::move(p)] { net->deliver(p); });
}

bool queue_pair::has_room() const {
    return net->others == nullptr || net->others->has_room(remote_gid, remote_qp);
}

void queue_pair::arrive(packet const& p) {
    if (remote_qp != p.source || !on->is_reachable()) return;
    // In one process, programs may leave the address of an out-of-band connection out.
    if (net->others != nullptr && std::memcmp(&p.from, &remote_gid, sizeof p.from) != 0) return;
    switch (p.what) {
    case packet::kind::acknowledge: return on_acknowledge(p);
    case packet::kind::negative: return on_negative(p);
    case packet::kind::read_response:
    case packet::kind::atomic_response: return on_answer(p);
    default: return on_request(p);
    }
}

// --- acknowledgements and responses --------------------------------------------------------------

void queue_pair::complete_send(ibv_wc_status status) {
    send_work const work = std::move(sends.front());
    sends.pop_front();
    if (position > 0) {
        --position;
    } else {
        offset = 0;
        // The work was to be retransmitted, but the answer arrived: skip its numbers.
        if (work.has_numbers) next_number = std::max(next_number, work.last + 1);
    }
    bool const is_wanted = signals_all || (work.wr.send_flags & IBV_SEND_SIGNALED) != 0;
    if (status == IBV_WC_SUCCESS && !is_wanted) return;
    completion c;
    if (status != IBV_WC_SUCCESS) {
        c.wc = net->garbage();
    } else {
        c.wc.opcode = completed(work.wr.opcode);
        c.wc.byte_len = work.expects_answer() ? static_cast<std::uint32_t>(work.size) : 0;
    }
    c.wc.wr_id = work.wr.wr_id;
    c.wc.status = status;
    c.wc.qp_num = qp_num;
    c.frees_send = true;
    c.index = work.index;
    net->push(static_cast<completion_queue&>(*send_cq), std::move(c));
}

void queue_pair::fail_oldest(ibv_wc_status status) {
    complete_send(status);
    move_to_error();
}

void queue_pair::progress() {
    retries_left = retry_count;
    rnr_retries_left = rnr_retry_count;
    deadline = net->now() + patience();
}

// Completes the work whose packets all are below `taken_below`. A missing response below it was
// lost: requests it again.
void queue_pair::retire_sends(std::uint64_t taken_below) {
    std::uint64_t const before = acknowledged;
    while (!sends.empty() && sends.front().has_numbers) {
        send_work const& work = sends.front();
        if (work.expects_answer() && !work.is_answered) {
            std::uint64_t const missing = work.first + work.answered;
            if (missing >= taken_below) break;
            acknowledged = std::max(acknowledged, missing);
            skip_acknowledged();
            if (acknowledged > before) progress();
            if (taken_below > recovering_below) go_back(missing);
            return;
        }
        if (work.last >= taken_below) break;
        complete_send(IBV_WC_SUCCESS);
    }
    acknowledged = std::max(acknowledged, taken_below);
    skip_acknowledged();
    if (acknowledged > before) progress();
}

// The first part of the oldest work was to be sent again, but has arrived meanwhile.
void queue_pair::skip_acknowledged() {
    if (next_number >= acknowledged) return;
    next_number = acknowledged;
    bool const is_partial = !sends.empty() && sends.front().has_numbers;
    if (is_partial) offset = (acknowledged - sends.front().first) * mtu;
}

void queue_pair::go_back(std::uint64_t number) {
    recovering_below = high_number;
    for (std::size_t i = 0; i < sends.size(); ++i) {
        send_work const& work = sends[i];
        if (!work.has_numbers || number > work.last) continue;
        position = i;
        next_number = std::max(number, work.first);
        offset = work.is_atomic() ? 0 : (next_number - work.first) * mtu;
        return;
    }
}

void queue_pair::on_acknowledge(packet const& p) {
    if (state != IBV_QPS_RTS || p.number + 1 <= acknowledged || p.number >= high_number) return;
    retire_sends(p.number + 1);
    transmit();
}

void queue_pair::on_negative(packet const& p) {
    if (state != IBV_QPS_RTS || p.number < acknowledged || p.number >= high_number) return;
    retire_sends(p.number);
    bool const is_at_front = !sends.empty() && sends.front().has_numbers &&
                             p.number >= sends.front().first && p.number <= sends.front().last;
    if (!is_at_front) return transmit();
    switch (p.why) {
    case packet::refusal::sequence:
        if (retries_left == 0) return fail_oldest(IBV_WC_RETRY_EXC_ERR);
        --retries_left;
        go_back(p.number);
        return transmit();
    case packet::refusal::not_ready: {
        if (net->now() < rnr_until) return;  // a duplicate
        // 7 means no limit. Source: ibv_modify_qp(3).
        if (rnr_retry_count != 7) {
            if (rnr_retries_left == 0) return fail_oldest(IBV_WC_RNR_RETRY_EXC_ERR);
            --rnr_retries_left;
        }
        rnr_until = net->now() + rnr_delay(p.rnr_timer_code);
        deadline = rnr_until + patience();
        go_back(p.number);
        return net->at(rnr_until, *this, &queue_pair::transmit);
    }
    default: return fail_oldest(status_of(p.why));
    }
}

void queue_pair::on_answer(packet const& p) {
    if (state != IBV_QPS_RTS || p.number < acknowledged || p.number >= high_number) return;
    retire_sends(p.number);
    if (sends.empty()) return;
    send_work& work = sends.front();
    bool const is_expected =
        work.expects_answer() && work.has_numbers && work.first + work.answered == p.number;
    if (!is_expected) return transmit();
    std::uint64_t const at = work.answered * mtu;
    if (p.offset != at || p.payload.size() != std::min<std::uint64_t>(mtu, work.size - at))
        return fail_oldest(IBV_WC_BAD_RESP_ERR);
    if (!net->scatter(pd, work.segments, p.offset, p.payload))
        return fail_oldest(IBV_WC_LOC_PROT_ERR);
    ++work.answered;
    acknowledged = p.number + 1;
    progress();
    if (p.number == work.last) {
        work.is_answered = true;
        complete_send(IBV_WC_SUCCESS);
    }
    transmit();
}

// --- timeouts ------------------------------------------------------------------------------------

// 4.096 us x 2^code; 0 means no timeout. Source: ibv_modify_qp(3).
nanoseconds queue_pair::patience() const {
    return timeout_code == 0 ? std::chrono::hours{24 * 365}
                             : nanoseconds{4096} * (std::int64_t{1} << timeout_code);
}

void queue_pair::start_timer() {
    if (has_timer || timeout_code == 0) return;
    has_timer = true;
    deadline = std::max(net->now(), rnr_until) + patience();
    net->at(deadline, *this, &queue_pair::on_timer);
}

void queue_pair::on_timer() {
    has_timer = false;
    if (is_asleep || state != IBV_QPS_RTS || acknowledged >= next_number) return;
    if (net->now() < deadline) {
        // Progress has moved the deadline.
        has_timer = true;
        return net->at(deadline, *this, &queue_pair::on_timer);
    }
    if (retries_left == 0) return fail_oldest(IBV_WC_RETRY_EXC_ERR);
    --retries_left;
    go_back(acknowledged);
    transmit();
}

}  // namespace rcverbs::fabric::detail
