// start.hpp — the functions through which the templates of the public headers start operations of
// the compiled library. Internal.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/async_result.hpp>

#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include <rcverbs/detail/access.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/operation.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs::detail {

class connection_core;

/// The functions of a handler whose type the compiled library does not know.
struct handler_actions {
    /// Moves the handler into the operation; called at most once, without a lock.
    void (*place)(void* handler, operation& op, boost::asio::any_io_executor const& io);
    /// Returns its cancellation slot. Null if it has none.
    boost::asio::cancellation_slot (*slot)(void* handler);
    /// It has neither a cancellation slot nor an executor of its own.
    bool is_plain;

    /// For an operation without a handler.
    static handler_actions const nobody;
};

inline constexpr handler_actions handler_actions::nobody{
    [](void*, operation&, boost::asio::any_io_executor const&) {}, nullptr, true};

/// A handler, offered to an operation.
struct handler_source {
    void* handler = nullptr;
    handler_actions const* actions = &handler_actions::nobody;
};

/// Whether an operation may be queued if it cannot be posted at once.
enum class turn { wait, now };

// The entry points of the compiled library. One request is copied, several are referred to until
// the operation is complete. Returns errc{} (0) or the reason for a refusal; after a refusal
// `source` is unchanged.
RCVERBS_EXPORT errc start_operation(
    std::shared_ptr<connection_core> const& core,
    std::span<work_request const> what,
    turn when,
    handler_source source
);
/// The code of a refusal. For an operation that is started after the connection has ended, the
/// reason of the end.
RCVERBS_EXPORT error_code refusal_code(connection_core const& core, errc why) noexcept;
/// Calls the handler of a refused operation with refusal_code(), as if by post. `source` is used up.
RCVERBS_EXPORT void post_refusal(
    connection_core const& core, handler_source const& source, errc why
);

/// Starts an operation that owns its memory. Refusals are the handler's; `source` is used up.
RCVERBS_EXPORT void start_leased(
    std::shared_ptr<connection_core> const& core,
    work_request const& what,
    memory_lease memory,
    handler_source source
);

/// Checks the two sides of a transfer; errc{} if they are valid.
inline errc check(
    slice_list const& local, remote_region const& remote, access_flags needed
) noexcept {
    if (local.size() != remote.size()) return errc::out_of_range;
    return allows(remote.rights(), needed) ? errc{} : errc::access_denied;
}

/// Checks the target of an atomic; errc{} if it is valid.
inline errc check(remote_atomic const& word) noexcept {
    if (!allows(word.rights, access_flags::remote_atomic)) return errc::access_denied;
    return word.address % sizeof(std::uint64_t) == 0 ? errc{} : errc::misaligned;
}

inline work_request local_request(operation_kind kind, slice_list const& local) noexcept {
    return {kind, local};
}

/// A message, which has no remote region to check.
inline work_request message_request(
    operation_kind kind, slice_list const& local, std::uint32_t immediate
) noexcept {
    work_request what = local_request(kind, local);
    what.immediate = immediate;
    return what;
}

inline work_request transfer_request(
    operation_kind kind,
    slice_list const& local,
    remote_region const& remote,
    std::uint32_t immediate = 0
) noexcept {
    work_request what = local_request(kind, local);
    what.remote_address = remote.address();
    what.remote = remote.key();
    what.immediate = immediate;
    // An empty write with immediate data only notifies the peer and needs no remote region.
    bool const is_notice = kind == operation_kind::write_with_immediate;
    if (!is_notice || local.size() > 0 || remote.size() > 0) {
        access_flags const needed =
            kind == operation_kind::read ? access_flags::remote_read : access_flags::remote_write;
        what.problem = check(local, remote, needed);
    }
    return what;
}

inline work_request atomic_request(
    operation_kind kind,
    remote_atomic const& word,
    std::uint64_t operand,
    std::uint64_t swap,
    slice_list const& result = {}
) noexcept {
    work_request what = local_request(kind, result);
    what.remote_address = word.address;
    what.remote = word.key;
    what.operand = operand;
    what.swap = swap;
    what.problem = check(word);
    if (result.count() > 0 && result.size() != sizeof(std::uint64_t))
        what.problem = errc::out_of_range;
    return what;
}

inline work_request invalidation_request(slice_list const& message, remote_key key) noexcept {
    work_request what = local_request(operation_kind::send_with_invalidate, message);
    what.remote = key;
    return what;
}

template <class Result, class Handler>
struct actions_for {
    using handler_type = std::remove_reference_t<Handler>;

    static void place(void* h, operation& op, boost::asio::any_io_executor const& io) {
        op.emplace<Result>(std::forward<Handler>(*static_cast<handler_type*>(h)), io);
    }
    static boost::asio::cancellation_slot slot(void* h) {
        return boost::asio::get_associated_cancellation_slot(*static_cast<handler_type*>(h));
    }
    static constexpr bool has_slot =
        operation::has_cancellation_slot<std::remove_const_t<handler_type>>;
    static constexpr handler_actions all{
        place,
        has_slot ? &slot : nullptr,
        !has_slot && operation::has_no_executor<std::remove_const_t<handler_type>>};
};

/// Offers a handler to an operation. When the operation is accepted, the handler is moved, or
/// copied if it is an lvalue.
template <class Result, class Handler>
handler_source offer(Handler&& handler) noexcept {
    // Cast back by the actions.
    void* const address = const_cast<std::remove_cvref_t<Handler>*>(std::addressof(handler));
    return {address, &actions_for<Result, Handler>::all};
}

/// The completion signature of an operation with that result.
template <class Result>
struct completion_of {
    using type = void(error_code, Result);
};
template <>
struct completion_of<void> {
    using type = void(error_code);
};

/// Starts an operation value for a completion token.
template <class Executor, class Op, class Token>
auto initiate(std::shared_ptr<connection_core> const& core, Op const& operation, Token&& token) {
    return initiate_checked<Token, typename completion_of<typename Op::result_type>::type>(
        initiation_of<Executor>(
            core.get(),
            [](auto&& handler,
               std::shared_ptr<connection_core> const& on,
               work_request const& wanted) {
                using type = decltype(handler);
                using reader = decltype(access::reader_of<Op>());
                handler_source const source = offer<reader>(std::forward<type>(handler));
                errc const refusal = start_operation(on, {&wanted, 1}, turn::wait, source);
                if (refusal != errc{}) post_refusal(*on, source, refusal);
            }
        ),
        token,
        core,
        access::request_of(operation)
    );
}

/// The completion signature of an operation that owns its memory.
template <class Reader, class Result>
struct leased_completion_of {
    using type = void(error_code, Result, memory_lease);
};
template <class Result>
struct leased_completion_of<arrival_result, Result> {
    using type = void(error_code, leased_receive_result);
};

/// The same for an operation that owns its memory.
template <class Executor, class Leased, class Token>
auto initiate_leased(
    std::shared_ptr<connection_core> const& core, Leased operation, Token&& token
) {
    using reader = decltype(access::reader_of<Leased>());
    return initiate_checked<
        Token,
        typename leased_completion_of<reader, typename Leased::result_type>::type>(
        initiation_of<Executor>(
            core.get(),
            [](auto&& handler, std::shared_ptr<connection_core> const& on, Leased wanted) {
                using type = decltype(handler);
                start_leased(
                    on,
                    access::request_of(wanted),
                    access::memory_of(wanted),
                    offer<result_with_memory<reader>>(std::forward<type>(handler))
                );
            }
        ),
        token,
        core,
        std::move(operation)
    );
}

/// The result of a `try_` call.
template <class Owner>
error_code to_code(Owner const& owner, errc e) noexcept {
    return e == errc{} ? error_code{} : refusal_code(owner, e);
}

}  // namespace rcverbs::detail
