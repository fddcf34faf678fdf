#include "support/live_blocks.hpp"

#include <rcverbs/fabric.hpp>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> blocks{0};
std::atomic<long> all{0};
}  // namespace

#if defined(RCVERBS_ADDRESS_SANITIZER) || defined(RCVERBS_THREAD_SANITIZER)
std::optional<long> test::live_blocks() noexcept { return std::nullopt; }
std::optional<long> test::allocations() noexcept { return std::nullopt; }
#else
std::optional<long> test::live_blocks() noexcept { return blocks.load(); }
std::optional<long> test::allocations() noexcept { return all.load(); }

void* operator new(std::size_t size) {
    if (!rcverbs::fabric::world::is_inside()) ++blocks, ++all;
    if (void* const p = std::malloc(size)) return p;
    throw std::bad_alloc{};
}
void operator delete(void* p) noexcept {
    if (p != nullptr && !rcverbs::fabric::world::is_inside()) --blocks;
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
#endif
