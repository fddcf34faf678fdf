// blocked_call.hpp — how a thread waits for an operation. Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/system_executor.hpp>

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>

namespace rcverbs::detail {

/// errc::would_deadlock if a thread that waited for work of this executor might wait for ever: see blocking_t.
RCVERBS_EXPORT errc check_wait(boost::asio::any_io_executor const& where);

/// A call that waits until another thread ends it.
class RCVERBS_EXPORT blocked_call {
public:
    blocked_call() = default;
    blocked_call(blocked_call const&) = delete;
    blocked_call& operator=(blocked_call const&) = delete;

    /// Once. The call may be gone when this returns.
    void end() noexcept;
    void wait() noexcept;
    /// False if it has not ended within this time.
    bool wait_for(std::chrono::nanoseconds limit) noexcept;

private:
    std::mutex mutex_;
    std::condition_variable has_ended_;
    bool is_ended_ = false;
};

/// Of an operation with the completion signature `void(Results...)`.
template <class... Results>
struct operation_call : blocked_call {
    /// None if the handler was destroyed uncalled.
    std::optional<std::tuple<Results...>> results;
};

template <class... Results>
class blocking_handler {
public:
    using runs_anywhere = void;

    explicit blocking_handler(operation_call<Results...>& call) noexcept : call_{&call} {}
    blocking_handler(blocking_handler&& other) noexcept
        : call_{std::exchange(other.call_, nullptr)} {}
    blocking_handler& operator=(blocking_handler&&) = delete;
    ~blocking_handler() {
        if (call_ != nullptr) call_->end();
    }

    void operator()(Results... results) {
        call_->results.emplace(std::move(results)...);
        std::exchange(call_, nullptr)->end();
    }

private:
    operation_call<Results...>* call_;
};

/// A handler that is cancelled, and therefore completes, in a strand.
template <class... Results>
class timed_handler : public blocking_handler<Results...> {
public:
    using executor_type = boost::asio::any_io_executor;
    using cancellation_slot_type = boost::asio::cancellation_slot;

    timed_handler(
        operation_call<Results...>& call, executor_type order, cancellation_slot_type slot
    ) noexcept
        : blocking_handler<Results...>{call},
          order_{std::move(order)},
          slot_{slot} {}

    executor_type get_executor() const noexcept { return order_; }
    cancellation_slot_type get_cancellation_slot() const noexcept { return slot_; }

private:
    executor_type order_;
    cancellation_slot_type slot_;
};

/// The executor whose work an operation is.
template <class Initiation>
concept has_executor = requires(Initiation const& start) {
    { start.get_executor() } -> std::convertible_to<boost::asio::any_io_executor>;
}
&&!requires(Initiation const& start) {
    { start.get_executor() } -> std::same_as<boost::asio::system_executor>;
};

/// Where an operation is cancelled.
template <class Initiation>
boost::asio::any_io_executor executor_for(Initiation const& start) {
    if constexpr (has_executor<Initiation>) return start.get_executor();
    else return boost::asio::system_executor{};
}

/// Starts an operation and waits.
template <class... Results, class Initiation, class... Arguments>
void start_and_wait(
    operation_call<Results...>& call, Initiation&& start, Arguments&&... arguments
) {
    try {
        std::forward<Initiation>(start
        )(blocking_handler<Results...>{call}, std::forward<Arguments>(arguments)...);
    } catch (...) {
        call.wait();  // until the handler is destroyed
        throw;
    }
    call.wait();
}

/// The same with a limit. False if it was cancelled.
template <class... Results, class Initiation, class... Arguments>
bool start_and_wait_for(
    std::chrono::nanoseconds limit,
    operation_call<Results...>& call,
    Initiation&& start,
    Arguments&&... arguments
) {
    boost::asio::any_io_executor const order = boost::asio::make_strand(executor_for(start));
    auto const signal = std::make_shared<boost::asio::cancellation_signal>();
    try {
        std::forward<Initiation>(start
        )(timed_handler<Results...>{call, order, signal->slot()},
          std::forward<Arguments>(arguments)...);
    } catch (...) {
        call.wait();
        throw;
    }
    if (call.wait_for(limit)) return true;
    boost::asio::post(order, [signal] { signal->emit(boost::asio::cancellation_type::all); });
    call.wait();
    return false;
}

/// Throws the error of an operation, as the failure of its object where that is the same.
template <class Initiation>
[[noreturn]] void throw_failed(Initiation const& start, error_code ec) {
    if constexpr (requires { start.last_failure(); }) {
        failure last = start.last_failure();
        if (last.code == ec) throw operation_failed{std::move(last)};
    }
    throw boost::system::system_error{ec};
}

// Takes the error out of the results of an operation; an exception is thrown.
template <class... Values>
std::tuple<Values...> values_of(std::tuple<error_code, Values...>&& results, error_code& ec) {
    ec = std::get<0>(results);
    return std::apply(
        [](error_code, Values&... all) { return std::tuple<Values...>{std::move(all)...}; }, results
    );
}
template <class... Values>
std::tuple<Values...> values_of(std::tuple<std::exception_ptr, Values...>&& results, error_code&) {
    if (std::get<0>(results)) std::rethrow_exception(std::get<0>(results));
    return std::apply(
        [](std::exception_ptr const&, Values&... all) {
            return std::tuple<Values...>{std::move(all)...};
        },
        results
    );
}
template <class... Values>
std::tuple<Values...> values_of(std::tuple<Values...>&& results, error_code&) {
    return std::move(results);
}

template <class... Values>
auto unpacked(std::tuple<Values...>&& all) {
    if constexpr (sizeof...(Values) == 1) return std::get<0>(std::move(all));
    else if constexpr (sizeof...(Values) > 1) return std::move(all);
}

template <class>
inline constexpr bool may_be_missing = false;
template <class... Values>
inline constexpr bool may_be_missing<std::tuple<Values...>> =
    (std::default_initializable<Values> && ...);

/// The initiating function of the token `blocking`.
///
/// @param given  Where the error goes; null to throw it.
/// @param limit  Empty, or the time after which the operation is cancelled.
template <class... Results, class Initiation, class... Limit, class... Arguments>
auto block(
    Initiation&& start, error_code* given, std::tuple<Limit...> limit, Arguments&&... arguments
) {
    error_code ec;
    std::optional<decltype(values_of(std::declval<std::tuple<Results...>>(), ec))> values;
    operation_call<Results...> call;
    if constexpr (has_executor<std::remove_cvref_t<Initiation>>) {
        errc const refusal = check_wait(start.get_executor());
        if (refusal != errc{}) ec = refusal;
    }
    if (!ec) {
        bool is_in_time = true;
        if constexpr (sizeof...(Limit) == 0)
            start_and_wait(
                call, std::forward<Initiation>(start), std::forward<Arguments>(arguments)...
            );
        else
            is_in_time = start_and_wait_for(
                std::get<0>(limit),
                call,
                std::forward<Initiation>(start),
                std::forward<Arguments>(arguments)...
            );
        if (call.results) values.emplace(values_of(*std::move(call.results), ec));
        else ec = boost::asio::error::operation_aborted;
        if (!is_in_time && ec == boost::asio::error::operation_aborted) ec = errc::timed_out;
    }
    using values_type = typename decltype(values)::value_type;
    if (ec && (given == nullptr || (!values && !may_be_missing<values_type>)))
        throw_failed(start, ec);
    if (given != nullptr) *given = ec;
    if constexpr (may_be_missing<values_type>) {
        if (!values) values.emplace();
    }
    return unpacked(*std::move(values));
}

}  // namespace rcverbs::detail
