// server_core.hpp — the state of a request_server: its acceptor, the channels of its clients, and the requests that wait to be taken.
//
// Made of public parts: an acceptor and channels. One lock guards the state; no user code runs under it.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include <rcverbs/acceptor.hpp>
#include <rcverbs/detail/membership.hpp>
#include <rcverbs/detail/wait_list.hpp>
#include <rcverbs/detail/waiting_handler.hpp>
#include <rcverbs/request_server.hpp>

namespace rcverbs::detail {

class server_core final : public std::enable_shared_from_this<server_core>, public hosting::member {
public:
    server_core(
        runs_on<boost::asio::any_io_executor> where,
        endpoint const& local,
        request_server_options options
    );
    void start();

    void next(next_handler handler);
    void finish(control_handler handler);
    void close() noexcept;

    bool is_open() const noexcept;
    endpoint local() const { return acceptor_.local_endpoint(); }
    failure last_failure() const;
    request_server_statistics statistics() const;

private:
    using guard = std::unique_lock<std::mutex>;
    using executor_ptr = std::shared_ptr<boost::asio::any_io_executor const>;
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
    using clients = std::list<client>;

    executor_ptr own_executor() const;
    void accept_next();
    void on_request(error_code ec, connection_request asked);
    void on_accepted(channel_ptr const& c, error_code ec);
    void take_next(channel_ptr const& c);
    void on_next(channel_ptr const& c, error_code ec, request r);
    void leave(channel_ptr const& c, failure const& why);
    void deliver();
    void put_back(std::uint64_t number, request r, channel_ptr from);
    void take_back(std::uint64_t number, request r) noexcept;
    void cancel_next(std::uint64_t serial);
    void end_accepting(error_code why);
    void context_is_going(boost::asio::execution_context const&) noexcept override;

    runs_on<boost::asio::any_io_executor> const where_;
    request_server_options const options_;
    hosting::membership membership_;
    basic_acceptor<boost::asio::any_io_executor> acceptor_;

    mutable std::mutex mutex_;
    // Everything below is guarded by it. Null once its context is destroyed.
    executor_ptr executor_;
    clients clients_;
    std::deque<arrival> arrived_;
    std::uint64_t numbers_ = 0;
    wait_list<waiting_handler<error_code, request>> nexts_;
    error_code
        end_;  // what async_next() gets when there are no more clients; empty while it accepts
    failure last_;
    bool is_finishing_ = false;
    bool is_closed_ = false;
    std::uint64_t accepted_ = 0;
    std::uint64_t failed_ = 0;
};

}  // namespace rcverbs::detail
