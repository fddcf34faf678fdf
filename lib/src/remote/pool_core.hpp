// pool_core.hpp — a pool that peers allocate from: its memory, and the keys to its blocks.
//
// Each block is an offered region, which the channels that have it hold as they hold any other: when
// the last of them is gone, nobody can access the block, and it is zeroed, in steps on the executor
// of the list, and free. Who has which block is the business of machines::pool_books.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/protocol.hpp>

#include "machines/pool_books.hpp"
#include "remote/offers_core.hpp"
#include "remote/recycled_map.hpp"
#include "remote/takeover.hpp"

namespace rcverbs::detail {

/// The first option out of its range; empty if there is none.
std::string problem_of(remote_pool_options const& options, std::span<std::byte const> memory);

/// Any thread.
class pool_core final : public std::enable_shared_from_this<pool_core> {
public:
    using outcome = machines::pool_books::outcome;
    using token = machines::pool_books::token;

    /// What a channel has of the pool; its end gives the blocks back.
    class lease {
    public:
        lease(std::shared_ptr<pool_core> pool, std::uint64_t number) noexcept;
        ~lease();
        lease(lease const&) = delete;
        lease& operator=(lease const&) = delete;

        std::uint64_t number() const noexcept { return number_; }

    private:
        std::shared_ptr<pool_core> const pool_;
        std::uint64_t const number_;
    };
    struct allocated {
        outcome what = outcome::unknown;
        offer_ptr block;
        token key{};  // zero: it is not kept
        std::uint64_t bytes_left = 0;
        std::uint64_t largest_bytes = 0;
    };

    pool_core(
        std::shared_ptr<offers_core> const& list,
        std::span<std::byte> memory,
        remote_pool_options const& options
    );

    std::unique_ptr<lease> open(std::weak_ptr<region_core> channel);
    /// False if no block of this pool can have it.
    bool is_possible(std::uint64_t alignment) const noexcept;
    allocated allocate(lease const& to, std::uint64_t bytes, std::uint64_t alignment, bool is_kept);
    /// Gives a block to the lease that knows its token. `then` is called on any thread when the channels
    /// that have lost it cannot access it any more.
    allocated resume(lease const& to, token const& key, std::function<void()> then);
    bool holds(lease const& from, std::uint64_t number) const;
    /// Frees a block of the lease; false if it has none of this number. The channel's own grant is its
    /// business; `then` is called when the block is free.
    bool free(lease const& from, std::uint64_t number, std::function<void()> then);
    /// Offers a block of the lease under a name: done, unknown, or exhausted (there is one, or the
    /// block has one).
    outcome share(lease const& from, std::uint64_t number, std::string const& name);
    void close(control_handler handler);
    remote_pool_statistics statistics() const;

    // From the list.
    void on_gone(std::uint64_t number) noexcept;
    void context_is_going() noexcept;

private:
    struct block {
        std::weak_ptr<takeover> taken;
        offer_ptr what;
        std::string name;
        std::function<void()> then;
    };
    // The timer of kept blocks, on a strand of the list's executor.
    struct clock;

    static constexpr std::size_t zeroed_at_once = std::size_t{1} << 20;

    boost::asio::any_io_executor list_executor() const;
    void end(std::uint64_t which) noexcept;
    template <class Next>
    void drop_all(bool is_held, Next next) noexcept;
    void drop(std::uint64_t number, bool is_held);
    void post_cleaning() noexcept;
    void clean(std::size_t bytes) noexcept;
    void wait_for_expiry() noexcept;
    void expire() noexcept;
    void complete_closing() noexcept;
    allocated answer_of(outcome what, std::uint64_t to) const;
    std::span<std::byte> bytes_of(machines::pool_books::block const& b) const noexcept;

    std::weak_ptr<offers_core> const list_;
    std::span<std::byte> const memory_;
    // For keys by windows; null if there are none.
    std::shared_ptr<window_memory const> const for_windows_;

    bool const keeps_;
    mutable std::mutex mutex_;
    machines::pool_books books_;
    recycled_map<block> blocks_;
    std::unordered_map<std::uint64_t, std::weak_ptr<region_core>> channels_;
    // What is being zeroed, the first of them in part.
    struct dirty {
        std::uint64_t number;
        std::span<std::byte> left;
        std::function<void()> then;
    };
    std::deque<dirty> cleaning_;
    bool is_cleaning_ = false;
    bool is_closed_ = false;
    std::vector<protocol::waiter<error_code>> closing_;
    std::shared_ptr<clock> clock_;
};

}  // namespace rcverbs::detail
