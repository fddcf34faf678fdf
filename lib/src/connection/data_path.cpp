#include "connection/data_path.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <array>

namespace rcverbs::detail {

void operation_list::push_back(operation& op) noexcept {
    op.next = nullptr;
    (last_ != nullptr ? last_->next : first_) = &op;
    last_ = &op;
}

void operation_list::push_front(operation& op) noexcept {
    op.next = first_;
    first_ = &op;
    if (last_ == nullptr) last_ = &op;
}

operation* operation_list::pop_front() noexcept {
    operation* const op = first_;
    if (op == nullptr) return nullptr;
    first_ = op->next;
    if (first_ == nullptr) last_ = nullptr;
    op->next = nullptr;
    return op;
}

bool operation_list::remove(operation& op) noexcept {
    operation* before = nullptr;
    operation* at = first_;
    while (at != nullptr && at != &op) {
        before = at;
        at = at->next;
    }
    if (at == nullptr) return false;
    (before != nullptr ? before->next : first_) = op.next;
    if (last_ == &op) last_ = before;
    op.next = nullptr;
    return true;
}

void operation_list::append(operation_list& other) noexcept {
    while (operation* const op = other.pop_front()) push_back(*op);
}

// The work requests of one doorbell, and which part of which operation each of them is.
struct data_path::send_list {
    struct piece {
        operation* op;
        std::size_t bytes;
    };
    std::array<verbs::send_request, list_length_max> requests;
    std::array<piece, list_length_max> pieces;
    std::size_t count = 0;
};

data_path::data_path(
    verbs::queue_sizes const& sizes, std::size_t waiting_max, std::uint64_t message_bytes_max
)
    : in_use_max_{std::size_t{sizes.send_depth} + sizes.receive_depth + waiting_max},
      // One segment's length is 32 bits, whatever a device says of its messages.
      piece_bytes_max_{std::min<std::uint64_t>(message_bytes_max, std::uint64_t{1} << 31)},
      inline_bytes_max_{sizes.inline_bytes},
      sends_{machines::work_window<entry>{sizes.send_depth}, {}},
      receives_{machines::work_window<entry>{sizes.receive_depth}, {}} {
    // Those whose handlers are being called are in nobody's account: they may be as many as the queues hold.
    operation_count_ = in_use_max_ + sizes.send_depth + sizes.receive_depth;
    operations_ = std::make_unique<operation[]>(operation_count_);
    for (std::size_t i = 0; i < operation_count_; ++i) free_.push_back(operations_[i]);
}

operation* data_path::take_free() noexcept {
    if (in_use_ == in_use_max_) return nullptr;
    operation* const op = free_.pop_front();
    if (op == nullptr) return nullptr;
    ++in_use_;
    op->code.clear();
    op->result = {};
    op->posted_bytes = 0;
    op->is_posted = false;
    op->is_cancelled = false;
    op->is_done = false;
    ++op->use;
    return op;
}

void data_path::release(operation_list& used) noexcept { free_.append(used); }

void data_path::start(operation& op) noexcept { queue_of(op).waiting.push_back(op); }

error_code data_path::pump(verbs::queue_pair& qp, operation_list& refused, bool may_send) {
    pump_receives(qp, refused);
    return may_send ? pump_sends(qp, refused) : error_code{};
}

void data_path::refuse(operation& op, error_code ec, operation_list& refused) {
    op.code = ec;
    op.is_done = true;
    --in_use_;
    refused.push_back(op);
}

// Reads that were started before it was known that none are allowed.
void data_path::refuse_reads(operation_list& refused) {
    while (!sends_.waiting.empty() && verbs::is_read_or_atomic(sends_.waiting.front()->what.kind) &&
           sends_.window.read_depth_max() == 0) {
        refuse(*sends_.waiting.pop_front(), errc::read_depth_zero, refused);
    }
}

// Moves as much as there is room for from the waiting operations into a list of linked work requests.
void data_path::gather(send_list& list) {
    list.count = 0;
    while (list.count < list_length_max && !sends_.waiting.empty()) {
        operation& op = *sends_.waiting.front();
        bool const is_read = verbs::is_read_or_atomic(op.what.kind);
        if (!sends_.window.can_post(is_read)) return;
        std::uint64_t const left = op.what.size_bytes - op.posted_bytes;
        auto const bytes = static_cast<std::size_t>(std::min(left, piece_bytes_max_));
        bool const is_last = bytes == left;
        std::uint64_t const sequence = sends_.window.post({&op, is_last}, is_read);
        verbs::send_request& request = list.requests[list.count];
        verbs::build(request, op.what, op.posted_bytes, bytes, sequence, true);
        if (bytes <= inline_bytes_max_) verbs::send_inline(request);
        if (list.count > 0) list.requests[list.count - 1].wr.next = &request.wr;
        list.pieces[list.count] = {&op, bytes};
        ++list.count;
        op.posted_bytes += bytes;
        op.is_posted = true;
        if (is_last) sends_.waiting.pop_front();
    }
}

error_code data_path::pump_sends(verbs::queue_pair& qp, operation_list& refused) {
    while (!sends_.waiting.empty()) {
        refuse_reads(refused);
        send_list list;
        gather(list);
        if (list.count == 0) return {};
        ibv_send_wr* bad = nullptr;
        error_code ec = qp.post_send(&list.requests[0].wr, &bad);
        if (ec) ec = take_back_unposted(list, bad, ec, refused);
        if (ec) return ec;
    }
    return {};
}

// Undoes what the device did not take. The operation it balked at is refused if nothing of it has been posted; the rest
// waits again.
error_code data_path::take_back_unposted(
    send_list& list, ibv_send_wr const* bad, error_code ec, operation_list& refused
) {
    std::size_t posted = 0;
    while (bad != nullptr && posted < list.count && &list.requests[posted].wr != bad) ++posted;
    sends_.window.unpost(list.count - posted);
    for (std::size_t i = list.count; i-- > posted;) {
        operation& op = *list.pieces[i].op;
        op.posted_bytes -= list.pieces[i].bytes;
        op.is_posted = op.posted_bytes > 0;
        if (sends_.waiting.front() != &op) sends_.waiting.push_front(op);
    }
    operation& culprit = *list.pieces[posted].op;
    if (culprit.is_posted) return ec;
    sends_.waiting.pop_front();
    refuse(culprit, ec, refused);
    return {};
}

void data_path::pump_receives(verbs::queue_pair& qp, operation_list& refused) {
    while (!receives_.waiting.empty() && receives_.window.can_post(false)) {
        operation& op = *receives_.waiting.pop_front();
        verbs::receive_request request;
        verbs::build(request, op.what, receives_.window.post({&op, true}, false));
        ibv_recv_wr* bad = nullptr;
        op.is_posted = true;
        if (error_code const ec = qp.post_receive(&request.wr, &bad)) {
            receives_.window.unpost(1);
            op.is_posted = false;
            refuse(op, ec, refused);
        }
    }
}

bool data_path::take_back(operation& op) noexcept {
    // One that is cut may wait with its rest while a part is posted.
    if (op.is_posted || !queue_of(op).waiting.remove(op)) return false;
    op.is_done = true;
    --in_use_;
    return true;
}

// Takes in one freed slot; its operation is done with its last piece.
void data_path::finish(entry const& e, error_code ec, ibv_wc const* completion, operation_list& done) {
    operation& op = *e.op;
    if (ec && !op.code) op.code = ec;
    if (!e.is_last_piece) return;
    if (!op.code && completion != nullptr) verbs::read_completion(op.result, op.what, *completion);
    op.is_done = true;
    --in_use_;
    done.push_back(op);
}

completion_report data_path::retire(std::span<ibv_wc const> batch, error_code flush_error) {
    completion_report report;
    for (ibv_wc const& wc : batch) {
        queue& q = verbs::is_receive(wc.wr_id) ? receives_ : sends_;
        std::uint64_t const sequence = verbs::sequence_of(wc.wr_id);
        if (!q.window.is_posted(sequence)) continue;
        q.window.retire(sequence, [&](entry const& e, bool is_last) {
            error_code ec;
            if (is_last && wc.status == IBV_WC_WR_FLUSH_ERR) {
                ec = e.op->is_cancelled ? error_code{boost::asio::error::operation_aborted} : flush_error;
            } else if (is_last && wc.status != IBV_WC_SUCCESS) {
                ec = {static_cast<int>(wc.status), work_completion_category()};
            }
            finish(e, ec, &wc, report.done);
        });
        if (wc.status == IBV_WC_SUCCESS) continue;
        bool const is_flush = wc.status == IBV_WC_WR_FLUSH_ERR;
        if (!report.failed || (report.failed == wc_errc::flushed && !is_flush)) {
            report.failed = {static_cast<int>(wc.status), work_completion_category()};
            report.vendor_error = static_cast<int>(wc.vendor_err);
        }
    }
    return report;
}

operation_list data_path::fail_all(error_code posted_error, error_code waiting_error) {
    operation_list done;
    for (queue* const q : {&sends_, &receives_}) {
        q->window.retire_all([&](entry const& e, bool) { finish(e, posted_error, nullptr, done); });
        while (operation* const op = q->waiting.pop_front()) {
            if (!op->code) op->code = waiting_error;
            op->is_done = true;
            --in_use_;
            done.push_back(*op);
        }
    }
    return done;
}

void data_path::for_each(std::function<void(operation&)> const& visit) {
    for (std::size_t i = 0; i < operation_count_; ++i) visit(operations_[i]);
}

}  // namespace rcverbs::detail
