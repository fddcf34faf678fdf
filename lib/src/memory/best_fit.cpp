#include "memory/best_fit.hpp"

#include <cstdint>
#include <iterator>

namespace rcverbs::detail {

// Afterwards there are at least so many spare nodes of each kind, and room for all nodes among them.
void best_fit::make_spares(std::size_t count) {
    while (spare_addresses_.size() < count || spare_sizes_.size() < count) {
        std::size_t const nodes = by_address_.size() + count;
        if (spare_addresses_.capacity() < nodes) spare_addresses_.reserve(2 * nodes);
        if (spare_sizes_.capacity() < nodes) spare_sizes_.reserve(2 * nodes);
        if (spare_addresses_.size() < count) {
            by_address one;
            one.emplace(nullptr, std::size_t{0});
            spare_addresses_.push_back(one.extract(one.begin()));
        }
        if (spare_sizes_.size() < count) {
            by_size one;
            one.emplace(std::size_t{0}, nullptr);
            spare_sizes_.push_back(one.extract(one.begin()));
        }
    }
}

void best_fit::insert(std::byte* block, std::size_t size_bytes) noexcept {
    by_address::node_type address = std::move(spare_addresses_.back());
    spare_addresses_.pop_back();
    address.key() = block;
    address.mapped() = size_bytes;
    by_address_.insert(std::move(address));
    by_size::node_type size = std::move(spare_sizes_.back());
    spare_sizes_.pop_back();
    size.value() = {size_bytes, block};
    by_size_.insert(std::move(size));
    free_bytes_ += size_bytes;
}

void best_fit::erase(std::byte* block, std::size_t size_bytes) noexcept {
    spare_addresses_.push_back(by_address_.extract(block));
    spare_sizes_.push_back(by_size_.extract({size_bytes, block}));
    free_bytes_ -= size_bytes;
}

void best_fit::add_range(std::byte* base, std::size_t size_bytes) {
    make_spares(blocks_ + 1);
    ranges_.emplace(base, size_bytes);
    insert(base, size_bytes);
}

bool best_fit::remove_range(std::byte* base) noexcept {
    auto const range = ranges_.find(base);
    auto const whole = by_address_.find(base);
    if (whole == by_address_.end() || whole->second != range->second) return false;
    erase(base, range->second);
    ranges_.erase(range);
    return true;
}

std::byte* best_fit::allocate(std::size_t size_bytes, std::size_t alignment) {
    for (auto i = by_size_.lower_bound({size_bytes, nullptr}); i != by_size_.end(); ++i) {
        auto const [free_size, begin] = *i;
        auto const address = reinterpret_cast<std::uintptr_t>(begin);  // to align it
        std::size_t const gap = (alignment - address % alignment) % alignment;
        if (gap > free_size || free_size - gap < size_bytes) continue;
        // A free block becomes up to two, and one that is allocated.
        make_spares(blocks_ + 2);
        erase(begin, free_size);
        ++blocks_;
        std::byte* const block = begin + gap;
        if (gap > 0) insert(begin, gap);
        std::size_t const rest = free_size - gap - size_bytes;
        if (rest > 0) insert(block + size_bytes, rest);
        return block;
    }
    return nullptr;
}

std::pair<std::byte* const, std::size_t> const& best_fit::range_of(std::byte* block
) const noexcept {
    return *std::prev(ranges_.upper_bound(block));
}

void best_fit::free(std::byte* block, std::size_t size_bytes) noexcept {
    --blocks_;
    // Ranges may touch each other, and are not joined.
    auto const& [base, range_bytes] = range_of(block);
    auto const next = by_address_.lower_bound(block);
    if (next != by_address_.begin()) {
        auto const [left, left_bytes] = *std::prev(next);
        if (left >= base && left + left_bytes == block) {
            erase(left, left_bytes);
            block = left;
            size_bytes += left_bytes;
        }
    }
    auto const right = by_address_.find(block + size_bytes);
    if (right != by_address_.end() && block + size_bytes != base + range_bytes) {
        std::size_t const right_bytes = right->second;
        erase(right->first, right_bytes);
        size_bytes += right_bytes;
    }
    insert(block, size_bytes);
}

}  // namespace rcverbs::detail
