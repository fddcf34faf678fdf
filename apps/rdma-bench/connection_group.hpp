// connection_group.hpp — all measured connections of one side and their loads.
//
// Lives on the main io_context's thread. Work for a connection's own executor is posted there and
// awaited.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rdma-bench/bench_connection.hpp"
#include "rdma-bench/load.hpp"
#include "rdma-bench/result.hpp"

namespace rdma_bench {

/// A measured connection has failed.
class bench_connection_failed : public std::runtime_error {
public:
    bench_connection_failed(rcverbs::error_code const& ec, std::string const& what)
        : std::runtime_error{what},
          code_{ec} {}
    rcverbs::error_code code() const noexcept { return code_; }

private:
    rcverbs::error_code code_;
};

/// Limits of a measurement.
struct limits {
    /// The longest time without progress before it is aborted.
    std::chrono::milliseconds patience{10'000};
    /// Processors to pin the polling threads to, round robin; empty: no pinning.
    std::vector<int> processors;
    /// The most memory in bytes that a server uses for a client's plan; 0: half of the memory that
    /// is available when the client comes.
    std::uint64_t memory_bytes = 0;
    /// Who may benchmark a server.
    rcverbs::authentication_options authentication = {};
};

class connection_group {
public:
    connection_group(boost::asio::io_context& io, plan const& p, side s, limits l);
    /// REQUIRES: close() has completed, or no connection was ever added.
    ~connection_group();

    /// The executor or poller of connection number `index`; pollers are assigned round robin, and
    /// started when they are first needed.
    rcverbs::runs_on<boost::asio::any_io_executor> place(std::size_t index);
    rcverbs::connection_options options() const;
    /// Adds a connection that is not connected yet, and returns it.
    bench_connection& add(rcverbs::connection c, std::uint64_t token);
    std::size_t size() const noexcept { return members_.size(); }

    /// Pins the threads. Call once, when all connections are connected.
    boost::asio::awaitable<void> pin();
    /// Starts a new round on all connections.
    boost::asio::awaitable<void> begin(round r);
    /// Runs `count` operations on each connection, or, if `time` is above 0, as many as fit into
    /// that time.
    boost::asio::awaitable<void> run(std::uint64_t count, std::chrono::milliseconds time = {});
    /// Stops a run that has no count.
    boost::asio::awaitable<void> stop();
    /// Waits until this many operations have been counted in this round.
    boost::asio::awaitable<void> await_operations(std::uint64_t count);
    /// Starts the measurement: operations counted before do not count.
    void mark();
    /// The measurement since mark(), of the round's last run().
    side_result measured() const;
    /// Verifies each connection's memory; the argument has the number of operations of each peer.
    boost::asio::awaitable<void> check_memory(std::vector<std::uint64_t> operations_of_peer);
    /// Closes all connections and waits until they are disconnected.
    boost::asio::awaitable<void> close();

    /// The number of operations completed in this round so far.
    std::uint64_t operations() const noexcept;
    /// The same for each connection.
    std::vector<std::uint64_t> operations_of_each() const;
    /// The merged latencies of the last run().
    histogram latencies() const;
    /// The same over time.
    timeline over_time() const;
    /// The operations of the connection that has completed the fewest since mark(), and the most.
    std::pair<std::uint64_t, std::uint64_t> least_and_most() const;

private:
    struct member {
        std::unique_ptr<bench_connection> on;
        std::unique_ptr<load> work;
    };
    using function = std::function<void(member&, std::function<void()> done)>;

    // Calls f for each connection on its executor, and waits until each has called `done`. Stops
    // the loads after `time`, if that is above 0. Throws if no operation completes within
    // limits::patience.
    boost::asio::awaitable<void> each(function f, std::chrono::milliseconds time = {});
    boost::asio::awaitable<void> stop_loads();
    rcverbs::connection_statistics counted(std::size_t index) const;
    void throw_if_failed() const;

    boost::asio::io_context& io_;
    plan const& plan_;
    side const side_;
    limits const limits_;
    std::vector<rcverbs::poller> pollers_;
    std::vector<member> members_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
    side_result marked_;
    std::uint64_t marked_operations_ = 0;
    std::vector<std::uint64_t> marked_of_each_;
};

}  // namespace rdma_bench
