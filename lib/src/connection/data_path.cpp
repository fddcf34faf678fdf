#include "connection/data_path.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "connection/shared_receives.hpp"
#include "verbs/errno_map.hpp"

namespace rcverbs::detail {

data_path::data_path(data_path_sizes const& sizes, local_slice atomic_results)
    : in_use_max_{std::size_t{sizes.queues.send_depth} + sizes.queues.receive_depth + sizes.waiting_max},
      shared_{sizes.shared},
      // One segment's length is 32 bits, whatever a device says of its messages.
      limits_{std::min<std::uint64_t>(sizes.message_bytes_max, std::uint64_t{1} << 31), sizes.queues.send_segments},
      receive_segments_max_{sizes.queues.receive_segments},
      inline_bytes_max_{sizes.queues.inline_bytes},
      atomic_results_{atomic_results},
      policy_{sizes.queues.send_depth},
      sends_{machines::work_window<entry>{sizes.queues.send_depth}, {}, {}},
      receives_{machines::work_window<entry>{sizes.queues.receive_depth}, {}, {}},
      send_list_{std::make_unique<ibv_send_wr[]>(sizes.queues.send_depth)},
      send_segments_{std::make_unique<ibv_sge[]>(sizes.queues.send_depth * limits_.segments_max)},
      send_marks_{std::make_unique<progress_mark[]>(sizes.queues.send_depth)},
      receive_list_{std::make_unique<ibv_recv_wr[]>(sizes.queues.receive_depth)},
      receive_segments_{std::make_unique<ibv_sge[]>(sizes.queues.receive_depth * receive_segments_max_)},
      receive_pieces_{std::make_unique<operation*[]>(sizes.queues.receive_depth)} {
    // Those whose handlers are being called are in nobody's account: they may be as many as the queues hold.
    operation_count_ = in_use_max_ + sizes.queues.send_depth + sizes.queues.receive_depth;
    operations_ = std::make_unique<operation[]>(operation_count_);
    for (std::size_t i = 0; i < operation_count_; ++i) free_.push_back(operations_[i]);
    for (std::size_t i = 1; i < sizes.queues.send_depth; ++i) send_list_[i - 1].next = &send_list_[i];
    for (std::size_t i = 1; i < sizes.queues.receive_depth; ++i) receive_list_[i - 1].next = &receive_list_[i];
}

void data_path::set_read_depth(std::size_t depth) noexcept {
    sends_.window.set_read_depth(depth);
    policy_.set_read_depth(depth);
}

data_path::cost data_path::cost_of(std::span<request const> what) const noexcept {
    cost sum;
    for (request const& one : what) {
        bool const is_one = one.kind == operation_kind::receive || is_single(one);
        std::size_t const pieces = is_one ? 1 : verbs::count_pieces(one, limits_);
        sum.pieces += pieces;
        if (verbs::is_read_or_atomic(one.kind)) sum.reads += pieces;
    }
    return sum;
}

bool data_path::has_room_for(std::span<request const> what) const noexcept {
    return has_room_for(what.front().kind == operation_kind::receive ? receives_ : sends_, cost_of(what));
}

void data_path::start(operation& op) noexcept {
    op.is_single = op.batch.empty() && is_single(op.what);
    queue& q = queue_of(op);
    cost const c = cost_of(op.requests());
    if (!has_room_for(q, c)) {
        ++(q.wanted.pieces + c.pieces > q.window.room() ? counts_.slot_waits : counts_.read_depth_waits);
    }
    wait_in(q, op, c);
}

error_code data_path::pump(verbs::queue_pair& qp, operation_list& refused, bool may_send) {
    if (!receives_.waiting.empty()) pump_receives(qp, refused);
    return may_send ? pump_sends(qp, refused) : error_code{};
}

void data_path::fail(operation& op, error_code ec) noexcept {
    if (!op.code) op.code = ec;
    op.result = {};
    ++counts_.operations_failed;
    leave(op);
}

void data_path::refuse(operation& op, error_code ec, operation_list& refused) {
    fail(op, ec);
    refused.push_back(op);
}

// Reads that were started before it was known that none are allowed.
void data_path::refuse_reads(operation_list& refused) {
    while (!sends_.waiting.empty() && sends_.window.read_depth_max() == 0 && sends_.waiting.front()->reads_left > 0) {
        refuse(*sends_.waiting.pop_front(), errc::read_depth_zero, refused);
    }
}

// Builds the next work request of an operation that makes several; true if it is the last one.
bool data_path::cut_next(operation& op, std::size_t index) {
    std::span<request const> const requests = op.requests();
    request const& what = requests[op.posted.request_index];
    ibv_sge* const segments = &send_segments_[index * limits_.segments_max];
    bool ends_request = true;
    if (is_single(what)) {
        // One of a batch's, which is nearly always made of such.
        verbs::build_single(send_list_[index], *segments, what);
    } else {
        ends_request = verbs::build(send_list_[index], segments, what, op.posted, limits_);
    }
    if (ends_request) op.posted = {op.posted.request_index + 1, 0, 0, 0};
    return op.posted.request_index == requests.size();
}

// Moves as much as there is room for from the waiting operations into the list of linked work requests.
void data_path::gather_sends() {
    while (operation* const op = sends_.waiting.front()) {
        request const& what = op->requests()[op->is_single ? 0 : op->posted.request_index];
        bool const is_read = verbs::is_read_or_atomic(what.kind);
        if (!sends_.window.can_post(is_read)) return;
        --sends_.wanted.pieces;
        if (is_read) --sends_.wanted.reads;
        if (op->is_single) {
            sends_.waiting.pop_front();
            op->pieces_left = 0;
            op->reads_left = 0;
            append_single(*op, op->what, is_read);
            continue;
        }
        --op->pieces_left;
        if (is_read) --op->reads_left;
        send_marks_[built_] = op->posted;
        bool const is_last = cut_next(*op, built_);
        append(*op, is_read, is_last, send_list_[built_]);
        if (is_last) sends_.waiting.pop_front();
    }
}

// The value that an atomic brings back goes to the place of its number: posted work never meets there.
void data_path::give_result_place(ibv_send_wr& wr, std::uint64_t sequence) noexcept {
    wr.sg_list[0] = {
        reinterpret_cast<std::uintptr_t>(result_place(sequence)),  // verbs name memory by number
        sizeof(std::uint64_t),
        atomic_results_.key().value};
    wr.num_sge = 1;
}

void data_path::send_inline(ibv_send_wr& wr) noexcept {
    std::uint64_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
    if (bytes == 0 || bytes > inline_bytes_max_) return;
    wr.send_flags |= IBV_SEND_INLINE;
    ++counts_.sends_inline;
}

error_code data_path::pump_sends(verbs::queue_pair& qp, operation_list& refused) {
    // A doorbell that has just been refused.
    if (int const code = std::exchange(refusal_, 0)) {
        if (error_code const fatal = recover(code, refused)) return fatal;
        if (is_full(code)) return {};
    }
    while (built_ > 0 || !sends_.waiting.empty()) {
        if (sends_.window.read_depth_max() == 0) refuse_reads(refused);
        gather_sends();
        if (built_ == 0) return {};
        int const code = post_built(qp);
        if (code == 0) continue;
        if (error_code const fatal = recover(code, refused)) return fatal;
        if (is_full(code)) return {};
    }
    return {};
}

// True if the device has no room, against our account, but will have with the next completion.
bool data_path::is_full(int code) const noexcept {
    return verbs::from_returned_code(code) == boost::system::errc::not_enough_memory && sends_.window.signalled() > 0;
}

// After a doorbell that was refused: what the device did not take waits again, in order; but the operation it balked at is
// refused, if nothing of it has been posted. Returns an error if that cannot be.
error_code data_path::recover(int refusal, operation_list& refused) {
    std::size_t const posted = bad_ != nullptr ? static_cast<std::size_t>(bad_ - send_list_.get()) : 0;
    if (posted > 0) ++counts_.doorbells;
    counts_.sends_posted += posted;
    operation& culprit = *built_operation(posted);
    take_back_from(posted);
    if (is_full(refusal)) return {};
    error_code const ec = verbs::from_returned_code(refusal);
    if (culprit.is_posted) return ec;
    sends_.waiting.pop_front();
    refuse(culprit, ec, refused);
    return {};
}

// Plain work keeps no request: its work request says all that it said, but for the marks of slices that have been checked.
void data_path::rebuild_request(request& what, ibv_send_wr const& wr) noexcept {
    what.is_fenced = (wr.send_flags & IBV_SEND_FENCE) != 0;
    what.local = {};
    if (verbs::is_atomic(what.kind)) {
        what.remote_address = wr.wr.atomic.remote_addr;
        what.remote = remote_key{wr.wr.atomic.rkey};
        what.operand = wr.wr.atomic.compare_add;
        what.swap = wr.wr.atomic.swap;
        return;
    }
    if (wr.num_sge > 0) {
        auto* const data = reinterpret_cast<std::byte*>(wr.sg_list[0].addr);  // verbs name memory by number
        what.local = local_slice{{data, wr.sg_list[0].length}, local_key{wr.sg_list[0].lkey}};
    }
    what.remote_address = wr.wr.rdma.remote_addr;
    what.remote = remote_key{wr.wr.rdma.rkey};
    if (what.kind == operation_kind::send_with_invalidate) {
        what.remote = remote_key{wr.invalidate_rkey};
    } else {
        what.immediate = ntohl(wr.imm_data);
    }
}

void data_path::take_back_built() noexcept {
    refusal_ = 0;
    if (built_ > 0) take_back_from(0);
}

// Whose work request this one of the list is: they have the newest numbers.
operation* data_path::built_operation(std::size_t index) const noexcept {
    return sends_.window.entry_of(sends_.window.next() - built_ + index).op;
}

void data_path::take_back_from(std::size_t first) noexcept {
    for (std::size_t i = built_; i-- > first;) {
        operation& op = *built_operation(i);
        bool const is_read = sends_.window.is_read(sends_.window.next() - built_ + i);
        if (op.is_single) {
            rebuild_request(op.what, send_list_[i]);
        } else {
            op.posted = send_marks_[i];
        }
        op.is_posted = !op.is_single && (op.posted.request_index > 0 || op.posted.size_bytes > 0);
        unsignalled_ -= (send_list_[i].send_flags & IBV_SEND_SIGNALED) != 0 ? 0 : 1;
        counts_.sends_inline -= (send_list_[i].send_flags & IBV_SEND_INLINE) != 0 ? 1 : 0;
        ++op.pieces_left;
        ++sends_.wanted.pieces;
        if (is_read) {
            ++op.reads_left;
            ++sends_.wanted.reads;
        }
        if (sends_.waiting.front() != &op) sends_.waiting.push_front(op);
    }
    sends_.window.unpost(built_ - first);
    policy_.start_over();
    built_ = 0;
}

std::size_t data_path::gather_receives() {
    std::size_t count = 0;
    while (!receives_.waiting.empty() && receives_.window.can_post(false)) {
        operation& op = *receives_.waiting.pop_front();
        ibv_recv_wr& wr = receive_list_[count];
        verbs::build(wr, &receive_segments_[count * receive_segments_max_], op.what);
        wr.wr_id = verbs::receive_id(receives_.window.post({&op, true}, false));
        receive_pieces_[count++] = &op;
        --receives_.wanted.pieces;
        op.pieces_left = 0;
        op.is_posted = true;
    }
    return count;
}

void data_path::pump_receives(verbs::queue_pair& qp, operation_list& refused) {
    while (!receives_.waiting.empty()) {
        std::size_t const count = gather_receives();
        if (count == 0) return;
        ibv_recv_wr* bad = nullptr;
        ibv_recv_wr& last = receive_list_[count - 1];
        ibv_recv_wr* const next = std::exchange(last.next, nullptr);
        int const code = qp.post_receive(receive_list_.get(), &bad);
        last.next = next;
        counts_.receives_posted += count;
        if (code == 0) continue;
        std::size_t const posted = bad != nullptr ? static_cast<std::size_t>(bad - receive_list_.get()) : 0;
        counts_.receives_posted -= count - posted;
        receives_.window.unpost(count - posted);
        for (std::size_t i = count; i-- > posted;) {
            operation& op = *receive_pieces_[i];
            op.is_posted = false;
            op.pieces_left = 1;
            ++receives_.wanted.pieces;
            receives_.waiting.push_front(op);
        }
        // What it balked at is refused; the others are tried again without it.
        refuse(*receives_.waiting.pop_front(), verbs::from_returned_code(code), refused);
    }
}

bool data_path::take_back(operation& op) noexcept {
    // One that is cut may wait with its rest while a part is posted.
    if (op.is_posted || !queue_of(op).waiting.remove(op)) return false;
    fail(op, boost::asio::error::operation_aborted);
    return true;
}

// The result of a receive, an atomic, a batch, or of what had to be cut.
void data_path::succeed_specially(operation& op, std::uint64_t sequence, ibv_wc const& completion) noexcept {
    if (op.what.kind == operation_kind::receive) {
        op.result.arrival = verbs::read_arrival(completion);
        counts_.bytes_received += op.result.arrival.size_bytes;
        return;
    }
    if (op.is_single && verbs::is_atomic(op.what.kind)) {
        std::memcpy(&op.result.word, result_place(sequence), sizeof op.result.word);
    }
    op.result.bytes = 0;
    if (op.is_single) {
        // Only an atomic comes here.
        op.result.bytes = sizeof(std::uint64_t);
        counts_.bytes_read += op.result.bytes;
        return;
    }
    for (request const& what : op.requests()) {
        std::size_t const bytes = verbs::is_atomic(what.kind) ? sizeof(std::uint64_t) : what.local.size_bytes();
        op.result.bytes += bytes;
        (verbs::is_read_or_atomic(what.kind) ? counts_.bytes_read : counts_.bytes_sent) += bytes;
    }
}

// A receive, a failure, or what covers earlier work that asked for no completion. All that a completion covers has been
// carried out, but for the last of it, maybe.
void data_path::retire_specially(ibv_wc const& wc, completion_report& report) noexcept {
    queue& q = verbs::is_receive(wc.wr_id) ? receives_ : sends_;
    std::uint64_t const sequence = verbs::sequence_of(wc.wr_id);
    if (verbs::is_shared_receive(wc.wr_id)) {
        operation* const op = shared_ != nullptr ? shared_->take(wc) : nullptr;
        if (op == nullptr) return;
        counts_.bytes_received += op->result.arrival.size_bytes;
        report.shared.push_back(*op);
        if (wc.status != IBV_WC_SUCCESS) note_failure(report, wc);
        return;
    }
    if (!q.window.is_posted(sequence)) return;
    if (wc.status != IBV_WC_SUCCESS) {
        // The operation that a failed completion names has its code; what came before it has been carried out.
        operation& op = *q.window.entry_of(sequence).op;
        bool const is_called_off = wc.status == IBV_WC_WR_FLUSH_ERR && op.is_cancelled;
        error_code const ec = verbs::from_status(wc.status);
        if (!op.code) op.code = is_called_off ? error_code{boost::asio::error::operation_aborted} : ec;
        note_failure(report, wc);
    }
    q.window.retire(sequence, [&](entry const& e, std::uint64_t number) {
        if (e.is_last_piece) take_in(*e.op, number, wc, report);
    });
}

void data_path::note_failure(completion_report& report, ibv_wc const& wc) noexcept {
    if (report.failed && (report.failed != wc_errc::flushed || wc.status == IBV_WC_WR_FLUSH_ERR)) return;
    report.failed = verbs::from_status(wc.status);
    report.vendor_error = static_cast<int>(wc.vendor_err);
}

operation_list data_path::fail_all(error_code posted_error, error_code waiting_error) {
    operation_list done;
    for (queue* const q : {&sends_, &receives_}) {
        q->window.retire_all([&](entry const& e, std::uint64_t) {
            if (!e.op->code) e.op->code = posted_error;
            if (!e.is_last_piece) return;
            fail(*e.op, posted_error);
            done.push_back(*e.op);
        });
        while (operation* const op = q->waiting.pop_front()) {
            fail(*op, waiting_error);
            done.push_back(*op);
        }
    }
    return done;
}

connection_statistics data_path::statistics() const noexcept {
    connection_statistics now = counts_;
    now.operations_started = now.operations_completed + now.operations_failed + in_use_;
    now.sends_signalled = now.sends_posted + built_ - unsignalled_;
    now.sends_outstanding = static_cast<std::uint32_t>(sends_.window.posted());
    now.reads_outstanding = static_cast<std::uint32_t>(sends_.window.reads());
    now.receive_credits = static_cast<std::uint32_t>(receives_.window.posted());
    return now;
}

void data_path::for_each(std::function<void(operation&)> const& visit) {
    for (std::size_t i = 0; i < operation_count_; ++i) visit(operations_[i]);
}

}  // namespace rcverbs::detail
