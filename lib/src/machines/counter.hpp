// counter.hpp — a number that one thread at a time changes, and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace rcverbs::machines {

class counter {
public:
    void add(std::uint64_t n) noexcept { set(read() + n); }
    // Relaxed: one thread writes it, and the number orders nothing.
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
    std::uint64_t read() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

}  // namespace rcverbs::machines
