#include "rdma-bench/memory.hpp"

#include <boost/system/system_error.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rdma_bench {

namespace {

constexpr std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (splitmix64).
constexpr std::uint64_t mix(std::uint64_t x) noexcept {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
}

// Calls f(offset, word, bytes of it) for each word of a slot; stops when it returns false.
template <class Function>
bool each_word(
    std::size_t size, std::uint64_t seed, std::uint64_t slot_index, Function f
) noexcept {
    std::uint64_t const start = mix(seed ^ mix(slot_index));
    for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
        if (!f(at, mix(start + at), std::min(sizeof(std::uint64_t), size - at))) return false;
    }
    return true;
}

}  // namespace

pages::pages(std::size_t size_bytes, page_kind kind, std::uint64_t alignment_bytes) {
    // Twice the alignment leaves room for a start that is a multiple of it, but not of twice it.
    std::size_t const page = kind == page_kind::huge ? huge_page_bytes : small_page_bytes;
    mapped_bytes_ = round_up(size_bytes + 2 * alignment_bytes, page);
    int const flags = MAP_PRIVATE | MAP_ANONYMOUS | (kind == page_kind::huge ? MAP_HUGETLB : 0);
    void* const mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mapped == MAP_FAILED) {
        throw boost::system::system_error{
            errno,
            boost::system::system_category(),
            kind == page_kind::huge ? "huge pages of 2 MiB (see: sysctl vm.nr_hugepages)"
                                    : "memory"};
    }
    mapped_ = static_cast<std::byte*>(mapped);
    auto const base =
        reinterpret_cast<std::uintptr_t>(mapped_);  // an integer, to compute its alignment
    std::uintptr_t start = round_up(base, alignment_bytes);
    if (start % (2 * alignment_bytes) == 0) start += alignment_bytes;
    bytes_ = {mapped_ + (start - base), size_bytes};
}

pages::pages(pages&& other) noexcept
    : mapped_{std::exchange(other.mapped_, nullptr)},
      mapped_bytes_{std::exchange(other.mapped_bytes_, 0)},
      bytes_{std::exchange(other.bytes_, {})} {}

pages& pages::operator=(pages&& other) noexcept {
    std::swap(mapped_, other.mapped_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

pages::~pages() {
    if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
}

void fill(std::span<std::byte> slot, std::uint64_t seed, std::uint64_t slot_index) noexcept {
    each_word(
        slot.size(),
        seed,
        slot_index,
        [&](std::size_t at, std::uint64_t word, std::size_t bytes) {
            std::memcpy(slot.data() + at, &word, bytes);
            return true;
        }
    );
}

bool holds(std::span<std::byte const> slot, std::uint64_t seed, std::uint64_t slot_index) noexcept {
    return each_word(
        slot.size(),
        seed,
        slot_index,
        [&](std::size_t at, std::uint64_t word, std::size_t bytes) {
            return std::memcmp(slot.data() + at, &word, bytes) == 0;
        }
    );
}

}  // namespace rdma_bench
