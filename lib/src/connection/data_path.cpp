#include "connection/data_path.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cstring>

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

data_path::data_path(data_path_sizes const& sizes, local_slice atomic_results)
    : in_use_max_{std::size_t{sizes.queues.send_depth} + sizes.queues.receive_depth + sizes.waiting_max},
      // One segment's length is 32 bits, whatever a device says of its messages.
      limits_{std::min<std::uint64_t>(sizes.message_bytes_max, std::uint64_t{1} << 31), sizes.queues.send_segments},
      receive_segments_max_{sizes.queues.receive_segments},
      inline_bytes_max_{sizes.queues.inline_bytes},
      atomic_results_{atomic_results},
      policy_{sizes.queues.send_depth},
      sends_{machines::work_window<entry>{sizes.queues.send_depth}, {}, {}},
      receives_{machines::work_window<entry>{sizes.queues.receive_depth}, {}, {}},
      send_list_(sizes.queues.send_depth),
      send_segments_(sizes.queues.send_depth * limits_.segments_max),
      send_pieces_(sizes.queues.send_depth),
      receive_list_(sizes.queues.receive_depth),
      receive_segments_(sizes.queues.receive_depth * receive_segments_max_),
      receive_pieces_(sizes.queues.receive_depth) {
    // Those whose handlers are being called are in nobody's account: they may be as many as the queues hold.
    operation_count_ = in_use_max_ + sizes.queues.send_depth + sizes.queues.receive_depth;
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
    op->batch = {};
    op->posted = {};
    op->is_posted = false;
    op->is_cancelled = false;
    op->is_done = false;
    ++op->use;
    return op;
}

void data_path::release(operation_list& used) noexcept { free_.append(used); }

void data_path::set_read_depth(std::size_t depth) noexcept {
    sends_.window.set_read_depth(depth);
    policy_.set_read_depth(depth);
}

data_path::cost data_path::cost_of(std::span<request const> what) const noexcept {
    cost sum;
    for (request const& one : what) {
        std::size_t const pieces = one.kind == operation_kind::receive ? 1 : verbs::count_pieces(one, limits_);
        sum.pieces += pieces;
        if (verbs::is_read_or_atomic(one.kind)) sum.reads += pieces;
    }
    return sum;
}

bool data_path::has_room_for(queue const& q, cost const& c) const noexcept {
    return q.wanted.pieces + c.pieces <= q.window.room() &&
           (c.reads == 0 || q.wanted.reads + c.reads <= q.window.read_room());
}

bool data_path::has_room_for(std::span<request const> what) const noexcept {
    return has_room_for(what.front().kind == operation_kind::receive ? receives_ : sends_, cost_of(what));
}

void data_path::start(operation& op) noexcept {
    queue& q = queue_of(op);
    cost const c = cost_of(op.requests());
    if (q.wanted.pieces + c.pieces > q.window.room()) {
        ++counts_.slot_waits;
    } else if (!has_room_for(q, c)) {
        ++counts_.read_depth_waits;
    }
    op.pieces_left = c.pieces;
    op.reads_left = c.reads;
    q.wanted.pieces += c.pieces;
    q.wanted.reads += c.reads;
    q.waiting.push_back(op);
    ++counts_.operations_started;
}

error_code data_path::pump(verbs::queue_pair& qp, operation_list& refused, bool may_send) {
    pump_receives(qp, refused);
    return may_send ? pump_sends(qp, refused) : error_code{};
}

// What an operation still wanted is wanted no longer, and its place is another's.
void data_path::leave(operation& op) noexcept {
    queue& q = queue_of(op);
    q.wanted.pieces -= std::exchange(op.pieces_left, 0);
    q.wanted.reads -= std::exchange(op.reads_left, 0);
    op.is_done = true;
    --in_use_;
    ++(op.code ? counts_.operations_failed : counts_.operations_completed);
}

void data_path::refuse(operation& op, error_code ec, operation_list& refused) {
    op.code = ec;
    leave(op);
    refused.push_back(op);
}

// Reads that were started before it was known that none are allowed.
void data_path::refuse_reads(operation_list& refused) {
    while (!sends_.waiting.empty() && sends_.window.read_depth_max() == 0 && sends_.waiting.front()->reads_left > 0) {
        refuse(*sends_.waiting.pop_front(), errc::read_depth_zero, refused);
    }
}

// Moves as much as there is room for from the waiting operations into a list of linked work requests.
std::size_t data_path::gather_sends() {
    std::size_t count = 0;
    while (!sends_.waiting.empty()) {
        operation& op = *sends_.waiting.front();
        std::span<request const> const requests = op.requests();
        request const& what = requests[op.posted.request_index];
        bool const is_read = verbs::is_read_or_atomic(what.kind);
        if (!sends_.window.can_post(is_read)) break;
        send_pieces_[count] = {&op, op.posted, policy_, is_read};
        ibv_send_wr& wr = send_list_[count];
        std::uint64_t const before = op.posted.size_bytes;
        bool const ends_request = verbs::build(wr, &send_segments_[count * limits_.segments_max], what, op.posted, limits_);
        std::uint64_t const bytes = op.posted.size_bytes - before;
        if (ends_request) op.posted = {op.posted.request_index + 1, 0, 0, 0};
        bool const is_last = op.posted.request_index == requests.size();
        bool const is_signalled = policy_.decide(is_read, is_last && op.is_pending());
        std::uint64_t const sequence = sends_.window.post({&op, is_last}, is_read, is_signalled);
        wr.wr_id = verbs::send_id(sequence);
        if (is_signalled) wr.send_flags |= IBV_SEND_SIGNALED;
        if (bytes > 0 && bytes <= inline_bytes_max_ && !is_read) wr.send_flags |= IBV_SEND_INLINE;
        if (wr.num_sge == 0 && verbs::is_atomic(what.kind)) {
            // Posted work of different sequence numbers never meets in one of the result's places.
            std::size_t const place = sequence % sends_.window.size();
            send_segments_[count * limits_.segments_max] = {
                reinterpret_cast<std::uintptr_t>(atomic_results_.data()) + place * sizeof(std::uint64_t),
                sizeof(std::uint64_t),
                atomic_results_.key().value};
            wr.num_sge = 1;
        }
        if (count > 0) send_list_[count - 1].next = &wr;
        ++count;
        --op.pieces_left;
        --sends_.wanted.pieces;
        if (is_read) {
            --op.reads_left;
            --sends_.wanted.reads;
        }
        op.is_posted = true;
        if (is_last) sends_.waiting.pop_front();
    }
    return count;
}

error_code data_path::pump_sends(verbs::queue_pair& qp, operation_list& refused) {
    while (!sends_.waiting.empty()) {
        refuse_reads(refused);
        std::size_t const count = gather_sends();
        if (count == 0) return {};
        ibv_send_wr* bad = nullptr;
        error_code const ec = qp.post_send(send_list_.data(), &bad);
        auto const posted = ec ? static_cast<std::size_t>((bad != nullptr ? bad : send_list_.data()) - send_list_.data()) : count;
        if (posted > 0) ++counts_.doorbells;
        counts_.sends_posted += posted;
        for (std::size_t i = 0; i < posted; ++i) {
            unsigned const flags = send_list_[i].send_flags;
            counts_.sends_signalled += (flags & IBV_SEND_SIGNALED) != 0 ? 1 : 0;
            counts_.sends_inline += (flags & IBV_SEND_INLINE) != 0 ? 1 : 0;
        }
        if (!ec) continue;
        if (error_code const fatal = take_back_unposted(posted, count, ec, refused)) return fatal;
        // With a full queue there is nothing to do before the next completion.
        if (ec == boost::system::errc::not_enough_memory && sends_.window.signalled() > 0) return {};
    }
    return {};
}

// Undoes what the device did not take. Where its queue is full, against our account, all of it waits for a completion;
// else the operation it balked at is refused, if nothing of it has been posted, and the rest waits again.
error_code data_path::take_back_unposted(
    std::size_t posted, std::size_t count, error_code ec, operation_list& refused
) {
    sends_.window.unpost(count - posted);
    policy_ = send_pieces_[posted].policy_before;
    for (std::size_t i = count; i-- > posted;) {
        piece const& p = send_pieces_[i];
        operation& op = *p.op;
        op.posted = p.before;
        op.is_posted = op.posted.request_index > 0 || op.posted.size_bytes > 0;
        ++op.pieces_left;
        ++sends_.wanted.pieces;
        if (p.is_read) {
            ++op.reads_left;
            ++sends_.wanted.reads;
        }
        if (sends_.waiting.front() != &op) sends_.waiting.push_front(op);
    }
    if (ec == boost::system::errc::not_enough_memory && sends_.window.signalled() > 0) return {};
    operation& culprit = *send_pieces_[posted].op;
    if (culprit.is_posted) return ec;
    sends_.waiting.pop_front();
    refuse(culprit, ec, refused);
    return {};
}

std::size_t data_path::gather_receives() {
    std::size_t count = 0;
    while (!receives_.waiting.empty() && receives_.window.can_post(false)) {
        operation& op = *receives_.waiting.pop_front();
        ibv_recv_wr& wr = receive_list_[count];
        verbs::build(wr, &receive_segments_[count * receive_segments_max_], op.what);
        wr.wr_id = verbs::receive_id(receives_.window.post({&op, true}, false));
        if (count > 0) receive_list_[count - 1].next = &wr;
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
        error_code const ec = qp.post_receive(receive_list_.data(), &bad);
        auto const posted = ec ? static_cast<std::size_t>((bad != nullptr ? bad : receive_list_.data()) - receive_list_.data()) : count;
        counts_.receives_posted += posted;
        if (!ec) continue;
        receives_.window.unpost(count - posted);
        for (std::size_t i = count; i-- > posted;) {
            operation& op = *receive_pieces_[i];
            op.is_posted = false;
            op.pieces_left = 1;
            ++receives_.wanted.pieces;
            receives_.waiting.push_front(op);
        }
        // What it balked at is refused; the others are tried again without it.
        refuse(*receives_.waiting.pop_front(), ec, refused);
    }
}

bool data_path::take_back(operation& op) noexcept {
    // One that is cut may wait with its rest while a part is posted.
    if (op.is_posted || !queue_of(op).waiting.remove(op)) return false;
    op.code = boost::asio::error::operation_aborted;
    leave(op);
    return true;
}

// Takes in one freed slot; its operation is done with its last piece.
void data_path::finish(entry const& e, error_code ec, operation_list& done) {
    operation& op = *e.op;
    if (ec && !op.code) op.code = ec;
    if (!e.is_last_piece) return;
    leave(op);
    done.push_back(op);
}

// The result of an operation whose last piece was covered by a completion without error.
void data_path::succeed(operation& op, std::uint64_t sequence, ibv_wc const& completion) {
    if (op.what.kind == operation_kind::receive) {
        op.result.arrival = verbs::read_arrival(completion);
        counts_.bytes_received += op.result.arrival.size_bytes;
        return;
    }
    for (request const& what : op.requests()) {
        std::size_t const bytes = verbs::is_atomic(what.kind) ? sizeof(std::uint64_t) : what.local.size_bytes();
        op.result.bytes += bytes;
        (verbs::is_read_or_atomic(what.kind) ? counts_.bytes_read : counts_.bytes_sent) += bytes;
    }
    if (verbs::is_atomic(op.what.kind) && op.batch.empty()) {
        std::size_t const place = sequence % sends_.window.size();
        std::memcpy(&op.result.word, atomic_results_.data() + place * sizeof(std::uint64_t), sizeof op.result.word);
    }
}

completion_report data_path::retire(std::span<ibv_wc const> batch, error_code flush_error) {
    completion_report report;
    for (ibv_wc const& wc : batch) {
        queue& q = verbs::is_receive(wc.wr_id) ? receives_ : sends_;
        std::uint64_t const sequence = verbs::sequence_of(wc.wr_id);
        if (!q.window.is_posted(sequence)) continue;
        q.window.retire(sequence, [&](entry const& e, std::uint64_t number) {
            error_code ec;
            if (number == sequence && wc.status == IBV_WC_WR_FLUSH_ERR) {
                ec = e.op->is_cancelled ? error_code{boost::asio::error::operation_aborted} : flush_error;
            } else if (number == sequence && wc.status != IBV_WC_SUCCESS) {
                ec = {static_cast<int>(wc.status), work_completion_category()};
            } else if (e.is_last_piece && !e.op->code) {
                succeed(*e.op, number, wc);
            }
            finish(e, ec, report.done);
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
        q->window.retire_all([&](entry const& e, std::uint64_t) { finish(e, posted_error, done); });
        while (operation* const op = q->waiting.pop_front()) {
            if (!op->code) op->code = waiting_error;
            leave(*op);
            done.push_back(*op);
        }
    }
    return done;
}

connection_statistics data_path::statistics() const noexcept {
    connection_statistics now = counts_;
    now.sends_outstanding = static_cast<std::uint32_t>(sends_.window.posted());
    now.reads_outstanding = static_cast<std::uint32_t>(sends_.window.reads());
    now.receive_credits = static_cast<std::uint32_t>(receives_.window.posted());
    return now;
}

void data_path::for_each(std::function<void(operation&)> const& visit) {
    for (std::size_t i = 0; i < operation_count_; ++i) visit(operations_[i]);
}

}  // namespace rcverbs::detail
