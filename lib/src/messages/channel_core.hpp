// channel_core.hpp — the state shared by message_channel handles and messages.
//
// One mutex guards everything. The program's handlers are called in the connection's sequence, so
// they do not overlap, and never under the mutex. The credit window decides what may be sent.
//
//   send ─▶ waiting ── credit, slot ─▶ sent ── acknowledged, fetched ─▶ handler
//   receive ─▶ arrived ── receiver ─▶ message ── released ─▶ receive posted again ─▶ given back
//
// A core may outlive its context: context_is_going() releases the executor and the timer.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/message_channel.hpp>

#include "connection/core.hpp"
#include "hosting/deferred_completions.hpp"
#include "hosting/members.hpp"
#include <rcverbs/detail/wait_list.hpp>
#include "machines/credit_window.hpp"
#include "wire/channel_hello.hpp"
#include "wire/channel_message.hpp"

namespace rcverbs::detail {

/// The first option out of its range; empty if there is none.
std::string problem_of(message_channel_options const& options);

class channel_core final : public std::enable_shared_from_this<channel_core>,
                           public hosting::member {
public:
    /// @param requests  Of a request channel, how many of the peer's it takes at a time; else 0.
    static std::shared_ptr<channel_core> make(
        connection over, message_channel_options const& options, std::uint16_t requests = 0
    );
    channel_core(connection over, message_channel_options const& options, std::uint16_t requests);
    ~channel_core();

    // False if it is refused before it begins, which the handler is told.
    bool connect(endpoint const& peer, std::vector<std::byte> greeting, control_handler handler);
    bool accept(std::vector<std::byte> greeting, control_handler handler);
    /// The handler of a message that is sent; empty if the context is gone.
    control_waiter waiter_for(control_handler handler) const;
    /// Returns a number for cancel_send(); 0 if the message was refused.
    std::uint64_t send(std::span<std::byte const> bytes, std::uint64_t tag, control_waiter waiter);
    std::uint64_t send(const_slices const& source, std::uint64_t tag, control_waiter waiter);
    /// What has become of a message that is to be cancelled: over, taken back before it was sent,
    /// sent from a copy, or still in the program's memory, which the peer is asked to let go.
    enum class cancelled : std::uint8_t { over, unsent, copied, exposed };
    cancelled cancel_send(std::uint64_t serial);
    void receive(message_handler handler);
    void fetch(message what, mutable_slices const& into, control_handler handler);
    /// Finishes in two steps: the second lets CLOSE go, when nothing more will be sent. False if the
    /// first is refused, which its handler is counts.
    bool begin_to_finish(control_handler handler);
    void finish_sending();
    void close() noexcept;
    /// Ends at once. REQUIRES: this runs in the connection's order.
    void end_now(error_code why, close_reason reason);
    /// May be called again.
    void context_is_going(boost::asio::execution_context const&) noexcept override;
    /// A message has been released.
    void release(message const& what) noexcept;
    void detach(message& what);
    /// Gives a function to the connection's order.
    template <class Function>
    void run_later(Function function) {
        order_->call(std::move(function));
    }

    std::vector<std::byte> greeting() const;
    std::uint32_t small_bytes_max() const noexcept;
    /// How many unanswered requests the peer takes; 0 until the channel is open.
    std::uint16_t peer_requests() const noexcept;
    /// Messages that have not been sent.
    std::size_t waiting_count() const noexcept;
    /// True if more than half of the receives that the peer's messages may take are held.
    bool holds_much() const noexcept;
    /// Empty once its context is destroyed.
    boost::asio::any_io_executor executor() const;
    failure last_failure() const;
    message_channel_statistics statistics() const;

private:
    using guard = std::unique_lock<std::mutex>;
    using window = machines::credit_window;

    enum class state : std::uint8_t { idle, connecting, open, ended };
    enum class side : std::uint8_t { active, passive };

    // A message of this side's, until its handler is called; without a handler for those of the
    // channel's own.
    struct outgoing {
        control_waiter handler;
        wire::channel_type type = wire::channel_type::eager;
        std::uint32_t count = 0;
        std::uint64_t tag = 0;
        std::uint64_t size_bytes = 0;
        slice_list source;  // of a small message
        std::vector<remote_region> segments;  // of a large one
        const_memory_region registered;  // for this message
        std::uint64_t number = 0;  // of a large one
        std::uint32_t slot = 0;
        error_code result;
        bool is_acknowledged = false;
        bool is_answered = false;
        bool is_withdrawn = false;
    };
    using outgoing_list = std::list<outgoing>;
    using sending = outgoing_list::iterator;

    // What a receive has brought.
    struct arrival {
        std::uint32_t slot = 0;
        wire::channel_head head;
        std::uint64_t number = 0;
        std::uint64_t message_bytes = 0;
    };

    struct fetching;

    // Calling the program.
    void call_later(control_waiter waiter, error_code result);

    // Connecting.
    error_code begin(side which, std::span<std::byte const> greeting);
    wire::channel_hello own_hello(std::vector<std::byte> greeting) const;
    error_code prepare();
    void on_established(error_code ec, control_waiter handler);
    void open(wire::channel_hello const& theirs);
    void take_early();

    // Sending.
    std::uint64_t large_unanswered_max(std::uint16_t receives) const noexcept;
    bool is_large(std::uint64_t size_bytes) const noexcept;
    std::uint64_t enqueue(outgoing&& o, error_code refused, control_waiter waiter);
    sending idle_entry();
    void send_queued();
    void post(sending o);
    void post_control(wire::channel_type type);
    void on_sent(sending o, error_code ec);
    void on_cancelled(std::uint64_t serial, boost::asio::cancellation_type type);
    void withdraw_by(std::uint64_t serial, std::chrono::steady_clock::time_point when);
    void await_withdrawal();
    void on_withdrawal_due();
    void complete(outgoing_list& done);
    void complete_and_deliver(outgoing_list& done);

    // Receiving.
    mutable_slice receive_slot(std::uint32_t i) const;
    mutable_slice send_slot(std::uint32_t i) const;
    void post_receive(std::uint32_t i);
    void give_back(std::uint32_t slot, window::kind of);
    void on_received(std::uint32_t slot, error_code ec, receive_result what);
    void process(std::uint32_t slot, error_code ec, receive_result what);
    error_code take(std::uint32_t slot, std::size_t size_bytes, outgoing_list& done);
    void on_answer(arrival const& a, outgoing_list& done, error_code& ec);
    void on_withdrawal(std::uint64_t number);
    void prepare_fetch(fetching& f) const;
    void start_fetch(std::shared_ptr<fetching> const& f);
    void on_fetched(message& what);
    void on_fetch_ended();
    void answer(std::uint64_t number, bool is_fetched);
    void end_hold(message const& what);
    void deliver();
    void cancel_receive(std::uint64_t serial);
    message make_message(arrival const& a);

    // Ending.
    void end(error_code why, step where, close_reason reason, outgoing_list& done);
    void on_broken(error_code ec, outgoing_list& done);
    void on_ended(error_code why);
    void on_late();
    void continue_finishing();
    void on_finished(error_code ec);

    message_channel_options const options_;
    std::uint16_t const requests_;
    connection connection_;
    hosting::membership membership_;
    std::shared_ptr<hosting::sequence> const order_;

    mutable std::mutex mutex_;
    // Everything below is guarded by mutex_.
    boost::asio::any_io_executor executor_;  // empty once its context is destroyed
    std::optional<boost::asio::steady_timer> timer_;
    std::optional<boost::asio::steady_timer> withdraw_timer_;
    bool is_shut_down_ = false;
    state state_ = state::idle;
    side side_ = side::active;
    registered_buffer memory_;
    window credits_;
    std::uint32_t small_bytes_max_ = 0;
    std::uint16_t peer_requests_ = 0;
    std::uint16_t peer_receives_ = 0;
    std::vector<std::byte> greeting_;
    std::uint64_t serial_ = 0;

    outgoing_list answers_;  // before waiting_: the peer waits for them
    outgoing_list waiting_;
    outgoing_list sent_;
    outgoing_list idle_;
    std::vector<std::uint32_t> free_slots_;
    std::uint64_t large_sent_ = 0;
    std::uint64_t answers_arrived_ = 0;  // to these
    struct withdrawal {
        std::uint64_t serial = 0;
        std::chrono::steady_clock::time_point deadline;
    };
    std::deque<withdrawal> withdrawals_;

    // Of receives that were faster than the handler of the connect.
    struct early_arrival {
        std::uint32_t slot = 0;
        error_code code;
        receive_result what;
    };
    std::vector<early_arrival> early_;
    std::vector<arrival> arrived_;  // a ring of as many places as there are receives
    std::size_t arrived_first_ = 0;
    std::size_t arrived_count_ = 0;
    std::uint64_t large_arrived_ = 0;
    std::uint64_t answers_sent_ = 0;  // to these
    // Of large messages that have not been answered.
    struct announced {
        std::uint64_t number = 0;
        bool is_fetched = false;
    };
    std::vector<announced> announced_;
    // As many are fetched at a time as there are receives.
    std::size_t fetches_ = 0;
    std::deque<std::shared_ptr<fetching>> waiting_fetches_;
    std::size_t held_ = 0;
    wait_list<waiting_handler<error_code, message>> receivers_;
    bool is_delivering_ = false;

    // What receivers get when all messages have been received.
    error_code end_of_messages_;
    bool has_peer_closed_ = false;
    bool is_close_posted_ = false;
    bool is_close_acknowledged_ = false;
    bool is_disconnecting_ = false;
    bool is_finishing_ = false;
    bool has_all_sent_ = false;  // the program will send nothing more
    control_waiter finisher_;

    message_channel_statistics counted_;
    failure failure_;
};

}  // namespace rcverbs::detail
