#include "rdma-bench/server.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <random>
#include <utility>

#include "common/arguments.hpp"
#include "common/exchange.hpp"
#include "common/printable.hpp"
#include "rdma-bench/layout.hpp"
#include "rdma-bench/machine.hpp"

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using demo::print_error;
using nlohmann::json;

namespace {

constexpr auto awaiting = asio::as_tuple(use_awaitable);
constexpr std::size_t control_connections_max = 32;
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

rcverbs::acceptor_options control_acceptor() {
    rcverbs::acceptor_options o;
    o.connection = control_options();
    // One client is served. The other connections, each with its own text buffers, wait to be
    // rejected.
    o.connections_max = control_connections_max;
    o.busy_private_data = busy_mark();
    return o;
}

std::uint64_t random_token() {
    std::random_device from;
    return std::uint64_t{from()} << 32U | from();
}

rcverbs::acceptor_options data_acceptor(plan const& p) {
    rcverbs::acceptor_options o;
    o.backlog = 4096;
    o.connections_max = p.connections;
    return o;
}

}  // namespace

server::server(asio::io_context& io, rcverbs::endpoint const& where, limits l)
    : io_{io},
      limits_{std::move(l)},
      acceptor_{control_poller(io), where, control_acceptor()} {}

void server::stop() {
    is_stopped_ = true;
    acceptor_.close();
    if (client_ != nullptr) client_->close();
}

asio::awaitable<void> server::run(std::uint64_t count) {
    count_ = count;
    while (!is_stopped_) {
        auto [ec, request] = co_await acceptor_.async_get_request(awaiting);
        if (ec == asio::error::operation_aborted) break;
        if (ec) {
            print_error(ec.message());
            if (!acceptor_.is_open()) break;
        } else if (client_ != nullptr) {
            rcverbs::error_code ignored;
            request.reject(busy_mark(), ignored);
        } else {
            start_serving(std::move(request));
        }
    }
    acceptor_.close();
}

void server::start_serving(rcverbs::connection_request request) {
    demo::reload(limits_.authentication);
    try {
        client_ = std::make_shared<control>(
            io_,
            rcverbs::connection{control_poller(io_), std::move(request), control_options()},
            limits_
        );
    } catch (boost::system::system_error const& e) {
        return print_error(e.what());
    }
    asio::co_spawn(io_, serve(client_), asio::detached);
}

asio::awaitable<void> server::serve(std::shared_ptr<control> client) {
    std::string peer = client->connection().remote_endpoint().to_string();
    try {
        co_await client->accept();
        if (std::string const who = client->peer_identity(); !who.empty())
            peer = demo::printable(who) + " at " + peer;
        co_await talk(*client);
    } catch (std::exception const& e) {
        if (!is_stopped_) print_error(peer + ": " + e.what());
    }
    // Clears client_ before it answers `bye`: the same client may connect again as soon as it has
    // the answer.
    if (client_ == client) client_.reset();
    if (count_ != 0 && ++served_ >= count_) acceptor_.close();
    try {
        json const answer{{"done", "bye"}};
        if (client->connection().is_open()) co_await client->send(answer);
        co_await client->await_end();
    } catch (std::exception const&) {
        // The client has disconnected already.
    }
}

asio::awaitable<void> server::talk(control& client) {
    json const hello = co_await client.receive_hello();
    std::string refusal;
    plan wanted;
    try {
        wanted = parse_hello(hello);
    } catch (protocol_error const& e) {
        refusal = e.what();
    }
    if (refusal.empty()) refusal = memory_problem(wanted);
    if (refusal.empty()) {
        std::string const lacks = wanted.lacks_on(client.connection().domain().limits());
        if (!lacks.empty()) refusal = "its device has no " + lacks;
    }
    if (refusal.empty()) co_return co_await carry_out(wanted, client);
    // Built outside of the co_await expression: g++ 12 does not compile a braced list there.
    json const answer{{"refused", refusal}};
    co_await client.send(answer);
}

std::string server::memory_problem(plan const& p) const {
    std::uint64_t const needed = memory_bytes(p);
    std::uint64_t const allowed =
        limits_.memory_bytes != 0 ? limits_.memory_bytes : available_bytes() / 2;
    if (needed <= allowed) return {};
    return "the plan may use " + std::to_string((needed + mebibyte - 1) / mebibyte) +
           " MiB of the server's memory, and the server allows " +
           std::to_string(allowed / mebibyte) + " MiB: see its --memory";
}

asio::awaitable<void> server::accept_connections(
    rcverbs::acceptor& at, connection_group& group, std::size_t count, std::uint64_t token
) {
    for (std::size_t i = 0; i < count; ++i) {
        auto [ec, request] = co_await at.async_get_request(awaiting);
        if (ec) co_return;
        bench_connection& next = group.add(
            rcverbs::connection{group.place(i), std::move(request), group.options()}, token
        );
        // Concurrently, so that a slow peer does not delay the others.
        asio::co_spawn(io_, next.accept(), asio::detached);
    }
}

asio::awaitable<void> server::carry_out(plan const& p, control& client) {
    connection_group group{io_, p, side::server, limits_};
    std::exception_ptr failed;
    std::optional<rcverbs::acceptor> acceptor;
    try {
        rcverbs::endpoint const here{client.connection().local_endpoint().address(), 0};
        readiness ready{0, limits_.patience, facts_of(client.connection()), random_token()};
        acceptor.emplace(io_, here, data_acceptor(p));
        ready.port = acceptor->local_endpoint().port();
        asio::co_spawn(
            io_, accept_connections(*acceptor, group, p.connections, ready.token), asio::detached
        );
        json const answer = make_ready(ready);
        co_await client.send(answer);
        co_await obey(p, group, client);
    } catch (...) {
        failed = std::current_exception();
    }
    acceptor.reset();
    // Handlers that deliver a new connection to the group may still be queued; run them while the
    // group exists.
    co_await asio::post(io_, use_awaitable);
    co_await group.close();
    if (failed) std::rethrow_exception(failed);
}

// Returns when the client sends `bye`; serve() answers it after all connections are closed.
asio::awaitable<void> server::obey(plan const& p, connection_group& group, control& client) {
    order_of_orders due{p};
    for (;;) {
        json const text = co_await client.receive();
        order const o = parse_order(text, p);
        due.check(o.kind, group.size());
        if (o.kind == order_kind::bye) co_return;
        json answer{{"done", text.at("order")}};
        if (o.kind == order_kind::run) {
            // Answered at once: the server's direction runs at the same time as the client's. Its
            // result is in the answer to `end`.
            co_await client.send(answer);
            co_await group.run(
                p.iterations > 0 ? p.iterations : until_stopped,
                p.iterations > 0 ? std::chrono::milliseconds{0} : p.duration
            );
            continue;
        }
        co_await measure(p, group, o, answer);
        co_await client.send(answer);
    }
}

asio::awaitable<void> server::measure(
    plan const& p, connection_group& group, order const& o, json& answer
) {
    switch (o.kind) {
    case order_kind::pin: co_await group.pin(); break;
    case order_kind::begin: co_await group.begin(o.next); break;
    case order_kind::measure: group.mark(); break;
    case order_kind::end: {
        // The processor time of idle connections ends here, before stop().
        if (p.what == operation::connect) answer["result"] = group.measured();
        std::uint64_t sum = 0;
        for (std::uint64_t const c : o.operations) sum += c;
        if (is_received(p.what) && !p.is_bidirectional) co_await group.await_operations(sum);
        co_await group.stop();
        if (p.verifies) co_await group.check_memory(o.operations);
        if (p.what != operation::connect) answer["result"] = group.measured();
        answer["operations"] = group.operations_of_each();
        break;
    }
    case order_kind::run:
    case order_kind::bye: break;  // see obey()
    }
}

}  // namespace rdma_bench
