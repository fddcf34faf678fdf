// retry.hpp — repeats an operation that may be repeated, on a new connection if the last one has ended.
//
//     co_return co_await retry(to_server, last, deadline, [&](session& s) { return work(s); });
//
// Threads: those of the connection.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/multiple_exceptions.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <type_traits>
#include <utility>
#include <variant>

#include <rcverbs/connector.hpp>
#include <rcverbs/error.hpp>

namespace rcverbs {

namespace detail {

// The code of an exception; for operations that were awaited together, that of the first. Empty
// for an exception that is no system_error.
inline error_code code_of(std::exception_ptr const& thrown) noexcept {
    try {
        std::rethrow_exception(thrown);
    } catch (boost::system::system_error const& e) {
        return e.code();
    } catch (boost::asio::multiple_exceptions const& e) {
        return code_of(e.first_exception());
    } catch (...) {
        return {};
    }
}

}  // namespace detail

/// Repeats an idempotent operation until it succeeds or the deadline passes. Connects if `current`
/// is not open, and repeats the operation on a new connection after an error for which
/// is_transient() is true. Waits 10 ms after the first failure, and twice as long after each
/// further one, up to 1 s. An answer that is late (channel_errc::request_timed_out) is not
/// transient: the connection is well, and a program that asks again may overload its peer.
///
/// @param to         The connector.
/// @param current    The last connection, kept open between calls.
/// @param deadline   After it no attempt starts and connecting is cancelled; an operation that has
///                   started on a connection is not cancelled.
/// @param operation  `awaitable<T>(Protocol&)`, which throws boost::system::system_error, or the
///                   result of `a() && b()`. Doing it twice must do no harm.
/// @return The result of the operation.
/// @throws boost::system::system_error: the last error of the operation or of async_connect, at
///         once if it is not transient; errc::timed_out if the deadline passed before there was one.
///         (async_connect() itself retries: last_failure() of the connector has its last attempt.)
template <class Protocol, class Operation>
auto retry(
    basic_connector<Protocol>& to,
    Protocol& current,
    std::chrono::steady_clock::time_point deadline,
    Operation operation
) -> std::invoke_result_t<Operation&, Protocol&> {
    using namespace boost::asio::experimental::awaitable_operators;
    using std::chrono::milliseconds;
    constexpr auto as_values = boost::asio::as_tuple(boost::asio::use_awaitable);
    boost::asio::steady_timer timer{co_await boost::asio::this_coro::executor};
    error_code last = errc::timed_out;
    for (milliseconds pause{10};; pause = std::min(2 * pause, milliseconds{1000})) {
        if (std::chrono::steady_clock::now() >= deadline)
            throw boost::system::system_error{last, "retry"};
        try {
            if (!current.is_open()) {
                timer.expires_at(deadline);
                // Without exceptions: `||` goes on waiting after an operation that throws.
                auto connected =
                    co_await (to.async_connect(as_values) || timer.async_wait(as_values));
                if (connected.index() == 1) throw boost::system::system_error{last, "retry"};
                auto& [ec, made] = std::get<0>(connected);
                if (ec) throw boost::system::system_error{ec, "retry"};
                current = std::move(made);
            }
            co_return co_await operation(current);
        } catch (...) {
            last = detail::code_of(std::current_exception());
            if (!is_transient(last) || std::chrono::steady_clock::now() >= deadline) throw;
        }
        current.close();
        timer.expires_at(std::min(deadline, std::chrono::steady_clock::now() + pause));
        co_await timer.async_wait(boost::asio::use_awaitable);
    }
}

}  // namespace rcverbs
