// cq_lane.hpp — one completion queue that several queue pairs complete into, and how a completion
// finds its queue pair.
//
// A queue pair is found by the number in its completions. A queue with one user needs no search.
//
// `budget` is guarded by the poller's mutex. All else is used in the poller's sequence only, except
// that share_out() is called before the second user joins, and is seen by that through the mutex.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include <rcverbs/error.hpp>
#include <rcverbs/statistics.hpp>

#include "machines/completion_budget.hpp"
#include "machines/counter.hpp"
#include "verbs/completion_queue.hpp"

namespace rcverbs::progress {

/// Receives the completions of one queue pair.
class completion_sink {
public:
    /// Handles a batch of completions, in the order of the queue. Called in the poller's sequence;
    /// calls never overlap. Returns the number of work requests that these completions retire, at
    /// least one for each.
    virtual std::size_t on_completions(std::span<ibv_wc const> batch) = 0;
    /// The queue is broken; no more completions arrive.
    virtual void on_queue_broken(error_code ec) = 0;

protected:
    ~completion_sink() = default;
};

struct cq_lane;

/// A queue pair that completes into a lane.
struct cq_member {
    cq_lane* lane = nullptr;
    machines::completion_share share;
    std::uint32_t number = 0;
    std::shared_ptr<completion_sink> sink;
    machines::counter polls;
    machines::counter completions;
    // In the poller's list of those that join, then in the lane's list and bucket.
    cq_member* next = nullptr;
    cq_member* next_in_bucket = nullptr;
    enum class stage : std::uint8_t { outside, joining, inside } now = stage::outside;

    std::size_t deliver(std::span<ibv_wc const> batch) {
        polls.add(1);
        completions.add(batch.size());
        return sink->on_completions(batch);
    }
};

struct cq_lane {
    explicit cq_lane(std::uint32_t depth) noexcept : budget{depth} {}

    verbs::completion_queue queue;
    machines::completion_budget budget;
    std::uint32_t vector = 0;
    // A queue pair that may still complete into it could not be destroyed.
    bool is_leaked = false;
    bool is_broken = false;
    // It is broken, or completions are kept: the usual poll does not apply.
    bool is_special = false;
    // One event is due, or has been raised and not been taken.
    bool is_armed = false;
    bool is_polled = false;
    cq_lane* next = nullptr;
    int members = 0;
    // The completions that are left of its turn: one for each member. Below 0 after a poll that found
    // more.
    int credit = 0;

    /// Allocates what a second user needs: the buckets, and room for completions that are polled while
    /// another queue pair is destroyed. False without memory.
    bool share_out() noexcept {
        if (buckets_ != nullptr) return true;
        constexpr std::uint32_t completions_per_bucket = 16;
        std::size_t const count = std::bit_ceil(budget.depth() / completions_per_bucket + 1);
        std::unique_ptr<ibv_wc[]> kept{new (std::nothrow) ibv_wc[budget.depth()]};
        std::unique_ptr<cq_member* []> buckets { new (std::nothrow) cq_member* [count] {} };
        if (kept == nullptr || buckets == nullptr) return false;
        kept_ = std::move(kept);
        mask_ = count - 1;
        buckets_ = std::move(buckets);
        return true;
    }

    /// From now on a completion's number decides, also with one member: a queue pair that is no member
    /// may complete into the queue.
    void search_always() noexcept {
        if (buckets_ == nullptr) return;  // it never had a second one, and gets none
        is_searched_ = true;
        if (sole_ != nullptr) put_in_bucket(*std::exchange(sole_, nullptr));
    }

    void add(cq_member& m) noexcept {
        m.now = cq_member::stage::inside;
        ++members;
        m.next = first_;
        first_ = &m;
        if (is_searched_) return put_in_bucket(m);
        sole_ = m.next == nullptr ? &m : nullptr;
        if (sole_ != nullptr) return;
        // The second one: the first is not in its bucket yet.
        if (m.next->next == nullptr) put_in_bucket(*m.next);
        put_in_bucket(m);
    }

    void remove(cq_member& m) noexcept {
        if (sole_ != &m) take_from_bucket(m);
        cq_member** at = &first_;
        while (*at != &m) at = &(*at)->next;
        *at = m.next;
        m.next = nullptr;
        --members;
        m.now = cq_member::stage::outside;
        if (is_searched_) return;
        sole_ = first_ != nullptr && first_->next == nullptr ? first_ : nullptr;
        if (sole_ != nullptr) take_from_bucket(*sole_);
    }

    /// The only member, to which all completions belong; or null.
    cq_member* sole() const noexcept { return sole_; }
    cq_member* first() const noexcept { return first_; }

    /// The member with that number, or null. REQUIRES: sole() is null, and there is one.
    cq_member* find(std::uint32_t number) const noexcept {
        cq_member* m = buckets_[number & mask_];
        while (m != nullptr && m->number != number) m = m->next_in_bucket;
        return m;
    }

    // --- completions that are polled and not delivered yet -----------------------------------------

    std::span<ibv_wc const> kept() const noexcept {
        return {kept_.get() + kept_first_, kept_count_};
    }
    void drop_kept(std::size_t count) noexcept {
        kept_first_ = kept_count_ == count ? 0 : kept_first_ + count;
        kept_count_ -= count;
        is_special = is_broken || kept_count_ > 0;
    }
    /// Never more than the depth: they are outstanding work of members that are left. Without a
    /// second user there is nobody to keep them for.
    void keep(ibv_wc const& wc) noexcept {
        if (kept_ == nullptr || kept_count_ == budget.depth()) return;
        move_kept(0);
        kept_[kept_count_++] = wc;
        is_special = true;
    }
    /// Takes those of one queue pair out, in their order.
    template <class Take>
    void take_kept(std::uint32_t number, Take const& take) {
        ibv_wc* const first = kept_.get() + kept_first_;
        ibv_wc* end = first;
        for (ibv_wc const& wc : kept()) {
            if (wc.qp_num == number) take({&wc, 1});
            else *end++ = wc;
        }
        kept_count_ = static_cast<std::size_t>(end - first);
        drop_kept(0);
    }
    /// The same for completions that were polled before those that are kept.
    void keep_first(std::span<ibv_wc const> batch) noexcept {
        std::size_t const count = std::min(batch.size(), budget.depth() - kept_count_);
        if (kept_ == nullptr) return;
        move_kept(count);
        kept_first_ = 0;
        kept_count_ += count;
        is_special = true;
        std::copy_n(batch.begin(), count, kept_.get());
    }

private:
    void move_kept(std::size_t to) noexcept {
        ibv_wc* const first = kept_.get() + kept_first_;
        if (to < kept_first_) std::copy(first, first + kept_count_, kept_.get() + to);
        if (to > kept_first_)
            std::copy_backward(first, first + kept_count_, kept_.get() + to + kept_count_);
        kept_first_ = to;
    }

    void put_in_bucket(cq_member& m) noexcept {
        cq_member*& bucket = buckets_[m.number & mask_];
        m.next_in_bucket = bucket;
        bucket = &m;
    }
    void take_from_bucket(cq_member& m) noexcept {
        cq_member** at = &buckets_[m.number & mask_];
        while (*at != &m) at = &(*at)->next_in_bucket;
        *at = m.next_in_bucket;
        m.next_in_bucket = nullptr;
    }

    cq_member* first_ = nullptr;
    cq_member* sole_ = nullptr;
    bool is_searched_ = false;
    std::size_t mask_ = 0;
    std::unique_ptr<cq_member*[]> buckets_;
    std::unique_ptr<ibv_wc[]> kept_;
    std::size_t kept_first_ = 0;
    std::size_t kept_count_ = 0;
};

}  // namespace rcverbs::progress
