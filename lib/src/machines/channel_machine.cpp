#include "machines/channel_machine.hpp"

#include <algorithm>

namespace rcverbs::machines {

namespace {

using kind = credit_window::kind;

kind kind_of(channel_actions::type what) noexcept {
    using type = channel_actions::type;
    switch (what) {
    case type::large_done:
    case type::withdraw: return kind::answer;
    case type::credit: return kind::credit;
    case type::close: return kind::close;
    case type::eager:
    case type::large: break;
    }
    return kind::data;
}

}  // namespace

channel_machine::channel_machine(settings const& s)
    : settings_{s},
      credits_{s.own_receives, s.peer_receives},
      is_open_{true},
      slots_(s.sends + control_slots, nobody),
      is_close_slot_(s.sends + control_slots, false),
      kept_(s.own_receives) {
    auto const slots = static_cast<std::uint32_t>(slots_.size());
    for (std::uint32_t i = 0; i < slots; ++i) free_slots_.push_back(slots - 1 - i);
}

// --- lists ---------------------------------------------------------------------------------------

void channel_machine::push(list& to, std::uint32_t i) noexcept {
    message& m = messages_[i];
    m.next = nobody;
    m.previous = to.last;
    (to.last != nobody ? messages_[to.last].next : to.first) = i;
    to.last = i;
    ++to.count;
}

void channel_machine::remove(list& from, std::uint32_t i) noexcept {
    message const& m = messages_[i];
    (m.previous != nobody ? messages_[m.previous].next : from.first) = m.next;
    (m.next != nobody ? messages_[m.next].previous : from.last) = m.previous;
    --from.count;
}

// --- the program's messages ----------------------------------------------------------------------

std::uint32_t channel_machine::add(bool is_large) {
    if (free_.count == 0) {
        messages_.emplace_back();
        push(free_, static_cast<std::uint32_t>(messages_.size() - 1));
    }
    // For a withdrawal, which must not throw.
    if (is_large) reserve_answers(1);
    std::uint32_t const i = free_.first;
    remove(free_, i);
    messages_[i] = {};
    messages_[i].is_large = is_large;
    messages_[i].at = stage::waiting;
    push(waiting_, i);
    return i;
}

void channel_machine::forget(std::uint32_t i) noexcept {
    messages_[i].at = stage::free;
    push(free_, i);
}

void channel_machine::over(std::uint32_t i, outcome how, channel_actions& out) {
    messages_[i].at = stage::over;
    out.complete(i, how);
}

channel_machine::cancelled channel_machine::cancel(std::uint32_t i, channel_actions& out) {
    message& m = messages_[i];
    if (m.at == stage::waiting) {
        remove(waiting_, i);
        over(i, outcome::cancelled, out);
        proceed(out);  // CLOSE may have waited for it
        return cancelled::unsent;
    }
    if (m.at != stage::posted) return cancelled::over;
    if (!m.is_large) return cancelled::copied;
    if (!m.is_withdrawn && !m.is_answered && is_open_) {
        m.is_withdrawn = true;
        answers_.push_back({type::withdraw, m.number, false});
        proceed(out);
    }
    return cancelled::exposed;
}

bool channel_machine::is_withdrawing(std::uint32_t i) const noexcept {
    message const& m = messages_[i];
    return m.at == stage::posted && m.is_withdrawn && !m.is_answered;
}

void channel_machine::finish(channel_actions& out) {
    has_all_sent_ = true;
    proceed(out);
}

// --- posting -------------------------------------------------------------------------------------

// How many large messages that a side with so many receives has got may be unanswered.
std::uint64_t channel_machine::unanswered_max(std::uint16_t receives) const noexcept {
    return std::uint64_t{receives} + settings_.requests;
}

// One WITHDRAW for each large message of this side, one LARGE_DONE for each of the peer's.
void channel_machine::reserve_answers(std::size_t more) {
    answers_.reserve(answers_.size() + announced_.size() + messages_.size() + more);
}

void channel_machine::post_due(channel_actions& out) {
    while (!answers_.empty() && credits_.may_send(kind::answer) && free_slots_.size() > 2) {
        answer const a = answers_.front();
        answers_.erase(answers_.begin());
        if (a.what == type::large_done) ++answers_posted_;
        post(a.what, nobody, a.number, a.is_declined, out);
    }
    while (waiting_.count > 0 && credits_.may_send(kind::data) && free_slots_.size() > control_slots
    ) {
        std::uint32_t const i = waiting_.first;
        message& m = messages_[i];
        bool const is_full = large_posted_ - answers_arrived_ >=
                             std::min(unanswered_max(settings_.peer_receives), settings_.large_max);
        if (m.is_large && is_full) break;
        remove(waiting_, i);
        m.at = stage::posted;
        push(posted_, i);
        if (m.is_large) m.number = large_posted_++;
        post(m.is_large ? type::large : type::eager, i, m.number, false, out);
    }
    bool const is_credit_due = credits_.owes_credit() && (!is_delivering_ || credits_.owes_much());
    if (is_credit_due && credits_.may_send(kind::credit) && free_slots_.size() > 1) {
        ++credits_posted_;
        post(type::credit, nobody, 0, false, out);
    }
    if (!has_all_sent_) return;
    bool const is_quiet = waiting_.count == 0 && posted_.count == 0 && unacknowledged_ == 0;
    if (is_quiet && !is_close_posted_ && credits_.may_send(kind::close)) {
        is_close_posted_ = true;
        post(type::close, nobody, 0, false, out);
    }
    if (!has_peer_closed_ || !is_close_acknowledged_ || !settings_.disconnects) return;
    is_open_ = false;
    out.disconnect();
}

void channel_machine::post(
    type what, std::uint32_t i, std::uint64_t number, bool is_declined, channel_actions& out
) {
    std::uint32_t const slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = i;
    is_close_slot_[slot] = what == type::close;
    ++unacknowledged_;
    out.post({what, credits_.on_send(kind_of(what)), slot, i, number, is_declined});
}

void channel_machine::acknowledged(std::uint32_t slot, bool is_failed, channel_actions& out) {
    std::uint32_t const i = slots_[slot];
    free_slots_.push_back(slot);
    --unacknowledged_;
    if (is_close_slot_[slot]) is_close_acknowledged_ = !is_failed;
    if (i != nobody) {
        message& m = messages_[i];
        m.is_acknowledged = true;
        bool const is_over = m.is_answered || (!is_failed && !m.is_large);
        if (is_over || !is_open_) {
            remove(posted_, i);
            over(i, is_over ? m.how : outcome::ended, out);
        }
    }
    if (!is_failed) proceed(out);
}

// --- the peer's messages -------------------------------------------------------------------------

channel_machine::violation channel_machine::arrived(arrival const& what, channel_actions& out) {
    if (!is_open_) return violation::none;
    if (what.what == type::large) {
        announced_.reserve(announced_.size() + 1);
        reserve_answers(1);
    }
    switch (credits_.on_arrival(kind_of(what.what), what.carried)) {
    case credit_window::verdict::right: break;
    case credit_window::verdict::wrong_counts: return violation::wrong_counts;
    case credit_window::verdict::no_credit: return violation::no_credit;
    }
    violation const found = take_in(what, out);
    if (found == violation::none) proceed(out);
    return found;
}

channel_machine::violation channel_machine::take_in(arrival const& what, channel_actions& out) {
    switch (what.what) {
    case type::eager:
    case type::large: {
        if (has_peer_closed_) return violation::unexpected;
        kept k{what.receive, what.what == type::large, 0, false};
        if (k.is_large) {
            // Each needs a place here until its answer has been posted.
            if (large_arrived_ - answers_posted_ >= unanswered_max(settings_.own_receives))
                return violation::unexpected;
            k.number = large_arrived_++;
            announced_.push_back({k.number, false});
        }
        // There is a place for each receive.
        kept_[(kept_first_ + kept_count_++) % kept_.size()] = k;
        return violation::none;
    }
    case type::large_done:
        if (violation const found = on_large_done(what, out); found != violation::none)
            return found;
        give_back(what.receive, kind::answer, out);
        return violation::none;
    case type::withdraw:
        if (violation const found = on_withdraw(what.number); found != violation::none)
            return found;
        give_back(what.receive, kind::answer, out);
        return violation::none;
    case type::credit: give_back(what.receive, kind::credit, out); return violation::none;
    case type::close:
        if (has_peer_closed_) return violation::unexpected;
        has_peer_closed_ = true;
        give_back(what.receive, kind::close, out);
        return violation::none;
    }
    return violation::unexpected;
}

channel_machine::violation channel_machine::on_large_done(
    arrival const& what, channel_actions& out
) {
    std::uint32_t i = posted_.first;
    while (i != nobody) {
        message const& m = messages_[i];
        if (m.is_large && !m.is_answered && m.number == what.number) break;
        i = m.next;
    }
    if (i == nobody) return violation::unexpected;
    message& m = messages_[i];
    m.is_answered = true;
    ++answers_arrived_;
    // A WITHDRAW that was not posted would come after CLOSE.
    std::erase_if(answers_, [&](answer const& a) {
        return a.what == type::withdraw && a.number == what.number;
    });
    if (what.is_declined) m.how = m.is_withdrawn ? outcome::withdrawn : outcome::declined;
    // The answer may overtake the acknowledgement.
    if (m.is_acknowledged) {
        remove(posted_, i);
        over(i, m.how, out);
    }
    return violation::none;
}

// The sender waits for an answer, which has been posted, or follows when the fetching ends, or is
// that the message will not be fetched.
channel_machine::violation channel_machine::on_withdraw(std::uint64_t number) {
    if (has_peer_closed_ || number >= large_arrived_) return violation::unexpected;
    auto const at = std::ranges::find(announced_, number, &announcement::number);
    if (at == announced_.end() || at->is_fetched) return violation::none;
    announced_.erase(at);
    answers_.push_back({type::large_done, number, true});
    return violation::none;
}

void channel_machine::give_back(
    std::uint32_t receive, credit_window::kind of, channel_actions& out
) {
    out.repost(receive);
    credits_.give_back(of);
}

channel_machine::kept channel_machine::take() noexcept {
    kept const first = kept_[kept_first_];
    kept_first_ = (kept_first_ + 1) % kept_.size();
    --kept_count_;
    ++held_;
    return first;
}

// Gives the receive of a message back, if that has not happened.
void channel_machine::end_hold(kept const& what, channel_actions& out) {
    if (what.is_detached) return;
    --held_;
    give_back(what.receive, kind::data, out);
}

void channel_machine::release(kept const& what, channel_actions& out) {
    if (!is_open_) return;
    end_hold(what, out);
    if (what.is_large) {
        auto const at = std::ranges::find(announced_, what.number, &announcement::number);
        // If not, it was withdrawn and is answered.
        if (at != announced_.end()) {
            announced_.erase(at);
            answers_.push_back({type::large_done, what.number, true});
        }
    }
    proceed(out);
}

void channel_machine::detach(kept& what, channel_actions& out) {
    if (is_open_) end_hold(what, out);
    what.is_detached = true;
    proceed(out);
}

bool channel_machine::begin_fetch(kept const& what) noexcept {
    auto const at = std::ranges::find(announced_, what.number, &announcement::number);
    if (at == announced_.end()) return false;
    at->is_fetched = true;
    return true;
}

void channel_machine::end_fetch(kept const& what, channel_actions& out) {
    if (!is_open_) return;
    end_hold(what, out);
    std::erase_if(announced_, [&](announcement const& a) { return a.number == what.number; });
    answers_.push_back({type::large_done, what.number, false});
    proceed(out);
}

void channel_machine::set_delivering(bool is, channel_actions& out) {
    is_delivering_ = is;
    if (!is) proceed(out);
}

// --- the end -------------------------------------------------------------------------------------

void channel_machine::end(channel_actions& out) {
    is_open_ = false;
    answers_.clear();
    while (waiting_.count > 0) {
        std::uint32_t const i = waiting_.first;
        remove(waiting_, i);
        over(i, outcome::ended, out);
    }
    for (std::uint32_t i = posted_.first; i != nobody;) {
        std::uint32_t const next = messages_[i].next;
        // Others are over when their acknowledgement has failed.
        if (messages_[i].is_acknowledged) {
            remove(posted_, i);
            over(i, outcome::ended, out);
        }
        i = next;
    }
}

// --- for tests -----------------------------------------------------------------------------------

void channel_machine::append_to(std::vector<std::uint64_t>& out) const {
    auto const add = [&](auto... values) {
        (out.push_back(static_cast<std::uint64_t>(values)), ...);
    };
    add(is_open_, waiting_.first, posted_.first, free_.first, unacknowledged_, large_posted_);
    add(answers_arrived_, kept_first_, kept_count_, held_, large_arrived_, answers_posted_);
    add(is_delivering_, has_all_sent_, has_peer_closed_, is_close_posted_, is_close_acknowledged_);
    for (message const& m : messages_) {
        add(m.next, m.number, m.at, m.is_large, m.is_acknowledged, m.is_answered, m.is_withdrawn);
        add(m.how);
    }
    for (std::uint32_t const s : slots_) add(s);
    for (char const c : is_close_slot_) add(c);
    for (std::uint32_t const s : free_slots_) add(s);
    for (answer const& a : answers_) add(a.what, a.number, a.is_declined);
    for (std::size_t i = 0; i < kept_count_; ++i) {
        kept const& k = kept_[(kept_first_ + i) % kept_.size()];
        add(k.receive, k.is_large, k.number);
    }
    for (announcement const& a : announced_) add(a.number, a.is_fetched);
    credits_.append_to(out);
}

}  // namespace rcverbs::machines
