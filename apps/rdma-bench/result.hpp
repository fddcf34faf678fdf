// result.hpp — the results of measurements, and figures derived from them. Values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>

#include <rcverbs/statistics.hpp>

#include "rdma-bench/histogram.hpp"
#include "rdma-bench/plan.hpp"
#include "rdma-bench/timeline.hpp"

namespace rdma_bench {

/// One side's measurement of a round.
struct side_result {
    /// Operations that this side completed as initiator, or received.
    std::uint64_t operations = 0;
    /// From the start of the first operation to the end of the last.
    double seconds = 0;
    /// Processor time of the whole process, user and system.
    double cpu_seconds = 0;
    /// Operations whose contents failed verification.
    std::uint64_t damaged = 0;
    /// The sum of all connections' counters: see rcverbs::connection_statistics.
    std::uint64_t sends_posted = 0;
    std::uint64_t doorbells = 0;
    std::uint64_t completions = 0;
    std::uint64_t polls = 0;
    std::uint64_t empty_polls = 0;
    std::uint64_t sleeps = 0;

    /// Adds a connection's counters, or subtracts them if `sign` is -1.
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
    timeline over_time;
    /// The operations of the client's connection that completed the fewest, and the most.
    std::uint64_t least = 0;
    std::uint64_t most = 0;
    bool is_bidirectional = false;
    /// Both sides are one process, whose processor time is counted as the client's.
    bool is_one_process = false;

    /// Of both directions together; of one only, the client's.
    std::uint64_t operations() const noexcept;
    /// How long the longer direction took.
    double seconds() const noexcept;
    /// operations() in seconds().
    double operations_per_second() const noexcept;
    double megabytes_per_second() const noexcept;
    double gigabits_per_second() const noexcept;
    /// Processor time of the client's process per operation(), in microseconds.
    double cpu_us() const noexcept;
    /// That of the server's process; none if it is the same.
    std::optional<double> server_cpu_us() const noexcept;
};

/// The cost of opening and holding connections.
struct opening {
    std::uint64_t connections = 0;
    /// From the start of the first connect to the end of the last.
    double seconds = 0;
    /// Per connection: memory of the client's process, and of the whole machine (both sides, if
    /// they share it).
    double process_bytes = 0;
    double system_bytes = 0;
    /// While the connections were idle: the duration, and both sides' processor time.
    double idle_seconds = 0;
    double idle_cpu_seconds = 0;
    double server_idle_cpu_seconds = 0;
    /// As result::is_one_process.
    bool is_one_process = false;
};

}  // namespace rdma_bench
