// load.hpp — the work of one lane: what it does over and over, and what it counts.
//
// Made by make_load() for one side of a plan. Used in rounds: begin() sets the size, run() carries out operations (of the warm-up
// first, then of the measurement), stop() ends what has no end of its own. All of that on the lane's executor; counts may be
// read by anyone.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rdma-bench/histogram.hpp"
#include "rdma-bench/lane.hpp"

namespace rdma_bench {

/// One size's share of a plan.
struct round {
    std::uint64_t size_bytes;
    /// Where contents follow from; another one each round.
    std::uint64_t seed;
};

/// run()'s count for going on until stop().
inline constexpr std::uint64_t until_stopped = ~std::uint64_t{0};

class load {
public:
    explicit load(lane& on)
        : lane_{on}, latencies_{on.terms().how == measure::latency ? std::make_unique<histogram>() : nullptr} {}
    load(load const&) = delete;
    load& operator=(load const&) = delete;
    virtual ~load() = default;

    /// A new round: fills or empties memory, sets counts to 0.
    void begin(round const& r);
    /// Carries out `count` operations and calls `done` when all are complete, or the lane has failed.
    void run(std::uint64_t count, std::function<void()> done);
    /// Starts no more; run()'s `done` follows.
    void stop();

    /// Operations that are complete in this round.
    std::uint64_t operations() const noexcept { return operations_.load(std::memory_order_relaxed); }
    /// Messages and operations whose contents were not what they should be.
    std::uint64_t damaged() const noexcept { return damaged_; }
    /// How long each operation took since the last run(); null where the plan is not for latency.
    histogram const* latencies() const noexcept { return latencies_.get(); }
    /// When the last run() began, and was done.
    std::chrono::steady_clock::time_point began() const noexcept { return began_; }
    std::chrono::steady_clock::time_point ended() const noexcept { return ended_; }
    /// Looks at memory that the peer writes or this side reads, after the round.
    void check_memory(std::uint64_t operations_of_peer);

protected:
    using clock = std::chrono::steady_clock;

    /// Called by begin().
    virtual void on_begin() {}
    /// Called by run(), for left_ operations.
    virtual void start() = 0;
    /// Called by stop().
    virtual void on_stop() {}

    lane& on() noexcept { return lane_; }
    std::uint64_t size_bytes() const noexcept { return round_.size_bytes; }
    std::uint64_t round_seed() const noexcept { return round_.seed; }
    bool verifies() const noexcept { return lane_.terms().verifies; }

    rcverbs::local_slice const& outgoing(std::uint64_t n) const noexcept { return slots_[n % slots_.size()].out; }
    rcverbs::local_slice const& incoming(std::uint64_t n) const noexcept { return slots_[n % slots_.size()].in; }
    rcverbs::remote_region const& target(std::uint64_t n) const noexcept { return slots_[n % slots_.size()].peer; }
    rcverbs::remote_word cell() const noexcept { return cell_; }
    /// Whether a message is the one whose turn it is, with the contents that it should have.
    void check_message(std::uint64_t number, rcverbs::received const& message);

    // One more is complete. Relaxed: a count that is read while it changes is for a progress line only.
    void count(std::uint64_t n) noexcept {
        operations_.store(operations_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    void count_damaged() noexcept { ++damaged_; }
    void record(clock::duration d) noexcept { latencies_->record(d); }
    void fail(rcverbs::error_code const& ec) {
        lane_.fail(ec);
        left_ = 0;
    }
    void finish();

    /// Operations still to be started in this run.
    std::uint64_t left_ = 0;

private:
    // One operation's memory. Made once a round: to check a slice's bounds costs as much as a part of posting it.
    struct slot {
        rcverbs::local_slice out;
        rcverbs::local_slice in;
        rcverbs::remote_region peer;
    };

    void make_slots();

    lane& lane_;
    round round_{};
    std::vector<slot> slots_;
    rcverbs::remote_word cell_;
    std::function<void()> done_;
    std::atomic<std::uint64_t> operations_{0};
    std::uint64_t damaged_ = 0;
    std::unique_ptr<histogram> latencies_;
    clock::time_point began_;
    clock::time_point ended_;
};

/// What this lane's side does of its plan; a load that does nothing where it has nothing to do.
std::unique_ptr<load> make_load(lane& on);

}  // namespace rdma_bench
