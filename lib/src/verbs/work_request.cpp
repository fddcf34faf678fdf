#include "verbs/work_request.hpp"

#include <arpa/inet.h>

#include <cstring>

namespace rcverbs::verbs {

using detail::operation_kind;

namespace {

ibv_wr_opcode opcode_of(operation_kind kind) noexcept {
    switch (kind) {
    case operation_kind::send_with_immediate: return IBV_WR_SEND_WITH_IMM;
    case operation_kind::write: return IBV_WR_RDMA_WRITE;
    case operation_kind::write_with_immediate: return IBV_WR_RDMA_WRITE_WITH_IMM;
    case operation_kind::read: return IBV_WR_RDMA_READ;
    case operation_kind::fetch_add: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case operation_kind::compare_swap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case operation_kind::send:
    case operation_kind::receive: break;
    }
    return IBV_WR_SEND;
}

ibv_sge segment_of(detail::request const& what, std::size_t offset, std::size_t size) noexcept {
    ibv_sge segment{};
    segment.addr = reinterpret_cast<std::uintptr_t>(what.local_data) + offset;  // verbs name memory by number
    segment.length = static_cast<std::uint32_t>(size);
    segment.lkey = what.key.value;
    return segment;
}

}  // namespace

bool is_read_or_atomic(operation_kind kind) noexcept {
    return kind == operation_kind::read || kind == operation_kind::fetch_add ||
           kind == operation_kind::compare_swap;
}

void build(
    send_request& out,
    detail::request const& what,
    std::size_t offset_bytes,
    std::size_t size_bytes,
    std::uint64_t sequence,
    bool signalled
) noexcept {
    out.wr = {};
    out.segment = segment_of(what, offset_bytes, size_bytes);
    out.wr.wr_id = send_id(sequence);
    out.wr.sg_list = &out.segment;
    out.wr.num_sge = size_bytes > 0 ? 1 : 0;
    out.wr.opcode = opcode_of(what.kind);
    out.wr.send_flags = (signalled ? unsigned{IBV_SEND_SIGNALED} : 0U) | (what.fence ? unsigned{IBV_SEND_FENCE} : 0U);
    out.wr.imm_data = htonl(what.immediate);
    switch (what.kind) {
    case operation_kind::fetch_add:
    case operation_kind::compare_swap:
        out.wr.wr.atomic.remote_addr = what.remote_address;
        out.wr.wr.atomic.compare_add = what.operand;
        out.wr.wr.atomic.swap = what.swap;
        out.wr.wr.atomic.rkey = what.remote.value;
        break;
    default:
        out.wr.wr.rdma.remote_addr = what.remote_address + offset_bytes;
        out.wr.wr.rdma.rkey = what.remote.value;
        break;
    }
}

void send_inline(send_request& request) noexcept {
    switch (request.wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        if (request.wr.num_sge > 0) request.wr.send_flags |= IBV_SEND_INLINE;
        break;
    default: break;
    }
}

void build(receive_request& out, detail::request const& what, std::uint64_t sequence) noexcept {
    out.wr = {};
    out.segment = segment_of(what, 0, what.size_bytes);
    out.wr.wr_id = receive_id(sequence);
    out.wr.sg_list = &out.segment;
    out.wr.num_sge = what.size_bytes > 0 ? 1 : 0;
}

void read_completion(
    detail::outcome& out, detail::request const& what, ibv_wc const& completion
) noexcept {
    switch (what.kind) {
    case operation_kind::receive:
        out.arrival.size_bytes = completion.byte_len;
        out.arrival.is_write = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) {
            out.arrival.immediate = ntohl(completion.imm_data);
        }
        break;
    case operation_kind::fetch_add:
    case operation_kind::compare_swap: std::memcpy(&out.word, what.local_data, sizeof out.word); break;
    default: out.bytes = what.size_bytes; break;
    }
}

}  // namespace rcverbs::verbs
