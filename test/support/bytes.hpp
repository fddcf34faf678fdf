// bytes.hpp — memory with contents that tell where they come from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace test {

/// Fills with bytes that follow from the seed.
inline void fill(std::span<std::byte> bytes, std::uint32_t seed) {
    std::mt19937 random{seed};
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i % 4 == 0) word = static_cast<std::uint32_t>(random());
        bytes[i] = static_cast<std::byte>(word >> (8 * (i % 4)));
    }
}

inline bool same(std::span<std::byte const> a, std::span<std::byte const> b) { return std::ranges::equal(a, b); }

inline bool all_are(std::span<std::byte const> bytes, std::byte value) {
    return std::ranges::all_of(bytes, [=](std::byte b) { return b == value; });
}

}  // namespace test
