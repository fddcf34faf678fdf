#include "messages/request_core.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <new>
#include <utility>

#include <rcverbs/detail/adapted_handler.hpp>

namespace rcverbs::detail {

namespace asio = boost::asio;

request_core::request_core(connection over, request_channel_options const& options)
    : options_{options},
      messages_{protocol::make<channel_core>(std::move(over), options.messages, options.requests)},
      timer_{messages_->executor()},
      incoming_(options.requests) {}

request_core::~request_core() = default;

std::shared_ptr<request_core> request_core::make(
    connection over, request_channel_options const& options
) {
    auto made = std::make_shared<request_core>(std::move(over), options);
    made->membership_.join(made->messages_->executor(), made, hosting::rank::above_connections);
    return made;
}

// Handlers are destroyed uncalled, as Asio does with its own, and not under the mutex.
void request_core::context_is_going(asio::execution_context const&) noexcept {
    outgoing_list waiting;
    outgoing_list outstanding;
    decltype(nexts_)::removed nexts;
    std::deque<arrival> arrived;
    std::optional<asio::steady_timer> timer;
    // Deregisters the bodies before their requests are destroyed.
    messages_->on_abandoned();
    guard const lock{mutex_};
    is_shut_down_ = true;
    is_over_ = true;
    waiting.swap(waiting_);
    outstanding.swap(outstanding_);
    nexts = nexts_.take_all();
    arrived.swap(arrived_);
    timer.swap(timer_);
    by_id_.clear();
    deadlines_.clear();
}

void request_core::call::operator()() {
    if (on_reply) on_reply(code, std::move(answer));
    else if (on_notified) on_notified(code);
    else if (on_request) on_request(code, std::move(incoming));
}

void request_core::call_later(call what) {
    messages_->run_later([c = std::move(what)]() mutable { c(); });
}

void request_core::connect(
    endpoint const& peer, std::vector<std::byte> greeting, control_handler handler
) {
    if (messages_->connect(peer, std::move(greeting), std::move(handler))) start_receiving();
}

void request_core::accept(std::vector<std::byte> greeting, control_handler handler) {
    if (messages_->accept(std::move(greeting), std::move(handler))) start_receiving();
}

// --- position --------------------------------------------------------------------------------------

void request_core::send_request(
    std::uint32_t operation,
    std::span<std::byte const> body,
    request_options const& how,
    reply_handler handler
) {
    if (!messages_->executor()) return;
    outgoing o;
    o.on_reply = {std::move(handler), messages_->executor()};
    o.operation = operation;
    o.body = body;
    enqueue(std::move(o), how.answer_timeout.value_or(options_.answer_timeout));
}

void request_core::send_notice(
    std::uint32_t operation, std::span<std::byte const> body, control_handler handler
) {
    if (!messages_->executor()) return;
    outgoing o;
    o.on_notified = {std::move(handler), messages_->executor()};
    o.operation = operation;
    o.body = body;
    o.is_notice = true;
    enqueue(std::move(o), options_.answer_timeout);
}

void request_core::enqueue(outgoing&& a, std::chrono::milliseconds timeout) {
    guard const lock{mutex_};
    error_code refused;
    if (timeout.count() <= 0) refused = errc::invalid_option;
    else if (is_finishing_) refused = errc::operation_in_progress;
    else if (is_over_ || messages_->peer_requests() == 0) {
        refused = messages_->last_failure().code;
        if (!refused) refused = errc::not_connected;
    }
    if (refused) return call_later(complete(a, refused));
    a.serial = ++serial_;
    auto slot = a.is_notice ? a.on_notified.slot() : a.on_reply.slot();
    if (slot.is_connected()) {
        slot.assign([weak = weak_from_this(), serial = a.serial](asio::cancellation_type type) {
            auto const self = weak.lock();
            if (self != nullptr && type != asio::cancellation_type::none)
                self->cancel(serial, asio::error::operation_aborted);
        });
    }
    outgoing_list one;
    one.push_back(std::move(a));
    try {
        set_deadline(one.back(), timeout);
    } catch (...) {
        clear_deadline(one.back());
        throw;
    }
    waiting_.splice(waiting_.end(), one);
    send_queued();
}

// Sends requests while there are numbers for them. REQUIRES: the mutex is held.
void request_core::send_queued() {
    while (!waiting_.empty() && !is_over_) {
        std::uint16_t id = 0;
        if (!free_ids_.empty()) {
            id = free_ids_.back();
            free_ids_.pop_back();
        } else if (by_id_.size() < messages_->peer_requests()) {
            // Without memory, it waits for a number that is freed, or for its deadline.
            try {
                free_ids_.reserve(by_id_.size() + 1);
                by_id_.emplace_back();
            } catch (std::bad_alloc const&) {
                return;
            }
            id = static_cast<std::uint16_t>(by_id_.size() - 1);
        } else {
            return;
        }
        position const a = waiting_.begin();
        outstanding_.splice(outstanding_.end(), waiting_, a);
        by_id_[id] = a;
        a->id = id;
        auto const kind = a->is_notice ? wire::request_kind::notice : wire::request_kind::request;
        try {
            a->send = messages_->send(
                a->body,
                wire::encode({kind, id, a->operation}),
                messages_->waiter_for(control_handler{
                    [self = shared_from_this(), id](error_code ec) { self->on_sent(id, ec); }})
            );
        } catch (std::bad_alloc const&) {
            call c = complete(*a, asio::error::no_memory);
            free_number(a);
            call_later(std::move(c));
        }
    }
}

void request_core::on_sent(std::uint16_t id, error_code ec) {
    call c;
    {
        guard const lock{mutex_};
        position const a = *by_id_[id];
        a->is_sent = true;
        // The peer has the request all the same, and answers it.
        if (ec == channel_errc::message_declined || ec == channel_errc::message_withdrawn)
            ec.clear();
        bool const is_due = ec || a->is_answered || a->is_notice || a->result;
        if (is_due && !a->is_completed()) c = complete(*a, a->result ? a->result : ec);
        if (ec || a->is_answered) free_number(a);
        send_queued();
        continue_finishing();
    }
    c();
}

void request_core::free_number(position a) {
    clear_deadline(*a);
    by_id_[a->id].reset();
    free_ids_.push_back(a->id);
    outstanding_.erase(a);
}

// The call of a request's handler, which is due. REQUIRES: the mutex is held.
request_core::call request_core::complete(outgoing& a, error_code ec) {
    call c;
    c.on_reply = std::move(a.on_reply);
    c.on_notified = std::move(a.on_notified);
    c.code = ec;
    if (!ec) c.answer = std::move(a.answer);
    clear_deadline(a);
    if (!a.is_notice) ++(ec ? counted_.failed : counted_.answered);
    return c;
}

void request_core::set_deadline(outgoing& a, std::chrono::milliseconds from_now) {
    clear_deadline(a);
    // "Never" must not overflow the clock.
    constexpr std::chrono::milliseconds longest = std::chrono::hours{24 * 365};
    a.deadline = deadlines_.emplace(clock::now() + std::min(from_now, longest), a.serial);
    arm_timer();
}

void request_core::clear_deadline(outgoing& a) noexcept {
    if (a.deadline) deadlines_.erase(*a.deadline);
    a.deadline.reset();
}

// REQUIRES: the mutex is held.
void request_core::arm_timer() {
    // One that is too early does no harm.
    if (!timer_ || deadlines_.empty() || deadlines_.begin()->first >= timer_expiry_) return;
    timer_expiry_ = deadlines_.begin()->first;
    timer_->expires_at(timer_expiry_);
    timer_->async_wait([weak = weak_from_this()](error_code ec) {
        auto const self = weak.lock();
        if (!ec && self != nullptr) self->messages_->run_later([self] { self->on_timer(); });
    });
}

void request_core::on_timer() {
    std::vector<std::uint64_t> late;
    {
        guard const lock{mutex_};
        timer_expiry_ = clock::time_point::max();
        auto const end = deadlines_.upper_bound(clock::now());
        for (auto at = deadlines_.begin(); at != end; ++at) late.push_back(at->second);
    }
    for (std::uint64_t const serial : late) cancel(serial, channel_errc::request_timed_out);
    guard const lock{mutex_};
    arm_timer();
}

// Ends a request before it is answered. Its handler waits until the peer can no longer read a large
// body.
void request_core::cancel(std::uint64_t serial, error_code why) {
    guard const lock{mutex_};
    auto const has_serial = [serial](outgoing const& a) { return a.serial == serial; };
    auto const waits = std::find_if(waiting_.begin(), waiting_.end(), has_serial);
    if (waits != waiting_.end()) {
        call_later(complete(*waits, why));
        waiting_.erase(waits);
        return continue_finishing();
    }
    auto const a = std::find_if(outstanding_.begin(), outstanding_.end(), has_serial);
    if (a == outstanding_.end()) return;
    // The context of its handler is gone.
    if (a->is_completed()) return clear_deadline(*a);
    // The channel sees to it that the peer lets go of the body.
    if (a->is_withdrawing) return clear_deadline(*a);
    // An answer may have come before the body is free.
    if (!a->result) a->result = a->is_answered ? error_code{} : why;
    auto const state = messages_->cancel_send(a->send);
    bool const is_with_peer = state != channel_core::cancelled::unsent && !a->is_answered;
    if (is_with_peer && !a->is_notice) send_control(wire::request_kind::cancel, a->id);
    if (state == channel_core::cancelled::exposed) {
        a->is_withdrawing = true;
        clear_deadline(*a);
    } else {
        call_later(complete(*a, a->result));
    }
}

// --- serving -------------------------------------------------------------------------------------

void request_core::start_receiving() {
    guard const lock{mutex_};
    if (is_receiving_ || is_shut_down_) return;
    is_receiving_ = true;
    receive();
}

void request_core::receive() {
    messages_->receive(message_handler{[self = shared_from_this()](error_code ec, message m) {
        self->on_message(ec, std::move(m));
    }});
}

void request_core::on_message(error_code ec, message m) {
    call c;
    error_code violation;
    {
        guard const lock{mutex_};
        if (ec) {
            // CLOSE comes when both sides have sent END and everything is answered.
            bool const has_all = has_peer_ended_ && is_end_sent_ && unanswered_ == 0;
            bool const is_early = ec == asio::error::eof && !has_all;
            on_end(ec);
            if (!is_early) return;
            violation = channel_errc::unexpected_message;
        } else {
            receive();
            try {
                c = process(std::move(m), violation);
            } catch (std::bad_alloc const&) {
                violation = asio::error::no_memory;
            }
            send_queued();
            continue_finishing();
        }
    }
    if (violation == asio::error::no_memory) messages_->close();
    else if (violation) messages_->end_now(violation, close_reason::protocol_error);
    c();
}

// Takes a message of the peer's. Returns a call that is due, and the peer's violation, if any.
request_core::call request_core::process(message m, error_code& violation) {
    auto const tag = wire::decode_request_tag(m.tag(), m.size(), violation);
    if (violation) return {};
    // Bodies that the program keeps may take half of the receives; so answers always arrive.
    if (messages_->holds_much()) m.detach();
    switch (tag.kind) {
    case wire::request_kind::request:
    case wire::request_kind::notice: return on_request({std::move(m), tag}, violation);
    case wire::request_kind::answer:
    case wire::request_kind::dropped: return on_answer({std::move(m), tag}, violation);
    case wire::request_kind::cancel: on_cancellation(tag.id, violation); return {};
    case wire::request_kind::end: break;
    }
    if (has_peer_ended_) violation = channel_errc::unexpected_message;
    has_peer_ended_ = true;
    end_ = asio::error::eof;
    for (std::size_t i = 0; i < nexts_.size(); ++i)
        messages_->run_later([self = shared_from_this()] { self->deliver(); });
    return {};
}

request_core::call request_core::on_request(arrival a, error_code& violation) {
    std::uint16_t const id = a.tag.id;
    // Of a peer that reads the answers before it uses their numbers again.
    std::size_t const queued_max = incoming_.size() + 2 * by_id_.size() + 1;
    bool const is_flood = messages_->waiting_count() > queued_max;
    if (id >= incoming_.size() || incoming_[id].is_open || has_peer_ended_ || is_flood) {
        violation = channel_errc::unexpected_message;
        return {};
    }
    incoming_[id] = {true, a.tag.kind == wire::request_kind::notice, false};
    ++unanswered_;
    ++counted_.arrived;
    call c;
    if (arrived_.empty()) c.on_request = take_next();
    if (c.on_request) c.incoming = make_request(std::move(a));
    else arrived_.push_back(std::move(a));
    return c;
}

request request_core::make_request(arrival a) {
    request r;
    static_cast<message&>(r) = std::move(a.body);
    r.set_tag(a.tag.value);
    r.is_notice_ = a.tag.kind == wire::request_kind::notice;
    r.responder_ = responder{shared_from_this(), a.tag.id};
    return r;
}

request_core::call request_core::on_answer(arrival a, error_code& violation) {
    std::uint16_t const id = a.tag.id;
    if (id >= by_id_.size() || !by_id_[id] || (*by_id_[id])->is_answered) {
        violation = channel_errc::unexpected_message;
        return {};
    }
    position const to = *by_id_[id];
    bool const is_answer = a.tag.kind == wire::request_kind::answer;
    if (to->is_notice && is_answer && (a.tag.value != 0 || a.body.size() > 0)) {
        violation = channel_errc::malformed_message;
        return {};
    }
    to->is_answered = true;
    if (!is_answer && !to->result) to->result = channel_errc::request_dropped;
    if (!to->is_completed() && !to->result) {
        static_cast<message&>(to->answer) = std::move(a.body);
        to->answer.set_tag(a.tag.value);
    }
    // The answer may overtake the end of sending.
    if (!to->is_sent) return {};
    call c;
    if (!to->is_completed()) c = complete(*to, to->result);
    free_number(to);
    return c;
}

void request_core::on_cancellation(std::uint16_t id, error_code& violation) {
    // Its answer may be under way.
    if (id >= incoming_.size()) violation = channel_errc::unexpected_message;
    else if (incoming_[id].is_open) incoming_[id].is_cancelled = true;
}

void request_core::next(next_handler handler) {
    if (!messages_->executor()) return;
    waiting_handler<error_code, request> waiter{std::move(handler), messages_->executor()};
    guard const lock{mutex_};
    if (!is_receiving_) {
        call c;
        c.on_request = std::move(waiter);
        c.code = errc::not_connected;
        return call_later(std::move(c));
    }
    nexts_.add(std::move(waiter), weak_from_this(), &request_core::cancel_next);
    if (arrived_.empty() && !end_) return;
    messages_->run_later([self = shared_from_this()] { self->deliver(); });
}

// The first who waits in async_next(), if anybody does. REQUIRES: the mutex is held.
waiting_handler<error_code, request> request_core::take_next() {
    waiting_handler<error_code, request> first;
    while (!first && !nexts_.empty()) {
        first = std::move(nexts_.take_first().front().handler);
    }
    return first;
}

// Gives one request to one who waits. There is a call for each who came when there was something.
void request_core::deliver() {
    call c;
    {
        guard const lock{mutex_};
        if (arrived_.empty() && !end_) return;
        c.on_request = take_next();
        if (!c.on_request) return;
        if (arrived_.empty()) {
            c.code = end_;
        } else {
            c.incoming = make_request(std::move(arrived_.front()));
            arrived_.pop_front();
        }
    }
    c();
}

void request_core::cancel_next(std::uint64_t serial) {
    guard const lock{mutex_};
    auto taken = nexts_.take(serial);
    if (taken.empty()) return;
    call c;
    c.on_request = std::move(taken.front().handler);
    c.code = asio::error::operation_aborted;
    call_later(std::move(c));
}

template <class Body>
void request_core::answer(
    std::uint16_t id, std::uint32_t status, Body const& body, control_handler handler
) {
    if (!messages_->executor()) return;
    auto* const host = handler.host;
    control_handler watched{control_handler::type{adapted_handler{
        std::move(handler.handler), [self = shared_from_this(), id](auto own, error_code ec) {
            // It was taken back: the peer waits for something.
            if (ec == asio::error::operation_aborted) {
                guard const lock{self->mutex_};
                self->send_control(wire::request_kind::dropped, id);
            }
            std::move(own)(ec);
        }}}};
    watched.host = host;
    control_waiter waiter = messages_->waiter_for(std::move(watched));
    guard const lock{mutex_};
    auto const tag = wire::encode({wire::request_kind::answer, id, status});
    bool const is_queued = messages_->send(body, tag, std::move(waiter)) != 0;
    try {
        if (!is_queued) send_control(wire::request_kind::dropped, id);
        close_number(id);
    } catch (...) {
        messages_->close();  // without memory the peer would wait for ever
    }
}

template void request_core::answer(
    std::uint16_t, std::uint32_t, std::span<std::byte const> const&, control_handler
);
template void request_core::answer(
    std::uint16_t, std::uint32_t, const_slices const&, control_handler
);

// For a second answer, or one to a notice.
void request_core::refuse(control_handler handler) {
    if (!messages_->executor()) return;
    call c;
    c.on_notified = {std::move(handler), messages_->executor()};
    c.code = channel_errc::already_answered;
    call_later(std::move(c));
}

void request_core::drop(std::uint16_t id) noexcept {
    try {
        guard const lock{mutex_};
        if (is_over_) return;
        auto const kind =
            incoming_[id].is_notice ? wire::request_kind::answer : wire::request_kind::dropped;
        send_control(kind, id);
        close_number(id);
    } catch (...) {
        // Without memory the peer would wait for ever.
        messages_->close();
    }
}

// The peer may use the number again when it has the answer, which has been queued. REQUIRES: the
// mutex is held.
void request_core::close_number(std::uint16_t id) {
    incoming_[id].is_open = false;
    --unanswered_;
    continue_finishing();
}

bool request_core::is_cancelled(std::uint16_t id) const noexcept {
    guard const lock{mutex_};
    return incoming_[id].is_cancelled;
}

void request_core::send_control(wire::request_kind kind, std::uint16_t id) {
    messages_->send(
        std::span<std::byte const>{},
        wire::encode({kind, id, 0}),
        messages_->waiter_for(control_handler{[](error_code) {}})
    );
}

// --- ending --------------------------------------------------------------------------------------

// No message arrives any more. REQUIRES: the mutex is held.
void request_core::on_end(error_code ec) {
    is_over_ = true;
    error_code const why =
        ec == asio::error::eof ? error_code{channel_errc::peer_closed_early} : ec;
    for (outgoing& a : waiting_) call_later(complete(a, why));
    waiting_.clear();
    for (outgoing& a : outstanding_) {
        if (a.is_completed()) continue;
        // on_sent() completes it, when its memory is not exposed any more.
        if (!a.is_sent) {
            if (!a.result) a.result = why;
        } else {
            call_later(complete(a, a.result ? a.result : why));
        }
    }
    deadlines_.clear();
    for (outgoing& a : outstanding_) a.deadline.reset();
    if (timer_) timer_->cancel();
    if (!end_) end_ = ec;
    for (std::size_t i = 0; i < nexts_.size(); ++i)
        messages_->run_later([self = shared_from_this()] { self->deliver(); });
}

void request_core::finish(control_handler handler) {
    if (!messages_->begin_to_finish(std::move(handler))) return;
    guard const lock{mutex_};
    is_finishing_ = true;
    continue_finishing();
}

// Tells the peer that there will be no more requests, and ends the messages when both sides have
// and everything is answered. REQUIRES: the mutex is held.
void request_core::continue_finishing() {
    if (!is_finishing_ || is_over_) return;
    if (!is_end_sent_ && waiting_.empty() && outstanding_.empty()) {
        is_end_sent_ = true;
        send_control(wire::request_kind::end, 0);
    }
    if (is_end_sent_ && has_peer_ended_ && unanswered_ == 0) messages_->finish_sending();
}

request_channel_statistics request_core::statistics() const {
    guard const lock{mutex_};
    request_channel_statistics s = counted_;
    s.messages = messages_->statistics();
    s.waiting = waiting_.size();
    s.outstanding = outstanding_.size();
    return s;
}

}  // namespace rcverbs::detail
