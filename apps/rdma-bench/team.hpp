// team.hpp — all lanes of one side and their loads, worked together.
//
// Lives on the main io_context's thread; what it does on the lanes' own executors it posts there and awaits.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "rdma-bench/lane.hpp"
#include "rdma-bench/load.hpp"
#include "rdma-bench/result.hpp"

namespace rdma_bench {

/// A lane is of no use any more.
class lane_failed : public std::runtime_error {
public:
    lane_failed(rcverbs::error_code const& ec, std::string const& what) : std::runtime_error{what}, code_{ec} {}
    rcverbs::error_code code() const noexcept { return code_; }

private:
    rcverbs::error_code code_;
};

/// How long nothing may happen before a measurement is given up.
struct limits {
    std::chrono::milliseconds patience{10'000};
    /// Processors to pin the polling threads to, in turn; none to leave them to the kernel.
    std::vector<int> processors;
};

class team {
public:
    team(boost::asio::io_context& io, plan const& p, side s, limits l);
    /// REQUIRES: close() has completed, or no lane was ever added.
    ~team();

    /// The polling threads that lanes share, or 1: the acceptors that a server needs.
    std::size_t threads() const noexcept { return pollers_.empty() ? 1 : pollers_.size(); }
    /// For lane number `index`; lanes take the threads in turn.
    rcverbs::connection_options options(std::size_t index) const;
    /// Takes on a lane that is not connected yet, and returns it.
    lane& add(rcverbs::connection c);

    /// Pins the threads. Once, when all lanes are connected.
    boost::asio::awaitable<void> pin();
    /// A new round for all.
    boost::asio::awaitable<void> begin(round r);
    /// Carries out `count` operations on each lane; or as many as `time` allows if that is above 0.
    boost::asio::awaitable<void> run(std::uint64_t count, std::chrono::milliseconds time = {});
    /// Ends a run that has no end of its own.
    boost::asio::awaitable<void> stop();
    /// Waits until so many operations have been counted in this round.
    boost::asio::awaitable<void> await_operations(std::uint64_t count);
    /// Starts to measure: what was counted until now does not count.
    void mark();
    /// What was measured since, of the round's last run().
    side_result measured() const;
    /// Looks at the memory of each lane, whose peer has carried out so many operations.
    boost::asio::awaitable<void> check_memory(std::vector<std::uint64_t> operations_of_peer);
    /// Closes all and waits until it is so.
    boost::asio::awaitable<void> close();

    /// All operations in this round, at this moment.
    std::uint64_t operations() const noexcept;
    /// Those of each lane.
    std::vector<std::uint64_t> operations_of_each() const;
    /// What all lanes recorded in the last run().
    histogram latencies() const;

private:
    struct member {
        std::unique_ptr<lane> on;
        std::unique_ptr<load> work;
    };
    using function = std::function<void(member&, std::function<void()> done)>;

    // Calls f for each lane on its executor, and waits until each has called `done`. Gives up after a time without progress.
    boost::asio::awaitable<void> each(function f, std::chrono::milliseconds time = {});
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
};

}  // namespace rdma_bench
