#include "connection/data_path.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>
#include <utility>

#include "connection/shared_receives.hpp"
#include "connection/window_core.hpp"
#include "verbs/errno_map.hpp"

namespace rcverbs::detail {

data_path::data_path(data_path_sizes const& sizes, mutable_slice atomic_results)
    : pool_{std::size_t{sizes.queues.send_depth} + sizes.queues.receive_depth + sizes.waiting_max, std::size_t{sizes.queues.send_depth} + sizes.queues.receive_depth},
      domain_{sizes.domain},
      shared_{sizes.shared},
      sizes_{sizes.queues},
      limits_{
          sizes.message_bytes_max,
          sizes.queues.send_segments,
          sizes.domain->on().read_segments_max()},
      receive_segments_max_{sizes.queues.receive_segments},
      inline_bytes_max_{sizes.queues.inline_bytes},
      is_soft_iwarp_{sizes.domain->on().is_soft_iwarp()},
      atomic_results_{atomic_results},
      policy_{sizes.queues.send_depth},
      sends_{machines::work_window<entry>{sizes.queues.send_depth}, {}, {}},
      receives_{machines::work_window<entry>{sizes.queues.receive_depth}, {}, {}} {}

// All operations that were allocated are in use, or all that are not kept for messages.
data_path::reservation data_path::take_slow(operation_kind kind, turn when) noexcept {
    errc const refusal = when == turn::now ? errc::would_block : errc::queue_full;
    if ((send_list_ == nullptr && !make_lists()) || !pool_.grow()) return {nullptr, refusal};
    bool const is_message = verbs::is_send(kind) || kind == operation_kind::receive ||
                            kind == operation_kind::write_with_immediate;
    operation* const op = is_message ? pool_.take_kept() : pool_.take();
    return {op, op != nullptr ? errc{} : refusal};
}

namespace {

template <class T>
std::unique_ptr<T[]> make_list(std::size_t size) noexcept {
    return std::unique_ptr<T[]>{new (std::nothrow) T[size]{}};
}
template <class Request>
void link_list(Request* list, std::size_t size) noexcept {
    for (std::size_t i = 1; i < size; ++i) list[i - 1].next = &list[i];
}

// Copies built work requests to a longer list.
template <class Request>
void copy_built(
    Request const* from, Request* to, ibv_sge* segments, std::size_t segments_max, std::size_t count
) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        Request* const next = to[i].next;
        to[i] = from[i];
        to[i].next = next;
        to[i].sg_list = &segments[i * segments_max];
        std::copy_n(from[i].sg_list, from[i].num_sge, to[i].sg_list);
    }
}

// Enough for most rounds. Each connection has lists of its own.
constexpr std::size_t first_list_size = 16;

}  // namespace

// False without memory.
bool data_path::make_lists() noexcept {
    std::size_t const sends = std::min<std::size_t>(sizes_.send_depth, first_list_size);
    std::size_t const receives = std::min<std::size_t>(sizes_.receive_depth, first_list_size);
    return grow_receive_list(receives) && grow_send_list(sends);
}

bool data_path::grow_send_list(std::size_t size) noexcept {
    auto list = make_list<ibv_send_wr>(size);
    auto segments = make_list<ibv_sge>(size * limits_.segments_max);
    auto marks = make_list<progress_mark>(size);
    if (list == nullptr || segments == nullptr || marks == nullptr) return false;
    link_list(list.get(), size);
    copy_built(send_list_.get(), list.get(), segments.get(), limits_.segments_max, built_);
    std::copy_n(send_marks_.get(), built_, marks.get());
    if (refusal_ != 0 && bad_ != nullptr) bad_ = list.get() + (bad_ - send_list_.get());
    send_list_ = std::move(list);
    send_segments_ = std::move(segments);
    send_marks_ = std::move(marks);
    send_list_size_ = size;
    return true;
}

bool data_path::grow_receive_list(std::size_t size) noexcept {
    auto list = make_list<ibv_recv_wr>(size);
    auto segments = make_list<ibv_sge>(size * receive_segments_max_);
    auto pieces = make_list<operation*>(size);
    if (list == nullptr || segments == nullptr || pieces == nullptr) return false;
    link_list(list.get(), size);
    copy_built(
        receive_list_.get(), list.get(), segments.get(), receive_segments_max_, built_receives_
    );
    std::copy_n(receive_pieces_.get(), built_receives_, pieces.get());
    if (receive_refusal_ != 0 && bad_receive_ != nullptr)
        bad_receive_ = list.get() + (bad_receive_ - receive_list_.get());
    receive_list_ = std::move(list);
    receive_segments_ = std::move(segments);
    receive_pieces_ = std::move(pieces);
    receive_list_size_ = size;
    return true;
}

// As long as the queue.
bool data_path::grow_send_list() noexcept {
    return send_list_size_ < sizes_.send_depth && grow_send_list(sizes_.send_depth);
}
bool data_path::grow_receive_list() noexcept {
    return receive_list_size_ < sizes_.receive_depth && grow_receive_list(sizes_.receive_depth);
}

void data_path::set_read_depth(std::size_t depth) noexcept {
    sends_.window.set_read_depth(depth);
    policy_.set_read_depth(depth);
}

data_path::cost data_path::cost_of(std::span<work_request const> what) const noexcept {
    cost sum;
    for (work_request const& one : what) {
        bool const is_one =
            one.kind == operation_kind::receive || is_single(one) || verbs::is_of_window(one.kind);
        std::size_t const pieces = is_one ? 1 : verbs::count_pieces(one, limits_);
        sum.pieces += pieces;
        if (verbs::is_read_or_atomic(one.kind)) sum.reads += pieces;
    }
    return sum;
}

// --- checks --------------------------------------------------------------------------------------

void data_path::enter(data_phase phase) noexcept {
    phase_ = phase;
    kinds_ = 0;
    for (unsigned kind = 0; kind < operation_kinds; ++kind) {
        if (kind_refusal(static_cast<operation_kind>(kind)) == errc{}) kinds_ |= 1U << kind;
    }
}

errc data_path::kind_refusal(operation_kind kind) const noexcept {
    if (phase_ == data_phase::closed) return errc::not_connected;
    if (kind == operation_kind::receive) {
        if (shared_ != nullptr) return errc::receives_are_shared;
        return is_leasing_ ? errc::receives_mixed : errc{};
    }
    if (phase_ == data_phase::receiving) return errc::not_connected;
    device_limits const& device = domain_->on().limits();
    switch (kind) {
    case operation_kind::send_with_immediate:
    case operation_kind::write_with_immediate:
        return device.has_immediate_data ? errc{} : errc::immediate_unsupported;
    case operation_kind::send_with_invalidate:
        return device.has_send_with_invalidate ? errc{} : errc::invalidate_unsupported;
    case operation_kind::bind_window:
    case operation_kind::invalidate_window:
        return device.has_memory_windows ? errc{} : errc::windows_unsupported;
    case operation_kind::fetch_add:
    case operation_kind::compare_swap:
        if (!device.has_atomics) return errc::atomics_unsupported;
        [[fallthrough]];
    case operation_kind::read:
        // The read depth is not known before the connection is open.
        return is_open() && sends_.window.read_depth_max() == 0 ? errc::read_depth_zero : errc{};
    default: return {};
    }
}

// All checks of one request.
errc data_path::refusal(work_request const& what) const noexcept {
    errc const problem = plain_refusal(what);
    if (problem != errc{} || is_single(what) || verbs::is_of_window(what.kind)) return problem;
    for (plain_slice const& each : what.local.all()) {
        errc const other = check(each.mark(), domain_, verbs::local_rights(what.kind));
        if (other != errc{}) return other;
    }
    bool const is_receive = what.kind == operation_kind::receive;
    bool const is_send = verbs::is_send(what.kind);
    if (is_send && what.local.size() > limits_.bytes_max) return errc::message_too_large;
    std::size_t const segments_max = is_receive ? receive_segments_max_ : limits_.segments_max;
    bool const is_uncut = is_receive || is_send;
    return is_uncut && verbs::count_segments(what) > segments_max ? errc::too_many_segments
                                                                  : errc{};
}

data_path::reservation data_path::reserve_leased_receive(work_request const& what) noexcept {
    constexpr std::uint32_t receive = 1U << static_cast<unsigned>(operation_kind::receive);
    is_leasing_ = false;
    if (kind_refusal(operation_kind::receive) == errc{}) kinds_ |= receive;
    reservation const taken = reserve({&what, 1}, turn::wait);
    is_leasing_ = true;
    kinds_ &= ~receive;
    return taken;
}

// For an operation of several requests, or of several work requests.
data_path::reservation data_path::reserve_large(
    std::span<work_request const> what, turn when
) noexcept {
    for (work_request const& one : what) {
        if (errc const problem = refusal(one); problem != errc{}) return {nullptr, problem};
    }
    if (when == turn::now && !has_room_now(what)) return {nullptr, errc::would_block};
    // A message that follows a write is sent with it.
    reservation const taken = take(what.back().kind, when);
    if (taken.op == nullptr) return taken;
    taken.op->is_single = false;
    if (errc const problem = begin_windows(what); problem != errc{}) {
        pool_.give_back(*taken.op);
        return {nullptr, problem};
    }
    return taken;
}

// Makes the windows of an operation busy: all, or none.
errc data_path::begin_windows(std::span<work_request const> what) noexcept {
    for (std::size_t i = 0; i < what.size(); ++i) {
        if (!verbs::is_of_window(what[i].kind)) continue;
        if (errc const problem = begin_window(what[i]); problem != errc{}) {
            end_windows(what.first(i));
            return problem;
        }
    }
    return {};
}

errc data_path::begin_window(work_request const& what) noexcept {
    verbs::memory_window& window = window_of(what);
    if (!window.is_of(this)) return errc::foreign_window;
    return what.kind == operation_kind::bind_window
               ? window.begin_bind(what.local.front(), access_flags{what.immediate})
               : window.begin_invalidate();
}

void data_path::end_windows(std::span<work_request const> what) noexcept {
    for (work_request const& one : what) {
        if (verbs::is_of_window(one.kind)) window_of(one).end_operation();
    }
}

bool data_path::has_room_now(std::span<work_request const> what) const noexcept {
    bool const is_receive = what.front().kind == operation_kind::receive;
    return (is_open() || is_receive) &&
           has_room_for(is_receive ? receives_ : sends_, cost_of(what));
}

// --- from start to the doorbell ------------------------------------------------------------------

void data_path::start(operation& op, std::span<work_request const> what) noexcept {
    op.stage = operation::stage::started;
    keep(op, what);
    queue& q = queue_of(op);
    cost const c = op.is_single ? cost{1, verbs::is_read_or_atomic(op.what.kind) ? 1U : 0U}
                                : cost_of(op.requests());
    if (!has_room_for(q, c)) {
        ++(q.wanted.pieces + c.pieces > q.window.room() ? counts_.slot_waits
                                                        : counts_.read_depth_waits);
    }
    wait_in(q, op, c);
}

error_code data_path::post_queued(verbs::queue_pair& qp, operation_list& refused, bool may_send) {
    post_queued_receives(qp, refused);
    return may_send ? post_queued_sends(qp, refused) : error_code{};
}

void data_path::fail(operation& op, error_code ec) noexcept {
    if (!op.code) op.code = ec;
    op.result = {};
    if (!op.is_single) end_windows(op.requests());
    ++counts_.operations_failed;
    leave(op);
}

void data_path::refuse(operation& op, error_code ec, operation_list& refused) {
    fail(op, ec);
    refused.push_back(op);
}

// Fails the reads that were started before the negotiated read depth turned out to be 0.
void data_path::refuse_reads(operation_list& refused) {
    while (!sends_.waiting.empty() && sends_.window.read_depth_max() == 0 &&
           sends_.waiting.front()->reads_left > 0) {
        refuse(*sends_.waiting.pop_front(), errc::read_depth_zero, refused);
    }
}

// Builds the next piece of an operation that has several; true if it is the last one.
bool data_path::cut_next(operation& op, std::size_t index) {
    std::span<work_request const> const requests = op.requests();
    work_request const& what = requests[op.posted.request_index];
    ibv_sge* const segments = &send_segments_[index * limits_.segments_max];
    bool ends_request = true;
    if (is_single(what)) {
        // The usual case: nearly all requests of a batch are single.
        verbs::build_single(send_list_[index], *segments, what);
    } else if (verbs::is_of_window(what.kind)) {
        fill_window(send_list_[index], what);
    } else {
        ends_request = verbs::build(send_list_[index], segments, what, op.posted, limits_);
    }
    if (ends_request) op.posted = {op.posted.request_index + 1, 0, 0, 0};
    return op.posted.request_index == requests.size();
}

// Builds the linked work requests of waiting operations, as far as there is room.
void data_path::gather_sends() {
    while (operation* const op = sends_.waiting.front()) {
        work_request const& what = op->requests()[op->is_single ? 0 : op->posted.request_index];
        bool const is_read = verbs::is_read_or_atomic(what.kind);
        if (!sends_.window.can_post(is_read)) return;
        if (built_ == send_list_size_ && !grow_send_list()) return;
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

// The result of an atomic is written to the program's memory, or else to the place of its sequence
// number. No two posted work requests share a place. Until the completion, the operation's result is
// the address.
void data_path::set_result_place(operation& op, ibv_send_wr& wr, std::uint64_t sequence) noexcept {
    if (wr.num_sge == 0) {
        wr.sg_list[0] = {
            reinterpret_cast<std::uintptr_t>(result_place(sequence)
            ),  // verbs addresses are integers
            sizeof(std::uint64_t),
            atomic_results_.key().value};
        wr.num_sge = 1;
    }
    op.result.word = wr.sg_list[0].addr;
}

void data_path::fill_window(ibv_send_wr& out, work_request const& what) noexcept {
    verbs::memory_window const& window = window_of(what);
    if (what.kind == operation_kind::bind_window) {
        window.fill_bind(out);
    } else {
        window.fill_invalidate(out);
    }
}

// A completion stands for all work before it, so what is posted behind a read must not complete before it.
// Reads keep their order by themselves, and refuse a fence.
void data_path::suit_soft_iwarp(ibv_send_wr& wr, bool is_read) noexcept {
    if (wr.opcode == IBV_WR_SEND_WITH_INV && (wr.send_flags & IBV_SEND_INLINE) != 0) {
        wr.send_flags &= ~unsigned{IBV_SEND_INLINE};
        --counts_.sends_inline;
    }
    if (is_read) wr.send_flags &= ~unsigned{IBV_SEND_FENCE};
    else if (sends_.window.reads() > 0) wr.send_flags |= IBV_SEND_FENCE;
}

void data_path::send_inline(ibv_send_wr& wr) noexcept {
    std::uint64_t bytes = 0;
    for (int i = 0; i < wr.num_sge; ++i) bytes += wr.sg_list[i].length;
    if (bytes == 0 || bytes > inline_bytes_max_) return;
    wr.send_flags |= IBV_SEND_INLINE;
    ++counts_.sends_inline;
}

error_code data_path::post_queued_sends(verbs::queue_pair& qp, operation_list& refused) {
    // A doorbell that the device has just refused is handled first.
    int code = std::exchange(refusal_, 0);
    for (;;) {
        if (code != 0) {
            switch (recover(code, refused)) {
            case recovery::posts_on: break;
            case recovery::waits: return {};
            case recovery::broken: return verbs::from_returned_code(code);
            }
        }
        if (built_ == 0 && sends_.waiting.empty()) return {};
        if (sends_.window.read_depth_max() == 0) refuse_reads(refused);
        gather_sends();
        if (built_ == 0) return {};
        code = post_built(qp);
    }
}

// Recovers from a refused doorbell. The work requests that the device did not take stay built, in
// order, except those of the operation that it refused. That operation fails; if a part of it is
// already posted, the queue pair is unusable. If the device reports a full queue, contrary to the
// window, nothing is refused: the next completion makes room.
data_path::recovery data_path::recover(int refusal, operation_list& refused) {
    struct piece {
        operation* op;
        bool is_read;
        bool is_last;
    };
    std::size_t const posted =
        bad_ != nullptr ? static_cast<std::size_t>(bad_ - send_list_.get()) : 0;
    if (posted > 0) ++counts_.doorbells;
    counts_.sends_posted += posted;
    std::size_t const count = built_;
    std::vector<piece> left;
    for (std::size_t i = posted; i < count; ++i) {
        std::uint64_t const number = sends_.window.next() - count + i;
        entry const& e = sends_.window.entry_of(number);
        left.push_back({e.op, sends_.window.is_read(number), e.is_last_piece});
    }
    operation& culprit = *left.front().op;
    bool const is_partly_posted = !is_first_piece(culprit, posted);
    take_off_account(posted);
    bool const is_full =
        verbs::from_returned_code(refusal) == boost::system::errc::not_enough_memory &&
        sends_.window.signalled() > 0;
    bool const refuses = !is_full && !is_partly_posted;
    for (std::size_t i = 0; i < left.size(); ++i) {
        piece const& p = left[i];
        if (!refuses || p.op != &culprit) append_again(posted + i, *p.op, p.is_read, p.is_last);
    }
    if (is_full) return recovery::waits;
    // Its pieces stay built, so that give_up_built() finds them when the connection ends.
    if (is_partly_posted) return recovery::broken;
    // Drops its unbuilt pieces, too.
    sends_.waiting.remove(culprit);
    refuse(culprit, verbs::from_returned_code(refusal), refused);
    return recovery::posts_on;
}

// Gives a built work request a new place in the list and a new sequence number.
void data_path::append_again(std::size_t from, operation& op, bool is_read, bool is_last) noexcept {
    ibv_send_wr& wr = send_list_[built_];
    if (from != built_) {
        ibv_sge* const segments = &send_segments_[built_ * limits_.segments_max];
        std::copy_n(send_list_[from].sg_list, send_list_[from].num_sge, segments);
        ibv_send_wr* const next = wr.next;
        wr = send_list_[from];
        wr.next = next;
        wr.sg_list = segments;
        send_marks_[built_] = send_marks_[from];
    }
    wr.send_flags &= ~unsigned{IBV_SEND_SIGNALED | IBV_SEND_INLINE};
    // The place for an atomic's result depends on the sequence number, so append() assigns it
    // again.
    bool const is_atomic =
        wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    if (is_atomic && wr.sg_list[0].lkey == atomic_results_.key().value) wr.num_sge = 0;
    append(op, is_read, is_last, wr);
}

// True if the built work request of that index is the first piece of its operation.
bool data_path::is_first_piece(operation const& op, std::size_t index) const noexcept {
    progress_mark const& at = send_marks_[index];
    return op.is_single || (at.request_index == 0 && at.size_bytes == 0);
}

// Removes the built work requests from `first` on from the window and the counters.
void data_path::take_off_account(std::size_t first) noexcept {
    for (std::size_t i = first; i < built_; ++i) {
        unsigned const flags = send_list_[i].send_flags;
        unsignalled_ -= (flags & IBV_SEND_SIGNALED) != 0 ? 0 : 1;
        counts_.sends_inline -= (flags & IBV_SEND_INLINE) != 0 ? 1 : 0;
    }
    sends_.window.unpost(built_ - first);
    policy_.start_over();
    built_ = 0;
}

void data_path::give_up_built() noexcept {
    give_up_built_receives();
    refusal_ = 0;
    for (std::size_t i = built_; i-- > 0;) {
        std::uint64_t const number = sends_.window.next() - built_ + i;
        operation& op = *sends_.window.entry_of(number).op;
        op.is_posted = !is_first_piece(op, i);
        ++op.pieces_left;
        ++sends_.wanted.pieces;
        if (sends_.window.is_read(number)) {
            ++op.reads_left;
            ++sends_.wanted.reads;
        }
        if (sends_.waiting.front() != &op) sends_.waiting.push_front(op);
    }
    take_off_account(0);
}

// Builds waiting receives, as far as there is room.
void data_path::gather_receives() {
    while (!receives_.waiting.empty() && receives_.window.can_post(false)) {
        if (built_receives_ == receive_list_size_ && !grow_receive_list()) return;
        operation& op = *receives_.waiting.pop_front();
        verbs::build(next_receive(), next_receive_segments(), op.what);
        --receives_.wanted.pieces;
        op.pieces_left = 0;
        append_receive(op);
    }
}

void data_path::post_queued_receives(verbs::queue_pair& qp, operation_list& refused) {
    // A doorbell that the device has just refused is handled first.
    int code = std::exchange(receive_refusal_, 0);
    for (;;) {
        if (code != 0) recover_receives(code, refused);
        gather_receives();
        if (built_receives_ == 0) return;
        code = post_built_receives(qp);
    }
}

// The receive that the device refused fails; those behind it stay built, in order.
void data_path::recover_receives(int refusal, operation_list& refused) {
    auto const posted =
        bad_receive_ != nullptr ? static_cast<std::size_t>(bad_receive_ - receive_list_.get()) : 0;
    std::size_t const count = std::exchange(built_receives_, 0);
    counts_.receives_posted += posted;
    receives_.window.unpost(count - posted);
    operation& culprit = *receive_pieces_[posted];
    culprit.is_posted = false;
    for (std::size_t i = posted + 1; i < count; ++i) {
        ibv_recv_wr const& from = receive_list_[i];
        ibv_recv_wr& to = next_receive();
        to.sg_list = next_receive_segments();
        to.num_sge = from.num_sge;
        std::copy_n(from.sg_list, from.num_sge, to.sg_list);
        append_receive(*receive_pieces_[i]);
    }
    refuse(culprit, verbs::from_returned_code(refusal), refused);
}

void data_path::give_up_built_receives() noexcept {
    receive_refusal_ = 0;
    receives_.window.unpost(built_receives_);
    while (built_receives_ > 0) {
        operation& op = *receive_pieces_[--built_receives_];
        op.is_posted = false;
        op.pieces_left = 1;
        ++receives_.wanted.pieces;
        receives_.waiting.push_front(op);
    }
}

bool data_path::take_back(operation& op) noexcept {
    // An operation of several pieces may wait with the rest while a part is posted.
    if (op.is_posted || !queue_of(op).waiting.remove(op)) return false;
    fail(op, boost::asio::error::operation_aborted);
    return true;
}

operation_list data_path::take_back_waiting(bool is_leasing) noexcept {
    operation_list taken;
    for (queue* const q : {&sends_, &receives_}) {
        if (is_leasing && q == &receives_) continue;
        operation_list kept;
        while (operation* const op = q->waiting.pop_front())
            (op->is_posted ? kept : taken).push_back(*op);
        q->waiting = kept;
    }
    for (operation* op = taken.front(); op != nullptr; op = op->next)
        fail(*op, boost::asio::error::operation_aborted);
    return taken;
}

// Sets the result of an atomic, an operation of a window, a batch or an operation of several pieces.
void data_path::succeed_slow(operation& op) noexcept {
    if (op.is_single && verbs::is_atomic(op.what.kind)) {
        // See set_result_place().
        auto const* const place = reinterpret_cast<std::byte const*>(op.result.word);
        std::memcpy(&op.result.word, place, sizeof op.result.word);
    }
    op.result.bytes = 0;
    if (op.is_single) {
        // Only an atomic reaches this line.
        op.result.bytes = sizeof(std::uint64_t);
        counts_.bytes_read += op.result.bytes;
        return;
    }
    for (work_request const& what : op.requests()) {
        if (verbs::is_of_window(what.kind)) {
            verbs::memory_window& window = window_of(what);
            window.set_bound(what.kind == operation_kind::bind_window);
            window.end_operation();
            op.result.word = what.operand;
            continue;
        }
        std::size_t const bytes =
            verbs::is_atomic(what.kind) ? sizeof(std::uint64_t) : what.local.size();
        op.result.bytes += bytes;
        (verbs::is_read_or_atomic(what.kind) ? counts_.bytes_read : counts_.bytes_sent) += bytes;
    }
}

// Processes a receive, a failure, or a completion that also covers earlier unsignaled work. All
// work that a completion covers has succeeded, except possibly the last.
void data_path::retire_slow(ibv_wc const& wc, completion_report& report) noexcept {
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
        // The error belongs to the operation that the failed completion names; all earlier work has
        // succeeded.
        operation& op = *q.window.entry_of(sequence).op;
        bool const is_called_off = wc.status == IBV_WC_WR_FLUSH_ERR && op.is_cancelled;
        error_code const ec = verbs::from_status(wc.status);
        if (!op.code)
            op.code = is_called_off ? error_code{boost::asio::error::operation_aborted} : ec;
        note_failure(report, wc);
    }
    bool const is_receive = verbs::is_receive(wc.wr_id);
    q.window.retire(sequence, [&](entry const& e, std::uint64_t number) {
        // Each receive has a completion of its own: those of earlier ones are lost.
        if (is_receive && number != sequence) {
            if (!e.op->code) e.op->code = errc::completion_queue_broken;
            if (!report.failed) report.failed = errc::completion_queue_broken;
        }
        if (e.is_last_piece) take_in(*e.op, wc, report);
    });
}

void data_path::note_failure(completion_report& report, ibv_wc const& wc) noexcept {
    if (report.failed && (report.failed != wc_errc::flushed || wc.status == IBV_WC_WR_FLUSH_ERR))
        return;
    report.failed = verbs::from_status(wc.status);
    report.vendor_error = static_cast<int>(wc.vendor_err);
}

operation_list data_path::fail_all(error_code why) {
    operation_list done;
    for (queue* const q : {&sends_, &receives_}) {
        q->window.retire_all([&](entry const& e, std::uint64_t) {
            if (!e.op->code) e.op->code = why;
            if (!e.is_last_piece) return;
            fail(*e.op, why);
            done.push_back(*e.op);
        });
        while (operation* const op = q->waiting.pop_front()) {
            fail(*op, why);
            done.push_back(*op);
        }
    }
    return done;
}

connection_statistics data_path::statistics() const noexcept {
    connection_statistics now = counts_;
    now.operations_started = now.operations_completed + now.operations_failed + pool_.in_use();
    now.sends_signalled = now.sends_posted + built_ - unsignalled_;
    now.sends_outstanding = static_cast<std::uint32_t>(sends_.window.posted());
    now.reads_outstanding = static_cast<std::uint32_t>(sends_.window.reads());
    now.receive_credits = static_cast<std::uint32_t>(receives_.window.posted());
    return now;
}

}  // namespace rcverbs::detail
