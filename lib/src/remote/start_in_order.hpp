// start_in_order.hpp — how an operation of a handle begins.
#pragma once

#include <memory>
#include <utility>

#include <rcverbs/detail/waiting_handler.hpp>

#include "remote/region_core.hpp"

namespace rcverbs::detail {

/// Runs `begin(core, waiter)` in the core's order, with the handler that waits. A cancellation that
/// comes earlier is kept for a waiter that is added to a list.
template <class... Arguments, class Begin>
void start_in_order(
    std::shared_ptr<region_core> const& core, erased_handler<Arguments...> handler, Begin begin
) {
    auto const io = core->executor();
    if (!io) return;  // the handler goes with its context
    protocol::waiter<Arguments...> who{std::move(handler), io};
    who.keep_early_cancellation();
    core->run([core, begin = std::move(begin), w = std::move(who)]() mutable {
        begin(*core, std::move(w));
    });
}

}  // namespace rcverbs::detail
