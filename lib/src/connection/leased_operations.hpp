// leased_operations.hpp — the handlers of a connection's operations that own their memory.
//
// Such an operation has two parts. The one that is posted belongs to the data path; its internal
// handler owns the memory. The other one, here, has the program's handler, which may be cancelled
// while the first is still posted. Made when the first one is started; guarded by the connection's
// lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/memory_lease.hpp>

#include "connection/operation_list.hpp"
#include "machines/leased_receives.hpp"

namespace rcverbs::detail {

/// A handler of the program's that waits, and the memory that it gets.
struct leased_waiter final : operation {
    // The part that is posted, at this use of it; null for a receive, which has none of its own.
    operation* posted = nullptr;
    std::uint32_t posted_use = 0;
    std::uint64_t number = 0;  // of a message, in the order of arrival
    owned_memory memory;
};

class leased_operations {
public:
    /// A message that arrived while no handler waited, or that its handler did not take.
    struct kept_message {
        std::uint64_t number = 0;
        receive_result result;
        memory_lease memory;
    };

    /// A waiter without a handler, which is then placed without the lock; release() returns it.
    leased_waiter& take() {
        // So that keep() allocates nothing.
        kept_.reserve(receives.posted() + receives.kept() + 1);
        if (free_ == nullptr) {
            free_ = &all_.emplace_back();
            free_->next = nullptr;
        }
        leased_waiter& w = *std::exchange(free_, static_cast<leased_waiter*>(free_->next));
        w.begin_use();
        w.posted = nullptr;
        w.memory.is_cancelled = nullptr;
        return w;
    }
    /// REQUIRES: it has no handler and no memory.
    void release(leased_waiter& w) noexcept {
        w.stage = operation::stage::done;
        w.next = free_;
        free_ = &w;
    }

    /// Keeps it at its place in the order of arrival. Allocates nothing for one that has just arrived.
    void keep(std::uint64_t number, receive_result const& result, memory_lease& memory) {
        if (kept_.size() == kept_.capacity())
            kept_.erase(
                kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(std::exchange(first_, 0))
            );
        auto const behind = std::upper_bound(
            kept_.begin() + static_cast<std::ptrdiff_t>(first_),
            kept_.end(),
            number,
            [](std::uint64_t mine, kept_message const& k) { return mine < k.number; }
        );
        kept_.insert(behind, kept_message{number, result, std::move(memory)});
    }
    kept_message take_kept() noexcept {
        kept_message oldest = std::move(kept_[first_++]);
        if (first_ == kept_.size()) {
            kept_.clear();
            first_ = 0;
        }
        return oldest;
    }

    /// Calls the function with every waiter that may be cancelled.
    template <class Function>
    void for_each_waiting(Function const& function) {
        for (leased_waiter& w : all_) {
            if (w.stage == operation::stage::started) function(w);
        }
    }

    /// Destroys all handlers uncalled, and the kept messages, without the lock; whoever places a
    /// handler at this moment destroys it. REQUIRES: nothing is started any more.
    void drop_handlers() noexcept {
        for (leased_waiter& w : all_) {
            if (w.stage == operation::stage::placing) continue;
            w.drop();
            w.memory.lease.release();
        }
        kept_.clear();
    }

    /// As operation_pool::has_handlers_for().
    bool has_handlers_for(boost::asio::execution_context const& which) const noexcept {
        return std::any_of(all_.begin(), all_.end(), [&](leased_waiter const& w) {
            bool const is_stored = w.stage != operation::stage::placing && w.is_pending();
            return is_stored && w.host == &which;
        });
    }

    machines::leased_receives receives;
    // The handlers that wait for a message, in the order of their calls.
    operation_list receivers;
    // Those that have their message and are to be called, in the same order.
    operation_list due;
    // Messages that have arrived.
    std::uint64_t arrived = 0;

private:
    std::deque<leased_waiter> all_;
    leased_waiter* free_ = nullptr;
    // From first_ on; those before were taken.
    std::vector<kept_message> kept_;
    std::size_t first_ = 0;
};

}  // namespace rcverbs::detail
