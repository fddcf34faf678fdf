// client.hpp — the side that measures: opens the lanes, runs the rounds, tells the server what to do.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rdma-bench/control.hpp"
#include "rdma-bench/result.hpp"
#include "rdma-bench/team.hpp"

namespace rdma_bench {

/// Where to connect to.
struct destination {
    rcverbs::endpoint server;
    std::optional<boost::asio::ip::address> from;
};

/// The server does not want to: why.
class plan_refused : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// Told of what goes on while it is measured.
class observer {
public:
    virtual ~observer() = default;
    /// So many operations of one round are complete; of how many, or 0 if that is decided by time.
    virtual void on_progress(std::uint64_t size_bytes, std::uint64_t done, std::uint64_t all, double seconds) = 0;
    /// A round is over.
    virtual void on_result(result const& r) = 0;
};

class client {
public:
    client(boost::asio::io_context& io, destination to, plan const& p, limits l, observer& watching);

    /// Carries out the plan. Throws what went wrong: boost::system::system_error, lane_failed, plan_refused.
    boost::asio::awaitable<void> run();

    /// What opening the connections took; known after run().
    opening const& opened() const noexcept { return opened_; }
    /// Lets go of the server: the io_context's run() returns afterwards.
    void end() noexcept { control_.close(); }
    /// The first failure of the control connection, if it was that.
    rcverbs::failure failure() { return control_.connection().last_failure(); }

private:
    boost::asio::awaitable<void> carry_out(team& lanes);
    boost::asio::awaitable<void> open(team& lanes, std::vector<std::uint16_t> ports);
    boost::asio::awaitable<void> measure(team& lanes, round r);
    boost::asio::awaitable<void> hold(team& lanes);
    boost::asio::awaitable<nlohmann::json> order(nlohmann::json what);

    boost::asio::io_context& io_;
    destination const to_;
    plan const& plan_;
    limits const limits_;
    observer& observer_;
    control control_;
    opening opened_;
};

}  // namespace rdma_bench
