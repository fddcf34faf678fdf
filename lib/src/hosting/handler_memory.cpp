#include <rcverbs/detail/handler_memory.hpp>

#include <array>
#include <bit>
#include <mutex>

#include "hosting/light_mutex.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define RCVERBS_KEEPS_NO_MEMORY
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RCVERBS_KEEPS_NO_MEMORY
#endif
#endif

namespace rcverbs::detail {

namespace {

struct free_block {
    free_block* next;
};

// Blocks of one size that nobody uses.
struct free_blocks {
    hosting::light_mutex mutex;
    free_block* first = nullptr;
    std::size_t count = 0;
};

constexpr std::size_t block_bytes_min = 64;
constexpr std::size_t sizes =
    std::countr_zero(handler_memory::block_bytes_max) - std::countr_zero(block_bytes_min) + 1;

// Bytes that are kept of each size; further blocks return to the heap. A sanitizer sees more if
// nothing is kept.
#if defined(RCVERBS_KEEPS_NO_MEMORY)
constexpr std::size_t kept_bytes_max = 0;
#else
constexpr std::size_t kept_bytes_max = std::size_t{256} << 10U;
#endif

std::size_t size_of(std::size_t bytes) noexcept {
    return std::bit_ceil(bytes < block_bytes_min ? block_bytes_min : bytes);
}

free_blocks& blocks_of(std::size_t size) {
    // Never destroyed: polling threads may end later.
    static auto& all = *new std::array<free_blocks, sizes>;
    return all[static_cast<std::size_t>(
        std::countr_zero(size) - std::countr_zero(block_bytes_min)
    )];
}

}  // namespace

void* handler_memory::take(std::size_t bytes) {
    if (bytes > block_bytes_max) return ::operator new(bytes);
    std::size_t const size = size_of(bytes);
    free_blocks& kept = blocks_of(size);
    {
        hosting::light_lock const lock{kept.mutex};
        if (free_block* const block = kept.first) {
            kept.first = block->next;
            --kept.count;
            return block;
        }
    }
    return ::operator new(size);
}

void handler_memory::give(void* block, std::size_t bytes) noexcept {
    if (bytes > block_bytes_max) return ::operator delete(block);
    std::size_t const size = size_of(bytes);
    free_blocks& kept = blocks_of(size);
    {
        hosting::light_lock const lock{kept.mutex};
        if ((kept.count + 1) * size <= kept_bytes_max) {
            kept.first = ::new (block) free_block{kept.first};
            ++kept.count;
            return;
        }
    }
    ::operator delete(block);
}

}  // namespace rcverbs::detail
