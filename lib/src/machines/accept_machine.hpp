// accept_machine.hpp — the passive side's way from a request to an established connection.
//
//                    accept                    established
//        requested ───────────▶ accepting ──────────────────▶ established
//            │                      │
//            │ reject, abort        │ error, deadline, abort
//            ▼                      ▼
//         refused                 failed  ◀── error, deadline (from requested too)
//
//   A request that nobody answers is refused by `abort` (its owner let go of it). In the three final states late events
//   of the connection manager are `none`; what the user may not ask for any more is `illegal`.
//
// Decides only; has no clock, no I/O and no threads.
#pragma once

#include <cstdint>

namespace rcverbs::machines {

class accept_machine {
public:
    enum class state : std::uint8_t { requested, accepting, established, refused, failed };

    enum class event : std::uint8_t {
        accept,       // the user takes the request
        reject,       // the user refuses it
        established,  // the peer has learnt of our acceptance
        error,        // a call failed, or the connection manager reported an error or the peer's leaving
        deadline,     // the peer was silent for too long, or the user was
        abort,        // the user closed
    };

    enum class action : std::uint8_t { none, accept, reject, report_established, report_failure, illegal };

    /// Takes an event and says what to do about it.
    action resume(event e) noexcept;
    state current() const noexcept { return state_; }

private:
    state state_ = state::requested;
};

}  // namespace rcverbs::machines
