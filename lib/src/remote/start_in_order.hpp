// start_in_order.hpp — how an operation of a handle begins.
#pragma once

#include <memory>
#include <utility>

#include <rcverbs/experimental/protocol.hpp>

namespace rcverbs::detail {

/// Runs `begin(core, waiter)` inside the core, with the handler that waits.
template <class Core, class... Arguments, class Begin>
void start_in_order(
    std::shared_ptr<Core> const& core, erased_handler<Arguments...> handler, Begin begin
) {
    auto const io = core->executor();
    if (!io) return;  // the handler goes with its context
    core->enter(
        [c = core.get(), begin = std::move(begin)](protocol::waiter<Arguments...>& who) mutable {
            begin(*c, std::move(who));
        },
        protocol::waiter<Arguments...>{std::move(handler), io}
    );
}

/// The same for an operation whose terminal cancellation closes the core.
template <class Core, class Begin>
void start_closable(std::shared_ptr<Core> const& core, control_handler handler, Begin begin) {
    start_in_order(
        core,
        std::move(handler),
        [core = core.get(),
         begin = std::move(begin)](Core& c, protocol::waiter<error_code> who) mutable {
            close_when_cancelled(who, std::static_pointer_cast<Core>(core->shared_from_this()));
            begin(c, std::move(who));
        }
    );
}

}  // namespace rcverbs::detail
