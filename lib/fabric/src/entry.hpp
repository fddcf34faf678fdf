// entry.hpp — the entry of every C function: find the network, lock it, apply an ordered failure.
//
// The families of functions report failures differently; each has its own wrapper.
#pragma once

#include <cerrno>
#include <system_error>
#include <utility>

#include "network.hpp"

namespace rcverbs::fabric::detail {

/// Returns the errno that was ordered for this call, else the result of `act(network, lock)`, an
/// errno. network::missing() without a network.
template <class Act>
int enter(char const* function, Act&& act) {
    network* const n = network::current();
    if (n == nullptr) return network::missing();
    if (n->faults.call_watcher) n->faults.call_watcher(function);
    inside const mark;
    auto held = n->lock();
    if (int const error = n->faults.failure_of(function)) return error;
    int const result = std::forward<Act>(act)(*n, held);
    n->flush();
    return result;
}

/// For functions that cannot fail: counts the call and executes it.
template <class Act>
void always(char const* function, Act&& act) {
    network* const n = network::current();
    if (n == nullptr) return;
    if (n->faults.call_watcher) n->faults.call_watcher(function);
    inside const mark;
    auto held = n->lock();
    static_cast<void>(n->faults.failure_of(function));
    std::forward<Act>(act)(*n, held);
    n->flush();
}

/// For functions that return the code itself.
template <class Act>
int returning_code(char const* function, Act&& act) {
    return enter(function, std::forward<Act>(act));
}

/// For functions that return -1 with the code in errno.
template <class Act>
int returning_minus_one(char const* function, Act&& act) {
    int const error = enter(function, std::forward<Act>(act));
    if (error == 0) return 0;
    errno = error;
    return -1;
}

/// For functions that return an object, or null with the code in errno. Calls `act(network, lock,
/// object)`.
template <class Object, class Act>
Object* returning_object(char const* function, Act&& act) {
    Object* made = nullptr;
    int error = 0;
    try {
        error =
            enter(function, [&](network& n, network::guard& held) { return act(n, held, made); });
    } catch (std::system_error const& failed) {
        error = failed.code().value();  // no descriptor is left
    }
    if (error == 0) return made;
    errno = error;
    return nullptr;
}

/// For functions that return a null-terminated list of devices: the results of `select(network,
/// device)`, without removed devices and null.
template <class Object, class Select>
Object** returning_list(char const* function, int* count, Select&& select) {
    int found = 0;
    Object** const list =
        returning_object<Object*>(function, [&](network& n, network::guard&, Object**& out) {
            out = new Object* [n.devices.size() + 1] {};
            for (auto const& d : n.devices) {
                if (d->is_removed) continue;
                if (Object* const one = select(n, *d)) out[found++] = one;
            }
            return 0;
        });
    if (count != nullptr) *count = found;
    return list;
}

/// Waits for one unit of the descriptor without the lock, as its flags say, then takes the event
/// with the lock.
template <class Take>
int taking(char const* function, doorbell_descriptor& from, Take&& take) {
    if (int const error = enter(function, [](network&, network::guard&) { return 0; })) {
        errno = error;
        return -1;
    }
    for (;;) {
        network* const n = network::current();
        if (n == nullptr) break;
        if (n->is_stepped() && from.blocks()) {
            // There is no other thread: run the events here.
            inside const mark;
            auto held = n->lock();
            while (!from.is_rung()) {
                if (!n->run_due(held) && !n->jump(held)) n->would_block_for_ever(function);
            }
        }
        if (from.take() != 0) return -1;
        inside const mark;
        auto const held = n->lock();
        int const error = take(*n);
        n->flush();
        if (error == 0) return 0;
        // The event was dropped between the two steps.
        if (error != EAGAIN) break;
    }
    errno = ENODEV;
    return -1;
}

}  // namespace rcverbs::fabric::detail
