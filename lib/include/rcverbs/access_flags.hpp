// access_flags.hpp — what may be done with a memory region, and by whom.
//
// A region is exposed with exactly the access it needs: a peer that asks for more gets an error on its own connection.
// Values; no threading rule.
#pragma once

#include <cstdint>

namespace rcverbs {

/// Rights on registered memory, combined with `|`.
///
/// The local side may always read its own region. remote_write and remote_atomic imply local_write, as the
/// specification demands; the implication is added when the region is registered. Source: ibv_reg_mr(3).
enum class access_flags : std::uint32_t {
    /// The local device may read the memory: enough for the source of a write or a send.
    local_read = 0,
    /// The local device may write the memory: needed for receives and as the target of a read or an atomic.
    local_write = 1,
    /// A peer that knows the key may write the memory.
    remote_write = 2,
    /// A peer that knows the key may read the memory.
    remote_read = 4,
    /// A peer that knows the key may run fetch-and-add and compare-and-swap on it.
    remote_atomic = 8,
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
constexpr bool allows(access_flags rights, access_flags wanted) noexcept { return (rights & wanted) == wanted; }

}  // namespace rcverbs
