// request_core.hpp — the state shared by request_channel handles, requests and replies.
//
// machines::request_machine decides; this has the handlers, the deadlines and the messages, as
// channel_core does for a channel.
#pragma once

#include <boost/intrusive/set.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include <rcverbs/request_channel.hpp>
#include <rcverbs/experimental/protocol.hpp>

#include "machines/request_machine.hpp"
#include "messages/channel_core.hpp"
#include "wire/request_tag.hpp"

namespace rcverbs::detail {

/// The first option out of its range; empty if there is none.
std::string problem_of(request_channel_options const& options);

class request_core final : public channel_core, private machines::request_actions {
public:
    request_core(connection over, request_channel_options const& options);
    ~request_core() override;

    /// @param handle  Where the request's number is put, for cancel_asked(); lives as long as the handler.
    ///                Null for none.
    void ask(question const& what, reply_handler handler, std::uint64_t* handle = nullptr);
    void notify(question const& what, control_handler handler, std::uint64_t* handle = nullptr);
    /// Cancels what was asked with this handle, if it is not over. Any thread.
    void cancel_asked(std::shared_ptr<std::uint64_t const> handle);
    void next(next_handler handler);
    /// Calls the function, in the driver's order, when the peer sends no more requests because it
    /// finishes. Once, at once if that has happened.
    void when_peer_ends(std::function<void()> function);
    /// Calls the function, in the driver's order, when all requests and notices of this side are over.
    /// Once, at once if none is outstanding.
    void when_answered(std::function<void()> function);
    void cancel() override;

    // Of a request of the peer's.
    void answer(
        std::uint16_t id,
        remote_region const& target,
        message_content const& what,
        control_handler handler
    );
    void refuse(control_handler handler);
    void drop(std::uint16_t id) noexcept;
    bool is_cancelled(std::uint16_t id) const noexcept;

    // From session_table, on any thread.
    /// Nothing of the client's older channels can be executed any more; or a newer one waits.
    void admit(error_code refused) { proceed_accept(refused); }
    /// The client has connected again: ends, unless it finishes in order.
    void end_for_newer();

    request_channel_statistics statistics();

private:
    // True if the peer may write the answer there. What it writes is not encrypted.
    bool offers(mutable_slice const& into) const noexcept {
        return into.size() > 0 && !seals_messages();
    }
    std::shared_ptr<request_core> self() {
        return std::static_pointer_cast<request_core>(shared_from_this());
    }
    using clock = std::chrono::steady_clock;
    using kind = machines::request_actions::kind;
    using outcome = machines::request_machine::outcome;

    // A request or notice of this side's, at the machine's index of it.
    struct asked : boost::intrusive::set_base_hook<> {
        protocol::waiter<error_code, reply> on_reply;
        waiter on_sent;  // of a notice
        std::uint64_t serial = 0;  // its index and the number of its use
        std::uint64_t* handle = nullptr;  // of who asks
        std::uint32_t operation = 0;
        std::uint8_t head_bytes = 0;
        bool is_notice = false;
        bool is_releasing = false;  // `due` is that of the peer's RELEASED
        mutable_slice into;  // memory for the answer
        outgoing_message body;  // until it is sent
        std::uint32_t message = nobody;  // the channel's, while it is sent
        clock::time_point due;  // if it is in the list of deadlines
        arrival answer;
        bool has_answer = false;
        std::optional<std::uint64_t> written_bytes;  // the answer is in `into`
        error_code code;
        std::uint32_t next_done = nobody;

        void keep_early_cancellation() {
            if (is_notice) on_sent.keep_early_cancellation();
            else on_reply.keep_early_cancellation();
        }
        bool operator<(asked const& other) const noexcept { return due < other.due; }
    };
    // A request of the peer's, at its number: what waits for async_next().
    struct waiting_request {
        arrival body;
        remote_region target;
        std::uint64_t number = 0;  // in the order of arrival
        std::uint32_t next = nobody;
    };

    void compose_request(asked& a, question const& what, error_code& refused);
    outgoing_message answer_of(
        std::uint16_t id,
        remote_region const& target,
        message_content const& what,
        error_code& refused
    );
    void start(asked&& a, question const& what, std::uint64_t* handle);
    void start_now(asked& a, std::chrono::milliseconds timeout, error_code refused);
    void fail(asked& a, error_code why);
    void cancel_asked(std::uint64_t serial);
    template <class Waiter>
    void cancel_with(Waiter& who, std::uint64_t serial);
    void await_answers();
    void arm(clock::time_point first);
    void on_answers_due();

    // What the machine has done.
    bool send_request(std::uint32_t request, std::uint16_t id) override;
    void send_control(kind what, std::uint16_t id) override;
    taken_back take_back_request(std::uint32_t request) override;
    void await_release(std::uint32_t request) override;
    void complete_request(std::uint32_t request, outcome how) override;
    void finish_messages() override { finish_sending(); }

    // Of the channel.
    std::optional<client_identity> identity() const override { return options_.identity; }
    bool waits_for_older(wire::channel_hello const& theirs) override;
    void on_open() override;
    void on_over(outgoing const& o, error_code result) override;
    error_code why_late() const noexcept override;
    void start_finishing() override { all_.finish(*this); }
    void on_connection_end() override;
    void publish_state() noexcept override;
    bool is_result_due() noexcept override;
    bool deliver_result() override;
    void on_abandoned() noexcept override;

    error_code take(arrival&& a);
    error_code take_answer(
        asked& a, wire::request_tag const& tag, std::span<std::byte const> before
    );
    void make_reply(reply& r, asked& a);
    bool is_asking() const noexcept { return all_.waiting() + all_.outstanding() > 0; }
    bool is_next_due() const noexcept {
        return !nexts_.empty() && (arrived_first_ != nobody || end_);
    }
    void take_messages();
    void on_end_of_messages();
    void drop_arrived();
    void leave_if_idle();
    void complete_first();
    void deliver_first();
    void make_request(request& r, std::uint16_t id);
    void cancel_next(std::uint64_t serial);
    void put_back(std::uint16_t id, request&& r) noexcept;
    void put_back_now(std::uint16_t id, request& r) noexcept;
    void answer_now(
        std::uint16_t id, std::uint32_t status, outgoing_message& m, waiter& who, error_code refused
    );

    request_channel_options const options_;
    protocol::deadline answer_limit_{*this};

    machines::request_machine all_;
    boost::container::stable_vector<asked> asked_;
    // The body of the request that start() hands to the machine, until it is sent; else null.
    outgoing_message* unsent_body_ = nullptr;
    std::uint32_t unsent_index_ = nobody;
    boost::intrusive::multiset<asked> deadlines_;
    clock::time_point armed_ = clock::time_point::max();
    // Requests that are over, in order, whose handlers are to be called.
    std::uint32_t done_first_ = nobody;
    std::uint32_t done_last_ = nobody;

    std::vector<waiting_request> arrived_;
    std::uint32_t arrived_first_ = nobody;
    std::uint32_t arrived_last_ = nobody;
    detail::wait_list<protocol::waiter<error_code, request>> nexts_;
    // By number of the peer's: nobody waits for the answer any more. Read by any thread.
    std::unique_ptr<std::atomic<bool>[]> const cancelled_;
    std::function<void()> on_peer_end_;
    std::function<void()> on_answered_;
    error_code end_;  // what async_next() gets when nothing has arrived
    error_code end_of_requests_;  // what requests end with that are not answered
    bool has_connection_ended_ = false;
    std::shared_ptr<channel_core> kept_;  // between the end of the channel and of its connection
    // The peer's, from waits_for_older() until nothing of this channel can be executed any more.
    std::optional<client_identity> client_;

    // Read by any thread. Written bytes: to this side's memory, by answers.
    struct {
        machines::counter answered, failed, arrived, waiting, outstanding, written_bytes;
    } counted_;
};

}  // namespace rcverbs::detail
