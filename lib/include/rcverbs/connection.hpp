// connection.hpp — one reliable-connected RDMA connection.
//
// A connection owns a queue pair with its queues and adds nothing to the wire: it talks to any RC peer that uses the
// RDMA connection manager. All its sizes are fixed by its connection_options. Its life: made idle (or by an acceptor),
// connected, used, then disconnected or closed; it connects once.
//
// Threads. Its handlers run on get_executor() unless they are bound elsewhere. Operations may be started from any
// thread; two calls on the same connection may overlap, except construction, moves and destruction. The io_context it was
// made with must be run as long as connections exist: connecting, disconnecting and deadlines happen there. It does not
// run out of work, so its run() does not return, before each connection made with it has ended: disconnected, closed, failed
// or destroyed.
//
// Rules for every asynchronous operation below:
//   * Its handler is called exactly once, never from inside the initiating call.
//   * The memory it names belongs to it until the handler runs, whatever happens in between: on failure, cancellation
//     and close the handler waits until the device has let go of the memory.
//   * A cancelled operation that waits for its turn is taken back (total). One that is posted cannot be recalled: only
//     a terminal cancellation is honoured, and it breaks the connection, since that is the one way to end it.
//   * Operations that were posted when the connection broke complete with the error that describes why: see last_failure.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/append.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/close_reason.hpp>
#include <rcverbs/detail/operation.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/received.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs {

namespace detail {

class connection_core;

using control_handler = boost::asio::any_completion_handler<void(error_code)>;

/// Puts the caller's handler into the operation it is given; called at most once, under the connection's lock.
struct handler_source {
    void* context;
    void (*place)(void* context, operation& op, boost::asio::any_io_executor const& io);
    boost::asio::cancellation_slot (*slot)(void* context);
};

// The doors from the templates below into the compiled library. An operation that is refused takes nothing of `source`.
RCVERBS_EXPORT error_code start_operation(
    std::shared_ptr<connection_core> const& core, request const& what, handler_source source
);
RCVERBS_EXPORT boost::asio::any_io_executor executor_of(connection_core const& core) noexcept;

/// Which check made before posting an operation failed, if any.
RCVERBS_EXPORT error_code check(local_slice const& local, remote_region const& remote, access_flags needed) noexcept;
RCVERBS_EXPORT error_code check_word(remote_word const& word, local_slice const& result) noexcept;

}  // namespace detail

/// A reliable connection to one peer.
///
/// Outstanding operations: one connect or accept, one disconnect, one wait; data operations as many as the options say.
class RCVERBS_EXPORT connection {
public:
    using executor_type = boost::asio::any_io_executor;

    /// No connection; only assignment and destruction are useful.
    connection() noexcept = default;
    /// An idle connection of `context`, ready to connect.
    ///
    /// @throws boost::system::system_error: errc::invalid_option; errno if no thread can be started.
    explicit connection(boost::asio::io_context& context, connection_options options = {});
    /// Takes part in a connection that the library made.
    explicit connection(std::shared_ptr<detail::connection_core> core) noexcept : core_{std::move(core)} {}

    connection(connection&&) noexcept = default;
    connection& operator=(connection&& other) noexcept;
    /// Closes; what was outstanding completes with asio::error::operation_aborted, in the background.
    ~connection();

    // --- connecting ------------------------------------------------------------------------------------------

    /// Finds the way to a peer and makes the queue pair, without connecting yet.
    ///
    /// Afterwards domain() is known and receives can be posted, before the peer can send anything.
    ///
    /// @param peer   Where an acceptor or another RDMA program listens.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                errc::timed_out, errc::no_rdma_device, errc::already_connected,
    ///                            cm_errc::address_error, cm_errc::route_error, errno; last_failure() has the details.
    template <class Token = boost::asio::deferred_t>
    auto async_resolve(endpoint peer, Token&& token = Token{}) {
        return control(
            [peer](detail::connection_core& core, detail::control_handler handler) {
                start_resolve(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Connects to the peer that async_resolve() found.
    ///
    /// @param private_data  At most 56 bytes, copied at once; the peer sees them padded with zeros to 56.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Preconditions         async_resolve() has completed without error.
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                errc::timed_out, errc::private_data_too_large, errc::not_connected (not resolved),
    ///                            cm_errc::rejected_no_listener, cm_errc::rejected_by_peer and other rejections
    ///                            (private_data() then has what the peer sent along), cm_errc::unreachable, errno.
    template <class Token = boost::asio::deferred_t>
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
    /// @param peer   Where to connect to.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                Those of the two.
    template <class Token = boost::asio::deferred_t>
    auto async_connect(endpoint peer, Token&& token = Token{}) {
        return control(
            [peer](detail::connection_core& core, detail::control_handler handler) {
                start_connect(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Accepts the request that acceptor::async_get_request() delivered.
    ///
    /// Receives posted before this call are there before the peer can send.
    ///
    /// @param private_data  At most 196 bytes, copied at once.
    /// @param token         Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes the connection.
    /// @par Errors                errc::timed_out, errc::private_data_too_large, errc::peer_disconnected, errno.
    template <class Token = boost::asio::deferred_t>
    auto async_accept(std::span<std::byte const> private_data, Token&& token = Token{}) {
        return control(
            [data = std::vector<std::byte>(private_data.begin(), private_data.end())](
                detail::connection_core& core, detail::control_handler handler
            ) { start_accept(core, data, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Refuses the request that acceptor::async_get_request() delivered. The connection is of no use afterwards.
    ///
    /// @param private_data  At most 148 bytes that tell the peer why.
    /// @return errc::private_data_too_large, errc::not_connected (no request to refuse), or errno.
    error_code reject(std::span<std::byte const> private_data = {});

    // --- moving data -----------------------------------------------------------------------------------------

    /// Writes local bytes into memory that the peer has exposed. The peer's CPU is neither involved nor told.
    ///
    /// @param source  Bytes to read, 0 or more; longer ones than the device's message limit go out in pieces.
    /// @param target  Where to write: exactly as many bytes, exposed with remote_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Object lifetimes      The region of `source` must live until the handler runs.
    /// @par Ordering              Posted, and completed, in the order of the calls.
    /// @par Cancellation          total while it waits, terminal once posted (breaks the connection).
    /// @par Errors                errc::out_of_range, errc::access_denied (nothing was posted, the connection goes on);
    ///                            errc::queue_full; errc::not_connected; wc_errc::remote_access (key or range that the
    ///                            peer does not grant), wc_errc::retry_exceeded (peer gone), wc_errc::flushed
    ///                            (an earlier operation failed), asio::error::operation_aborted.
    /// @par Allocation            None if the handler fits detail::operation::handler_bytes_max.
    template <class Token = boost::asio::deferred_t>
    auto async_write(local_slice source, remote_region target, Token&& token = Token{}) {
        detail::request what = transfer(detail::operation_kind::write, source, target);
        return data<detail::bytes_result, std::size_t>(
            detail::check(source, target, access_flags::remote_write), what, std::forward<Token>(token)
        );
    }

    /// Writes as async_write() does and tells the peer: its oldest receive completes with `immediate`.
    ///
    /// @param source     Bytes to read, 0 to limits().message_bytes_max.
    /// @param target     Where to write; may be default-constructed if `source` is empty.
    /// @param immediate  32 bits for the peer, in host byte order.
    /// @param token      Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_written)`
    /// @par Errors                Those of async_write(), errc::message_too_large, and wc_errc::rnr_retry_exceeded.
    template <class Token = boost::asio::deferred_t>
    auto async_write_with_immediate(
        local_slice source, remote_region target, std::uint32_t immediate, Token&& token = Token{}
    ) {
        detail::request what = transfer(detail::operation_kind::write_with_immediate, source, target);
        what.immediate = immediate;
        error_code const bad = source.size() == 0 && target.size_bytes() == 0
                                   ? error_code{}
                                   : detail::check(source, target, access_flags::remote_write);
        return data<detail::bytes_result, std::size_t>(bad, what, std::forward<Token>(token));
    }

    /// Reads memory that the peer has exposed into local memory. The peer's CPU is neither involved nor told.
    ///
    /// @param source  Where to read: exposed with remote_read.
    /// @param target  Where the bytes go: exactly as many, in a region with local_write.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_read)`
    /// @par Ordering              Posted in the order of the calls; no more outstanding than limits().initiator_depth.
    /// @par Errors                Those of async_write(), and errc::read_depth_zero.
    template <class Token = boost::asio::deferred_t>
    auto async_read(remote_region source, local_slice target, Token&& token = Token{}) {
        detail::request what = transfer(detail::operation_kind::read, target, source);
        return data<detail::bytes_result, std::size_t>(
            detail::check(target, source, access_flags::remote_read), what, std::forward<Token>(token)
        );
    }

    /// Adds to an 8-byte cell of the peer's memory, atomically, and brings back what it held before.
    ///
    /// @param target  The cell: 8-byte aligned, exposed with remote_atomic.
    /// @param add     What to add, modulo 2^64. The cell is in the peer's host byte order.
    /// @param result  8 local bytes that the device writes the former value to.
    /// @param token   Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Errors                Those of async_read(), errc::misaligned, errc::atomics_unsupported.
    template <class Token = boost::asio::deferred_t>
    auto async_fetch_add(
        remote_word target, std::uint64_t add, local_slice result, Token&& token = Token{}
    ) {
        detail::request what = atomic(detail::operation_kind::fetch_add, target, result);
        what.operand = add;
        return data<detail::word_result, std::uint64_t>(
            detail::check_word(target, result), what, std::forward<Token>(token)
        );
    }

    /// Replaces an 8-byte cell of the peer's memory by `desired` if it holds `expected`, atomically, and brings back
    /// what it held before: the swap took place if that is `expected`.
    ///
    /// @param target    The cell: 8-byte aligned, exposed with remote_atomic.
    /// @param expected  What to compare with.
    /// @param desired   What to store.
    /// @param result    8 local bytes that the device writes the former value to.
    /// @param token     Completion token.
    /// @par Completion signature  `void(error_code, std::uint64_t before)`
    /// @par Errors                Those of async_fetch_add().
    template <class Token = boost::asio::deferred_t>
    auto async_compare_swap(
        remote_word target,
        std::uint64_t expected,
        std::uint64_t desired,
        local_slice result,
        Token&& token = Token{}
    ) {
        detail::request what = atomic(detail::operation_kind::compare_swap, target, result);
        what.operand = expected;
        what.swap = desired;
        return data<detail::word_result, std::uint64_t>(
            detail::check_word(target, result), what, std::forward<Token>(token)
        );
    }

    /// Sends a message: it goes into the buffer of the peer's oldest receive.
    ///
    /// @param message  0 to limits().message_bytes_max bytes.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                As async_write(), errc::message_too_large, wc_errc::rnr_retry_exceeded (the peer posts
    ///                            no receives), wc_errc::remote_invalid_request or remote_operation (its buffer is
    ///                            too small).
    template <class Token = boost::asio::deferred_t>
    auto async_send(local_slice message, Token&& token = Token{}) {
        detail::request what = local_only(detail::operation_kind::send, message);
        return data<detail::bytes_result, std::size_t>(error_code{}, what, std::forward<Token>(token));
    }

    /// Sends a message and 32 bits of immediate data.
    ///
    /// @param message    0 to limits().message_bytes_max bytes.
    /// @param immediate  In host byte order.
    /// @param token      Completion token.
    /// @par Completion signature  `void(error_code, std::size_t bytes_sent)`
    /// @par Errors                Those of async_send().
    template <class Token = boost::asio::deferred_t>
    auto async_send_with_immediate(local_slice message, std::uint32_t immediate, Token&& token = Token{}) {
        detail::request what = local_only(detail::operation_kind::send_with_immediate, message);
        what.immediate = immediate;
        return data<detail::bytes_result, std::size_t>(error_code{}, what, std::forward<Token>(token));
    }

    /// Receives a message, or the immediate data of a write.
    ///
    /// May be started as soon as the queue pair exists: after async_resolve(), or on a request not yet accepted.
    ///
    /// @param into   Where a sent message goes, in a region with local_write; may be empty for immediate data alone.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, received)`
    /// @par Ordering              Receives are filled, and complete, in the order of the calls.
    /// @par Errors                wc_errc::local_length or local_qp_operation (the message is longer than `into`),
    ///                            errc::queue_full, errc::not_connected, errc::peer_disconnected, wc_errc::flushed,
    ///                            asio::error::operation_aborted.
    template <class Token = boost::asio::deferred_t>
    auto async_receive(local_slice into, Token&& token = Token{}) {
        detail::request what = local_only(detail::operation_kind::receive, into);
        return data<detail::arrival_result, received>(error_code{}, what, std::forward<Token>(token));
    }

    // --- ending ----------------------------------------------------------------------------------------------

    /// Disconnects: tells the peer, waits for its answer, and until every posted operation has completed.
    ///
    /// What is outstanding is flushed, so wait first for what matters.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: as close().
    /// @par Errors                errc::timed_out (the peer did not answer; the connection is closed all the same),
    ///                            errc::not_connected, errc::not_drained, asio::error::operation_aborted (closed
    ///                            meanwhile).
    template <class Token = boost::asio::deferred_t>
    auto async_disconnect(Token&& token = Token{}) {
        return control(
            [](detail::connection_core& core, detail::control_handler handler) {
                start_disconnect(core, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Waits until the connection has ended, whoever ended it, and every posted operation has completed.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`; no error for an end by disconnect from either side, else why.
    /// @par Cancellation          total.
    template <class Token = boost::asio::deferred_t>
    auto async_wait_disconnected(Token&& token = Token{}) {
        return control(
            [](detail::connection_core& core, detail::control_handler handler) {
                start_wait(core, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Ends the connection at once: no new work, everything outstanding completes with operation_aborted as soon as the
    /// device has let go of its memory. Does not block; may be called again, in any state, from any thread.
    void close() noexcept;

    /// The same, for a protocol on top of the connection that has found something wrong: reason() and last_failure() say
    /// so from then on, unless the connection had failed before.
    void close(failure const& why, close_reason reason) noexcept;

    // --- observers -------------------------------------------------------------------------------------------

    /// True unless default-constructed or moved from.
    bool is_valid() const noexcept { return core_ != nullptr; }
    /// True from the end of connecting until the connection breaks or is ended.
    bool is_open() const noexcept;
    /// Where handlers run by default: the polling thread, or a strand of the io_context.
    executor_type get_executor() const noexcept { return detail::executor_of(*core_); }
    /// The protection domain to register memory with; not open before async_resolve() or a request.
    protection_domain domain() const;
    /// What took effect of the options.
    connection_limits limits() const;
    /// The peer's address, once known.
    endpoint peer() const;
    /// This side's address, once known.
    endpoint local() const;
    /// What the peer sent along when it asked, accepted or refused; padded with zeros to the full field.
    std::vector<std::byte> private_data() const;
    /// Why it ended.
    close_reason reason() const;
    /// The first failure, with all that is known about it; its code is empty if there was none.
    failure last_failure() const;
    /// Connections of this process whose device never let go of their work: their queues are kept for ever.
    static std::size_t quarantined_count() noexcept;
    /// The io_context it was made with.
    boost::asio::io_context& context() const noexcept;
    /// For the library's own use.
    std::shared_ptr<detail::connection_core> const& core() const noexcept { return core_; }

private:
    static void start_resolve(detail::connection_core&, endpoint const&, detail::control_handler);
    static void start_establish(
        detail::connection_core&, std::span<std::byte const>, detail::control_handler
    );
    static void start_connect(detail::connection_core&, endpoint const&, detail::control_handler);
    static void start_accept(detail::connection_core&, std::span<std::byte const>, detail::control_handler);
    static void start_disconnect(detail::connection_core&, detail::control_handler);
    static void start_wait(detail::connection_core&, detail::control_handler);

    template <class Start, class Token>
    auto control(Start start, Token&& token) {
        return boost::asio::async_initiate<Token, void(error_code)>(
            [](auto handler, std::shared_ptr<detail::connection_core> const& core, Start const& begin) {
                begin(*core, detail::control_handler{std::move(handler)});
            },
            token,
            core_,
            std::move(start)
        );
    }

    static detail::request local_only(detail::operation_kind kind, local_slice const& local) noexcept {
        detail::request what;
        what.kind = kind;
        what.local_data = local.data();
        what.size_bytes = local.size();
        what.key = local.key();
        return what;
    }

    static detail::request transfer(
        detail::operation_kind kind, local_slice const& local, remote_region const& remote
    ) noexcept {
        detail::request what = local_only(kind, local);
        what.remote_address = remote.address();
        what.remote = remote.key();
        return what;
    }

    static detail::request atomic(
        detail::operation_kind kind, remote_word const& word, local_slice const& result
    ) noexcept {
        detail::request what = local_only(kind, result);
        what.remote_address = word.address;
        what.remote = word.key;
        return what;
    }

    template <class Result, class Value, class Token>
    auto data(error_code bad, detail::request what, Token&& token) {
        return boost::asio::async_initiate<Token, void(error_code, Value)>(
            [](auto handler,
               std::shared_ptr<detail::connection_core> const& core,
               error_code refusal,
               detail::request const& wanted) {
                using handler_type = decltype(handler);
                if (!refusal) {
                    detail::handler_source const source{
                        &handler,
                        [](void* h, detail::operation& op, executor_type const& io) {
                            op.emplace<Result>(std::move(*static_cast<handler_type*>(h)), io);
                        },
                        [](void* h) -> boost::asio::cancellation_slot {
                            return boost::asio::get_associated_cancellation_slot(
                                *static_cast<handler_type*>(h)
                            );
                        }};
                    refusal = detail::start_operation(core, wanted, source);
                    if (!refusal) return;
                }
                auto const io = detail::executor_of(*core);
                auto const executor = boost::asio::get_associated_executor(handler, io);
                boost::asio::post(
                    executor,
                    boost::asio::append(std::move(handler), refusal, Value{})
                );
            },
            token,
            core_,
            bad,
            what
        );
    }

    std::shared_ptr<detail::connection_core> core_;
};

}  // namespace rcverbs
