// result.hpp — what was measured, and what follows from it. Values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

#include <rcverbs/statistics.hpp>

#include "rdma-bench/histogram.hpp"
#include "rdma-bench/plan.hpp"

namespace rdma_bench {

/// One side's part of a round's measurement.
struct side_result {
    /// Operations that this side started and completed, or received.
    std::uint64_t operations = 0;
    /// From the first one's start to the last one's end.
    double seconds = 0;
    /// Processor time of the whole program, user and system.
    double cpu_seconds = 0;
    /// What was not as it should be.
    std::uint64_t damaged = 0;
    /// All lanes' counters, added up: see rcverbs::connection_statistics.
    std::uint64_t sends_posted = 0;
    std::uint64_t doorbells = 0;
    std::uint64_t completions = 0;
    std::uint64_t polls = 0;
    std::uint64_t empty_polls = 0;
    std::uint64_t sleeps = 0;

    /// Adds a connection's counters, or with -1 takes them away.
    void add(rcverbs::connection_statistics const& s, int sign) noexcept;
};

void to_json(nlohmann::json& out, side_result const& r);
void from_json(nlohmann::json const& in, side_result& r);

/// One round: one size.
struct result {
    std::uint64_t size_bytes = 0;
    side_result client;
    side_result server;
    histogram latencies;
    bool is_bidirectional = false;

    /// Per second, of both directions together.
    double operations_per_second() const noexcept;
    double megabytes_per_second() const noexcept;
    double gigabits_per_second() const noexcept;
    /// Of the client's program, for one operation, in microseconds.
    double cpu_us() const noexcept;
    double server_cpu_us() const noexcept;
};

/// What opening and holding connections took.
struct opening {
    std::uint64_t connections = 0;
    /// From the first one's start to the last one's end.
    double seconds = 0;
    /// For each connection: of the client's program, and of the whole machine (both sides of it, where they share one).
    double process_bytes = 0;
    double system_bytes = 0;
    /// While they were held and nothing was done: how long, and both sides' processor time.
    double idle_seconds = 0;
    double idle_cpu_seconds = 0;
    double server_idle_cpu_seconds = 0;
};

}  // namespace rdma_bench
