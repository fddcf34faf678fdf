// pool_books.hpp — who has which block of a pool that peers allocate from.
//
//   allocate ─▶ held ── free, or the lease ends ─────────▶ leaving ── no key left ─▶ cleaning ── zeroed ─▶ free
//                ▲ │                                          ▲
//         resume │ └─ the lease ends; to be kept ─▶ kept ─────┘ its time is over
//                └───────────────────────────────────┘
//
// A lease is what a connection has: its blocks leave with it, unless they are kept for whoever knows
// their token. What a lease, and kept blocks together, may have is counted in units of the pool, of
// whole blocks, until the block is free again.
//
// The memory and its keys are the owner's business: it calls released() when no key is left, and
// cleaned() when the memory is zero. No I/O, no clock, one thread at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "machines/buddy_allocator.hpp"

namespace rcverbs::machines {

class pool_books {
public:
    using time_point = std::chrono::steady_clock::time_point;
    using token = std::array<std::byte, 16>;

    struct limits {
        /// Units of a lease, and its blocks.
        std::uint32_t lease_units = 0;
        std::uint32_t lease_blocks = 0;
        /// Units that are kept.
        std::uint32_t kept_units = 0;
        std::chrono::milliseconds keep_time{0};
    };
    enum class outcome : std::uint8_t { done, unknown, over_quota, exhausted };
    struct block {
        std::uint32_t first_unit = 0;
        std::uint32_t units = 0;
    };
    struct resumed {
        outcome what = outcome::unknown;
        std::uint64_t number = 0;
        /// The lease that has lost it; 0 if there is none.
        std::uint64_t taken_from = 0;
    };

    pool_books(std::uint32_t units, limits const& most) : memory_{units}, limits_{most} {}

    /// A number for a new lease.
    std::uint64_t open();

    /// Gives a block to a lease.
    ///
    /// @param lease   An open one.
    /// @param number  Of the block, never used before.
    /// @param units   A power of two.
    /// @param keep    For a block that outlives its lease.
    /// @param where   The block, if the outcome is `done`.
    outcome allocate(
        std::uint64_t lease,
        std::uint64_t number,
        std::uint32_t units,
        std::optional<token> const& keep,
        block& where
    );
    /// True if the lease has it.
    bool holds(std::uint64_t lease, std::uint64_t number) const noexcept;
    /// The block leaves, if the lease has it: false if not.
    bool free(std::uint64_t lease, std::uint64_t number) noexcept;
    /// Gives a block to the lease that knows its token.
    resumed resume(std::uint64_t lease, token const& key);

    /// A block of a lease that has ended: one that must leave now, or nothing; call it until then. From
    /// the first call on the lease cannot be used.
    std::optional<std::uint64_t> end_lease(std::uint64_t lease, time_point now) noexcept;
    /// A kept block whose time is over; it leaves. Call it until there is none.
    std::optional<std::uint64_t> expire(time_point now) noexcept;
    /// When the next one is.
    std::optional<time_point> next_expiry() const noexcept;
    /// Any block that does not leave yet; it leaves. For the end of the pool.
    std::optional<std::uint64_t> revoke_one() noexcept;

    /// No key opens the block any more.
    block released(std::uint64_t number) noexcept;
    /// It is zeroed, and free.
    void cleaned(std::uint64_t number) noexcept;

    /// Units that an open lease may still allocate.
    std::uint32_t units_left(std::uint64_t lease) const noexcept;
    std::size_t blocks() const noexcept { return blocks_.size(); }
    std::uint32_t kept_units() const noexcept { return kept_units_; }
    buddy_allocator const& memory() const noexcept { return memory_; }

private:
    enum class state : std::uint8_t { held, kept, leaving, cleaning };
    struct record {
        block where;
        state is = state::held;
        std::uint64_t lease = 0;  // whose units it is counted in, while there is this lease
        std::optional<token> keep;
        time_point until;
        std::uint64_t kept_as = 0;
    };
    struct account {
        std::uint32_t units = 0;
        std::uint32_t count = 0;
        std::set<std::uint64_t> held;
    };

    void leave(std::uint64_t number, record& r) noexcept;
    bool keep(std::uint64_t number, record& r, time_point now) noexcept;
    void take_kept(record const& r) noexcept;

    buddy_allocator memory_;
    limits const limits_;
    std::uint64_t last_lease_ = 0;
    std::map<std::uint64_t, account> leases_;
    std::unordered_map<std::uint64_t, record> blocks_;
    std::map<token, std::uint64_t> tokens_;
    // In the order of their times, which is that of their keeping.
    std::map<std::uint64_t, std::uint64_t> kept_;
    std::uint64_t last_kept_ = 0;
    std::uint32_t kept_units_ = 0;
};

}  // namespace rcverbs::machines
