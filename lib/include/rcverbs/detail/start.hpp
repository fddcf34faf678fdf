// start.hpp — how the templates of the public headers hand an operation to the compiled library. Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/post.hpp>

#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/operation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs::detail {

class connection_core;

/// Puts the caller's handler into the operation it is given; called at most once, under the connection's lock.
struct handler_source {
    void* context;
    void (*place)(void* context, operation& op, boost::asio::any_io_executor const& io);
    boost::asio::cancellation_slot (*slot)(void* context);
};

/// Whether an operation may wait for its turn.
enum class turn { wait, now };

// The doors into the compiled library. One request is copied, several are referred to until the operation is done. No
// handler (null) for work that nobody waits for. An operation that is refused takes nothing of `source`.
RCVERBS_EXPORT error_code start_operation(
    std::shared_ptr<connection_core> const& core, std::span<request const> what, turn when, handler_source const* source
);
RCVERBS_EXPORT boost::asio::any_io_executor executor_of(connection_core const& core) noexcept;

/// Which check made before posting an operation failed, if any.
RCVERBS_EXPORT error_code check(local_slices const& local, remote_region const& remote, access_flags needed) noexcept;
RCVERBS_EXPORT error_code check(remote_word const& word) noexcept;

inline request local_request(operation_kind kind, local_slices const& local) noexcept {
    request what;
    what.kind = kind;
    what.local = local;
    return what;
}

inline request transfer_request(
    operation_kind kind, local_slices const& local, remote_region const& remote, std::uint32_t immediate = 0
) noexcept {
    request what = local_request(kind, local);
    what.remote_address = remote.address();
    what.remote = remote.key();
    what.immediate = immediate;
    return what;
}

inline request atomic_request(
    operation_kind kind, remote_word const& word, std::uint64_t operand, std::uint64_t swap, local_slices const& result = {}
) noexcept {
    request what = local_request(kind, result);
    what.remote_address = word.address;
    what.remote = word.key;
    what.operand = operand;
    what.swap = swap;
    return what;
}

/// Offers a handler to an operation: it is moved, or copied if it is an lvalue, when the operation is taken on.
template <class Result, class Handler>
handler_source offer(Handler&& handler) noexcept {
    using handler_type = std::remove_reference_t<Handler>;
    return {
        const_cast<std::remove_const_t<handler_type>*>(std::addressof(handler)),  // cast back below
        [](void* h, operation& op, boost::asio::any_io_executor const& io) {
            op.emplace<Result>(std::forward<Handler>(*static_cast<handler_type*>(h)), io);
        },
        [](void* h) -> boost::asio::cancellation_slot {
            return boost::asio::get_associated_cancellation_slot(*static_cast<handler_type*>(h));
        }};
}

/// Calls a handler with the error of an operation that was not taken on, as if by post.
template <class Value, class Handler>
void post_refusal(connection_core const& core, Handler&& handler, error_code why) {
    auto const executor = boost::asio::get_associated_executor(handler, executor_of(core));
    boost::asio::post(executor, boost::asio::append(std::forward<Handler>(handler), why, Value{}));
}

/// Starts one request for a completion token; `bad` is what is known to be wrong with it already.
template <class Result, class Value, class Token>
auto initiate(std::shared_ptr<connection_core> const& core, error_code bad, request const& what, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, Value)>(
        [](auto handler, std::shared_ptr<connection_core> const& on, error_code refusal, request const& wanted) {
            if (!refusal) {
                handler_source const source = offer<Result>(std::move(handler));
                refusal = start_operation(on, {&wanted, 1}, turn::wait, &source);
                if (!refusal) return;
            }
            post_refusal<Value>(*on, std::move(handler), refusal);
        },
        token,
        core,
        bad,
        what
    );
}

/// Starts one request if it can be posted at once.
template <class Result, class Handler>
error_code attempt(std::shared_ptr<connection_core> const& core, error_code bad, request const& what, Handler&& handler) {
    if (bad) return bad;
    handler_source const source = offer<Result>(std::forward<Handler>(handler));
    return start_operation(core, {&what, 1}, turn::now, &source);
}

/// The same, with nobody who waits for it.
inline error_code attempt(std::shared_ptr<connection_core> const& core, error_code bad, request const& what) {
    return bad ? bad : start_operation(core, {&what, 1}, turn::now, nullptr);
}

}  // namespace rcverbs::detail
