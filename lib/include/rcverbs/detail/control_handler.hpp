// control_handler.hpp — the type-erased handler of a connect, accept or disconnect, for the
// compiled library. Internal.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/query.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/handler_memory.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs::detail {

/// The context of an executor; null if the executor does not provide it.
template <class Executor>
boost::asio::execution_context* context_of(Executor const& e) noexcept {
    if constexpr (boost::asio::can_query_v<Executor const&, boost::asio::execution::context_t>) {
        return &boost::asio::query(e, boost::asio::execution::context);
    } else if constexpr (requires { e.context(); }) {
        return &e.context();
    } else {
        return nullptr;
    }
}

template <class Handler>
inline constexpr bool is_erased = false;
template <class... Signatures>
inline constexpr bool is_erased<boost::asio::any_completion_handler<Signatures...>> = true;

/// The outstanding work of an executor. That of an io_context, which most executors are, is one count.
class RCVERBS_EXPORT any_work {
public:
    explicit any_work(boost::asio::any_io_executor const& e);
    any_work(any_work&& other) noexcept;
    any_work& operator=(any_work&&) = delete;
    ~any_work();

    boost::asio::any_io_executor get_executor() const;

private:
    bool is_counted_;
    union {
        // An executor of an io_context that counts itself as work; in memory of no type, because the
        // type would have each file of a program compile it.
        alignas(void*) std::array<std::byte, 2 * sizeof(void*)> counted_;
        boost::asio::any_io_executor other_;  // tracked, if the work is not counted
    };
};

/// What a cancellation slot holds for an operation that waits: `function`, and whether the signal has
/// been emitted. Used where signals are emitted: on the handler's executor.
template <class Function>
struct noted_cancellation {
    Function function;
    bool is_emitted = false;

    explicit noted_cancellation(Function f) : function{std::move(f)} {}
    void operator()(boost::asio::cancellation_type how) {
        if (how == boost::asio::cancellation_type::none) return;
        is_emitted = true;
        function(how);
    }
};

/// Has the slot call `function` for any type of cancellation. Returns the note that it was emitted,
/// which is valid until the slot is cleared.
template <class Function>
bool const* assign_noted(boost::asio::cancellation_slot slot, Function function) {
    return &slot.emplace<noted_cancellation<Function>>(std::move(function)).is_emitted;
}

/// Where a result goes that its handler has not taken: the handler was cancelled, or destroyed
/// uncalled, when the result was on its way already. For operations that take something from a list.
template <class... Arguments>
struct return_path {
    std::shared_ptr<void> owner;
    /// Any thread; REQUIRES: no lock is held that the owner takes.
    void (*take_back
    )(void* owner, std::uint64_t number, Arguments&&... arguments) noexcept = nullptr;
    /// The owner's place for the result.
    std::uint64_t number = 0;

    void operator()(Arguments&&... arguments) {
        auto const to = std::exchange(owner, nullptr);
        if (to != nullptr) take_back(to.get(), number, std::move(arguments)...);
    }
};

/// Calls a handler with operation_aborted and default values.
template <class Handler, class First, class... Rest>
void call_aborted(Handler&& handler, std::type_identity<First>, std::type_identity<Rest>...) {
    std::forward<Handler>(handler)(First{boost::asio::error::operation_aborted}, Rest{}...);
}

/// A handler in memory of its own, of its associated allocator.
template <class... Arguments>
class held_handler {
public:
    held_handler(held_handler const&) = delete;
    held_handler& operator=(held_handler const&) = delete;

    struct destroyer {
        void operator()(held_handler* h) const noexcept { h->destroy(); }
    };
    using pointer = std::unique_ptr<held_handler, destroyer>;

    /// Has it run on `io`, unless it has an executor of its own; its executor has work from now on.
    virtual void attach(boost::asio::any_io_executor const& io) = 0;
    /// Dispatches the handler to its executor, and frees the memory. REQUIRES: attach() was called.
    virtual void call(Arguments&&... arguments) = 0;
    /// The same from a function that runs on `io`: directly, if that is the handler's executor.
    virtual void call_on_io(Arguments&&... arguments) = 0;
    /// As call() and call_on_io(), with a result that goes back if the handler does not take it; then a
    /// cancelled handler gets operation_aborted.
    ///
    /// @param is_cancelled  Of assign_noted(); null for a handler without a slot.
    virtual void hand_over(
        return_path<Arguments...>&& back,
        bool const* is_cancelled,
        bool is_on_io,
        Arguments&&... arguments
    ) = 0;
    virtual boost::asio::cancellation_slot slot() const noexcept = 0;

protected:
    held_handler() = default;
    ~held_handler() = default;

private:
    virtual void destroy() noexcept = 0;
};

/// A handler with its arguments. It clears its cancellation slot on its own executor, because
/// signals are emitted there, and then runs.
template <class Handler, class... Arguments>
struct bound_handler {
    using allocator_type = boost::asio::associated_allocator_t<Handler>;
    allocator_type get_allocator() const noexcept {
        return boost::asio::get_associated_allocator(handler);
    }

    Handler handler;
    std::tuple<Arguments...> arguments;
    void operator()() {
        boost::asio::get_associated_cancellation_slot(handler).clear();
        std::apply(std::move(handler), std::move(arguments));
    }
};

/// A handler on its way to its executor with a result that it may not take.
template <class Handler, class... Arguments>
struct handed_over {
    using allocator_type = boost::asio::associated_allocator_t<Handler>;
    allocator_type get_allocator() const noexcept {
        return boost::asio::get_associated_allocator(handler);
    }

    handed_over(
        Handler&& h,
        std::tuple<Arguments...>&& all,
        return_path<Arguments...>&& path,
        bool const* note
    )
        : handler{std::move(h)},
          arguments{std::move(all)},
          back{std::move(path)},
          is_cancelled{note} {}
    // A handler's move may throw. NOLINTNEXTLINE(performance-noexcept-move-constructor)
    handed_over(handed_over&&) = default;
    ~handed_over() { give_back(); }

    void operator()() {
        bool const is_taken = is_cancelled == nullptr || !*is_cancelled;
        boost::asio::get_associated_cancellation_slot(handler).clear();
        if (!is_taken) {
            give_back();
            return call_aborted(std::move(handler), std::type_identity<Arguments>{}...);
        }
        back.owner.reset();
        std::apply(std::move(handler), std::move(arguments));
    }
    void give_back() noexcept {
        if (back.owner == nullptr) return;
        std::apply([this](Arguments&... all) { back(std::move(all)...); }, arguments);
    }

    Handler handler;
    std::tuple<Arguments...> arguments;
    return_path<Arguments...> back;
    bool const* is_cancelled;
};

template <class Handler, class... Arguments>
class held_handler_of final : public held_handler<Arguments...> {
public:
    using pointer = typename held_handler<Arguments...>::pointer;

    static pointer make(Handler&& h) {
        auto allocator = allocator_of(h);
        using traits = std::allocator_traits<decltype(allocator)>;
        held_handler_of* const place = traits::allocate(allocator, 1);
        try {
            return pointer{::new (static_cast<void*>(place)) held_handler_of{std::move(h)}};
        } catch (...) {
            traits::deallocate(allocator, place, 1);
            throw;
        }
    }

    void attach(boost::asio::any_io_executor const& io) override {
        // `io` itself, not a copy, unless the handler has another one.
        executor const& own = boost::asio::get_associated_executor(handler_, io);
        if constexpr (std::same_as<executor, boost::asio::any_io_executor>)
            runs_on_io_ = &own == &io || own == io;
        work_.emplace(own);
    }
    void call(Arguments&&... arguments) override {
        auto const work = std::move(*work_);
        bound_handler<Handler, Arguments...> function{take(), {std::move(arguments)...}};
        boost::asio::dispatch(work.get_executor(), std::move(function));
    }
    void call_on_io(Arguments&&... arguments) override {
        if (!runs_on_io_) return call(std::move(arguments)...);
        // The function that calls this is work of `io`.
        Handler handler = take();
        boost::asio::get_associated_cancellation_slot(handler).clear();
        std::move(handler)(std::move(arguments)...);
    }
    void hand_over(
        return_path<Arguments...>&& back,
        bool const* is_cancelled,
        bool is_on_io,
        Arguments&&... arguments
    ) override {
        if (is_on_io && runs_on_io_) {
            Handler handler = take();
            bool const is_taken = is_cancelled == nullptr || !*is_cancelled;
            boost::asio::get_associated_cancellation_slot(handler).clear();
            if (is_taken) return std::move(handler)(std::move(arguments)...);
            back(std::move(arguments)...);
            return call_aborted(std::move(handler), std::type_identity<Arguments>{}...);
        }
        auto const work = std::move(*work_);
        handed_over<Handler, Arguments...> function{
            take(), {std::move(arguments)...}, std::move(back), is_cancelled};
        boost::asio::dispatch(work.get_executor(), std::move(function));
    }
    boost::asio::cancellation_slot slot() const noexcept override {
        return boost::asio::get_associated_cancellation_slot(handler_);
    }

private:
    using executor = boost::asio::associated_executor_t<Handler, boost::asio::any_io_executor>;
    using work_type = std::conditional_t<
        std::same_as<executor, boost::asio::any_io_executor>,
        any_work,
        boost::asio::executor_work_guard<executor>>;

    explicit held_handler_of(Handler&& h) : handler_{std::move(h)} {}

    static auto allocator_of(Handler const& h) noexcept {
        using own = boost::asio::associated_allocator_t<Handler>;
        if constexpr (std::same_as<own, std::allocator<void>>) {
            return recycling_allocator<held_handler_of>{};
        } else {
            return typename std::allocator_traits<own>::template rebind_alloc<held_handler_of>{
                boost::asio::get_associated_allocator(h)};
        }
    }
    // Frees the memory, also if the handler's move throws.
    Handler take() {
        pointer self{this};
        Handler handler{std::move(handler_)};
        static_cast<void>(self.release());
        destroy(allocator_of(handler));
        return handler;
    }
    template <class Allocator>
    void destroy(Allocator allocator) noexcept {
        this->~held_handler_of();
        std::allocator_traits<Allocator>::deallocate(allocator, this, 1);
    }
    void destroy() noexcept override { destroy(allocator_of(handler_)); }

    Handler handler_;
    std::optional<work_type> work_;
    // The executor is `io`.
    bool runs_on_io_ = false;
};

/// A type-erased handler and the context of its executor.
template <class... Arguments>
class erased_handler {
public:
    template <class Handler>
    requires(!std::same_as<Handler, erased_handler>) explicit erased_handler(Handler h)
        : host{host_of(h)},
          held{held_handler_of<Handler, Arguments...>::make(std::move(h))} {}

    // Null if the handler has no executor of its own, or one that does not provide its context.
    boost::asio::execution_context* host;
    typename held_handler<Arguments...>::pointer held;

private:
    // A default candidate that no handler has as its own executor.
    struct probe {};

    template <class Handler>
    static constexpr bool tells_nothing() noexcept {
        if constexpr (is_erased<Handler>) {
            return true;
        } else {
            return std::same_as<boost::asio::associated_executor_t<Handler, probe>, probe>;
        }
    }
    template <class Handler>
    static boost::asio::execution_context* host_of(Handler const& h) noexcept {
        if constexpr (tells_nothing<Handler>()) {
            return nullptr;
        } else {
            return context_of(boost::asio::associated_executor<Handler, probe>::get(h, probe{}));
        }
    }
};

using control_handler = erased_handler<error_code>;

}  // namespace rcverbs::detail
