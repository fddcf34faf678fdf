// channel_machine.hpp — the decisions of one side of a message channel: what is sent when, which
// receive is given back, when a message of the program's is over, and when the channel finishes.
//
//   send ──▶ waiting ── credit, slot ──▶ posted ── acknowledged, a large one also answered ──▶ over
//   arrived ──▶ kept ── taken by the program ──▶ held ── released, detached, fetched ──▶ receive
//                                                                                        posted
// The credit window decides what may be sent; docs/reference/channel-format.md has the rules.
//
// Pure logic: no I/O, no time, no threads, no handlers, no bytes. Messages are numbers: of the
// program's, an index of a table that the owner has, too; of the peer's, the receive that they took.
// What is to be done is called on channel_actions, from inside the event that led to it. A copy of a
// machine is a machine in the same state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "machines/credit_window.hpp"

namespace rcverbs::machines {

/// What a machine has its owner do.
class channel_actions {
public:
    using counts = credit_window::counts;

    /// Numbered as on the wire.
    enum class type : std::uint8_t {
        eager = 1,
        large = 2,
        large_done = 3,
        credit = 4,
        close = 5,
        withdraw = 6
    };
    /// A message to be posted.
    struct posting {
        type what = type::eager;
        counts carried;
        /// The send slot.
        std::uint32_t slot = 0;
        /// Of eager and large: the program's message.
        std::uint32_t message = 0;
        /// Of large_done and withdraw: the large message that it concerns.
        std::uint64_t number = 0;
        /// Of large_done.
        bool is_declined = false;
    };
    /// How a message of the program's ended. `ended`: with the channel.
    enum class outcome : std::uint8_t { sent, declined, withdrawn, cancelled, ended };

    virtual void post(posting const& what) = 0;
    /// Posts a receive again.
    virtual void repost(std::uint32_t receive) = 0;
    /// The message is over; its index is used again once the owner calls forget().
    virtual void complete(std::uint32_t message, outcome how) = 0;
    /// Both sides have finished.
    virtual void disconnect() = 0;

protected:
    ~channel_actions() = default;
};

class channel_machine {
public:
    using type = channel_actions::type;
    using outcome = channel_actions::outcome;
    using counts = channel_actions::counts;

    /// Send slots that are not for the program's messages.
    static constexpr std::uint32_t control_slots = 3;

    struct settings {
        std::uint16_t own_receives = credit_window::receives_min;
        std::uint16_t peer_receives = credit_window::receives_min;
        /// Of the program's messages; control_slots more exist.
        std::uint32_t sends = 1;
        /// The requests of both sides, of request channels.
        std::uint32_t requests = 0;
        /// This side disconnects when both have finished.
        bool disconnects = false;
        /// Large messages of this side that may be unanswered, however many the peer allows.
        std::uint64_t large_max = UINT64_MAX;
    };
    /// A message of the peer's.
    struct arrival {
        type what = type::eager;
        counts carried;
        /// The receive that it took.
        std::uint32_t receive = 0;
        /// Of large_done and withdraw: the large message that it concerns.
        std::uint64_t number = 0;
        /// Of large_done.
        bool is_declined = false;
    };
    /// How a message of the peer's broke the rules.
    enum class violation : std::uint8_t { none, wrong_counts, no_credit, unexpected };
    /// A message of the peer's that the program may take, or has.
    struct kept {
        std::uint32_t receive = 0;
        bool is_large = false;
        /// Of a large one.
        std::uint64_t number = 0;
        /// Its receive has been given back.
        bool is_detached = false;

        friend bool operator==(kept const&, kept const&) = default;
    };
    /// What became of a message that is to be cancelled: over already; taken back before it was
    /// posted; posted, from a copy; or still in the program's memory, which the peer is asked to let
    /// go.
    enum class cancelled : std::uint8_t { over, unsent, copied, exposed };

    channel_machine() = default;
    explicit channel_machine(settings const& s);

    // --- events of the program -----------------------------------------------------------------

    /// Adds a message; returns its index. proceed() posts it. Throws std::bad_alloc; then nothing has
    /// changed. REQUIRES: may_send().
    std::uint32_t add(bool is_large);
    /// What add() will return.
    std::uint32_t next_index() const noexcept {
        return free_.count > 0 ? free_.first : static_cast<std::uint32_t>(messages_.size());
    }
    /// Posts what may be posted.
    void proceed(channel_actions& out) {
        bool const is_due = waiting_.count > 0 || !answers_.empty() || credits_.owes_credit();
        if (is_open_ && (is_due || has_all_sent_)) post_due(out);
    }
    bool may_send() const noexcept { return is_open_ && !has_all_sent_; }
    /// A completed message's index may be used again.
    void forget(std::uint32_t message) noexcept;
    cancelled cancel(std::uint32_t message, channel_actions& out);
    /// True if the withdrawal of a message is not answered yet.
    bool is_withdrawing(std::uint32_t message) const noexcept;
    /// The next message for the program; it is held until released. REQUIRES: has_kept().
    kept take() noexcept;
    bool has_kept() const noexcept { return kept_count_ > 0; }
    /// The program does not need it any more; a large one that was not fetched is declined.
    void release(kept const& what, channel_actions& out);
    /// Gives the receive back; the program has copied the bytes.
    void detach(kept& what, channel_actions& out);
    /// A large message begins to be fetched; false if it was withdrawn.
    bool begin_fetch(kept const& what) noexcept;
    /// It has been fetched. Not released any more.
    void end_fetch(kept const& what, channel_actions& out);
    /// While messages are delivered, a credit waits for one that carries it, unless many are owed.
    void set_delivering(bool is, channel_actions& out);
    /// The program sends nothing more: CLOSE follows the last message.
    void finish(channel_actions& out);

    // --- events of the connection ---------------------------------------------------------------

    /// A message was acknowledged by the peer's device, or failed: then end() follows.
    void acknowledged(std::uint32_t slot, bool is_failed, channel_actions& out);
    /// A message has arrived. Throws std::bad_alloc; then the channel must end. On a violation
    /// nothing has changed, and the owner ends the channel.
    violation arrived(arrival const& what, channel_actions& out);
    /// Nothing more is sent or arrives. Messages whose acknowledgement is outstanding are over when
    /// that has failed.
    void end(channel_actions& out);

    // --- observers ------------------------------------------------------------------------------

    bool is_open() const noexcept { return is_open_; }
    /// Messages of the program's that are not posted.
    std::size_t waiting() const noexcept { return waiting_.count; }
    /// Messages of the peer's whose receives the program holds.
    std::size_t held() const noexcept { return held_; }
    bool has_peer_closed() const noexcept { return has_peer_closed_; }
    bool is_close_posted() const noexcept { return is_close_posted_; }
    /// The channel has ended in order, as far as this side can know.
    bool is_finished() const noexcept { return has_peer_closed_ && is_close_posted_; }
    std::uint64_t credits_posted() const noexcept { return credits_posted_; }
    settings const& options() const noexcept { return settings_; }

    /// The state as numbers, for tests that visit each state once.
    void append_to(std::vector<std::uint64_t>& out) const;

private:
    static constexpr std::uint32_t nobody = UINT32_MAX;
    enum class stage : std::uint8_t { free, waiting, posted, over };

    // A message of the program's.
    struct message {
        std::uint32_t next = nobody;
        std::uint32_t previous = nobody;
        std::uint64_t number = 0;  // of a large one
        stage at = stage::free;
        bool is_large = false;
        bool is_acknowledged = false;
        bool is_answered = false;
        bool is_withdrawn = false;
        outcome how = outcome::sent;
    };
    // Linked through the messages.
    struct list {
        std::uint32_t first = nobody;
        std::uint32_t last = nobody;
        std::size_t count = 0;
    };
    // LARGE_DONE or WITHDRAW, to be posted.
    struct answer {
        type what = type::large_done;
        std::uint64_t number = 0;
        bool is_declined = false;
    };
    struct announcement {
        std::uint64_t number = 0;
        bool is_fetched = false;
    };

    void post_due(channel_actions& out);
    void push(list& to, std::uint32_t i) noexcept;
    void remove(list& from, std::uint32_t i) noexcept;
    void over(std::uint32_t i, outcome how, channel_actions& out);
    std::uint64_t unanswered_max(std::uint16_t receives) const noexcept;
    void post(
        type what, std::uint32_t i, std::uint64_t number, bool is_declined, channel_actions& out
    );
    void give_back(std::uint32_t receive, credit_window::kind of, channel_actions& out);
    void end_hold(kept const& what, channel_actions& out);
    void reserve_answers(std::size_t more);
    violation take_in(arrival const& what, channel_actions& out);
    violation on_large_done(arrival const& what, channel_actions& out);
    violation on_withdraw(std::uint64_t number);

    settings settings_;
    credit_window credits_;
    bool is_open_ = false;

    std::vector<message> messages_;
    list free_;
    list waiting_;
    list posted_;
    // Posted messages of any type that are not acknowledged.
    std::size_t unacknowledged_ = 0;
    // Of each send slot, the message that it has; nobody for the others.
    std::vector<std::uint32_t> slots_;
    std::vector<char> is_close_slot_;  // booleans
    std::vector<std::uint32_t> free_slots_;
    std::vector<answer> answers_;  // before waiting_: the peer waits for them
    std::uint64_t large_posted_ = 0;
    std::uint64_t answers_arrived_ = 0;

    std::vector<kept> kept_;  // a ring of as many places as there are receives
    std::size_t kept_first_ = 0;
    std::size_t kept_count_ = 0;
    std::size_t held_ = 0;
    std::uint64_t large_arrived_ = 0;
    std::uint64_t answers_posted_ = 0;
    std::vector<announcement> announced_;  // that are not answered

    std::uint64_t credits_posted_ = 0;
    bool is_delivering_ = false;
    bool has_all_sent_ = false;
    bool has_peer_closed_ = false;
    bool is_close_posted_ = false;
    bool is_close_acknowledged_ = false;
};

}  // namespace rcverbs::machines
