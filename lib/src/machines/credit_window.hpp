// credit_window.hpp — which messages may be sent so that each finds a receive of the peer's posted.
//
//   Every message takes one receive of the other side's, and has two counts: how many receives
//   its sender has ever given back, posted again after data and answers, modulo 2^16; and how many
//   CREDITs it has ever taken, modulo 2^8. Outstanding is what was sent and not given back.
//
//        data     while outstanding < receives - 4
//        answer   while outstanding < receives - 3    its receive is given back at once
//        CREDIT   two at a time: the next when the peer has acknowledged one
//        CLOSE    once
//
//   A CREDIT carries the counts, and nothing else. It is due when half of the receives are
//   owed and no message has carried the count, or when the peer can send no data and one is owed. CREDITs do
//   not count as outstanding and make no CREDIT due, so they neither take the place of data nor
//   answer each other. Nobody stalls: each CREDIT gives back one receive at least, so that after two of
//   them the peer can send data, although it may have sent an answer beyond its data meanwhile; and
//   what it sends acknowledges the CREDITs.
//
// Pure logic: no I/O, no threads. The numbers are absolute, so that none can be lost.
#pragma once

#include <cstdint>
#include <vector>

namespace rcverbs::machines {

class credit_window {
public:
    enum class kind : std::uint8_t { data, answer, credit, close };

    static constexpr std::uint16_t receives_min = 6;
    static constexpr std::uint16_t receives_max = 32767;

    /// The counts in a message.
    struct counts {
        std::uint16_t given_back = 0;
        std::uint8_t credits_taken = 0;

        friend bool operator==(counts const&, counts const&) = default;
    };

    credit_window() = default;
    /// @param own   Receives of this side, receives_min to receives_max.
    /// @param peer  Those of the peer.
    credit_window(std::uint16_t own, std::uint16_t peer) noexcept : own_{own}, peer_{peer} {}

    /// True if a message may be sent now.
    bool may_send(kind what) const noexcept {
        switch (what) {
        case kind::data: return outstanding() < peer_ - 4;
        case kind::answer: return outstanding() < peer_ - 3;
        case kind::credit:
            return static_cast<std::uint8_t>(credits_sent_ - credits_acknowledged_) < 2;
        case kind::close: return !is_closed_;
        }
        return false;
    }

    /// Counts a message as sent. REQUIRES: it may be sent.
    counts on_send(kind what) noexcept {
        if (what == kind::data || what == kind::answer) ++sent_;
        if (what == kind::credit) ++credits_sent_;
        if (what == kind::close) is_closed_ = true;
        announced_ = given_;
        credits_announced_ = credits_taken_;
        owed_ = 0;
        return {given_, credits_taken_};
    }

    /// What a message of the peer's shows: that it kept the rules, that it gave back or took what it
    /// has not got, or that it had no credit for the message.
    enum class verdict : std::uint8_t { right, wrong_counts, no_credit };

    /// A message of the peer's has arrived, with its counts.
    verdict on_arrival(kind what, counts const& peer) noexcept {
        auto const more = static_cast<std::uint16_t>(peer.given_back - given_by_peer_);
        auto const taken = static_cast<std::uint8_t>(peer.credits_taken - credits_acknowledged_);
        if (more > outstanding() ||
            taken > static_cast<std::uint8_t>(credits_sent_ - credits_acknowledged_))
            return verdict::wrong_counts;
        if (!had_credit(what)) return verdict::no_credit;
        given_by_peer_ = peer.given_back;
        credits_acknowledged_ = peer.credits_taken;
        if (what == kind::data || what == kind::answer) ++arrived_;
        if (what == kind::credit) ++credits_arrived_;
        if (what == kind::close) has_peer_closed_ = true;
        return verdict::right;
    }

    /// A receive has been posted again after its message.
    void give_back(kind of) noexcept {
        if (of == kind::credit) ++credits_taken_;
        if (of != kind::data && of != kind::answer) return;
        ++given_;
        ++owed_;
    }

    /// True if a CREDIT is due.
    bool owes_credit() const noexcept {
        return owed_ > 0 && (owes_much() || outstanding_for_peer() >= own_ - 4);
    }
    /// True if half of the receives are owed, so that a CREDIT should not wait for more.
    bool owes_much() const noexcept { return owed_ >= own_ / 2; }

    /// The state as numbers, for tests that visit each state once.
    void append_to(std::vector<std::uint64_t>& out) const {
        for (int const value :
             {+sent_,
              +given_by_peer_,
              +arrived_,
              +given_,
              +announced_,
              +owed_,
              +credits_sent_,
              +credits_acknowledged_,
              +credits_taken_,
              +credits_announced_,
              +credits_arrived_,
              +is_closed_,
              +has_peer_closed_})
            out.push_back(static_cast<std::uint64_t>(value));
    }

    /// Data and answers that were sent and whose receives have not been given back.
    int outstanding() const noexcept { return static_cast<std::uint16_t>(sent_ - given_by_peer_); }

private:
    // The peer knows at most what this side has announced. So it never uses all receives, and one
    // reports the connection's end.
    bool had_credit(kind what) const noexcept {
        switch (what) {
        case kind::data: return outstanding_for_peer() < own_ - 4;
        case kind::answer: return outstanding_for_peer() < own_ - 3;
        case kind::credit:
            return static_cast<std::uint8_t>(credits_arrived_ - credits_announced_) < 2;
        case kind::close: return !has_peer_closed_;
        }
        return false;
    }

    // What is outstanding in the eyes of the peer, if it has received all counts.
    int outstanding_for_peer() const noexcept {
        return static_cast<std::uint16_t>(arrived_ - announced_);
    }

    std::uint16_t own_ = receives_min;
    std::uint16_t peer_ = receives_min;
    std::uint16_t sent_ = 0;
    std::uint16_t given_by_peer_ = 0;
    std::uint16_t arrived_ = 0;
    std::uint16_t given_ = 0;
    std::uint16_t announced_ = 0;
    std::uint16_t owed_ = 0;
    std::uint8_t credits_sent_ = 0;
    std::uint8_t credits_acknowledged_ = 0;  // of these, those that the peer has acknowledged
    std::uint8_t credits_taken_ = 0;
    std::uint8_t credits_announced_ = 0;  // of these, those that a message has carried
    std::uint8_t credits_arrived_ = 0;
    bool is_closed_ = false;
    bool has_peer_closed_ = false;
};

}  // namespace rcverbs::machines
