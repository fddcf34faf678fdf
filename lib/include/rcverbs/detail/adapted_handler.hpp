// adapted_handler.hpp — a handler that is called through a function, with the handler's own
// associated executor, allocator and cancellation slot. Internal.
#pragma once

#include <boost/asio/associator.hpp>

#include <utility>

namespace rcverbs::detail {

template <class Handler, class Function>
struct adapted_handler {
    Handler handler;
    Function function;

    template <class... Arguments>
    void operator()(Arguments&&... arguments) {
        std::move(function)(std::move(handler), std::forward<Arguments>(arguments)...);
    }
};

template <class Handler, class Function>
adapted_handler(Handler, Function) -> adapted_handler<Handler, Function>;

}  // namespace rcverbs::detail

namespace boost::asio {

template <
    template <class, class>
    class Associator,
    class Handler,
    class Function,
    class DefaultCandidate>
struct associator<Associator, rcverbs::detail::adapted_handler<Handler, Function>, DefaultCandidate>
    : Associator<Handler, DefaultCandidate> {
    static typename Associator<Handler, DefaultCandidate>::type get(
        rcverbs::detail::adapted_handler<Handler, Function> const& h,
        DefaultCandidate const& c = DefaultCandidate()
    ) noexcept {
        return Associator<Handler, DefaultCandidate>::get(h.handler, c);
    }
};

}  // namespace boost::asio
