// waiting_handler.hpp — the handler of an operation that waits, until it is called or its execution
// context is destroyed. Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/cancellation_type.hpp>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/membership.hpp>
#include <rcverbs/error.hpp>

namespace rcverbs::detail {

/// The cancellations of an operation that is started later than it is initiated, on another thread
/// maybe. What is emitted meanwhile is kept. Any thread.
class early_cancellation {
public:
    using function = std::function<void(boost::asio::cancellation_type)>;

    void emit(boost::asio::cancellation_type how) {
        if (how == boost::asio::cancellation_type::none) return;
        function target;
        {
            std::lock_guard const lock{mutex_};
            if (!target_) early_ |= how;
            target = target_;
        }
        if (target) target(how);
    }
    /// Calls it for what was emitted and for what will be. Once.
    void connect(function const& target) {
        boost::asio::cancellation_type early{};
        {
            std::lock_guard const lock{mutex_};
            target_ = target;
            early = early_;
        }
        if (early != boost::asio::cancellation_type::none) target(early);
    }

private:
    std::mutex mutex_;
    boost::asio::cancellation_type early_ = boost::asio::cancellation_type::none;
    function target_;
};

/// The handler of a waiting control operation, with the outstanding work of its executor.
///
/// If its executor belongs to another context than `io`, the handler is destroyed uncalled with
/// that context.
template <class... Arguments>
class waiting_handler {
public:
    waiting_handler() = default;
    waiting_handler(erased_handler<Arguments...> handler, boost::asio::any_io_executor const& io)
        : held_{std::move(handler.held)},
          slot_{held_->slot()} {
        held_->attach(io);
        if (handler.host == nullptr || handler.host == context_of(io)) return;
        guest_ = std::make_shared<guest>(std::move(held_));
        guest_->membership.join(*handler.host, guest_, hosting::rank::guest);
    }
    waiting_handler(waiting_handler&& other) noexcept = default;
    waiting_handler& operator=(waiting_handler&& other) noexcept = default;

    explicit operator bool() const noexcept {
        return held_ != nullptr || (guest_ != nullptr && !guest_->is_gone);
    }
    /// Not connected once cancellations are kept. Calls no code of the program's, so that the owner's
    /// lock may be held.
    boost::asio::cancellation_slot slot() const noexcept {
        if (early_ != nullptr || (guest_ != nullptr && guest_->is_gone)) return {};
        return slot_;
    }
    /// Keeps cancellations until early()->connect(). In the initiating call, as slots are no other
    /// thread's.
    void keep_early_cancellation() {
        auto own = slot();
        if (!own.is_connected()) return;
        early_ = std::make_shared<early_cancellation>();
        note(assign_noted(own, [kept = early_](boost::asio::cancellation_type how) {
            kept->emit(how);
        }));
    }
    /// For hand_over(): what assign_noted() has returned for slot().
    void note(bool const* is_cancelled) noexcept { is_cancelled_ = is_cancelled; }
    bool can_be_cancelled() const noexcept { return early_ != nullptr || slot().is_connected(); }
    /// Null if nothing is kept.
    std::shared_ptr<early_cancellation> const& early() const noexcept { return early_; }

    /// Calls the handler as if by dispatch. REQUIRES: there is one.
    void operator()(Arguments... arguments) {
        if (guest_ != nullptr) return std::exchange(guest_, nullptr)->call(std::move(arguments)...);
        held_.release()->call(std::move(arguments)...);
    }
    /// The same from a function that runs on `io`, at less cost.
    void call_on_io(Arguments&&... arguments) {
        if (guest_ != nullptr) return std::exchange(guest_, nullptr)->call(std::move(arguments)...);
        held_.release()->call_on_io(std::move(arguments)...);
    }

    /// As operator() and call_on_io(), with a result that was taken from a list for this handler. If it
    /// does not take it, the result goes back: if it was cancelled before it runs, also when the
    /// cancellation has not reached the operation yet, it gets operation_aborted instead; it may also
    /// be destroyed uncalled.
    void hand_over(return_path<Arguments...> back, Arguments... arguments) {
        hand_over(false, std::move(back), std::move(arguments)...);
    }
    /// The same from a function that runs on `io`.
    void hand_over_on_io(return_path<Arguments...>&& back, Arguments&&... arguments) {
        hand_over(true, std::move(back), std::move(arguments)...);
    }

    /// Distinguishes one wait from the next, so that a late cancellation has no effect.
    std::uint64_t serial = 0;

private:
    using held_pointer = typename held_handler<Arguments...>::pointer;

    void hand_over(bool is_on_io, return_path<Arguments...>&& back, Arguments&&... arguments) {
        held_pointer held = guest_ == nullptr ? std::move(held_) : nullptr;
        std::shared_ptr<guest> const visitor = std::move(guest_);
        if (visitor != nullptr) {
            // As in guest::call().
            std::lock_guard const lock{visitor->mutex};
            if (visitor->held != nullptr)
                return visitor->held.release()->hand_over(
                    std::move(back), is_cancelled_, false, std::move(arguments)...
                );
        }
        if (held != nullptr)
            return held.release()->hand_over(
                std::move(back), is_cancelled_, is_on_io, std::move(arguments)...
            );
        back(std::move(arguments)...);
    }

    // A handler of another context.
    struct guest final : hosting::member {
        explicit guest(held_pointer h) noexcept : held{std::move(h)} {}

        void call(Arguments&&... arguments) {
            // Held while the handler is dispatched, so that its context cannot be destroyed
            // meanwhile.
            std::lock_guard const lock{mutex};
            if (held != nullptr) held.release()->call(std::move(arguments)...);
        }
        void context_is_going(boost::asio::execution_context const&) noexcept override {
            held_pointer dropped;
            std::lock_guard const lock{mutex};
            dropped.swap(held);
            is_gone = true;
        }

        mutable std::mutex mutex;
        held_pointer held;
        std::atomic<bool> is_gone{false};
        hosting::membership membership;
    };

    held_pointer held_;
    boost::asio::cancellation_slot slot_;  // of the handler
    std::shared_ptr<guest> guest_;
    std::shared_ptr<early_cancellation> early_;
    // In the slot, so only for functions that run where the handler does.
    bool const* is_cancelled_ = nullptr;
};

using control_waiter = waiting_handler<error_code>;

/// Has `function` called with the type of a cancellation of the operation, also of one that was kept
/// early.
template <class Waiter, class Function>
void connect_cancellation(Waiter& waiter, Function function) {
    if constexpr (requires { waiter.early(); }) {
        if (waiter.early() != nullptr) return waiter.early()->connect(std::move(function));
    }
    if (auto slot = waiter.slot(); slot.is_connected())
        waiter.note(assign_noted(slot, std::move(function)));
}

/// A terminal cancellation of the operation closes `target`.
template <class Waiter, class Target>
void close_when_cancelled(Waiter& waiter, std::shared_ptr<Target> const& target) {
    connect_cancellation(
        waiter,
        [weak = std::weak_ptr{target}](boost::asio::cancellation_type type) {
            bool const is_terminal = (type & boost::asio::cancellation_type::terminal) !=
                                     boost::asio::cancellation_type::none;
            auto const alive = weak.lock();
            if (is_terminal && alive != nullptr) alive->close();
        }
    );
}

}  // namespace rcverbs::detail
