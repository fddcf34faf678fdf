// server_core.hpp — the state of a request_server: its clients, and the requests that wait.
//
// An actor made of public parts: an acceptor and channels.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>

#include <rcverbs/acceptor.hpp>
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/request_server.hpp>

#include "machines/counter.hpp"

namespace rcverbs::detail {

class server_core final : public protocol::actor {
public:
    server_core(
        runs_on<boost::asio::any_io_executor> where,
        endpoint const& local,
        request_server_options options
    );
    void start();

    // Any thread.
    void next(next_handler handler);
    void finish(control_handler handler);
    void close() noexcept;

    bool is_open() const noexcept { return is_open_; }
    endpoint local() const { return acceptor_.local_endpoint(); }
    failure last_failure() const;
    request_server_statistics statistics() const;

private:
    using channel_ptr = std::shared_ptr<request_channel>;

    // A request that nobody has taken yet; of each client one at a time, so that they are served in turn.
    struct arrival {
        std::uint64_t number = 0;
        channel_ptr from;  // null if its next one has been asked for
        request what;
    };
    struct client {
        channel_ptr channel;
        bool is_accepted = false;
    };

    // Runs `function(self, results...)` inside, if the server still exists.
    template <class Function>
    auto if_alive(Function function);

    // Inside.
    void accept_next();
    void on_request(error_code ec, connection_request asked);
    void on_accepted(channel_ptr const& c, error_code ec);
    void take_next(channel_ptr const& c);
    void on_next(channel_ptr const& c, error_code ec, request r);
    void leave_client(channel_ptr const& c);
    void give();
    void put_back(std::uint64_t number, request r);
    void end_accepting(error_code why);
    void finish_all(protocol::waiter<error_code>& who);
    void close_all();
    void on_abandoned() noexcept override;
    void give_up() noexcept override { close(); }

    runs_on<boost::asio::any_io_executor> const where_;
    request_server_options const options_;
    basic_acceptor<boost::asio::any_io_executor> acceptor_;

    std::list<client> clients_;
    std::deque<arrival> arrived_;
    std::uint64_t numbers_ = 0;
    protocol::wait_list<error_code, request> nexts_{
        *this, [this](std::uint64_t number, error_code const&, request r) {
            put_back(number, std::move(r));
        }};
    error_code
        end_;  // what async_next() gets when there are no more clients; empty while it accepts
    bool is_finishing_ = false;
    bool is_closed_ = false;

    // Read by any thread.
    std::atomic<bool> is_open_{true};
    protocol::published<failure> last_;
    struct {
        machines::counter clients, accepted, failed;
    } counted_;
};

}  // namespace rcverbs::detail
