#include "memory/chunk.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <limits>

#include "verbs/errno_map.hpp"

namespace rcverbs::detail {

namespace {

constexpr std::size_t huge_2m_bytes = std::size_t{1} << 21;
constexpr std::size_t huge_1g_bytes = std::size_t{1} << 30;
// The size of huge pages, as a power of two, in mmap's flags. Source: mmap(2), MAP_HUGE_SHIFT.
constexpr int huge_shift = 26;
constexpr int flags_2m = MAP_HUGETLB | (21 << huge_shift);
constexpr int flags_1g = MAP_HUGETLB | (30 << huge_shift);

std::byte* map(std::size_t size_bytes, int flags) noexcept {
    void* const memory = ::mmap(
        nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0
    );
    return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

// Before the memory is touched. False where the system has no such node, or no NUMA. Source:
// mbind(2).
bool bind(std::byte* memory, std::size_t size_bytes, std::uint32_t node) noexcept {
    constexpr std::size_t bits = std::numeric_limits<unsigned long>::digits;
    std::array<unsigned long, 16> mask{};
    if (node >= mask.size() * bits) return false;
    mask[node / bits] = 1UL << (node % bits);
    return ::syscall(
               SYS_mbind, memory, size_bytes, MPOL_BIND, mask.data(), mask.size() * bits, 0
           ) == 0;
}

}  // namespace

std::size_t chunk::page_bytes(page_size pages) noexcept {
    switch (pages) {
    case page_size::standard: break;
    case page_size::huge_2m: return huge_2m_bytes;
    case page_size::huge_1g: return huge_1g_bytes;
    }
    return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::optional<chunk> chunk::make(
    std::span<protection_domain const> domains,
    std::size_t size_bytes,
    memory_pool_options const& options,
    error_code& ec
) {
    chunk made;
    std::byte* memory = nullptr;
    if (options.pages == page_size::huge_2m) memory = map(size_bytes, flags_2m);
    if (options.pages == page_size::huge_1g) memory = map(size_bytes, flags_1g);
    made.is_huge_ = memory != nullptr;
    if (memory == nullptr) memory = map(size_bytes, 0);
    if (memory == nullptr) {
        ec = verbs::from_minus_one(-1);
        return std::nullopt;
    }
    made.memory_ = {memory, unmap{size_bytes}};
    // Huge pages where the system makes them by itself.
    if (!made.is_huge_ && size_bytes >= huge_2m_bytes)
        static_cast<void>(::madvise(memory, size_bytes, MADV_HUGEPAGE));
    if (options.numa_node) made.is_on_node_ = bind(memory, size_bytes, *options.numa_node);
    made.regions_.reserve(domains.size());
    for (protection_domain const& domain : domains) {
        memory_region region{domain, {memory, size_bytes}, options.rights, ec};
        if (ec) return std::nullopt;
        made.regions_.push_back(std::move(region));
    }
    return made;
}

}  // namespace rcverbs::detail
