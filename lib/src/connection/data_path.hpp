// data_path.hpp — the operations of one connection: which wait, which are posted, which are done.
//
//        free ──start──▶ waiting ──pump──▶ posted ──completion──▶ done ──release──▶ free
//                           └───────────take_back / fail──────────▲
//
// Waiting operations are posted strictly in order, as far as the queue and the negotiated depth of reads allow. The
// connection's lock guards everything here; handlers are called by the connection, outside of the lock, for the
// operations on the lists that these functions return. All operations, and the room for the work requests of one doorbell,
// are made in advance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/statistics.hpp>

#include "machines/signal_policy.hpp"
#include "machines/work_window.hpp"
#include "verbs/queue_pair.hpp"
#include "verbs/work_request.hpp"

namespace rcverbs::detail {

/// A first-in-first-out list of operations, linked through them.
class operation_list {
public:
    bool empty() const noexcept { return first_ == nullptr; }
    operation* front() const noexcept { return first_; }
    void push_back(operation& op) noexcept;
    void push_front(operation& op) noexcept;
    operation* pop_front() noexcept;
    /// Takes one out of the middle; false if it is not on the list.
    bool remove(operation& op) noexcept;
    /// Appends another list's operations and leaves it empty.
    void append(operation_list& other) noexcept;

private:
    operation* first_ = nullptr;
    operation* last_ = nullptr;
};

/// What one round of completions came to.
struct completion_report {
    /// In the order of their completion.
    operation_list done;
    /// The first failure that is not a mere flush, or else the first flush.
    error_code failed;
    /// With it: the device's vendor error.
    int vendor_error = 0;
};

/// What a connection's queues hold and how they are used.
struct data_path_sizes {
    verbs::queue_sizes queues;
    std::size_t waiting_max = 0;
    std::uint64_t message_bytes_max = 0;
};

class data_path {
public:
    data_path() = default;
    /// Room for as many operations as can be posted and wait. The values that atomics bring back go to
    /// `atomic_results`, 8 bytes for each place in the send queue, or nowhere.
    data_path(data_path_sizes const& sizes, local_slice atomic_results);

    /// A free operation to start with; null if as many are posted and waiting as there may be.
    operation* take_free() noexcept;
    /// Puts operations back whose handlers have been called.
    void release(operation_list& used) noexcept;

    /// True if these requests would be posted at once, behind all that wait.
    bool has_room_for(std::span<request const> what) const noexcept;
    /// Queues an operation that has been filled in; pump() posts it.
    void start(operation& op) noexcept;
    /// Posts what waits, as far as there is room; sends only if `may_send`. What could not be posted at all is put on
    /// `refused`, with its error; the return value is an error after which the queue pair is of no use.
    error_code pump(verbs::queue_pair& qp, operation_list& refused, bool may_send);
    /// Takes an operation back that still waits; false if it is posted.
    bool take_back(operation& op) noexcept;

    /// Takes in a batch of completions. `flush_error` says what becomes of operations that were merely flushed.
    completion_report retire(std::span<ibv_wc const> batch, error_code flush_error);
    /// Everything that waits, and everything posted, with `waiting_error` or `posted_error`, unless it has failed before.
    operation_list fail_all(error_code posted_error, error_code waiting_error);

    void set_read_depth(std::size_t depth) noexcept;
    std::size_t read_depth() const noexcept { return sends_.window.read_depth_max(); }
    /// True if no completion is to come. Work that asked for none may still be in the device's hands.
    bool is_drained() const noexcept { return sends_.window.signalled() == 0 && receives_.window.posted() == 0; }
    /// True if there is work on the send queue.
    bool is_sending() const noexcept { return sends_.window.posted() > 0; }
    /// The number of the oldest work on the send queue: while it stays the same, nothing moves.
    std::uint64_t oldest_send() const noexcept { return sends_.window.oldest(); }
    /// The counters, except for those of the completion queue.
    connection_statistics statistics() const noexcept;
    /// Every operation there is, for shutdown.
    void for_each(std::function<void(operation&)> const& visit);

private:
    struct entry {
        operation* op = nullptr;
        bool is_last_piece = true;
    };
    // Work requests, and how many of them count against the depth of reads.
    struct cost {
        std::size_t pieces = 0;
        std::size_t reads = 0;
    };
    struct queue {
        machines::work_window<entry> window;
        operation_list waiting;
        // Of all that wait.
        cost wanted;
    };
    // What a work request was made of, to take it back.
    struct piece {
        operation* op;
        progress_mark before;
        machines::signal_policy policy_before;
        bool is_read;
    };

    queue& queue_of(operation const& op) noexcept {
        return op.what.kind == operation_kind::receive ? receives_ : sends_;
    }
    cost cost_of(std::span<request const> what) const noexcept;
    bool has_room_for(queue const& q, cost const& c) const noexcept;
    error_code pump_sends(verbs::queue_pair& qp, operation_list& refused);
    void pump_receives(verbs::queue_pair& qp, operation_list& refused);
    std::size_t gather_sends();
    std::size_t gather_receives();
    void refuse_reads(operation_list& refused);
    void refuse(operation& op, error_code ec, operation_list& refused);
    error_code take_back_unposted(std::size_t posted, std::size_t count, error_code ec, operation_list& refused);
    void finish(entry const& e, error_code ec, operation_list& done);
    void succeed(operation& op, std::uint64_t sequence, ibv_wc const& completion);
    void leave(operation& op) noexcept;

    std::unique_ptr<operation[]> operations_;
    std::size_t operation_count_ = 0;
    operation_list free_;
    std::size_t in_use_ = 0;
    std::size_t in_use_max_ = 0;
    verbs::piece_limits limits_;
    std::size_t receive_segments_max_ = 0;
    std::uint32_t inline_bytes_max_ = 0;
    local_slice atomic_results_;
    machines::signal_policy policy_;
    queue sends_;
    queue receives_;
    connection_statistics counts_;

    // One doorbell's worth of work requests, their segments, and what they were made of.
    std::vector<ibv_send_wr> send_list_;
    std::vector<ibv_sge> send_segments_;
    std::vector<piece> send_pieces_;
    std::vector<ibv_recv_wr> receive_list_;
    std::vector<ibv_sge> receive_segments_;
    std::vector<operation*> receive_pieces_;
};

}  // namespace rcverbs::detail
