// channel_core.hpp — what message_channel and request_channel share: the messages of a channel, on
// the kit of rcverbs/experimental/protocol.hpp. message_core and request_core are derived from it, and have the
// handlers that receive.
//
// machines::channel_machine decides; this has the memory, the handlers and the connection. Any
// thread may send, receive and release: its functions use the state inside driver::enter(). The
// program's handlers are called in the driver's order by deliver_one(), so they do not overlap.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/error.hpp>
#include <boost/container/stable_vector.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/message_channel.hpp>
#include <rcverbs/experimental/protocol.hpp>

#include "machines/channel_machine.hpp"
#include "machines/counter.hpp"
#include "messages/outgoing_message.hpp"
#include "messages/turns.hpp"
#include "wire/channel_hello.hpp"
#include "wire/channel_message.hpp"
#include "wire/request_tag.hpp"

namespace rcverbs::detail {

/// The first option out of its range; empty if there is none.
std::string problem_of(message_channel_options const& options);

class channel_core : public protocol::handshake, private machines::channel_actions {
public:
    using waiter = protocol::waiter<error_code>;

    /// @param requests  Of a request channel, how many of the peer's it takes at a time; else 0.
    channel_core(connection over, message_channel_options const& options, std::uint16_t requests);
    /// Any thread.
    protection_domain domain() const { return lower().domain(); }

    void connect(endpoint const& peer, std::vector<std::byte> greeting, control_handler handler);
    void accept(std::vector<std::byte> greeting, control_handler handler);
    void fetch(message what, mutable_slices const& into, control_handler handler);
    void finish(control_handler handler);
    /// Of all operations that are messages.
    virtual void cancel() = 0;
    void close() noexcept override;
    /// The same without memory: the receives of the connection say that it has ended.
    void close_connection() noexcept { driver::close(); }
    /// Of a message of the peer's.
    void release(message const& what) noexcept;
    void detach(message& what);

    std::vector<std::byte> greeting() const;
    std::uint32_t small_bytes_max() const noexcept;

protected:
    using machine = machines::channel_machine;
    using type = machine::type;

    static constexpr std::uint32_t nobody = UINT32_MAX;

    // A message of this side's, until its handler is called; at the machine's index of it. What is
    // registered for it is deregistered before the handler is destroyed, which may own the memory.
    struct outgoing {
        waiter handler;
        outgoing_message message;  // unless its bytes are all copied
        std::uint64_t tag = 0;
        std::uint64_t all_bytes = 0;
        std::uint32_t request = nobody;  // of a request channel
        std::uint64_t serial = 0;  // its index and the number of its use
        error_code result;
        std::uint32_t next_done = nobody;
    };
    // A message of the peer's that the program has not got.
    struct arrival {
        machine::kept place;
        std::uint64_t tag = 0;
        std::uint64_t size_bytes = 0;  // of the body, once the prefix is known
        std::size_t behind_segments = 0;  // of a large one
        std::size_t head_bytes = 0;  // the end of the prefix
        std::vector<std::byte> own;  // once detached
    };

    std::shared_ptr<channel_core> self() {
        return std::static_pointer_cast<channel_core>(shared_from_this());
    }
    /// The handler of an operation; empty if the context is gone.
    waiter waiter_for(control_handler handler) const;
    /// A message to be sent: see compose(). Any thread.
    outgoing_message message_of(
        body_source const& body, wire::request_prefix const& before, error_code& refused
    ) {
        bool const large = is_large(before.size_bytes + body.size());
        // Its bytes would not be encrypted.
        if (large && seals_messages()) refused = errc::message_too_large;
        if (refused) return {};
        return compose(lower(), body, before, large, refused);
    }
    bool is_large(std::uint64_t size_bytes) const noexcept;
    /// Ends handlers that no longer wait.
    template <class Removed>
    void abort(Removed taken) {
        for (auto& each : taken)
            deliver(std::move(each.handler), boost::asio::error::operation_aborted, {});
    }
    void on_end(failure const& why) final;
    void on_abandoned() noexcept override;
    /// The program's counters. Any thread.
    message_channel_statistics message_statistics();
    void publish_state() noexcept override;

    // All below is used inside.

    /// Sends a message, or tells its handler that it is refused; then false.
    bool send(outgoing_message& m, waiter& who, error_code refused);
    /// Sends a message, which is moved from if it must be kept. Returns its index. REQUIRES: may_send().
    ///
    /// @param request  Of a request channel; else nobody.
    std::uint32_t submit(outgoing_message& m, waiter&& who = {}, std::uint32_t request = nobody);
    bool may_send(outgoing_message const& m) const noexcept;
    /// What a message that may not be sent is refused with.
    error_code refusal() const;
    machine::cancelled take_back(std::uint32_t message);
    /// Takes back all messages that have handlers.
    void take_back_all();
    void finish_sending();
    bool is_idle() const noexcept { return state_ == state::idle; }
    bool is_open() const noexcept { return state_ == state::open; }
    /// Why there are no more messages, once has_message() is false; empty until then.
    error_code end_of_messages() const noexcept { return end_of_messages_; }
    bool has_message() const noexcept { return machine_.has_kept(); }
    arrival take_message();
    /// The bytes before the body, or behind the segments.
    std::span<std::byte const> prefix_of(arrival const& a, std::size_t size_bytes) const;
    /// REQUIRES: `m` is no message.
    void make_message(message& m, arrival&& a);
    /// The opposite: `m` is no message any more, and is not released.
    static arrival unmake_message(message& m) noexcept;
    void detach(arrival& a);
    void release(arrival const& a) { machine_.release(a.place, *this); }
    /// True if more than half of the receives that the peer's messages may take are held.
    bool holds_much() const noexcept;
    /// Messages that have not been posted.
    std::size_t waiting() const noexcept { return machine_.waiting(); }
    /// How many unanswered requests the peer takes; 0 until the channel is open.
    std::uint16_t peer_requests() const noexcept { return peer_requests_; }
    /// Goes on with accepting after holds_back(), or refuses the peer as busy. Any thread; without effect
    /// if the channel has ended or gone on meanwhile.
    void proceed_accept(error_code refused);
    /// The peer's hello. REQUIRES: it is well-formed.
    wire::channel_hello theirs() const;
    void end(error_code why, step where, close_reason reason);

    /// Of a client that connects again, the number by which the server knows it.
    virtual std::optional<std::array<std::byte, wire::channel_identity_bytes>> identity() const {
        return {};
    }
    /// True if accepting waits for proceed_accept().
    virtual bool waits_for_older(wire::channel_hello const&) { return false; }
    /// The channel is open.
    virtual void on_open() {}
    /// A message without a handler is over.
    virtual void on_over(outgoing const&, error_code) {}
    /// The program wants to finish: finish_sending() follows when nothing more is to be sent.
    virtual void start_finishing() = 0;
    /// On what a channel has waited that could not finish in time.
    virtual error_code why_late() const noexcept;
    /// The connection has ended: before the channel does.
    virtual void on_connection_end() {}
    /// True if deliver_result() has something to do.
    virtual bool is_result_due() noexcept = 0;
    /// As deliver_one(), for what is not a message of this side's.
    virtual bool deliver_result() = 0;

    message_channel_options const options_;

private:
    enum class state : std::uint8_t { idle, connecting, open, ended };

    struct fetching;

    // Connecting: see channel_handshake.cpp.
    error_code begin(bool is_active, std::span<std::byte const> greeting);
    wire::channel_hello own_hello() const;
    error_code prepare() override;
    std::vector<std::byte> hello(error_code refused) const override;
    error_code judge(std::span<std::byte const> theirs) override;
    error_code reason(std::span<std::byte const> theirs) const override;
    bool holds_back() override;
    error_code on_established() override;
    void on_result(error_code ec, bool is_of_connection) override;
    void open(wire::channel_hello const& theirs);
    void take_early();

    bool is_delivery_due() noexcept final { return done_first_ != nobody || is_result_due(); }
    bool deliver_one() final;
    bool deliver_done();
    [[gnu::noinline]] bool deliver_deregistered(std::uint32_t message, error_code result);
    void on_delivered() final;
    bool begin_to_finish(waiter& who);

    // What the machine has done.
    void post(posting const& what) override;
    void repost(std::uint32_t receive) override;
    void complete(std::uint32_t message, outcome how) override;
    void disconnect() override;

    // Sending.
    void submit_written(
        std::shared_ptr<written_body> const& w, mutable_slice const& message, std::uint32_t slot
    );
    void on_sent(std::uint32_t slot, error_code ec);
    void on_cancelled(std::uint64_t serial, boost::asio::cancellation_type type);
    void await_withdrawal();
    void on_withdrawal_due();

    // Receiving.
    void on_received(std::uint32_t slot, error_code ec, receive_result const& what);
    void process(std::uint32_t slot, error_code ec, receive_result const& what);
    error_code take(std::uint32_t slot, std::size_t size_bytes);
    std::span<std::byte const> whole(std::uint32_t receive) const;
    static machine::kept kept_of(message const& what) noexcept;

    // Fetching: see fetching.cpp.
    wire::channel_segments segments_of(message const& what) const;
    void start_fetch(std::shared_ptr<fetching> const& f);
    void on_fetched(message& what);
    void on_fetch_ended();

    // Ending.
    void stop(error_code why);
    void on_broken(error_code ec);
    void on_failed(error_code ec);
    void on_late();

    std::uint16_t const requests_;
    protocol::orderly_end end_{*this};
    protocol::deadline withdraw_limit_{*this};
    protocol::deadline accept_limit_{*this};

    // Everything below is used inside.
    state state_ = state::idle;
    std::vector<std::byte> own_greeting_;
    machine machine_;
    protocol::slots slots_{*this};
    // Read by any thread. 0 until the channel is open.
    std::atomic<std::uint32_t> small_bytes_max_{0};
    std::uint16_t peer_requests_ = 0;

    boost::container::stable_vector<outgoing> outgoing_;
    // Of the message that submit() hands to the machine, until it is posted; else null.
    outgoing_message* unposted_ = nullptr;
    std::uint32_t unposted_index_ = nobody;
    // Messages that are over, in order, whose handlers are to be called.
    std::uint32_t done_first_ = nobody;
    std::uint32_t done_last_ = nobody;
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
    // By receive, what has arrived in it.
    struct content {
        std::uint64_t tag = 0;
        std::uint64_t size_bytes = 0;
        std::uint32_t wire_bytes = 0;  // in the receive
        std::uint32_t behind_segments = 0;
    };
    std::vector<content> arrived_;
    // As many are fetched at a time as there are receives.
    turns<std::shared_ptr<fetching>> fetches_;
    // The machine was told that messages are being delivered.
    bool is_delivering_ = false;

    // What receivers get when all messages have been received.
    error_code end_of_messages_;
    // What messages that are not sent end with.
    error_code unsent_;

    // Read by any thread.
    struct {
        machines::counter sent, sent_bytes, arrived, arrived_bytes, credits_sent, waiting, held;
    } counted_;
};

}  // namespace rcverbs::detail
