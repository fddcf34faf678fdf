// connect_machine.hpp — the active side's way from an address to an established connection.
//
//                resolve            address_resolved           route_resolved            queue_pair_made
//        idle ───────────▶ resolving_address ────────▶ resolving_route ────────▶ making_queue_pair ───────▶ ready
//                                                                                                             │ connect
//                                                                  established                                ▼
//                                                     established ◀───────────────────────────────────── connecting
//
//   From every state between idle and established, an error, a deadline or an abort leads to `failed`, for good.
//   In `idle` an abort leads there too. An event that is not due is `illegal` and changes nothing: the connection
//   manager may deliver late what an abort has made irrelevant, so in `failed` and `established` late events are `none`.
//
// Decides only; has no clock, no I/O and no threads.
#pragma once

#include <cstdint>

namespace rcverbs::machines {

class connect_machine {
public:
    enum class state : std::uint8_t {
        idle,
        resolving_address,
        resolving_route,
        making_queue_pair,
        ready,
        connecting,
        established,
        failed,
    };

    enum class event : std::uint8_t {
        resolve,           // the user wants the peer found
        address_resolved,  // the connection manager found device and neighbour
        route_resolved,    // it found the path
        queue_pair_made,   // the queue pair exists
        connect,           // the user wants the connection
        established,       // the peer accepted
        error,             // a call failed, the connection manager reported an error, or the peer refused
        deadline,          // the step took too long
        abort,             // the user closed
    };

    enum class action : std::uint8_t {
        none,
        resolve_address,
        resolve_route,
        make_queue_pair,
        report_ready,
        connect,
        report_established,
        report_failure,
        illegal,
    };

    /// Takes an event and says what to do about it.
    action resume(event e) noexcept;
    state current() const noexcept { return state_; }

private:
    state state_ = state::idle;
};

}  // namespace rcverbs::machines
