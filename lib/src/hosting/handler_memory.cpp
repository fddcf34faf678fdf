#include <rcverbs/detail/handler_memory.hpp>

#include <array>
#include <new>

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

constexpr std::size_t sizes = 7;

// Bytes that are kept of each size; further blocks return to the heap. A sanitizer sees more if
// nothing is kept.
#if defined(RCVERBS_KEEPS_NO_MEMORY)
constexpr std::size_t kept_bytes_max = 0;
#else
constexpr std::size_t kept_bytes_max = std::size_t{256} << 10U;
#endif

// Initialised by the compiler and never destroyed: polling threads may end later.
constinit std::array<free_blocks, sizes> unused;

}  // namespace

void* handler_memory::take_block(unsigned size) {
    static_assert(smallest_block_bytes << (sizes - 1) == block_bytes_max);
    free_blocks& kept = unused[size];
    {
        hosting::light_lock const lock{kept.mutex};
        if (free_block* const block = kept.first) {
            kept.first = block->next;
            --kept.count;
            return block;
        }
    }
    return ::operator new(smallest_block_bytes << size);
}

void handler_memory::give_block(void* block, unsigned size) noexcept {
    free_blocks& kept = unused[size];
    {
        hosting::light_lock const lock{kept.mutex};
        if (kept.count < kept_bytes_max / smallest_block_bytes >> size) {
            kept.first = ::new (block) free_block{kept.first};
            ++kept.count;
            return;
        }
    }
    ::operator delete(block);
}

}  // namespace rcverbs::detail
