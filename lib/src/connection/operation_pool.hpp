// operation_pool.hpp — the preallocated operations of one connection or one shared receive queue.
//
//        free ──take──▶ in use ──leave──▶ its handler is called ──release──▶ free
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
        for (std::size_t i = 0; i < count_; ++i) free_.push_back(all_[i]);
    }

    /// An operation to start; null if the limit is reached.
    operation* take() noexcept {
        if (in_use_ == in_use_max_) return nullptr;
        operation* const op = free_.pop_front();
        if (op == nullptr) return nullptr;
        ++in_use_;
        op->begin_use();
        return op;
    }
    /// Ends the use of an operation; its handler is called next.
    void leave(operation& op) noexcept {
        op.is_done = true;
        --in_use_;
    }
    /// Takes back an operation that has not been started, because its handler could not be placed.
    void give_up(operation& op) noexcept {
        op.drop();
        leave(op);
        free_.push_back(op);
    }
    /// Returns operations to the pool after their handlers have been called.
    void release(operation_list& used) noexcept { free_.append(used); }

    std::size_t in_use() const noexcept { return in_use_; }
    /// Visits every operation, for shutdown.
    void for_each(std::function<void(operation&)> const& visit) {
        for (std::size_t i = 0; i < count_; ++i) visit(all_[i]);
    }

private:
    std::size_t in_use_ = 0;
    std::size_t in_use_max_ = 0;
    operation_list free_;
    std::size_t count_ = 0;
    std::unique_ptr<operation[]> all_;
};

}  // namespace rcverbs::detail
