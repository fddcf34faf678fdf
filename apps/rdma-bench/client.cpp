#include "rdma-bench/client.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <random>

#include "rdma-bench/machine.hpp"

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using nlohmann::json;
using clock = std::chrono::steady_clock;

namespace {

json plain_order(char const* what) { return {{"order", what}}; }

// Connections that are being made at a time; with the test "connect" the depth says.
constexpr std::size_t connecting_max = 16;

rcverbs::connection_options with_source(rcverbs::connection_options o, destination const& to) {
    o.bind_address = to.from;
    return o;
}

}  // namespace

client::client(asio::io_context& io, destination to, plan const& p, limits l, observer& watching)
    : io_{io},
      to_{std::move(to)},
      plan_{p},
      limits_{std::move(l)},
      observer_{watching},
      control_{io, rcverbs::connection{io, with_source(control_options(), to_)}, limits_.patience} {}

asio::awaitable<json> client::order(json what) {
    co_await control_.send(what);
    json answer = co_await control_.receive();
    if (answer.contains("refused")) throw plan_refused{answer["refused"].get<std::string>()};
    co_return answer;
}

asio::awaitable<void> client::run() {
    co_await control_.connect(to_.server);
    team lanes{io_, plan_, side::client, limits_};
    std::exception_ptr failed;
    try {
        co_await carry_out(lanes);
        co_await control_.send(plain_order("bye"));
    } catch (...) {
        failed = std::current_exception();
    }
    co_await lanes.close();
    if (failed) std::rethrow_exception(failed);
    co_await control_.disconnect();
}

asio::awaitable<void> client::carry_out(team& lanes) {
    // Made outside of the expression that awaits: g++ 12 does not compile a braced list there.
    json hello{{"version", protocol_version}, {"plan", plan_}};
    json const ready = co_await order(std::move(hello));
    co_await open(lanes, ready.at("ports").get<std::vector<std::uint16_t>>());
    co_await lanes.pin();
    co_await order(plain_order("pin"));
    if (plan_.what == operation::connect) co_return co_await hold(lanes);
    std::mt19937_64 seeds{std::random_device{}()};
    for (std::uint64_t const size : plan_.sizes_bytes) {
        round const next{size, seeds()};
        co_await measure(lanes, next);
    }
}

// A few at a time, so that no side's queue of requests overflows.
asio::awaitable<void> client::open(team& lanes, std::vector<std::uint16_t> ports) {
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
            lane& l = lanes.add(rcverbs::connection{io_, with_source(lanes.options(next), to_)});
            rcverbs::endpoint const where{to_.server.address(), ports.at(next % ports.size())};
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

// Nothing is done with them: what that costs.
asio::awaitable<void> client::hold(team& lanes) {
    co_await order(plain_order("measure"));
    lanes.mark();
    double const cpu = cpu_seconds();
    clock::time_point const began = clock::now();
    asio::steady_timer timer{io_, plan_.duration};
    co_await timer.async_wait(use_awaitable);
    opened_.idle_cpu_seconds = cpu_seconds() - cpu;
    opened_.idle_seconds = std::chrono::duration<double>(clock::now() - began).count();
    json end{{"order", "end"}, {"operations", json::array()}};
    json const answer = co_await order(std::move(end));
    opened_.server_idle_cpu_seconds = answer.at("result").get<side_result>().cpu_seconds;
}

asio::awaitable<void> client::measure(team& lanes, round r) {
    json begin{{"order", "begin"}, {"size_bytes", r.size_bytes}, {"seed", r.seed}};
    co_await order(std::move(begin));
    co_await lanes.begin(r);
    if (plan_.warm_up > 0) co_await lanes.run(plan_.warm_up);
    co_await order(plain_order("measure"));
    if (plan_.is_bidirectional) co_await order(plain_order("run"));

    clock::time_point const began = clock::now();
    std::uint64_t const before = lanes.operations();
    std::uint64_t const all = plan_.iterations * plan_.connections;
    bool is_over = false;
    asio::steady_timer tick{io_};
    std::function<void()> const show = [&] {
        tick.expires_after(std::chrono::milliseconds{500});
        tick.async_wait([&](rcverbs::error_code ec) {
            if (ec || is_over) return;
            double const seconds = std::chrono::duration<double>(clock::now() - began).count();
            observer_.on_progress(r.size_bytes, lanes.operations() - before, all, seconds);
            show();
        });
    };
    show();
    lanes.mark();
    std::exception_ptr failed;
    try {
        if (plan_.iterations > 0) {
            co_await lanes.run(plan_.iterations);
        } else {
            co_await lanes.run(until_stopped, plan_.duration);
        }
    } catch (...) {
        failed = std::current_exception();
    }
    // Its handler refers to this coroutine: it has its say, that it was cancelled, before this goes on.
    is_over = true;
    tick.cancel();
    co_await asio::post(io_, use_awaitable);
    if (failed) std::rethrow_exception(failed);

    result out;
    out.size_bytes = r.size_bytes;
    out.is_bidirectional = plan_.is_bidirectional;
    out.client = lanes.measured();
    out.latencies = lanes.latencies();
    json end{{"order", "end"}, {"operations", lanes.operations_of_each()}};
    json const answer = co_await order(std::move(end));
    answer.at("result").get_to(out.server);
    if (plan_.verifies) co_await lanes.check_memory(answer.at("operations").get<std::vector<std::uint64_t>>());
    out.client.damaged = lanes.measured().damaged;
    observer_.on_result(out);
}

}  // namespace rdma_bench
