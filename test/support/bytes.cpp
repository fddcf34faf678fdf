#include "support/bytes.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace test {

void fill(std::span<std::byte> bytes, std::uint32_t seed) {
    std::mt19937 random{seed};
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
        auto const word = static_cast<std::uint32_t>(random());
        std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(4, bytes.size() - i));
    }
}

bool same(std::span<std::byte const> a, std::span<std::byte const> b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

bool all_are(std::span<std::byte const> bytes, std::byte value) {
    // True if the first byte matches, and each byte equals the one before it.
    return bytes.empty() ||
           (bytes[0] == value && same(bytes.subspan(1), bytes.first(bytes.size() - 1)));
}

}  // namespace test
