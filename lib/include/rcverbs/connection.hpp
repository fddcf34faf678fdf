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
// What it does with data, and the rules for that, are in data_operations.hpp. For connecting and ending, too: a handler is
// called exactly once, never from inside the initiating call.
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
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/close_reason.hpp>
#include <rcverbs/data_operations.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/queue_pair_address.hpp>
#include <rcverbs/statistics.hpp>

struct ibv_qp;

namespace rcverbs {

namespace detail {

using control_handler = boost::asio::any_completion_handler<void(error_code)>;

}  // namespace detail

/// A reliable connection to one peer.
///
/// Outstanding operations: one connect or accept, one disconnect, one wait; data operations as many as the options say.
class RCVERBS_EXPORT connection : public data_operations {
public:
    using executor_type = boost::asio::any_io_executor;

    /// No connection; only assignment and destruction are useful.
    connection() noexcept = default;
    /// An idle connection of `context`, ready to connect.
    ///
    /// @throws boost::system::system_error: errc::invalid_option; errno if no thread can be started.
    explicit connection(boost::asio::io_context& context, connection_options options = {});
    /// Takes part in a connection that the library made.
    explicit connection(std::shared_ptr<detail::connection_core> core) noexcept
        : data_operations{std::move(core)} {}

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
    /// @return errc::private_data_too_large, errc::not_connected (no request to refuse). A peer that has gone meanwhile is no error.
    error_code reject(std::span<std::byte const> private_data = {});

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

    // --- connecting without the connection manager -----------------------------------------------------------

    /// Makes the queue pair on a device, for a peer whose address comes by another way than the connection manager's.
    ///
    /// Afterwards domain() is known and receives can be posted. Takes system calls, and asks nobody else.
    ///
    /// @param device     Its name, such as "rxe0" or "mlx5_0".
    /// @param gid_index  Which of its addresses to go by; see: rdma link, ibv_devinfo -v. Empty for the first that is an IPv4 address
    ///                   (RoCE v2), else the first.
    /// @param ec         errc::no_rdma_device, errc::already_connected, errc::invalid_option (no such address), errno.
    /// @return What the peer has to be told.
    queue_pair_address prepare(std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec);

    /// Connects to the peer's queue pair. Each side does that, in any order: what is sent before the other has done it is sent again, until
    /// ack_timeout and retry_count are used up. Takes system calls.
    ///
    /// Without the connection manager nobody tells when the peer leaves: what is posted then fails, and keepalive_interval notices
    /// when nothing is. async_disconnect() ends this side alone.
    ///
    /// @param peer  What its prepare() returned.
    /// @return errc::not_connected (not prepared), errno.
    error_code establish(queue_pair_address const& peer);

    // --- what the peer may do --------------------------------------------------------------------------------

    /// Says what the peer may do to memory of this side over this connection from now on, whatever its keys allow: any of
    /// remote_read, remote_write and remote_atomic, or local_read for nothing. A connection begins with all of it (reads and
    /// atomics only if responder_resources is above 0). What it asks for without the right fails at the peer with
    /// wc_errc::remote_access or remote_invalid_request, and breaks the connection.
    ///
    /// Without remote_write the peer's keepalives fail, too: see stop_keepalive().
    ///
    /// @return errc::not_connected, or errno. Source: ibv_modify_qp(3), IBV_QP_ACCESS_FLAGS.
    error_code set_remote_access(access_flags rights);

    /// Asks the peer for no more signs of life, whatever keepalive_interval says: for a protocol whose peer is about to take
    /// the right to write away from this side.
    void stop_keepalive() noexcept;

    // --- ending at once --------------------------------------------------------------------------------------

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
    /// What it has done so far; a snapshot.
    connection_statistics statistics() const;
    /// The queue pair's number, known as domain() is; 0 before. Source: ibv_create_qp(3).
    std::uint32_t queue_pair_number() const;
    /// The verbs object, borrowed: for what this library does not do. Posting to it breaks the accounts. Null before
    /// domain() is known and after the end.
    ibv_qp* native_handle() const;

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
};

}  // namespace rcverbs
