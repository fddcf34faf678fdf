// load.hpp — the work of one connection: runs operations and counts them.
//
// Made by make_load() for one side of a plan. Used in rounds: begin() sets the size; run() executes
// operations, first of the warm-up, then of the measurement; stop() ends a run without a count. All
// of these run on the connection's executor; any thread may read the counts.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rdma-bench/histogram.hpp"
#include "rdma-bench/bench_connection.hpp"
#include "rdma-bench/timeline.hpp"

namespace rdma_bench {

/// The count for run() to continue until stop().
inline constexpr std::uint64_t until_stopped = ~std::uint64_t{0};

class load {
public:
    explicit load(bench_connection& on)
        : on_{on},
          latencies_{on.terms().is_timed() ? std::make_unique<histogram>() : nullptr} {}
    load(load const&) = delete;
    load& operator=(load const&) = delete;
    virtual ~load() = default;

    /// Starts a new round: fills or clears the memory, sets counts to 0.
    void begin(round const& r);
    /// Executes `count` operations and calls `done` when all are complete, or when the connection
    /// has failed.
    void run(std::uint64_t count, std::function<void()> done);
    /// Starts no more operations; run() then calls `done`.
    void stop();

    /// Operations completed in this round.
    std::uint64_t operations() const noexcept {
        return operations_.load(std::memory_order_relaxed);
    }
    /// True if any operation has completed, in this round or an earlier one.
    bool has_worked() const noexcept { return has_worked_before_ || operations() > 0; }
    /// Messages and operations whose contents failed verification.
    std::uint64_t damaged() const noexcept { return damaged_; }
    /// The duration of each operation since the last run(); null unless the plan measures latency.
    histogram const* latencies() const noexcept { return latencies_.get(); }
    /// The same over time.
    timeline const& over_time() const noexcept { return over_time_; }
    /// The start and the end of the last run().
    std::chrono::steady_clock::time_point began() const noexcept { return began_; }
    std::chrono::steady_clock::time_point ended() const noexcept { return ended_; }
    /// After the round, verifies the memory that the peer has written or this side has read.
    void check_memory(std::uint64_t operations_of_peer);

protected:
    using clock = std::chrono::steady_clock;

    /// Called by begin().
    virtual void on_begin() {}
    /// Called by run(), for left_ operations.
    virtual void start() = 0;
    /// Called by stop().
    virtual void on_stop() {}

    bench_connection& on() noexcept { return on_; }
    bench_connection const& on() const noexcept { return on_; }
    std::uint64_t size_bytes() const noexcept { return round_.size_bytes; }
    std::uint64_t round_seed() const noexcept { return round_.seed; }
    bool verifies() const noexcept { return on_.terms().verifies; }

    rcverbs::mutable_slice const& outgoing(std::uint64_t n) const noexcept {
        return slots_[n % slots_.size()].out;
    }
    rcverbs::mutable_slice const& incoming(std::uint64_t n) const noexcept {
        return slots_[n % slots_.size()].in;
    }
    rcverbs::remote_region const& target(std::uint64_t n) const noexcept {
        return slots_[n % slots_.size()].peer;
    }
    rcverbs::remote_atomic cell() const noexcept { return cell_; }
    /// Checks that a message is the next one and has the expected contents.
    void check_message(std::uint64_t number, rcverbs::receive_result const& message);

    // Counts completed operations. Relaxed: while the count changes it is read only for a progress
    // line.
    void count(std::uint64_t n) noexcept {
        operations_.store(
            operations_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed
        );
    }
    void count_damaged() noexcept { ++damaged_; }
    void record(clock::time_point now, clock::duration d) noexcept {
        latencies_->record(d);
        over_time_.record(now - began_, d);
    }
    /// Starts operation number n, and calls `done` with its error code.
    template <class Done>
    void start_operation(std::uint64_t n, Done done) {
        rcverbs::connection& c = on_.connection();
        auto const bytes = [done](rcverbs::error_code ec, std::size_t) { done(ec); };
        auto const word = [this, n, done](rcverbs::error_code ec, std::uint64_t before) {
            if (!ec && verifies() && before != n) count_damaged();
            done(ec);
        };
        switch (on_.terms().what) {
        case operation::write: return c.async_write(outgoing(n), target(n), bytes);
        case operation::read: return c.async_read(target(n), incoming(n), bytes);
        case operation::send: return c.async_send(outgoing(n), bytes);
        case operation::write_imm:
            return c.async_write_with_immediate(
                outgoing(n), target(n), static_cast<std::uint32_t>(n), bytes
            );
        case operation::fetch_add: return c.async_fetch_add(cell(), 1, word);
        case operation::compare_swap: return c.async_compare_swap(cell(), n, n + 1, word);
        case operation::connect: break;
        }
    }
    void fail(rcverbs::error_code const& ec) {
        on_.fail(ec);
        left_ = 0;
    }
    void finish();

    /// Operations still to be started in this run.
    std::uint64_t left_ = 0;

private:
    // One operation's memory. Made once per round: the bounds check of a slice costs as much as a
    // part of posting it.
    struct slot {
        rcverbs::mutable_slice out;
        rcverbs::mutable_slice in;
        rcverbs::remote_region peer;
    };

    void make_slots();

    bench_connection& on_;
    round round_{};
    std::vector<slot> slots_;
    rcverbs::remote_atomic cell_;
    std::function<void()> done_;
    std::atomic<std::uint64_t> operations_{0};
    std::atomic<bool> has_worked_before_{false};  // in an earlier round
    std::uint64_t damaged_ = 0;
    std::unique_ptr<histogram> latencies_;
    timeline over_time_;
    clock::time_point began_;
    clock::time_point ended_;
};

/// This side's load for its plan; a load that does nothing if this side is passive.
std::unique_ptr<load> make_load(bench_connection& on);

}  // namespace rdma_bench
