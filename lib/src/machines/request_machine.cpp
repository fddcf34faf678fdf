#include "machines/request_machine.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace rcverbs::machines {

// --- lists ---------------------------------------------------------------------------------------

void request_machine::push(list& to, std::uint32_t i) noexcept {
    request& r = requests_[i];
    r.next = nobody;
    r.previous = to.last;
    (to.last != nobody ? requests_[to.last].next : to.first) = i;
    to.last = i;
    ++to.count;
}

void request_machine::remove(list& from, std::uint32_t i) noexcept {
    request const& r = requests_[i];
    (r.previous != nobody ? requests_[r.previous].next : from.first) = r.next;
    (r.next != nobody ? requests_[r.next].previous : from.last) = r.previous;
    --from.count;
}

// --- this side's requests ------------------------------------------------------------------------

std::uint32_t request_machine::add(bool is_notice, bool has_target) {
    if (free_.count == 0) {
        requests_.emplace_back();
        push(free_, static_cast<std::uint32_t>(requests_.size() - 1));
    }
    std::uint32_t const i = free_.first;
    remove(free_, i);
    requests_[i] = {};
    requests_[i].is_notice = is_notice;
    requests_[i].has_target = has_target;
    requests_[i].at = stage::waiting;
    push(waiting_, i);
    return i;
}

void request_machine::forget(std::uint32_t i) noexcept {
    requests_[i].is_forgotten = true;
    recycle(i);
}

// A request that is over and has no number.
void request_machine::recycle(std::uint32_t i) noexcept {
    request& r = requests_[i];
    if (r.at != stage::over || !r.is_forgotten) return;
    r.at = stage::free;
    push(free_, i);
}

// Without memory for one more, requests wait for a number that is freed, or for their deadlines.
bool request_machine::take_number(std::uint16_t& id) {
    if (free_ids_.empty()) {
        if (by_id_.size() >= peer_max_) return false;
        try {
            free_ids_.reserve(by_id_.size() + 1);
            by_id_.push_back(nobody);
        } catch (std::bad_alloc const&) {
            return false;
        }
        free_ids_.push_back(static_cast<std::uint16_t>(by_id_.size() - 1));
    }
    id = free_ids_.back();
    free_ids_.pop_back();
    return true;
}

void request_machine::free_number(std::uint32_t i) noexcept {
    request& r = requests_[i];
    remove(outstanding_, i);
    by_id_[r.id] = nobody;
    free_ids_.push_back(r.id);
    r.at = stage::over;
    recycle(i);
}

request_machine::outcome request_machine::success_of(request const& r) noexcept {
    return r.is_notice ? outcome::sent : outcome::answered;
}

void request_machine::complete(std::uint32_t i, outcome how, request_actions& out) {
    requests_[i].is_completed = true;
    out.complete_request(i, how);
}

void request_machine::proceed(request_actions& out) {
    std::uint16_t id = 0;
    while (waiting_.count > 0 && !is_over_ && take_number(id)) {
        std::uint32_t const i = waiting_.first;
        remove(waiting_, i);
        push(outstanding_, i);
        requests_[i].at = stage::outstanding;
        requests_[i].id = id;
        by_id_[id] = i;
        if (out.send_request(i, id)) continue;
        free_number(i);
        complete(i, outcome::failed, out);
    }
    continue_finishing(out);
}

void request_machine::sent(std::uint32_t i, bool is_failed, request_actions& out) {
    request& r = requests_[i];
    r.is_sent = true;
    if (is_failed && r.has_target && !r.is_completed) {
        // The peer may have it all the same, until the connection has ended.
        if (!r.has_result) r.how = outcome::failed;
        r.has_result = true;
        return;
    }
    // What has a result is written to until the peer says otherwise.
    bool const is_free_of_peer = r.has_result && !r.has_target;
    bool const is_due = is_failed || r.is_answered || r.is_notice || is_free_of_peer;
    bool const is_free = is_failed || r.is_answered;
    if (is_due && !r.is_completed) {
        outcome const how = is_failed ? outcome::failed : success_of(r);
        complete(i, r.has_result ? r.how : how, out);
    }
    if (is_free) free_number(i);
    proceed(out);
}

void request_machine::cancel(std::uint32_t i, request_actions& out) {
    request& r = requests_[i];
    if (r.at == stage::waiting) {
        remove(waiting_, i);
        r.at = stage::over;
        complete(i, outcome::cancelled, out);
        return continue_finishing(out);
    }
    if (r.at != stage::outstanding || r.is_completed || r.is_withdrawing || r.is_releasing) return;
    // An answer may have come before the body is free.
    if (!r.has_result) r.how = r.is_answered ? success_of(r) : outcome::cancelled;
    r.has_result = true;
    using taken_back = request_actions::taken_back;
    taken_back const what = r.is_sent ? taken_back::over : out.take_back_request(i);
    bool const is_with_peer = what != taken_back::unsent && !r.is_answered;
    if (is_with_peer && !r.is_notice) out.send_control(kind::cancel, r.id);
    r.is_withdrawing = what == taken_back::exposed;
    r.is_releasing = r.has_target && is_with_peer;
    if (r.is_releasing) out.await_release(i);
    else if (!r.is_withdrawing) complete(i, r.how, out);
}

std::uint32_t request_machine::wants_answer(std::uint16_t id) const noexcept {
    if (id >= by_id_.size() || by_id_[id] == nobody) return nobody;
    request const& r = requests_[by_id_[id]];
    return r.is_completed || r.has_result ? nobody : by_id_[id];
}

// --- the peer's messages -------------------------------------------------------------------------

request_machine::violation request_machine::arrived(
    kind what, std::uint16_t id, bool is_empty, bool has_target, request_actions& out
) {
    switch (what) {
    case kind::request:
    case kind::notice: return on_request(what, id, has_target);
    case kind::answer:
    case kind::dropped: return on_answer(what, id, is_empty, out);
    case kind::cancel: return on_cancel(id, out);
    case kind::released: return on_released(id, out);
    case kind::end: break;
    }
    if (has_peer_ended_) return violation::unexpected;
    has_peer_ended_ = true;
    continue_finishing(out);
    return violation::none;
}

request_machine::violation request_machine::on_request(
    kind what, std::uint16_t id, bool has_target
) {
    if (id >= own_max_ || is_open(id) || has_peer_ended_) return violation::unexpected;
    if (id >= incoming_.size()) incoming_.resize(std::size_t{id} + 1);
    incoming_[id] = {true, what == kind::notice, false, has_target};
    ++open_;
    return violation::none;
}

request_machine::violation request_machine::on_cancel(std::uint16_t id, request_actions& out) {
    if (id >= own_max_) return violation::unexpected;
    // Its answer may be under way.
    if (!is_open(id)) return violation::none;
    incoming_[id].is_cancelled = true;
    // The program may take any time to answer, so the peer's memory is let go first.
    if (std::exchange(incoming_[id].has_target, false)) out.send_control(kind::released, id);
    return violation::none;
}

request_machine::violation request_machine::on_released(std::uint16_t id, request_actions& out) {
    if (id >= by_id_.size() || by_id_[id] == nobody) return violation::unexpected;
    std::uint32_t const i = by_id_[id];
    request& r = requests_[i];
    if (!r.is_releasing || !r.has_target || r.is_answered) return violation::unexpected;
    r.has_target = false;
    // The peer may still read the body.
    if (!r.is_withdrawing || r.is_sent) complete(i, r.how, out);
    return violation::none;
}

request_machine::violation request_machine::on_answer(
    kind what, std::uint16_t id, bool is_empty, request_actions& out
) {
    if (id >= by_id_.size() || by_id_[id] == nobody) return violation::unexpected;
    std::uint32_t const i = by_id_[id];
    request& r = requests_[i];
    if (r.is_answered) return violation::unexpected;
    if (r.is_notice && what == kind::answer && !is_empty) return violation::malformed;
    r.is_answered = true;
    if (what == kind::dropped && !r.has_result) {
        r.has_result = true;
        r.how = outcome::dropped;
    }
    // The answer may overtake the end of sending.
    if (!r.is_sent) return violation::none;
    if (!r.is_completed) complete(i, r.has_result ? r.how : success_of(r), out);
    free_number(i);
    proceed(out);
    return violation::none;
}

void request_machine::answered(std::uint16_t id, request_actions& out) { close(id, out); }

void request_machine::drop(std::uint16_t id, request_actions& out) {
    if (is_over_) return close(id, out);
    out.send_control(incoming_[id].is_notice ? kind::answer : kind::dropped, id);
    close(id, out);
}

// The peer may use the number again when it has the answer, which has been queued.
void request_machine::close(std::uint16_t id, request_actions& out) {
    incoming_[id].is_open = false;
    --open_;
    continue_finishing(out);
}

// --- the end -------------------------------------------------------------------------------------

void request_machine::finish(request_actions& out) {
    is_finishing_ = true;
    continue_finishing(out);
}

void request_machine::continue_finishing(request_actions& out) {
    if (!is_finishing_ || is_over_) return;
    if (!is_end_sent_ && waiting_.count == 0 && outstanding() == 0) {
        is_end_sent_ = true;
        out.send_control(kind::end, 0);
    }
    if (!is_finished() || has_finished_) return;
    has_finished_ = true;
    out.finish_messages();
}

void request_machine::end(request_actions& out) {
    is_over_ = true;
    // Nobody waits for what the program still has.
    for (incoming& i : incoming_) i.is_cancelled = i.is_open;
    while (waiting_.count > 0) {
        std::uint32_t const i = waiting_.first;
        remove(waiting_, i);
        requests_[i].at = stage::over;
        complete(i, outcome::ended, out);
    }
    for (std::uint32_t i = outstanding_.first; i != nobody; i = requests_[i].next) {
        request& r = requests_[i];
        if (r.is_completed) continue;
        if (!r.has_result) r.how = outcome::ended;
        r.has_result = true;
        // Others are over when their memory is not exposed any more.
        if (r.is_sent && (!r.has_target || r.is_answered)) complete(i, r.how, out);
    }
}

void request_machine::connection_ended(request_actions& out) {
    for (std::uint32_t i = outstanding_.first; i != nobody; i = requests_[i].next) {
        request& r = requests_[i];
        r.has_target = false;
        if (r.is_sent && r.has_result && !r.is_completed) complete(i, r.how, out);
    }
}

// --- for tests -----------------------------------------------------------------------------------

void request_machine::append_to(std::vector<std::uint64_t>& out) const {
    auto const add = [&](auto... values) {
        (out.push_back(static_cast<std::uint64_t>(values)), ...);
    };
    add(free_.first,
        waiting_.first,
        outstanding_.first,
        open_,
        is_over_,
        is_finishing_,
        is_end_sent_);
    add(has_peer_ended_, has_finished_);
    for (request const& r : requests_) {
        add(r.next, r.id, r.at, r.how, r.has_result, r.is_notice, r.is_sent, r.is_answered);
        add(r.is_withdrawing, r.is_completed, r.is_forgotten, r.has_target, r.is_releasing);
    }
    for (std::uint32_t const i : by_id_) add(i);
    for (std::uint16_t const id : free_ids_) add(id);
    for (incoming const& i : incoming_) add(i.is_open, i.is_notice, i.is_cancelled, i.has_target);
}

}  // namespace rcverbs::machines
