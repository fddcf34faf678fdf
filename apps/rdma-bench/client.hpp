// client.hpp — the measuring side: opens the connections, runs the rounds, and sends orders to the
// server.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/repeating_timer.hpp"
#include "rdma-bench/control.hpp"
#include "rdma-bench/result.hpp"
#include "rdma-bench/connection_group.hpp"

namespace rdma_bench {

/// The server's address and the local address to connect from.
struct destination {
    rcverbs::endpoint server;
    std::optional<boost::asio::ip::address> from;
};

/// The server refused the plan; what() has the reason.
class plan_refused : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Receives progress and results of a measurement.
class observer {
public:
    virtual ~observer() = default;
    /// Before the first round.
    virtual void on_connected(side_facts const& client, side_facts const& server) = 0;
    /// `done` operations of one round are complete, of `all`; `all` is 0 if the round is limited by
    /// time.
    virtual void on_progress(
        std::uint64_t size_bytes, std::uint64_t done, std::uint64_t all, double seconds
    ) = 0;
    /// A round is over.
    virtual void on_result(result const& r) = 0;
};

class client {
public:
    client(
        boost::asio::io_context& io, destination to, plan const& p, limits l, observer& watching
    );

    /// Carries out the plan. Throws boost::system::system_error, bench_connection_failed or
    /// plan_refused.
    boost::asio::awaitable<void> run();

    /// The cost of opening the connections; valid after run().
    opening const& opened() const noexcept { return opened_; }
    /// Closes the control connection; the io_context's run() returns afterwards.
    void end() noexcept { control_.close(); }
    /// The first failure of the control connection, if it has one.
    rcverbs::failure failure() { return control_.last_failure(); }

private:
    boost::asio::awaitable<void> carry_out(connection_group& group);
    boost::asio::awaitable<void> open(connection_group& group, readiness const& ready);
    boost::asio::awaitable<void> measure(connection_group& group, round r);
    boost::asio::awaitable<void> hold(connection_group& group);
    boost::asio::awaitable<nlohmann::json> order(nlohmann::json what);

    boost::asio::io_context& io_;
    destination const to_;
    plan const& plan_;
    limits const limits_;
    observer& observer_;
    demo::repeating_timer heartbeat_;
    control control_;
    opening opened_;
};

}  // namespace rdma_bench
