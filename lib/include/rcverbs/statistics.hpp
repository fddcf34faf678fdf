// statistics.hpp — counters of a connection.
//
//     connection_statistics const s = c.statistics();
//     std::cout << s.bytes_received << " bytes, " << s.slot_waits << " waits\n";
//
// A snapshot by value. Totals start at 0 with the connection and never decrease; what is outstanding
// or waiting at this moment does. Taking one locks
// the connection's own lock and costs nothing on the data path. No threading rule.
#pragma once

#include <cstdint>

namespace rcverbs {

/// The counters of one connection. An async_ or try_ call starts an operation; the device gets one
/// work request for it, or several if it is a batch or was split.
struct connection_statistics {
    /// Operations started, receives included.
    std::uint64_t operations_started = 0;
    /// Operations completed without error.
    std::uint64_t operations_completed = 0;
    /// Operations completed with an error.
    std::uint64_t operations_failed = 0;
    /// Bytes of completed sends and writes.
    std::uint64_t bytes_sent = 0;
    /// Bytes of completed reads and atomics.
    std::uint64_t bytes_read = 0;
    /// Bytes of completed receives, and of writes with immediate.
    std::uint64_t bytes_received = 0;

    /// Work requests posted to the send queue.
    std::uint64_t sends_posted = 0;
    /// Signaled work requests among them.
    std::uint64_t sends_signalled = 0;
    /// Inline work requests among them.
    std::uint64_t sends_inline = 0;
    /// Work requests posted to the receive queue.
    std::uint64_t receives_posted = 0;
    /// Keepalives; they count as operations, too.
    std::uint64_t keepalives_sent = 0;
    /// Lists posted to the send queue; sends_posted / doorbells is the mean length of a list.
    std::uint64_t doorbells = 0;
    /// Operations that waited because the queue was full.
    std::uint64_t slot_waits = 0;
    /// Operations that waited because the negotiated number of reads and atomics was outstanding.
    std::uint64_t read_depth_waits = 0;

    /// Polls that found completions of this connection, and the empty ones.
    std::uint64_t polls = 0;
    /// Polls without a completion, of all completion queues that the connection's poller has on this
    /// device: connections of one poller share them, so sums count them several times.
    std::uint64_t empty_polls = 0;
    /// Completions polled.
    std::uint64_t completions = 0;
    /// Times that the poller slept until the device's next event; shared as empty_polls.
    std::uint64_t sleeps = 0;

    /// Work requests on the send queue at this moment.
    std::uint32_t sends_outstanding = 0;
    /// Reads and atomics among them.
    std::uint32_t reads_outstanding = 0;
    /// Receives posted at this moment: messages that the peer may send without RNR.
    std::uint32_t receive_credits = 0;

    /// Adds the counters of another connection.
    connection_statistics& operator+=(connection_statistics const& other) noexcept {
        operations_started += other.operations_started;
        operations_completed += other.operations_completed;
        operations_failed += other.operations_failed;
        bytes_sent += other.bytes_sent;
        bytes_read += other.bytes_read;
        bytes_received += other.bytes_received;
        sends_posted += other.sends_posted;
        sends_signalled += other.sends_signalled;
        sends_inline += other.sends_inline;
        receives_posted += other.receives_posted;
        keepalives_sent += other.keepalives_sent;
        doorbells += other.doorbells;
        slot_waits += other.slot_waits;
        read_depth_waits += other.read_depth_waits;
        polls += other.polls;
        empty_polls += other.empty_polls;
        completions += other.completions;
        sleeps += other.sleeps;
        sends_outstanding += other.sends_outstanding;
        reads_outstanding += other.reads_outstanding;
        receive_credits += other.receive_credits;
        return *this;
    }

    /// Mean number of completions per poll that returned any.
    double completions_per_poll() const noexcept {
        std::uint64_t const found = polls - empty_polls;
        return found > 0 ? static_cast<double>(completions) / static_cast<double>(found) : 0.0;
    }
};

}  // namespace rcverbs
