// exchange_machine.hpp — what the two sides of a session have told each other.
//
// Each direction goes the same way, independently of the other:
//
//                regions             done
//        opening ───────▶ published ──────▶ done
//           └───────────── done ─────────────▲
//
//   Outward the user's requests move it, inward the peer's messages. MSG_MR is optional, comes at most once and never
//   after MSG_DONE; MSG_DONE comes exactly once. A message of the peer's that is not due is a `protocol_error`, a request
//   of the user's that is not due `illegal`; neither changes anything. The session is complete when both directions are
//   done.
//
// Decides only; has no clock, no I/O and no threads.
#pragma once

#include <cstdint>

namespace rcverbs::machines {

class exchange_machine {
public:
    enum class progress : std::uint8_t { opening, published, done };

    enum class event : std::uint8_t {
        publish,           // the user wants MSG_MR sent
        finish,            // the user wants MSG_DONE sent
        regions_received,  // MSG_MR came
        done_received,     // MSG_DONE came
    };

    enum class action : std::uint8_t {
        send_regions,
        send_done,
        deliver_regions,
        deliver_done,
        illegal,
        protocol_error,
    };

    /// Takes an event and says what to do about it.
    action resume(event e) noexcept;
    progress outward() const noexcept { return outward_; }
    progress inward() const noexcept { return inward_; }
    /// True once both sides have said MSG_DONE.
    bool is_complete() const noexcept { return outward_ == progress::done && inward_ == progress::done; }

private:
    progress outward_ = progress::opening;
    progress inward_ = progress::opening;
};

}  // namespace rcverbs::machines
