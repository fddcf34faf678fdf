// stepping.hpp — what the stepper of a network (apps/rcverbs-fabric/stepper.hpp) and its processes say to each other.
//
// Each message is one datagram between processes of one user on one machine: a step_message, and after an
// answer its sources.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rcverbs::fabric::detail {

enum class step_word : std::uint8_t {
    hello,  // of a process: who it is
    changed,  // of a process: something was sent, or a timer was set, since the last answer
    query,  // what could be done next?
    answer,  // of a process
    take,  // do what is said of a connection
    run,  // run the timers that are due
    done  // of a process: what it was told to do is done
};

/// What can be done with a connection of a process: read a datagram, or send what had to wait.
struct step_source {
    /// Who has the other end.
    std::uint32_t node = 0;
    std::uint32_t slot = 0;
    /// 1 if the process has connected, 0 if it has accepted.
    std::uint32_t is_outgoing = 0;
    std::uint32_t is_sending = 0;
    auto operator<=>(step_source const&) const = default;
};

struct step_message {
    step_word what = step_word::hello;
    /// Of a process: a thread has begun to sleep for a short time before the last step, and will look again.
    bool is_restless = false;
    /// The number of sources that follow.
    std::uint32_t count = 0;
    /// Of a process: the thread that is the network's.
    std::int32_t thread = 0;
    /// hello: who it is; take: the connection.
    step_source source;
    /// To a process: the number of the step, and the time of the network.
    std::uint64_t step = 0;
    std::int64_t now_ns = 0;
    /// answer: when the first timer is due; -1 if there is none.
    std::int64_t next_ns = -1;
};

/// Sources beyond these wait for the next answer.
inline constexpr std::size_t step_sources_max = 256;

}  // namespace rcverbs::fabric::detail
