#include "machines/connect_machine.hpp"

namespace rcverbs::machines {

namespace {

using state = connect_machine::state;
using event = connect_machine::event;
using action = connect_machine::action;

struct rule {
    state from;
    event on;
    state to;
    action then;
};

// The straight way; failures are the same from everywhere on it.
constexpr rule rules[] = {
    {state::idle, event::resolve, state::resolving_address, action::resolve_address},
    {state::resolving_address, event::address_resolved, state::resolving_route, action::resolve_route},
    {state::resolving_route, event::route_resolved, state::making_queue_pair, action::make_queue_pair},
    {state::making_queue_pair, event::queue_pair_made, state::ready, action::report_ready},
    {state::ready, event::connect, state::connecting, action::connect},
    {state::connecting, event::established, state::established, action::report_established},
};

bool is_user_request(event e) noexcept { return e == event::resolve || e == event::connect; }

}  // namespace

action connect_machine::resume(event e) noexcept {
    for (rule const& r : rules) {
        if (r.from == state_ && r.on == e) {
            state_ = r.to;
            return r.then;
        }
    }
    bool const is_over = state_ == state::established || state_ == state::failed;
    if (is_over) return is_user_request(e) ? action::illegal : action::none;
    bool const is_failure = e == event::error || e == event::deadline || e == event::abort;
    // An idle connection has nothing that could fail or take long.
    if (!is_failure || (state_ == state::idle && e != event::abort)) return action::illegal;
    state_ = state::failed;
    return action::report_failure;
}

}  // namespace rcverbs::machines
