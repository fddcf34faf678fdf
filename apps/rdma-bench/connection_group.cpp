#include "rdma-bench/connection_group.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

#include "rdma-bench/machine.hpp"

namespace rdma_bench {

namespace asio = boost::asio;
using asio::use_awaitable;
using clock = std::chrono::steady_clock;

namespace {

// Counts arrivals on the io_context's thread.
struct gate {
    gate(asio::io_context& io, std::size_t count) : left{count}, timer{io} {}
    void arrive() {
        if (--left == 0) timer.cancel();
    }
    std::size_t left;
    asio::steady_timer timer;
};

constexpr std::chrono::milliseconds look_interval{100};

}  // namespace

connection_group::connection_group(asio::io_context& io, plan const& p, side s, limits l)
    : io_{io},
      plan_{p},
      side_{s},
      limits_{std::move(l)},
      work_{io.get_executor()} {
    // Reserved: handlers hold references to the members.
    members_.reserve(p.connections);
}

connection_group::~connection_group() = default;

rcverbs::runs_on<asio::any_io_executor> connection_group::place(std::size_t index) {
    rcverbs::poller_options how{.polling = plan_.polling};
    // A passive side must not occupy a processor by polling.
    bool const works = side_ == side::client || plan_.server_works();
    if (!works) how.polling.mode = rcverbs::poll_mode::event;
    if (plan_.own_threads) return rcverbs::poller::start(how);
    if (plan_.threads == 0 && pollers_.empty()) {
        pollers_.push_back(rcverbs::poller::on(io_, how));
    }
    // Started with the first connection that uses it: a client that only sends a plan starts none.
    std::size_t const at = plan_.threads == 0 ? 0 : index % plan_.threads;
    while (pollers_.size() <= at) pollers_.push_back(rcverbs::poller::start(how));
    return pollers_[at];
}

// The connections of one poller share the counters of empty polls and of sleeps: the first one's count.
rcverbs::connection_statistics connection_group::counted(std::size_t index) const {
    rcverbs::connection_statistics s = members_[index].on->connection().statistics();
    if (pollers_.empty() || index < pollers_.size()) return s;
    s.polls -= s.empty_polls;
    s.empty_polls = 0;
    s.sleeps = 0;
    return s;
}

rcverbs::connection_options connection_group::options() const {
    rcverbs::connection_options o;
    o.queue_pair.send_queue_depth = plan_.send_queue_depth();
    o.queue_pair.receive_queue_depth =
        is_received(plan_.what) ? static_cast<std::uint32_t>(layout{plan_}.receives) : 1;
    o.queue_pair.waiting_operations_max = 64;
    // Retries for ever: a slow receiver is part of the measurement, not a failure.
    o.queue_pair.rnr_retry_count = 7;
    auto const reads = static_cast<std::uint8_t>(std::min(plan_.depth, 255U));
    o.queue_pair.initiator_depth = reads;
    o.queue_pair.responder_resources = reads;
    o.queue_pair.inline_bytes_max = plan_.inline_bytes;
    o.timeouts.connect = limits_.patience;
    o.timeouts.resolve_address = limits_.patience;
    o.timeouts.resolve_route = limits_.patience;
    if (plan_.what == operation::connect) {
        o.queue_pair.waiting_operations_max = 16;
        o.queue_pair.initiator_depth = o.queue_pair.responder_resources = 1;
    }
    return o;
}

bench_connection& connection_group::add(rcverbs::connection c, std::uint64_t token) {
    member& m = members_.emplace_back();
    m.on = std::make_unique<bench_connection>(std::move(c), plan_, side_, token);
    m.work = make_load(*m.on);
    return *m.on;
}

void connection_group::throw_if_failed() const {
    for (member const& m : members_) {
        if (!m.on->has_failed()) continue;
        // A key that worked before and now fails belongs to a process that has ended.
        bool const has_ended =
            m.on->code() == rcverbs::wc_errc::remote_access && m.work->has_worked();
        throw bench_connection_failed{
            has_ended ? make_error_code(rcverbs::errc::peer_disconnected) : m.on->code(),
            m.on->problem()};
    }
}

asio::awaitable<void> connection_group::each(function f, std::chrono::milliseconds time) {
    auto const all = std::make_shared<gate>(io_, members_.size());
    for (member& m : members_) {
        asio::post(m.on->connection().get_executor(), [this, &m, f, all] {
            auto const done = [this, all] { asio::post(io_, [all] { all->arrive(); }); };
            // An exception on a polling thread would not be caught.
            try {
                f(m, done);
            } catch (std::exception const& e) {
                m.on->fail(make_error_code(rcverbs::errc::malformed_message), e.what());
                done();
            }
        });
    }
    clock::time_point const began = clock::now();
    clock::time_point moved = began;
    std::uint64_t seen = operations();
    bool has_time = time.count() > 0;
    while (all->left > 0) {
        clock::time_point until = clock::now() + look_interval;
        if (has_time) until = std::min(until, began + time);
        all->timer.expires_at(until);
        co_await all->timer.async_wait(asio::as_tuple(use_awaitable));
        clock::time_point const now = clock::now();
        if (has_time && now >= began + time) {
            has_time = false;
            for (member& m : members_) {
                asio::post(m.on->connection().get_executor(), [&m] { m.work->stop(); });
            }
        }
        if (std::uint64_t const count = operations(); count != seen) {
            seen = count;
            moved = now;
        }
        if (now - moved > limits_.patience) {
            throw_if_failed();
            throw bench_connection_failed{
                make_error_code(rcverbs::errc::stalled),
                "no operation has completed within --timeout"};
        }
    }
    throw_if_failed();
}

asio::awaitable<void> connection_group::pin() {
    if (limits_.processors.empty()) co_return;
    std::size_t next = 0;
    std::vector<int> where;
    for (std::size_t i = 0; i < members_.size(); ++i) {
        next = plan_.own_threads ? i : plan_.threads == 0 ? 0 : i % plan_.threads;
        where.push_back(limits_.processors[next % limits_.processors.size()]);
    }
    co_await each([&](member& m, std::function<void()> const& done) {
        try {
            pin_this_thread(where[static_cast<std::size_t>(&m - members_.data())]);
        } catch (boost::system::system_error const& e) {
            m.on->fail(e.code());
        }
        done();
    });
}

asio::awaitable<void> connection_group::begin(round r) {
    co_await each([r](member& m, std::function<void()> const& done) {
        m.work->begin(r);
        done();
    });
}

asio::awaitable<void> connection_group::run(std::uint64_t count, std::chrono::milliseconds time) {
    co_await each(
        [count](member& m, std::function<void()> done) { m.work->run(count, std::move(done)); },
        time
    );
}

asio::awaitable<void> connection_group::stop() {
    co_await each([](member& m, std::function<void()> const& done) {
        m.work->stop();
        done();
    });
}

asio::awaitable<void> connection_group::await_operations(std::uint64_t count) {
    asio::steady_timer timer{io_};
    for (clock::time_point const began = clock::now(); operations() < count;) {
        throw_if_failed();
        if (clock::now() - began > limits_.patience) {
            throw bench_connection_failed{
                make_error_code(rcverbs::errc::timed_out), "messages are missing"};
        }
        timer.expires_after(std::chrono::milliseconds{1});
        co_await timer.async_wait(use_awaitable);
    }
}

void connection_group::mark() {
    marked_ = {};
    for (std::size_t i = 0; i < members_.size(); ++i) marked_.add(counted(i), -1);
    marked_operations_ = operations();
    marked_of_each_ = operations_of_each();
    marked_.cpu_seconds = cpu_seconds();
}

side_result connection_group::measured() const {
    side_result r = marked_;
    clock::time_point first = clock::time_point::max();
    clock::time_point last = clock::time_point::min();
    for (std::size_t i = 0; i < members_.size(); ++i) {
        member const& m = members_[i];
        r.add(counted(i), 1);
        r.damaged += m.work->damaged();
        first = std::min(first, m.work->began());
        last = std::max(last, m.work->ended());
    }
    r.operations = operations() - marked_operations_;
    if (last > first) r.seconds = std::chrono::duration<double>(last - first).count();
    r.cpu_seconds = cpu_seconds() - marked_.cpu_seconds;
    return r;
}

asio::awaitable<void> connection_group::check_memory(std::vector<std::uint64_t> operations_of_peer
) {
    co_await each([&](member& m, std::function<void()> const& done) {
        auto const index = static_cast<std::size_t>(&m - members_.data());
        m.work->check_memory(index < operations_of_peer.size() ? operations_of_peer[index] : 0);
        done();
    });
}

// No function on a connection's executor may refer to a load any more when the members are
// destroyed: a disconnect that is ready already runs before a function posted now.
asio::awaitable<void> connection_group::stop_loads() {
    auto const all = std::make_shared<gate>(io_, members_.size());
    for (member& m : members_) {
        auto const on = m.on->connection().get_executor();
        asio::post(on, [this, &m, on, all] {
            m.work->stop();
            // Behind the last function that a load which polls memory has posted.
            asio::post(on, [this, all] { asio::post(io_, [all] { all->arrive(); }); });
        });
    }
    while (all->left > 0) {
        all->timer.expires_at(clock::time_point::max());
        co_await all->timer.async_wait(asio::as_tuple(use_awaitable));
    }
}

asio::awaitable<void> connection_group::close() {
    co_await stop_loads();
    for (member& m : members_) m.on->connection().close();
    for (member& m : members_) {
        co_await m.on->connection().async_wait_disconnected(
            asio::as_tuple(asio::bind_executor(io_, use_awaitable))
        );
    }
    members_.clear();
}

std::uint64_t connection_group::operations() const noexcept {
    std::uint64_t sum = 0;
    for (member const& m : members_) sum += m.work->operations();
    return sum;
}

std::vector<std::uint64_t> connection_group::operations_of_each() const {
    std::vector<std::uint64_t> all;
    for (member const& m : members_) all.push_back(m.work->operations());
    return all;
}

timeline connection_group::over_time() const {
    timeline all;
    for (member const& m : members_) all.add(m.work->over_time());
    return all;
}

std::pair<std::uint64_t, std::uint64_t> connection_group::least_and_most() const {
    std::vector<std::uint64_t> const now = operations_of_each();
    std::uint64_t least = ~std::uint64_t{0};
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < now.size() && i < marked_of_each_.size(); ++i) {
        least = std::min(least, now[i] - marked_of_each_[i]);
        most = std::max(most, now[i] - marked_of_each_[i]);
    }
    return {std::min(least, most), most};
}

histogram connection_group::latencies() const {
    histogram all;
    for (member const& m : members_) {
        if (m.work->latencies() != nullptr) all.add(*m.work->latencies());
    }
    return all;
}

}  // namespace rdma_bench
