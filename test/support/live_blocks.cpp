#include "support/live_blocks.hpp"

#include <rcverbs/fabric.hpp>

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<long> blocks{0};
std::atomic<long> all{0};
std::atomic<long> bytes{0};
}  // namespace

#if defined(RCVERBS_ADDRESS_SANITIZER) || defined(RCVERBS_THREAD_SANITIZER)
std::optional<long> test::live_blocks() noexcept { return std::nullopt; }
std::optional<long> test::allocations() noexcept { return std::nullopt; }
std::optional<long> test::live_bytes() noexcept { return std::nullopt; }
#else
std::optional<long> test::live_blocks() noexcept { return blocks.load(); }
std::optional<long> test::allocations() noexcept { return all.load(); }
std::optional<long> test::live_bytes() noexcept { return bytes.load(); }

void* operator new(std::size_t size) {
    void* const p = std::malloc(size);
    if (p == nullptr) throw std::bad_alloc{};
    if (!rcverbs::fabric::world::is_inside())
        ++blocks, ++all, bytes += static_cast<long>(::malloc_usable_size(p));
    return p;
}
void operator delete(void* p) noexcept {
    if (p != nullptr && !rcverbs::fabric::world::is_inside())
        --blocks, bytes -= static_cast<long>(::malloc_usable_size(p));
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
#endif
