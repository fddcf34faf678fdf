#include "rdma-server/server.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <csignal>

namespace demo {

namespace asio = boost::asio;
using rcverbs::error_code;

namespace {

constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

rcverbs::acceptor listen(asio::io_context& io, server_arguments const& a) {
    rcverbs::acceptor_options options;
    options.connection = a.connection;
    options.connections_max = a.clients_max;
    options.connections_per_address_max = a.clients_per_address_max;
    options.busy_answer = rcverbs::session::busy_answer();
    return listen_at(a.bind, a.port, [&](rcverbs::endpoint const& here) { return rcverbs::acceptor{io, here, options}; });
}

}  // namespace

server::server(asio::io_context& io, server_arguments a)
    : io_{io}, arguments_{std::move(a)}, signals_{io, SIGINT, SIGTERM}, grace_{io}, work_{io.get_executor()} {}

void server::start() {
    acceptor_ = listen(io_, arguments_);
    say("listening on port " + std::to_string(acceptor_.local().port()) + ".");
    wait_for_signal();
    asio::co_spawn(io_, accept_clients(), asio::detached);
}

asio::awaitable<void> server::accept_clients() {
    for (;;) {
        auto [ec, request] = co_await acceptor_.async_get_request(awaiting);
        if (ec == asio::error::operation_aborted) co_return;
        if (ec) {
            complain(request.is_valid() ? request.last_failure().message() : ec.message());
            if (acceptor_.is_open()) continue;
            // Its device has gone: there will be no more clients.
            is_ending_ = true;
            result_ = exit_code::peer_gone;
            end_if_idle();
            co_return;
        }
        say("received connection request.");
        std::string const peer = request.peer().to_string();
        auto client = std::make_shared<rcverbs::session>(std::move(request), arguments_.session());
        running_.push_back(client);
        asio::co_spawn(client->get_executor(), serve(client, peer), asio::detached);
    }
}

asio::awaitable<exit_code> server::serve(std::shared_ptr<rcverbs::session> client, std::string peer) {
    exit_code code = exit_code::other;
    bool counts = false;
    try {
        auto [ec] = co_await client->async_accept(awaiting);
        if (ec) {
            complain(client->last_failure().message());
            code = exit_code_for(ec, client->last_failure().where);
            // One that was refused was no client of ours.
            counts = client->reason() != rcverbs::close_reason::refused;
        } else {
            counts = true;
            code = arguments_.exchange.mode == transfer_mode::atomic
                       ? co_await counter_.serve(*client, arguments_.exchange)
                       : co_await exchange(*client, arguments_.exchange);
        }
    } catch (std::exception const& e) {
        complain(peer + ": " + e.what());
    }
    asio::post(io_, [this, client, code, counts] { on_served(client, code, counts); });
    co_return code;
}

void server::on_served(std::shared_ptr<rcverbs::session> const& client, exit_code code, bool counts) {
    running_.remove(client);
    client->close();
    if (counts) {
        ++served_;
        if (result_ == exit_code::done && !is_ending_) result_ = code;
    }
    if (arguments_.count != 0 && served_ >= arguments_.count) is_ending_ = true;
    if (is_ending_) end_if_idle();
}

void server::wait_for_signal() {
    signals_.async_wait([this](error_code const& ec, int) {
        if (!ec) on_signal();
    });
}

void server::on_signal() {
    if (is_ending_) {
        // Told twice: at once, then.
        for (auto const& client : running_) client->close();
        return;
    }
    wait_for_signal();
    is_ending_ = true;
    acceptor_.close();
    // Failures of clients that came and went were theirs; being told to end is no failure.
    result_ = exit_code::done;
    grace_.expires_after(arguments_.timeout);
    grace_.async_wait([this](error_code const& ec) {
        if (ec) return;
        complain(std::to_string(running_.size()) + " exchanges did not finish in time");
        result_ = exit_code::deadline_passed;
        for (auto const& client : running_) client->close();
    });
    end_if_idle();
}

void server::end_if_idle() {
    acceptor_.close();
    if (!running_.empty() || !work_.owns_work()) return;
    exit_code const verdict = counter_.conclude();
    if (result_ == exit_code::done) result_ = verdict;
    signals_.cancel();
    grace_.cancel();
    work_.reset();
}

}  // namespace demo
