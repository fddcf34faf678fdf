// teardown_machine.hpp — how a connection ends, whoever ends it.
//
//              disconnect                       peer_disconnected
//        live ─────────────▶ disconnecting ───────────────────────────▶ draining
//          │                       │      close                             ▲  │
//          │                       │ drained                                │  │ drained, deadline
//          │                       ▼      peer_disconnected, close, deadline│  ▼
//          │            awaiting_peer ─────────────────────────────────────────▶ finished
//          └── close, peer_disconnected, broken ────────────────────────────┘
//
//   The way out of `live` always stops the queue pair (everything posted is flushed) and tells the peer. `drained` means
//   that every posted operation has completed. `finish` may destroy the queue pair; `give_up` means the same when the
//   device kept some of the work.
//
//   Only a disconnect of our own waits for the peer's answer. A peer that does not answer is met by a deadline: in
//   `disconnecting` it first stops the wait for the answer, and a second one, in `draining`, the wait for the device.
//
// Decides only; has no clock, no I/O and no threads.
#pragma once

#include <cstdint>

namespace rcverbs::machines {

class teardown_machine {
public:
    enum class state : std::uint8_t { live, disconnecting, awaiting_peer, draining, finished };

    enum class event : std::uint8_t {
        disconnect,         // the user wants an orderly end
        close,              // the user wants an end at once
        peer_disconnected,  // the connection manager says that the peer has gone, or has answered
        broken,             // work failed, or the device has gone
        drained,            // everything posted has completed
        deadline,           // the present state has lasted too long
    };

    enum class action : std::uint8_t {
        none,
        stop,     // stop the queue pair, tell the peer, wait for `drained` (the state says whether for the peer, too)
        drain,    // wait for `drained` alone, with a deadline of its own
        finish,   // all is back: destroy
        give_up,  // the device kept some work: destroy if that can be done
        illegal,
    };

    /// Takes an event and says what to do about it.
    action resume(event e) noexcept;
    state current() const noexcept { return state_; }

private:
    state state_ = state::live;
};

}  // namespace rcverbs::machines
