// server.hpp — the passive side: exposes memory and posts receives as the client's plan says.
// Serves one client at a time and rejects others as busy.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <memory>
#include <string>
#include <vector>

#include <rcverbs/rcverbs.hpp>

#include "rdma-bench/control.hpp"
#include "rdma-bench/connection_group.hpp"

namespace rdma_bench {

class server {
public:
    /// Listens. Throws boost::system::system_error if it cannot.
    server(boost::asio::io_context& io, rcverbs::endpoint const& where, limits l);

    /// The endpoint it listens at.
    rcverbs::endpoint local_endpoint() const { return acceptor_.local_endpoint(); }
    /// Serves clients one after another until stop(), or `count` clients if that is above 0.
    boost::asio::awaitable<void> run(std::uint64_t count = 0);
    /// Accepts no more clients, and closes the current client's connections.
    void stop();

private:
    void start_serving(rcverbs::connection_request request);
    boost::asio::awaitable<void> serve(std::shared_ptr<control> client);
    boost::asio::awaitable<void> talk(control& client);
    // Why this machine has not enough memory for the plan; empty if it has.
    std::string memory_problem(plan const& p) const;
    boost::asio::awaitable<void> carry_out(plan const& p, control& client);
    boost::asio::awaitable<void> obey(plan const& p, connection_group& group, control& client);
    boost::asio::awaitable<void> measure(
        plan const& p, connection_group& group, order const& o, nlohmann::json& answer
    );
    boost::asio::awaitable<void> accept_connections(
        rcverbs::acceptor& at, connection_group& group, std::size_t count, std::uint64_t token
    );

    boost::asio::io_context& io_;
    limits const limits_;
    rcverbs::acceptor acceptor_;
    // The client being served; null for none.
    std::shared_ptr<control> client_;
    std::uint64_t served_ = 0;
    std::uint64_t count_ = 0;
    bool is_stopped_ = false;
};

}  // namespace rdma_bench
