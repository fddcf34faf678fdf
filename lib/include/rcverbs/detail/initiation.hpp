// initiation.hpp — what starts an operation for a completion token. Asio asks it for the executor of
// the operation's object, for tokens such as cancel_after() that need one before there is a handler.
// Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/io_context.hpp>

#include <concepts>
#include <type_traits>
#include <utility>

#include <rcverbs/export.hpp>

namespace rcverbs::detail {

class connection_core;

/// As boost::asio::async_initiate(); a token that does not take the signature is one readable error.
template <class Token, class Signature, class Initiation, class... Arguments>
auto initiate_checked(
    Initiation&& start, std::remove_reference_t<Token>& token, Arguments&&... arguments
) {
    constexpr bool is_fitting = boost::asio::completion_token_for<Token, Signature>;
    static_assert(
        is_fitting,
        "rcverbs: the completion token, or handler, does not fit the operation's completion "
        "signature, "
        "which its documentation names; a handler must be movable"
    );
    if constexpr (is_fitting)
        return boost::asio::async_initiate<Token, Signature>(
            std::forward<Initiation>(start), token, std::forward<Arguments>(arguments)...
        );
}

/// `Start` is called with the handler and the arguments of async_initiate().
template <class Executor, class Start>
class initiation {
public:
    using executor_type = Executor;

    initiation(Executor executor, Start start)
        : executor_{std::move(executor)},
          start_{std::move(start)} {}

    executor_type get_executor() const noexcept { return executor_; }

    template <class... Arguments>
    void operator()(Arguments&&... arguments) const {
        start_(std::forward<Arguments>(arguments)...);
    }

private:
    Executor executor_;
    [[no_unique_address]] Start start_;
};

/// The executor of a connection, which must exist.
RCVERBS_EXPORT boost::asio::any_io_executor const& executor_of(connection_core const& core
) noexcept;

/// An executor as the type that the program knows it by.
template <class Executor>
Executor recovered(boost::asio::any_io_executor const& erased) noexcept {
    using io_executor = boost::asio::io_context::executor_type;
    if constexpr (std::constructible_from<Executor, boost::asio::any_io_executor const&>) {
        return Executor(erased);
    } else if constexpr (std::derived_from<Executor, io_executor> && !std::same_as<Executor, io_executor>) {
        return Executor(*erased.target<io_executor>());
    } else {
        return *erased.target<Executor>();
    }
}

/// Of a data operation: no executor is copied unless Asio asks for it. The arguments keep the
/// connection's core.
template <class Executor, class Start>
class data_initiation {
public:
    using executor_type = Executor;

    data_initiation(connection_core const* core, Start start)
        : core_{core},
          start_{std::move(start)} {}

    executor_type get_executor() const noexcept { return recovered<Executor>(executor_of(*core_)); }

    template <class... Arguments>
    void operator()(Arguments&&... arguments) const {
        start_(std::forward<Arguments>(arguments)...);
    }

private:
    connection_core const* core_;
    [[no_unique_address]] Start start_;
};

template <class Executor, class Start>
data_initiation<Executor, Start> initiation_of(connection_core const* core, Start start) {
    return {core, std::move(start)};
}

}  // namespace rcverbs::detail
