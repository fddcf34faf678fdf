// access_flags.hpp — the rights of the local side and of peers to a memory region.
//
//     registered_buffer page{domain, 4096, access_flags::remote_read | access_flags::remote_write};
//
// Grant only the rights that are needed. An operation of a peer without the right fails and ends
// that peer's connection. Values; no threading rule.
#pragma once

#include <cstdint>

namespace rcverbs {

/// Rights on registered memory, combined with `|`.
///
/// The local side may always read its own region. remote_write and remote_atomic imply local_write,
/// as the specification demands; the implication is added when the region is registered. Source:
/// ibv_reg_mr(3).
enum class access_flags : std::uint32_t {
    /// The local device may read the memory: enough for the source of a write or a send.
    local_read = 0,
    /// The local device may write the memory: needed for receives and as the target of a read or an
    /// atomic.
    local_write = 1,
    /// A peer that knows the key may write the memory.
    remote_write = 2,
    /// A peer that knows the key may read the memory.
    remote_read = 4,
    /// A peer that knows the key may run fetch-and-add and compare-and-swap on it.
    remote_atomic = 8,
    /// Memory windows may be bound to the memory: see window.hpp. They grant rights of their own.
    bind_windows = 16,
    /// The device may write the memory in any order within a message, which is faster on some
    /// hosts: read the bytes of a message only after its completion. Ignored where the device or
    /// the kernel does not support it. Source: ibv_reg_mr(3), IBV_ACCESS_RELAXED_ORDERING.
    relaxed_ordering = 32,
    /// The memory is not pinned: the device faults pages in when it needs them. Fails with
    /// errc::on_demand_paging_unsupported where the device cannot: see
    /// device_limits::has_on_demand_paging. Source: ibv_reg_mr(3), IBV_ACCESS_ON_DEMAND.
    on_demand = 64,
};

/// The union of two sets of rights.
constexpr access_flags operator|(access_flags a, access_flags b) noexcept {
    return static_cast<access_flags>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

/// The intersection of two sets of rights.
constexpr access_flags operator&(access_flags a, access_flags b) noexcept {
    return static_cast<access_flags>(static_cast<std::uint32_t>(a) & static_cast<std::uint32_t>(b));
}

/// True if `rights` contains all of `wanted`.
constexpr bool allows(access_flags rights, access_flags wanted) noexcept {
    return (rights & wanted) == wanted;
}

}  // namespace rcverbs
