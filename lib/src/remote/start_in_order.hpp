// start_in_order.hpp — how an operation of a handle begins.
#pragma once

#include <memory>
#include <utility>

#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/waiting_handler.hpp>
#include <rcverbs/experimental/protocol.hpp>

namespace rcverbs::detail {

/// Runs `begin(core, waiter)` in the core's order, with the handler that waits. A cancellation that
/// comes earlier is kept for a waiter that is added to a list.
template <class Core, class... Arguments, class Begin>
void start_in_order(
    std::shared_ptr<Core> const& core, erased_handler<Arguments...> handler, Begin begin
) {
    auto const io = core->executor();
    if (!io) return;  // the handler goes with its context
    protocol::waiter<Arguments...> who{std::move(handler), io};
    who.keep_early_cancellation();
    core->run([core, begin = std::move(begin), w = std::move(who)]() mutable {
        begin(*core, std::move(w));
    });
}

/// The same for an operation whose terminal cancellation closes the core.
template <class Core, class Begin>
void start_closable(std::shared_ptr<Core> const& core, control_handler handler, Begin begin) {
    auto const io = core->executor();
    if (!io) return;  // the handler goes with its context
    control_waiter who{std::move(handler), io};
    close_when_cancelled(who, core);
    core->run([core, begin = std::move(begin), w = std::move(who)]() mutable {
        begin(*core, std::move(w));
    });
}

}  // namespace rcverbs::detail
