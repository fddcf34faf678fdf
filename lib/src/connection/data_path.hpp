// data_path.hpp — the operations of one connection: checks, queues, posts and completes them.
//
//        free ──reserve──▶ placing ──start──▶ waiting ──post_queued──▶ posted ──completion──▶ done
//         ▲                   │                  └───────────take_back / fail──────────────▲   │
//         └─────give_back─────┴───────────────────────────────release──────────────────────────┘
//
// Waiting operations are posted strictly in order, as far as the queue and the negotiated read
// depth allow. An operation that finds room and no other operation waiting does not wait: build()
// makes its work request, and ring() posts it. The connection's lock guards
// everything here. The functions return lists of operations, whose handlers the connection calls
// outside of the lock. All operations, and the work requests of one doorbell, are allocated in
// advance. A handler is placed between reserve and start, without the lock, because moving it, its
// allocator and its executor are the program's code.
//
// The path of nearly all operations is defined here, to be inlined: reserve,
// build, ring, retire. docs/benchmarks/ has the measured gain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/statistics.hpp>

#include "connection/operation_list.hpp"
#include "connection/operation_pool.hpp"
#include "machines/signal_policy.hpp"
#include "machines/work_window.hpp"
#include "probes/probe.hpp"
#include "verbs/domain.hpp"
#include "verbs/queue_pair.hpp"
#include "verbs/region_record.hpp"
#include "verbs/rights.hpp"
#include "verbs/work_request.hpp"

namespace rcverbs::detail {

/// The result of one round of completions.
struct completion_report {
    /// The completed operations, in the order of completion.
    operation_list done;
    /// The first error that is not a flush, otherwise the first flush.
    error_code failed;
    /// The device's vendor error that belongs to `failed`.
    int vendor_error = 0;
    /// Receives of the shared receive queue; that queue completes them.
    operation_list shared;
};

class shared_receives;

/// The sizes of a connection's queues, and the objects that they use.
struct data_path_sizes {
    verbs::queue_sizes queues;
    std::size_t waiting_max = 0;
    std::uint64_t message_bytes_max = 0;
    // Null if the connection has its own receive queue.
    shared_receives* shared = nullptr;
    // Must outlive the data path.
    verbs::domain const* domain = nullptr;
};

/// Which operations may be started.
enum class data_phase : std::uint8_t {
    closed,  // nothing
    receiving,  // receives only: the queue pair exists
    joining,  // everything, as messages may arrive before the established event; sends wait
    open,
};

class data_path {
public:
    data_path() = default;
    /// Makes a path. What its operations need is allocated when the first ones are started. The results
    /// of atomics are written to `atomic_results`, 8 bytes for each slot of the send queue; it may be
    /// empty.
    data_path(data_path_sizes const& sizes, mutable_slice atomic_results);

    /// Sets which operations may be started from now on.
    void enter(data_phase phase) noexcept;
    bool is_open() const noexcept { return phase_ == data_phase::open; }
    bool is_closed() const noexcept { return phase_ == data_phase::closed; }

    /// An operation that is taken, or null and the reason for the refusal.
    struct reservation {
        operation* op;
        errc why;
    };
    /// Takes an operation for one or more requests, or refuses. Its
    /// handler is then placed without the lock; start() or give_back() follows. The inlined code is
    /// for the usual case: one request of at most one slice.
    reservation reserve(std::span<work_request const> what, turn when) noexcept {
        work_request const& first = what.front();
        if (what.size() != 1 || !is_single(first)) [[unlikely]]
            return reserve_large(what, when);
        errc const problem = single_refusal(first, when);
        return problem != errc{} ? reservation{nullptr, problem} : take(first.kind, when);
    }
    /// Takes an operation for a receive that owns its memory. From then on receives into borrowed
    /// memory are refused.
    reservation reserve_leased_receive(work_request const& what) noexcept;
    /// True if a receive into borrowed memory has been started.
    bool has_borrowed_receives() const noexcept {
        return !is_leasing_ &&
               (counts_.receives_posted + built_receives_ > 0 || !receives_.waiting.empty());
    }
    /// Builds the work request of a reserved operation at once: the usual case. False if it has to
    /// wait, or is not usual: then call start().
    bool build(operation& op, work_request const& first) noexcept {
        if (!op.is_single) return false;
        if (first.kind == operation_kind::receive) return build_receive(op, first);
        if (!is_open() || !is_plain(first)) return false;
        op.stage = operation::stage::started;
        start_plain(op, first);
        return true;
    }
    /// Starts a reserved operation; post_queued() posts it. If another thread has taken the room
    /// meanwhile, it waits, whatever its turn. REQUIRES: !is_closed().
    void start(operation& op, std::span<work_request const> what) noexcept;
    /// Takes back a reserved operation that is not started. REQUIRES: it has no handler.
    void give_back(operation& op, std::span<work_request const> what) noexcept {
        if (!op.is_single) end_windows(what);
        pool_.give_back(op);
    }
    /// Fails a reserved operation: the connection has ended since.
    void fail_reserved(operation& op, std::span<work_request const> what, error_code why) noexcept {
        keep(op, what);
        fail(op, why);
    }
    /// Returns operations to the pool after their handlers have been called.
    void release(operation_list& used) noexcept { pool_.release(used); }

    /// Makes the lists of built work requests longer if one is full. False if that is not possible: then the
    /// doorbell must be rung before more are built.
    bool make_list_room() noexcept {
        return (built_ < send_list_size_ || grow_send_list()) &&
               (built_receives_ == 0 || built_receives_ < receive_list_size_ || grow_receive_list()
               );
    }
    /// True if post_queued() has anything to do.
    bool has_work() const noexcept {
        return built_ + built_receives_ > 0 || !sends_.waiting.empty() ||
               !receives_.waiting.empty();
    }
    /// Rings the doorbells for the built work requests. False if operations wait, or if the device refuses:
    /// then call post_queued().
    bool ring(verbs::queue_pair& qp) noexcept {
        if (!sends_.waiting.empty() || !receives_.waiting.empty()) return false;
        if (built_receives_ > 0) receive_refusal_ = post_built_receives(qp);
        if (built_ > 0) refusal_ = post_built(qp);
        return receive_refusal_ == 0 && refusal_ == 0;
    }
    /// Posts waiting operations as far as there is room; sends only if `may_send`. Operations that
    /// cannot be posted at all are added to `refused`, with their errors. A returned error means
    /// that the queue pair is unusable.
    error_code post_queued(verbs::queue_pair& qp, operation_list& refused, bool may_send);
    /// Moves the built work requests back to the waiting operations. Nothing may be posted
    /// afterwards; fail_all() completes them.
    void give_up_built() noexcept;
    /// Cancels a waiting operation; false if any of it is posted.
    bool take_back(operation& op) noexcept;
    /// Cancels all operations of which nothing is posted, and returns them.
    ///
    /// @param is_leasing  Receives stay: they are leased.
    operation_list take_back_waiting(bool is_leasing) noexcept;

    /// Processes a batch of completions. Flushed operations have the code wc_errc::flushed.
    completion_report retire(std::span<ibv_wc const> batch) noexcept {
        completion_report report;
        for (ibv_wc const& wc : batch) {
            // Common case: the oldest work has succeeded; usually it is the whole operation.
            if (wc.status == IBV_WC_SUCCESS && wc.wr_id == sends_.window.oldest() &&
                sends_.window.posted() > 0) {
                entry const e = sends_.window.retire_oldest();
                if (e.is_last_piece) take_in(*e.op, wc, report);
            } else if (wc.status == IBV_WC_SUCCESS && wc.wr_id == verbs::receive_id(receives_.window.oldest()) &&
                       receives_.window.posted() > 0) {
                take_in(*receives_.window.retire_oldest().op, wc, report);
            } else {
                retire_slow(wc, report);
            }
        }
        return report;
    }
    /// Fails all waiting and posted operations with that error; an operation that has an error
    /// already keeps it.
    operation_list fail_all(error_code why);

    void set_read_depth(std::size_t depth) noexcept;
    /// Other operations than sends, writes with immediate and receives leave that many for them from now on: those of the protocol
    /// on top of the connection must not be refused because the program has started too many of its own.
    void keep_for_messages(std::size_t count) noexcept { pool_.keep(count); }
    /// True if no completion is outstanding. Unsignaled work may still be posted.
    bool is_drained() const noexcept {
        return sends_.window.signalled() == 0 && receives_.window.posted() == 0;
    }
    /// True if work is posted on the send queue.
    bool is_sending() const noexcept { return sends_.window.posted() > 0; }
    /// True if some of it is signaled.
    bool is_awaiting() const noexcept { return sends_.window.signalled() > 0; }
    /// The sequence number of the oldest work on the send queue. While it does not change, no send
    /// has completed.
    std::uint64_t oldest_send() const noexcept { return sends_.window.oldest(); }
    /// The number of operations that have succeeded or failed.
    std::uint64_t completed() const noexcept {
        return counts_.operations_completed + counts_.operations_failed;
    }
    /// The counters, except for those of the completion queue.
    connection_statistics statistics() const noexcept;
    /// As operation_pool::has_handlers_for().
    bool has_handlers_for(boost::asio::execution_context const& which) const noexcept {
        return pool_.has_handlers_for(which);
    }
    /// As operation_pool's.
    void drop_handlers(bool is_memory_used) noexcept { pool_.drop_handlers(is_memory_used); }

private:
    struct entry {
        operation* op = nullptr;
        bool is_last_piece = true;
    };
    // A number of work requests, and how many of them count against the read depth.
    struct cost {
        std::size_t pieces = 0;
        std::size_t reads = 0;
    };
    struct queue {
        machines::work_window<entry> window;
        operation_list waiting;
        // The cost of all waiting operations.
        cost wanted;
    };
    queue& queue_of(operation const& op) noexcept {
        return op.what.kind == operation_kind::receive ? receives_ : sends_;
    }
    // True if the request makes one work request with at most one slice.
    bool is_single(work_request const& what) const noexcept {
        return what.local.count() <= 1 && what.local.size() <= limits_.bytes_max;
    }
    // True for a request that can be posted at once. REQUIRES: it is single, and no receive.
    bool is_plain(work_request const& what) const noexcept {
        return sends_.waiting.empty() && built_ < send_list_size_ &&
               sends_.window.can_post(verbs::is_read_or_atomic(what.kind));
    }
    // Checks the kind and the first slice of a request, which is sufficient for a plain one.
    // Returns the reason for a refusal.
    errc plain_refusal(work_request const& what) const noexcept {
        if (what.problem != errc{}) return what.problem;
        if ((kinds_ >> static_cast<unsigned>(what.kind) & 1U) == 0) return kind_refusal(what.kind);
        return check(what.local.front().mark(), domain_, verbs::local_rights(what.kind));
    }
    reservation take(operation_kind kind, turn when) noexcept {
        operation* const op = pool_.take();
        return op != nullptr ? reservation{op, {}} : take_slow(kind, when);
    }
    [[gnu::noinline]] reservation take_slow(operation_kind kind, turn when) noexcept;
    bool make_lists() noexcept;
    [[gnu::cold]] bool grow_send_list() noexcept;
    bool grow_send_list(std::size_t size) noexcept;
    [[gnu::cold]] bool grow_receive_list() noexcept;
    bool grow_receive_list(std::size_t size) noexcept;
    [[gnu::noinline]] reservation reserve_large(
        std::span<work_request const> what, turn when
    ) noexcept;
    errc single_refusal(work_request const& what, turn when) const noexcept {
        errc const problem = plain_refusal(what);
        if (problem != errc{} || when == turn::wait) return problem;
        return has_room_now({&what, 1}) ? errc{} : errc::would_block;
    }
    bool has_room_now(std::span<work_request const> what) const noexcept;
    errc kind_refusal(operation_kind kind) const noexcept;
    errc begin_windows(std::span<work_request const> what) noexcept;
    errc begin_window(work_request const& what) noexcept;
    static void end_windows(std::span<work_request const> what) noexcept;
    static void fill_window(ibv_send_wr& out, work_request const& what) noexcept;
    errc refusal(work_request const& what) const noexcept;

    static void keep(operation& op, std::span<work_request const> what) noexcept {
        op.what = what.front();
        op.batch = what.size() > 1 ? what : std::span<work_request const>{};
    }
    // Not inlined: the path of a send would be longer.
    [[gnu::noinline]] bool build_receive(operation& op, work_request const& what) noexcept {
        if (is_closed() || !receives_.waiting.empty() || !may_build_receive()) return false;
        op.stage = operation::stage::started;
        op.what.kind = operation_kind::receive;
        verbs::build(next_receive(), next_receive_segments(), what);
        append_receive(op);
        return true;
    }
    ibv_recv_wr& next_receive() const noexcept { return receive_list_[built_receives_]; }
    ibv_sge* next_receive_segments() const noexcept {
        return &receive_segments_[built_receives_ * receive_segments_max_];
    }
    bool may_build_receive() const noexcept {
        return receives_.window.can_post(false) && built_receives_ < receive_list_size_;
    }
    // Adds a receive, which is built, to the next doorbell's list and to the window. REQUIRES: room in both.
    void append_receive(operation& op) noexcept {
        next_receive().wr_id = verbs::receive_id(receives_.window.post({&op, true}, false));
        receive_pieces_[built_receives_++] = &op;
        op.is_posted = true;
    }
    // As post_built().
    int post_built_receives(verbs::queue_pair& qp) noexcept {
        ibv_recv_wr& last = receive_list_[built_receives_ - 1];
        ibv_recv_wr* const next = std::exchange(last.next, nullptr);
        int const code = qp.post_receive(receive_list_.get(), &bad_receive_);
        last.next = next;
        if (code != 0) return code;
        counts_.receives_posted += built_receives_;
        built_receives_ = 0;
        return 0;
    }
    // Does not keep the request.
    void start_plain(operation& op, work_request const& what) noexcept {
        op.what.kind = what.kind;
        append_single(op, what, verbs::is_read_or_atomic(what.kind));
    }

    cost cost_of(std::span<work_request const> what) const noexcept;
    static void wait_in(queue& q, operation& op, cost const& c) noexcept {
        RCVERBS_PROBE1(operation_wait, &op);
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
    error_code post_queued_sends(verbs::queue_pair& qp, operation_list& refused);
    void post_queued_receives(verbs::queue_pair& qp, operation_list& refused);
    void gather_sends();
    void gather_receives();
    void recover_receives(int refusal, operation_list& refused);
    void give_up_built_receives() noexcept;
    bool cut_next(operation& op, std::size_t index);
    std::byte* result_place(std::uint64_t sequence) const noexcept {
        return atomic_results_.data() + sequence % sends_.window.size() * sizeof(std::uint64_t);
    }
    void set_result_place(operation& op, ibv_send_wr& wr, std::uint64_t sequence) noexcept;
    void send_inline(ibv_send_wr& wr) noexcept;
    void suit_soft_iwarp(ibv_send_wr& wr, bool is_read) noexcept;
    void refuse_reads(operation_list& refused);
    void refuse(operation& op, error_code ec, operation_list& refused);
    enum class recovery : std::uint8_t { posts_on, waits, broken };
    recovery recover(int refusal, operation_list& refused);
    void append_again(std::size_t from, operation& op, bool is_read, bool is_last) noexcept;
    bool is_first_piece(operation const& op, std::size_t index) const noexcept;
    void take_off_account(std::size_t first) noexcept;
    [[gnu::noinline]] void retire_slow(ibv_wc const& wc, completion_report& report) noexcept;
    void note_failure(completion_report& report, ibv_wc const& wc) noexcept;
    void fail(operation& op, error_code ec) noexcept;
    void succeed_slow(operation& op) noexcept;

    // Removes a failed operation from the account of its queue and of the pool, which frees its
    // place.
    void leave(operation& op) noexcept {
        if (op.pieces_left > 0) {
            queue& q = queue_of(op);
            q.wanted.pieces -= std::exchange(op.pieces_left, 0);
            q.wanted.reads -= std::exchange(op.reads_left, 0);
        }
        pool_.leave(op);
    }
    // Completes an operation; called for its last piece.
    void take_in(operation& op, ibv_wc const& completion, completion_report& report) noexcept {
        if (op.code.failed()) {
            fail(op, op.code);
        } else {
            succeed(op, completion);
        }
        report.done.push_back(op);
    }
    // Sets the result of a successful operation.
    void succeed(operation& op, ibv_wc const& completion) noexcept {
        ++counts_.operations_completed;
        pool_.leave(op);  // all of it was posted
        if (op.is_single && verbs::is_transfer(op.what.kind)) {
            (op.what.kind == operation_kind::read ? counts_.bytes_read : counts_.bytes_sent) +=
                op.result.bytes;
        } else if (op.what.kind == operation_kind::receive) {
            op.result.arrival = verbs::read_arrival(completion);
            counts_.bytes_received += op.result.arrival.size_bytes;
        } else {
            succeed_slow(op);
        }
    }

    // Adds a work request to the next doorbell's list and to the window. REQUIRES: room in both.
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
            if (wr.opcode != IBV_WR_RDMA_READ) set_result_place(op, wr, sequence);
        } else if (inline_bytes_max_ > 0) {
            send_inline(wr);
        }
        if (is_soft_iwarp_) [[unlikely]]
            suit_soft_iwarp(wr, is_read);
        op.is_posted = true;
        ++built_;
    }
    void append_single(operation& op, work_request const& what, bool is_read) noexcept {
        op.result.bytes = what.local.size();
        ibv_send_wr& wr = send_list_[built_];
        verbs::build_single(wr, send_segments_[built_ * limits_.segments_max], what);
        append(op, is_read, true, wr);
    }
    // Posts the list. Returns 0 or the device's error code; after an error `bad_` is the first of
    // the `built_` work requests that was not posted.
    int post_built(verbs::queue_pair& qp) noexcept {
        ibv_send_wr& last = send_list_[built_ - 1];
        ibv_send_wr* const next = std::exchange(last.next, nullptr);
        int const code = qp.post_send(send_list_.get(), &bad_);
        last.next = next;
        if (code != 0) return code;
        RCVERBS_PROBE2(post, qp.get(), built_);
        ++counts_.doorbells;
        counts_.sends_posted += built_;
        built_ = 0;
        return 0;
    }

    operation_pool pool_;
    data_phase phase_ = data_phase::closed;
    // A bit for each kind of operation that may be started now.
    std::uint32_t kinds_ = 0;
    // Receives own their memory.
    bool is_leasing_ = false;
    verbs::domain const* domain_ = nullptr;
    shared_receives* shared_ = nullptr;
    verbs::queue_sizes sizes_;
    verbs::piece_limits limits_;
    std::size_t receive_segments_max_ = 0;
    std::uint32_t inline_bytes_max_ = 0;
    bool is_soft_iwarp_ = false;  // of the device
    mutable_slice atomic_results_;
    machines::signal_policy policy_;
    queue sends_;
    queue receives_;
    connection_statistics counts_;
    std::uint64_t unsignalled_ = 0;

    // The linked work requests of one doorbell with their segments, and for each piece of an
    // operation how far the operation was posted before it; null before the first operation. The
    // window maps a work request to its operation.
    std::size_t send_list_size_ = 0;
    std::size_t built_ = 0;
    // The error code of the last doorbell, if the device refused it.
    int refusal_ = 0;
    ibv_send_wr* bad_ = nullptr;
    // The same for receives.
    std::size_t receive_list_size_ = 0;
    std::size_t built_receives_ = 0;
    int receive_refusal_ = 0;
    ibv_recv_wr* bad_receive_ = nullptr;
    std::unique_ptr<ibv_send_wr[]> send_list_;
    std::unique_ptr<ibv_sge[]> send_segments_;
    std::unique_ptr<progress_mark[]> send_marks_;
    std::unique_ptr<ibv_recv_wr[]> receive_list_;
    std::unique_ptr<ibv_sge[]> receive_segments_;
    std::unique_ptr<operation*[]> receive_pieces_;  // the operations of the built receives
};

}  // namespace rcverbs::detail
