// work_request.hpp — from an operation's requests to the work requests that the device takes.
//
// One request becomes one work request, or several where it is longer than a message of the device, or gathers from more
// slices than the device does at once: pieces, at the right offsets of the remote region.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <infiniband/verbs.h>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/detail/operation.hpp>

namespace rcverbs::verbs {

/// What fits into one work request.
struct piece_limits {
    std::uint64_t bytes_max = 0;
    std::size_t segments_max = 0;
};

/// A work request's id: the place in its queue, and which queue. Only the id may be read from a failed completion.
constexpr std::uint64_t receive_bit = std::uint64_t{1} << 63;
constexpr std::uint64_t shared_bit = std::uint64_t{1} << 62;
constexpr std::uint64_t send_id(std::uint64_t sequence) noexcept { return sequence; }
constexpr std::uint64_t receive_id(std::uint64_t sequence) noexcept { return sequence | receive_bit; }
constexpr bool is_receive(std::uint64_t id) noexcept { return (id & receive_bit) != 0; }
constexpr std::uint64_t sequence_of(std::uint64_t id) noexcept { return id & ~(receive_bit | shared_bit); }
/// That of a shared receive queue: the number of its slot.
constexpr std::uint64_t shared_receive_id(std::uint64_t slot) noexcept { return slot | receive_bit | shared_bit; }
constexpr bool is_shared_receive(std::uint64_t id) noexcept { return (id & shared_bit) != 0; }

// The order of operation_kind: what the local memory is only read for, reads, atomics, receives. One comparison for each.
static_assert(
    detail::operation_kind::write_with_immediate < detail::operation_kind::read &&
    detail::operation_kind::read < detail::operation_kind::fetch_add &&
    detail::operation_kind::fetch_add < detail::operation_kind::compare_swap &&
    detail::operation_kind::compare_swap < detail::operation_kind::receive
);

/// True for fetch-and-add and compare-and-swap.
constexpr bool is_atomic(detail::operation_kind kind) noexcept {
    return kind >= detail::operation_kind::fetch_add && kind <= detail::operation_kind::compare_swap;
}
/// True for what counts against the negotiated depth of reads and atomics.
constexpr bool is_read_or_atomic(detail::operation_kind kind) noexcept {
    return kind >= detail::operation_kind::read && kind <= detail::operation_kind::compare_swap;
}

/// What an operation's own memory must allow.
constexpr access_flags local_rights(detail::operation_kind kind) noexcept {
    return kind >= detail::operation_kind::read ? access_flags::local_write : access_flags::local_read;
}

// --- what the builders below are made of ---

// In the order of operation_kind.
inline constexpr std::array opcodes{
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    IBV_WR_SEND_WITH_INV,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_ATOMIC_CMP_AND_SWP};
static_assert(opcodes.size() == static_cast<std::size_t>(detail::operation_kind::receive));

inline ibv_wr_opcode opcode_of(detail::operation_kind kind, bool is_last) noexcept {
    // The peer is told once, when all is there: a reliable connection delivers in order.
    if (!is_last && kind == detail::operation_kind::write_with_immediate) return IBV_WR_RDMA_WRITE;
    return opcodes[static_cast<std::size_t>(kind)];
}

// What does not depend on the segments.
inline void fill(ibv_send_wr& out, detail::request const& what, std::uint64_t offset, bool is_last) noexcept {
    out.opcode = opcode_of(what.kind, is_last);
    out.send_flags = what.is_fenced ? unsigned{IBV_SEND_FENCE} : 0U;
    if (is_atomic(what.kind)) {
        out.wr.atomic.remote_addr = what.remote_address;
        out.wr.atomic.compare_add = what.operand;
        out.wr.atomic.swap = what.swap;
        out.wr.atomic.rkey = what.remote.value;
        return;
    }
    // One place for both. Source: ibv_post_send(3).
    if (what.kind == detail::operation_kind::send_with_invalidate) {
        out.invalidate_rkey = what.remote.value;
    } else {
        out.imm_data = htonl(what.immediate);
    }
    out.wr.rdma.remote_addr = what.remote_address + offset;
    out.wr.rdma.rkey = what.remote.value;
}

inline ibv_sge segment_of(local_slice const& slice, std::size_t offset, std::size_t size) noexcept {
    // Verbs name memory by number.
    return {reinterpret_cast<std::uintptr_t>(slice.data()) + offset, static_cast<std::uint32_t>(size), slice.key().value};
}

// --- from requests to work requests ---

/// How many segments the request's slices make, if no piece is cut.
std::size_t count_segments(detail::request const& what) noexcept;
/// How many work requests the request makes.
std::size_t count_pieces(detail::request const& what, piece_limits const& limits) noexcept;

/// Fills `out`, and `segments`, with the next piece of a request from `at` on, and moves `at` behind it; true if that was
/// the last one. The id, the link, and the flags other than that of the fence are the caller's.
bool build(
    ibv_send_wr& out,
    ibv_sge* segments,
    detail::request const& what,
    detail::progress_mark& at,
    piece_limits const& limits
) noexcept;

/// The same for a request that makes one work request of at most one segment. Inlined into the way of nearly all work.
inline void build_single(ibv_send_wr& out, ibv_sge& segment, detail::request const& what) noexcept {
    out.sg_list = &segment;
    out.num_sge = what.local.size_bytes() > 0 ? 1 : 0;
    segment = segment_of(what.local.front(), 0, what.local.size_bytes());
    fill(out, what, 0, true);
}

/// Fills `out`, and `segments`, with a receive, except for the link. REQUIRES: room for count_segments().
void build(ibv_recv_wr& out, ibv_sge* segments, detail::request const& what) noexcept;

/// What a successful completion says of a message that has arrived.
received read_arrival(ibv_wc const& completion) noexcept;

}  // namespace rcverbs::verbs
