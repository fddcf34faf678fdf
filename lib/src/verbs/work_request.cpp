#include "verbs/work_request.hpp"

#include <arpa/inet.h>

#include <algorithm>

namespace rcverbs::verbs {

using detail::operation_kind;

namespace {

ibv_wr_opcode opcode_of(operation_kind kind, bool is_last) noexcept {
    switch (kind) {
    case operation_kind::send_with_immediate: return IBV_WR_SEND_WITH_IMM;
    case operation_kind::send_with_invalidate: return IBV_WR_SEND_WITH_INV;
    case operation_kind::write: return IBV_WR_RDMA_WRITE;
    // The peer is told once, when all is there: a reliable connection delivers in order.
    case operation_kind::write_with_immediate: return is_last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    case operation_kind::read: return IBV_WR_RDMA_READ;
    case operation_kind::fetch_add: return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case operation_kind::compare_swap: return IBV_WR_ATOMIC_CMP_AND_SWP;
    case operation_kind::send:
    case operation_kind::receive: break;
    }
    return IBV_WR_SEND;
}

ibv_sge segment_of(local_slice const& slice, std::size_t offset, std::size_t size) noexcept {
    // Verbs name memory by number.
    return {reinterpret_cast<std::uintptr_t>(slice.data()) + offset, static_cast<std::uint32_t>(size), slice.key().value};
}

// Moves `at` behind the next piece and hands its parts to `take(slice, offset, size)`; true at the request's end.
template <class Take>
bool next_piece(detail::request const& what, detail::progress_mark& at, piece_limits const& limits, Take&& take) noexcept {
    std::uint64_t room = limits.bytes_max;
    for (std::size_t taken = 0; at.slice_index < what.local.count() && taken < limits.segments_max && room > 0;) {
        local_slice const& slice = what.local[at.slice_index];
        auto const size = static_cast<std::size_t>(std::min<std::uint64_t>(slice.size() - at.slice_offset, room));
        if (size > 0) {
            take(slice, at.slice_offset, size);
            ++taken;
        }
        room -= size;
        at.size_bytes += size;
        at.slice_offset += size;
        if (at.slice_offset == slice.size()) {
            ++at.slice_index;
            at.slice_offset = 0;
        }
    }
    return at.size_bytes == what.local.size_bytes();
}

}  // namespace

bool is_atomic(operation_kind kind) noexcept {
    return kind == operation_kind::fetch_add || kind == operation_kind::compare_swap;
}

bool is_read_or_atomic(operation_kind kind) noexcept { return kind == operation_kind::read || is_atomic(kind); }

bool is_send(operation_kind kind) noexcept {
    return kind == operation_kind::send || kind == operation_kind::send_with_immediate ||
           kind == operation_kind::send_with_invalidate;
}

std::size_t count_segments(detail::request const& what) noexcept {
    std::size_t count = 0;
    for (std::size_t i = 0; i < what.local.count(); ++i) count += what.local[i].size() > 0 ? 1 : 0;
    return count;
}

std::size_t count_pieces(detail::request const& what, piece_limits const& limits) noexcept {
    if (what.local.count() <= 1 && what.local.size_bytes() <= limits.bytes_max) return 1;
    detail::progress_mark at;
    std::size_t count = 1;
    while (!next_piece(what, at, limits, [](local_slice const&, std::size_t, std::size_t) {})) ++count;
    return count;
}

bool build(
    ibv_send_wr& out,
    ibv_sge* segments,
    detail::request const& what,
    detail::progress_mark& at,
    piece_limits const& limits
) noexcept {
    std::uint64_t const offset = at.size_bytes;
    int count = 0;
    bool const is_last = next_piece(what, at, limits, [&](local_slice const& slice, std::size_t from, std::size_t size) {
        segments[count++] = segment_of(slice, from, size);
    });
    out = {};
    out.sg_list = segments;
    out.num_sge = count;
    out.opcode = opcode_of(what.kind, is_last);
    out.send_flags = what.is_fenced ? unsigned{IBV_SEND_FENCE} : 0U;
    if (is_atomic(what.kind)) {
        out.wr.atomic.remote_addr = what.remote_address;
        out.wr.atomic.compare_add = what.operand;
        out.wr.atomic.swap = what.swap;
        out.wr.atomic.rkey = what.remote.value;
        return is_last;
    }
    // One place for both. Source: ibv_post_send(3).
    if (what.kind == operation_kind::send_with_invalidate) {
        out.invalidate_rkey = what.remote.value;
    } else {
        out.imm_data = htonl(what.immediate);
    }
    out.wr.rdma.remote_addr = what.remote_address + offset;
    out.wr.rdma.rkey = what.remote.value;
    return is_last;
}

void build(ibv_recv_wr& out, ibv_sge* segments, detail::request const& what) noexcept {
    out = {};
    out.sg_list = segments;
    for (std::size_t i = 0; i < what.local.count(); ++i) {
        local_slice const& slice = what.local[i];
        if (slice.size() > 0) segments[out.num_sge++] = segment_of(slice, 0, slice.size());
    }
}

received read_arrival(ibv_wc const& completion) noexcept {
    received arrival;
    arrival.size_bytes = completion.byte_len;
    arrival.is_write = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
    arrival.queue_pair_number = completion.qp_num;
    if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) arrival.immediate = ntohl(completion.imm_data);
    if ((completion.wc_flags & IBV_WC_WITH_INV) != 0) arrival.invalidated = remote_key{completion.invalidated_rkey};
    return arrival;
}

}  // namespace rcverbs::verbs
