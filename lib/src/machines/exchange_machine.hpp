// exchange_machine.hpp — the state of a session's message exchange, in both directions.
//
// Both directions have the same states and are independent of each other:
//
//                regions             done
//        opening ───────▶ published ──────▶ done
//           └───────────── done ─────────────▲
//
//   The user's requests change the outward state, the peer's messages change the inward state.
//   MSG_MR is optional; it is sent at most once, and never after MSG_DONE. MSG_DONE is sent exactly
//   once. A message from the peer that is not due is a `protocol_error`, a request by the user that
//   is not due is `illegal`; neither changes the state. The session is complete when both
//   directions are done.
//
// Pure logic: no clock, no I/O, no threads.
#pragma once

#include <cstdint>

namespace rcverbs::machines {

class exchange_machine {
public:
    enum class progress : std::uint8_t { opening, published, done };

    enum class event : std::uint8_t {
        publish,  // the user wants MSG_MR sent
        finish,  // the user wants MSG_DONE sent
        regions_received,  // MSG_MR has arrived
        done_received,  // MSG_DONE has arrived
    };

    enum class action : std::uint8_t {
        send_regions,
        send_done,
        deliver_regions,
        deliver_done,
        illegal,
        protocol_error,
    };

    /// Processes an event and returns the action to take.
    action resume(event e) noexcept;
    progress outward() const noexcept { return outward_; }
    progress inward() const noexcept { return inward_; }
    /// True once both sides have sent MSG_DONE.
    bool is_complete() const noexcept {
        return outward_ == progress::done && inward_ == progress::done;
    }

private:
    progress outward_ = progress::opening;
    progress inward_ = progress::opening;
};

}  // namespace rcverbs::machines
