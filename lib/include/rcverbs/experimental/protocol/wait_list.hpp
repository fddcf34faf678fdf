// wait_list.hpp — the handlers of operations that wait for the same thing. Experimental: it may change.
#pragma once

#include <boost/asio/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/wait_list.hpp>
#include <rcverbs/experimental/protocol/actor.hpp>

namespace rcverbs::protocol {

/// The handlers that wait for one thing, first in, first out. A member of an actor, used inside.
/// Handlers are called by actor::deliver(). Those that are added after a driver's end are completed, see
/// add().
template <class... Arguments>
class wait_list final : private part {
public:
    using taker_back = std::function<void(std::uint64_t number, Arguments...)>;

    explicit wait_list(actor& owner) : part{owner} {}
    /// @param owner         The actor.
    /// @param on_cancelled  Called when a cancellation has removed a handler: the next one may go on.
    wait_list(actor& owner, std::function<void()> on_cancelled)
        : part{owner},
          on_cancelled_{std::move(on_cancelled)} {}
    /// For results that are taken from somewhere, as a message from a queue: see hand_over_first().
    ///
    /// @param owner      The actor.
    /// @param take_back  Gets a result that no handler has taken, inside; it goes to
    ///                   the place that its number says.
    wait_list(actor& owner, taker_back take_back) : part{owner}, take_back_{std::move(take_back)} {}
    ~wait_list() = default;

    bool empty() const noexcept { return all_.empty(); }
    std::size_t size() const noexcept { return all_.size(); }

    /// Adds a handler behind the others, and returns its number: 1, 2 … A cancellation of any type
    /// removes it and completes it with operation_aborted and default values.
    ///
    /// Once on_end() has been called nothing waits any more: the handler is completed with the error
    /// that on_end() has given to fail_all(), else with its own argument's, and default values; then
    /// this returns 0. A driver that can complete handlers after the end delivers to them without this
    /// list.
    std::uint64_t add(waiter<Arguments...> who) {
        if (error_code const ended = end_code()) {
            fail(std::move(who), ended_with_ ? ended_with_ : ended);
            return 0;
        }
        std::weak_ptr<wait_list> self;
        if (who.can_be_cancelled()) self = std::shared_ptr<wait_list>{owner(), this};
        return all_.add(std::move(who), std::move(self), &wait_list::cancel);
    }
    /// True if the handler of this number waits: a cancelled one does not.
    bool contains(std::uint64_t number) const noexcept { return all_.contains(number); }
    /// Completes the handler of this number; false if it does not wait any more.
    bool complete(std::uint64_t number, Arguments... arguments) {
        auto one = all_.take(number);
        if (one.empty() || !one.front().handler) return false;
        call(std::move(one.front().handler), std::move(arguments)...);
        return true;
    }
    /// Completes the handler that has waited longest; false if there is none.
    bool complete_first(Arguments... arguments) {
        auto first = all_.take_first();
        // A handler whose own context is gone does not count.
        while (!first.empty() && !first.front().handler) first = all_.take_first();
        if (first.empty()) return false;
        call(std::move(first.front().handler), std::move(arguments)...);
        return true;
    }
    /// Gives a result to the handler that has waited longest; false if there is none. The result goes
    /// back (`take_back` of the constructor) if no handler takes it: one that is cancelled before it
    /// runs gets operation_aborted instead, also when it runs on another thread; one may be destroyed
    /// uncalled. So what is taken from a queue for a handler is not lost with it.
    ///
    /// @param number     The actor's number of the result, for its place among others.
    /// @param arguments  The result.
    bool hand_over_first(std::uint64_t number, Arguments... arguments) {
        auto first = all_.take_first();
        while (!first.empty() && !first.front().handler) first = all_.take_first();
        if (first.empty()) {
            take_back_(number, std::move(arguments)...);
            return false;
        }
        give(std::move(first.front().handler), number, std::move(arguments)...);
        return true;
    }
    /// The same for a handler that has waited in no list, because the result was there. Called in the
    /// function that starts the operation.
    void hand_over(waiter<Arguments...> who, std::uint64_t number, Arguments... arguments) {
        // For the note that it is cancelled while the result is on its way.
        if (who.early() == nullptr) who.keep_early_cancellation();
        give(std::move(who), number, std::move(arguments)...);
    }
    /// Completes all handlers with the same arguments.
    void complete_all(Arguments const&... arguments) {
        for (auto& one : all_.take_all()) call(std::move(one.handler), Arguments{arguments}...);
    }
    /// Completes all handlers with an error and default values; in on_end() and after it also those
    /// that are added later.
    ///
    /// @param why  The error; for an empty one they get asio::error::operation_aborted.
    void fail_all(error_code why) {
        if (!why) why = boost::asio::error::operation_aborted;
        if (end_code()) ended_with_ = why;
        for (auto& one : all_.take_all()) fail(std::move(one.handler), why);
    }

private:
    using list = detail::wait_list<waiter<Arguments...>>;
    using return_path = detail::return_path<Arguments...>;

    void give(waiter<Arguments...> who, std::uint64_t number, Arguments... arguments) {
        return_path path{std::shared_ptr<wait_list>{owner(), this}, &wait_list::put_back, number};
        call_outside([w = std::move(who), p = std::move(path), ... all = std::move(arguments)](
                     ) mutable { w.hand_over_on_io(std::move(p), std::move(all)...); });
    }
    void call(waiter<Arguments...> who, Arguments... arguments) {
        call_outside([w = std::move(who), ... all = std::move(arguments)]() mutable {
            if (w) w.call_on_io(std::move(all)...);
        });
    }
    void fail(waiter<Arguments...> who, error_code why) {
        [&]<class First, class... Rest>(std::type_identity<First>, std::type_identity<Rest>...) {
            call(std::move(who), why, Rest{}...);
        }(std::type_identity<Arguments>{}...);
    }
    // Any thread.
    static void put_back(void* list, std::uint64_t number, Arguments&&... arguments) noexcept {
        auto& to = *static_cast<wait_list*>(list);
        auto const owner = to.owner();
        try {
            // At once, so that it is there before the same thread starts the next operation.
            enter(*owner, [&to, number, ... all = std::move(arguments)]() mutable {
                to.take_back_(number, std::move(all)...);
            });
        } catch (...) {
            // Without memory the result would be lost unnoticed.
            give_up(*owner);
        }
    }
    // Any thread.
    void cancel(std::uint64_t serial) {
        enter(*owner(), [this, serial] {
            auto one = all_.take(serial);
            if (one.empty()) return;
            fail(std::move(one.front().handler), boost::asio::error::operation_aborted);
            if (on_cancelled_) on_cancelled_();
        });
    }
    void abandon() noexcept override { static_cast<void>(all_.take_all()); }

    list all_;
    error_code ended_with_;  // of fail_all(), once the driver has ended
    std::function<void()> on_cancelled_;
    taker_back take_back_;
};

}  // namespace rcverbs::protocol
