#include "machines/teardown_machine.hpp"

namespace rcverbs::machines {

teardown_machine::action teardown_machine::resume(event e) noexcept {
    switch (state_) {
    case state::live:
        switch (e) {
        case event::disconnect: state_ = state::disconnecting; return action::stop;
        case event::close:
        case event::peer_disconnected:
        case event::broken: state_ = state::draining; return action::stop;
        case event::drained: return action::none;
        case event::deadline: return action::illegal;
        }
        break;
    case state::disconnecting:
        switch (e) {
        case event::peer_disconnected:
        case event::close:
        case event::deadline: state_ = state::draining; return action::drain;
        case event::drained: state_ = state::awaiting_peer; return action::none;
        case event::broken: return action::none;  // the work that we flush ourselves
        case event::disconnect: return action::illegal;
        }
        break;
    case state::awaiting_peer:
        switch (e) {
        case event::peer_disconnected:
        case event::close:
        case event::deadline: state_ = state::finished; return action::finish;
        case event::drained:
        case event::broken: return action::none;
        case event::disconnect: return action::illegal;
        }
        break;
    case state::draining:
        switch (e) {
        case event::drained: state_ = state::finished; return action::finish;
        case event::deadline: state_ = state::finished; return action::give_up;
        case event::peer_disconnected:
        case event::close:
        case event::broken: return action::none;
        case event::disconnect: return action::illegal;
        }
        break;
    case state::finished: return e == event::disconnect ? action::illegal : action::none;
    }
    return action::illegal;
}

}  // namespace rcverbs::machines
