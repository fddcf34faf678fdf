#include "messages/channel_core.hpp"

#include <rcverbs/experimental/protocol/option_check.hpp>

#include "probes/probe.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <new>
#include <utility>

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

// Of no registration: what copies it works, everything else says errc::region_gone.
mutable_slice detached(mutable_slice const& from, std::span<std::byte> bytes) noexcept {
    region_mark gone = access::mark_of(from);
    gone.generation -= 2;
    return access::make<mutable_slice>(bytes, from.key(), gone);
}

error_code code_of(machines::channel_machine::violation found) noexcept {
    using violation = machines::channel_machine::violation;
    switch (found) {
    case violation::none: return {};
    case violation::wrong_counts: return channel_errc::malformed_message;
    case violation::no_credit: return channel_errc::credit_exceeded;
    case violation::unexpected: break;
    }
    return channel_errc::unexpected_message;
}

}  // namespace

channel_core::channel_core(
    connection over, message_channel_options const& options, std::uint16_t requests
)
    : handshake{std::move(over)},
      options_{options},
      requests_{requests},
      arrived_(options.receives),
      fetches_{options.receives} {
    authenticate(options.authentication);
}

// Handlers are destroyed uncalled, as Asio does with its own.
void channel_core::on_abandoned() noexcept {
    state_ = state::ended;
    machine_ = {};
    done_first_ = done_last_ = nobody;
    handshake::on_abandoned();
    std::exchange(outgoing_, {}).clear();
    static_cast<void>(fetches_.take_all());
}

// --- sending -------------------------------------------------------------------------------------

bool channel_core::is_large(std::uint64_t size_bytes) const noexcept {
    // Relaxed: a number that is written once. Who sees 0 takes the way of a channel that is not open yet.
    std::uint32_t const small = small_bytes_max_.load(std::memory_order_relaxed);
    return small > 0 && size_bytes > small;
}

channel_core::waiter channel_core::waiter_for(control_handler handler) const {
    auto const own = present_executor();
    return own != nullptr ? waiter{std::move(handler), *own} : waiter{};
}

// A message whose size was looked at before the channel was open is not for it.
bool channel_core::may_send(outgoing_message const& m) const noexcept {
    bool const fits = m.prefix.size_bytes + m.size_bytes <= small_bytes_max_;
    return is_open() && machine_.may_send() && (m.is_large || fits);
}

error_code channel_core::refusal() const {
    if (is_open() && !machine_.may_send()) return errc::operation_in_progress;
    error_code const failed = last_failure().code;
    return failed ? failed : error_code{errc::not_connected};
}

bool channel_core::send(outgoing_message& m, waiter& who, error_code refused) {
    if (!refused && !may_send(m)) refused = refusal();
    if (!refused) {
        submit(m, std::move(who));
        return true;
    }
    m = {};  // deregistered before the handler is called
    deliver(std::move(who), refused);
    return false;
}

std::uint32_t channel_core::submit(outgoing_message& m, waiter&& who, std::uint32_t request) {
    std::uint32_t const i = machine_.next_index();
    if (i == outgoing_.size()) outgoing_.emplace_back();
    outgoing& place = outgoing_[i];
    // The number of the use, and the index.
    std::uint64_t const serial = ((place.serial >> 32U) + 1) << 32U | i;
    if (who && who.can_be_cancelled()) {
        connect_cancellation(
            who,
            [weak = std::weak_ptr{self()}, serial](asio::cancellation_type asked) {
                if (auto const alive = weak.lock()) alive->on_cancelled(serial, asked);
            }
        );
    }
    machine_.add(m.is_large);
    // Nothing throws from here on.
    place.handler = std::move(who);
    place.tag = m.tag;
    place.all_bytes = m.all_bytes();
    place.request = request;
    place.serial = serial;
    unposted_ = &m;
    unposted_index_ = i;
    machine_.proceed(*this);
    // It waits, or its memory is used until it is over.
    if (unposted_ != nullptr) RCVERBS_PROBE2(message_wait, this, i);
    bool const is_copied = unposted_ == nullptr && !m.has_memory();
    unposted_ = nullptr;
    if (!is_copied) place.message = std::move(m);
    return i;
}

// The machine posts a message.
void channel_core::post(posting const& what) {
    mutable_slice const place = slots_.send_slot(what.slot);
    wire::channel_head head;
    head.type = static_cast<wire::channel_type>(what.what);
    head.credits_taken = what.carried.credits_taken;
    head.given_back = what.carried.given_back;
    head.tag = what.number;
    std::size_t size = wire::channel_head_bytes;
    if (what.what == type::large_done) head.count = what.is_declined ? 1 : 0;
    if (what.what == type::eager || what.what == type::large) {
        bool const is_new = unposted_ != nullptr && what.message == unposted_index_;
        if (!is_new) RCVERBS_PROBE2(message_go, this, what.message);
        outgoing_message const& m =
            is_new ? *std::exchange(unposted_, nullptr) : outgoing_[what.message].message;
        head.tag = m.tag;
        size += m.encode(head, place.bytes());
        if (m.is_written()) {
            wire::encode(head, place.bytes());
            return submit_written(m.memory->writes, place.first(size), what.slot);
        }
    }
    wire::encode(head, place.bytes());
    if (seals_messages()) size = seal(place.bytes(), size);
    lower().async_send(
        place.first(size),
        held([this, slot = what.slot](error_code ec, std::size_t) { on_sent(slot, ec); })
    );
}

// The handler has the batch, which must outlive it.
void channel_core::submit_written(
    std::shared_ptr<written_body> const& w, mutable_slice const& message, std::uint32_t slot
) {
    w->add(message);
    w->all.async_submit(held([this, w, slot](error_code ec, std::size_t) { on_sent(slot, ec); }));
}

void channel_core::on_sent(std::uint32_t slot, error_code ec) {
    if (ec) on_failed(ec);
    machine_.acknowledged(slot, ec.failed(), *this);
}

// The machine says that a message is over. Its handler is called later.
void channel_core::complete(std::uint32_t i, outcome how) {
    outgoing& o = outgoing_[i];
    switch (how) {
    case outcome::sent:
        counted_.sent.add(1);
        counted_.sent_bytes.add(o.all_bytes);
        break;
    case outcome::declined: o.result = channel_errc::message_declined; break;
    case outcome::withdrawn: o.result = channel_errc::message_withdrawn; break;
    case outcome::cancelled: o.result = asio::error::operation_aborted; break;
    case outcome::ended: o.result = is_undrained() ? error_code{errc::not_drained} : unsent_; break;
    }
    if (how != outcome::ended && !withdrawals_.empty())
        std::erase_if(withdrawals_, [&](withdrawal const& w) { return w.serial == o.serial; });
    o.next_done = nobody;
    (done_last_ != nobody ? outgoing_[done_last_].next_done : done_first_) = i;
    done_last_ = i;
}

void channel_core::publish_state() noexcept {
    counted_.waiting.set(machine_.waiting());
    counted_.held.set(machine_.held());
    counted_.credits_sent.set(machine_.credits_posted());
}

// Calls the handlers of messages that are over, in order, then those of receivers.
bool channel_core::deliver_one() {
    while (done_first_ != nobody) {
        if (deliver_done()) return true;
    }
    if (!is_result_due()) return false;
    if (!std::exchange(is_delivering_, true)) machine_.set_delivering(true, *this);
    return deliver_result();
}

// False, and nothing has happened but that, if the first message that is over has no handler.
bool channel_core::deliver_done() {
    std::uint32_t const i = done_first_;
    outgoing& o = outgoing_[i];
    done_first_ = o.next_done;
    if (done_first_ == nobody) done_last_ = nobody;
    error_code const result = std::exchange(o.result, {});
    if (o.message.has_memory()) return deliver_deregistered(i, result);
    waiter handler = std::move(o.handler);
    machine_.forget(i);
    on_over(o, result);
    if (!handler) return false;
    leave();
    handler.call_on_io(error_code{result});
    return true;
}

// The memory of the message is deregistered before its handler is called.
bool channel_core::deliver_deregistered(std::uint32_t i, error_code result) {
    outgoing& o = outgoing_[i];
    waiter handler = std::move(o.handler);
    outgoing_message message = std::exchange(o.message, {});
    machine_.forget(i);
    on_over(o, result);
    leave();
    message = {};
    if (handler) handler.call_on_io(error_code{result});
    return true;
}

void channel_core::on_delivered() {
    if (std::exchange(is_delivering_, false)) machine_.set_delivering(false, *this);
}

void channel_core::on_cancelled(std::uint64_t serial, asio::cancellation_type asked) {
    bool const is_terminal =
        (asked & asio::cancellation_type::terminal) != asio::cancellation_type::none;
    enter([this, serial, is_terminal] {
        auto const i = static_cast<std::uint32_t>(serial);
        if (i >= outgoing_.size() || outgoing_[i].serial != serial) return;
        if (take_back(i) == machine::cancelled::copied && is_terminal) close();
    });
}

channel_core::machine::cancelled channel_core::take_back(std::uint32_t i) {
    bool const was_withdrawing = machine_.is_withdrawing(i);
    auto const what = machine_.cancel(i, *this);
    if (machine_.is_withdrawing(i) && !was_withdrawing) {
        withdrawals_.push_back(
            {outgoing_[i].serial,
             std::chrono::steady_clock::now() + bounded(options_.withdraw_timeout)}
        );
        if (withdrawals_.size() == 1) await_withdrawal();
    }
    return what;
}

void channel_core::take_back_all() {
    for (std::uint32_t i = 0; i < outgoing_.size(); ++i) {
        if (outgoing_[i].handler) take_back(i);
    }
}

// Ends the channel if the peer still has a withdrawn message then: its memory is not the program's
// before. The deadlines are in order, as all are equally long.
void channel_core::await_withdrawal() {
    if (withdrawals_.empty() || !is_open()) return;
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(
        withdrawals_.front().deadline - std::chrono::steady_clock::now()
    );
    withdraw_limit_.start(std::max(left, std::chrono::milliseconds{0}), [this] {
        on_withdrawal_due();
    });
}

void channel_core::on_withdrawal_due() {
    // on_end() says why the connection has ended.
    if (!is_open() || !lower().is_open()) return;
    // Those that were answered are not in the list.
    bool const is_late =
        !withdrawals_.empty() && withdrawals_.front().deadline <= std::chrono::steady_clock::now();
    if (is_late) return end(errc::timed_out, step::transfer, close_reason::timed_out);
    await_withdrawal();
}

// --- receiving -----------------------------------------------------------------------------------

void channel_core::repost(std::uint32_t i) {
    lower().async_receive(
        slots_.receive_slot(i),
        held([this, i](error_code ec, receive_result const& what) { on_received(i, ec, what); })
    );
}

void channel_core::on_received(std::uint32_t slot, error_code ec, receive_result const& what) {
    // The peer may be faster than the handler of the connect.
    if (state_ == state::connecting || !early_.empty()) early_.push_back({slot, ec, what});
    else process(slot, ec, what);
}

void channel_core::process(std::uint32_t slot, error_code ec, receive_result const& what) {
    if (!is_open()) return;
    error_code violation;
    if (ec) on_failed(ec);
    else if (what.is_write || what.size_bytes > options_.slot_bytes)
        violation = channel_errc::unexpected_message;
    else violation = take(slot, what.size_bytes);
    bool const is_own = violation == asio::error::no_memory;
    if (violation)
        end(violation,
            step::transfer,
            is_own ? close_reason::closed_locally : close_reason::protocol_error);
}

// Takes a message of the peer's; returns its violation of the protocol, if any.
error_code channel_core::take(std::uint32_t slot, std::size_t size_bytes) {
    std::span<std::byte> message = slots_.receive_slot(slot).bytes().first(size_bytes);
    error_code ec;
    if (seals_messages()) ec = unseal(message);
    if (ec) return ec;
    std::span<std::byte const> const bytes = message;
    wire::channel_head const head = wire::decode_channel_head(bytes, ec);
    if (ec) return ec;
    machine::arrival a;
    a.what = static_cast<type>(head.type);
    a.carried = {head.given_back, head.credits_taken};
    a.receive = slot;
    std::uint64_t message_bytes = 0;
    std::size_t behind = 0;
    if (a.what == type::eager) {
        if (head.count > small_bytes_max_) return channel_errc::malformed_message;
        message_bytes = head.count;
    } else if (a.what == type::large) {
        if (seals_messages()) return channel_errc::unexpected_message;
        std::size_t const end = wire::channel_head_bytes + wire::segments_bytes(head);
        wire::channel_segments const segments = wire::decode_segments(bytes.first(end), ec);
        behind = bytes.size() - end;
        // Without requests there is nothing to precede a body.
        bool const is_right =
            segments.size_bytes <= outgoing_message::bytes_max && (behind == 0 || requests_ > 0);
        if (!ec && !is_right) ec = channel_errc::malformed_message;
        if (ec) return ec;
        message_bytes = segments.size_bytes;
    } else {
        a.number = head.tag;
        a.is_declined = head.count != 0;
    }
    bool const is_message = a.what == type::eager || a.what == type::large;
    arrived_[slot] = {
        head.tag,
        message_bytes,
        static_cast<std::uint32_t>(bytes.size()),
        static_cast<std::uint32_t>(behind)};
    try {
        if (error_code const wrong = code_of(machine_.arrived(a, *this))) return wrong;
    } catch (std::bad_alloc const&) {
        return asio::error::no_memory;
    }
    if (is_message) {
        counted_.arrived.add(1);
        counted_.arrived_bytes.add(message_bytes + behind);
    }
    if (a.what == type::close) end_of_messages_ = asio::error::eof;
    return {};
}

channel_core::arrival channel_core::take_message() {
    arrival a;
    a.place = machine_.take();
    content const& what = arrived_[a.place.receive];
    a.tag = what.tag;
    a.size_bytes = what.size_bytes;
    a.behind_segments = what.behind_segments;
    return a;
}

// All that was received in it.
std::span<std::byte const> channel_core::whole(std::uint32_t receive) const {
    return slots_.receive_slot(receive).bytes().first(arrived_[receive].wire_bytes);
}

std::span<std::byte const> channel_core::prefix_of(arrival const& a, std::size_t size_bytes) const {
    auto const all = whole(a.place.receive);
    return a.place.is_large ? all.last(size_bytes)
                            : all.subspan(wire::channel_head_bytes, size_bytes);
}

void channel_core::make_message(message& m, arrival&& a) {
    m.core_ = self();
    m.tag_ = a.tag;
    m.size_bytes_ = a.size_bytes;
    m.number_ = a.place.number;
    m.slot_ = a.place.receive;
    m.is_large_ = a.place.is_large;
    m.is_detached_ = a.place.is_detached;
    m.own_ = std::move(a.own);
    // The body is the end of a small message; what precedes it, of a large one.
    auto const body_bytes = m.is_large_ ? 0 : static_cast<std::size_t>(a.size_bytes);
    auto const all = m.is_detached_ ? std::span<std::byte const>{m.own_} : whole(m.slot_);
    m.head_ = all.first(all.size() - body_bytes).last(a.head_bytes);
    if (m.is_large_) return;
    mutable_slice const place = slots_.receive_slot(m.slot_);
    if (m.is_detached_) {
        m.slice_ = detached(place, std::span{m.own_}.last(body_bytes));
    } else {
        auto const body = place.bytes().subspan(all.size() - body_bytes, body_bytes);
        m.slice_ = access::make<mutable_slice>(body, place.key(), access::mark_of(place));
    }
}

channel_core::arrival channel_core::unmake_message(message& m) noexcept {
    arrival a;
    a.place = kept_of(m);
    a.tag = m.tag_;
    a.size_bytes = m.size_bytes_;
    a.head_bytes = m.head_.size();
    a.own = std::move(m.own_);
    m.core_.reset();
    m.slice_ = {};
    m.head_ = {};
    return a;
}

channel_core::machine::kept channel_core::kept_of(message const& what) noexcept {
    return {what.slot_, what.is_large_, what.number_, what.is_detached_};
}

void channel_core::release(message const& what) noexcept {
    try {
        enter([this, held = kept_of(what)] {
            if (is_open()) machine_.release(held, *this);
        });
    } catch (...) {
        // Without memory the peer would wait for ever.
        close_connection();
    }
}

// The message has its receive, which changes no more.
void channel_core::detach(message& what) {
    if (what.is_detached_) return;
    machine::kept held = kept_of(what);
    auto const all = whole(what.slot_);
    std::vector<std::byte> own(all.begin(), all.end());
    enter([this, held]() mutable {
        if (is_open()) machine_.detach(held, *this);
    });
    what.own_ = std::move(own);
    what.is_detached_ = true;
    if (!what.head_.empty())
        what.head_ = std::span<std::byte const>{what.own_}.subspan(
            static_cast<std::size_t>(what.head_.data() - all.data()), what.head_.size()
        );
    if (what.is_elsewhere_ || what.is_large_) return;
    what.slice_ = detached(what.slice_, std::span{what.own_}.last(what.slice_.size()));
}

void channel_core::detach(arrival& a) {
    auto const all = whole(a.place.receive);
    a.own.assign(all.begin(), all.end());
    machine_.detach(a.place, *this);
}

// --- ending --------------------------------------------------------------------------------------

// The channel is over: nothing more is sent, and receivers get what has arrived and then the end.
void channel_core::end(error_code why, step where, close_reason reason) {
    if (state_ == state::ended) return;
    if (reason == close_reason::completed) driver::complete();
    else if (why) fail(where, why, reason);
    stop(why);
}

void channel_core::stop(error_code why) {
    bool const was_open = is_open();
    state_ = state::ended;
    if (!end_of_messages_) end_of_messages_ = why ? why : error_code{asio::error::eof};
    unsent_ = why ? why : error_code{errc::not_connected};
    if (was_open) machine_.end(*this);
    end_accept(unsent_);
    end_.complete(why);
    withdraw_limit_.cancel();
}

// The connection reports an error: the channel is over.
void channel_core::on_broken(error_code ec) {
    // The cause is what the connection found first.
    if (ec == wc_errc::flushed) {
        if (error_code const cause = lower().last_failure().code) ec = cause;
    }
    bool const has_left = ec == errc::peer_disconnected;
    // Its acknowledgement may be lost, but no message of the program's is outstanding.
    if (has_left && machine_.is_finished()) {
        end({}, step::disconnect, close_reason::completed);
        return close_connection();
    }
    if (has_left)
        return end(
            channel_errc::peer_closed_early, step::transfer, close_reason::peer_closed_early
        );
    end(ec, step::transfer, close_reason::open);
}

// An operation of this channel's has failed. If the connection has ended, messages that arrived before
// may still be in the completion queue: on_end() comes behind them.
void channel_core::on_failed(error_code ec) {
    if (is_open() && lower().is_open()) on_broken(ec);
}

// The connection has ended, and everything posted has completed.
void channel_core::on_end(failure const& of_all) {
    // Of messages that are not taken yet, because they were faster than the handler of the connect.
    if (is_open() && !early_.empty()) return in_order([this, of_all] { on_end(of_all); });
    on_connection_end();
    failure const of_connection = lower().last_failure();
    error_code why = of_connection.code;
    if (!why && of_connection.reason == close_reason::closed_locally)
        why = asio::error::operation_aborted;
    bool const has_left = of_connection.reason == close_reason::peer_disconnected;
    if (is_open()) on_broken(!why || has_left ? error_code{errc::peer_disconnected} : why);
}

void channel_core::finish(control_handler handler) {
    waiter who = waiter_for(std::move(handler));
    if (!who) return;
    enter(
        [this](waiter& w) {
            if (begin_to_finish(w)) start_finishing();
        },
        std::move(who)
    );
}

// False if it has begun before, or cannot.
bool channel_core::begin_to_finish(waiter& who) {
    if (!end_.has_begun() && !is_open()) {
        error_code const failed = last_failure().code;
        deliver(std::move(who), failed ? failed : error_code{errc::not_connected});
        return false;
    }
    return end_.begin(std::move(who), options_.finish_timeout, [this] { on_late(); });
}

void channel_core::finish_sending() {
    if (end_.has_begun() && is_open()) machine_.finish(*this);
}

// The peer has not finished in time.
void channel_core::on_late() {
    // Disconnecting has its own deadline.
    if (is_open()) end(why_late(), step::finish, close_reason::timed_out);
}

// Both sides have finished.
void channel_core::disconnect() {
    state_ = state::ended;
    if (!end_of_messages_) end_of_messages_ = asio::error::eof;
    withdraw_limit_.cancel();
    end_.disconnect();
}

void channel_core::close() noexcept {
    driver::close();
    try {
        enter([this] {
            if (state_ == state::ended) return;
            // Without an open connection no receive reports the end.
            if (!end_of_messages_) end_of_messages_ = asio::error::operation_aborted;
            if (state_ == state::idle) state_ = state::ended;
            else end(asio::error::operation_aborted, step::transfer, close_reason::closed_locally);
        });
    } catch (...) {
        // No memory to tell: the receives of the connection do.
    }
}

// --- observers -----------------------------------------------------------------------------------

std::vector<std::byte> channel_core::greeting() const {
    error_code foreign;
    return wire::decode_channel_hello(peer_hello(), foreign).greeting;
}

std::uint32_t channel_core::small_bytes_max() const noexcept { return small_bytes_max_; }

error_code channel_core::why_late() const noexcept {
    return machine_.is_close_posted() ? channel_errc::peer_not_finished
                                      : channel_errc::peer_not_received;
}

bool channel_core::holds_much() const noexcept {
    return machine_.held() > (options_.receives - 4U) / 2;
}

message_channel_statistics channel_core::message_statistics() {
    refresh();
    message_channel_statistics s;
    s.sent = counted_.sent.read();
    s.sent_bytes = counted_.sent_bytes.read();
    s.arrived = counted_.arrived.read();
    s.arrived_bytes = counted_.arrived_bytes.read();
    s.credits_sent = counted_.credits_sent.read();
    s.waiting = counted_.waiting.read();
    s.held = counted_.held.read();
    return s;
}

}  // namespace rcverbs::detail
