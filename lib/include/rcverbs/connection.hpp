// connection.hpp — a reliable RDMA connection (RC) to one peer.
//
//     connection c{io};
//     co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
//     co_await c.async_write(mine.slice(), theirs, use_awaitable);
//     co_await c.async_read(theirs, mine.slice(), use_awaitable);
//     co_await c.async_disconnect(use_awaitable);
//
// A connection owns a queue pair and its queues. It adds nothing to the wire, so the peer may be
// any RC program that uses the RDMA connection manager. connection_options fixes all sizes. A
// connection is made idle, or from an acceptor's request; it connects once, is used, and ends by a
// disconnect, by close(), or by a failure.
//
// Executor. The executor that a connection is made with polls its completion queue, runs its
// timers, handles the events of the connection manager, and calls every handler without an
// associated executor, one at a time. Nothing happens unless a thread runs that executor, and its
// run() does not return before the connection has ended. A handler that is bound to another
// executor is dispatched there; handlers of one polling round for the same executor are dispatched
// together.
//
// Threads. Any thread may start operations, and two calls on one connection may overlap, except
// construction, moves and destruction.
//
// A receive may complete before the handler of the accept or connect has run: the peer may send as
// soon as its own side is established. Start nothing on a connection whose execution context has
// been destroyed; builds without NDEBUG assert it. If a context is destroyed while its handlers
// wait for a connection on a polling thread, that connection ends, as if it had been made with the
// context.
//
// op.hpp has the operations on data and their rules. Every handler, also of connecting
// and disconnecting, is called exactly once, and never from inside the call that starts the
// operation.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/deferred.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/connection_base.hpp>
#include <rcverbs/connection_request.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/op.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/receive_result.hpp>
#include <rcverbs/remote_region.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

/// A reliable connection to one peer.
///
/// Outstanding operations: one connect or accept, one disconnect, one wait; data operations as many
/// as the options allow.
template <class Executor = boost::asio::any_io_executor>
class basic_connection : public connection_base {
public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_connection<Other>;
    };

    /// Makes no connection; only assignment and destruction are useful.
    basic_connection() noexcept = default;
    /// Makes an idle connection: `connection c{io};`, `connection c{own_thread};`.
    ///
    /// @param where    The executor, or the thread, that runs it.
    /// @param options  Sizes, deadlines and more.
    /// @throws boost::system::system_error: errc::invalid_option; std::system_error if a thread is
    ///                                      asked for and cannot be started.
    explicit basic_connection(runs_on<Executor> where, connection_options options = {})
        : connection_base{detail::access::place_of(where), std::move(options)},
          executor_{where.get_executor()} {}
    /// Makes a connection of a peer's request, with its queue pair: post receives, then call
    /// async_accept() or reject(). A failure rejects the request.
    ///
    /// @param where    The executor, or the thread, that runs it.
    /// @param request  From acceptor::async_get_request().
    /// @param options  Sizes, deadlines and more.
    /// @throws boost::system::system_error: errc::invalid_option, errc::peer_disconnected (it has
    ///         withdrawn its request), errc::timed_out (answer_timeout has passed), errno;
    ///         std::system_error if a thread is asked for and cannot be started.
    basic_connection(
        runs_on<Executor> where, connection_request request, connection_options options = {}
    )
        : connection_base{detail::access::place_of(where), std::move(request), std::move(options)},
          executor_{where.get_executor()} {}
    /// The same; on failure is_valid() is false.
    ///
    /// @param where    As above.
    /// @param request  As above.
    /// @param options  As above.
    /// @param ec       The errors above.
    /// @throws std::system_error if a thread is asked for and cannot be started.
    basic_connection(
        runs_on<Executor> where,
        connection_request request,
        connection_options options,
        error_code& ec
    )
        : connection_base{detail::access::place_of(where), std::move(request), std::move(options), ec},
          executor_{where.get_executor()} {}
    /// Converts a connection with another executor type.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>)
        basic_connection(basic_connection<Other>&& other)
        : connection_base{std::move(other.core_)},
          executor_{detail::converted<Executor>(other.get_executor())} {}

    basic_connection(basic_connection&&) noexcept = default;
    basic_connection& operator=(basic_connection&&) noexcept = default;
    /// Closes. Outstanding operations complete with asio::error::operation_aborted, in the
    /// background.
    ~basic_connection() = default;

    // --- connecting ------------------------------------------------------------------------------

    /// Resolves a peer's address and route and makes the queue pair, without connecting.
    ///
    /// Afterwards domain() is known and receives can be posted, before the peer can send.
    ///
    /// @param peer   The endpoint of an acceptor or another RDMA program.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                errc::timed_out, errc::no_rdma_device, errc::already_connected,
    ///                            cm_errc::address_error, cm_errc::route_error, errno;
    ///                            last_failure() has the details.
    template <class Token = detail::default_token_t<Executor>>
    auto async_resolve(endpoint const& peer, Token&& token = Token{}) {
        return control(
            [peer](detail::connection_core& core, detail::control_handler handler) {
                start_resolve(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Connects to the peer that async_resolve() found.
    ///
    /// @param private_data  At most 56 bytes, copied at once; the peer sees them padded with zeros
    ///                      to 56.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Preconditions         async_resolve() has completed without error.
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                errc::timed_out, errc::private_data_too_large,
    ///                            errc::not_connected (not resolved),
    ///                            cm_errc::rejected_no_listener, cm_errc::rejected_by_peer and
    ///                            other rejections (private_data() then has the peer's),
    ///                            cm_errc::unreachable, errno.
    template <class Token = detail::default_token_t<Executor>>
    auto async_establish(std::span<std::byte const> private_data, Token&& token = Token{}) {
        return control(
            [data = std::vector<std::byte>(private_data.begin(), private_data.end())](
                detail::connection_core& core, detail::control_handler handler
            ) { start_establish(core, data, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Resolves and connects: async_resolve() and async_establish() without private data.
    ///
    /// @param peer   The endpoint to connect to.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                Those of the two.
    template <class Token = detail::default_token_t<Executor>>
    auto async_connect(endpoint const& peer, Token&& token = Token{}) {
        return control(
            [peer](detail::connection_core& core, detail::control_handler handler) {
                start_connect(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Accepts the peer's request.
    ///
    /// Receives that were posted before this call are posted before the peer can send.
    ///
    /// @param private_data  At most 196 bytes, copied at once.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                errc::timed_out, errc::private_data_too_large,
    ///                            errc::peer_disconnected, errno.
    template <class Token = detail::default_token_t<Executor>>
    auto async_accept(std::span<std::byte const> private_data, Token&& token = Token{}) {
        return control(
            [data = std::vector<std::byte>(private_data.begin(), private_data.end())](
                detail::connection_core& core, detail::control_handler handler
            ) { start_accept(core, data, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    // --- ending ----------------------------------------------------------------------------------

    /// Disconnects from the peer, and waits for its answer and for the completion of every posted
    /// operation.
    ///
    /// Outstanding operations are flushed: wait first for those that matter.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: as close().
    /// @par Errors                errc::timed_out (the peer did not answer; the connection is
    ///                            closed all the same), errc::not_connected, errc::not_drained,
    ///                            asio::error::operation_aborted (closed meanwhile).
    template <class Token = detail::default_token_t<Executor>>
    auto async_disconnect(Token&& token = Token{}) {
        return control(
            [](detail::connection_core& core, detail::control_handler handler) {
                start_disconnect(core, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Waits until the connection has ended, on either side, and every posted operation has
    /// completed.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`; no error after a disconnect of either side,
    ///                            else the cause.
    /// @par Cancellation          total.
    template <class Token = detail::default_token_t<Executor>>
    auto async_wait_disconnected(Token&& token = Token{}) {
        return control(
            [](detail::connection_core& core, detail::control_handler handler) {
                start_wait(core, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    // --- operations on data ----------------------------------------------------------------------

    /// Starts an operation.
    ///
    /// @param what   One of rcverbs::op, such as op::write(source, target).fenced(). Copied; the
    ///               memory that it names must live until the handler runs.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, Op::result_type)`
    /// @par Ordering              Sends, reads, writes and atomics are posted and complete in the
    ///                            order of the calls; so do receives.
    /// @par Cancellation          total while it waits for a place in its queue. Once posted, only
    ///                            terminal has an effect: it ends the connection.
    /// @par Errors                Those of the function named after the operation, such as
    ///                            async_write() of op::write().
    template <detail::operation_value Op, class Token = detail::default_token_t<Executor>>
    auto async_start(Op const& what, Token&& token = Token{}) {
        return detail::initiate<Executor>(core_, what, std::forward<Token>(token));
    }

    /// Starts an operation that owns its memory, such as op::write(std::move(slot), 4096, theirs).
    ///
    /// @param what   One of rcverbs::op, made with an rvalue of a memory_lease.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, result_type, memory_lease)`; a receive as
    ///                            async_receive(). The handler gets the memory back, after an error
    ///                            too, except after a cancellation.
    /// @par Cancellation          total, partial and terminal: completes at once with
    ///                            operation_aborted, and the connection goes on. What was posted may
    ///                            still be carried out, before all operations that are started
    ///                            later; then the memory is released.
    /// @par Errors                Those of the operation on borrowed memory; errc::out_of_range
    ///                            (the memory is too small).
    template <class Op, class Token = detail::default_token_t<Executor>>
    auto async_start(op::leased<Op> what, Token&& token = Token{}) {
        return detail::initiate_leased<Executor>(
            core_, std::move(what), std::forward<Token>(token)
        );
    }

    using connection_base::try_start;
    /// Starts an operation if it can be posted at once.
    ///
    /// @param what     As for async_start().
    /// @param handler  A plain completion handler with the signature of async_start().
    /// @return errc::would_block (always for what needs more work requests than the queue has
    ///         places), or an error of async_start() that is detected before posting.
    ///         After any error nothing has been started, and the handler is unchanged. If the
    ///         connection ends between the check and the start: no error, and the handler gets the
    ///         reason.
    template <detail::operation_value Op, class Handler>
    [[nodiscard]] error_code try_start(Op const& what, Handler&& handler) {
        using reader = decltype(detail::access::reader_of<Op>());
        return detail::to_code(
            *core_,
            detail::start_operation(
                core_,
                {&detail::access::request_of(what), 1},
                detail::turn::now,
                detail::offer<reader>(std::forward<Handler>(handler))
            )
        );
    }

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
    /// @par Object lifetimes      The regions of `source` must live until the handler runs.
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
    ///                            the connection: errc::peer_disconnected, peer_violation, idle,
    ///                            port_down, address_gone, device_removed, queue_pair_failed,
    ///                            completion_queue_broken; and errc::not_drained: do not free the
    ///                            memory.
    template <class Token = detail::default_token_t<Executor>>
    auto async_write(const_slices const& source, remote_region target, Token&& token = Token{}) {
        return async_start(op::write(source, target), std::forward<Token>(token));
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
    /// @par Errors                Those of async_write(), wc_errc::rnr_retry_exceeded (the peer
    ///                            posts no receives), errc::immediate_unsupported.
    template <class Token = detail::default_token_t<Executor>>
    auto async_write_with_immediate(
        const_slices const& source,
        remote_region target,
        std::uint32_t immediate,
        Token&& token = Token{}
    ) {
        return async_start(
            op::write_with_immediate(source, target, immediate), std::forward<Token>(token)
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
    auto async_read(remote_region source, mutable_slices const& target, Token&& token = Token{}) {
        return async_start(op::read(source, target), std::forward<Token>(token));
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
        return async_start(op::fetch_add(target, add), std::forward<Token>(token));
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
        return async_start(op::compare_swap(target, expected, desired), std::forward<Token>(token));
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
    auto async_send(const_slices const& message, Token&& token = Token{}) {
        return async_start(op::send(message), std::forward<Token>(token));
    }

    /// Sends a message and 32 bits of immediate data.
    ///
    /// @param message    As for async_send().
    /// @param immediate  In host byte order.
    /// @param token      Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                Those of async_send(), errc::immediate_unsupported.
    template <class Token = detail::default_token_t<Executor>>
    auto async_send_with_immediate(
        const_slices const& message, std::uint32_t immediate, Token&& token = Token{}
    ) {
        return async_start(op::send_with_immediate(message, immediate), std::forward<Token>(token));
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
    auto async_send_with_invalidate(
        const_slices const& message, remote_key key, Token&& token = Token{}
    ) {
        return async_start(op::send_with_invalidate(message, key), std::forward<Token>(token));
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
    /// @par Cancellation          total while it waits, terminal once posted.
    ///                            **Cancelling a posted receive ends the connection**, because only
    ///                            that frees the memory: `receive || timer` ends it when the timer
    ///                            wins. Use the form below to wait for a limited time.
    /// @par Errors                wc_errc::local_length or local_qp_operation (the message is
    ///                            longer than `into`), errc::receives_mixed (this connection has
    ///                            received into memory that receives own), errc::receives_are_shared,
    ///                            errc::too_many_segments,
    ///                            errc::access_denied, errc::region_gone, errc::foreign_domain,
    ///                            errc::queue_full, errc::not_connected, errc::peer_disconnected,
    ///                            wc_errc::flushed, asio::error::operation_aborted.
    template <class Token = detail::default_token_t<Executor>>
    auto async_receive(mutable_slices const& into, Token&& token = Token{}) {
        return async_start(op::receive(into), std::forward<Token>(token));
    }

    /// Receives a message, or the immediate data of a write, into memory that the receive owns, such
    /// as a slot of a pool. `receive || timer` and cancel_after() are safe.
    ///
    /// A cancelled receive stays posted, and the next one takes its place: its own memory is given
    /// back at once. A message that arrives while no handler waits is kept for the next receive. So
    /// no message is lost, and the connection holds no more memory than handlers have waited at a
    /// time.
    ///
    /// @param into   An rvalue of a memory_lease, or of what converts to it. As long as the longest
    ///               message of the peer; of a region with local_write.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, leased_receive_result)`
    /// @par Ordering              Handlers get messages in the order of the calls.
    /// @par Cancellation          total, partial and terminal: completes at once with
    ///                            operation_aborted, and the connection goes on.
    /// @par Errors                Those of the form on borrowed memory; errc::receives_mixed (this
    ///                            connection has received into borrowed memory).
    template <leasable Into, class Token = detail::default_token_t<Executor>>
    auto async_receive(Into&& into, Token&& token = Token{}) {
        return async_start(op::receive(std::forward<Into>(into)), std::forward<Token>(token));
    }

    // --- observers -------------------------------------------------------------------------------

    /// The executor that it was made with: handlers run there by default, one at a time.
    executor_type get_executor() const noexcept { return executor_.get(); }

private:
    template <class>
    friend class basic_connection;
    friend struct detail::access;

    // Shares a connection that the library made.
    basic_connection(Executor executor, std::shared_ptr<detail::connection_core> core)
        : connection_base{std::move(core)},
          executor_{std::move(executor)} {}

    template <class Start, class Token>
    auto control(Start start, Token&& token) {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                get_executor(),
                [](auto handler,
                   std::shared_ptr<detail::connection_core> const& core,
                   Start const& begin) {
                    begin(*core, detail::control_handler{std::move(handler)});
                },
                detail::failure_of{this}},
            token,
            core_,
            std::move(start)
        );
    }

    detail::stored_executor<Executor> executor_;
};

/// With executors of any type.
using connection = basic_connection<>;

}  // namespace rcverbs
