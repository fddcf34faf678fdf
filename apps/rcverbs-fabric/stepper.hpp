// stepper.hpp — lets the processes of a network go on step by step: a process that says what is done next.
//
//     (1) all threads of all processes wait ─▶ (2) what could be done next? ─▶ (3) one of it is chosen and done ─▶ (1)
//
// A step is one datagram that one process reads, or the timers of one process that are due. What the programs do then, in
// whatever time, belongs to the step. The seed chooses, so that the same programs with the same seed send the same
// packets in the same order. The network's time goes on by a microsecond with each step, and with the machine's while there is no next one.
#pragma once

#include <cstdint>

#include "directory.hpp"

namespace rcverbs::fabric {

/// Starts the stepper of a network, as a process of its own, which ends when the descriptor that is returned, which
/// child processes inherit, is closed everywhere, and no process uses the network any more. Throws
/// std::runtime_error if it cannot.
detail::descriptor start_stepper(detail::directory const& where, std::uint64_t seed);

}  // namespace rcverbs::fabric
