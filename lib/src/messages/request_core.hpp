// request_core.hpp — the state shared by request_channel handles, requests and replies.
//
// One mutex guards everything; under it, only functions of the channel are called. The program's
// handlers are called in the connection's sequence, and never under the mutex.
//
//   send_request ─▶ waiting ── a free number ─▶ outstanding ── sent and answered ─▶ number free
//   REQUEST arrives ─▶ arrived ── next() ─▶ request ── answered or dropped ─▶ number free
//
// The number of a request that ended early stays in use until the peer has answered, so that a late
// answer cannot meet another request.
//
// A core may outlive its context: context_is_going() releases the timer and the handlers.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <rcverbs/detail/membership.hpp>
#include <rcverbs/detail/wait_list.hpp>
#include <rcverbs/detail/waiting_handler.hpp>
#include <rcverbs/request_channel.hpp>

#include "messages/channel_core.hpp"
#include "wire/request_tag.hpp"

namespace rcverbs::detail {

class request_core final : public std::enable_shared_from_this<request_core>,
                           public hosting::member {
public:
    static std::shared_ptr<request_core> make(
        connection over, request_channel_options const& options
    );
    request_core(connection over, request_channel_options const& options);
    ~request_core();

    void connect(endpoint const& peer, std::vector<std::byte> greeting, control_handler handler);
    void accept(std::vector<std::byte> greeting, control_handler handler);
    void send_request(
        std::uint32_t operation,
        std::span<std::byte const> body,
        request_options const& how,
        reply_handler handler
    );
    void send_notice(
        std::uint32_t operation, std::span<std::byte const> body, control_handler handler
    );
    void next(next_handler handler);
    void finish(control_handler handler);

    // Of a request of the peer's.
    template <class Body>
    void answer(std::uint16_t id, std::uint32_t status, Body const& body, control_handler handler);
    void refuse(control_handler handler);
    void drop(std::uint16_t id) noexcept;
    bool is_cancelled(std::uint16_t id) const noexcept;

    channel_core& messages() noexcept { return *messages_; }
    request_channel_statistics statistics() const;

private:
    using guard = std::unique_lock<std::mutex>;
    using clock = std::chrono::steady_clock;
    using deadlines = std::multimap<clock::time_point, std::uint64_t>;

    // A request or notice of this side's, until its number is free again; without a handler once
    // it has been completed.
    struct outgoing {
        waiting_handler<error_code, reply> on_reply;
        control_waiter on_notified;
        std::uint64_t serial = 0;
        std::uint64_t send = 0;  // the channel's number of the message
        std::span<std::byte const> body;
        std::optional<deadlines::iterator> deadline;
        std::uint32_t operation = 0;
        std::uint16_t id = 0;
        bool is_notice = false;
        bool is_sent = false;
        bool is_answered = false;
        bool is_withdrawing = false;
        error_code result;
        reply answer;

        bool is_completed() const noexcept { return !on_reply && !on_notified; }
    };
    using outgoing_list = std::list<outgoing>;
    using position = outgoing_list::iterator;

    // A call of a handler of the program's.
    struct call {
        waiting_handler<error_code, reply> on_reply;
        control_waiter on_notified;
        waiting_handler<error_code, request> on_request;
        error_code code;
        reply answer;
        request incoming;

        void operator()();
    };

    // A request of the peer's that waits for async_next(). It is made a `request` when it is
    // delivered: that owns this core.
    struct arrival {
        message body;
        wire::request_tag tag;
    };

    // A number of the peer's.
    struct incoming_number {
        bool is_open = false;
        bool is_notice = false;
        bool is_cancelled = false;
    };

    void context_is_going(boost::asio::execution_context const&) noexcept override;
    void call_later(call what);

    void enqueue(outgoing&& a, std::chrono::milliseconds timeout);
    void send_queued();
    void on_sent(std::uint16_t id, error_code ec);
    void free_number(position a);
    call complete(outgoing& a, error_code ec);
    void cancel(std::uint64_t serial, error_code why);
    void set_deadline(outgoing& a, std::chrono::milliseconds from_now);
    void clear_deadline(outgoing& a) noexcept;
    void arm_timer();
    void on_timer();

    void start_receiving();
    void receive();
    void on_message(error_code ec, message m);
    call process(message m, error_code& violation);
    call on_request(arrival a, error_code& violation);
    call on_answer(arrival a, error_code& violation);
    void on_cancellation(std::uint16_t id, error_code& violation);
    request make_request(arrival a);
    void deliver();
    waiting_handler<error_code, request> take_next();
    void cancel_next(std::uint64_t serial);
    void send_control(wire::request_kind kind, std::uint16_t id);
    void close_number(std::uint16_t id);
    void on_end(error_code ec);
    void continue_finishing();

    request_channel_options const options_;
    std::shared_ptr<channel_core> const messages_;
    hosting::membership membership_;

    mutable std::mutex mutex_;
    // Everything below is guarded by mutex_.
    std::optional<boost::asio::steady_timer> timer_;
    clock::time_point timer_expiry_ = clock::time_point::max();
    bool is_shut_down_ = false;
    bool is_receiving_ = false;
    std::uint64_t serial_ = 0;

    outgoing_list waiting_;
    outgoing_list outstanding_;
    std::vector<std::optional<position>> by_id_;
    std::vector<std::uint16_t> free_ids_;
    deadlines deadlines_;

    std::vector<incoming_number> incoming_;
    std::size_t unanswered_ = 0;
    std::deque<arrival> arrived_;
    wait_list<waiting_handler<error_code, request>> nexts_;
    error_code end_;  // what async_next() gets when nothing has arrived

    bool has_peer_ended_ = false;
    bool is_over_ = false;  // no message arrives any more
    bool is_finishing_ = false;
    bool is_end_sent_ = false;

    request_channel_statistics counted_;
};

}  // namespace rcverbs::detail
