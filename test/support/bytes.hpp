// bytes.hpp — generates and checks test data. Compiled separately with optimisation, for megabytes
// of data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace test {

/// Fills with bytes that follow from the seed.
void fill(std::span<std::byte> bytes, std::uint32_t seed);

bool same(std::span<std::byte const> a, std::span<std::byte const> b);

bool all_are(std::span<std::byte const> bytes, std::byte value);

}  // namespace test
