// blocking.hpp — a completion token that waits: for threads that run no executor.
//
//     connection c{own_thread};
//     c.async_connect({"192.168.0.1", 7471}, blocking);
//     c.async_write(mine.slice(), theirs, blocking);
//     error_code ec;
//     std::size_t const read = c.async_read(theirs, mine.slice(), blocking(ec));
//     message const m = channel.async_receive(blocking.within(std::chrono::seconds{5}));
//
// For every operation of every object, also through other tokens' adapters. The calling thread sleeps until
// the operation has completed; another one must run the object's executor: own_thread, a poller, or a
// thread of the program's that runs its io_context. Any number of threads may wait for operations of one object.
//
// For programs whose source has no Asio at all: experimental/calls.hpp.
#pragma once

#include <boost/asio/async_result.hpp>

#include <chrono>
#include <tuple>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/access.hpp>
#include <rcverbs/detail/blocked_call.hpp>
#include <rcverbs/error.hpp>

namespace rcverbs {

/// A completion token: the initiating function returns when the operation has completed, with its results: nothing,
/// one value, or a std::tuple of several. Errors are thrown: an operation_failed if the failure is that of the
/// object, else a boost::system::system_error.
///
/// @par Errors  Besides those of the operation errc::would_deadlock, before the operation is started: the calling
///              thread runs the execution context of the object, or no other thread does. That nobody runs it is
///              known at once if the process has no other thread, and else after two seconds in which
///              nothing has run there. Once something has run, it is only looked at again when the context has
///              been stopped. asio::error::operation_aborted if the context is destroyed meanwhile.
///
/// @tparam Limit  Nothing, or the type of the limit of within().
template <class... Limit>
class basic_blocking {
public:
    constexpr basic_blocking() noexcept requires(sizeof...(Limit) == 0) = default;

    /// Errors go to `ec`, which must live until the initiating function returns. The results of an
    /// operation that failed are what its handler would get.
    constexpr basic_blocking operator()(error_code& ec) const noexcept { return {&ec, limit_}; }
    /// Cancels the operation after this time, and waits for its end; then the error is errc::timed_out. What a
    /// cancellation does is in the operation's documentation: it ends a connection whose reads,
    /// writes, atomics or sends have been posted, because the device may still use their memory. A result that
    /// comes meanwhile is returned.
    ///
    /// @param limit  From the start of the operation. 0 and less cancels at once.
    constexpr basic_blocking<std::chrono::nanoseconds> within(std::chrono::nanoseconds limit
    ) const noexcept {
        return {ec_, {limit}};
    }

private:
    template <class...>
    friend class basic_blocking;
    friend struct detail::access;

    constexpr basic_blocking(error_code* ec, std::tuple<Limit...> limit) noexcept
        : ec_{ec},
          limit_{limit} {}

    error_code* ec_ = nullptr;
    std::tuple<Limit...> limit_;
};
/// See basic_blocking.
using blocking_t = basic_blocking<>;
/// See basic_blocking.
inline constexpr blocking_t blocking{};

}  // namespace rcverbs

namespace boost::asio {

template <class... Limit, class Result, class... Results>
struct async_result<rcverbs::basic_blocking<Limit...>, Result(Results...)> {
    template <class Initiation, class... Arguments>
    static auto initiate(
        Initiation&& start, rcverbs::basic_blocking<Limit...> const& token, Arguments&&... arguments
    ) {
        return rcverbs::detail::block<std::decay_t<Results>...>(
            std::forward<Initiation>(start),
            rcverbs::detail::access::error_of(token),
            rcverbs::detail::access::limit_of(token),
            std::forward<Arguments>(arguments)...
        );
    }
};

}  // namespace boost::asio
