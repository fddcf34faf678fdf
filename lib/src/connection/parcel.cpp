#include <rcverbs/detail/parcel.hpp>

#include <mutex>

#include "hosting/light_mutex.hpp"

namespace rcverbs::detail {

namespace {

// Enough for the concurrent rounds of several busy connections; further blocks return to the heap.
constexpr std::size_t blocks_max = 64;

struct free_block {
    free_block* next;
};

struct free_blocks {
    hosting::light_mutex mutex;
    free_block* first = nullptr;
    std::size_t count = 0;
};

free_blocks& pool() {
    static auto& all = *new free_blocks;  // never destroyed: polling threads may end later
    return all;
}

}  // namespace

void* parcel_memory::take() {
    {
        hosting::light_lock const lock{pool().mutex};
        if (free_block* const block = pool().first) {
            pool().first = block->next;
            --pool().count;
            return block;
        }
    }
    return ::operator new(block_bytes);
}

void parcel_memory::give(void* block) noexcept {
    {
        hosting::light_lock const lock{pool().mutex};
        if (pool().count < blocks_max) {
            pool().first = ::new (block) free_block{pool().first};
            ++pool().count;
            return;
        }
    }
    ::operator delete(block);
}

}  // namespace rcverbs::detail
