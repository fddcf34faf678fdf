// handler_memory.hpp — recycled memory for handlers that wait, and for what brings them to their
// executor. Internal.
#pragma once

#include <bit>
#include <cstddef>
#include <new>

#include <rcverbs/export.hpp>

namespace rcverbs::detail {

/// Blocks of memory of a few sizes, which are kept when they are given back: what starts and
/// completes again and again allocates nothing. Never destroyed; safe from any thread.
class RCVERBS_EXPORT handler_memory {
public:
    /// Larger blocks come from the heap.
    static constexpr std::size_t block_bytes_max = 4096;

    static void* take(std::size_t bytes) {
        return bytes > block_bytes_max ? ::operator new(bytes) : take_block(size_of(bytes));
    }
    /// @param bytes  As taken.
    static void give(void* block, std::size_t bytes) noexcept {
        if (bytes > block_bytes_max) return ::operator delete(block);
        give_block(block, size_of(bytes));
    }

private:
    static constexpr std::size_t smallest_block_bytes = 64;

    // The number of the size: of smallest_block_bytes, twice as many, and so on. Nearly always a constant.
    static constexpr unsigned size_of(std::size_t bytes) noexcept {
        return bytes <= smallest_block_bytes
                   ? 0
                   : static_cast<unsigned>(std::bit_width((bytes - 1) / smallest_block_bytes));
    }
    static void* take_block(unsigned size);
    static void give_block(void* block, unsigned size) noexcept;
};

/// A class that is allocated in handler_memory; a base class.
struct recycled {
    static void* operator new(std::size_t bytes) { return handler_memory::take(bytes); }
    static void operator delete(void* block, std::size_t bytes) noexcept {
        handler_memory::give(block, bytes);
    }
};

/// An allocator of handler_memory.
template <class T>
struct recycling_allocator {
    using value_type = T;

    recycling_allocator() = default;
    template <class U>
    recycling_allocator(recycling_allocator<U> const&) noexcept {}

    T* allocate(std::size_t n) {
        static_assert(alignof(T) <= alignof(std::max_align_t));
        return static_cast<T*>(handler_memory::take(n * sizeof(T)));
    }
    void deallocate(T* p, std::size_t n) noexcept { handler_memory::give(p, n * sizeof(T)); }
    friend bool operator==(recycling_allocator const&, recycling_allocator const&) = default;
};

}  // namespace rcverbs::detail
