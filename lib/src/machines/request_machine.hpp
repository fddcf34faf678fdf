// request_machine.hpp — the decisions of one side of a request channel: when a request is sent and
// under which number, when it is over, what of the peer's is against the rules, and when the
// messages may end.
//
//   add ──▶ waiting ── a number is free ──▶ outstanding ── sent and answered ──▶ number free
//                     (answered, dropped, cancelled or failed: over, once)
//   the peer's: arrived ──▶ open ── answered or dropped ──▶ closed
//
// The answer of a request with a *target*, memory of this side's, may be written there by the peer.
// Such a request that is cancelled is over only when the peer has said that it writes no more, or
// has answered; at the end, when the connection is over.
//
// The number of a request that was over early stays in use until the peer has answered, so that a
// late answer cannot meet another request. docs/reference/channel-format.md has the rules.
//
// Pure logic: no I/O, no time, no threads, no handlers, no bytes. Requests of this side are indices of
// a table that the owner has, too; requests of the peer's are their numbers. What is to be done is
// called on request_actions, from inside the event that led to it. A copy of a machine is a machine
// in the same state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rcverbs::machines {

/// What a machine has its owner do.
class request_actions {
public:
    /// Numbered as on the wire.
    enum class kind : std::uint8_t {
        request = 1,
        notice = 2,
        answer = 3,
        dropped = 4,
        cancel = 5,
        end = 6,
        released = 7
    };

    /// How a request or notice of this side's ended. `sent`: a notice. `failed`: its message was not
    /// sent. `ended`: with the channel.
    enum class outcome : std::uint8_t { answered, sent, dropped, cancelled, failed, ended };
    /// What became of the message of a request that is cancelled: over; taken back before it was
    /// posted; posted, from a copy; or still in the program's memory, which the peer is asked to let
    /// go.
    enum class taken_back : std::uint8_t { over, unsent, copied, exposed };

    /// Sends a request; sent() follows. False if there is no memory for that; then nothing follows.
    virtual bool send_request(std::uint32_t request, std::uint16_t id) = 0;
    /// Sends a message without a body.
    virtual void send_control(kind what, std::uint16_t id) = 0;
    /// Cancels the message of a request; sent() follows unless it is over.
    virtual taken_back take_back_request(std::uint32_t request) = 0;
    /// The peer must answer the cancellation of a request with a target soon.
    virtual void await_release(std::uint32_t request) = 0;
    /// The request is over; its index is used again once the owner calls forget().
    virtual void complete_request(std::uint32_t request, outcome how) = 0;
    /// Nothing more will be sent.
    virtual void finish_messages() = 0;

protected:
    ~request_actions() = default;
};

class request_machine {
public:
    using kind = request_actions::kind;
    using outcome = request_actions::outcome;

    /// How a message of the peer's broke the rules.
    enum class violation : std::uint8_t { none, malformed, unexpected };

    /// No requests.
    request_machine() = default;
    /// @param own   Requests of the peer's that may be unanswered.
    /// @param peer  Requests of this side that may be.
    request_machine(std::uint16_t own, std::uint16_t peer) : own_max_{own}, peer_max_{peer} {}

    // --- this side's requests ------------------------------------------------------------------

    /// Adds a request or notice; returns its index. proceed() sends it. Throws std::bad_alloc; then
    /// nothing has changed. REQUIRES: may_ask().
    std::uint32_t add(bool is_notice, bool has_target = false);
    /// What add() will return.
    std::uint32_t next_index() const noexcept {
        return free_.count > 0 ? free_.first : static_cast<std::uint32_t>(requests_.size());
    }
    bool may_ask() const noexcept { return !is_over_ && !is_finishing_ && peer_max_ > 0; }
    /// Sends what may be sent.
    void proceed(request_actions& out);
    /// The message of a request has been sent, which a declined or withdrawn one has, too; or failed.
    void sent(std::uint32_t request, bool is_failed, request_actions& out);
    /// Ends a request early. One whose body the peer may still read is over when sent() follows.
    void cancel(std::uint32_t request, request_actions& out);
    /// A completed request's index may be used again.
    void forget(std::uint32_t request) noexcept;
    /// The request that an ANSWER of this number is for, if its owner still wants it; else nobody.
    std::uint32_t wants_answer(std::uint16_t id) const noexcept;

    // --- the peer's ----------------------------------------------------------------------------

    /// A message has arrived. On a violation nothing has changed, and the owner ends the channel.
    ///
    /// @param is_empty    No body, and a value of 0: all that a notice may be answered with.
    /// @param has_target  Of a request: its answer may be written to the peer's memory.
    violation arrived(
        kind what, std::uint16_t id, bool is_empty, bool has_target, request_actions& out
    );
    /// The answer of an open request has been given to the channel.
    void answered(std::uint16_t id, request_actions& out);
    /// An open request will not be answered. After end() the peer is not told.
    void drop(std::uint16_t id, request_actions& out);
    bool is_open(std::uint16_t id) const noexcept {
        return id < incoming_.size() && incoming_[id].is_open;
    }
    /// True if the peer no longer waits for an open request: it has cancelled it, or end() was called.
    bool is_cancelled(std::uint16_t id) const noexcept { return incoming_[id].is_cancelled; }
    bool is_notice(std::uint16_t id) const noexcept { return incoming_[id].is_notice; }
    /// True if the answer may be written to the peer's memory.
    bool has_target(std::uint16_t id) const noexcept { return incoming_[id].has_target; }

    // --- the end -------------------------------------------------------------------------------

    /// This side asks nothing more: END follows the last answer.
    void finish(request_actions& out);
    /// Nothing more is sent or arrives. Requests whose message is outstanding are over when sent()
    /// says so; those with a target, when connection_ended() does.
    void end(request_actions& out);
    /// The peer cannot write to this side's memory any more. REQUIRES: end() was called.
    void connection_ended(request_actions& out);

    // --- observers -----------------------------------------------------------------------------

    static constexpr std::uint32_t nobody = UINT32_MAX;

    std::size_t waiting() const noexcept { return waiting_.count; }
    std::size_t outstanding() const noexcept { return outstanding_.count; }
    /// Requests of the peer's that are not answered.
    std::size_t open() const noexcept { return open_; }
    /// The peer asks nothing more.
    bool has_peer_ended() const noexcept { return has_peer_ended_; }
    /// Both sides have ended in order, as far as requests go.
    bool is_finished() const noexcept { return has_peer_ended_ && is_end_sent_ && open_ == 0; }
    bool is_over() const noexcept { return is_over_; }
    bool is_finishing() const noexcept { return is_finishing_; }
    /// Messages that may wait to be sent: what a peer can cause that reads the answers before it uses
    /// their numbers again.
    std::size_t queued_max() const noexcept {
        return 2 * std::size_t{own_max_} + 2 * by_id_.size() + 1;
    }

    /// The state as numbers, for tests that visit each state once.
    void append_to(std::vector<std::uint64_t>& out) const;

private:
    enum class stage : std::uint8_t { free, waiting, outstanding, over };

    struct request {
        std::uint32_t next = nobody;
        std::uint32_t previous = nobody;
        std::uint16_t id = 0;
        stage at = stage::free;
        outcome how = outcome::answered;
        bool has_result = false;  // `how` is decided
        bool is_notice = false;
        bool is_sent = false;
        bool is_answered = false;
        bool is_withdrawing = false;
        bool has_target = false;  // that the peer may write to
        bool is_releasing = false;  // the peer has been asked to write no more
        bool is_completed = false;
        bool is_forgotten = false;
    };
    // Linked through the requests.
    struct list {
        std::uint32_t first = nobody;
        std::uint32_t last = nobody;
        std::size_t count = 0;
    };
    struct incoming {
        bool is_open = false;
        bool is_notice = false;
        bool is_cancelled = false;
        bool has_target = false;
    };

    void push(list& to, std::uint32_t i) noexcept;
    void remove(list& from, std::uint32_t i) noexcept;
    bool take_number(std::uint16_t& id);
    void free_number(std::uint32_t i) noexcept;
    static outcome success_of(request const& r) noexcept;
    void complete(std::uint32_t i, outcome how, request_actions& out);
    void recycle(std::uint32_t i) noexcept;
    violation on_request(kind what, std::uint16_t id, bool has_target);
    violation on_answer(kind what, std::uint16_t id, bool is_empty, request_actions& out);
    violation on_cancel(std::uint16_t id, request_actions& out);
    violation on_released(std::uint16_t id, request_actions& out);
    void close(std::uint16_t id, request_actions& out);
    void continue_finishing(request_actions& out);

    std::uint16_t own_max_ = 0;
    std::uint16_t peer_max_ = 0;

    std::vector<request> requests_;
    list free_;
    list waiting_;
    list outstanding_;
    std::vector<std::uint32_t> by_id_;
    std::vector<std::uint16_t> free_ids_;

    std::vector<incoming> incoming_;  // as many as the peer has used
    std::size_t open_ = 0;

    bool is_over_ = false;
    bool is_finishing_ = false;
    bool is_end_sent_ = false;
    bool has_peer_ended_ = false;
    bool has_finished_ = false;
};

}  // namespace rcverbs::machines
