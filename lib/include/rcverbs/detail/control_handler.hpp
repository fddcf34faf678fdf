// control_handler.hpp — the type-erased handler of a connect, accept or disconnect, for the
// compiled library. Internal.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/query.hpp>

#include <concepts>
#include <utility>

#include <rcverbs/error.hpp>

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

/// A type-erased handler and the context of its executor.
template <class... Arguments>
struct erased_handler {
    using type = boost::asio::any_completion_handler<void(Arguments...)>;

    template <class Handler>
    requires(!std::same_as<Handler, erased_handler>) explicit erased_handler(Handler h)
        : host{host_of(h)},
          handler{std::move(h)} {}

    // Null if the handler has no executor of its own, or one that does not provide its context.
    boost::asio::execution_context* host;
    type handler;

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
