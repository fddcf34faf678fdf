// keys.hpp — the two types of memory key.
//
//     local_key mine = pages.slice().key();       // stays on this host
//     remote_key shared = pages.remote().key();   // is sent to the peer, within a remote_region
//
// A local key (lkey) identifies a region to the own device, a remote key (rkey) to a peer's device.
// They are different types, so that one cannot be passed for the other. Values; no threading rule.
#pragma once

#include <cstdint>

namespace rcverbs {

/// Identifies a memory region in local work requests; never leaves the host.
struct local_key {
    std::uint32_t value = 0;
    friend constexpr bool operator==(local_key, local_key) = default;
};

/// Identifies a memory region in a peer's work requests; is sent to the peer.
struct remote_key {
    std::uint32_t value = 0;
    friend constexpr bool operator==(remote_key, remote_key) = default;
};

}  // namespace rcverbs
