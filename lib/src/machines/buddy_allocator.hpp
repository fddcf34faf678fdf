// buddy_allocator.hpp — blocks of 2^n units, each at a multiple of its size.
//
// A block that is freed joins the block beside it if that is free and has the same size, and so on: so
// free memory is always in the largest blocks that it allows. Nothing is allocated after construction:
// the lists of free blocks are in an array with a node for each unit.
//
// No I/O, no clock, one thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace rcverbs::machines {

class buddy_allocator {
public:
    static constexpr std::uint32_t units_max = std::uint32_t{1} << 31;

    /// @param units  At most units_max; any number, which is divided into blocks of 2^n.
    explicit buddy_allocator(std::uint32_t units) : nodes_(units) {
        first_.fill(none);
        for (std::uint32_t unit = 0; unit < units;) {
            unsigned const aligned =
                unit == 0 ? orders - 1U : static_cast<unsigned>(std::countr_zero(unit));
            unsigned const fits = static_cast<unsigned>(std::bit_width(units - unit)) - 1;
            unsigned const order = std::min({aligned, fits, orders - 1U});
            insert(unit, order);
            unit += size_of(order);
        }
        free_units_ = units;
    }

    /// Units of the smallest block with at least this many; 0 if there is no such block.
    static constexpr std::uint32_t rounded(std::uint64_t units) noexcept {
        return units == 0 || units > units_max ? 0
                                               : std::bit_ceil(static_cast<std::uint32_t>(units));
    }

    /// The first unit of a block of this size, which is a power of two; nothing if there is none.
    std::optional<std::uint32_t> allocate(std::uint32_t units) noexcept {
        auto const wanted = static_cast<unsigned>(std::countr_zero(units));
        unsigned order = wanted;
        while (order < orders && first_[order] == none) ++order;
        if (order >= orders) return {};
        std::uint32_t const unit = first_[order];
        remove(unit, order);
        // The upper halves remain.
        while (order > wanted) {
            --order;
            insert(unit + size_of(order), order);
        }
        nodes_[unit].order = static_cast<std::uint8_t>(wanted);
        free_units_ -= units;
        return unit;
    }

    /// REQUIRES: allocate() returned it, and it was not freed since.
    void free(std::uint32_t unit) noexcept {
        unsigned order = nodes_[unit].order;
        free_units_ += size_of(order);
        while (order + 1 < orders) {
            std::uint32_t const buddy = unit ^ size_of(order);
            if (buddy >= nodes_.size() || !nodes_[buddy].is_free || nodes_[buddy].order != order)
                break;
            remove(buddy, order);
            unit = std::min(unit, buddy);
            ++order;
        }
        insert(unit, order);
    }

    std::uint32_t units() const noexcept { return static_cast<std::uint32_t>(nodes_.size()); }
    std::uint32_t free_units() const noexcept { return free_units_; }
    /// Of the largest free block; 0 if there is none.
    std::uint32_t largest_free_units() const noexcept {
        for (unsigned order = orders; order-- > 0;) {
            if (first_[order] != none) return size_of(order);
        }
        return 0;
    }

private:
    static constexpr unsigned orders = 32;
    static constexpr std::uint32_t none = UINT32_MAX;

    // Of a unit with which a block begins; of the others without a meaning.
    struct node {
        std::uint32_t next = none;
        std::uint32_t previous = none;
        std::uint8_t order = 0;
        bool is_free = false;
    };

    static constexpr std::uint32_t size_of(unsigned order) noexcept {
        return std::uint32_t{1} << order;
    }

    void insert(std::uint32_t unit, unsigned order) noexcept {
        nodes_[unit] = {first_[order], none, static_cast<std::uint8_t>(order), true};
        if (first_[order] != none) nodes_[first_[order]].previous = unit;
        first_[order] = unit;
    }
    void remove(std::uint32_t unit, unsigned order) noexcept {
        node& n = nodes_[unit];
        if (n.previous != none) nodes_[n.previous].next = n.next;
        else first_[order] = n.next;
        if (n.next != none) nodes_[n.next].previous = n.previous;
        n.is_free = false;
    }

    std::vector<node> nodes_;
    std::array<std::uint32_t, orders> first_{};
    std::uint32_t free_units_ = 0;
};

}  // namespace rcverbs::machines
