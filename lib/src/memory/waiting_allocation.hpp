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

#include "connection/deferred_completions.hpp"
#include "connection/io_object_service.hpp"

namespace rcverbs::detail {

/// Destroys its handler uncalled when the execution context of the handler is destroyed.
class waiting_allocation final : public io_object,
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
        made->service_->add(made);
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
          service_{&io_object_service::of(executor)},
          executor_{executor},
          handler_{std::move(handler), executor} {}
    ~waiting_allocation() {
        if (service_ != nullptr) service_->remove(this);
    }

    std::size_t const size_bytes;
    std::size_t const alignment;

    boost::asio::cancellation_slot slot() const noexcept { return handler_.slot(); }

    /// True as long as the handler's execution context exists.
    bool is_wanted() const noexcept {
        std::lock_guard const lock{mutex_};
        return service_ != nullptr;
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
        boost::asio::any_io_executor executor;
        {
            std::lock_guard const lock{mutex_};
            executor = executor_;
        }
        if (!executor) return;
        try {
            boost::asio::post(executor, [what] {
                what->self->handler_(what->ec, std::exchange(what->block, nullptr));
            });
        } catch (...) {
            what->block = nullptr;  // stays the caller's
            throw;
        }
    }

private:
    void shut_down() noexcept override {
        boost::asio::any_io_executor gone;
        waiting_handler<error_code, void*> dropped;
        std::lock_guard const lock{mutex_};
        service_ = nullptr;
        gone.swap(executor_);
        std::swap(dropped, handler_);
    }

    mutable std::mutex mutex_;
    io_object_service* service_;  // null once its context is destroyed
    boost::asio::any_io_executor executor_;
    waiting_handler<error_code, void*> handler_;
};

}  // namespace rcverbs::detail
