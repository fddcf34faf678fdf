// The allocator of a memory pool's chunks, beside a model that keeps every byte.
#include "memory/best_fit.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "support/catch.hpp"

using rcverbs::detail::best_fit;

namespace {

// Addresses only: nothing is stored there.
std::byte* at(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }
std::uintptr_t number(std::byte const* p) { return reinterpret_cast<std::uintptr_t>(p); }

constexpr std::uintptr_t base = 0x100000;

}  // namespace

TEST_CASE("the smallest block that fits is taken", "[memory]") {
    best_fit a;
    a.add_range(at(base), 4096);
    std::byte* const first = a.allocate(1024, 64);
    std::byte* const second = a.allocate(64, 64);
    std::byte* const third = a.allocate(512, 64);
    std::byte* const fourth = a.allocate(64, 64);
    REQUIRE(fourth != nullptr);
    a.free(first, 1024);
    a.free(third, 512);
    // Free: 1024, 512, and the rest.
    CHECK(a.allocate(512, 64) == third);
    CHECK(a.allocate(512, 64) == first);
    a.free(second, 64);
    CHECK(a.largest_free_bytes() == 4096 - 1024 - 64 - 512 - 64);
}

TEST_CASE("freed neighbours are joined, but not across ranges", "[memory]") {
    best_fit a;
    a.add_range(at(base), 256);
    a.add_range(at(base + 256), 256);
    std::vector<std::byte*> blocks;
    while (std::byte* const b = a.allocate(64, 64)) blocks.push_back(b);
    REQUIRE(blocks.size() == 8);
    CHECK(a.free_bytes() == 0);
    for (std::size_t const i : {1U, 3U, 0U, 2U, 6U, 4U, 7U, 5U}) a.free(blocks[i], 64);
    CHECK(a.free_bytes() == 512);
    CHECK(a.largest_free_bytes() == 256);
    CHECK(a.allocate(320, 64) == nullptr);
    CHECK(a.remove_range(at(base)));
    std::byte* const one = a.allocate(64, 64);
    CHECK(one == at(base + 256));
    CHECK_FALSE(a.remove_range(at(base + 256)));
    a.free(one, 64);
    CHECK(a.remove_range(at(base + 256)));
    CHECK(a.free_bytes() == 0);
}

TEST_CASE("an aligned block leaves the gap before it free", "[memory]") {
    best_fit a;
    a.add_range(at(base + 64), 8192 - 64);
    std::byte* const page = a.allocate(4096, 4096);
    CHECK(page == at(base + 4096));
    CHECK(a.allocate(4096, 4096) == nullptr);
    CHECK(a.free_bytes() == 4096 - 64);
    CHECK(a.allocate(4096 - 64, 64) == at(base + 64));
}

TEST_CASE("no two blocks overlap, and all that is free can be had again", "[memory]") {
    auto const seed = GENERATE(range(1U, 21U));
    std::mt19937 random{seed};
    INFO("seed " << seed);
    best_fit a;
    constexpr std::size_t range_bytes = 64 * 1024;
    for (std::uintptr_t i = 0; i < 3; ++i) a.add_range(at(base + i * range_bytes), range_bytes);
    std::map<std::uintptr_t, std::size_t> used;  // the model
    std::size_t used_bytes = 0;
    for (int step = 0; step < 2000; ++step) {
        bool const frees =
            !used.empty() && random() % 100 < (used_bytes > 2 * range_bytes ? 70 : 40);
        if (frees) {
            auto const victim = std::next(used.begin(), static_cast<long>(random() % used.size()));
            a.free(at(victim->first), victim->second);
            used_bytes -= victim->second;
            used.erase(victim);
        } else {
            std::size_t const size = best_fit::rounded(1 + random() % 6000);
            std::size_t const alignment = std::size_t{64} << (random() % 7);
            std::byte* const block = a.allocate(size, alignment);
            if (block == nullptr) {
                CHECK(a.largest_free_bytes() < size + alignment);
                continue;
            }
            std::uintptr_t const begin = number(block);
            REQUIRE(begin % alignment == 0);
            // In one range, and apart from its neighbours.
            REQUIRE((begin - base) / range_bytes == (begin + size - 1 - base) / range_bytes);
            auto const next = used.lower_bound(begin);
            if (next != used.end()) REQUIRE(begin + size <= next->first);
            if (next != used.begin()) {
                auto const previous = std::prev(next);
                REQUIRE(previous->first + previous->second <= begin);
            }
            used[begin] = size;
            used_bytes += size;
        }
        REQUIRE(a.free_bytes() + used_bytes == 3 * range_bytes);
    }
    for (auto const& [begin, size] : used) a.free(at(begin), size);
    CHECK(a.largest_free_bytes() == range_bytes);
    for (std::uintptr_t i = 0; i < 3; ++i) CHECK(a.remove_range(at(base + i * range_bytes)));
}
