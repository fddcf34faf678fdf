// work_request.hpp — from an operation's requests to the work requests that the device takes.
//
// One request becomes one work request, or several where it is longer than a message of the device, or gathers from more
// slices than the device does at once: pieces, at the right offsets of the remote region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <infiniband/verbs.h>

#include <rcverbs/detail/operation.hpp>

namespace rcverbs::verbs {

/// What fits into one work request.
struct piece_limits {
    std::uint64_t bytes_max = 0;
    std::size_t segments_max = 0;
};

/// A work request's id: the place in its queue, and which queue. Only the id may be read from a failed completion.
constexpr std::uint64_t receive_bit = std::uint64_t{1} << 63;
constexpr std::uint64_t send_id(std::uint64_t sequence) noexcept { return sequence; }
constexpr std::uint64_t receive_id(std::uint64_t sequence) noexcept { return sequence | receive_bit; }
constexpr bool is_receive(std::uint64_t id) noexcept { return (id & receive_bit) != 0; }
constexpr std::uint64_t sequence_of(std::uint64_t id) noexcept { return id & ~receive_bit; }

/// True for fetch-and-add and compare-and-swap.
bool is_atomic(detail::operation_kind kind) noexcept;
/// True for what counts against the negotiated depth of reads and atomics.
bool is_read_or_atomic(detail::operation_kind kind) noexcept;
/// True for what arrives as one message and cannot be cut.
bool is_send(detail::operation_kind kind) noexcept;

/// How many segments the request's slices make, if no piece is cut.
std::size_t count_segments(detail::request const& what) noexcept;
/// How many work requests the request makes.
std::size_t count_pieces(detail::request const& what, piece_limits const& limits) noexcept;

/// Fills `out`, and `segments`, with the next piece of a request from `at` on, and moves `at` behind it; true if that was
/// the last one. The id, the flags of completion and inline data and the link are the caller's.
bool build(
    ibv_send_wr& out,
    ibv_sge* segments,
    detail::request const& what,
    detail::progress_mark& at,
    piece_limits const& limits
) noexcept;

/// Fills `out`, and `segments`, with a receive, except for the link. REQUIRES: room for count_segments().
void build(ibv_recv_wr& out, ibv_sge* segments, detail::request const& what) noexcept;

/// What a successful completion says of a message that has arrived.
received read_arrival(ibv_wc const& completion) noexcept;

}  // namespace rcverbs::verbs
