#include <rcverbs/request_server.hpp>

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <functional>
#include <utility>

#include "messages/request_core.hpp"
#include "messages/server_core.hpp"

namespace rcverbs::detail {

namespace asio = boost::asio;

server_core::server_core(
    runs_on<asio::any_io_executor> where, endpoint const& local, request_server_options options
)
    : where_{where},
      options_{[&] {
          if (!options.channel.sessions) options.channel.sessions.emplace();
          return std::move(options);
      }()},
      acceptor_{std::move(where), local, options_.acceptor},
      executor_{std::make_shared<asio::any_io_executor const>(acceptor_.get_executor())} {}

void server_core::start() {
    membership_.join(*executor_, weak_from_this(), hosting::rank::above_connections);
    accept_next();
}

server_core::executor_ptr server_core::own_executor() const {
    guard const lock{mutex_};
    return executor_;
}

// --- accepting -----------------------------------------------------------------------------------

void server_core::accept_next() {
    acceptor_.async_get_request([weak = weak_from_this()](error_code ec, connection_request asked) {
        if (auto const self = weak.lock()) self->on_request(ec, std::move(asked));
    });
}

void server_core::on_request(error_code ec, connection_request asked) {
    if (ec) return end_accepting(ec);
    accept_next();
    auto const c =
        std::make_shared<request_channel>(where_, std::move(asked), options_.channel, ec);
    if (ec) return;  // the client has given up meanwhile
    {
        guard const lock{mutex_};
        if (is_closed_ || executor_ == nullptr) return;
        clients_.push_back({c});
    }
    c->async_accept(options_.greeting, [weak = weak_from_this(), c](error_code failed) {
        if (auto const self = weak.lock()) self->on_accepted(c, failed);
    });
}

void server_core::on_accepted(channel_ptr const& c, error_code ec) {
    if (ec) {
        {
            guard const lock{mutex_};
            ++failed_;
        }
        return leave(c, c->last_failure());
    }
    bool is_finishing = false;
    {
        guard const lock{mutex_};
        ++accepted_;
        for (client& each : clients_) each.is_accepted = each.is_accepted || each.channel == c;
        is_finishing = is_finishing_;
    }
    if (options_.on_accepted) options_.on_accepted(c);
    take_next(c);
    if (is_finishing) c->async_finish([c](error_code) {});
}

// The client has left, or was not accepted.
void server_core::leave(channel_ptr const& c, failure const& why) {
    {
        guard const lock{mutex_};
        auto const gone = [&](client const& each) { return each.channel == c; };
        if (std::erase_if(clients_, gone) == 0) return;
        if (why.code) last_ = why;
    }
    if (options_.on_left) options_.on_left(why);
    deliver();
}

// No further clients.
void server_core::end_accepting(error_code why) {
    {
        guard const lock{mutex_};
        if (!end_) end_ = is_finishing_ ? error_code{asio::error::eof} : why;
    }
    deliver();
}

// --- requests ------------------------------------------------------------------------------------

void server_core::take_next(channel_ptr const& c) {
    c->async_next([weak = weak_from_this(), c](error_code ec, request r) {
        if (auto const self = weak.lock()) self->on_next(c, ec, std::move(r));
    });
}

void server_core::on_next(channel_ptr const& c, error_code ec, request r) {
    if (ec == asio::error::eof) {
        c->async_finish([weak = weak_from_this(), c](error_code) {
            if (auto const self = weak.lock()) self->leave(c, c->last_failure());
        });
        return;
    }
    if (ec) return leave(c, c->last_failure());
    {
        guard const lock{mutex_};
        if (is_closed_ || executor_ == nullptr) return;
        arrived_.push_back({++numbers_, c, std::move(r)});
    }
    deliver();
}

void server_core::next(next_handler handler) {
    auto const own = own_executor();
    if (own == nullptr) return;
    waiting_handler<error_code, request> who{std::move(handler), *own};
    {
        guard const lock{mutex_};
        nexts_.add(std::move(who), weak_from_this(), &server_core::cancel_next);
    }
    asio::post(*own, [self = shared_from_this()] { self->deliver(); });
}

// Gives requests to those who wait; and the end, once there are no more clients.
void server_core::deliver() {
    for (;;) {
        decltype(nexts_)::removed first;
        arrival next;
        error_code end;
        {
            guard const lock{mutex_};
            bool const has_ended = arrived_.empty() && end_ && (clients_.empty() || is_closed_);
            if (nexts_.empty() || (arrived_.empty() && !has_ended)) return;
            first = nexts_.take_first();
            if (has_ended) {
                end = end_;
            } else {
                next = std::move(arrived_.front());
                arrived_.pop_front();
            }
        }
        auto& who = first.front().handler;
        if (!who) {
            // Its context is gone: the request is for the next one.
            if (!end) put_back(next.number, std::move(next.what), next.from);
            continue;
        }
        if (end) {
            who(end, request{});
            continue;
        }
        auto const back = [](void* core, std::uint64_t number, error_code&&, request&& unused
                          ) noexcept {
            static_cast<server_core*>(core)->take_back(number, std::move(unused));
        };
        who.hand_over({shared_from_this(), back, next.number}, error_code{}, std::move(next.what));
        // The client's next request comes behind those of the others.
        if (next.from != nullptr) take_next(next.from);
    }
}

// To its place in the order of arrival.
void server_core::put_back(std::uint64_t number, request r, channel_ptr from) {
    guard const lock{mutex_};
    if (is_closed_ || executor_ == nullptr) return;
    auto const behind =
        std::ranges::upper_bound(arrived_, number, std::ranges::less{}, &arrival::number);
    arrived_.insert(behind, arrival{number, std::move(from), std::move(r)});
}

// A wait that was cancelled, or whose handler was destroyed, has not taken the request.
void server_core::take_back(std::uint64_t number, request r) noexcept {
    try {
        put_back(number, std::move(r), nullptr);
        if (auto const own = own_executor())
            asio::post(*own, [self = shared_from_this()] { self->deliver(); });
    } catch (...) {
        // Without memory the request would be lost unnoticed.
        close();
    }
}

void server_core::cancel_next(std::uint64_t serial) {
    decltype(nexts_)::removed taken;
    executor_ptr own;
    {
        guard const lock{mutex_};
        taken = nexts_.take(serial);
        own = executor_;
    }
    if (taken.empty() || own == nullptr) return;
    asio::post(*own, [who = std::move(taken.front().handler)]() mutable {
        if (who) who(asio::error::operation_aborted, request{});
    });
}

// --- the end -------------------------------------------------------------------------------------

void server_core::finish(control_handler handler) {
    auto const own = own_executor();
    if (own == nullptr) return;
    auto const who = std::make_shared<waiting_handler<error_code>>(std::move(handler), *own);
    close_when_cancelled(*who, shared_from_this());
    std::vector<channel_ptr> finishing;
    {
        guard const lock{mutex_};
        is_finishing_ = true;
        for (client const& each : clients_) {
            if (each.is_accepted) finishing.push_back(each.channel);
        }
    }
    acceptor_.close();
    // The others when they are accepted.
    for (channel_ptr const& c : finishing) c->async_finish([c](error_code) {});
    acceptor_.async_wait_idle([self = shared_from_this(), who](error_code ec) {
        {
            guard const lock{self->mutex_};
            if (self->is_closed_) ec = asio::error::operation_aborted;
        }
        if (*who) (*who)(ec);
    });
}

void server_core::close() noexcept {
    clients all;
    std::deque<arrival> dropped;
    executor_ptr own;
    {
        guard const lock{mutex_};
        if (std::exchange(is_closed_, true)) return;
        end_ = asio::error::operation_aborted;
        all = clients_;
        dropped.swap(arrived_);
        own = executor_;
    }
    acceptor_.close();
    for (client const& each : all) each.channel->close();
    if (own == nullptr) return;
    try {
        asio::post(*own, [self = shared_from_this()] { self->deliver(); });
    } catch (...) {
        // No memory to tell: those who wait are told when the channels end.
    }
}

// Handlers are destroyed uncalled, as Asio does with its own.
void server_core::context_is_going(asio::execution_context const&) noexcept {
    clients all;
    std::deque<arrival> dropped;
    decltype(nexts_)::removed waiting;
    executor_ptr gone;
    guard lock{mutex_};
    is_closed_ = true;
    all.swap(clients_);
    dropped.swap(arrived_);
    waiting = nexts_.take_all();
    gone.swap(executor_);
    lock.unlock();
}

// --- observers -----------------------------------------------------------------------------------

bool server_core::is_open() const noexcept {
    guard const lock{mutex_};
    return !is_closed_ && !is_finishing_ && !end_;
}

failure server_core::last_failure() const {
    failure of_acceptor = acceptor_.last_failure();
    if (of_acceptor.code) return of_acceptor;
    guard const lock{mutex_};
    return last_;
}

request_server_statistics server_core::statistics() const {
    request_server_statistics s;
    s.acceptor = acceptor_.statistics();
    guard const lock{mutex_};
    s.clients = clients_.size();
    s.accepted = accepted_;
    s.failed = failed_;
    return s;
}

}  // namespace rcverbs::detail

namespace rcverbs {

namespace {

// What the channels register, if the program does not say it.
request_server_options with_limits(request_server_options options) {
    message_channel_options const& m = options.channel.messages;
    if (options.acceptor.locked_bytes_per_connection == 0)
        options.acceptor.locked_bytes_per_connection =
            std::size_t{m.slot_bytes} * (std::size_t{m.receives} + m.sends + 4);
    return options;
}

}  // namespace

request_server_base::request_server_base(
    runs_on<boost::asio::any_io_executor> where,
    endpoint const& local,
    request_server_options options
) {
    detail::throw_if_refused(detail::problem_of(options.channel));
    if (options.greeting.size() > 32)
        throw boost::system::system_error{errc::private_data_too_large};
    core_ = std::make_shared<detail::server_core>(
        std::move(where), local, with_limits(std::move(options))
    );
    core_->start();
}

request_server_base& request_server_base::operator=(request_server_base&& other) noexcept {
    if (this == &other) return *this;
    close();
    core_ = std::move(other.core_);
    return *this;
}

void request_server_base::close() noexcept {
    if (core_ != nullptr) core_->close();
}
bool request_server_base::is_open() const noexcept { return core_ != nullptr && core_->is_open(); }
endpoint request_server_base::local_endpoint() const { return core_->local(); }
failure request_server_base::last_failure() const { return core_->last_failure(); }
request_server_statistics request_server_base::statistics() const { return core_->statistics(); }
void request_server_base::start_next(core_ptr const& core, detail::next_handler handler) {
    core->next(std::move(handler));
}
void request_server_base::start_finish(core_ptr const& core, detail::control_handler handler) {
    core->finish(std::move(handler));
}

}  // namespace rcverbs
