#include "messages/channel_core.hpp"

#include <boost/asio/error.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

#include "connection/exposed_slice.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

// Places of the send queue for messages of the channel's own.
constexpr std::uint32_t control_slots = 3;
constexpr std::uint64_t message_bytes_max = std::uint64_t{1} << 32;

void copy(slice_list const& from, std::span<std::byte> to) noexcept {
    for (plain_slice const& each : from.all()) {
        if (each.size == 0) continue;
        std::memcpy(to.data(), each.data, each.size);
        to = to.subspan(each.size);
    }
}

mutable_slice part_of(plain_slice const& whole, std::size_t offset, std::size_t size) noexcept {
    return {{whole.data + offset, size}, local_key{whole.key}, whole.mark()};
}

machines::credit_window::kind kind_of(wire::channel_type type) noexcept {
    using kind = machines::credit_window::kind;
    switch (type) {
    case wire::channel_type::large_done:
    case wire::channel_type::withdraw: return kind::answer;
    case wire::channel_type::credit: return kind::credit;
    case wire::channel_type::close: return kind::close;
    default: return kind::data;
    }
}

bool is_of_the_program(wire::channel_type type) noexcept {
    return type == wire::channel_type::eager || type == wire::channel_type::large;
}

}  // namespace

channel_core::channel_core(
    connection over, message_channel_options const& options, std::uint16_t requests
)
    : options_{options},
      requests_{requests},
      connection_{std::move(over)},
      order_{access::core_of(connection_)->order()},
      executor_{connection_.get_executor()},
      timer_{executor_},
      withdraw_timer_{executor_},
      arrived_(options.receives) {}

channel_core::~channel_core() = default;

std::shared_ptr<channel_core> channel_core::make(
    connection over, message_channel_options const& options, std::uint16_t requests
) {
    auto made = std::make_shared<channel_core>(std::move(over), options, requests);
    made->membership_.join(
        made->connection_.get_executor(), made, hosting::rank::above_connections
    );
    return made;
}

void channel_core::call_later(control_waiter waiter, error_code result) {
    run_later([w = std::move(waiter), result]() mutable { w(result); });
}

// Handlers are destroyed uncalled, as Asio does with its own, and not under the mutex.
void channel_core::context_is_going(asio::execution_context const&) noexcept {
    outgoing_list waiting;
    outgoing_list sent;
    decltype(receivers_)::removed receivers;
    std::deque<std::shared_ptr<fetching>> fetches;
    control_waiter finisher;
    std::optional<asio::steady_timer> timer;
    std::optional<asio::steady_timer> withdraw_timer;
    asio::any_io_executor gone;
    guard const lock{mutex_};
    is_shut_down_ = true;
    state_ = state::ended;
    waiting.swap(waiting_);
    // Those on their way belong to handlers of the connection's, which are destroyed as well.
    for (outgoing& o : sent_) {
        outgoing& taken = sent.emplace_back();
        taken.handler = std::move(o.handler);
        // Deregistered before the handler is destroyed, which may own the memory.
        taken.registered = std::move(o.registered);
    }
    fetches.swap(waiting_fetches_);
    receivers = receivers_.take_all();
    finisher = std::move(finisher_);
    timer.swap(timer_);
    withdraw_timer.swap(withdraw_timer_);
    gone.swap(executor_);
}

// --- connecting ----------------------------------------------------------------------------------

wire::channel_hello channel_core::own_hello(std::vector<std::byte> greeting) const {
    wire::channel_hello h;
    h.mode = options_.mode;
    h.slot_bytes = options_.slot_bytes;
    h.receives = options_.receives;
    h.requests = requests_;
    h.greeting = std::move(greeting);
    return h;
}

mutable_slice channel_core::receive_slot(std::uint32_t i) const {
    return memory_.slice(std::size_t{i} * options_.slot_bytes, options_.slot_bytes);
}

mutable_slice channel_core::send_slot(std::uint32_t i) const {
    return receive_slot(options_.receives + i);
}

// Makes the memory and posts the receives, before the peer can send.
error_code channel_core::prepare() {
    connection_limits const limits = connection_.limits();
    std::uint32_t const slots = options_.sends + control_slots;
    if (limits.receive_queue_depth < options_.receives || limits.send_queue_depth < slots)
        return errc::invalid_option;
    error_code ec;
    registered_buffer made{
        connection_.domain(),
        std::size_t{options_.slot_bytes} * (options_.receives + slots),
        access_flags::local_write,
        ec};
    if (ec) return ec;
    guard const lock{mutex_};
    memory_ = std::move(made);
    free_slots_.resize(slots);
    for (std::uint32_t i = 0; i < slots; ++i) free_slots_[i] = slots - 1 - i;
    for (std::uint32_t i = 0; i < options_.receives; ++i) post_receive(i);
    return {};
}

// Begins to connect or to accept, once.
error_code channel_core::begin(side which, std::span<std::byte const> greeting) {
    guard const lock{mutex_};
    if (state_ != state::idle) return errc::already_connected;
    if (greeting.size() > wire::channel_greeting_bytes_max) return errc::private_data_too_large;
    state_ = state::connecting;
    side_ = which;
    return {};
}

bool channel_core::connect(
    endpoint const& peer, std::vector<std::byte> greeting, control_handler handler
) {
    if (!executor()) return false;
    control_waiter waiter{std::move(handler), executor_};
    if (error_code const refused = begin(side::active, greeting)) {
        call_later(std::move(waiter), refused);
        return false;
    }
    close_when_cancelled(waiter, shared_from_this());
    connection_.async_resolve(
        peer,
        [self = shared_from_this(),
         w = std::move(waiter),
         hello = wire::encode(own_hello(std::move(greeting)))](error_code ec) mutable {
            if (!ec) ec = self->prepare();
            if (ec) return self->on_established(ec, std::move(w));
            connection& over = self->connection_;
            over.async_establish(
                hello,
                [self = std::move(self), w = std::move(w)](error_code failed) mutable {
                    channel_core& core = *self;
                    core.on_established(failed, std::move(w));
                }
            );
        }
    );
    return true;
}

bool channel_core::accept(std::vector<std::byte> greeting, control_handler handler) {
    if (!executor()) return false;
    control_waiter waiter{std::move(handler), executor_};
    error_code foreign;
    wire::channel_hello const theirs =
        wire::decode_channel_hello(connection_.private_data(), foreign);
    if (error_code const refused = begin(side::passive, greeting)) {
        call_later(std::move(waiter), refused);
        return false;
    }
    {
        guard const lock{mutex_};
        greeting_ = theirs.greeting;
    }
    close_when_cancelled(waiter, shared_from_this());
    wire::channel_hello ours = own_hello(std::move(greeting));
    ours.answer = foreign ? wire::verdict::malformed : wire::judge_request(ours, theirs);
    error_code why;
    if (ours.answer != wire::verdict::welcome) {
        ours.greeting.clear();
        error_code ignored;
        connection_.reject(wire::encode(ours), ignored);
        why = foreign ? foreign : wire::judgement<channel_errc>(ours.answer);
    }
    if (!why) why = prepare();
    if (why) {
        run_later([self = shared_from_this(), w = std::move(waiter), why]() mutable {
            self->on_established(why, std::move(w));
        });
        return true;
    }
    connection_.async_accept(
        wire::encode(ours),
        [self = shared_from_this(), w = std::move(waiter)](error_code ec) mutable {
            channel_core& core = *self;
            core.on_established(ec, std::move(w));
        }
    );
    return true;
}

void channel_core::on_established(error_code ec, control_waiter handler) {
    error_code foreign;
    wire::channel_hello const theirs =
        wire::decode_channel_hello(connection_.private_data(), foreign);
    // The reason of a channel's rejection is in its hello; any other is reported unchanged.
    if (ec == cm_errc::rejected_by_peer && !foreign)
        ec = wire::refusal<channel_errc>(theirs.answer);
    if (!ec) ec = foreign ? foreign : wire::check_acceptance(own_hello({}), theirs);
    outgoing_list done;
    bool has_early = false;
    {
        guard const lock{mutex_};
        // Closed meanwhile.
        if (!ec && state_ != state::connecting) ec = asio::error::operation_aborted;
        if (ec) end(ec, step::handshake, close_reason::refused, done);
        else open(theirs);
        if (ec) early_.clear();
        has_early = !early_.empty();
    }
    if (ec) {
        connection_.close();
    } else {
        // With nothing posted, too: a peer may have left although all receives are taken.
        access::core_of(connection_)
            ->start_wait_of_layer(control_handler{
                [self = shared_from_this()](error_code why) { self->on_ended(why); }});
    }
    if (has_early) run_later([self = shared_from_this()] { self->take_early(); });
    run_later([self = shared_from_this()] { self->deliver(); });
    handler(ec);
}

// What has arrived before the channel was open, in its order; what arrives meanwhile waits behind
// it.
void channel_core::take_early() {
    early_arrival a;
    {
        guard const lock{mutex_};
        if (early_.empty()) return;
        a = early_.front();
        if (early_.size() > 1) run_later([self = shared_from_this()] { self->take_early(); });
        early_.erase(early_.begin());
    }
    process(a.slot, a.code, a.what);
}

void channel_core::open(wire::channel_hello const& theirs) {
    state_ = state::open;
    greeting_ = theirs.greeting;
    peer_requests_ = theirs.requests;
    peer_receives_ = theirs.receives;
    credits_ = window{options_.receives, theirs.receives};
    small_bytes_max_ = std::min(options_.slot_bytes, theirs.slot_bytes) -
                       static_cast<std::uint32_t>(wire::channel_head_bytes);
}

// --- sending -------------------------------------------------------------------------------------

// How many large messages that a side with so many receives has got may be unanswered.
std::uint64_t channel_core::large_unanswered_max(std::uint16_t receives) const noexcept {
    return std::uint64_t{receives} + requests_ + peer_requests_;
}

bool channel_core::is_large(std::uint64_t size_bytes) const noexcept {
    guard const lock{mutex_};
    return small_bytes_max_ > 0 && size_bytes > small_bytes_max_;
}

control_waiter channel_core::waiter_for(control_handler handler) const {
    boost::asio::any_io_executor const own = executor();
    return own ? control_waiter{std::move(handler), own} : control_waiter{};
}

std::uint64_t channel_core::send(
    std::span<std::byte const> bytes, std::uint64_t tag, control_waiter waiter
) {
    outgoing o;
    o.tag = tag;
    o.size_bytes = bytes.size();
    error_code refused;
    if (bytes.size() > message_bytes_max) {
        refused = errc::message_too_large;
    } else if (is_large(bytes.size())) {
        o.type = wire::channel_type::large;
        o.registered =
            const_memory_region{connection_.domain(), bytes, access_flags::remote_read, refused};
        if (!refused) o.segments.push_back(o.registered.remote());
    } else {
        o.source = slice_list{const_slice{bytes, local_key{}}.plain()};
    }
    return enqueue(std::move(o), refused, std::move(waiter));
}

std::uint64_t channel_core::send(
    const_slices const& source, std::uint64_t tag, control_waiter waiter
) {
    outgoing o;
    o.tag = tag;
    o.size_bytes = source.size();
    o.source = source.list();
    error_code refused;
    if (source.size() > message_bytes_max) {
        refused = errc::message_too_large;
    } else if (is_large(source.size())) {
        o.type = wire::channel_type::large;
        for (plain_slice const& each : o.source.all()) {
            if (each.size == 0 || refused) continue;
            o.segments.push_back(readable_by_peer(each, connection_.domain(), refused));
        }
        if (o.segments.size() > wire::channel_segments_max) refused = errc::too_many_segments;
    }
    return enqueue(std::move(o), refused, std::move(waiter));
}

channel_core::sending channel_core::idle_entry() {
    if (idle_.empty()) idle_.emplace_back();
    return idle_.begin();
}

std::uint64_t channel_core::enqueue(outgoing&& o, error_code refused, control_waiter waiter) {
    // Nobody is left to call.
    if (!executor()) return 0;
    guard lock{mutex_};
    if (!refused && has_all_sent_) refused = errc::operation_in_progress;
    // A message whose size was looked at before the channel was open is not for it.
    bool const fits = o.type != wire::channel_type::eager || o.size_bytes <= small_bytes_max_;
    if (!refused && (state_ != state::open || !fits))
        refused = failure_.code ? failure_.code : error_code{errc::not_connected};
    if (refused) {
        lock.unlock();
        call_later(std::move(waiter), refused);
        return 0;
    }
    std::uint64_t const serial = ++serial_;
    waiter.serial = serial;
    if (auto slot = waiter.slot(); slot.is_connected()) {
        slot.assign([weak = weak_from_this(), serial](asio::cancellation_type type) {
            if (auto const self = weak.lock()) self->on_cancelled(serial, type);
        });
    }
    // With spare ones: what is sent along must not throw any more.
    while (idle_.size() <= control_slots) idle_.emplace_back();
    sending const place = idle_.begin();
    *place = std::move(o);
    place->handler = std::move(waiter);
    place->count = static_cast<std::uint32_t>(
        place->type == wire::channel_type::large ? place->segments.size() : place->size_bytes
    );
    waiting_.splice(waiting_.end(), idle_, place);
    send_queued();
    return serial;
}

// Sends what may be sent. REQUIRES: the mutex is held.
void channel_core::send_queued() {
    if (state_ != state::open) return;
    while (!answers_.empty() && credits_.may_send(window::kind::answer) && free_slots_.size() > 2) {
        sending const o = answers_.begin();
        sent_.splice(sent_.end(), answers_, o);
        post(o);
    }
    while (!waiting_.empty() && credits_.may_send(window::kind::data) &&
           free_slots_.size() > control_slots) {
        sending const o = waiting_.begin();
        bool const is_large = o->type == wire::channel_type::large;
        if (is_large && large_sent_ - answers_arrived_ >= large_unanswered_max(peer_receives_))
            break;
        sent_.splice(sent_.end(), waiting_, o);
        post(o);
    }
    bool const is_credit_due = credits_.owes_credit() && (!is_delivering_ || credits_.owes_much());
    if (is_credit_due && credits_.may_send(window::kind::credit) && free_slots_.size() > 1) {
        ++counted_.credits_sent;
        post_control(wire::channel_type::credit);
    }
    continue_finishing();
}

void channel_core::post_control(wire::channel_type type) {
    sending const o = idle_entry();
    *o = outgoing{};
    o->type = type;
    sent_.splice(sent_.end(), idle_, o);
    post(o);
}

void channel_core::post(sending o) {
    o->slot = free_slots_.back();
    free_slots_.pop_back();
    mutable_slice const place = send_slot(o->slot);
    window::counts const counts = credits_.on_send(kind_of(o->type));
    wire::encode(
        {o->type, counts.credits_taken, counts.given_back, o->count, o->tag}, place.bytes()
    );
    if (o->type == wire::channel_type::large_done) ++answers_sent_;
    std::size_t size = wire::channel_head_bytes;
    if (o->type == wire::channel_type::eager) {
        copy(o->source, place.bytes().subspan(size));
        size += o->size_bytes;
    } else if (o->type == wire::channel_type::large) {
        o->number = large_sent_++;
        wire::encode_segments(o->segments, place.bytes());
        size += o->segments.size() * remote_region::encoded_bytes;
    }
    connection_.async_send(
        place.first(size),
        [self = shared_from_this(), o](error_code ec, std::size_t) { self->on_sent(o, ec); }
    );
}

void channel_core::on_sent(sending o, error_code ec) {
    outgoing_list done;
    bool is_breaking = false;
    {
        guard const lock{mutex_};
        free_slots_.push_back(o->slot);
        o->is_acknowledged = true;
        if (o->type == wire::channel_type::close) is_close_acknowledged_ = !ec;
        is_breaking = ec && state_ == state::open;
        bool const is_over = o->is_answered || (!ec && o->type != wire::channel_type::large);
        if (is_over) {
            done.splice(done.end(), sent_, o);
        } else if (state_ == state::ended) {
            o->result = failure_.code ? failure_.code : ec;
            if (!o->result) o->result = asio::error::operation_aborted;
            done.splice(done.end(), sent_, o);
        }
        // With all that were acknowledged, this one included.
        if (is_breaking) on_broken(ec, done);
        send_queued();
    }
    if (is_breaking) connection_.close();
    complete_and_deliver(done);
}

// Calls the handlers of messages that are over, and keeps their entries for others. REQUIRES: the
// mutex is not held; this runs in the connection's order.
void channel_core::complete(outgoing_list& done) {
    while (!done.empty()) {
        outgoing& o = done.front();
        o.registered = {};
        o.segments.clear();
        control_waiter handler = std::move(o.handler);
        error_code const result = o.result;
        {
            guard const lock{mutex_};
            if (is_of_the_program(o.type) && !result) {
                ++counted_.sent;
                counted_.sent_bytes += o.size_bytes;
            }
            idle_.splice(idle_.end(), done, done.begin());
        }
        if (handler) handler(result);
    }
}

void channel_core::complete_and_deliver(outgoing_list& done) {
    // A handler may throw; the others are called later.
    struct cleanup {
        channel_core& core;
        outgoing_list& rest;
        bool is_done = false;
        ~cleanup() {
            if (is_done) return;
            core.run_later([self = core.shared_from_this(), left = std::move(rest)]() mutable {
                self->complete_and_deliver(left);
            });
        }
    } on_return{*this, done};
    complete(done);
    on_return.is_done = true;
    deliver();
}

void channel_core::on_cancelled(std::uint64_t serial, asio::cancellation_type type) {
    if (type == asio::cancellation_type::none) return;
    bool const is_terminal =
        (type & asio::cancellation_type::terminal) != asio::cancellation_type::none;
    if (cancel_send(serial) == cancelled::copied && is_terminal) close();
}

channel_core::cancelled channel_core::cancel_send(std::uint64_t serial) {
    if (serial == 0) return cancelled::over;
    auto const has_serial = [serial](outgoing const& o) { return o.handler.serial == serial; };
    guard const lock{mutex_};
    auto const waits = std::find_if(waiting_.begin(), waiting_.end(), has_serial);
    if (waits != waiting_.end()) {
        waits->result = asio::error::operation_aborted;
        outgoing_list done;
        done.splice(done.end(), waiting_, waits);
        send_queued();  // CLOSE may have waited for it
        run_later([self = shared_from_this(), left = std::move(done)]() mutable {
            self->complete_and_deliver(left);
        });
        return cancelled::unsent;
    }
    auto const sent = std::find_if(sent_.begin(), sent_.end(), has_serial);
    if (sent == sent_.end()) return cancelled::over;
    if (sent->type != wire::channel_type::large) return cancelled::copied;
    if (!sent->is_withdrawn && !sent->is_answered && state_ == state::open) {
        sent->is_withdrawn = true;
        sending const o = idle_entry();
        *o = outgoing{};
        o->type = wire::channel_type::withdraw;
        o->tag = sent->number;
        answers_.splice(answers_.end(), idle_, o);
        send_queued();
        withdraw_by(serial, std::chrono::steady_clock::now() + options_.withdraw_timeout);
    }
    return cancelled::exposed;
}

// Ends the channel if the peer still has a withdrawn message then: its memory is not the program's
// before. The deadlines are in order, as all are equally long. REQUIRES: the mutex is held.
void channel_core::withdraw_by(std::uint64_t serial, std::chrono::steady_clock::time_point when) {
    withdrawals_.push_back({serial, when});
    if (withdrawals_.size() == 1) await_withdrawal();
}

void channel_core::await_withdrawal() {
    if (!withdraw_timer_) return;
    withdraw_timer_->expires_at(withdrawals_.front().deadline);
    withdraw_timer_->async_wait([weak = weak_from_this()](error_code ec) {
        auto const self = weak.lock();
        if (!ec && self != nullptr) self->run_later([self] { self->on_withdrawal_due(); });
    });
}

void channel_core::on_withdrawal_due() {
    bool is_late = false;
    {
        guard const lock{mutex_};
        if (state_ != state::open) return;
        auto const now = std::chrono::steady_clock::now();
        while (!withdrawals_.empty() && !is_late && withdrawals_.front().deadline <= now) {
            std::uint64_t const serial = withdrawals_.front().serial;
            withdrawals_.pop_front();
            is_late = std::ranges::any_of(sent_, [serial](outgoing const& o) {
                return o.handler.serial == serial && !o.is_answered;
            });
        }
        if (!is_late && !withdrawals_.empty()) await_withdrawal();
    }
    if (is_late) end_now(errc::timed_out, close_reason::timed_out);
}

// --- receiving -----------------------------------------------------------------------------------

void channel_core::post_receive(std::uint32_t i) {
    connection_.async_receive(
        receive_slot(i),
        [self = shared_from_this(), i](error_code ec, receive_result what) {
            self->on_received(i, ec, what);
        }
    );
}

void channel_core::give_back(std::uint32_t slot, window::kind of) {
    post_receive(slot);
    credits_.give_back(of);
}

void channel_core::on_received(std::uint32_t slot, error_code ec, receive_result what) {
    {
        // The peer may be faster than the handler of the connect.
        guard const lock{mutex_};
        if (state_ == state::connecting || !early_.empty()) {
            early_.push_back({slot, ec, what});
            return;
        }
    }
    process(slot, ec, what);
}

void channel_core::process(std::uint32_t slot, error_code ec, receive_result what) {
    outgoing_list done;
    error_code violation;
    {
        guard const lock{mutex_};
        if (state_ != state::open) return;
        if (ec) on_broken(ec, done);
        else if (what.is_write || what.size_bytes > options_.slot_bytes)
            violation = channel_errc::unexpected_message;
        else violation = take(slot, what.size_bytes, done);
        if (violation) end(violation, step::transfer, close_reason::protocol_error, done);
        send_queued();
    }
    if (violation) connection_.close(violation);
    else if (ec) connection_.close();
    complete_and_deliver(done);
}

// Takes a message of the peer's; returns its violation of the protocol, if any.
error_code channel_core::take(std::uint32_t slot, std::size_t size_bytes, outgoing_list& done) {
    auto const bytes = receive_slot(slot).bytes().first(size_bytes);
    error_code ec;
    arrival a;
    a.slot = slot;
    a.head = wire::decode_channel_head(bytes, ec);
    if (ec) return ec;
    window::counts const counts{a.head.given_back, a.head.credits_taken};
    switch (credits_.on_arrival(kind_of(a.head.type), counts)) {
    case window::verdict::right: break;
    case window::verdict::wrong_counts: return channel_errc::malformed_message;
    case window::verdict::no_credit: return channel_errc::credit_exceeded;
    }
    if (is_of_the_program(a.head.type)) {
        if (has_peer_closed_) return channel_errc::unexpected_message;
        bool const is_eager = a.head.type == wire::channel_type::eager;
        if (is_eager && a.head.count > small_bytes_max_) return channel_errc::malformed_message;
        a.message_bytes = a.head.count;
        if (a.head.type == wire::channel_type::large) {
            wire::channel_segments const segments = wire::decode_segments(bytes, ec);
            if (!ec && segments.size_bytes > message_bytes_max)
                ec = channel_errc::malformed_message;
            if (ec) return ec;
            // Each needs an entry here until its answer has been sent.
            if (large_arrived_ - answers_sent_ >= large_unanswered_max(options_.receives))
                return channel_errc::unexpected_message;
            a.message_bytes = segments.size_bytes;
            a.number = large_arrived_++;
            announced_.push_back({a.number});
        }
        ++counted_.arrived;
        counted_.arrived_bytes += a.message_bytes;
        // There is a place for each receive.
        arrived_[(arrived_first_ + arrived_count_++) % arrived_.size()] = a;
        return {};
    }
    if (a.head.type == wire::channel_type::large_done) {
        on_answer(a, done, ec);
        give_back(a.slot, window::kind::answer);
    } else if (a.head.type == wire::channel_type::withdraw) {
        if (has_peer_closed_ || a.head.tag >= large_arrived_)
            return channel_errc::unexpected_message;
        on_withdrawal(a.head.tag);
        give_back(a.slot, window::kind::answer);
    } else {
        bool const is_close = a.head.type == wire::channel_type::close;
        if (is_close && has_peer_closed_) return channel_errc::unexpected_message;
        give_back(a.slot, is_close ? window::kind::close : window::kind::credit);
        has_peer_closed_ = has_peer_closed_ || is_close;
        if (is_close) end_of_messages_ = asio::error::eof;
    }
    return ec;
}

void channel_core::on_answer(arrival const& a, outgoing_list& done, error_code& ec) {
    auto const asked = std::find_if(sent_.begin(), sent_.end(), [&](outgoing const& o) {
        return o.type == wire::channel_type::large && !o.is_answered && o.number == a.head.tag;
    });
    if (asked == sent_.end()) {
        ec = channel_errc::unexpected_message;
        return;
    }
    asked->is_answered = true;
    ++answers_arrived_;
    std::erase_if(withdrawals_, [&](auto const& w) { return w.serial == asked->handler.serial; });
    // A WITHDRAW that was not sent would come after CLOSE.
    auto const request = std::find_if(answers_.begin(), answers_.end(), [&](outgoing const& o) {
        return o.type == wire::channel_type::withdraw && o.tag == a.head.tag;
    });
    if (request != answers_.end()) idle_.splice(idle_.end(), answers_, request);
    if (a.head.count != 0)
        asked->result =
            asked->is_withdrawn ? channel_errc::message_withdrawn : channel_errc::message_declined;
    // The answer may overtake the acknowledgement.
    if (asked->is_acknowledged) done.splice(done.end(), sent_, asked);
}

// The sender waits for an answer, which has been sent, or follows when the fetching ends, or is that
// the message will not be fetched.
void channel_core::on_withdrawal(std::uint64_t number) {
    auto const at = std::ranges::find(announced_, number, &announced::number);
    if (at == announced_.end() || at->is_fetched) return;
    announced_.erase(at);
    answer(number, false);
}

void channel_core::receive(message_handler handler) {
    if (!executor()) return;
    waiting_handler<error_code, message> waiter{std::move(handler), executor_};
    guard lock{mutex_};
    if (state_ == state::idle) {
        lock.unlock();
        return run_later([w = std::move(waiter)]() mutable { w(errc::not_connected, {}); });
    }
    receivers_.add(std::move(waiter), weak_from_this(), &channel_core::cancel_receive);
    // A delivery that is under way takes it.
    if (is_delivering_ || (arrived_count_ == 0 && !end_of_messages_)) return;
    lock.unlock();
    run_later([self = shared_from_this()] { self->deliver(); });
}

message channel_core::make_message(arrival const& a) {
    message m;
    m.core_ = shared_from_this();
    m.tag_ = a.head.tag;
    m.size_bytes_ = a.message_bytes;
    m.number_ = a.number;
    m.slot_ = a.slot;
    m.is_large_ = a.head.type == wire::channel_type::large;
    if (!m.is_large_) m.slice_ = receive_slot(a.slot).slice(wire::channel_head_bytes, a.head.count);
    return m;
}

// Gives messages to receivers, in order. Runs in the connection's order; a second call while one is
// under way returns at once.
void channel_core::deliver() {
    guard lock{mutex_};
    if (is_delivering_) return;
    is_delivering_ = true;
    // A handler may throw; what is left is delivered later.
    struct cleanup {
        channel_core& core;
        guard& lock;
        bool is_done = false;
        ~cleanup() {
            if (is_done) return;
            if (!lock.owns_lock()) lock.lock();
            core.is_delivering_ = false;
            lock.unlock();
            core.run_later([self = core.shared_from_this()] { self->deliver(); });
        }
    } on_return{*this, lock};
    while (!receivers_.empty() && (arrived_count_ > 0 || end_of_messages_)) {
        auto first = receivers_.take_first();
        // Its context is gone: the message is for the next.
        if (!first.front().handler) {
            lock.unlock();
            first.clear();
            lock.lock();
            continue;
        }
        message m;
        error_code ec;
        if (arrived_count_ > 0) {
            m = make_message(arrived_[arrived_first_]);
            arrived_first_ = (arrived_first_ + 1) % arrived_.size();
            --arrived_count_;
            ++held_;
        } else {
            ec = end_of_messages_;
        }
        lock.unlock();
        first.front().handler(ec, std::move(m));
        first.clear();
        lock.lock();
    }
    is_delivering_ = false;
    on_return.is_done = true;
    send_queued();
}

void channel_core::cancel_receive(std::uint64_t serial) {
    decltype(receivers_)::removed taken;
    {
        guard const lock{mutex_};
        taken = receivers_.take(serial);
    }
    if (taken.empty()) return;
    run_later([list = std::move(taken)]() mutable {
        if (list.front().handler) list.front().handler(asio::error::operation_aborted, message{});
    });
}

void channel_core::release(message const& what) noexcept {
    try {
        guard const lock{mutex_};
        if (state_ != state::open) return;
        end_hold(what);
        if (what.is_large_) {
            auto const at = std::ranges::find(announced_, what.number_, &announced::number);
            // If not, it was withdrawn and is answered.
            if (at != announced_.end()) {
                announced_.erase(at);
                answer(what.number_, false);
            }
        }
        send_queued();
    } catch (...) {
        // Without memory the peer would wait for ever.
        connection_.close();
    }
}

// Gives the receive of a message back, if that has not happened. REQUIRES: the mutex is held.
void channel_core::end_hold(message const& what) {
    if (what.is_detached_) return;
    --held_;
    give_back(what.slot_, window::kind::data);
}

void channel_core::detach(message& what) {
    guard const lock{mutex_};
    if (what.is_detached_) return;
    auto bytes = receive_slot(what.slot_).bytes();
    if (what.is_large_) {
        error_code ignored;  // checked when it arrived
        auto const count = wire::decode_channel_head(bytes, ignored).count;
        bytes = bytes.first(wire::channel_head_bytes + count * remote_region::encoded_bytes);
    } else {
        bytes = what.slice_.bytes();
    }
    what.own_.assign(bytes.begin(), bytes.end());
    if (state_ == state::open) end_hold(what);
    what.is_detached_ = true;
    // Of no registration: what copies it works, everything else says errc::region_gone.
    detail::region_mark gone = what.slice_.mark();
    gone.generation -= 2;
    what.slice_ =
        what.is_large_ ? mutable_slice{} : mutable_slice{what.own_, what.slice_.key(), gone};
    send_queued();
}

// Informs the sender of a large message that it has been fetched, or will not be.
void channel_core::answer(std::uint64_t number, bool is_fetched) {
    sending const o = idle_entry();
    *o = outgoing{};
    o->type = wire::channel_type::large_done;
    o->count = is_fetched ? 0 : 1;
    o->tag = number;
    answers_.splice(answers_.end(), idle_, o);
}

// The segments of the sender's are read one after another, so that many messages that are fetched
// at a time leave room in the connection's queues.
struct channel_core::fetching : std::enable_shared_from_this<fetching> {
    std::shared_ptr<channel_core> core;
    message what;
    slice_list into;
    control_waiter handler;
    wire::channel_segments segments;
    std::vector<std::vector<mutable_slice>> parts;  // the memory for each segment
    std::size_t next = 0;

    void read() {
        std::size_t const i = next++;
        core->connection_.async_read(
            segments.list[i],
            parts[i],
            [self = shared_from_this()](error_code ec, std::size_t) { self->on_read(ec); }
        );
    }

    void on_read(error_code ec) {
        if (!ec && next < segments.count) return read();
        if (!ec) core->on_fetched(what);
        end(ec);
    }

    void end(error_code ec) {
        what.release();
        core->call_later(std::move(handler), ec);
        core->on_fetch_ended();
    }
};

// Gives the receive back, and answers the sender.
void channel_core::on_fetched(message& what) {
    guard const lock{mutex_};
    if (state_ == state::open) {
        end_hold(what);
        std::erase_if(announced_, [&](announced const& a) { return a.number == what.number_; });
        answer(what.number_, true);
        send_queued();
    }
    what.core_.reset();
}

void channel_core::fetch(message what, mutable_slices const& into, control_handler handler) {
    if (!executor()) return;
    auto const f = std::make_shared<fetching>();
    f->core = shared_from_this();
    f->handler = {std::move(handler), executor_};
    bool const is_right =
        what.is_large_ && what.core_.get() == this && into.size() == what.size_bytes_;
    // Otherwise the message goes with the call, and is declined.
    if (!is_right) return call_later(std::move(f->handler), errc::out_of_range);
    f->what = std::move(what);
    f->into = into.list();
    prepare_fetch(*f);
    {
        guard const lock{mutex_};
        if (fetches_ == options_.receives) return waiting_fetches_.push_back(f);
        ++fetches_;
    }
    start_fetch(f);
}

// Assigns the caller's memory to the segments of the sender's.
void channel_core::prepare_fetch(fetching& f) const {
    message const& what = f.what;
    {
        guard const lock{mutex_};
        std::span<std::byte const> bytes = what.own_;
        if (!what.is_detached_) bytes = receive_slot(what.slot_).bytes();
        // Checked when it arrived; the peer has no access to it.
        error_code ignored;
        auto const count = wire::decode_channel_head(bytes, ignored).count;
        auto const size = wire::channel_head_bytes + count * remote_region::encoded_bytes;
        f.segments = wire::decode_segments(bytes.first(size), ignored);
    }
    std::size_t index = 0;
    std::size_t offset = 0;
    for (std::size_t i = 0; i < f.segments.count; ++i) {
        std::size_t left = f.segments.list[i].size();
        auto& part = f.parts.emplace_back();
        while (left > 0) {
            std::size_t const size = std::min(left, f.into[index].size - offset);
            if (size > 0) part.push_back(part_of(f.into[index], offset, size));
            left -= size;
            offset += size;
            if (offset == f.into[index].size) ++index, offset = 0;
        }
    }
}

void channel_core::start_fetch(std::shared_ptr<fetching> const& f) {
    bool is_withdrawn = false;
    {
        guard const lock{mutex_};
        auto const at = std::ranges::find(announced_, f->what.number_, &announced::number);
        is_withdrawn = at == announced_.end();
        if (!is_withdrawn) at->is_fetched = true;
    }
    if (is_withdrawn) return run_later([f] { f->end(channel_errc::message_withdrawn); });
    f->read();
}

// Starts the next that waits.
void channel_core::on_fetch_ended() {
    std::shared_ptr<fetching> next;
    {
        guard const lock{mutex_};
        if (waiting_fetches_.empty()) {
            --fetches_;
            return;
        }
        next = std::move(waiting_fetches_.front());
        waiting_fetches_.pop_front();
    }
    start_fetch(next);
}

// --- ending --------------------------------------------------------------------------------------

// The channel is over: nothing more is sent, and receivers get what has arrived and then the end.
// REQUIRES: the mutex is held.
void channel_core::end(error_code why, step where, close_reason reason, outgoing_list& done) {
    if (state_ == state::ended) return;
    state_ = state::ended;
    close_reason const first = failure_.reason;
    if (why && !failure_.code) failure_ = {where, why, connection_.remote_endpoint()};
    failure_.reason = first != close_reason::open ? first : reason;
    if (!end_of_messages_) end_of_messages_ = why ? why : error_code{asio::error::eof};
    error_code const unsent = why ? why : error_code{errc::not_connected};
    for (outgoing& o : waiting_) o.result = unsent;
    done.splice(done.end(), waiting_);
    done.splice(done.end(), answers_);
    for (auto o = sent_.begin(); o != sent_.end();) {
        auto const here = o++;
        // Others are completed by their own completion.
        if (!here->is_acknowledged) continue;
        here->result = unsent;
        done.splice(done.end(), sent_, here);
    }
    if (!is_disconnecting_) on_finished(why);
}

// The connection reports an error: the channel is over. REQUIRES: the mutex is held.
void channel_core::on_broken(error_code ec, outgoing_list& done) {
    // The cause is what the connection found first.
    if (ec == wc_errc::flushed) {
        if (error_code const cause = connection_.last_failure().code) ec = cause;
    }
    bool const has_left = ec == errc::peer_disconnected;
    // Its acknowledgement may be lost, but no message of the program's is outstanding.
    bool const is_complete = has_peer_closed_ && is_close_posted_;
    if (has_left && is_complete) return end({}, step::disconnect, close_reason::completed, done);
    if (has_left) {
        end(channel_errc::peer_closed_early, step::transfer, close_reason::peer_closed_early, done);
        return;
    }
    end(ec, step::transfer, close_reason::open, done);
}

// The connection has ended, and everything posted has completed.
void channel_core::on_ended(error_code why) {
    outgoing_list done;
    {
        guard const lock{mutex_};
        if (state_ == state::open) on_broken(why ? why : errc::peer_disconnected, done);
    }
    complete_and_deliver(done);
}

bool channel_core::begin_to_finish(control_handler handler) {
    if (!executor()) return false;
    control_waiter waiter{std::move(handler), executor_};
    guard lock{mutex_};
    error_code refused;
    if (is_finishing_) refused = errc::operation_in_progress;
    else if (state_ != state::open)
        refused = failure_.code ? failure_.code : error_code{errc::not_connected};
    if (refused) {
        lock.unlock();
        call_later(std::move(waiter), refused);
        return false;
    }
    is_finishing_ = true;
    close_when_cancelled(waiter, shared_from_this());
    finisher_ = std::move(waiter);
    timer_->expires_after(options_.finish_timeout);
    timer_->async_wait([self = shared_from_this()](error_code ec) {
        if (!ec) self->run_later([self] { self->on_late(); });
    });
    return true;
}

void channel_core::finish_sending() {
    guard const lock{mutex_};
    if (!is_finishing_) return;
    has_all_sent_ = true;
    send_queued();
}

// The peer has not finished in time.
void channel_core::on_late() {
    outgoing_list done;
    {
        guard const lock{mutex_};
        // Disconnecting has its own deadline.
        if (!finisher_ || is_disconnecting_) return;
        on_finished(errc::timed_out);
        end(errc::timed_out, step::finish, close_reason::timed_out, done);
    }
    connection_.close();
    complete_and_deliver(done);
}

// Sends CLOSE behind the last message; ends the connection when both sides have. REQUIRES: the mutex
// is held.
void channel_core::continue_finishing() {
    if (!has_all_sent_ || state_ != state::open) return;
    bool const is_quiet = waiting_.empty() && sent_.empty();
    if (is_quiet && !is_close_posted_ && credits_.may_send(window::kind::close)) {
        is_close_posted_ = true;
        post_control(wire::channel_type::close);
    }
    // The connecting side disconnects; the accepting side waits for that, within the deadline.
    bool const is_over = has_peer_closed_ && is_close_acknowledged_;
    if (!is_over || side_ != side::active) return;
    is_disconnecting_ = true;
    state_ = state::ended;
    failure_.reason = close_reason::completed;
    connection_.async_disconnect([self = shared_from_this()](error_code ec) {
        {
            guard const lock{self->mutex_};
            self->on_finished(ec);
        }
        self->deliver();
    });
}

void channel_core::end_now(error_code why, close_reason reason) {
    outgoing_list done;
    {
        guard const lock{mutex_};
        end(why, step::transfer, reason, done);
    }
    if (reason == close_reason::protocol_error) connection_.close(why);
    else connection_.close();
    complete_and_deliver(done);
}

// REQUIRES: the mutex is held.
void channel_core::on_finished(error_code ec) {
    if (timer_) timer_->cancel();
    if (withdraw_timer_) withdraw_timer_->cancel();
    if (!finisher_) return;
    call_later(std::move(finisher_), ec);
    finisher_ = {};
}

void channel_core::close() noexcept {
    connection_.close();
    try {
        // Without an open connection no receive reports the end.
        guard const lock{mutex_};
        if (state_ == state::ended) return;
        if (!end_of_messages_) end_of_messages_ = asio::error::operation_aborted;
        if (failure_.reason == close_reason::open) failure_.reason = close_reason::closed_locally;
        if (state_ == state::idle) {
            state_ = state::ended;
            return;
        }
        if (!executor_) return;
        run_later([self = shared_from_this()] {
            outgoing_list done;
            {
                guard const inner{self->mutex_};
                self->end(
                    asio::error::operation_aborted,
                    step::transfer,
                    close_reason::closed_locally,
                    done
                );
            }
            self->complete_and_deliver(done);
        });
    } catch (...) {
        // No memory to tell: the receives of the connection do.
    }
}

// --- observers -----------------------------------------------------------------------------------

std::vector<std::byte> channel_core::greeting() const {
    {
        guard const lock{mutex_};
        if (state_ != state::idle) return greeting_;
    }
    error_code foreign;
    return wire::decode_channel_hello(connection_.private_data(), foreign).greeting;
}

std::uint32_t channel_core::small_bytes_max() const noexcept {
    guard const lock{mutex_};
    return small_bytes_max_;
}

std::uint16_t channel_core::peer_requests() const noexcept {
    guard const lock{mutex_};
    return peer_requests_;
}

std::size_t channel_core::waiting_count() const noexcept {
    guard const lock{mutex_};
    return waiting_.size();
}

bool channel_core::holds_much() const noexcept {
    guard const lock{mutex_};
    return held_ > (options_.receives - 4U) / 2;
}

asio::any_io_executor channel_core::executor() const {
    guard const lock{mutex_};
    return executor_;
}

failure channel_core::last_failure() const {
    failure const lower = connection_.last_failure();
    guard const lock{mutex_};
    // After a completed channel the disconnect by the peer is not a failure.
    bool const is_own = failure_.code || failure_.reason == close_reason::completed;
    failure all = is_own ? failure_ : lower;
    all.reason = failure_.reason != close_reason::open ? failure_.reason : lower.reason;
    return all;
}

message_channel_statistics channel_core::statistics() const {
    guard const lock{mutex_};
    message_channel_statistics s = counted_;
    s.waiting = waiting_.size();
    s.held = held_;
    return s;
}

}  // namespace rcverbs::detail
