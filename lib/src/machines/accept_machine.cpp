#include "machines/accept_machine.hpp"

namespace rcverbs::machines {

accept_machine::action accept_machine::resume(event e) noexcept {
    switch (state_) {
    case state::requested:
        switch (e) {
        case event::accept: state_ = state::accepting; return action::accept;
        case event::reject:
        case event::abort: state_ = state::refused; return action::reject;
        case event::error:
        case event::deadline: state_ = state::failed; return action::report_failure;
        case event::established: return action::illegal;
        }
        break;
    case state::accepting:
        switch (e) {
        case event::established: state_ = state::established; return action::report_established;
        case event::error:
        case event::deadline:
        case event::abort: state_ = state::failed; return action::report_failure;
        case event::accept:
        case event::reject: return action::illegal;
        }
        break;
    case state::established:
    case state::refused:
    case state::failed: break;
    }
    return e == event::accept || e == event::reject ? action::illegal : action::none;
}

}  // namespace rcverbs::machines
