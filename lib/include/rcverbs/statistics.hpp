// statistics.hpp — what a connection has done so far.
//
// A snapshot by value; its counters start at 0 with the connection and never go back. Taking one costs a lock of the
// connection's own, nothing on the way of the data. No threading rule.
#pragma once

#include <cstdint>

namespace rcverbs {

/// The counters of one connection. An operation is what an async_ or try_ call starts; a work request is what the device
/// gets of it: several, if the operation is a batch or has to be cut.
struct connection_statistics {
    /// Operations that were taken on, receives included.
    std::uint64_t operations_started = 0;
    /// Those that are done without error.
    std::uint64_t operations_completed = 0;
    /// Those that are done with one.
    std::uint64_t operations_failed = 0;
    /// Bytes of completed sends and writes.
    std::uint64_t bytes_sent = 0;
    /// Bytes of completed reads and atomics.
    std::uint64_t bytes_read = 0;
    /// Bytes that peers have sent into completed receives, or announced as written.
    std::uint64_t bytes_received = 0;

    /// Work requests on the send queue.
    std::uint64_t sends_posted = 0;
    /// Those of them that were posted with a completion asked for.
    std::uint64_t sends_signalled = 0;
    /// Those of them whose bytes went along in the work request.
    std::uint64_t sends_inline = 0;
    /// Work requests on the receive queue.
    std::uint64_t receives_posted = 0;
    /// Writes of nothing that asked a silent peer for a sign of life; they count as operations, too.
    std::uint64_t keepalives_sent = 0;
    /// Lists handed to the send queue: sends_posted / doorbells is how well operations are gathered.
    std::uint64_t doorbells = 0;
    /// Operations that had to wait because the queue was full.
    std::uint64_t slot_waits = 0;
    /// Operations that had to wait because as many reads and atomics were outstanding as negotiated.
    std::uint64_t read_depth_waits = 0;

    /// Looks at the completion queue.
    std::uint64_t polls = 0;
    /// Those that found nothing.
    std::uint64_t empty_polls = 0;
    /// Completions found.
    std::uint64_t completions = 0;
    /// Times that it went to sleep until the device's next event.
    std::uint64_t sleeps = 0;

    /// Work requests on the send queue at this moment.
    std::uint32_t sends_outstanding = 0;
    /// Reads and atomics among them.
    std::uint32_t reads_outstanding = 0;
    /// Receives posted at this moment: the credit that the peer has for messages.
    std::uint32_t receive_credits = 0;

    /// Completions per poll that found any.
    double completions_per_poll() const noexcept {
        std::uint64_t const found = polls - empty_polls;
        return found > 0 ? static_cast<double>(completions) / static_cast<double>(found) : 0.0;
    }
};

}  // namespace rcverbs
