#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <boost/asio/error.hpp>

#include <algorithm>
#include <exception>
#include <random>
#include <utility>

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
    : actor{where.get_executor()},
      answer_timeout_{options.channel.answer_timeout},
      on_connected_{std::move(options.on_connected)},
      connector_{std::move(where), std::move(peers), connector_options_of(options)} {}

// Null where a program has closed and dropped the client.
template <class Function>
auto client_core::if_alive(Function function) {
    return [weak = weak_from_this(), f = std::move(function)](auto const&... all) {
        auto const self = std::static_pointer_cast<client_core>(weak.lock());
        if (self != nullptr) self->enter([core = self.get(), f, all...] { f(*core, all...); });
    };
}

// --- requests ------------------------------------------------------------------------------------

void client_core::ask(question const& what, reply_handler handler) {
    auto const own = executor();
    if (!own) return;
    auto const c = std::make_shared<call>(own);
    c->on_reply = {std::move(handler), own};
    prepare(c, what);
}

void client_core::notify(question const& what, control_handler handler) {
    auto const own = executor();
    if (!own) return;
    auto const c = std::make_shared<call>(own);
    c->is_notice = true;
    c->on_sent = {std::move(handler), own};
    prepare(c, what);
}

void client_core::prepare(call_ptr const& c, question const& what) {
    auto const timeout = what.timeout.value_or(answer_timeout_);
    c->what = what;
    c->connection_number = std::exchange(c->what.connection_number, std::nullopt);
    // Assigned once, here: the caller emits on a thread of its own.
    auto const connect_to = [&](auto& who) {
        if (!who.can_be_cancelled()) return;
        auto of_call = if_alive([of = std::weak_ptr{c}](client_core& self) {
            if (auto const alive = of.lock()) self.cancel(alive);
        });
        connect_cancellation(who, [f = std::move(of_call)](asio::cancellation_type) { f(); });
    };
    if (c->is_notice) connect_to(c->on_sent);
    else connect_to(c->on_reply);
    error_code refused;
    if (what.head_bytes > question::head_bytes_max) refused = errc::message_too_large;
    if (timeout.count() <= 0) refused = errc::invalid_option;
    if (!refused) c->deadline = clock::now() + bounded(timeout);
    enter([this, c, refused] {
        if (refused) end(c, refused);
        else start(c);
    });
}

// Sends it if there is a channel; else it waits for one.
void client_core::start(call_ptr const& c) {
    if (is_closed_) {
        return end(
            c,
            is_finishing_ ? error_code{errc::operation_in_progress}
                          : error_code{asio::error::operation_aborted}
        );
    }
    if (c->is_cancelled) return end(c, asio::error::operation_aborted);
    if (channel_ != nullptr && !channel_->is_open()) drop(channel_);
    numbered_channel const over{channel_, counted_.connected.read()};
    auto const wanted = c->connection_number;
    bool const is_there = channel_ != nullptr && wanted == over.number;
    if (wanted && !is_there) return end(c, channel_errc::other_connection);
    if (channel_ != nullptr) return send(c, over);
    wait(c, c->deadline);
    if (!std::exchange(is_connecting_, true)) connect();
    else connector_.shorten_delay();
}

void client_core::wait(call_ptr const& c, clock::time_point until) {
    waiting_.push_back(c);
    c->place = std::prev(waiting_.end());
    counted_.waiting.set(waiting_.size());
    c->timer.expires_at(until);
    auto expire = if_alive([of = std::weak_ptr{c}](client_core& self) {
        if (auto const alive = of.lock()) self.on_timer(alive);
    });
    c->timer.async_wait([f = std::move(expire)](error_code const& ec) {
        if (!ec) f();
    });
}

// REQUIRES: it waits.
void client_core::stop_waiting(call& c) {
    waiting_.erase(*std::exchange(c.place, std::nullopt));
    counted_.waiting.set(waiting_.size());
    if (std::exchange(c.is_paused, false)) --paused_;
}

void client_core::send(call_ptr const& c, numbered_channel const& over) {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(c->deadline - clock::now());
    if (left.count() <= 0)
        return end(c, c->last ? c->last : error_code{channel_errc::request_timed_out});
    c->what.timeout = left;
    // The body may have gone with the handler's context.
    if (!c->is_wanted()) return;
    auto const self = std::static_pointer_cast<client_core>(shared_from_this());
    auto const core = request_core_of(*over.channel);
    auto const mine = std::allocate_shared<attempt>(recycling_allocator<attempt>{});
    mine->channel = core;
    c->on = mine;
    if (c->is_notice) {
        auto handler = [self, c, over, mine](error_code ec) { self->on_result(c, over, ec, {}); };
        return core->notify(c->what, control_handler{std::move(handler)}, &mine->handle);
    }
    auto handler = [self, c, over, mine](error_code ec, reply r) {
        self->on_result(c, over, ec, std::move(r));
    };
    core->ask(c->what, reply_handler{std::move(handler)}, &mine->handle);
}

void client_core::attempt::cancel(std::shared_ptr<attempt> const& which) {
    if (which == nullptr) return;
    if (auto const core = which->channel.lock())
        core->cancel_asked(std::shared_ptr<std::uint64_t const>{which, &which->handle});
}

void client_core::on_result(call_ptr const& c, numbered_channel const& on, error_code ec, reply r) {
    r.connection_number_ = on.number;
    if (!ec) return complete(*c, ec, std::move(r));
    enter([this, c, over = on.channel, ec] { on_failed(c, over, ec); });
}

void client_core::on_failed(call_ptr const& c, channel_ptr const& over, error_code ec) {
    bool const is_over = !over->is_open() || over->last_failure().reason != close_reason::open;
    if (is_over) drop(over);
    // It was not sent, because the channel had just been retired, or had ended.
    bool const was_sent = ec != errc::operation_in_progress && ec != errc::not_connected;
    if (!was_sent && channel_ != over && !is_closed_) return start(c);
    // A server that finishes, and does not answer what it has.
    bool const is_late = ec == channel_errc::peer_not_answered;
    auto const next = clock::now() + c->pause;
    bool const is_repeated = is_over && c->what.may_repeat && !c->connection_number &&
                             (is_transient(ec) || is_late) && !is_closed_ && !c->is_cancelled &&
                             c->is_wanted() && next < c->deadline;
    if (!is_repeated) return end(c, ec);
    counted_.repeated.add(1);
    c->last = ec;
    c->pause = std::min(2 * c->pause, pause_max);
    c->is_paused = true;
    ++paused_;
    wait(c, next);
}

// The time to repeat it has come, or its deadline.
void client_core::on_timer(call_ptr const& c) {
    if (!c->place) return;
    bool const is_due = c->is_paused;
    stop_waiting(*c);
    if (is_due) return start(c);
    // Nobody needs the channel any more.
    if (is_connecting_ && waiting_.size() == paused_) connector_.cancel();
    end(c, c->last ? c->last : error_code{channel_errc::request_timed_out});
}

void client_core::cancel(call_ptr const& c) {
    c->is_cancelled = true;
    if (!c->place) return attempt::cancel(c->on);
    stop_waiting(*c);
    if (is_connecting_ && waiting_.size() == paused_) connector_.cancel();
    end(c, asio::error::operation_aborted);
}

void client_core::complete(call& c, error_code ec, reply r) {
    if (c.on_reply) c.on_reply(ec, std::move(r));
    else if (c.on_sent) c.on_sent(ec);
}

void client_core::end(call_ptr const& c, error_code why) {
    c->timer.cancel();
    call_outside([c, why] { complete(*c, why, {}); });
}

client_core::call_list client_core::take_waiting() {
    for (call_ptr const& c : waiting_) {
        c->place.reset();
        c->is_paused = false;
    }
    paused_ = 0;
    counted_.waiting.set(0);
    return std::exchange(waiting_, {});
}

// --- the channel ---------------------------------------------------------------------------------

void client_core::connect() {
    auto const self = std::static_pointer_cast<client_core>(shared_from_this());
    connector_.async_connect([self](error_code ec, request_channel made) {
        auto const over = ec ? nullptr : std::make_shared<request_channel>(std::move(made));
        if (self->is_closed_) return;
        if (over != nullptr && self->on_connected_) self->on_connected_(over);
        self->enter([core = self.get(), ec, over] { core->on_connected(ec, over); });
    });
}

void client_core::on_connected(error_code ec, channel_ptr const& over) {
    is_connecting_ = false;
    if (is_closed_) return;
    call_list ready;
    for (auto i = waiting_.begin(); i != waiting_.end();) {
        auto const next = std::next(i);
        if (!(*i)->is_paused) ready.splice(ready.end(), waiting_, i);
        i = next;
    }
    // Cancelled for the requests that waited before.
    if (ec == asio::error::operation_aborted && !ready.empty()) {
        waiting_.splice(waiting_.begin(), ready);
        is_connecting_ = true;
        return connect();
    }
    counted_.waiting.set(waiting_.size());
    if (over != nullptr) {
        counted_.connected.add(1);
        use(over);
        request_core_of(*over)->when_peer_ends(
            if_alive([which = std::weak_ptr{over}](client_core& self) {
                if (auto const alive = which.lock()) self.retire(alive);
            })
        );
    }
    for (call_ptr const& c : ready) {
        c->place.reset();
        c->timer.cancel();
        if (ec) end(c, ec);
        else send(c, {over, counted_.connected.read()});
    }
}

void client_core::use(channel_ptr channel) {
    view now = view_.get();
    now.channel = channel_ = std::move(channel);
    view_.set(std::move(now));
}

// The channel has ended.
void client_core::drop(channel_ptr const& which) {
    if (channel_ != which || which == nullptr) return;
    // It may be the same object.
    channel_ptr const ended = std::exchange(channel_, nullptr);
    view_.set({nullptr, ended->last_failure()});
}

// The server finishes: it answers what it has, and takes nothing new for long. Later requests go to
// whoever listens next. Each request has its own deadline, so finishing begins behind the last answer.
void client_core::retire(channel_ptr const& over) {
    if (is_closed_ || channel_ != over) return;
    retiring_.push_back(over);
    use(nullptr);
    request_core_of(*over)->when_answered(if_alive([which =
                                                        std::weak_ptr{over}](client_core& self) {
        if (auto const alive = which.lock()) self.finish(alive);
    }));
}

// --- the end -------------------------------------------------------------------------------------

void client_core::finish(channel_ptr const& over) {
    auto const self = std::static_pointer_cast<client_core>(shared_from_this());
    over->async_finish([self, over](error_code ec) {
        self->enter([core = self.get(), over, ec] { core->on_finished(over, ec); });
    });
}

void client_core::on_finished(channel_ptr const& over, error_code ec) {
    if (channel_ == over) channel_ = nullptr;
    std::erase(retiring_, over);
    view_.set({channel_, over->last_failure()});
    if (!finish_error_) finish_error_ = is_finishing_ ? ec : error_code{};
    if (finisher_ && channel_ == nullptr && retiring_.empty())
        deliver(std::move(finisher_), finish_error_);
}

void client_core::finish(control_handler handler) {
    auto const own = executor();
    if (!own) return;
    enter(
        [this](protocol::waiter<error_code>& who) { begin_to_finish(who); },
        protocol::waiter<error_code>{std::move(handler), own}
    );
}

void client_core::begin_to_finish(protocol::waiter<error_code>& who) {
    if (is_finishing_) return deliver(std::move(who), errc::operation_in_progress);
    is_finishing_ = is_closed_ = true;
    connector_.cancel();
    for (call_ptr const& c : take_waiting()) end(c, asio::error::operation_aborted);
    std::vector<channel_ptr> over = retiring_;
    if (channel_ != nullptr) over.push_back(channel_);
    if (over.empty()) return deliver(std::move(who), {});
    close_when_cancelled(who, std::static_pointer_cast<client_core>(shared_from_this()));
    finisher_ = std::move(who);
    for (channel_ptr const& each : over) finish(each);
}

void client_core::close() noexcept {
    is_closed_ = true;
    try {
        enter([this] { end_all(); });
    } catch (...) {
        // Without memory those that wait end at their deadlines.
    }
}

void client_core::end_all() noexcept {
    for (channel_ptr const& c : retiring_) c->close();
    if (channel_ != nullptr) channel_->close();
    drop(channel_);
    connector_.cancel();
    for (call_ptr const& c : take_waiting()) end(c, asio::error::operation_aborted);
}

// Handlers are destroyed uncalled, as Asio does with its own.
void client_core::on_abandoned() noexcept {
    is_closed_ = true;
    retiring_.clear();
    finisher_ = {};
    channel_ = nullptr;
    view_.set({});
    static_cast<void>(take_waiting());
}

// --- observers -----------------------------------------------------------------------------------

bool client_core::is_connected() const noexcept {
    channel_ptr const now = view_.get().channel;
    return now != nullptr && now->is_open();
}

failure client_core::last_failure() const {
    view const now = view_.get();
    if (now.channel != nullptr && !now.channel->is_open()) return now.channel->last_failure();
    failure const of_connecting = connector_.last_failure();
    return of_connecting.code ? of_connecting : now.last;
}

request_client_statistics client_core::statistics() const {
    request_client_statistics s;
    s.connected = counted_.connected.read();
    s.repeated = counted_.repeated.read();
    s.waiting = counted_.waiting.read();
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
    core_ =
        protocol::make<detail::client_core>(std::move(where), std::move(peers), std::move(options));
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
    core_ptr const& core, detail::question const& what, detail::reply_handler handler
) {
    core->ask(what, std::move(handler));
}
void request_client_base::start_notify(
    core_ptr const& core, detail::question const& what, detail::control_handler handler
) {
    core->notify(what, std::move(handler));
}
void request_client_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    core->finish(std::move(handler));
}

}  // namespace rcverbs
