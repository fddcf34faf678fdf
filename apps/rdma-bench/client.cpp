#include "rdma-bench/client.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <random>
#include <tuple>

#include "common/printable.hpp"
#include "rdma-bench/machine.hpp"

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using nlohmann::json;
using clock = std::chrono::steady_clock;

namespace {

json plain_order(order_kind what) { return make_order({what, {}, {}}); }

// The most connections to open at a time; the test "connect" uses the plan's depth instead.
constexpr std::size_t connecting_max = 16;

rcverbs::connection_options with_source(rcverbs::connection_options o, destination const& to) {
    o.placement.bind_address = to.from;
    return o;
}

}  // namespace

client::client(asio::io_context& io, destination to, plan const& p, limits l, observer& watching)
    : io_{io},
      to_{std::move(to)},
      plan_{p},
      limits_{std::move(l)},
      observer_{watching},
      heartbeat_{io.get_executor()},
      control_{
          io,
          rcverbs::connection{control_poller(io), with_source(control_options(), to_)},
          limits_} {}

asio::awaitable<json> client::order(json what) {
    co_await control_.send(what);
    json answer = co_await control_.receive();
    if (auto const why = answer.find("refused"); why != answer.end()) {
        throw plan_refused{
            why->is_string() ? demo::printable(why->get<std::string>()) : "no reason given"};
    }
    co_return answer;
}

asio::awaitable<void> client::run() {
    try {
        co_await control_.connect(to_.server);
    } catch (boost::system::system_error const& e) {
        bool const is_busy = e.code() == rcverbs::cm_errc::rejected_by_peer &&
                             is_busy_mark(control_.connection().private_data());
        if (is_busy) throw plan_refused{"it serves another client. Try again later"};
        throw;
    }
    connection_group group{io_, plan_, side::client, limits_};
    std::exception_ptr failed;
    try {
        co_await carry_out(group);
    } catch (...) {
        failed = std::current_exception();
    }
    heartbeat_.stop();
    co_await group.close();
    if (failed) std::rethrow_exception(failed);
    try {
        co_await order(plain_order(order_kind::bye));
    } catch (std::exception const&) {
        // All results are complete.
    }
    co_await control_.disconnect();
}

asio::awaitable<void> client::carry_out(connection_group& group) {
    json const hello = make_hello(plan_);
    json const answer = co_await order(hello);
    readiness const ready = parse_ready(answer);
    observer_.on_connected(facts_of(control_.connection()), ready.machine);
    // Keepalive on the control connection: operations without the server's CPU cause no traffic that
    // the server's program can detect.
    heartbeat_.start(std::max(ready.patience / 4, std::chrono::milliseconds{1}), [this] {
        control_.send_alive();
    });
    co_await open(group, ready);
    co_await group.pin();
    co_await order(plain_order(order_kind::pin));
    if (plan_.what == operation::connect) co_return co_await hold(group);
    std::mt19937_64 seeds{std::random_device{}()};
    for (std::uint64_t const size : plan_.sizes_bytes) {
        round const next{size, seeds()};
        co_await measure(group, next);
    }
}

// A few at a time, so that neither side's backlog of requests overflows.
asio::awaitable<void> client::open(connection_group& group, readiness const& ready) {
    std::uint64_t const resident = resident_bytes();
    std::uint64_t const available = available_bytes();
    std::size_t const count = plan_.connections;
    clock::time_point const began = clock::now();
    std::size_t under_way = 0;
    asio::steady_timer changed{io_};
    std::exception_ptr failed;
    std::size_t const at_a_time = plan_.what == operation::connect ? plan_.depth : connecting_max;
    for (std::size_t next = 0; (next < count && !failed) || under_way > 0;) {
        while (next < count && under_way < at_a_time && !failed) {
            bench_connection& l = group.add(
                rcverbs::connection{group.place(next), with_source(group.options(), to_)},
                ready.token
            );
            rcverbs::endpoint const where{to_.server.address(), ready.port};
            ++next;
            ++under_way;
            asio::co_spawn(io_, l.connect(where), [&](std::exception_ptr e) {
                --under_way;
                if (e && !failed) failed = e;
                changed.cancel();
            });
        }
        changed.expires_at(clock::time_point::max());
        if (under_way > 0) co_await changed.async_wait(asio::as_tuple(use_awaitable));
    }
    if (failed) std::rethrow_exception(failed);
    opened_.connections = count;
    opened_.seconds = std::chrono::duration<double>(clock::now() - began).count();
    auto const per_connection = [&](std::uint64_t less, std::uint64_t more) {
        return (static_cast<double>(more) - static_cast<double>(less)) / static_cast<double>(count);
    };
    opened_.process_bytes = per_connection(resident, resident_bytes());
    opened_.system_bytes = per_connection(available_bytes(), available);
}

// Measures the cost of idle connections.
asio::awaitable<void> client::hold(connection_group& group) {
    co_await order(plain_order(order_kind::measure));
    group.mark();
    double const cpu = cpu_seconds();
    clock::time_point const began = clock::now();
    asio::steady_timer timer{io_, plan_.duration};
    co_await timer.async_wait(use_awaitable);
    opened_.idle_cpu_seconds = cpu_seconds() - cpu;
    opened_.idle_seconds = std::chrono::duration<double>(clock::now() - began).count();
    json const answer = co_await order(plain_order(order_kind::end));
    opened_.server_idle_cpu_seconds = parse_result(answer).cpu_seconds;
}

asio::awaitable<void> client::measure(connection_group& group, round r) {
    json const begin = make_order({order_kind::begin, r, {}});
    co_await order(begin);
    co_await group.begin(r);
    if (plan_.warm_up > 0) co_await group.run(plan_.warm_up);
    co_await order(plain_order(order_kind::measure));
    if (plan_.is_bidirectional) co_await order(plain_order(order_kind::run));

    clock::time_point const began = clock::now();
    std::uint64_t const before = group.operations();
    std::uint64_t const all = plan_.iterations * plan_.connections;
    demo::repeating_timer progress{io_.get_executor()};
    progress.start(std::chrono::milliseconds{500}, [&] {
        double const seconds = std::chrono::duration<double>(clock::now() - began).count();
        observer_.on_progress(r.size_bytes, group.operations() - before, all, seconds);
    });
    group.mark();
    if (plan_.iterations > 0) co_await group.run(plan_.iterations);
    else co_await group.run(until_stopped, plan_.duration);
    progress.stop();

    result out;
    out.size_bytes = r.size_bytes;
    out.is_bidirectional = plan_.is_bidirectional;
    out.client = group.measured();
    out.latencies = group.latencies();
    out.over_time = group.over_time();
    std::tie(out.least, out.most) = group.least_and_most();
    json const end = make_order({order_kind::end, {}, group.operations_of_each()});
    json const answer = co_await order(end);
    out.server = parse_result(answer);
    if (plan_.verifies) co_await group.check_memory(parse_operations(answer, plan_));
    out.client.damaged = group.measured().damaged;
    observer_.on_result(out);
}

}  // namespace rdma_bench
