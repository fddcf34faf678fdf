#include "messages/request_core.hpp"

#include <rcverbs/experimental/protocol/option_check.hpp>

#include <boost/asio/error.hpp>

#include <algorithm>
#include <new>
#include <utility>

#include "messages/session_table.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

wire::request_tag tag_of(
    machines::request_actions::kind what, std::uint16_t id, std::uint32_t value = 0
) noexcept {
    wire::request_tag t;
    t.kind = static_cast<wire::request_kind>(what);
    t.id = id;
    t.value = value;
    return t;
}

error_code problem_of(message_content const& what) noexcept {
    return what.head_bytes > wire::request_head_bytes_max ? error_code{errc::message_too_large}
                                                          : error_code{};
}

}  // namespace

request_core::request_core(connection over, request_channel_options const& options)
    : channel_core{std::move(over), options.messages, options.requests},
      options_{options},
      cancelled_{std::make_unique<std::atomic<bool>[]>(options.requests)} {}

request_core::~request_core() {
    deadlines_.clear();
    if (client_) session_table::of(*options_.sessions).leave(*client_, *this);
}

void request_core::on_open() { all_ = {options_.requests, peer_requests()}; }

// Handlers are destroyed uncalled, as Asio does with its own.
void request_core::on_abandoned() noexcept {
    kept_.reset();
    // Deregisters the bodies before their requests are destroyed.
    channel_core::on_abandoned();
    all_ = {};
    deadlines_.clear();
    done_first_ = done_last_ = nobody;
    arrived_first_ = arrived_last_ = nobody;
    for (std::uint32_t id = 0; id < options_.requests; ++id) cancelled_[id] = true;
    std::exchange(asked_, {}).clear();
    std::exchange(arrived_, {}).clear();
    static_cast<void>(nexts_.take_all());
}

// --- asking --------------------------------------------------------------------------------------

// Makes the message. Any thread.
void request_core::compose_request(asked& a, question const& what, error_code& refused) {
    a.operation = what.number;
    if (!a.is_notice) a.into = what.into;
    refused = problem_of(what);
    if (!refused && what.connection_number) refused = errc::invalid_option;
    wire::request_prefix before;
    if (!refused && offers(a.into)) {
        remote_region const target =
            protocol::expose(a.into, access_flags::remote_write, lower(), refused);
        before.append(target.encode());
    }
    if (refused) return;
    a.head_bytes = static_cast<std::uint8_t>(what.head_bytes);
    before.append(what.head());
    a.body = message_of(what.body, before, refused);
}

void request_core::ask(question const& what, reply_handler handler, std::uint64_t* handle) {
    auto const own = present_executor();
    if (own == nullptr) return;
    asked a;
    a.on_reply = {std::move(handler), *own};
    start(std::move(a), what, handle);
}

void request_core::notify(question const& what, control_handler handler, std::uint64_t* handle) {
    asked a;
    a.on_sent = waiter_for(std::move(handler));
    if (!a.on_sent) return;
    a.is_notice = true;
    start(std::move(a), what, handle);
}

void request_core::start(asked&& a, question const& what, std::uint64_t* handle) {
    a.handle = handle;
    error_code refused;
    compose_request(a, what, refused);
    auto const timeout = what.timeout.value_or(options_.answer_timeout);
    enter(
        [this, timeout, refused](asked& mine) { start_now(mine, timeout, refused); }, std::move(a)
    );
}

void request_core::start_now(asked& a, std::chrono::milliseconds timeout, error_code refused) {
    if (timeout.count() <= 0) refused = errc::invalid_option;
    if (!refused && !(all_.may_ask() && may_send(a.body))) {
        bool const is_busy = all_.is_finishing() && !all_.is_over();
        refused = is_busy ? error_code{errc::operation_in_progress} : refusal();
    }
    if (refused) {
        if (!a.is_notice) counted_.failed.add(1);
        return fail(a, refused);
    }
    std::uint32_t const i = all_.next_index();
    if (i == asked_.size()) asked_.emplace_back();
    asked& place = asked_[i];
    std::uint64_t const serial = ((place.serial >> 32U) + 1) << 32U | i;
    if (a.is_notice) cancel_with(a.on_sent, serial);
    else cancel_with(a.on_reply, serial);
    auto const due = clock::now() + bounded(timeout);
    if (due < armed_) arm(due);
    all_.add(a.is_notice, offers(a.into));
    // Nothing throws from here on.
    place.on_reply = std::move(a.on_reply);
    place.on_sent = std::move(a.on_sent);
    place.serial = serial;
    place.operation = a.operation;
    place.head_bytes = a.head_bytes;
    place.is_notice = a.is_notice;
    place.is_releasing = false;
    place.into = a.into;
    place.written_bytes.reset();
    place.due = due;
    place.code.clear();
    if (a.handle != nullptr) *a.handle = serial;
    deadlines_.insert(deadlines_.end(), place);
    unsent_body_ = &a.body;
    unsent_index_ = i;
    all_.proceed(*this);
    // It waits for a number.
    if (std::exchange(unsent_body_, nullptr) != nullptr) place.body = std::move(a.body);
}

template <class Waiter>
void request_core::cancel_with(Waiter& who, std::uint64_t serial) {
    if (!who.can_be_cancelled()) return;
    connect_cancellation(who, [weak = std::weak_ptr{self()}, serial](asio::cancellation_type) {
        if (auto const alive = weak.lock())
            alive->enter([core = alive.get(), serial] { core->cancel_asked(serial); });
    });
}

void request_core::fail(asked& a, error_code why) {
    a.body = {};  // deregistered before the handler is called
    if (a.is_notice) deliver(std::move(a.on_sent), why);
    else deliver(std::move(a.on_reply), why, {});
}

// The machine sends a request.
bool request_core::send_request(std::uint32_t i, std::uint16_t id) {
    asked& a = asked_[i];
    auto const as = a.is_notice ? kind::notice : kind::request;
    wire::request_tag tag = tag_of(as, id, a.operation);
    tag.head_bytes = a.head_bytes;
    tag.has_target = offers(a.into);
    bool const is_new = unsent_body_ != nullptr && i == unsent_index_;
    outgoing_message& body = is_new ? *std::exchange(unsent_body_, nullptr) : a.body;
    body.tag = wire::encode(tag);
    if (!may_send(body)) {
        a.code = refusal();
    } else {
        try {
            a.message = submit(body, {}, i);
            return true;
        } catch (std::bad_alloc const&) {
            a.code = asio::error::no_memory;
        }
    }
    // Deregistered before the handler is called.
    if (is_new) a.body = std::move(body);
    return false;
}

void request_core::send_control(kind what, std::uint16_t id) {
    outgoing_message m;
    m.tag = wire::encode(tag_of(what, id));
    try {
        if (may_send(m)) submit(m);
    } catch (std::bad_alloc const&) {
        // The peer would wait for ever.
        close_connection();
    }
}

void request_core::on_over(outgoing const& o, error_code result) {
    if (o.request != nobody) {
        asked& a = asked_[o.request];
        a.message = nobody;
        // The peer has the request all the same, and answers it.
        bool const is_there =
            result == channel_errc::message_declined || result == channel_errc::message_withdrawn;
        bool const has_failed = result && !is_there;
        if (has_failed && !a.code) a.code = result;
        return all_.sent(o.request, has_failed, *this);
    }
    // An answer that was taken back: the peer waits for something.
    auto const tag = wire::decode_request_tag(o.tag);
    if (tag.kind == wire::request_kind::answer && result == asio::error::operation_aborted)
        send_control(kind::dropped, tag.id);
}

request_core::taken_back request_core::take_back_request(std::uint32_t i) {
    std::uint32_t const m = asked_[i].message;
    if (m == nobody) return taken_back::over;
    switch (take_back(m)) {
    case machines::channel_machine::cancelled::over: return taken_back::over;
    case machines::channel_machine::cancelled::unsent: return taken_back::unsent;
    case machines::channel_machine::cancelled::copied: return taken_back::copied;
    case machines::channel_machine::cancelled::exposed: break;
    }
    // The channel sees to it that the peer lets go of the body.
    asked& a = asked_[i];
    if (a.is_linked()) deadlines_.erase(deadlines_.iterator_to(a));
    return taken_back::exposed;
}

// A request is cancelled whose answer the peer may be writing. Its memory is the program's when the
// peer has said so; one that does not say it in time loses the channel.
void request_core::await_release(std::uint32_t i) {
    asked& a = asked_[i];
    a.is_releasing = true;
    if (a.is_linked()) deadlines_.erase(deadlines_.iterator_to(a));
    a.due = clock::now() + bounded(options_.messages.withdraw_timeout);
    deadlines_.insert(a);
    if (a.due < armed_) arm(a.due);
}

// The machine says that a request is over. Its handler is called later.
void request_core::complete_request(std::uint32_t i, outcome how) {
    asked& a = asked_[i];
    switch (how) {
    case outcome::answered:
    case outcome::sent: a.code.clear(); break;
    case outcome::dropped: a.code = channel_errc::request_dropped; break;
    case outcome::cancelled:
        if (!a.code) a.code = asio::error::operation_aborted;
        break;
    case outcome::failed: break;
    case outcome::ended: a.code = end_of_requests_; break;
    }
    // The peer may still write its answer.
    if (a.code && is_undrained() && offers(a.into)) a.code = errc::not_drained;
    if (a.is_linked()) deadlines_.erase(deadlines_.iterator_to(a));
    if (!a.is_notice) (a.code ? counted_.failed : counted_.answered).add(1);
    a.next_done = nobody;
    (done_last_ != nobody ? asked_[done_last_].next_done : done_first_) = i;
    done_last_ = i;
}

void request_core::cancel_asked(std::uint64_t serial) {
    auto const i = static_cast<std::uint32_t>(serial);
    bool const is_there = serial != 0 && i < asked_.size() && asked_[i].serial == serial;
    if (is_there) all_.cancel(i, *this);
}

void request_core::cancel_asked(std::shared_ptr<std::uint64_t const> handle) {
    enter([this, h = std::move(handle)] { cancel_asked(*h); });
}

void request_core::cancel() {
    enter([this] {
        for (std::uint32_t i = 0; i < asked_.size(); ++i) {
            if (asked_[i].on_reply || asked_[i].on_sent) all_.cancel(i, *this);
        }
        take_back_all();
        abort(nexts_.take_all());
    });
}

// Sets the timer to the first deadline. One that is too early does no harm.
void request_core::await_answers() {
    armed_ = clock::time_point::max();
    if (deadlines_.empty()) return;
    arm(deadlines_.begin()->due);
}

void request_core::arm(clock::time_point first) {
    armed_ = first;
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(armed_ - clock::now());
    answer_limit_.start(std::max(left, std::chrono::milliseconds{0}), [this] { on_answers_due(); });
}

void request_core::on_answers_due() {
    auto const now = clock::now();
    while (!deadlines_.empty() && deadlines_.begin()->due <= now) {
        asked& a = *deadlines_.begin();
        deadlines_.erase(deadlines_.begin());
        if (a.is_releasing) {
            end(errc::timed_out, step::transfer, close_reason::timed_out);
            break;
        }
        a.code = channel_errc::request_timed_out;
        all_.cancel(static_cast<std::uint32_t>(a.serial), *this);
    }
    await_answers();
}

// --- serving -------------------------------------------------------------------------------------

void request_core::publish_state() noexcept {
    channel_core::publish_state();
    counted_.waiting.set(all_.waiting());
    counted_.outstanding.set(all_.outstanding());
}

bool request_core::is_result_due() noexcept {
    return has_message() || done_first_ != nobody || is_next_due() ||
           (end_of_messages() && !all_.is_over());
}

bool request_core::deliver_result() {
    take_messages();
    if (done_first_ != nobody) complete_first();
    else if (is_next_due()) deliver_first();
    else return false;
    return true;
}

// All messages that have arrived.
void request_core::take_messages() {
    bool has_failed = false;
    while (has_message() && !has_failed && !all_.is_over()) {
        try {
            error_code const violation = take(take_message());
            has_failed = violation.failed();
            if (has_failed) end(violation, step::transfer, close_reason::protocol_error);
        } catch (std::bad_alloc const&) {
            has_failed = true;
            end(asio::error::no_memory, step::transfer, close_reason::closed_locally);
        }
    }
    bool const is_end = has_failed || (end_of_messages() && !has_message());
    if (is_end && !all_.is_over()) on_end_of_messages();
}

// Takes a message of the peer's; returns its violation, if any.
error_code request_core::take(arrival&& a) {
    error_code malformed;
    wire::request_sizes const sizes{a.size_bytes, a.place.is_large, a.behind_segments};
    auto const tag = wire::decode_request_tag(a.tag, sizes, malformed);
    if (malformed) return malformed;
    auto const what = static_cast<kind>(tag.kind);
    bool const is_request = what == kind::request || what == kind::notice;
    // Of a peer that does not make room for the answers.
    if (is_request && waiting() > all_.queued_max()) return channel_errc::unexpected_message;
    std::uint32_t const asking = what == kind::answer ? all_.wants_answer(tag.id) : nobody;
    bool const is_kept = is_request || asking != nobody;
    bool const is_empty = a.size_bytes == 0 && tag.value == 0;
    // Before CLOSE may be sent, which says how many receives were given back.
    if (!is_kept) release(a);
    // All that can go wrong comes before the machine says that a request is over.
    remote_region target;
    auto const before = is_kept ? prefix_of(a, tag.prefix_bytes()) : std::span<std::byte const>{};
    if (is_request && tag.has_target) target = wire::decode_target(before, malformed);
    if (asking != nobody) malformed = take_answer(asked_[asking], tag, before);
    if (malformed) return malformed;
    if (is_kept && !a.place.is_large) a.size_bytes -= before.size();
    a.tag = tag.value;
    a.head_bytes = tag.head_bytes;
    // Bodies that the program keeps may take half of the receives; so answers always arrive.
    if (is_kept && holds_much()) detach(a);
    using violation = machines::request_machine::violation;
    violation const found = all_.arrived(what, tag.id, is_empty, tag.has_target, *this);
    if (found == violation::malformed) return channel_errc::malformed_message;
    if (found == violation::unexpected) return channel_errc::unexpected_message;
    if (is_request || what == kind::cancel)
        cancelled_[tag.id] = all_.is_open(tag.id) && all_.is_cancelled(tag.id);
    if (what == kind::end) {
        end_ = asio::error::eof;
        if (on_peer_end_) in_order(std::exchange(on_peer_end_, {}));
    }
    if (asking != nobody) {
        asked_[asking].answer = std::move(a);
        asked_[asking].has_answer = true;
        return {};
    }
    if (!is_request) return {};
    counted_.arrived.add(1);
    if (tag.id >= arrived_.size()) arrived_.resize(std::size_t{tag.id} + 1);
    arrived_[tag.id] = {std::move(a), target, counted_.arrived.read(), nobody};
    (arrived_last_ != nobody ? arrived_[arrived_last_].next : arrived_first_) = tag.id;
    arrived_last_ = tag.id;
    return {};
}

// Checks an answer to a request of this side's; notes what was written.
error_code request_core::take_answer(
    asked& a, wire::request_tag const& tag, std::span<std::byte const> before
) {
    if (!tag.has_target) return {};
    std::uint64_t const size = wire::decode_written(before);
    if (!offers(a.into) || size > a.into.size()) return channel_errc::malformed_message;
    a.written_bytes = size;
    counted_.written_bytes.add(size);
    return {};
}

// No message arrives any more. CLOSE comes when both sides have sent END and everything is answered.
void request_core::on_end_of_messages() {
    error_code why = end_of_messages();
    if (why == asio::error::eof && !all_.is_finished()) {
        why = channel_errc::unexpected_message;
        end(why, step::transfer, close_reason::protocol_error);
        end_ = why;
    }
    end_of_requests_ = why == asio::error::eof ? error_code{channel_errc::peer_closed_early} : why;
    all_.end(*this);
    for (std::uint32_t id = 0; id < options_.requests; ++id) cancelled_[id] = true;
    if (has_connection_ended_) all_.connection_ended(*this);
    // Requests whose memory the peer may write to end with the connection, with or without the
    // program's channel.
    else if (all_.outstanding() > 0) kept_ = self();
    deadlines_.clear();
    armed_ = clock::time_point::max();
    answer_limit_.cancel();
    if (!end_) end_ = end_of_messages();
    leave_if_idle();
}

// Calls the handler of the first request that is over.
void request_core::complete_first() {
    std::uint32_t const i = done_first_;
    asked& a = asked_[i];
    done_first_ = a.next_done;
    if (done_first_ == nobody) done_last_ = nobody;
    protocol::waiter<error_code, reply> on_reply = std::move(a.on_reply);
    waiter on_sent = std::move(a.on_sent);
    std::optional<outgoing_message> body;  // of one that was not sent
    if (a.body.has_memory()) body.emplace(std::exchange(a.body, {}));
    error_code const code = std::exchange(a.code, {});
    reply r;
    make_reply(r, a);
    mutable_slice const into = a.into;
    all_.forget(i);
    if (on_answered_ && !is_asking()) in_order(std::exchange(on_answered_, {}));
    leave();
    body.reset();  // deregistered before the handler is called
    // One that was not worth a write of its own.
    bool const fits = r.is_valid() && !r.is_large() && r.size() <= into.size();
    // The memory may have gone with the handler's context.
    if (fits && into.size() > 0 && !r.is_written() && on_reply) r.move_to(into);
    if (code) r.release();
    if (on_reply) on_reply.call_on_io(error_code{code}, std::move(r));
    else if (on_sent) on_sent.call_on_io(error_code{code});
}

void request_core::make_reply(reply& r, asked& a) {
    if (!std::exchange(a.has_answer, false)) return;
    make_message(r, std::move(a.answer));
    if (a.written_bytes) r.set_body(a.into.first(static_cast<std::size_t>(*a.written_bytes)));
}

// Gives the first request of the peer's, or the end, to the first who waits.
void request_core::deliver_first() {
    protocol::waiter<error_code, request> who = nexts_.pop_first();
    request r;
    return_path<error_code, request> back;
    error_code const ec = arrived_first_ != nobody ? error_code{} : end_;
    // One whose context is gone leaves the request for the next.
    bool const is_wanted = static_cast<bool>(who);
    if (is_wanted && !ec) {
        auto const id = static_cast<std::uint16_t>(arrived_first_);
        arrived_first_ = arrived_[id].next;
        if (arrived_first_ == nobody) arrived_last_ = nobody;
        make_request(r, id);
        back.number = id;
        // The request keeps it.
        back.owner = std::shared_ptr<void>{std::shared_ptr<void>{}, this};
        back.take_back = [](void* core, std::uint64_t which, error_code&&, request&& what
                         ) noexcept {
            auto const keep = static_cast<request_core*>(core)->self();
            keep->put_back(static_cast<std::uint16_t>(which), std::move(what));
        };
    }
    leave();
    if (is_wanted) who.hand_over_on_io(std::move(back), error_code{ec}, std::move(r));
}

// A wait that was cancelled, or whose handler was destroyed, has not taken the request.
void request_core::put_back(std::uint16_t id, request&& r) noexcept {
    r.responder_.disarm();
    try {
        enter([this, id](request& what) { put_back_now(id, what); }, std::move(r));
    } catch (std::bad_alloc const&) {
        // Without memory the request would be lost unnoticed.
        close_connection();
    }
}

void request_core::put_back_now(std::uint16_t id, request& r) noexcept {
    arrival body = unmake_message(r);
    // Destroyed with its context.
    if (id >= arrived_.size()) return;
    waiting_request& mine = arrived_[id];
    mine.body = std::move(body);
    std::uint32_t before = nobody;
    std::uint32_t behind = arrived_first_;
    while (behind != nobody && arrived_[behind].number < mine.number)
        behind = arrived_[before = behind].next;
    mine.next = behind;
    (before != nobody ? arrived_[before].next : arrived_first_) = id;
    if (behind == nobody) arrived_last_ = id;
}

void request_core::make_request(request& r, std::uint16_t id) {
    make_message(r, std::move(arrived_[id].body));
    r.is_notice_ = all_.is_notice(id);
    r.responder_ =
        responder{self(), id, all_.has_target(id) ? arrived_[id].target : remote_region{}};
}

void request_core::when_peer_ends(std::function<void()> function) {
    enter(
        [this](std::function<void()>& f) {
            if (all_.has_peer_ended()) in_order(std::move(f));
            else on_peer_end_ = std::move(f);
        },
        std::move(function)
    );
}

void request_core::when_answered(std::function<void()> function) {
    enter(
        [this](std::function<void()>& f) {
            if (is_asking()) on_answered_ = std::move(f);
            else in_order(std::move(f));
        },
        std::move(function)
    );
}

void request_core::next(next_handler handler) {
    auto const own = present_executor();
    if (own == nullptr) return;
    enter(
        [this](protocol::waiter<error_code, request>& who) {
            if (is_idle()) return deliver(std::move(who), errc::not_connected, {});
            std::weak_ptr<request_core> owner;
            if (who.can_be_cancelled()) owner = self();
            nexts_.add(std::move(who), std::move(owner), &request_core::cancel_next);
        },
        protocol::waiter<error_code, request>{std::move(handler), *own}
    );
}

void request_core::cancel_next(std::uint64_t serial) {
    enter([this, serial] { abort(nexts_.take(serial)); });
}

// Any thread: a body may be registered.
outgoing_message request_core::answer_of(
    std::uint16_t id, remote_region const& target, message_content const& what, error_code& refused
) {
    wire::request_tag tag = tag_of(kind::answer, id, what.number);
    tag.head_bytes = static_cast<std::uint8_t>(what.head_bytes);
    tag.has_target = is_large(what.body.size() + what.head_bytes) && target.size() > 0 &&
                     !seals_messages() && what.body.size() <= target.size();
    wire::request_prefix before;
    if (!tag.has_target) before.append(what.head());
    outgoing_message o = tag.has_target ? compose_written(lower(), what.body, target, refused)
                                        : message_of(what.body, before, refused);
    if (tag.has_target && !refused) o.prefix.append(what.head());
    o.tag = wire::encode(tag);
    return o;
}

void request_core::answer(
    std::uint16_t id,
    remote_region const& target,
    message_content const& what,
    control_handler handler
) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    error_code refused = problem_of(what);
    outgoing_message m;
    if (!refused) m = answer_of(id, target, what, refused);
    enter(
        [this, id, status = what.number, refused](outgoing_message& mine, waiter& w) {
            answer_now(id, status, mine, w, refused);
        },
        std::move(m),
        std::move(who)
    );
}

void request_core::answer_now(
    std::uint16_t id, std::uint32_t status, outgoing_message& m, waiter& who, error_code refused
) {
    // The peer has given up meanwhile, and its memory is its own again.
    bool const is_late = m.is_written() && all_.is_open(id) && !all_.has_target(id);
    if (is_late) {
        m.memory.reset();
        m.prefix = {};
        m.tag = wire::encode(tag_of(kind::answer, id, status));
    }
    bool const is_queued = send(m, who, refused);
    if (!all_.is_open(id)) return;
    if (is_queued) all_.answered(id, *this);
    else all_.drop(id, *this);
    leave_if_idle();
}

// For a second answer, or one to a notice.
void request_core::refuse(control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    enter(
        [this](waiter& w) { deliver(std::move(w), channel_errc::already_answered); }, std::move(who)
    );
}

void request_core::drop(std::uint16_t id) noexcept {
    try {
        enter([this, id] {
            if (all_.is_open(id)) all_.drop(id, *this);
            leave_if_idle();
        });
    } catch (...) {
        // Without memory the peer would wait for ever.
        close();
    }
}

bool request_core::is_cancelled(std::uint16_t id) const noexcept { return cancelled_[id]; }

// --- ending --------------------------------------------------------------------------------------

// Only now is the memory the program's that the peer could write its answers to.
void request_core::on_connection_end() {
    has_connection_ended_ = true;
    if (all_.is_over()) all_.connection_ended(*this);
    in_order([this] {
        if (lower().last_failure().reason == close_reason::closed_locally) drop_arrived();
        kept_.reset();
    });
}

// What this side has ended, it does not execute any more.
void request_core::drop_arrived() {
    while (arrived_first_ != nobody) {
        auto const id = static_cast<std::uint16_t>(arrived_first_);
        arrived_first_ = arrived_[id].next;
        arrived_[id].body = {};
        if (all_.is_open(id)) all_.drop(id, *this);
    }
    arrived_last_ = nobody;
    leave_if_idle();
}

// --- a client that connects again ----------------------------------------------------------------

bool request_core::waits_for_older(wire::channel_hello const& theirs) {
    if (!options_.sessions || !theirs.identity) return false;
    client_ = theirs.identity;
    session_table::of(*options_.sessions).enter(*theirs.identity, self());
    return true;
}

void request_core::end_for_newer() {
    enter([this] {
        if (all_.is_finishing() || all_.has_peer_ended()) return;
        end(channel_errc::client_reconnected, step::transfer, close_reason::closed_locally);
    });
}

// Tells the table of clients once.
void request_core::leave_if_idle() {
    if (!client_ || !all_.is_over() || all_.open() > 0) return;
    in_order([this, client = *client_] {
        session_table::of(*options_.sessions).leave(client, *this);
    });
    client_.reset();
}

error_code request_core::why_late() const noexcept {
    if (is_asking()) return channel_errc::peer_not_answered;
    if (all_.open() > 0) return channel_errc::not_answered;
    return all_.has_peer_ended() ? channel_core::why_late() : channel_errc::peer_not_finished;
}

request_channel_statistics request_core::statistics() {
    request_channel_statistics s;
    s.messages = message_statistics();
    s.messages.arrived_bytes += counted_.written_bytes.read();
    s.answered = counted_.answered.read();
    s.failed = counted_.failed.read();
    s.arrived = counted_.arrived.read();
    s.waiting = counted_.waiting.read();
    s.outstanding = counted_.outstanding.read();
    return s;
}

}  // namespace rcverbs::detail
