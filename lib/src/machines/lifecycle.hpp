// lifecycle.hpp — the state machine of one connection: setup, cause of the end, completed waits.
//
//   connecting side                                      accepting side
//
//   idle ──resolve──▶ resolving_address                  requested ──reject, close──┐
//     │                     │ address_resolved               │ accept               │
//     │               resolving_route                        │                      │
//     │ prepare             │ route_resolved                 │                      │
//     └─────────────▶ making_queue_pair                      │                      │
//                           │ queue_pair_made                │                      │
//                         ready ──connect──▶ connecting   accepting                 │
//                           │                    │ established │                    │
//                           └─establish──────▶ opening ◀───────┘                    │
//                                                │ opened                           │
//                                               open                                │
//                                 disconnect │   │ close, peer_gone, broken, …      │
//                              disconnecting ◀   ▼                                  │
//                   drained │         │ ────▶ draining ◀── failed, close, broken ───┘
//                           ▼         peer_gone, close, deadline
//                     awaiting_peer              │ drained, deadline
//                           │                    ▼
//                           └───────────────▶ finishing ──finished, kept──▶ ended
//
//   `gone` leads to ended from every state.
//
//   An event that ends a connection before it is open also completes the wait for its setup. An
//   event that is not due has no effect, because the connection manager may deliver outdated
//   events.
//
//   The first cause is kept as the reason of the end, with three exceptions:
//     - A cause that was inferred from a queue pair in the error state is replaced when a
//       completion or an event names the actual cause.
//     - A work request that failed for a reason of its own outweighs the peer's disconnect, even if
//       its completion arrives later: the peer disconnected for that reason.
//     - A queue pair that cannot be destroyed (`kept`) outweighs every other cause.
//   These rules apply until the connection has ended, so that the completions that are polled last
//   still count.
//
// Pure logic: no clock, no I/O, no threads.
#pragma once

#include <cstdint>
#include <optional>

#include <rcverbs/close_reason.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/failure.hpp>

namespace rcverbs::machines {

class lifecycle {
public:
    enum class state : std::uint8_t {
        idle,
        resolving_address,
        resolving_route,
        making_queue_pair,
        ready,
        connecting,
        requested,
        accepting,
        opening,
        open,
        disconnecting,  // waits for the peer's answer and for the posted work
        awaiting_peer,  // all work is returned; waits for the peer's answer
        draining,  // waits for the device to return the posted work
        finishing,  // releases all resources
        ended,
    };

    /// The events.
    enum class event_kind : std::uint8_t {
        // Requests by the program
        resolve,  // find the peer
        resolve_and_connect,  // find the peer and connect to it
        prepare,  // create a queue pair for an out-of-band connection
        connect,  // send the connection request
        establish,  // connect to a queue pair whose address came out of band
        accept,
        reject,
        disconnect,  // end in order
        close,  // end at once; `code` if cancelling an operation caused it
        violated,  // end at once, because the peer violated a protocol: `code`
        // Completed steps
        address_resolved,
        route_resolved,
        queue_pair_made,
        established,  // reported by the connection manager
        opened,  // the queue pair has all its attributes
        // Failures
        failed,  // a setup step: `code`, `status`, and `where` if the state does not imply it
        peer_gone,  // the peer has disconnected, or has answered our disconnect: `status`
        work_failed,  // a failed completion: `code`, its vendor error as `status`
        broken,  // the device, port, queue or path failed: `code`, `status`, `reason`
        stopped,  // the queue pair is in the error state for an unknown reason
        // Deadlines and teardown
        deadline,  // the deadline of the present state has expired
        drained,  // no completion is outstanding
        finished,  // all resources are released
        kept,  // all are released except a queue pair that cannot be destroyed
        gone,  // the context is destroyed: all is released at once, no wait completes
    };

    struct event {
        event_kind what;
        error_code code = {};
        int status = 0;
        close_reason reason = close_reason::open;
        std::optional<step> where = {};
    };

    /// The action to take.
    enum class action : std::uint8_t {
        none,
        resolve_address,
        resolve_route,
        make_queue_pair,
        connect,  // send the connection request
        accept,
        open,  // set the attributes of the queue pair, then report `opened`
        reject,  // reject the peer's request, then as `stop`
        stop,  // move the queue pair to the error state; disconnect if it was open
        finish,  // release all resources, then report `finished` or `kept`
    };

    /// The deadline that runs from now on.
    enum class deadline : std::uint8_t {
        same,  // unchanged
        none,
        resolve_address,
        resolve_route,
        connect,
        disconnect,
        drain,
    };

    /// The answer to an event. Each code completes the waiting handler of its kind, if there is
    /// one.
    struct answer {
        action then = action::none;
        deadline until = deadline::same;
        std::optional<error_code> setup = {};  // for the wait for a setup step
        std::optional<error_code> disconnect = {};  // for the wait for the disconnect
        std::optional<error_code> end = {};  // for the wait for any end
        std::optional<step> done = {};  // this step has succeeded
    };

    /// The known cause of the end; a default code means that nothing failed.
    struct cause {
        step where = step::open;
        error_code code;
        int status = 0;
    };

    /// Begins idle, or with a peer's request.
    explicit lifecycle(state first = state::idle) noexcept
        : state_{first},
          is_passive_{first == state::requested} {}

    answer resume(event const& e) noexcept;
    /// To be called for an iWARP device, which moves a queue pair to the error state when the peer
    /// closes.
    void runs_on_iwarp() noexcept { is_iwarp_ = true; }

    state current() const noexcept { return state_; }
    bool is_passive() const noexcept { return is_passive_; }
    bool is_open() const noexcept { return state_ == state::open; }
    /// True until the connection begins to end.
    bool is_live() const noexcept { return state_ <= state::open; }
    /// True while the peer may use the queue pair although it is not open on this side yet.
    bool is_joining() const noexcept {
        return state_ == state::connecting || state_ == state::accepting ||
               state_ == state::opening;
    }
    bool has_ended() const noexcept { return state_ == state::ended; }

    close_reason reason() const noexcept { return reason_; }
    cause const& failure() const noexcept { return failure_; }
    /// The code that a wait for the end completes with: success if either side closed or
    /// disconnected.
    error_code end_code() const noexcept;
    /// The code of a flushed operation: why the connection ended, from the user's point of view.
    error_code flush_code() const noexcept;
    /// The code of an operation that is started while the connection is not open.
    error_code refusal_code() const noexcept;

private:
    answer on_close(event const& e) noexcept;
    answer on_work_failed(event const& e) noexcept;
    answer on_stopped() noexcept;
    answer stop(action how) noexcept;
    answer stop(action how, error_code setup) noexcept;
    answer finish() noexcept;
    answer end() noexcept;
    void note(step where, event const& e, close_reason why) noexcept;
    void replace(step where, event const& e, close_reason why) noexcept;
    bool forget_inferred() noexcept;
    step present_step() const noexcept;

    state state_;
    bool is_passive_;
    bool connects_at_once_ = false;
    // Connected without the connection manager, so a disconnect gets no answer.
    bool is_out_of_band_ = false;
    bool is_iwarp_ = false;
    close_reason reason_ = close_reason::open;
    cause failure_;
    bool is_inferred_ = false;
};

/// Names as in the diagram above, for tests and messages.
char const* to_string(lifecycle::state s) noexcept;
char const* to_string(lifecycle::event_kind h) noexcept;
char const* to_string(lifecycle::action a) noexcept;
char const* to_string(lifecycle::deadline d) noexcept;

}  // namespace rcverbs::machines
