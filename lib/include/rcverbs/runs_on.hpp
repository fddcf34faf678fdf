// runs_on.hpp — the argument that selects where an object runs: polling, timers, events, handlers.
//
//     connection a{io};
//     connection b{boost::asio::make_strand(pool)};
//     connection c{shared};  // a poller
//     connection d{own_thread};
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/execution/bad_executor.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/io_context.hpp>

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/access.hpp>
#include <rcverbs/detail/option_check.hpp>
#include <rcverbs/poller.hpp>

namespace rcverbs {

namespace detail {

template <class Executor>
concept has_default_token = requires {
    typename Executor::default_completion_token_type;
};

template <class Executor>
struct default_token {
    using type = boost::asio::deferred_t;
};
template <has_default_token Executor>
struct default_token<Executor> {
    using type = typename Executor::default_completion_token_type;
};

/// The completion token of an asynchronous operation that is given none: the executor's, or else
/// `deferred`.
template <class Executor>
using default_token_t = typename default_token<Executor>::type;

/// Where an object runs, for the compiled part of the library.
struct place {
    boost::asio::any_io_executor executor;
    // Null for a poller of the object's own, with default options.
    std::shared_ptr<progress::poller_core const> poller;
};

// Unwraps an executor that only adds a default token, so that for the compiled part it compares
// equal to the wrapped one.
template <class Executor>
boost::asio::any_io_executor erase(Executor const& e) {
    if constexpr (std::derived_from<Executor, boost::asio::any_io_executor>) {
        return static_cast<boost::asio::any_io_executor const&>(e);
    } else if constexpr (std::derived_from<Executor, boost::asio::io_context::executor_type>) {
        return static_cast<boost::asio::io_context::executor_type const&>(e);
    } else {
        return e;
    }
}

// Converts an object's executor to another type. A wrapper of it is unwrapped, so that both
// compare equal.
template <class Executor, class Other>
Executor converted(Other const& other) {
    if constexpr (std::same_as<Executor, boost::asio::any_io_executor>) {
        return erase(other);
    } else {
        return other;
    }
}

// The executor of a poller in another type. Throws errc::invalid_option if there is none, and
// bad_executor if it is of none that converts.
template <class Executor>
Executor unerased(boost::asio::any_io_executor const& from) {
    using on_context = boost::asio::io_context::executor_type;
    if (!from) throw_if_refused("the poller is empty: poller::start() and poller::on() make one");
    if constexpr (std::convertible_to<boost::asio::any_io_executor, Executor>) {
        return from;
    } else {
        if (auto* const same = from.target<Executor>()) return *same;
        if constexpr (std::convertible_to<on_context, Executor>) {
            if (auto* const wrapped = from.target<on_context>()) return *wrapped;
        }
        throw boost::asio::execution::bad_executor{};
    }
}

// The executor of a handle. A default-constructed handle has none, also if its type cannot be empty.
template <class Executor>
class stored_executor {
public:
    stored_executor() = default;
    stored_executor(Executor e) : value_{std::move(e)} {}

    /// REQUIRES: there is one, if the type cannot be empty.
    Executor const& get() const noexcept {
        if constexpr (std::default_initializable<Executor>) return value_;
        else return *value_;
    }

private:
    std::conditional_t<std::default_initializable<Executor>, Executor, std::optional<Executor>>
        value_;
};

}  // namespace detail

/// Runs an object: converts from an executor, an execution context, a poller, or own_thread.
///
/// An execution context must be able to hold descriptors, as an io_context or a thread_pool is, and
/// must outlive the object. Any number of threads may run it: an implicit strand keeps the handlers
/// of one object in order.
template <class Executor>
class runs_on {
public:
    /// From an executor that is, or converts to, this one.
    ///
    /// @throws boost::system::system_error: errc::invalid_option (it is empty).
    template <class Other>
    requires(std::convertible_to<Other const&, Executor> && !std::derived_from<Other, boost::asio::execution_context>)
        runs_on(Other const& executor)
        : executor_(executor) {
        if constexpr (std::derived_from<Executor, boost::asio::any_io_executor>) {
            if (!executor_) detail::throw_if_refused("the executor is empty");
        }
    }

    /// From an execution context.
    template <class Context>
    requires(std::derived_from<Context, boost::asio::execution_context>&&
                 std::convertible_to<typename Context::executor_type, Executor>)
        runs_on(Context& context)
        : executor_(context.get_executor()) {}

    /// From a poller, which works as long as the object lives.
    ///
    /// @throws boost::system::system_error: errc::invalid_option (the poller is empty);
    ///         boost::asio::execution::bad_executor if its executor is not, and does not convert to,
    ///         an Executor.
    runs_on(poller const& p)
        : executor_(detail::unerased<Executor>(p.get_executor())),
          poller_{p} {}

    /// A polling thread for this object alone.
    ///
    /// @throws std::system_error if no thread can be started.
    runs_on(own_thread_t
    ) requires std::convertible_to<boost::asio::io_context::executor_type, Executor>
        : runs_on{poller::start()} {}

    /// From one with another type of executor.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>) explicit runs_on(
        runs_on<Other> const& other
    )
        : executor_(detail::converted<Executor>(other.executor_)),
          poller_{other.poller_} {}

    /// The executor.
    Executor const& get_executor() const noexcept { return executor_; }

private:
    template <class>
    friend class basic_acceptor;
    template <class>
    friend class runs_on;

    friend struct detail::access;

    detail::place place() const { return {detail::erase(executor_), poller_.core_}; }
    runs_on(Executor executor, poller p) : executor_(std::move(executor)), poller_{std::move(p)} {}

    Executor executor_;
    poller poller_;
};

namespace detail {

template <class T>
inline constexpr bool is_runs_on = false;
template <class Executor>
inline constexpr bool is_runs_on<runs_on<Executor>> = true;

// What stands for an executor. (Whether a type converts to any_io_executor must not be asked of every
// token: Boost 1.81 then looks for functions of the program's.)
template <class T>
inline constexpr bool is_context_or_thread =
    std::derived_from<T, boost::asio::execution_context> || std::same_as<T, poller> ||
    std::same_as<T, own_thread_t>;

}  // namespace detail

}  // namespace rcverbs
