// operation_pool.hpp — the operations of one connection or one shared receive queue. They are allocated
// in chunks when as many are in use for the first time, and kept.
//
//        free ──take──▶ placing ──start──▶ started ──leave──▶ its handler is called ──release──▶ free
//                          └──────────────give_back────────────────────────────────────▶ free
//
// Operations in use count against the limit; an operation whose handler is being called does not.
// Guarded by the owner's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <new>
#include <vector>

#include <rcverbs/detail/operation.hpp>

#include "connection/leaked_resources.hpp"
#include "connection/operation_list.hpp"

namespace rcverbs::detail {

class operation_pool {
public:
    operation_pool() = default;
    /// @param in_use_max  Operations in use at a time.
    /// @param called_max  Operations, besides, whose handlers are being called.
    operation_pool(std::size_t in_use_max, std::size_t called_max)
        : take_max_{in_use_max},
          in_use_max_{in_use_max},
          chunks_max_{(in_use_max + called_max + chunk_size - 1) / chunk_size} {
        chunks_.reserve(chunks_max_);
    }

    /// An operation whose handler is to be placed; null if the limit, less what is kept, is reached, or if
    /// grow() must be called first.
    operation* take() noexcept { return in_use_ < take_max_ ? take_free() : nullptr; }
    /// The same for an operation that may use a kept place.
    operation* take_kept() noexcept { return in_use_ < in_use_max_ ? take_free() : nullptr; }
    /// Keeps that many places for take_kept().
    void keep(std::size_t count) noexcept {
        take_max_ = in_use_max_ - std::min(count, in_use_max_);
    }
    /// Allocates operations if all are taken. False if there are as many as there may be, or no
    /// memory.
    [[gnu::cold]] bool grow() noexcept {
        if (free_ != nullptr) return true;
        if (chunks_.size() == chunks_max_) return false;
        std::unique_ptr<chunk> made{new (std::nothrow) chunk};
        if (made == nullptr) return false;
        for (std::size_t i = chunk_size; i-- > 0;) push((*made)[i]);
        chunks_.push_back(std::move(made));
        return true;
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
    /// True if a handler that is stored, or about to be called, runs on that context. An operation whose
    /// handler has no executor of its own may have that of an earlier one.
    bool has_handlers_for(boost::asio::execution_context const& which) const noexcept {
        for (auto const& each : chunks_) {
            for (operation const& op : *each) {
                bool const is_stored = op.stage != operation::stage::placing && op.is_pending();
                if (is_stored && op.host == &which) return true;
            }
        }
        return false;
    }
    /// Destroys all handlers uncalled, without the owner's lock; whoever places one at this moment
    /// destroys it. REQUIRES: the owner starts nothing any more.
    ///
    /// @param is_memory_used  The device may still use the memory of what is posted. The handlers of
    ///                        that, which may own it, are kept until the process ends.
    void drop_handlers(bool is_memory_used) noexcept {
        bool is_kept = false;
        for (auto const& each : chunks_) {
            for (operation& op : *each) {
                bool const is_used = is_memory_used && op.is_posted && op.is_pending() &&
                                     op.stage == operation::stage::started;
                is_kept |= is_used;
                if (!is_used && op.stage != operation::stage::placing) op.drop();
            }
        }
        if (is_kept)
            leak_memory(std::make_shared<std::vector<std::unique_ptr<chunk>>>(std::move(chunks_)));
    }

private:
    static constexpr std::size_t chunk_size = 8;
    using chunk = std::array<operation, chunk_size>;

    operation* take_free() noexcept {
        operation* const op = free_;
        if (op == nullptr) return nullptr;
        free_ = op->next;
        ++in_use_;
        op->begin_use();
        return op;
    }
    void push(operation& op) noexcept {
        op.next = free_;
        free_ = &op;
    }

    std::size_t in_use_ = 0;
    // What take() stops at: in_use_max_, less what is kept.
    std::size_t take_max_ = 0;
    std::size_t in_use_max_ = 0;
    // Linked. The last one that was used is taken first, because it is in the processor's cache.
    operation* free_ = nullptr;
    std::size_t chunks_max_ = 0;
    std::vector<std::unique_ptr<chunk>> chunks_;
};

}  // namespace rcverbs::detail
