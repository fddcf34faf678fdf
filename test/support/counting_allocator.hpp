// counting_allocator.hpp — an allocator that counts, for tests of what is allocated with it and when it is given back.
#pragma once

#include <cstddef>
#include <memory>

namespace test {

/// Counts the blocks that are alive, and those that ever were. Copies count into the same two numbers.
template <class T>
struct counting_allocator {
    using value_type = T;
    int* live;
    int* ever;

    counting_allocator(int* l, int* e) : live{l}, ever{e} {}
    template <class U>
    counting_allocator(counting_allocator<U> const& o) : live{o.live}, ever{o.ever} {}
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
