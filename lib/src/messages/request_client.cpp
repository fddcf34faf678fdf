#include <rcverbs/request_client.hpp>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/detail/timeouts.hpp>

#include "messages/client_core.hpp"
#include "messages/request_core.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::milliseconds pause_max{1000};

client_identity random_identity() {
    client_identity made;
    std::random_device random;
    for (std::byte& b : made) b = static_cast<std::byte>(random());
    return made;
}

std::shared_ptr<request_core> request_core_of(request_channel const& channel) {
    return std::static_pointer_cast<request_core>(access::core_of<channel_base>(channel));
}

connector_options<request_channel> connector_options_of(request_client_options& options) {
    connector_options<request_channel> o;
    o.protocol = options.channel;
    if (!o.protocol.identity) o.protocol.identity = random_identity();
    o.backoff = options.backoff;
    o.on_retry = std::move(options.on_retry);
    return o;
}

}  // namespace

client_core::client_core(
    runs_on<asio::any_io_executor> where,
    std::vector<endpoint> peers,
    request_client_options options
)
    : executor_{std::make_shared<asio::any_io_executor const>(where.get_executor())},
      answer_timeout_{options.channel.answer_timeout},
      on_connected_{std::move(options.on_connected)},
      connector_{std::move(where), std::move(peers), connector_options_of(options)} {}

void client_core::attach() {
    membership_.join(*executor_, weak_from_this(), hosting::rank::above_connections);
}

// --- requests ------------------------------------------------------------------------------------

client_core::executor_ptr client_core::own_executor() const {
    guard const lock{mutex_};
    return executor_;
}

void client_core::ask(
    question const& what, body_source body, bool may_repeat, reply_handler handler
) {
    auto const own = own_executor();
    if (own == nullptr) return;
    auto const c = std::make_shared<call>(*own);
    c->on_reply = {std::move(handler), *own};
    prepare(c, what, std::move(body), may_repeat);
}

void client_core::notify(
    question const& what, body_source body, bool may_repeat, control_handler handler
) {
    auto const own = own_executor();
    if (own == nullptr) return;
    auto const c = std::make_shared<call>(*own);
    c->is_notice = true;
    c->on_sent = {std::move(handler), *own};
    prepare(c, what, std::move(body), may_repeat);
}

void client_core::prepare(
    call_ptr const& c, question const& what, body_source body, bool may_repeat
) {
    auto const timeout = what.options.answer_timeout.value_or(answer_timeout_);
    c->what = what;
    c->body = std::move(body);
    c->may_repeat = may_repeat;
    // Assigned once, here: the caller emits on a thread of its own.
    if (auto slot = c->is_notice ? c->on_sent.slot() : c->on_reply.slot(); slot.is_connected()) {
        slot.assign([weak = weak_from_this(), of = std::weak_ptr{c}](asio::cancellation_type how) {
            auto const self = weak.lock();
            auto const alive = of.lock();
            if (self != nullptr && alive != nullptr && how != asio::cancellation_type::none)
                self->cancel(alive);
        });
    }
    error_code refused;
    if (what.head.size() > c->head.size()) refused = errc::message_too_large;
    if (timeout.count() <= 0) refused = errc::invalid_option;
    if (refused) return end(c, refused);
    c->deadline = clock::now() + bounded(timeout);
    std::ranges::copy(what.head, c->head.begin());
    c->what.head = std::span{c->head}.first(what.head.size());
    start(c);
}

// Sends it if there is a channel; else it waits for one.
void client_core::start(call_ptr const& c) {
    numbered_channel over;
    channel_ptr dropped;
    error_code refused;
    bool is_first = false;
    {
        guard const lock{mutex_};
        if (executor_ == nullptr) return;
        if (is_closed_)
            refused = is_finishing_ ? error_code{errc::operation_in_progress}
                                    : error_code{asio::error::operation_aborted};
        if (c->is_cancelled) refused = asio::error::operation_aborted;
        if (!refused && channel_ != nullptr && !channel_->is_open()) dropped = drop(channel_);
        over = {channel_, counted_.connected};
        auto const wanted = c->what.connection_number;
        bool const is_there = channel_ != nullptr && wanted == over.number;
        if (!refused && wanted && !is_there) refused = channel_errc::other_connection;
        if (!refused && channel_ == nullptr) {
            wait(c, c->deadline);
            is_first = !std::exchange(is_connecting_, true);
            if (!is_first) connector_.shorten_delay();
        }
    }
    if (refused) return end(c, refused);
    if (over.channel != nullptr) return send(c, over);
    if (is_first) connect();
}

// REQUIRES: the lock is held.
void client_core::wait(call_ptr const& c, clock::time_point until) {
    waiting_.push_back(c);
    c->place = std::prev(waiting_.end());
    auto const weak = std::weak_ptr{shared_from_this()};
    c->timer.expires_at(until);
    c->timer.async_wait([weak, of = std::weak_ptr{c}](error_code const& ec) {
        auto const self = weak.lock();
        auto const alive = of.lock();
        if (!ec && self != nullptr && alive != nullptr) self->on_timer(alive);
    });
}

void client_core::send(call_ptr const& c, numbered_channel const& over) {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(c->deadline - clock::now());
    if (left.count() <= 0)
        return end(c, c->last ? c->last : error_code{channel_errc::request_timed_out});
    question what = c->what;
    what.options.answer_timeout = left;
    // The body may have gone with the handler's context.
    if (!c->is_wanted()) return;
    auto const self = shared_from_this();
    auto const core = request_core_of(*over.channel);
    auto const mine = std::allocate_shared<attempt>(recycling_allocator<attempt>{});
    mine->channel = core;
    {
        guard const lock{mutex_};
        c->on = mine;
    }
    std::visit(
        [&](auto const& body) {
            if (c->is_notice) {
                auto handler = [self, c, over, mine](error_code ec) {
                    self->on_result(c, over, ec, {});
                };
                return core->notify(what, body, control_handler{std::move(handler)}, &mine->handle);
            }
            auto handler = [self, c, over, mine](error_code ec, reply r) {
                self->on_result(c, over, ec, std::move(r));
            };
            core->ask(what, body, reply_handler{std::move(handler)}, &mine->handle);
        },
        c->body
    );
    {
        guard const lock{mutex_};
        if (!c->is_cancelled) return;
    }
    attempt::cancel(mine);
}

void client_core::attempt::cancel(std::shared_ptr<attempt> const& which) {
    if (which == nullptr) return;
    if (auto const core = which->channel.lock())
        core->cancel_asked(std::shared_ptr<std::uint64_t const>{which, &which->handle});
}

void client_core::on_result(call_ptr const& c, numbered_channel const& on, error_code ec, reply r) {
    r.connection_number_ = on.number;
    if (!ec) return complete(c, ec, std::move(r));
    channel_ptr const& over = on.channel;
    bool const is_over = !over->is_open() || over->last_failure().reason != close_reason::open;
    channel_ptr dropped;
    bool is_refused = false;
    {
        guard const lock{mutex_};
        if (is_over) dropped = drop(over);
        // It was not sent, because the channel had just been retired, or had ended.
        bool const was_sent = ec != errc::operation_in_progress && ec != errc::not_connected;
        is_refused = !was_sent && channel_ != over && !is_closed_;
        // A server that finishes, and does not answer what it has.
        bool const is_late = ec == channel_errc::peer_not_answered;
        auto const next = clock::now() + c->pause;
        bool const is_repeated = is_over && !is_refused && c->may_repeat &&
                                 !c->what.connection_number && (is_transient(ec) || is_late) &&
                                 !is_closed_ && !c->is_cancelled && c->is_wanted() &&
                                 executor_ != nullptr && next < c->deadline;
        if (is_repeated) {
            ++counted_.repeated;
            c->last = ec;
            c->pause = std::min(2 * c->pause, pause_max);
            c->is_paused = true;
            ++paused_;
            return wait(c, next);
        }
    }
    if (is_refused) return start(c);
    complete(c, ec, std::move(r));
}

// The time to repeat it has come, or its deadline.
void client_core::on_timer(call_ptr const& c) {
    bool is_due = false;
    {
        guard const lock{mutex_};
        if (!c->place) return;
        waiting_.erase(*std::exchange(c->place, std::nullopt));
        is_due = std::exchange(c->is_paused, false);
        if (is_due) --paused_;
        // Nobody needs the channel any more.
        if (!is_due && is_connecting_ && waiting_.size() == paused_) connector_.cancel();
    }
    if (is_due) return start(c);
    complete(c, c->last ? c->last : error_code{channel_errc::request_timed_out});
}

void client_core::cancel(call_ptr const& c) {
    std::shared_ptr<attempt> on;
    bool is_waiting = false;
    {
        guard const lock{mutex_};
        c->is_cancelled = true;
        on = c->on;
        is_waiting = c->place.has_value();
        if (is_waiting) waiting_.erase(*std::exchange(c->place, std::nullopt));
        if (std::exchange(c->is_paused, false)) --paused_;
        if (is_waiting && is_connecting_ && waiting_.size() == paused_) connector_.cancel();
    }
    if (is_waiting) return end(c, asio::error::operation_aborted);
    // One that is not on a channel yet is cancelled by send().
    attempt::cancel(on);
}

void client_core::complete(call_ptr const& c, error_code ec, reply r) {
    c->timer.cancel();
    if (c->on_reply) c->on_reply(ec, std::move(r));
    else if (c->on_sent) c->on_sent(ec);
}

// Later, and not from inside the function that led to it.
void client_core::end(call_ptr const& c, error_code why) {
    if (auto const own = own_executor())
        asio::post(*own, [self = shared_from_this(), c, why] { self->complete(c, why); });
}

// REQUIRES: the lock is held.
client_core::call_list client_core::take_waiting() {
    for (call_ptr const& c : waiting_) {
        c->place.reset();
        c->is_paused = false;
    }
    paused_ = 0;
    return std::exchange(waiting_, {});
}

// --- the channel ---------------------------------------------------------------------------------

void client_core::connect() {
    connector_.async_connect([self = shared_from_this()](error_code ec, request_channel made) {
        self->on_connected(ec, std::move(made));
    });
    // Whoever needs no channel any more could not cancel what was not started.
    guard const lock{mutex_};
    if (is_closed_ || (is_connecting_ && waiting_.size() == paused_)) connector_.cancel();
}

void client_core::on_connected(error_code ec, request_channel made) {
    auto const over = ec ? nullptr : std::make_shared<request_channel>(std::move(made));
    {
        guard const lock{mutex_};
        if (is_closed_) return;
    }
    if (over != nullptr && on_connected_) on_connected_(over);
    call_list ready;
    bool is_wanted = false;
    std::uint64_t number = 0;
    {
        guard const lock{mutex_};
        is_connecting_ = false;
        if (executor_ == nullptr || is_closed_) return;
        for (auto i = waiting_.begin(); i != waiting_.end();) {
            auto const next = std::next(i);
            if (!(*i)->is_paused) {
                (*i)->place.reset();
                ready.splice(ready.end(), waiting_, i);
            }
            i = next;
        }
        // Cancelled for the requests that waited before.
        is_wanted = ec == asio::error::operation_aborted && !ready.empty();
        if (is_wanted) {
            for (auto i = ready.begin(); i != ready.end(); ++i) (*i)->place = i;
            waiting_.splice(waiting_.begin(), ready);
            is_connecting_ = true;
        } else if (over != nullptr) {
            channel_ = over;
            number = ++counted_.connected;
        }
    }
    if (is_wanted) return connect();
    if (over != nullptr) {
        request_core_of(*over)->when_peer_ends([weak = weak_from_this(),
                                                which = std::weak_ptr{over}] {
            auto const self = weak.lock();
            auto const alive = which.lock();
            if (self != nullptr && alive != nullptr) self->retire(alive);
        });
    }
    for (call_ptr const& c : ready) {
        if (ec) end(c, ec);
        else send(c, {over, number});
    }
}

// The channel has ended; it is destroyed without the lock. REQUIRES: the lock is held.
client_core::channel_ptr client_core::drop(channel_ptr const& which) {
    if (channel_ != which || which == nullptr) return nullptr;
    last_of_channel_ = which->last_failure();
    return std::exchange(channel_, nullptr);
}

// The server finishes: it answers what it has, and takes nothing new for long. Later requests go to
// whoever listens next. Each request has its own deadline, so finishing begins behind the last answer.
void client_core::retire(channel_ptr const& over) {
    {
        guard const lock{mutex_};
        if (is_closed_ || channel_ != over) return;
        retiring_.push_back(std::exchange(channel_, nullptr));
    }
    request_core_of(*over)->when_answered([weak = weak_from_this(), which = std::weak_ptr{over}] {
        auto const self = weak.lock();
        auto const alive = which.lock();
        if (self != nullptr && alive != nullptr) self->finish(alive);
    });
}

// --- the end -------------------------------------------------------------------------------------

void client_core::on_finished(channel_ptr const& over, error_code ec) {
    channel_ptr dropped;
    waiting_handler<error_code> who;
    {
        guard const lock{mutex_};
        dropped = drop(over);
        std::erase(retiring_, over);
        last_of_channel_ = over->last_failure();
        if (!finish_error_) finish_error_ = is_finishing_ ? ec : error_code{};
        if (finisher_ && channel_ == nullptr && retiring_.empty()) who = std::move(finisher_);
        ec = finish_error_;
    }
    if (who) who(ec);
}

void client_core::finish(channel_ptr const& over) {
    over->async_finish([self = shared_from_this(), over](error_code ec) {
        self->on_finished(over, ec);
    });
}

void client_core::finish(control_handler handler) {
    executor_ptr const own = own_executor();
    if (own == nullptr) return;
    waiting_handler<error_code> who{std::move(handler), *own};
    std::vector<channel_ptr> over;
    call_list waiting;
    bool is_second = false;
    bool is_over = false;
    waiting_handler<error_code> at_once;
    {
        guard const lock{mutex_};
        is_second = is_finishing_;
        is_finishing_ = is_closed_ = true;
        if (!is_second) over = retiring_;
        if (!is_second && channel_ != nullptr) over.push_back(channel_);
        waiting = take_waiting();
        is_over = over.empty();
        if (!is_over) close_when_cancelled(who, shared_from_this());
        std::swap(is_over ? at_once : finisher_, who);
    }
    connector_.cancel();
    for (call_ptr const& c : waiting) end(c, asio::error::operation_aborted);
    if (is_over) {
        error_code const ec = is_second ? error_code{errc::operation_in_progress} : error_code{};
        return asio::post(*own, [w = std::move(at_once), ec]() mutable { w(ec); });
    }
    for (channel_ptr const& each : over) finish(each);
}

void client_core::close() noexcept {
    channel_ptr over;
    call_list waiting;
    {
        guard const lock{mutex_};
        is_closed_ = true;
        for (channel_ptr const& c : retiring_) c->close();
        if (channel_ != nullptr) channel_->close();
        over = drop(channel_);
        waiting = take_waiting();
    }
    connector_.cancel();
    for (call_ptr const& c : waiting) end(c, asio::error::operation_aborted);
}

// Handlers are destroyed uncalled, as Asio does with its own.
void client_core::context_is_going(asio::execution_context const&) noexcept {
    channel_ptr over;
    call_list waiting;
    executor_ptr gone;
    std::vector<channel_ptr> retiring;
    waiting_handler<error_code> finisher;
    guard lock{mutex_};
    is_closed_ = true;
    retiring.swap(retiring_);
    finisher = std::move(finisher_);
    gone.swap(executor_);
    over = std::exchange(channel_, nullptr);
    waiting = take_waiting();
    lock.unlock();
}

// --- observers -----------------------------------------------------------------------------------

bool client_core::is_open() const noexcept {
    guard const lock{mutex_};
    return !is_closed_;
}

bool client_core::is_connected() const noexcept {
    guard const lock{mutex_};
    return channel_ != nullptr && channel_->is_open();
}

failure client_core::last_failure() const {
    guard const lock{mutex_};
    if (channel_ != nullptr && !channel_->is_open()) return channel_->last_failure();
    failure const of_connecting = connector_.last_failure();
    return of_connecting.code ? of_connecting : last_of_channel_;
}

request_client_statistics client_core::statistics() const {
    guard const lock{mutex_};
    request_client_statistics s = counted_;
    s.waiting = waiting_.size();
    return s;
}

}  // namespace rcverbs::detail

namespace rcverbs {

request_client_base::request_client_base(
    runs_on<boost::asio::any_io_executor> where,
    std::vector<endpoint> peers,
    request_client_options options
) {
    detail::throw_if_refused(detail::problem_of(options.channel));
    core_ = std::make_shared<detail::client_core>(
        std::move(where), std::move(peers), std::move(options)
    );
    core_->attach();
}

request_client_base& request_client_base::operator=(request_client_base&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

void request_client_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
bool request_client_base::is_open() const noexcept { return core_ != nullptr && core_->is_open(); }
bool request_client_base::is_connected() const noexcept {
    return core_ != nullptr && core_->is_connected();
}
protection_domain request_client_base::domain() const { return core_->domain(); }
failure request_client_base::last_failure() const { return core_->last_failure(); }
request_client_statistics request_client_base::statistics() const { return core_->statistics(); }

void request_client_base::start_request(
    core_ptr const& core,
    detail::question const& what,
    std::span<std::byte const> body,
    bool may_repeat,
    detail::reply_handler handler
) {
    core->ask(what, body, may_repeat, std::move(handler));
}
void request_client_base::start_request(
    core_ptr const& core,
    detail::question const& what,
    const_slices const& body,
    bool may_repeat,
    detail::reply_handler handler
) {
    core->ask(what, body, may_repeat, std::move(handler));
}
void request_client_base::start_notify(
    core_ptr const& core,
    detail::question const& what,
    std::span<std::byte const> body,
    bool may_repeat,
    detail::control_handler handler
) {
    core->notify(what, body, may_repeat, std::move(handler));
}
void request_client_base::start_notify(
    core_ptr const& core,
    detail::question const& what,
    const_slices const& body,
    bool may_repeat,
    detail::control_handler handler
) {
    core->notify(what, body, may_repeat, std::move(handler));
}
void request_client_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    core->finish(std::move(handler));
}

}  // namespace rcverbs
