// data_operations.hpp — reads, writes, sends, receives and atomics: what a connection is there for.
//
// Rules for every asynchronous operation below:
//   * Its handler is called exactly once, never from inside the initiating call: on its associated executor, or else on the
//     connection's.
//   * The memory it names belongs to it until the handler runs, whatever happens in between: on failure, cancellation
//     and close the handler waits until the device has let go of the memory. So do a list of slices and a batch, which are
//     not copied.
//   * Sends, reads, writes and atomics are posted, and complete, in the order of the calls; receives among themselves, too. One
//     that finds the queue full waits for its turn; more than connection_options::waiting_operations_max do not.
//   * What can be checked is checked before anything is posted: such an error harms neither the connection nor the other
//     operations. An error of a posted operation breaks the connection: that is how reliable connections are.
//   * A cancelled operation that waits for its turn is taken back (total). One that is posted cannot be recalled: only
//     a terminal cancellation is honoured, and it breaks the connection, since that is the one way to end it.
//   * Operations that were posted when the connection broke complete with the error that describes why: see
//     connection::last_failure.
//   * Nothing is allocated for an operation if its handler fits detail::operation::handler_bytes_max.
//
// Operations may be started from any thread. Those that a handler starts, on the polling thread, are gathered and handed to the
// device as one list when the handlers of that round are done; others at once.
//
// The try_ twin of an operation takes it on only if it can be posted at once, else it answers errc::would_block; on any
// error nothing has been started and the handler has not been touched. Its handler is a plain completion handler with the
// signature of the async_ form. Without a handler nobody waits: such work asks the device for a completion only now and then,
// its memory is the caller's again when any later send, read, write or atomic of the connection has completed, and its
// failure shows in the connection's end.
#pragma once

#include <boost/asio/deferred.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <rcverbs/detail/start.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/keys.hpp>
#include <rcverbs/local_slice.hpp>
#include <rcverbs/received.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs {

/// The operations on data of one connection; connection derives from it.
///
/// Outstanding operations: as many as connection_options says.
class data_operations {
public:
    /// The same connection's operations, each of which starts only when all reads and atomics before it are complete: as
    /// `c.fenced().async_write(…)`. Needed where a write or send depends on what a read brings; the other orders a reliable
    /// connection keeps by itself: docs/reference/ordering.md. Source: ibv_post_send(3), IBV_SEND_FENCE.
    data_operations fenced() const { return data_operations{core_, true}; }

    // --- reading and writing the peer's memory -----------------------------------------------------------------

    /// Writes local bytes into memory that the peer has exposed. The peer's CPU is neither involved nor told.
    ///
    /// @param source  Bytes to read, 0 or more, gathered from one slice or several; what is longer than the device's message
    ///                limit, or has more slices than it gathers at once, goes out in pieces.
    /// @param target  Where to write: exactly as many bytes, exposed with remote_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Object lifetimes      The regions of `source`, and a list of slices, must live until the handler runs.
    /// @par Ordering              Posted, and completed, in the order of the calls.
    /// @par Cancellation          total while it waits, terminal once posted (breaks the connection).
    /// @par Errors                errc::out_of_range, errc::access_denied, errc::region_gone, errc::foreign_domain
    ///                            (nothing was posted, the connection goes on); errc::queue_full; errc::not_connected;
    ///                            wc_errc::remote_access (key or range that the peer does not grant),
    ///                            wc_errc::retry_exceeded (peer gone), wc_errc::flushed (an earlier operation failed),
    ///                            errc::stalled, asio::error::operation_aborted, and of what ended the connection meanwhile:
    ///                            errc::peer_disconnected, idle, port_down, address_gone, device_removed.
    template <class Token = boost::asio::deferred_t>
    auto async_write(local_slices source, remote_region target, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::transfer_request(detail::operation_kind::write, source, target),
            std::forward<Token>(token)
        );
    }
    /// async_write() without waiting for a turn, with or without a handler. One that fails without a handler ends the
    /// connection for that reason; what is cut off because the peer left is told to handlers alone, so have one for the last.
    ///
    /// @return errc::would_block, or an error of async_write()'s that is known before anything is posted.
    template <class... Handler>
    error_code try_write(local_slices source, remote_region target, Handler&&... handler) {
        return attempt<detail::bytes_result>(
            detail::transfer_request(detail::operation_kind::write, source, target),
            std::forward<Handler>(handler)...
        );
    }

    /// Writes as async_write() does and tells the peer: its oldest receive completes with `immediate`.
    ///
    /// @param source     Bytes to read, 0 or more.
    /// @param target     Where to write; may be default-constructed if `source` is empty.
    /// @param immediate  32 bits for the peer, in host byte order. 0 is a value like any other.
    /// @param token      Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Ordering              When the peer's receive completes, all bytes are there. If the write had to be cut, the
    ///                            peer is told once, with the last piece, whose size is the one it sees.
    /// @par Errors                Those of async_write(), and wc_errc::rnr_retry_exceeded (the peer posts no receives).
    template <class Token = boost::asio::deferred_t>
    auto async_write_with_immediate(
        local_slices source, remote_region target, std::uint32_t immediate, Token&& token = Token{}
    ) {
        return start<detail::bytes_result, std::size_t>(
            detail::transfer_request(detail::operation_kind::write_with_immediate, source, target, immediate),
            std::forward<Token>(token)
        );
    }
    /// async_write_with_immediate() without waiting for a turn, with or without a handler; see try_write().
    template <class... Handler>
    error_code try_write_with_immediate(
        local_slices source, remote_region target, std::uint32_t immediate, Handler&&... handler
    ) {
        return attempt<detail::bytes_result>(
            detail::transfer_request(detail::operation_kind::write_with_immediate, source, target, immediate),
            std::forward<Handler>(handler)...
        );
    }

    /// Reads memory that the peer has exposed into local memory. The peer's CPU is neither involved nor told.
    ///
    /// @param source  Where to read: exposed with remote_read.
    /// @param target  Where the bytes go: exactly as many, scattered to one slice or several of regions with local_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_read)`
    /// @par Ordering              Posted in the order of the calls; no more outstanding than limits().initiator_depth.
    /// @par Errors                Those of async_write(), and errc::read_depth_zero.
    template <class Token = boost::asio::deferred_t>
    auto async_read(remote_region source, local_slices target, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::transfer_request(detail::operation_kind::read, target, source),
            std::forward<Token>(token)
        );
    }
    /// async_read() without waiting for a turn; see try_write().
    template <class Handler>
    error_code try_read(remote_region source, local_slices target, Handler&& handler) {
        return attempt<detail::bytes_result>(
            detail::transfer_request(detail::operation_kind::read, target, source),
            std::forward<Handler>(handler)
        );
    }

    // --- atomics -------------------------------------------------------------------------------------------------

    /// Adds to an 8-byte cell of the peer's memory, atomically, and brings back what it held before.
    ///
    /// Atomic among the operations of the peer's device; whether also with the peer's CPU, the device decides. Source:
    /// ibv_query_device(3), atomic_cap.
    ///
    /// @param target  The cell: 8-byte aligned, exposed with remote_atomic.
    /// @param add     What to add, modulo 2^64. The cell is in the peer's host byte order.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Errors                Those of async_read(), errc::misaligned, errc::atomics_unsupported.
    template <class Token = boost::asio::deferred_t>
    auto async_fetch_add(remote_word target, std::uint64_t add, Token&& token = Token{}) {
        return start<detail::word_result, std::uint64_t>(
            detail::atomic_request(detail::operation_kind::fetch_add, target, add, 0),
            std::forward<Token>(token)
        );
    }
    /// async_fetch_add() without waiting for a turn; see try_write().
    template <class Handler>
    error_code try_fetch_add(remote_word target, std::uint64_t add, Handler&& handler) {
        return attempt<detail::word_result>(
            detail::atomic_request(detail::operation_kind::fetch_add, target, add, 0),
            std::forward<Handler>(handler)
        );
    }

    /// Replaces an 8-byte cell of the peer's memory by `desired` if it holds `expected`, atomically, and brings back
    /// what it held before: the swap took place if that is `expected`.
    ///
    /// @param target    The cell: 8-byte aligned, exposed with remote_atomic.
    /// @param expected  What to compare with.
    /// @param desired   What to store.
    /// @param token     Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Errors                Those of async_fetch_add().
    template <class Token = boost::asio::deferred_t>
    auto async_compare_swap(
        remote_word target, std::uint64_t expected, std::uint64_t desired, Token&& token = Token{}
    ) {
        return start<detail::word_result, std::uint64_t>(
            detail::atomic_request(detail::operation_kind::compare_swap, target, expected, desired),
            std::forward<Token>(token)
        );
    }
    /// async_compare_swap() without waiting for a turn; see try_write().
    template <class Handler>
    error_code try_compare_swap(remote_word target, std::uint64_t expected, std::uint64_t desired, Handler&& handler) {
        return attempt<detail::word_result>(
            detail::atomic_request(detail::operation_kind::compare_swap, target, expected, desired),
            std::forward<Handler>(handler)
        );
    }

    // --- messages ------------------------------------------------------------------------------------------------

    /// Sends a message: it goes into the buffer of the peer's oldest receive.
    ///
    /// @param message  0 to limits().message_bytes_max bytes in at most limits().send_segments_max slices: a message is not
    ///                 cut.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                As async_write(), errc::message_too_large, errc::too_many_segments,
    ///                            wc_errc::rnr_retry_exceeded (the peer posts no receives),
    ///                            wc_errc::remote_invalid_request or remote_operation (its buffer is too small).
    template <class Token = boost::asio::deferred_t>
    auto async_send(local_slices message, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::local_request(detail::operation_kind::send, message),
            std::forward<Token>(token)
        );
    }
    /// async_send() without waiting for a turn, with or without a handler; see try_write().
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
    template <class Token = boost::asio::deferred_t>
    auto async_send_with_immediate(local_slices message, std::uint32_t immediate, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::message_request(detail::operation_kind::send_with_immediate, message, immediate),
            std::forward<Token>(token)
        );
    }
    /// async_send_with_immediate() without waiting for a turn, with or without a handler; see try_write().
    template <class... Handler>
    error_code try_send_with_immediate(local_slices message, std::uint32_t immediate, Handler&&... handler) {
        return attempt<detail::bytes_result>(
            detail::message_request(detail::operation_kind::send_with_immediate, message, immediate),
            std::forward<Handler>(handler)...
        );
    }

    /// Sends a message and takes a key away from the receiver: its device no longer honours it.
    ///
    /// Only a key that this peer may invalidate will do: that of a memory window of type 2 bound to this queue pair, or of a
    /// region for fast registration. Any other breaks the connection. Source: ibv_post_send(3), ibv_bind_mw(3).
    ///
    /// @param message  As for async_send().
    /// @param key      The key that the peer gave out.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                Those of async_send(), errc::invalidate_unsupported.
    template <class Token = boost::asio::deferred_t>
    auto async_send_with_invalidate(local_slices message, remote_key key, Token&& token = Token{}) {
        return start<detail::bytes_result, std::size_t>(
            detail::invalidation_request(message, key), std::forward<Token>(token)
        );
    }
    /// async_send_with_invalidate() without waiting for a turn, with or without a handler; see try_write().
    template <class... Handler>
    error_code try_send_with_invalidate(local_slices message, remote_key key, Handler&&... handler) {
        return attempt<detail::bytes_result>(
            detail::invalidation_request(message, key), std::forward<Handler>(handler)...
        );
    }

    /// Receives a message, or the immediate data of a write.
    ///
    /// May be started as soon as the queue pair exists: after async_resolve(), or on a request not yet accepted.
    ///
    /// @param into   Where a sent message goes: at most limits().receive_segments_max slices of regions with local_write; may
    ///               be empty for immediate data alone.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, received)`
    /// @par Ordering              Receives are filled, and complete, in the order of the calls.
    /// @par Errors                wc_errc::local_length or local_qp_operation (the message is longer than `into`),
    ///                            errc::too_many_segments, errc::access_denied, errc::region_gone, errc::foreign_domain,
    ///                            errc::queue_full, errc::not_connected, errc::peer_disconnected, wc_errc::flushed,
    ///                            asio::error::operation_aborted.
    template <class Token = boost::asio::deferred_t>
    auto async_receive(local_slices into, Token&& token = Token{}) {
        return start<detail::arrival_result, received>(
            detail::local_request(detail::operation_kind::receive, into),
            std::forward<Token>(token)
        );
    }
    /// async_receive() without waiting for a turn; see try_write().
    template <class Handler>
    error_code try_receive(local_slices into, Handler&& handler) {
        return attempt<detail::arrival_result>(
            detail::local_request(detail::operation_kind::receive, into),
            std::forward<Handler>(handler)
        );
    }

    /// For the library's own use.
    std::shared_ptr<detail::connection_core> const& core() const noexcept { return core_; }

protected:
    data_operations() noexcept = default;
    explicit data_operations(std::shared_ptr<detail::connection_core> core, bool is_fenced = false) noexcept
        : core_{std::move(core)}, is_fenced_{is_fenced} {}

    // Only connection uses these; it takes care of what it had.
    std::shared_ptr<detail::connection_core> core_;

private:
    template <class Result, class Value, class Token>
    auto start(detail::request what, Token&& token) {
        what.is_fenced = is_fenced_;
        return detail::initiate<Result, Value>(core_, what, std::forward<Token>(token));
    }
    template <class Result, class... Handler>
    error_code attempt(detail::request what, Handler&&... handler) {
        what.is_fenced = is_fenced_;
        return detail::attempt<Result>(core_, what, std::forward<Handler>(handler)...);
    }

    bool is_fenced_ = false;
};

}  // namespace rcverbs
