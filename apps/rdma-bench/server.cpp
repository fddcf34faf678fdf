#include "rdma-bench/server.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "common/exchange.hpp"

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using demo::complain;
using nlohmann::json;

namespace {

constexpr auto awaiting = asio::as_tuple(use_awaitable);

rcverbs::acceptor_options control_acceptor() {
    rcverbs::acceptor_options o;
    o.connection = control_options();
    return o;
}

rcverbs::acceptor_options lane_acceptor(team const& lanes, plan const& p, std::size_t thread) {
    rcverbs::acceptor_options o;
    o.connection = lanes.options(thread);
    o.backlog = 4096;
    o.connections_max = p.connections;
    return o;
}

}  // namespace

server::server(asio::io_context& io, rcverbs::endpoint const& where, limits l)
    : io_{io}, limits_{std::move(l)}, acceptor_{io, where, control_acceptor()} {}

void server::stop() {
    is_stopped_ = true;
    acceptor_.close();
    if (client_ != nullptr) client_->close();
}

asio::awaitable<void> server::run(std::uint64_t count) {
    for (std::uint64_t served = 0; !is_stopped_ && (count == 0 || served < count); ++served) {
        auto [ec, request] = co_await acceptor_.async_get_request(awaiting);
        if (ec == asio::error::operation_aborted) break;
        if (ec) {
            complain(ec.message());
            continue;
        }
        client_ = std::make_shared<control>(io_, std::move(request), limits_.patience);
        std::string const peer = client_->connection().peer().to_string();
        try {
            co_await serve(client_);
        } catch (std::exception const& e) {
            if (!is_stopped_) complain(peer + ": " + e.what());
        }
        client_->close();
        client_.reset();
    }
    acceptor_.close();
}

asio::awaitable<void> server::serve(std::shared_ptr<control> client) {
    co_await client->accept();
    json const hello = co_await client->receive();
    std::string refusal;
    plan wanted;
    try {
        if (hello.at("version") != protocol_version) throw std::invalid_argument{"this server speaks another version"};
        wanted = hello.at("plan").get<plan>();
        refusal = wanted.problem();
    } catch (std::exception const& e) {
        refusal = e.what();
    }
    if (!refusal.empty()) {
        // Made outside of the expression that awaits: g++ 12 does not compile a braced list there.
        json const answer{{"refused", refusal}};
        co_await client->send(answer);
        co_await client->connection().async_wait_disconnected(awaiting);
        co_return;
    }
    co_await carry_out(wanted, *client);
}

asio::awaitable<void> server::accept_lanes(rcverbs::acceptor& at, team& lanes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        auto [ec, request] = co_await at.async_get_request(awaiting);
        if (ec) co_return;
        lane& next = lanes.add(std::move(request));
        // Not one after another: a peer that is slow to answer holds up nobody else.
        asio::co_spawn(io_, next.accept(), asio::detached);
    }
}

asio::awaitable<void> server::carry_out(plan const& p, control& client) {
    team lanes{io_, p, side::server, limits_};
    std::exception_ptr failed;
    std::vector<rcverbs::acceptor> acceptors;
    try {
        rcverbs::endpoint const here{client.connection().local().address(), 0};
        json ports = json::array();
        // Reserved: what is accepted refers to them.
        acceptors.reserve(lanes.threads());
        for (std::size_t i = 0; i < lanes.threads(); ++i) {
            acceptors.emplace_back(io_, here, lane_acceptor(lanes, p, i));
            ports.push_back(acceptors.back().local().port());
            std::size_t const count = p.connections / lanes.threads() + (i < p.connections % lanes.threads() ? 1 : 0);
            asio::co_spawn(io_, accept_lanes(acceptors.back(), lanes, count), asio::detached);
        }
        json const ready{{"ports", ports}};
        co_await client.send(ready);
        for (;;) {
            json const order = co_await client.receive(true);
            std::string const what = order.at("order");
            if (what == "bye") break;
            json answer{{"done", what}};
            if (what == "pin") {
                co_await lanes.pin();
            } else if (what == "begin") {
                round const next{order.at("size_bytes").get<std::uint64_t>(), order.at("seed").get<std::uint64_t>()};
                co_await lanes.begin(next);
            } else if (what == "measure") {
                lanes.mark();
            } else if (what == "run") {
                // Its own direction goes on while the client's does; what it comes to is told at the end.
                co_await client.send(answer);
                co_await lanes.run(
                    p.iterations > 0 ? p.iterations : until_stopped,
                    p.iterations > 0 ? std::chrono::milliseconds{0} : p.duration
                );
                continue;
            } else if (what == "end") {
                // Of connections that rest, what they took until now.
                if (p.what == operation::connect) answer["result"] = lanes.measured();
                auto const counts = order.at("operations").get<std::vector<std::uint64_t>>();
                std::uint64_t sum = 0;
                for (std::uint64_t const c : counts) sum += c;
                if (is_received(p.what) && !p.is_bidirectional) co_await lanes.await_operations(sum);
                co_await lanes.stop();
                if (p.verifies) co_await lanes.check_memory(counts);
                if (p.what != operation::connect) answer["result"] = lanes.measured();
                answer["operations"] = lanes.operations_of_each();
            } else {
                throw std::invalid_argument{"the client sent an unknown order"};
            }
            co_await client.send(answer);
        }
    } catch (...) {
        failed = std::current_exception();
    }
    acceptors.clear();
    co_await lanes.close();
    if (failed) std::rethrow_exception(failed);
}

}  // namespace rdma_bench
