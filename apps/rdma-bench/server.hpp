// server.hpp — the side that lends its memory and its receives: one client at a time, as the client's plan says.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include <memory>
#include <string>
#include <vector>

#include <rcverbs/rcverbs.hpp>

#include "rdma-bench/control.hpp"
#include "rdma-bench/team.hpp"

namespace rdma_bench {

class server {
public:
    /// Listens. Throws boost::system::system_error if it cannot.
    server(boost::asio::io_context& io, rcverbs::endpoint const& where, limits l);

    /// Where it listens.
    rcverbs::endpoint local() const { return acceptor_.local(); }
    /// Serves clients, one after another, until stop(). With `count` above 0, so many.
    boost::asio::awaitable<void> run(std::uint64_t count = 0);
    /// Takes no more clients, and closes the present one's connections.
    void stop();

private:
    boost::asio::awaitable<void> serve(std::shared_ptr<control> client);
    boost::asio::awaitable<void> carry_out(plan const& p, control& client);
    boost::asio::awaitable<void> accept_lanes(rcverbs::acceptor& at, team& lanes, std::size_t count);

    boost::asio::io_context& io_;
    limits const limits_;
    rcverbs::acceptor acceptor_;
    std::shared_ptr<control> client_;
    bool is_stopped_ = false;
};

}  // namespace rdma_bench
