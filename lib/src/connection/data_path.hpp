// data_path.hpp — the operations of one connection: which wait, which are posted, which are done.
//
//        free ──start──▶ waiting ──pump──▶ posted ──completion──▶ done ──release──▶ free
//                           └───────────take_back / fail──────────▲
//
// Waiting operations are posted strictly in order, as far as the queue and the negotiated depth of reads allow. One that finds
// nobody waiting and room does not wait: its work request is built by start(), its doorbell rung by pump(). The
// connection's lock guards everything here; handlers are called by the connection, outside of the lock, for the
// operations on the lists that these functions return. All operations, and the room for the work requests of one doorbell,
// are made in advance.
//
// What nearly all operations go through is defined here, to be inlined into the one place that calls it: start_plain, ring,
// retire. docs/benchmarks/ says what that is worth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/statistics.hpp>

#include "connection/operation_list.hpp"
#include "machines/signal_policy.hpp"
#include "machines/work_window.hpp"
#include "verbs/queue_pair.hpp"
#include "verbs/work_request.hpp"

namespace rcverbs::detail {

/// What one round of completions came to.
struct completion_report {
    /// In the order of their completion.
    operation_list done;
    /// The first failure that is not a mere flush, or else the first flush.
    error_code failed;
    /// With it: the device's vendor error.
    int vendor_error = 0;
    /// Receives of the shared queue, which are completed by it.
    operation_list shared;
};

class shared_receives;

/// What a connection's queues hold and how they are used.
struct data_path_sizes {
    verbs::queue_sizes queues;
    std::size_t waiting_max = 0;
    std::uint64_t message_bytes_max = 0;
    // Null if the receives are the connection's own.
    shared_receives* shared = nullptr;
};

class data_path {
public:
    data_path() = default;
    /// Room for as many operations as can be posted and wait. The values that atomics bring back go to
    /// `atomic_results`, 8 bytes for each place in the send queue, or nowhere.
    data_path(data_path_sizes const& sizes, local_slice atomic_results);

    /// A free operation to start with; null if as many are posted and waiting as there may be.
    operation* take_free() noexcept {
        if (in_use_ == in_use_max_) return nullptr;
        operation* const op = free_.pop_front();
        if (op == nullptr) return nullptr;
        ++in_use_;
        op->begin_use();
        return op;
    }
    /// Puts operations back whose handlers have been called.
    void release(operation_list& used) noexcept { free_.append(used); }

    /// True if pump() has anything to do.
    bool has_work() const noexcept { return built_ > 0 || !sends_.waiting.empty() || !receives_.waiting.empty(); }
    /// True if these requests would be posted at once, behind all that wait.
    bool has_room_for(std::span<request const> what) const noexcept;
    /// Takes on an operation that has been filled in; pump() posts it.
    void start(operation& op) noexcept;
    /// True if the request makes one work request, of one slice at most.
    bool is_single(request const& what) const noexcept {
        return what.local.count() <= 1 && what.local.size_bytes() <= limits_.bytes_max;
    }
    /// True if start_plain() will do: the request makes one work request, of one slice at most, and there is room for it.
    bool is_plain(request const& what) const noexcept {
        return is_single(what) && sends_.waiting.empty() && what.kind != operation_kind::receive &&
               sends_.window.can_post(verbs::is_read_or_atomic(what.kind));
    }
    /// The same as start(), for nearly all work there is: builds the work request at once, without keeping the request.
    /// REQUIRES: is_plain(what); a handler, or none, is in place.
    void start_plain(operation& op, request const& what) noexcept {
        op.is_single = true;
        op.what.kind = what.kind;
        append_single(op, what, verbs::is_read_or_atomic(what.kind));
    }
    /// True if start_plain_receive() will do: a receive of one slice at most, for which, behind those that wait, there is room.
    bool is_plain_receive(request const& what) const noexcept {
        return what.kind == operation_kind::receive && is_single(what) && has_room_for(receives_, {1, 0});
    }
    /// The same as start(), for a receive. REQUIRES: is_plain_receive(what); a handler is in place.
    void start_plain_receive(operation& op, request const& what) noexcept {
        op.is_single = true;
        op.what = what;
        wait_in(receives_, op, {1, 0});
    }
    /// Rings for what is built, if that is all there is to do; false if it is not, or if the device refuses: pump() then.
    bool ring(verbs::queue_pair& qp) noexcept {
        if (built_ == 0 || !sends_.waiting.empty() || !receives_.waiting.empty()) return false;
        refusal_ = post_built(qp);
        return refusal_ == 0;
    }
    /// Posts what waits, as far as there is room; sends only if `may_send`. What could not be posted at all is put on
    /// `refused`, with its error; the return value is an error after which the queue pair is of no use.
    error_code pump(verbs::queue_pair& qp, operation_list& refused, bool may_send);
    /// What is built waits instead: nothing more is to be posted.
    void take_back_built() noexcept;
    /// Takes an operation back that still waits; false if it is posted.
    bool take_back(operation& op) noexcept;

    /// Takes in a batch of completions. Operations that were merely flushed have the code wc_errc::flushed.
    completion_report retire(std::span<ibv_wc const> batch) noexcept {
        completion_report report;
        for (ibv_wc const& wc : batch) {
            // Nearly always it is the oldest work, done, and all there was to its operation.
            if (wc.status == IBV_WC_SUCCESS && wc.wr_id == sends_.window.oldest() && sends_.window.posted() > 0) {
                entry const e = sends_.window.retire_oldest();
                if (e.is_last_piece) take_in(*e.op, wc.wr_id, wc, report);
            } else if (wc.status == IBV_WC_SUCCESS && wc.wr_id == verbs::receive_id(receives_.window.oldest()) &&
                       receives_.window.posted() > 0) {
                take_in(*receives_.window.retire_oldest().op, wc.wr_id, wc, report);
            } else {
                retire_specially(wc, report);
            }
        }
        return report;
    }
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
    /// How many operations have come to an end, well or not.
    std::uint64_t completed() const noexcept { return counts_.operations_completed + counts_.operations_failed; }
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
    queue& queue_of(operation const& op) noexcept {
        return op.what.kind == operation_kind::receive ? receives_ : sends_;
    }
    cost cost_of(std::span<request const> what) const noexcept;
    static void wait_in(queue& q, operation& op, cost const& c) noexcept {
        op.pieces_left = c.pieces;
        op.reads_left = c.reads;
        op.posted = {};
        q.wanted.pieces += c.pieces;
        q.wanted.reads += c.reads;
        q.waiting.push_back(op);
    }
    bool has_room_for(queue const& q, cost const& c) const noexcept {
        return q.wanted.pieces + c.pieces <= q.window.room() &&
               (c.reads == 0 || q.wanted.reads + c.reads <= q.window.read_room());
    }
    error_code pump_sends(verbs::queue_pair& qp, operation_list& refused);
    void pump_receives(verbs::queue_pair& qp, operation_list& refused);
    void gather_sends();
    std::size_t gather_receives();
    bool cut_next(operation& op, std::size_t index);
    std::byte* result_place(std::uint64_t sequence) const noexcept {
        return atomic_results_.data() + sequence % sends_.window.size() * sizeof(std::uint64_t);
    }
    void give_result_place(ibv_send_wr& wr, std::uint64_t sequence) noexcept;
    void send_inline(ibv_send_wr& wr) noexcept;
    bool is_full(int code) const noexcept;
    void refuse_reads(operation_list& refused);
    void refuse(operation& op, error_code ec, operation_list& refused);
    error_code recover(int refusal, operation_list& refused);
    operation* built_operation(std::size_t index) const noexcept;
    void take_back_from(std::size_t first) noexcept;
    static void rebuild_request(request& what, ibv_send_wr const& wr) noexcept;
    [[gnu::noinline]] void retire_specially(ibv_wc const& wc, completion_report& report) noexcept;
    void note_failure(completion_report& report, ibv_wc const& wc) noexcept;
    void fail(operation& op, error_code ec) noexcept;
    void succeed_specially(operation& op, std::uint64_t sequence, ibv_wc const& completion) noexcept;

    // What an operation still wanted is wanted no longer, and its place is another's.
    void leave(operation& op) noexcept {
        if (op.pieces_left > 0) {
            queue& q = queue_of(op);
            q.wanted.pieces -= std::exchange(op.pieces_left, 0);
            q.wanted.reads -= std::exchange(op.reads_left, 0);
        }
        op.is_done = true;
        --in_use_;
    }
    // An operation that has come to its end, by its last piece.
    void take_in(operation& op, std::uint64_t sequence, ibv_wc const& completion, completion_report& report) noexcept {
        if (op.code.failed()) {
            fail(op, op.code);
        } else {
            succeed(op, sequence, completion);
        }
        report.done.push_back(op);
    }
    // The result of an operation that has been carried out.
    void succeed(operation& op, std::uint64_t sequence, ibv_wc const& completion) noexcept {
        ++counts_.operations_completed;
        leave(op);
        if (!op.is_single || op.what.kind > operation_kind::read) return succeed_specially(op, sequence, completion);
        op.result.bytes = op.size_bytes;
        (op.what.kind == operation_kind::read ? counts_.bytes_read : counts_.bytes_sent) += op.result.bytes;
    }

    // Takes a place in the list of the next doorbell, and in the window. REQUIRES: room in both.
    void append(operation& op, bool is_read, bool is_last, ibv_send_wr& wr) noexcept {
        bool const is_signalled = policy_.decide(is_read, is_last && op.is_pending());
        std::uint64_t const sequence = sends_.window.post({&op, is_last}, is_read, is_signalled);
        wr.wr_id = verbs::send_id(sequence);
        if (is_signalled) {
            wr.send_flags |= IBV_SEND_SIGNALED;
        } else {
            ++unsignalled_;
        }
        if (is_read) {
            if (wr.num_sge == 0 && wr.opcode != IBV_WR_RDMA_READ) give_result_place(wr, sequence);
        } else if (inline_bytes_max_ > 0) {
            send_inline(wr);
        }
        op.is_posted = true;
        ++built_;
    }
    void append_single(operation& op, request const& what, bool is_read) noexcept {
        op.size_bytes = what.local.size_bytes();
        ibv_send_wr& wr = send_list_[built_];
        verbs::build_single(wr, send_segments_[built_ * limits_.segments_max], what);
        append(op, is_read, true, wr);
    }
    // Hands the list to the device; 0, or what it answers. Then `built_` and `bad_` tell what it left.
    int post_built(verbs::queue_pair& qp) noexcept {
        ibv_send_wr& last = send_list_[built_ - 1];
        ibv_send_wr* const next = std::exchange(last.next, nullptr);
        int const code = qp.post_send(send_list_.get(), &bad_);
        last.next = next;
        if (code != 0) return code;
        ++counts_.doorbells;
        counts_.sends_posted += built_;
        built_ = 0;
        return 0;
    }

    std::unique_ptr<operation[]> operations_;
    std::size_t operation_count_ = 0;
    operation_list free_;
    std::size_t in_use_ = 0;
    std::size_t in_use_max_ = 0;
    shared_receives* shared_ = nullptr;
    verbs::piece_limits limits_;
    std::size_t receive_segments_max_ = 0;
    std::uint32_t inline_bytes_max_ = 0;
    local_slice atomic_results_;
    machines::signal_policy policy_;
    queue sends_;
    queue receives_;
    connection_statistics counts_;
    std::uint64_t unsignalled_ = 0;

    // One doorbell's worth of work requests, each linked to the next, their segments, and, for pieces of an operation, how far
    // that was before. Whose they are, the window knows.
    std::size_t built_ = 0;
    // Of the last doorbell, if the device refused it.
    int refusal_ = 0;
    ibv_send_wr* bad_ = nullptr;
    std::unique_ptr<ibv_send_wr[]> send_list_;
    std::unique_ptr<ibv_sge[]> send_segments_;
    std::unique_ptr<progress_mark[]> send_marks_;
    std::unique_ptr<ibv_recv_wr[]> receive_list_;
    std::unique_ptr<ibv_sge[]> receive_segments_;
    std::unique_ptr<operation*[]> receive_pieces_;
};

}  // namespace rcverbs::detail
