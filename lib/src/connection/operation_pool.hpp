// operation_pool.hpp — the preallocated operations of one connection or one shared receive queue.
//
//        free ──take──▶ placing ──start──▶ started ──leave──▶ its handler is called ──release──▶ free
//                          └──────────────give_back────────────────────────────────────▶ free
//
// Operations in use count against the limit; an operation whose handler is being called does not.
// Guarded by the owner's lock.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <rcverbs/detail/operation.hpp>

#include "connection/operation_list.hpp"

namespace rcverbs::detail {

class operation_pool {
public:
    operation_pool() = default;
    /// Allocates `in_use_max` operations, and `called_max` more for those whose handlers are being
    /// called.
    operation_pool(std::size_t in_use_max, std::size_t called_max)
        : in_use_max_{in_use_max},
          count_{in_use_max + called_max},
          all_{std::make_unique<operation[]>(count_)} {
        for (std::size_t i = count_; i-- > 0;) push(all_[i]);
    }

    /// An operation whose handler is to be placed; null if the limit is reached.
    operation* take() noexcept {
        if (in_use_ == in_use_max_) return nullptr;
        operation* const op = free_;
        if (op == nullptr) return nullptr;
        free_ = op->next;
        ++in_use_;
        op->begin_use();
        return op;
    }
    /// Ends the use of an operation; its handler is called next.
    void leave(operation& op) noexcept {
        op.stage = operation::stage::done;
        --in_use_;
    }
    /// Takes back an operation that is not started. REQUIRES: it has no handler.
    void give_back(operation& op) noexcept {
        leave(op);
        push(op);
    }
    /// Returns operations to the pool after their handlers have been called.
    void release(operation_list& used) noexcept {
        if (used.empty()) return;
        used.back()->next = free_;
        free_ = used.front();
        used = {};
    }

    std::size_t in_use() const noexcept { return in_use_; }
    /// Destroys all handlers uncalled, without the owner's lock; whoever places one at this moment
    /// destroys it. REQUIRES: the owner starts nothing any more.
    void drop_handlers() noexcept {
        for (std::size_t i = 0; i < count_; ++i) {
            if (all_[i].stage != operation::stage::placing) all_[i].drop();
        }
    }

private:
    void push(operation& op) noexcept {
        op.next = free_;
        free_ = &op;
    }

    std::size_t in_use_ = 0;
    std::size_t in_use_max_ = 0;
    // Linked. The last one that was used is taken first, because it is in the processor's cache.
    operation* free_ = nullptr;
    std::size_t count_ = 0;
    std::unique_ptr<operation[]> all_;
};

}  // namespace rcverbs::detail
