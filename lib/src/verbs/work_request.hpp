// work_request.hpp — builds the device's work requests from an operation's requests.
//
// A request becomes one work request, or several pieces if it is longer than the device's longest
// message or has more slices than one work request takes segments. Each piece has its own offset in
// the remote region.
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

/// The limits of one work request.
struct piece_limits {
    std::uint64_t bytes_max = 0;
    std::size_t segments_max = 0;
    /// Of a read, if that is less: on iWARP 1, and the device reads no more than that without an error.
    std::size_t read_segments_max = SIZE_MAX;
};

/// A work request's id: its sequence number in its queue, and bits that identify the queue. In a
/// failed completion only the id may be read.
constexpr std::uint64_t receive_bit = std::uint64_t{1} << 63;
constexpr std::uint64_t shared_bit = std::uint64_t{1} << 62;
constexpr std::uint64_t send_id(std::uint64_t sequence) noexcept { return sequence; }
constexpr std::uint64_t receive_id(std::uint64_t sequence) noexcept {
    return sequence | receive_bit;
}
constexpr bool is_receive(std::uint64_t id) noexcept { return (id & receive_bit) != 0; }
constexpr std::uint64_t sequence_of(std::uint64_t id) noexcept {
    return id & ~(receive_bit | shared_bit);
}
/// The id of a receive in a shared receive queue: its slot number.
constexpr std::uint64_t shared_receive_id(std::uint64_t slot) noexcept {
    return slot | receive_bit | shared_bit;
}
constexpr bool is_shared_receive(std::uint64_t id) noexcept { return (id & shared_bit) != 0; }

/// True for fetch-and-add and compare-and-swap.
constexpr bool is_atomic(detail::operation_kind kind) noexcept {
    return kind == detail::operation_kind::fetch_add ||
           kind == detail::operation_kind::compare_swap;
}
/// True for operations that count against the negotiated depth of reads and atomics.
constexpr bool is_read_or_atomic(detail::operation_kind kind) noexcept {
    return kind == detail::operation_kind::read || is_atomic(kind);
}
/// True for messages: they are not split.
constexpr bool is_send(detail::operation_kind kind) noexcept {
    return kind == detail::operation_kind::send ||
           kind == detail::operation_kind::send_with_immediate ||
           kind == detail::operation_kind::send_with_invalidate;
}
/// True for the operations of a memory window.
constexpr bool is_of_window(detail::operation_kind kind) noexcept {
    return kind == detail::operation_kind::bind_window ||
           kind == detail::operation_kind::invalidate_window;
}
/// True for operations whose result is the number of bytes that they move.
constexpr bool is_transfer(detail::operation_kind kind) noexcept {
    return is_send(kind) || kind == detail::operation_kind::write ||
           kind == detail::operation_kind::write_with_immediate ||
           kind == detail::operation_kind::read;
}

/// The rights that an operation needs on its local memory.
constexpr access_flags local_rights(detail::operation_kind kind) noexcept {
    // A binding checks the rights of its range itself.
    bool const is_read_only = is_send(kind) || kind == detail::operation_kind::write ||
                              kind == detail::operation_kind::write_with_immediate ||
                              is_of_window(kind);
    return is_read_only ? access_flags::local_read : access_flags::local_write;
}

// --- helpers of the builders below ---------------------------------------------------------------

// By operation_kind; receives and the operations of windows have none here.
inline constexpr auto opcodes = [] {
    using detail::operation_kind;
    std::array<ibv_wr_opcode, detail::operation_kinds> of{};
    auto const at = [&](operation_kind kind) -> ibv_wr_opcode& {
        return of[static_cast<std::size_t>(kind)];
    };
    at(operation_kind::send) = IBV_WR_SEND;
    at(operation_kind::send_with_immediate) = IBV_WR_SEND_WITH_IMM;
    at(operation_kind::send_with_invalidate) = IBV_WR_SEND_WITH_INV;
    at(operation_kind::write) = IBV_WR_RDMA_WRITE;
    at(operation_kind::write_with_immediate) = IBV_WR_RDMA_WRITE_WITH_IMM;
    at(operation_kind::read) = IBV_WR_RDMA_READ;
    at(operation_kind::fetch_add) = IBV_WR_ATOMIC_FETCH_AND_ADD;
    at(operation_kind::compare_swap) = IBV_WR_ATOMIC_CMP_AND_SWP;
    return of;
}();

inline ibv_wr_opcode opcode_of(detail::operation_kind kind, bool is_last) noexcept {
    // Only the last piece carries the immediate. A reliable connection delivers in order, so the
    // peer receives it after all data.
    if (!is_last && kind == detail::operation_kind::write_with_immediate) return IBV_WR_RDMA_WRITE;
    return opcodes[static_cast<std::size_t>(kind)];
}

// Fills the fields that do not depend on the segments.
inline void fill(
    ibv_send_wr& out, detail::work_request const& what, std::uint64_t offset, bool is_last
) noexcept {
    out.opcode = opcode_of(what.kind, is_last);
    out.send_flags = what.is_fenced ? unsigned{IBV_SEND_FENCE} : 0U;
    if (is_atomic(what.kind)) {
        out.wr.atomic.remote_addr = what.remote_address;
        out.wr.atomic.compare_add = what.operand;
        out.wr.atomic.swap = what.swap;
        out.wr.atomic.rkey = what.remote.value;
        return;
    }
    // The key and the immediate share a union. Source: ibv_post_send(3).
    if (what.kind == detail::operation_kind::send_with_invalidate) {
        out.invalidate_rkey = what.remote.value;
    } else {
        out.imm_data = htonl(what.immediate);
    }
    out.wr.rdma.remote_addr = what.remote_address + offset;
    out.wr.rdma.rkey = what.remote.value;
}

/// The length of a segment has 32 bits, even if the device supports longer messages.
inline constexpr std::uint64_t segment_bytes_max = std::uint64_t{1} << 31;

inline ibv_sge segment_of(
    detail::plain_slice const& slice, std::size_t offset, std::size_t size
) noexcept {
    // Verbs carry addresses as integers.
    return {
        reinterpret_cast<std::uintptr_t>(slice.data) + offset,
        static_cast<std::uint32_t>(size),
        slice.key};
}

// --- from requests to work requests --------------------------------------------------------------

/// The number of segments of the request's slices, if they are not split into pieces.
std::size_t count_segments(detail::work_request const& what) noexcept;
/// The number of work requests that the request needs.
std::size_t count_pieces(detail::work_request const& what, piece_limits const& limits) noexcept;

/// Fills `out` and `segments` with the piece of the request that starts at `at`, and advances `at`
/// past it. Returns true for the last piece. The caller sets the id, the link, and all flags except
/// the fence.
bool build(
    ibv_send_wr& out,
    ibv_sge* segments,
    detail::work_request const& what,
    detail::progress_mark& at,
    piece_limits const& limits
) noexcept;

/// The same for a request that needs one work request with at most one segment. Inlined, because
/// nearly all work takes this path.
inline void build_single(
    ibv_send_wr& out, ibv_sge& segment, detail::work_request const& what
) noexcept {
    out.sg_list = &segment;
    out.num_sge = what.local.size() > 0 ? 1 : 0;
    segment = segment_of(what.local.front(), 0, what.local.size());
    fill(out, what, 0, true);
}

/// Fills `out` and `segments` with a receive, except for the id and the link. REQUIRES: `segments`
/// has room for count_segments().
void build(ibv_recv_wr& out, ibv_sge* segments, detail::work_request const& what) noexcept;

/// Reads the result of a received message from its successful completion.
receive_result read_arrival(ibv_wc const& completion) noexcept;

}  // namespace rcverbs::verbs
