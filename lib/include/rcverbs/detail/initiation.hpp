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
#include <rcverbs/failure.hpp>

namespace rcverbs::detail {

class connection_core;

/// A handler that may run on any thread, such as that of `blocking`.
template <class Handler>
concept runs_anywhere = requires {
    typename Handler::runs_anywhere;
};

/// Of an operation whose object has no last_failure().
struct no_failure {};

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

/// `Start` is called with the handler and the arguments of async_initiate(). `Failure` gives the
/// last_failure() of the object to a completion token that waits for the end of the operation.
template <class Executor, class Start, class Failure = no_failure>
class initiation {
public:
    using executor_type = Executor;

    initiation(Executor executor, Start start, Failure last = {})
        : executor_{std::move(executor)},
          start_{std::move(start)},
          last_failure_{std::move(last)} {}

    executor_type get_executor() const noexcept { return executor_; }
    /// REQUIRES: the object has not been moved since.
    auto last_failure() const requires requires(Failure const& f) { f(); }
    { return last_failure_(); }

    template <class... Arguments>
    void operator()(Arguments&&... arguments) const {
        start_(std::forward<Arguments>(arguments)...);
    }

private:
    Executor executor_;
    [[no_unique_address]] Start start_;
    [[no_unique_address]] Failure last_failure_;
};

/// The last_failure() of the handle that an operation was started with.
template <class Handle>
struct failure_of {
    Handle const* handle;
    auto operator()() const { return handle->last_failure(); }
};
template <class Handle>
failure_of(Handle const*) -> failure_of<Handle>;

/// The executor of a connection, which must exist.
RCVERBS_EXPORT boost::asio::any_io_executor const& executor_of(connection_core const& core
) noexcept;
/// Its last failure.
RCVERBS_EXPORT failure last_failure_of(connection_core const& core);

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
template <class Executor, class Start, class Failure = no_failure>
class data_initiation {
    static constexpr bool has_failure = requires(Failure const& f) { f(); };

public:
    using executor_type = Executor;

    data_initiation(connection_core const* core, Start start, Failure last = {})
        : core_{core},
          start_{std::move(start)},
          last_failure_{std::move(last)} {}

    executor_type get_executor() const noexcept { return recovered<Executor>(executor_of(*core_)); }
    /// As in initiation; without a `Failure`, the connection's.
    auto last_failure() const {
        if constexpr (has_failure) return last_failure_();
        else return last_failure_of(*core_);
    }

    template <class... Arguments>
    void operator()(Arguments&&... arguments) const {
        start_(std::forward<Arguments>(arguments)...);
    }

private:
    connection_core const* core_;
    [[no_unique_address]] Start start_;
    [[no_unique_address]] Failure last_failure_;
};

template <class Executor, class Start, class Failure = no_failure>
data_initiation<Executor, Start, Failure> initiation_of(
    connection_core const* core, Start start, Failure last = {}
) {
    return {core, std::move(start), std::move(last)};
}

}  // namespace rcverbs::detail
