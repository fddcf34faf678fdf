// data_operations.hpp — read, write, send, receive and atomics of a connection.
//
//     c.async_receive(inbox.slice(), [&](error_code ec, receive_result got) {
//         if (!ec) std::cout << got.size_bytes << " bytes\n";
//     });
//     c.async_send(request, [](error_code ec, std::size_t) {
//         if (ec) std::cerr << ec.message() << '\n';
//     });
//
// Rules for every asynchronous operation below:
//   * Its handler is called exactly once, on its associated executor or else on the connection's,
//     and never from inside the initiating call.
//   * The memory of an operation belongs to it until its handler runs. After a failure, a
//     cancellation or close(), the handler runs only when the device no longer uses the memory. The
//     same holds for a list of slices and for a batch, which are not copied.
//   * Sends, reads, writes and atomics are posted and complete in the order of the calls; so do
//     receives. An operation that finds its queue full waits; at most
//     queue_pair_options::waiting_operations_max operations wait.
//   * Everything that can be checked is checked before posting. Such an error harms neither the
//     connection nor other operations. A failed work request moves an RC queue pair to the error
//     state, and the connection ends.
//   * A cancelled operation that still waits has no effect (cancellation type total). A posted one
//     cannot be cancelled alone: only a terminal cancellation has an effect, and it ends the
//     connection.
//   * Operations that were posted when the connection failed complete with the error that describes
//     the cause: see connection::last_failure.
//   * An operation allocates nothing if its handler fits detail::operation::handler_bytes_max.
//
// Any thread may start operations. Operations that handlers start on the connection's executor are
// posted as one list at the end of the polling round; all others are posted at once.
//
// The try_ form of an operation starts it only if it can be posted at once, and otherwise returns
// errc::would_block. After any error nothing has been started and the handler is unchanged. The
// handler is a plain completion handler with the signature of the async_ form. Without a handler
// the work request is signaled only now and then. Its memory belongs to the caller again when a
// later send, read, write or atomic of the connection has completed, and its failure appears as the
// reason for the connection's end.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/detail/start.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

/// The operations on data of one connection; basic_connection derives from it.
///
/// Outstanding operations: up to the limits in connection_options.
template <class Executor = boost::asio::any_io_executor>
class basic_data_operations {
public:
    using executor_type = Executor;

    /// The connection's executor. REQUIRES: there is a connection.
    executor_type get_executor() const noexcept {
        return detail::recovered<Executor>(detail::executor_of(*core_));
    }

    /// The operations of this connection with a fence: each starts only when all reads and atomics
    /// before it have completed, as in `c.fenced().async_write(…)`. Needed if a write or send
    /// depends on the result of a read; a reliable connection keeps the other orders itself:
    /// docs/reference/ordering.md. Source: ibv_post_send(3), IBV_SEND_FENCE.
    basic_data_operations fenced() const { return basic_data_operations{core_, true}; }

    // --- reading and writing the peer's memory ---------------------------------------------------

    /// Writes local bytes into memory that the peer has exposed. The peer's program gets no
    /// completion.
    ///
    /// @param source  Bytes to read, 0 or more, gathered from one slice or several; split if
    ///                longer than the device's message limit, or with more slices than fit into a
    ///                work request.
    /// @param target  The peer's memory: exactly as many bytes, exposed with remote_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Object lifetimes      The regions of `source`, and a list of slices, must live until
    ///                            the handler runs.
    /// @par Ordering              Posted and completed in the order of the calls.
    /// @par Cancellation          total while it waits, terminal once posted (ends the
    ///                            connection).
    /// @par Errors                errc::out_of_range, errc::access_denied, errc::region_gone,
    ///                            errc::foreign_domain (nothing was posted, the connection
    ///                            continues); errc::queue_full; errc::not_connected;
    ///                            wc_errc::remote_access (key or range that the peer does not
    ///                            grant), wc_errc::retry_exceeded (peer gone), wc_errc::flushed (an
    ///                            earlier operation failed), errc::stalled,
    ///                            asio::error::operation_aborted, and the reasons for the end of
    ///                            the connection: errc::peer_disconnected, idle, port_down,
    ///                            address_gone, device_removed.
    template <class Token = detail::default_token_t<Executor>>
    auto async_write(local_slices source, remote_region target, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::transfer_request(detail::operation_kind::write, source, target),
            std::forward<Token>(token)
        );
    }
    /// Writes as async_write() if the operation can be posted at once, with or without a handler. A
    /// failed operation without a handler ends the connection with its error. Only operations with
    /// a handler report the peer's disconnect, so give one to the last.
    ///
    /// @return errc::would_block, or an error of async_write() that is detected before posting.
    template <class... Handler>
    error_code try_write(local_slices source, remote_region target, Handler&&... handler) {
        return attempt<detail::bytes_result>(
            detail::transfer_request(detail::operation_kind::write, source, target),
            std::forward<Handler>(handler)...
        );
    }

    /// Writes as async_write(), and completes the peer's oldest receive with `immediate`.
    ///
    /// @param source     Bytes to read, 0 or more.
    /// @param target     The peer's memory; may be default-constructed if `source` is empty.
    /// @param immediate  32 bits for the peer, in host byte order. 0 is a value like any other.
    /// @param token      Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Ordering              When the peer's receive completes, all bytes are there. If the
    ///                            write was split, the peer gets one completion, with the size of
    ///                            the last piece.
    /// @par Errors                Those of async_write(), and wc_errc::rnr_retry_exceeded (the peer
    ///                            posts no receives).
    template <class Token = detail::default_token_t<Executor>>
    auto async_write_with_immediate(
        local_slices source, remote_region target, std::uint32_t immediate, Token&& token = Token{}
    ) {
        return start<detail::bytes_result, std::size_t>(
            detail::transfer_request(
                detail::operation_kind::write_with_immediate, source, target, immediate
            ),
            std::forward<Token>(token)
        );
    }
    /// async_write_with_immediate() if it can be posted at once, with or without a handler;
    /// see try_write().
    template <class... Handler>
    error_code try_write_with_immediate(
        local_slices source, remote_region target, std::uint32_t immediate, Handler&&... handler
    ) {
        return attempt<detail::bytes_result>(
            detail::transfer_request(
                detail::operation_kind::write_with_immediate, source, target, immediate
            ),
            std::forward<Handler>(handler)...
        );
    }

    /// Reads memory that the peer has exposed into local memory. The peer's program gets no
    /// completion.
    ///
    /// @param source  The peer's memory, exposed with remote_read.
    /// @param target  Exactly as many bytes of local memory, one slice or several, of regions with
    ///                local_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_read)`
    /// @par Ordering              Posted in the order of the calls; no more outstanding than
    ///                            limits().initiator_depth.
    /// @par Errors                Those of async_write(), and errc::read_depth_zero.
    template <class Token = detail::default_token_t<Executor>>
    auto async_read(remote_region source, local_slices target, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::transfer_request(detail::operation_kind::read, target, source),
            std::forward<Token>(token)
        );
    }
    /// async_read() if it can be posted at once; see try_write().
    template <class Handler>
    error_code try_read(remote_region source, local_slices target, Handler&& handler) {
        return attempt<detail::bytes_result>(
            detail::transfer_request(detail::operation_kind::read, target, source),
            std::forward<Handler>(handler)
        );
    }

    // --- atomics ---------------------------------------------------------------------------------

    /// Adds to an 8-byte cell of the peer's memory, atomically, and returns the old value.
    ///
    /// Atomic among the operations of the peer's device; whether also with the peer's CPU depends
    /// on the device. Source: ibv_query_device(3), atomic_cap.
    ///
    /// @param target  The cell: 8-byte aligned, exposed with remote_atomic.
    /// @param add     The number to add, modulo 2^64. The cell is in the peer's host byte order.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Errors                Those of async_read(), errc::misaligned,
    ///                            errc::atomics_unsupported.
    template <class Token = detail::default_token_t<Executor>>
    auto async_fetch_add(remote_atomic target, std::uint64_t add, Token&& token = Token{}) {
        return start<detail::word_result, std::uint64_t>(
            detail::atomic_request(detail::operation_kind::fetch_add, target, add, 0),
            std::forward<Token>(token)
        );
    }
    /// async_fetch_add() if it can be posted at once; see try_write().
    template <class Handler>
    error_code try_fetch_add(remote_atomic target, std::uint64_t add, Handler&& handler) {
        return attempt<detail::word_result>(
            detail::atomic_request(detail::operation_kind::fetch_add, target, add, 0),
            std::forward<Handler>(handler)
        );
    }

    /// Replaces an 8-byte cell of the peer's memory by `desired` if it holds `expected`,
    /// atomically, and returns the old value: the swap took place if it equals `expected`.
    ///
    /// @param target    The cell: 8-byte aligned, exposed with remote_atomic.
    /// @param expected  The value to compare with.
    /// @param desired   The value to store.
    /// @param token     Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Errors                Those of async_fetch_add().
    template <class Token = detail::default_token_t<Executor>>
    auto async_compare_swap(
        remote_atomic target, std::uint64_t expected, std::uint64_t desired, Token&& token = Token{}
    ) {
        return start<detail::word_result, std::uint64_t>(
            detail::atomic_request(detail::operation_kind::compare_swap, target, expected, desired),
            std::forward<Token>(token)
        );
    }
    /// async_compare_swap() if it can be posted at once; see try_write().
    template <class Handler>
    error_code try_compare_swap(
        remote_atomic target, std::uint64_t expected, std::uint64_t desired, Handler&& handler
    ) {
        return attempt<detail::word_result>(
            detail::atomic_request(detail::operation_kind::compare_swap, target, expected, desired),
            std::forward<Handler>(handler)
        );
    }

    // --- messages --------------------------------------------------------------------------------

    /// Sends a message into the buffer of the peer's oldest receive.
    ///
    /// @param message  0 to limits().message_bytes_max bytes in at most limits().send_segments_max
    ///                 slices; a message is not split.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                As async_write(), errc::message_too_large,
    ///                            errc::too_many_segments, wc_errc::rnr_retry_exceeded (the peer
    ///                            posts no receives), wc_errc::remote_invalid_request or
    ///                            remote_operation (its buffer is too small).
    template <class Token = detail::default_token_t<Executor>>
    auto async_send(local_slices message, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::local_request(detail::operation_kind::send, message), std::forward<Token>(token)
        );
    }
    /// async_send() if it can be posted at once, with or without a handler; see try_write().
    template <class... Handler>
    error_code try_send(local_slices message, Handler&&... handler) {
        return attempt<detail::bytes_result>(
            detail::local_request(detail::operation_kind::send, message),
            std::forward<Handler>(handler)...
        );
    }

    /// Sends a message and 32 bits of immediate data.
    ///
    /// @param message    As for async_send().
    /// @param immediate  In host byte order.
    /// @param token      Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                Those of async_send().
    template <class Token = detail::default_token_t<Executor>>
    auto async_send_with_immediate(
        local_slices message, std::uint32_t immediate, Token&& token = Token{}
    ) {
        return start<detail::bytes_result, std::size_t>(
            detail::message_request(
                detail::operation_kind::send_with_immediate, message, immediate
            ),
            std::forward<Token>(token)
        );
    }
    /// async_send_with_immediate() if it can be posted at once, with or without a handler;
    /// see try_write().
    template <class... Handler>
    error_code try_send_with_immediate(
        local_slices message, std::uint32_t immediate, Handler&&... handler
    ) {
        return attempt<detail::bytes_result>(
            detail::message_request(
                detail::operation_kind::send_with_immediate, message, immediate
            ),
            std::forward<Handler>(handler)...
        );
    }

    /// Sends a message and invalidates a key of the receiver.
    ///
    /// Valid for keys that this peer may invalidate: of a memory window of type 2 bound to this
    /// queue pair, or of a region for fast registration. Any other key ends the connection.
    /// Source: ibv_post_send(3), ibv_bind_mw(3).
    ///
    /// @param message  As for async_send().
    /// @param key      The peer's key.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                Those of async_send(), errc::invalidate_unsupported.
    template <class Token = detail::default_token_t<Executor>>
    auto async_send_with_invalidate(local_slices message, remote_key key, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::invalidation_request(message, key), std::forward<Token>(token)
        );
    }
    /// async_send_with_invalidate() if it can be posted at once, with or without a handler;
    /// see try_write().
    template <class... Handler>
    error_code try_send_with_invalidate(
        local_slices message, remote_key key, Handler&&... handler
    ) {
        return attempt<detail::bytes_result>(
            detail::invalidation_request(message, key), std::forward<Handler>(handler)...
        );
    }

    /// Receives a message, or the immediate data of a write.
    ///
    /// May be started as soon as the queue pair exists: after async_resolve(), or before
    /// async_accept().
    ///
    /// @param into   Memory for a sent message: at most limits().receive_segments_max slices of
    ///               regions with local_write; may be empty for immediate data alone.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, receive_result)`
    /// @par Ordering              Receives are filled, and complete, in the order of the calls.
    /// @par Cancellation          total while it waits, terminal once posted. Most receives are
    ///                            posted, and cancelling a posted one ends the connection, because
    ///                            only that frees the memory: `receive || timer` ends the
    ///                            connection when the timer wins. To wait for a message for a
    ///                            limited time, let the receive's handler send the message to a
    ///                            channel (boost::asio::experimental::channel), and wait for that
    ///                            or a timer (both as_tuple: `||` waits for the first success).
    /// @par Errors                wc_errc::local_length or local_qp_operation (the message is
    ///                            longer than `into`), errc::too_many_segments,
    ///                            errc::access_denied, errc::region_gone, errc::foreign_domain,
    ///                            errc::queue_full, errc::not_connected, errc::peer_disconnected,
    ///                            wc_errc::flushed, asio::error::operation_aborted.
    template <class Token = detail::default_token_t<Executor>>
    auto async_receive(local_slices into, Token&& token = Token{}) {
        return start<detail::arrival_result, receive_result>(
            detail::local_request(detail::operation_kind::receive, into), std::forward<Token>(token)
        );
    }
    /// async_receive() if it can be posted at once; see try_write().
    template <class Handler>
    error_code try_receive(local_slices into, Handler&& handler) {
        return attempt<detail::arrival_result>(
            detail::local_request(detail::operation_kind::receive, into),
            std::forward<Handler>(handler)
        );
    }

protected:
    basic_data_operations() noexcept = default;
    explicit basic_data_operations(
        std::shared_ptr<detail::connection_core> core, bool is_fenced = false
    ) noexcept
        : core_{std::move(core)},
          is_fenced_{is_fenced} {}

    std::shared_ptr<detail::connection_core> core_;

private:
    friend struct detail::access;

    template <class Result, class Value, class Token>
    auto start(detail::work_request what, Token&& token) {
        what.is_fenced = is_fenced_;
        return detail::initiate<Result, Value, Executor>(core_, what, std::forward<Token>(token));
    }
    template <class Result, class... Handler>
    error_code attempt(detail::work_request what, Handler&&... handler) {
        what.is_fenced = is_fenced_;
        return detail::attempt<Result>(core_, what, std::forward<Handler>(handler)...);
    }

    bool is_fenced_ = false;
};

/// With executors of any type.
using data_operations = basic_data_operations<>;

}  // namespace rcverbs
