// queue_pair.hpp — a reliable-connected queue pair, with or without a connection manager id.
//
// Only one thread at a time may post to each queue; the lock of the connection ensures that. The id
// must outlive the queue pair.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include <rcverbs/error.hpp>
#include <rcverbs/queue_pair_address.hpp>

#include "verbs/handles.hpp"

struct rdma_cm_id;

namespace rcverbs::verbs {

/// The requested capacities of a queue pair. Its creation lowers inline_bytes to the granted value.
struct queue_sizes {
    std::uint32_t send_depth = 0;
    std::uint32_t receive_depth = 0;
    std::uint32_t send_segments = 0;
    std::uint32_t receive_segments = 0;
    std::uint32_t inline_bytes = 0;
    // The shared receive queue; null for a receive queue of its own. Must outlive the queue pair.
    ibv_srq* shared_receives = nullptr;
};

/// The queried state of a queue pair.
struct queue_pair_state {
    /// The programmed limits on outstanding reads and atomics.
    std::uint32_t initiator_depth = 0;
    std::uint32_t responder_resources = 0;
    /// True in the error state, whether the program or the device caused it.
    bool is_error = false;
};

/// Permits routing beyond the subnet.
inline constexpr std::uint8_t hop_limit_default = 64;

/// The path parameters of a queue pair that is connected without the connection manager.
struct path_terms {
    std::uint8_t port = 1;
    std::uint8_t gid_index = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t ack_timeout_code = 0;
    std::uint8_t retry_count = 0;
    std::uint8_t min_rnr_timer_code = 0;
    std::uint8_t traffic_class = 0;
    std::uint32_t flow_label = 0;
    std::uint8_t service_level = 0;
    std::uint8_t hop_limit = hop_limit_default;
};

class queue_pair {
public:
    queue_pair() = default;
    /// Creates a queue pair in `domain` whose send and receive queues complete into `completions`.
    /// If `id` is null, the queue pair has no connection manager. A device does not report its
    /// inline limit in advance, so `sizes.inline_bytes` is lowered until the device accepts it.
    queue_pair(
        rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, queue_sizes& sizes, error_code& ec
    );
    queue_pair(queue_pair&& other) noexcept
        : id_{std::exchange(other.id_, nullptr)},
          qp_{std::exchange(other.qp_, nullptr)} {}
    queue_pair& operator=(queue_pair&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(qp_, other.qp_);
        return *this;
    }
    ~queue_pair() { static_cast<void>(destroy()); }

    bool is_open() const noexcept { return qp_ != nullptr; }
    /// The verbs object, borrowed; null if not open.
    ibv_qp* get() const noexcept { return qp_; }

    /// Without an id: moves the queue pair to INIT, so that receives can be posted. Source:
    /// ibv_modify_qp(3).
    error_code initialise(std::uint8_t port) noexcept;
    /// Without an id: puts into the address what the device offers beyond the specification.
    void offer_enhancements(queue_pair_address& own) noexcept;
    /// Without an id: connects to the peer (RTR, then RTS). REQUIRES: initialised.
    error_code connect(
        queue_pair_address const& own, queue_pair_address const& peer, path_terms const& terms
    ) noexcept;
    /// Posts a list of work requests. On failure `bad` is the first request that was not posted,
    /// and the result is a code for from_returned_code(). Source: ibv_post_send(3).
    int post_send(ibv_send_wr* list, ibv_send_wr** bad) noexcept {
        return ibv_post_send(qp_, list, bad);
    }
    /// Makes the device process its send queue again, without posting anything. The inline data of
    /// the request exceeds every limit, so the post fails before it takes a slot of the queue.
    /// SoftRoCE's provider rings the doorbell nevertheless.
    void kick_send_queue() noexcept;
    /// Posts a list of receives. Source: ibv_post_recv(3).
    int post_receive(ibv_recv_wr* list, ibv_recv_wr** bad) noexcept {
        return ibv_post_recv(qp_, list, bad);
    }
    /// Moves the queue pair to the error state, which flushes all posted work requests.
    error_code move_to_error() noexcept;
    /// Sets the RNR NAK delay that this side advertises. Source: ibv_modify_qp(3).
    error_code set_min_rnr_timer(std::uint8_t code) noexcept;
    /// Limits the peer's access to the memory of this side, whatever rights the keys grant. Source:
    /// ibv_modify_qp(3).
    error_code set_remote_access(int ibv_access) noexcept;
    /// True if the port still has `gid`, the address of the connection, or if the queue pair cannot
    /// be queried.
    bool has_gid(std::uint8_t const* gid) noexcept;
    /// Source: ibv_query_qp(3).
    queue_pair_state query(error_code& ec) const noexcept;
    /// True if it is known to be in the error state.
    bool is_in_error_state() const noexcept;
    /// Destroys the queue pair. After success the device does not access its buffers any more.
    error_code destroy() noexcept;

private:
    static error_code create(
        rdma_cm_id* id, ibv_pd* domain, ibv_cq* completions, queue_sizes const& sizes, ibv_qp*& made
    );

    rdma_cm_id* id_ = nullptr;
    ibv_qp* qp_ = nullptr;
};

/// The RNR timer code of a delay: the shortest of the 32 values of the specification that is not
/// shorter than `delay`, or the longest one (code 0, 655.36 ms).
std::uint8_t encode_rnr_timer(std::chrono::nanoseconds delay) noexcept;

/// The code n of an acknowledge timeout, which is 4.096 us x 2^n: the least from 1 to 31 whose
/// timeout is not shorter than `timeout`, or 31.
std::uint8_t encode_ack_timeout(std::chrono::nanoseconds timeout) noexcept;

/// The greatest code from 1 to 31 whose timeout is not longer than `timeout`, or 1.
std::uint8_t ack_timeout_within(std::chrono::nanoseconds timeout) noexcept;

/// The timeout of a code from 1 to 31.
std::chrono::nanoseconds decode_ack_timeout(std::uint8_t code) noexcept;

}  // namespace rcverbs::verbs
