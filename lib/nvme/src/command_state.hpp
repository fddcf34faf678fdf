// command_state.hpp — what a command waits for.
//
// The probe nvme_command_state has these numbers: docs/guides/tracing.md.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include <rcverbs/nvme/target.hpp>

namespace rcverbs::nvme::detail {

enum class command_state : std::uint8_t {
    /// There is no command.
    idle = 0,
    /// It has not waited for anything yet.
    arrived = 1,
    /// For memory for its data.
    waiting_for_memory = 2,
    /// For data from the host, by an RDMA read.
    receiving_data = 3,
    in_store = 4,
    /// For the target's thread, or its turn on the queue's.
    executing = 5,
    /// For a piece of its data to arrive at the host; the last one goes with the response.
    sending_data = 6,
    /// For its response, and the data in front of it, to arrive at the host.
    answering = 7,
    /// An asynchronous event request.
    waiting_for_event = 8,
};

/// A number for each state.
using state_counts = std::array<std::uint64_t, 9>;

/// Of a command that target_statistics::old_commands counts.
inline constexpr std::chrono::seconds old_age{1};

}  // namespace rcverbs::nvme::detail
