// command_state.hpp — what a command waits for: its states, the order in which it may have them, and the
// counters of old commands. No clock, no I/O.
//
// The probe nvme_command_state has these numbers: docs/guides/tracing.md.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
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

inline constexpr std::size_t command_states = 9;

struct command_state_row {
    char const* name;
    /// The states that a command may enter from this one, a bit each.
    unsigned next;
};

inline constexpr auto command_state_table = [] {
    using enum command_state;
    auto const any_of = [](auto... s) { return ((1U << static_cast<unsigned>(s)) | ...); };
    return std::array<command_state_row, command_states>{
        {{"idle", any_of(arrived)},
         {"arrived", ~any_of(arrived, sending_data)},
         {"waiting_for_memory", any_of(receiving_data, in_store, answering, idle)},
         {"receiving_data", any_of(in_store, executing, answering, idle)},
         {"in_store", any_of(executing, answering)},
         // A transfer in pieces goes on, and so does what needed a flush first.
         {"executing", ~any_of(arrived, executing, waiting_for_event)},
         {"sending_data", any_of(in_store, answering, idle)},
         {"answering", any_of(idle)},
         {"waiting_for_event", any_of(answering, idle)}}};
}();

constexpr char const* to_string(command_state s) noexcept {
    return command_state_table[static_cast<std::size_t>(s)].name;
}

/// Whether a command in the state `from` may enter `to`, another state.
constexpr bool may_follow(command_state from, command_state to) noexcept {
    unsigned const next = command_state_table[static_cast<std::size_t>(from)].next;
    return (next >> static_cast<unsigned>(to) & 1) != 0;
}

/// The age at which a command is old.
inline constexpr std::chrono::seconds old_age{1};

/// Numbers of old commands. Any thread.
class old_command_counters {
public:
    /// A command is counted in the state `to`, no longer in `from`; `idle` is not counted.
    void move(command_state from, command_state to) noexcept {
        // Relaxed: statistics.
        of_[static_cast<std::size_t>(to)].fetch_add(1, std::memory_order_relaxed);
        of_[static_cast<std::size_t>(from)].fetch_sub(1, std::memory_order_relaxed);
    }
    commands_by_state snapshot() const noexcept {
        auto const of = [this](command_state s) {
            return of_[static_cast<std::size_t>(s)].load(std::memory_order_relaxed);
        };
        using enum command_state;
        return {
            .waiting_for_memory = of(waiting_for_memory),
            .receiving_data = of(receiving_data),
            .in_store = of(in_store),
            .executing = of(arrived) + of(executing),
            .sending_data = of(sending_data),
            .answering = of(answering)};
    }

private:
    std::array<std::atomic<std::uint64_t>, command_states> of_{};
};

}  // namespace rcverbs::nvme::detail
