// waiting_allocation.hpp — an allocation that waits for memory of a pool, on its handler's executor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <rcverbs/memory_pool.hpp>

#include <rcverbs/detail/waiting_handler.hpp>
#include "hosting/members.hpp"

namespace rcverbs::detail {

/// Destroys its handler uncalled when the execution context of the handler is destroyed.
class waiting_allocation final : public hosting::member,
                                 public std::enable_shared_from_this<waiting_allocation> {
public:
    static std::shared_ptr<waiting_allocation> make(
        std::size_t size_bytes,
        std::size_t alignment,
        boost::asio::any_io_executor const& executor,
        allocate_handler handler
    ) {
        auto made = std::make_shared<waiting_allocation>(
            size_bytes, alignment, executor, std::move(handler)
        );
        made->membership_.join(executor, made, hosting::rank::object);
        return made;
    }
    waiting_allocation(
        std::size_t size,
        std::size_t aligned,
        boost::asio::any_io_executor const& executor,
        allocate_handler handler
    )
        : size_bytes{size},
          alignment{aligned},
          executor_{std::make_shared<boost::asio::any_io_executor const>(executor)},
          handler_{std::move(handler), executor} {}

    std::size_t const size_bytes;
    std::size_t const alignment;

    boost::asio::cancellation_slot slot() const noexcept { return handler_.slot(); }
    void note(bool const* is_cancelled) noexcept { handler_.note(is_cancelled); }

    /// True as long as the handler's execution context exists.
    bool is_wanted() const noexcept {
        std::lock_guard const lock{mutex_};
        return executor_ != nullptr;
    }

    /// Posts the handler. `undelivered` gets the block back if the handler is never called.
    template <class Undelivered>
    void complete(error_code ec, std::byte* block, Undelivered undelivered) {
        struct delivery {
            std::shared_ptr<waiting_allocation> self;
            error_code ec;
            std::byte* block;
            Undelivered undelivered;

            ~delivery() {
                if (block != nullptr) undelivered(block);
            }
        };
        auto const what = std::make_shared<delivery>(delivery{
            shared_from_this(), ec, nullptr, std::move(undelivered)});
        what->block = block;
        std::lock_guard const posting{posting_};
        executor_ptr executor;
        {
            std::lock_guard const lock{mutex_};
            executor = executor_;
        }
        if (executor == nullptr) return;
        try {
            boost::asio::post(*executor, [what] {
                auto const take_back = [](void* from, std::uint64_t, error_code&&, void*&& unused
                                       ) noexcept {
                    static_cast<delivery*>(from)->block = static_cast<std::byte*>(unused);
                };
                void* const taken = std::exchange(what->block, nullptr);
                what->self->handler_.hand_over({what, take_back, 0}, what->ec, taken);
            });
        } catch (...) {
            what->block = nullptr;  // stays the caller's
            throw;
        }
    }

private:
    using executor_ptr = std::shared_ptr<boost::asio::any_io_executor const>;

    void context_is_going(boost::asio::execution_context const&) noexcept override {
        executor_ptr gone;
        waiting_handler<error_code, void*> dropped;
        std::lock_guard const posting{posting_};
        std::lock_guard const lock{mutex_};
        gone.swap(executor_);
        std::swap(dropped, handler_);
    }

    // Held while the handler is posted, so that its context cannot be destroyed meanwhile. An executor of
    // the program's own may use the pool.
    std::recursive_mutex posting_;
    mutable std::mutex mutex_;
    hosting::membership membership_;
    // Null once its context is destroyed. Not copied under the lock, as it may be the program's own.
    executor_ptr executor_;
    waiting_handler<error_code, void*> handler_;
};

}  // namespace rcverbs::detail
