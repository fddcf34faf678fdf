// counting_allocator.hpp — an allocator that counts its blocks, for tests of allocation and
// deallocation.
#pragma once

#include <cstddef>
#include <memory>

namespace test {

/// Counts the blocks in use, and all blocks ever allocated. Copies share both counters.
template <class T>
struct counting_allocator {
    using value_type = T;
    int* live;
    int* ever;

    counting_allocator(int* l, int* e) : live{l}, ever{e} {}
    template <class U>
    counting_allocator(counting_allocator<U> const& o) : live{o.live},
                                                         ever{o.ever} {}
    T* allocate(std::size_t n) {
        ++*live;
        ++*ever;
        return std::allocator<T>{}.allocate(n);
    }
    void deallocate(T* p, std::size_t n) {
        --*live;
        std::allocator<T>{}.deallocate(p, n);
    }
    template <class U>
    bool operator==(counting_allocator<U> const& o) const {
        return live == o.live;
    }
};

}  // namespace test
