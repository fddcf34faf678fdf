// server.hpp — serves any number of clients at once, each on its own connection.
//
// The server runs on one thread's io_context. The exchanges run on their connections' polling
// threads and post their outcomes back.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <list>
#include <memory>
#include <optional>

#include <rcverbs/rcverbs.hpp>

#include "common/arguments.hpp"
#include "common/repeating_signals.hpp"
#include "common/repeating_timer.hpp"

namespace demo {

struct server_arguments : arguments {
    std::string bind;
    std::uint16_t port = 0;
    /// Serves this many clients and refuses all others; 0: no limit.
    std::uint32_t count = 0;
    /// The most clients at a time, in total and for one address; a further client is rejected as
    /// busy. 0: no limit. Empty: as many as this process has descriptors and lockable memory for,
    /// at most 4096.
    std::optional<std::size_t> clients_max;
    std::size_t clients_per_address_max = 0;
};

class server {
public:
    server(boost::asio::io_context& io, server_arguments a);

    /// Listens and serves until it has served `count` clients or receives a signal. Throws if it
    /// cannot listen.
    void start();
    /// The exit code, valid once io.run() has returned: that of the first failure.
    exit_code result() const noexcept { return result_; }

private:
    // The outcome of one client. `counts` is false if the client was refused; `exchanges` is false
    // if its exchange never began, so that there is nothing to cut off.
    struct outcome {
        exit_code code = exit_code::other;
        bool counts = false;
        bool exchanges = false;
    };

    boost::asio::awaitable<void> accept_clients();
    void start_serving(rcverbs::connection_request request);
    boost::asio::awaitable<outcome> serve(
        std::shared_ptr<rcverbs::session> client, std::string peer
    );
    void on_served(std::shared_ptr<rcverbs::session> const& client, outcome const& o);
    void on_refused(rcverbs::endpoint const& peer, rcverbs::refusal why);
    void report_refusal(rcverbs::endpoint const& peer, std::string const& why);
    void on_signal();
    void cut_off();
    void end_if_idle();

    boost::asio::io_context& io_;
    server_arguments const arguments_;
    rcverbs::acceptor acceptor_;
    repeating_signals signals_;
    boost::asio::steady_timer grace_;
    std::list<std::shared_ptr<rcverbs::session>> running_;
    // Shared by all clients in atomic mode.
    shared_counter counter_;
    repeating_timer counter_tick_;
    std::uint32_t served_ = 0;
    bool is_ending_ = false;
    bool has_ended_ = false;
    bool is_told_to_end_ = false;  // by a signal
    bool has_cut_off_ = false;
    // Exchanges that were under way at the signal and did not finish.
    std::uint32_t incomplete_ = 0;
    bool has_told_of_refusals_ = false;
    exit_code result_ = exit_code::done;
};

}  // namespace demo
