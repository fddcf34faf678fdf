// seeds.hpp — the seeds of random tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace test {

/// True if the seeds are the same in each run, as in the gate: then fewer of them are enough.
inline bool are_seeds_fixed() { return std::getenv("RCVERBS_FABRIC_SEED") != nullptr; }

/// Seeds for tests of many runs. The first is RCVERBS_FABRIC_SEED, so that a failed run comes first
/// when it is repeated, and the others follow from it; without it, all are random.
inline std::vector<std::uint64_t> seeds(std::size_t count) {
    char const* const given = std::getenv("RCVERBS_FABRIC_SEED");
    std::vector<std::uint64_t> all(count);
    all[0] = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
    std::mt19937_64 random{all[0]};
    for (std::size_t i = 1; i < count; ++i) all[i] = random();
    return all;
}

}  // namespace test
