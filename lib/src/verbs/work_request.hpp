// work_request.hpp — from an operation's request to the work requests that the device takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include <infiniband/verbs.h>

#include <rcverbs/detail/operation.hpp>

namespace rcverbs::verbs {

/// A send-queue work request and its one segment, which points into itself: build in place, do not copy.
struct send_request {
    ibv_send_wr wr;
    ibv_sge segment;
};

/// A receive work request and its one segment: build in place, do not copy.
struct receive_request {
    ibv_recv_wr wr;
    ibv_sge segment;
};

/// A work request's id: the place in its queue, and which queue. Only the id may be read from a failed completion.
constexpr std::uint64_t receive_bit = std::uint64_t{1} << 63;
constexpr std::uint64_t send_id(std::uint64_t sequence) noexcept { return sequence; }
constexpr std::uint64_t receive_id(std::uint64_t sequence) noexcept { return sequence | receive_bit; }
constexpr bool is_receive(std::uint64_t id) noexcept { return (id & receive_bit) != 0; }
constexpr std::uint64_t sequence_of(std::uint64_t id) noexcept { return id & ~receive_bit; }

/// True for what counts against the negotiated depth of reads and atomics.
bool is_read_or_atomic(detail::operation_kind kind) noexcept;

/// Fills `out` with `size_bytes` bytes of the request from `offset_bytes` on.
void build(
    send_request& out,
    detail::request const& what,
    std::size_t offset_bytes,
    std::size_t size_bytes,
    std::uint64_t sequence,
    bool signalled
) noexcept;

/// Makes the device take the bytes when it is posted, if it is work that sends any. REQUIRES: the queue pair takes so
/// many.
void send_inline(send_request& request) noexcept;

/// Fills `out` with a receive.
void build(receive_request& out, detail::request const& what, std::uint64_t sequence) noexcept;

/// Fills an operation's result from its successful completion.
void read_completion(detail::outcome& out, detail::request const& what, ibv_wc const& completion) noexcept;

}  // namespace rcverbs::verbs
