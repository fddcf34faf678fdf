// client_core.hpp — the state of a request_client: the channel, and the requests that wait for one.
//
// An actor made of public parts: a connector and channels. A request that is on a channel belongs to that:
// its reply is given to the program without entering.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <rcverbs/connector.hpp>
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/request_client.hpp>

#include "machines/counter.hpp"

namespace rcverbs::detail {

class request_core;

class client_core final : public protocol::actor {
public:
    client_core(
        runs_on<boost::asio::any_io_executor> where,
        std::vector<endpoint> peers,
        request_client_options options
    );

    // Any thread.
    void ask(question const& what, reply_handler handler);
    void notify(question const& what, control_handler handler);
    void finish(control_handler handler);
    void close() noexcept;

    bool is_open() const noexcept { return !is_closed_; }
    bool is_connected() const noexcept;
    protection_domain domain() const { return connector_.domain(); }
    failure last_failure() const;
    request_client_statistics statistics() const;

private:
    using clock = std::chrono::steady_clock;
    using channel_ptr = std::shared_ptr<request_channel>;
    struct call;
    using call_ptr = std::shared_ptr<call>;
    using call_list = std::list<call_ptr>;

    // A request that was given to a channel, which knows it by its handle.
    struct attempt {
        std::weak_ptr<request_core> channel;
        std::uint64_t handle = 0;  // used by the channel

        static void cancel(std::shared_ptr<attempt> const& which);
    };
    // A request or notice until its handler is called. On a channel it belongs to that; otherwise it waits, for
    // a channel or for the time to repeat it.
    struct call {
        explicit call(boost::asio::any_io_executor const& own) : timer{own} {}

        question what;  // without the number of its connection
        std::optional<std::uint64_t> connection_number;
        protocol::waiter<error_code, reply> on_reply;
        protocol::waiter<error_code> on_sent;  // of a notice
        bool is_notice = false;
        clock::time_point deadline;
        std::chrono::milliseconds pause{10};  // before it is repeated
        boost::asio::steady_timer timer;  // while it waits
        std::optional<call_list::iterator> place;  // in the list of those that wait
        bool is_paused = false;
        bool is_cancelled = false;
        // On a channel: the last one.
        std::shared_ptr<attempt> on;
        error_code last;

        /// False if the context of its handler is gone, and with it maybe the body.
        bool is_wanted() const noexcept { return is_notice ? bool{on_sent} : bool{on_reply}; }
    };
    // A channel, and its number.
    struct numbered_channel {
        channel_ptr channel;
        std::uint64_t number = 0;
    };

    // Any thread.
    void prepare(call_ptr const& c, question const& what);
    void on_result(call_ptr const& c, numbered_channel const& over, error_code ec, reply r);
    static void complete(call& c, error_code ec, reply r);

    // Inside.
    void start(call_ptr const& c);
    void wait(call_ptr const& c, clock::time_point until);
    void stop_waiting(call& c);
    void connect();
    void on_connected(error_code ec, channel_ptr const& over);
    void send(call_ptr const& c, numbered_channel const& over);
    void on_failed(call_ptr const& c, channel_ptr const& over, error_code ec);
    void on_timer(call_ptr const& c);
    void cancel(call_ptr const& c);
    call_list take_waiting();
    void end(call_ptr const& c, error_code why);
    void drop(channel_ptr const& which);
    void use(channel_ptr channel);
    void retire(channel_ptr const& over);
    void finish(channel_ptr const& over);
    void on_finished(channel_ptr const& over, error_code ec);
    void begin_to_finish(protocol::waiter<error_code>& who);
    void end_all() noexcept;
    void on_abandoned() noexcept override;
    void give_up() noexcept override { close(); }
    // Runs `function(self)` inside, if the client still exists.
    template <class Function>
    auto if_alive(Function function);

    std::chrono::milliseconds const answer_timeout_;
    std::function<void(std::shared_ptr<request_channel>)> const on_connected_;
    basic_connector<request_channel> connector_;

    channel_ptr channel_;  // its number is counted_.connected
    // Whose peers have finished, while what was asked on them is answered.
    std::vector<channel_ptr> retiring_;
    protocol::waiter<error_code> finisher_;
    error_code finish_error_;
    call_list waiting_;
    std::size_t paused_ = 0;
    bool is_connecting_ = false;
    bool is_finishing_ = false;

    // Read by any thread.
    std::atomic<bool> is_closed_{false};
    struct view {
        channel_ptr channel;
        failure last;  // of the last channel
    };
    protocol::published<view> view_;
    struct {
        machines::counter connected, repeated, waiting;
    } counted_;
};

}  // namespace rcverbs::detail
