#include "rdma-server/server.hpp"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <csignal>
#include <limits>
#include <utility>

#include "common/awaiting.hpp"
#include "common/printable.hpp"

namespace demo {

namespace asio = boost::asio;
using rcverbs::error_code;

namespace {

constexpr std::chrono::milliseconds counter_tick{100};

// For an option of the command line, where 0 is no limit.
std::size_t or_no_limit(std::size_t count) noexcept {
    return count > 0 ? count : std::numeric_limits<std::size_t>::max();
}

rcverbs::acceptor listen(
    asio::io_context& io,
    server_arguments const& a,
    std::function<void(rcverbs::endpoint const&, rcverbs::refusal)> on_refused
) {
    rcverbs::acceptor_options options;
    options.connection = a.connection;
    options.descriptors_per_connection = 1 + rcverbs::descriptors_per_own_thread;
    if (a.clients_max) options.connections_max = or_no_limit(*a.clients_max);
    // The two regions and the session's messages.
    options.locked_bytes_per_connection =
        2 * a.exchange.size_bytes + rcverbs::session::locked_bytes;
    options.connections_per_address_max = or_no_limit(a.clients_per_address_max);
    options.busy_private_data = rcverbs::session::busy_private_data();
    options.on_refused = std::move(on_refused);
    return listen_at(a.bind, a.port, [&](rcverbs::endpoint const& here) {
        return rcverbs::acceptor{io, here, options};
    });
}

}  // namespace

server::server(asio::io_context& io, server_arguments a)
    : io_{io},
      arguments_{std::move(a)},
      signals_{io.get_executor()},
      grace_{io},
      counter_tick_{io.get_executor()} {}

void server::start() {
    signals_.start({SIGINT, SIGTERM}, [this](int) { on_signal(); });
    acceptor_ =
        listen(io_, arguments_, [this](rcverbs::endpoint const& peer, rcverbs::refusal why) {
            on_refused(peer, why);
        });
    print("listening on port " + std::to_string(acceptor_.local_endpoint().port()) + ".");
    // Polls the lock, so that a client that wrote an invalid value into it cannot lock out the others.
    if (arguments_.exchange.mode == transfer_mode::atomic)
        counter_tick_.start(counter_tick, [this] { counter_.tend(); });
    asio::co_spawn(io_, accept_clients(), asio::detached);
}

void server::on_refused(rcverbs::endpoint const& peer, rcverbs::refusal why) {
    std::string text;
    switch (why) {
    case rcverbs::refusal::backlog: text = "too many clients wait to be accepted"; break;
    case rcverbs::refusal::connections:
        text = std::to_string(acceptor_.connections_max()) + " clients are the limit";
        text +=
            arguments_.clients_max
                ? " (--max-clients)"
                : " that open files and locked memory allow (ulimit -n, ulimit -l, --max-clients)";
        break;
    case rcverbs::refusal::connections_per_address:
        text = "too many clients of its address (--max-per-address)";
        break;
    case rcverbs::refusal::violation: text = "a client of its address broke the protocol"; break;
    }
    report_refusal(peer, text);
}

// Prints only the first refusal, so that a flood of clients does not flood the output.
void server::report_refusal(rcverbs::endpoint const& peer, std::string const& why) {
    if (std::exchange(has_told_of_refusals_, true)) return;
    print_error(
        "busy: refused " + peer.to_string() + ", " + why + "; further refusals are not reported"
    );
}

asio::awaitable<void> server::accept_clients() {
    for (;;) {
        auto [ec, request] = co_await acceptor_.async_get_request(awaiting);
        if (ec == asio::error::operation_aborted) co_return;
        if (ec) {
            print_error(
                rcverbs::failure{rcverbs::step::accept, ec, acceptor_.local_endpoint(), 0}.message()
            );
            // The listener's device was removed, so no more clients can arrive.
            is_ending_ = true;
            result_ = exit_code::peer_gone;
            end_if_idle();
            co_return;
        }
        // A client that ends without being served makes room for another.
        if (arguments_.count != 0 && served_ + running_.size() >= arguments_.count) {
            report_refusal(
                request.remote_endpoint(),
                std::to_string(arguments_.count) + " were to be served (--count)"
            );
            error_code ignored;
            request.reject(rcverbs::session::busy_private_data(), ignored);
            continue;
        }
        print("received connection request.");
        reload(arguments_.authentication);
        start_serving(std::move(request));
    }
}

// The exchange runs on a polling thread of the client's connection; its outcome is posted back to
// io_.
void server::start_serving(rcverbs::connection_request request) {
    rcverbs::endpoint const peer = request.remote_endpoint();
    std::shared_ptr<rcverbs::session> client;
    try {
        client = std::make_shared<rcverbs::session>(
            rcverbs::connection{
                rcverbs::poller::start({.polling = arguments_.polling}),
                std::move(request),
                arguments_.connection},
            arguments_.session()
        );
    } catch (boost::system::system_error const& e) {
        return print_error(rcverbs::failure{rcverbs::step::accept, e.code(), peer, 0}.message());
    } catch (std::system_error const& e) {
        // The polling thread could not be started.
        error_code const ec{e.code().value(), boost::system::system_category()};
        return print_error(rcverbs::failure{rcverbs::step::accept, ec, peer, 0}.message());
    }
    running_.push_back(client);
    asio::co_spawn(
        client->get_executor(),
        serve(client, peer.to_string()),
        asio::bind_executor(
            io_, [this, client](std::exception_ptr const&, outcome o) { on_served(client, o); }
        )
    );
}

asio::awaitable<server::outcome> server::serve(
    std::shared_ptr<rcverbs::session> client, std::string peer
) {
    auto [code, counts, exchanges] = outcome{};
    try {
        auto [ec] = co_await client->async_accept(awaiting);
        if (ec) {
            if (client->last_failure().reason != rcverbs::close_reason::closed_locally)
                print_error(client->last_failure().message());
            code = exit_code_for(ec, client->last_failure().where);
            counts = client->last_failure().reason != rcverbs::close_reason::refused;
        } else {
            counts = exchanges = true;
            if (std::string const who = client->peer_identity(); !who.empty())
                print("client is " + printable(who) + ".");
            code = arguments_.exchange.mode == transfer_mode::atomic
                       ? co_await counter_.serve(*client, arguments_.exchange)
                       : co_await exchange(*client, arguments_.exchange);
        }
    } catch (std::exception const& e) {
        print_error(peer + ": " + e.what());
    }
    co_return outcome{code, counts, exchanges};
}

void server::on_served(std::shared_ptr<rcverbs::session> const& client, outcome const& o) {
    auto const [code, counts, exchanges] = o;
    running_.remove(client);
    client->close();
    if (counts) {
        ++served_;
        // An exchange that was cut off counts as incomplete, even if both sides had sent MSG_DONE
        // and only the disconnect was missing.
        if (exchanges && is_told_to_end_ && (has_cut_off_ || code != exit_code::done))
            ++incomplete_;
        if (result_ == exit_code::done && !is_ending_) result_ = code;
    }
    if (arguments_.count != 0 && served_ >= arguments_.count) is_ending_ = true;
    if (is_ending_) end_if_idle();
}

// SIGINT and SIGTERM act alike: exchanges under way may finish within --timeout; a second signal
// closes them at once. If any exchange does not finish, for any reason, the exit code is
// deadline_passed.
void server::on_signal() {
    if (std::exchange(is_told_to_end_, true)) return cut_off();
    is_ending_ = true;
    acceptor_.close();
    // Failures of earlier clients do not decide the exit code after a signal.
    result_ = exit_code::done;
    grace_.expires_after(arguments_.timeout);
    grace_.async_wait([this](error_code const& ec) {
        if (!ec) cut_off();
    });
    end_if_idle();
}

void server::cut_off() {
    has_cut_off_ = true;
    for (auto const& client : running_) client->close();
}

void server::end_if_idle() {
    acceptor_.close();
    if (!running_.empty() || std::exchange(has_ended_, true)) return;
    exit_code const verdict = counter_.conclude();
    if (incomplete_ > 0) {
        print_error(
            "ended before " + std::to_string(incomplete_) +
            (incomplete_ == 1 ? " exchange was" : " exchanges were") + " complete"
        );
        result_ = exit_code::deadline_passed;
    }
    if (result_ == exit_code::done) result_ = verdict;
    signals_.stop();
    grace_.cancel();
    counter_tick_.stop();
}

}  // namespace demo
