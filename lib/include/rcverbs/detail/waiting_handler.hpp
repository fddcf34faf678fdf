// waiting_handler.hpp — the handler of an operation that waits, until it is called or its execution
// context is destroyed. Internal.
#pragma once

#include <boost/asio/any_completion_executor.hpp>
#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/membership.hpp>
#include <rcverbs/error.hpp>

namespace rcverbs::detail {

/// The handler of a waiting control operation, with the outstanding work of its executor.
///
/// If its executor belongs to another context than `io`, the handler is destroyed uncalled with
/// that context.
template <class... Arguments>
class waiting_handler {
public:
    using handler_type = boost::asio::any_completion_handler<void(Arguments...)>;

    waiting_handler() = default;
    waiting_handler(erased_handler<Arguments...> handler, boost::asio::any_io_executor const& io)
        : kept_{std::make_shared<kept>(std::move(handler.handler), io)} {
        if (handler.host == nullptr || handler.host == context_of(io)) return;
        kept_->is_foreign = true;
        kept_->membership.join(*handler.host, kept_, hosting::rank::guest);
    }
    waiting_handler(waiting_handler&& other) noexcept = default;
    waiting_handler& operator=(waiting_handler&& other) noexcept = default;

    explicit operator bool() const noexcept { return kept_ != nullptr && !kept_->is_gone; }
    boost::asio::cancellation_slot slot() const noexcept {
        return boost::asio::get_associated_cancellation_slot(kept_->handler);
    }

    /// Calls the handler as if by dispatch. REQUIRES: there is one.
    void operator()(Arguments... arguments) {
        std::exchange(kept_, nullptr)->call(std::move(arguments)...);
    }

    /// Distinguishes one wait from the next, so that a late cancellation has no effect.
    std::uint64_t serial = 0;

private:
    struct kept final : hosting::member {
        kept(handler_type h, boost::asio::any_io_executor const& io)
            : work{boost::asio::prefer(
                  boost::asio::get_associated_executor(h, io),
                  boost::asio::execution::outstanding_work.tracked
              )} {
            // Swapped, because the move assignment of the handler in Boost 1.81 recurses
            // infinitely.
            handler.swap(h);
        }

        void call(Arguments... arguments) {
            // Held while a handler of another context is dispatched, so that the context cannot be
            // destroyed meanwhile.
            std::unique_lock lock{mutex};
            if (!handler) return;
            auto const executor = std::exchange(work, {});
            handler_type taken;
            taken.swap(handler);
            if (!is_foreign) lock.unlock();
            boost::asio::dispatch(
                executor, boost::asio::append(clearing{std::move(taken)}, std::move(arguments)...)
            );
        }

        void context_is_going(boost::asio::execution_context const&) noexcept override {
            handler_type dropped;
            boost::asio::any_completion_executor gone;
            std::lock_guard const lock{mutex};
            dropped.swap(handler);
            std::swap(gone, work);
            is_gone = true;
        }

        std::mutex mutex;
        handler_type handler;
        boost::asio::any_completion_executor work;
        bool is_foreign = false;
        std::atomic<bool> is_gone{false};
        hosting::membership membership;
    };

    // A handler that clears its cancellation slot on its own executor, because signals are emitted
    // there, and then runs.
    struct clearing {
        using allocator_type = boost::asio::associated_allocator_t<handler_type>;
        allocator_type get_allocator() const noexcept {
            return boost::asio::get_associated_allocator(handler);
        }

        handler_type handler;
        void operator()(Arguments... arguments) {
            boost::asio::get_associated_cancellation_slot(handler).clear();
            std::move(handler)(std::move(arguments)...);
        }
    };

    std::shared_ptr<kept> kept_;
};

using control_waiter = waiting_handler<error_code>;

/// A terminal cancellation of the operation closes `target`.
template <class Waiter, class Target>
void close_when_cancelled(Waiter const& waiter, std::shared_ptr<Target> const& target) {
    auto slot = waiter.slot();
    if (!slot.is_connected()) return;
    slot.assign([weak = std::weak_ptr{target}](boost::asio::cancellation_type type) {
        bool const is_terminal = (type & boost::asio::cancellation_type::terminal) !=
                                 boost::asio::cancellation_type::none;
        auto const alive = weak.lock();
        if (is_terminal && alive != nullptr) alive->close();
    });
}

}  // namespace rcverbs::detail
