// window_core.hpp — a memory window of a connection's, as long as a program holds it.
#pragma once

#include <memory>

#include <rcverbs/experimental/window.hpp>

#include "verbs/memory_window.hpp"

namespace rcverbs::detail {

class connection_core;

/// The connection frees the window before it destroys its queue pair: a device may refuse, or wait,
/// while a window of the queue pair is bound.
class window_core {
public:
    window_core(std::shared_ptr<connection_core> on, verbs::memory_window made) noexcept
        : connection{std::move(on)},
          window{std::move(made)} {}
    window_core(window_core const&) = delete;
    window_core& operator=(window_core const&) = delete;
    ~window_core();

    std::shared_ptr<connection_core> const connection;
    // Guarded by the lock of the connection.
    verbs::memory_window window;
};

/// The window of a request that binds or invalidates it.
inline verbs::memory_window& window_of(work_request const& what) noexcept {
    // Put there as an integer by op::bind() and op::invalidate().
    return *reinterpret_cast<verbs::memory_window*>(static_cast<std::uintptr_t>(what.operand));
}

}  // namespace rcverbs::detail
