// channel_core.hpp — the state shared by message_channel handles and messages, on the kit of
// rcverbs/protocol.hpp.
//
// machines::channel_machine decides; this has the memory, the handlers and the connection. Any
// thread may send, receive and release: one mutex guards everything. The program's handlers are
// called in the driver's order, so they do not overlap, and never under the mutex.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <rcverbs/detail/wait_list.hpp>
#include <rcverbs/message_channel.hpp>
#include <rcverbs/protocol.hpp>
#include <rcverbs/registered_buffer.hpp>

#include "machines/channel_machine.hpp"
#include "wire/channel_hello.hpp"
#include "wire/channel_message.hpp"

namespace rcverbs::detail {

/// The first option out of its range; empty if there is none.
std::string problem_of(message_channel_options const& options);

class channel_core final : public protocol::driver, private machines::channel_actions {
public:
    using waiter = protocol::waiter<error_code>;
    using machine = machines::channel_machine;
    using cancelled = machine::cancelled;

    /// @param requests  Of a request channel, how many of the peer's it takes at a time; else 0.
    channel_core(
        connection over, message_channel_options const& options, std::uint16_t requests = 0
    );
    ~channel_core() override;

    // False if it is refused before it begins, which the handler is told.
    bool connect(endpoint const& peer, std::vector<std::byte> greeting, control_handler handler);
    bool accept(std::vector<std::byte> greeting, control_handler handler);
    /// The handler of a message that is sent; empty if the context is gone.
    waiter waiter_for(control_handler handler) const;
    /// Returns a number for cancel_send(); 0 if the message was refused.
    std::uint64_t send(std::span<std::byte const> bytes, std::uint64_t tag, waiter who);
    std::uint64_t send(const_slices const& source, std::uint64_t tag, waiter who);
    cancelled cancel_send(std::uint64_t serial);
    void receive(message_handler handler);
    void fetch(message what, mutable_slices const& into, control_handler handler);
    /// Finishes in two steps: the second lets CLOSE go, when nothing more will be sent. False if the
    /// first is refused, which its handler is told.
    bool begin_to_finish(control_handler handler);
    void finish_sending();
    void close() noexcept;
    /// Ends at once. REQUIRES: this runs in the driver's order.
    void end_now(error_code why, close_reason reason);
    /// Destroys the handlers, and deregisters messages. May be called again.
    void on_abandoned() noexcept override;
    /// A message has been released.
    void release(message const& what) noexcept;
    void detach(message& what);
    /// Gives a function to the driver's order.
    template <class Function>
    void run_later(Function function) {
        in_order(std::move(function));
    }

    std::vector<std::byte> greeting() const;
    std::uint32_t small_bytes_max() const noexcept;
    /// How many unanswered requests the peer takes; 0 until the channel is open.
    std::uint16_t peer_requests() const noexcept;
    /// Messages that have not been sent.
    std::size_t waiting_count() const noexcept;
    /// True if more than half of the receives that the peer's messages may take are held.
    bool holds_much() const noexcept;
    message_channel_statistics statistics() const;

private:
    using guard = std::unique_lock<std::mutex>;

    enum class state : std::uint8_t { idle, connecting, open, ended };
    static constexpr std::uint32_t nobody = UINT32_MAX;

    // A message of this side's, until its handler is called; at the machine's index of it.
    struct outgoing {
        waiter handler;
        std::uint64_t serial = 0;  // its index and the number of its use
        bool is_large = false;
        std::uint64_t tag = 0;
        std::uint64_t size_bytes = 0;
        slice_list source;  // of a small message
        std::vector<remote_region> segments;  // of a large one
        const_memory_region registered;  // for this message
        error_code result;
        std::uint32_t next_done = nobody;
    };
    // What a receive has brought.
    struct arrival {
        std::uint64_t tag = 0;
        std::uint64_t message_bytes = 0;
    };
    struct fetching;

    std::shared_ptr<channel_core> self() {
        return std::static_pointer_cast<channel_core>(shared_from_this());
    }
    void call_later(waiter who, error_code result);

    // Connecting.
    error_code begin(bool is_active, std::span<std::byte const> greeting);
    wire::channel_hello own_hello(std::vector<std::byte> greeting) const;
    error_code prepare();
    void on_established(error_code ec, waiter who);
    void open(wire::channel_hello const& theirs);
    void take_early();

    // What the machine has done. REQUIRES: the mutex is held.
    void post(posting const& what) override;
    void repost(std::uint32_t receive) override;
    void complete(std::uint32_t message, outcome how) override;
    void disconnect() override;

    // Sending.
    bool is_large(std::uint64_t size_bytes) const noexcept;
    std::uint64_t enqueue(outgoing&& o, error_code refused, waiter who);
    void on_sent(std::uint32_t slot, error_code ec);
    void on_cancelled(std::uint64_t serial, boost::asio::cancellation_type type);
    outgoing* find(std::uint64_t serial) noexcept;
    void await_withdrawal();
    void on_withdrawal_due();
    void complete_and_deliver();

    // Receiving.
    mutable_slice receive_slot(std::uint32_t i) const;
    mutable_slice send_slot(std::uint32_t i) const;
    void on_received(std::uint32_t slot, error_code ec, receive_result const& what);
    void process(std::uint32_t slot, error_code ec, receive_result const& what);
    error_code take(std::uint32_t slot, std::size_t size_bytes);
    machine::kept kept_of(message const& what) const noexcept;
    void prepare_fetch(fetching& f) const;
    void start_fetch(std::shared_ptr<fetching> const& f);
    void on_fetched(message& what);
    void on_fetch_ended();
    void deliver();
    void cancel_receive(std::uint64_t serial);
    message make_message(machine::kept const& what);

    // Ending.
    void end(error_code why, step where, close_reason reason);
    void on_broken(error_code ec);
    void on_end(failure const& of_connection) override;
    void on_late();
    void on_finished(error_code ec);

    message_channel_options const options_;
    std::uint16_t const requests_;
    // Used in the driver's order.
    protocol::deadline finish_limit_{*this};
    protocol::deadline withdraw_limit_{*this};

    mutable std::mutex mutex_;
    // Everything below is guarded by mutex_.
    state state_ = state::idle;
    bool is_active_ = false;
    machine machine_;
    registered_buffer memory_;
    std::uint32_t small_bytes_max_ = 0;
    std::uint16_t peer_requests_ = 0;
    std::vector<std::byte> greeting_;

    std::deque<outgoing> outgoing_;
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
    std::vector<arrival> arrived_;  // by receive
    // As many are fetched at a time as there are receives.
    std::size_t fetches_ = 0;
    std::deque<std::shared_ptr<fetching>> waiting_fetches_;
    wait_list<waiting_handler<error_code, message>> receivers_;
    bool is_delivering_ = false;

    // What receivers get when all messages have been received.
    error_code end_of_messages_;
    // What messages that are not sent end with.
    error_code unsent_;
    bool is_disconnecting_ = false;
    bool is_finishing_ = false;
    waiter finisher_;

    message_channel_statistics counted_;
};

}  // namespace rcverbs::detail
