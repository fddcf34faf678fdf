#include <rcverbs/experimental/request_server.hpp>

#include <boost/asio/error.hpp>

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
    : actor{where.get_executor()},
      where_{where},
      options_{[&] {
          if (!options.channel.sessions) options.channel.sessions.emplace();
          return std::move(options);
      }()},
      acceptor_{std::move(where), local, options_.acceptor} {}

void server_core::start() {
    enter([this] { accept_next(); });
}

template <class Function>
auto server_core::if_alive(Function function) {
    return [weak = weak_from_this(), f = std::move(function)](auto... results) {
        auto const self = std::static_pointer_cast<server_core>(weak.lock());
        if (self == nullptr) return;
        self->enter(
            [core = self.get(), f](auto&... all) { f(*core, std::move(all)...); },
            std::move(results)...
        );
    };
}

// --- clients -------------------------------------------------------------------------------------

void server_core::accept_next() {
    acceptor_.async_get_request(
        if_alive([](server_core& self, error_code ec, connection_request asked) {
            self.on_request(ec, std::move(asked));
        })
    );
}

void server_core::on_request(error_code ec, connection_request asked) {
    if (ec) return end_accepting(ec);
    accept_next();
    if (is_closed_) return;
    auto const c =
        std::make_shared<request_channel>(where_, std::move(asked), options_.channel, ec);
    if (ec) return;  // the client has given up meanwhile
    clients_.push_back({c});
    counted_.clients.set(clients_.size());
    c->async_accept(options_.greeting, if_alive([c](server_core& self, error_code failed) {
                        self.on_accepted(c, failed);
                    }));
}

void server_core::on_accepted(channel_ptr const& c, error_code ec) {
    if (ec) {
        counted_.failed.add(1);
        return leave_client(c);
    }
    counted_.accepted.add(1);
    for (client& each : clients_) each.is_accepted = each.is_accepted || each.channel == c;
    // Before its requests are given out.
    if (options_.on_accepted)
        call_outside([self = shared_from_this(), this, c] { options_.on_accepted(c); });
    take_next(c);
    if (is_finishing_) c->async_finish([c](error_code) {});
}

void server_core::leave_client(channel_ptr const& c) {
    auto const gone = [&](client const& each) { return each.channel == c; };
    if (std::erase_if(clients_, gone) == 0) return;
    counted_.clients.set(clients_.size());
    failure const why = c->last_failure();
    if (why.code) last_.set(why);
    if (options_.on_left)
        call_outside([self = shared_from_this(), this, why] { options_.on_left(why); });
    give();
}

void server_core::end_accepting(error_code why) {
    if (!end_) end_ = is_finishing_ ? error_code{asio::error::eof} : why;
    is_open_ = false;
    give();
}

// --- requests ------------------------------------------------------------------------------------

void server_core::take_next(channel_ptr const& c) {
    c->async_next(if_alive([c](server_core& self, error_code ec, request r) {
        self.on_next(c, ec, std::move(r));
    }));
}

void server_core::on_next(channel_ptr const& c, error_code ec, request r) {
    if (ec == asio::error::eof) {
        return c->async_finish(if_alive([c](server_core& self, error_code) { self.leave_client(c); }
        ));
    }
    if (ec) return leave_client(c);
    if (is_closed_) return;
    arrived_.push_back({++numbers_, c, std::move(r)});
    give();
}

void server_core::next(next_handler handler) {
    auto const own = executor();
    if (!own) return;
    enter(
        [this](protocol::waiter<error_code, request>& who) {
            nexts_.add(std::move(who));
            give();
        },
        protocol::waiter<error_code, request>{std::move(handler), own}
    );
}

void server_core::give() {
    while (!nexts_.empty() && !arrived_.empty()) {
        arrival first = std::move(arrived_.front());
        arrived_.pop_front();
        nexts_.hand_over_first(first.number, {}, std::move(first.what));
        // The client's next request comes behind those of the others.
        if (first.from != nullptr) take_next(first.from);
    }
    bool const has_ended = arrived_.empty() && end_ && (clients_.empty() || is_closed_);
    if (has_ended) nexts_.fail_all(end_);
}

// What a wait has not taken.
void server_core::put_back(std::uint64_t number, request r) {
    if (is_closed_) return;
    auto const behind =
        std::ranges::upper_bound(arrived_, number, std::ranges::less{}, &arrival::number);
    arrived_.insert(behind, arrival{number, nullptr, std::move(r)});
    give();
}

// --- the end -------------------------------------------------------------------------------------

void server_core::finish(control_handler handler) {
    auto const own = executor();
    if (!own) return;
    enter(
        [this](protocol::waiter<error_code>& who) { finish_all(who); },
        protocol::waiter<error_code>{std::move(handler), own}
    );
}

void server_core::finish_all(protocol::waiter<error_code>& who) {
    close_when_cancelled(who, std::static_pointer_cast<server_core>(shared_from_this()));
    is_finishing_ = true;
    is_open_ = false;
    acceptor_.close();
    // The others when they are accepted.
    for (client const& each : clients_) {
        if (each.is_accepted) each.channel->async_finish([c = each.channel](error_code) {});
    }
    auto const kept = std::make_shared<protocol::waiter<error_code>>(std::move(who));
    acceptor_.async_wait_idle(if_alive([kept](server_core& self, error_code ec) {
        if (self.is_closed_) ec = asio::error::operation_aborted;
        self.deliver(std::move(*kept), ec);
    }));
}

void server_core::close() noexcept {
    try {
        enter([this] { close_all(); });
    } catch (...) {
        acceptor_.close();
    }
}

void server_core::close_all() {
    if (std::exchange(is_closed_, true)) return;
    is_open_ = false;
    end_ = asio::error::operation_aborted;
    acceptor_.close();
    for (client const& each : clients_) each.channel->close();
    arrived_.clear();
    give();
}

// Handlers are destroyed uncalled, as Asio does with its own.
void server_core::on_abandoned() noexcept {
    is_closed_ = true;
    is_open_ = false;
    arrived_.clear();
    clients_.clear();
}

// --- observers -----------------------------------------------------------------------------------

failure server_core::last_failure() const {
    failure const of_acceptor = acceptor_.last_failure();
    return of_acceptor.code ? of_acceptor : last_.get();
}

request_server_statistics server_core::statistics() const {
    request_server_statistics s;
    s.acceptor = acceptor_.statistics();
    s.clients = counted_.clients.read();
    s.accepted = counted_.accepted.read();
    s.failed = counted_.failed.read();
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
    core_ = protocol::make<detail::server_core>(
        std::move(where), local, with_limits(std::move(options))
    );
    core_->start();
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
