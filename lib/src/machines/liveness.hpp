// liveness.hpp — detects a dead connection from its progress between two periodic samples (looks).
//
// Its owner calls tick() once per period, and the machine counts looks. So data transfer has no
// overhead, and a process that was suspended does not take its own pause for a silent peer. A limit
// is exact to one period.
//
// Three limits, each of which is optional:
//   stall      how long the oldest posted work may remain incomplete
//   keepalive  how long there may be no traffic before a keepalive is sent
//   idle       how long the program may leave the connection unused; keepalives do not count
//
// Pure logic: no clock, no I/O, no threads.
#pragma once

#include <chrono>
#include <cstdint>

namespace rcverbs::machines {

class liveness {
public:
    /// 0 disables a limit.
    struct limits {
        std::chrono::milliseconds stall{0};
        std::chrono::milliseconds keepalive{0};
        std::chrono::milliseconds idle{0};
    };

    /// One sample of a connection.
    struct sample {
        /// Whether a completion is due: signaled work is posted on the send queue.
        bool is_awaiting = false;
        /// The sequence number of the oldest posted work, or of the next to be posted.
        std::uint64_t oldest_send = 0;
        /// The number of operations that have succeeded or failed so far.
        std::uint64_t completed = 0;
        /// Whether work is posted on the send queue. If none of it is signaled, nothing tells whether
        /// it is complete: it neither stalls nor proves that the peer is alive.
        bool is_posted = is_awaiting;
    };

    enum class action : std::uint8_t {
        none,
        send_keepalive,
        kick_send_queue,  // the oldest posted work is the same as at the last tick
        stalled,  // the stall limit is reached: give the connection up
        idle,  // the idle limit is reached: likewise
    };

    explicit liveness(limits const& l) noexcept;

    /// False if all limits are disabled.
    bool looks() const noexcept { return stall_ > 0 || looks_always(); }
    /// True if a connection is to be sampled even without posted work.
    /// The keepalive that the last tick asked for could not be sent.
    void keepalive_failed() noexcept { --keepalives_; }
    bool looks_always() const noexcept { return keepalive_ > 0 || idle_ > 0; }
    /// The time between two looks: an eighth of the shortest limit, at least 1 ms.
    std::chrono::milliseconds period() const noexcept { return period_; }
    static std::chrono::milliseconds look_period(limits const& l) noexcept;
    /// The longest time in which a reached limit is detected with that period.
    static std::chrono::milliseconds latest(
        std::chrono::milliseconds limit, std::chrono::milliseconds period
    ) noexcept;

    /// Begins to count, from this sample.
    void begin(sample const& now) noexcept;
    /// Takes the next sample and returns the action to take.
    action tick(sample const& now) noexcept;

private:
    std::chrono::milliseconds period_;
    // The limits in looks; 0 if disabled.
    std::int64_t stall_;
    std::int64_t keepalive_;
    std::int64_t idle_;

    bool was_posted_ = false;
    std::uint64_t oldest_send_ = 0;
    std::uint64_t traffic_ = 0;
    // Keepalives sent. Once no completion is due, `completed` includes all of them.
    std::uint64_t keepalives_ = 0;
    // Consecutive looks with the same oldest work, with no traffic, with no use by the program.
    std::int64_t stalled_for_ = 0;
    std::int64_t silent_for_ = 0;
    std::int64_t unused_for_ = 0;
};

}  // namespace rcverbs::machines
