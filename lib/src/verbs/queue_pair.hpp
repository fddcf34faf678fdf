// queue_pair.hpp — a reliable-connected queue pair, made through a connection manager's id, or without one.
//
// Posting is safe from one thread at a time per queue; the connection's lock sees to that. The id that it was made with
// must outlive it.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include <rcverbs/error.hpp>
#include <rcverbs/queue_pair_address.hpp>

#include "verbs/handles.hpp"

struct rdma_cm_id;

namespace rcverbs::verbs {

/// What a queue pair is asked to hold, and, after it was made, what it holds.
struct queue_sizes {
    std::uint32_t send_depth = 0;
    std::uint32_t receive_depth = 0;
    std::uint32_t send_segments = 0;
    std::uint32_t receive_segments = 0;
    std::uint32_t inline_bytes = 0;
    // Where it takes its receives from, if not from a queue of its own. Must outlive it.
    ibv_srq* shared_receives = nullptr;
};

/// The depths of reads and atomics as the connection manager programmed them.
struct read_depths {
    std::uint32_t initiator = 0;
    std::uint32_t responder = 0;
};

/// How a queue pair without the connection manager is to reach its peer.
struct path_terms {
    std::uint8_t port = 1;
    std::uint8_t gid_index = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t ack_timeout_code = 0;
    std::uint8_t retry_count = 0;
    std::uint8_t min_rnr_timer_code = 0;
};

class queue_pair {
public:
    queue_pair() = default;
    /// Makes a queue pair in `domain` whose both queues complete into `completions`; through `id`, or without one if it is null. What the device refuses of
    /// `sizes.inline_bytes`, which it does not tell beforehand, is taken back from it.
    queue_pair(rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, queue_sizes& sizes, error_code& ec);
    queue_pair(queue_pair&& other) noexcept
        : id_{std::exchange(other.id_, nullptr)}, qp_{std::exchange(other.qp_, nullptr)} {}
    queue_pair& operator=(queue_pair&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(qp_, other.qp_);
        return *this;
    }
    ~queue_pair() { static_cast<void>(destroy()); }

    bool is_open() const noexcept { return qp_ != nullptr; }
    /// The verbs object, borrowed; null if not open.
    ibv_qp* get() const noexcept { return qp_; }

    /// Without an id: makes it ready for receives to be posted. Source: ibv_modify_qp(3).
    error_code initialise(std::uint8_t port) noexcept;
    /// Without an id: connects it. REQUIRES: initialised.
    error_code connect(queue_pair_address const& own, queue_pair_address const& peer, path_terms const& terms) noexcept;
    /// Posts a list; on failure `bad` is the first one not posted, and the code for from_returned_code() to read. Source:
    /// ibv_post_send(3).
    int post_send(ibv_send_wr* list, ibv_send_wr** bad) noexcept { return ibv_post_send(qp_, list, bad); }
    /// Has the device look at its send queue again, and posts nothing: the request is longer inline than any may be, so that it is
    /// refused before it takes a place; the doorbell of SoftRoCE's provider rings all the same.
    void ring_again() noexcept;
    /// Posts a list of receives. Source: ibv_post_recv(3).
    int post_receive(ibv_recv_wr* list, ibv_recv_wr** bad) noexcept { return ibv_post_recv(qp_, list, bad); }
    /// Moves the queue pair to the error state: everything posted is flushed.
    error_code break_off() noexcept;
    /// Tells the device how long to ask a peer to wait that finds no receive posted. Source: ibv_modify_qp(3).
    error_code set_min_rnr_timer(std::uint8_t code) noexcept;
    /// Says what the peer may do to memory of this side, whatever its keys allow. Source: ibv_modify_qp(3).
    error_code set_remote_access(int ibv_access) noexcept;
    /// True if its port still has the address that it was connected with.
    bool goes_by(std::uint8_t const* gid) noexcept;
    /// What the connection manager negotiated.
    read_depths query_depths(error_code& ec) noexcept;
    /// Destroys it; once it has succeeded the device touches none of its buffers any more.
    error_code destroy() noexcept;

private:
    static error_code create(
        rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, queue_sizes const& sizes, ibv_qp*& made
    );

    rdma_cm_id* id_ = nullptr;
    ibv_qp* qp_ = nullptr;
};

/// The specification's code for a "receiver not ready" delay: the least of its 32 values that is not shorter.
std::uint8_t encode_rnr_timer(std::chrono::nanoseconds delay) noexcept;

/// The specification's code n for an acknowledge timeout of 4.096 us x 2^n: the least that is not shorter, 1 to 31.
std::uint8_t encode_ack_timeout(std::chrono::nanoseconds timeout) noexcept;

/// The same, the greatest that is not longer.
std::uint8_t ack_timeout_within(std::chrono::nanoseconds timeout) noexcept;

/// What a code from 1 to 31 stands for.
std::chrono::nanoseconds decode_ack_timeout(std::uint8_t code) noexcept;

}  // namespace rcverbs::verbs
