// region_bodies.hpp — small parts of the bodies of a region channel's messages.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <rcverbs/error.hpp>

#include "wire/region_message.hpp"

namespace rcverbs::detail {

constexpr std::uint32_t number_of(wire::region_operation o) noexcept {
    return static_cast<std::uint32_t>(o);
}

/// For the peer: an errno, or EIO for what has none.
inline int errno_of(error_code ec) noexcept {
    bool const is_errno = ec.category() == boost::system::system_category() ||
                          ec.category() == boost::system::generic_category();
    return is_errno && ec.value() > 0 ? ec.value() : EIO;
}

/// As many keys as fit into `bytes`.
constexpr std::uint32_t keys_in(std::size_t bytes, std::uint32_t pieces) noexcept {
    std::size_t const most = std::min(bytes / wire::region_key_bytes, wire::region_keys_max);
    return static_cast<std::uint32_t>(std::min<std::size_t>(most, pieces));
}

template <std::size_t N>
std::vector<std::byte> as_vector(std::array<std::byte, N> const& a) {
    return {a.begin(), a.end()};
}

}  // namespace rcverbs::detail
