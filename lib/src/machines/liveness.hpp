// liveness.hpp — whether a connection still lives, judged by what it has done between one look and the next.
//
// Its owner looks at the connection once in a period, and the machine counts looks. So moving data costs nothing for it, and a
// process that was stopped for long does not take its own absence for the peer's. A limit is kept to within one look.
//
// Three limits, each of which may be none:
//   stall      how long the oldest posted work may stay unanswered
//   keepalive  how long nothing may be heard of the peer before it is asked for a sign of life
//   idle       how long the program may leave the connection unused; what it was asked by keepalives does not count
//
// Decides only; has no clock, no I/O and no threads.
#pragma once

#include <chrono>
#include <cstdint>

namespace rcverbs::machines {

class liveness {
public:
    /// Zero for none.
    struct limits {
        std::chrono::milliseconds stall{0};
        std::chrono::milliseconds keepalive{0};
        std::chrono::milliseconds idle{0};
    };

    /// What a look sees.
    struct view {
        /// Work is posted on the send queue, and the number of the oldest.
        bool is_sending = false;
        std::uint64_t oldest_send = 0;
        /// Operations that have come to an end so far.
        std::uint64_t completed = 0;
    };

    enum class action : std::uint8_t {
        none,
        send_keepalive,
        ring_again,  // the oldest posted work is the same as at the last look
        stalled,     // give the connection up
        idle,        // likewise
    };

    explicit liveness(limits const& l) noexcept;

    /// False if there is nothing to look for, ever.
    bool looks() const noexcept { return stall_ > 0 || looks_always(); }
    /// True if even a connection without work is to be looked at.
    bool looks_always() const noexcept { return keepalive_ > 0 || idle_ > 0; }
    /// How long after a look the next one is due: an eighth of the shortest limit, and no less than a millisecond.
    std::chrono::milliseconds period() const noexcept { return period_; }
    static std::chrono::milliseconds look_period(limits const& l) noexcept;
    /// When a limit that is looked at in that period is noticed at the latest.
    static std::chrono::milliseconds latest(std::chrono::milliseconds limit, std::chrono::milliseconds period) noexcept;

    /// Begins to count, from what is seen now.
    void begin(view const& now) noexcept;
    /// Asks for no more signs of life.
    void stop_keepalive() noexcept { keepalive_ = 0; }
    /// The next look, and what it leads to.
    action look(view const& now) noexcept;

private:
    std::chrono::milliseconds period_;
    // In looks; 0 for none.
    std::int64_t stall_;
    std::int64_t keepalive_;
    std::int64_t idle_;

    bool was_sending_ = false;
    std::uint64_t oldest_send_ = 0;
    std::uint64_t traffic_ = 0;
    // Each has ended, with a completion of its own, once nothing is being sent.
    std::uint64_t keepalives_ = 0;
    // Looks that saw the same: work on the queue, silence, disuse.
    std::int64_t stalled_for_ = 0;
    std::int64_t silent_for_ = 0;
    std::int64_t unused_for_ = 0;
};

}  // namespace rcverbs::machines
