// server.hpp — serves any number of clients at once, each on a connection of its own.
//
// Runs on one thread's io_context; the exchanges run on their connections' polling threads and report back.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <list>
#include <memory>

#include <rcverbs/rcverbs.hpp>

#include "common/arguments.hpp"

namespace demo {

struct server_arguments : arguments {
    std::string bind;
    std::uint16_t port = 0;
    /// End after so many clients; 0 for never.
    std::uint32_t count = 0;
    /// Clients at a time, in all and of one address; one more is told that the server is busy. 0 for no limit.
    std::size_t clients_max = 1024;
    std::size_t clients_per_address_max = 0;
};

class server {
public:
    server(boost::asio::io_context& io, server_arguments a);

    /// Listens and serves until it has served enough or is told to end. Throws if it cannot listen.
    void start();
    /// What to exit with, once io.run() has returned: the first failure's code.
    exit_code result() const noexcept { return result_; }

private:
    boost::asio::awaitable<void> accept_clients();
    boost::asio::awaitable<exit_code> serve(std::shared_ptr<rcverbs::session> client, std::string peer);
    void on_served(std::shared_ptr<rcverbs::session> const& client, exit_code code, bool counts);
    void wait_for_signal();
    void on_signal();
    void end_if_idle();

    boost::asio::io_context& io_;
    server_arguments const arguments_;
    rcverbs::acceptor acceptor_;
    boost::asio::signal_set signals_;
    boost::asio::steady_timer grace_;
    // The exchanges run on polling threads; run() is not to return before they have reported.
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
    std::list<std::shared_ptr<rcverbs::session>> running_;
    // In atomic mode: what all clients share.
    shared_counter counter_;
    std::uint32_t served_ = 0;
    bool is_ending_ = false;
    exit_code result_ = exit_code::done;
};

}  // namespace demo
