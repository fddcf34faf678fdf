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
// data_operations.hpp has the data operations and their rules. Every handler, also of connecting
// and disconnecting, is called exactly once, and never from inside the call that starts the
// operation.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/deferred.hpp>

#include <chrono>
#include <concepts>
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
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/queue_pair_address.hpp>
#include <rcverbs/runs_on.hpp>
#include <rcverbs/statistics.hpp>

struct ibv_qp;

namespace rcverbs {

class connection_request;

namespace detail {

// The compiled part of a connection.
struct RCVERBS_EXPORT connection_calls {
    using core = connection_core;
    using shared = std::shared_ptr<connection_core>;

    static shared make(place const& where, connection_options options);
    static shared make(
        place const& where, connection_request request, connection_options options, error_code& ec
    );
    static void close(core& c) noexcept;
    static void close(core& c, error_code violation) noexcept;
    static void cancel(core& c);
    static void set_keepalive_interval(core& c, std::chrono::milliseconds interval) noexcept;
    static void start_resolve(core& c, endpoint const& peer, control_handler handler);
    static void start_establish(
        core& c, std::span<std::byte const> private_data, control_handler handler
    );
    static void start_connect(core& c, endpoint const& peer, control_handler handler);
    static void start_accept(
        core& c, std::span<std::byte const> private_data, control_handler handler
    );
    static void start_disconnect(core& c, control_handler handler);
    static void start_wait(core& c, control_handler handler);
    static error_code reject(core& c, std::span<std::byte const> private_data);
    static queue_pair_address prepare(
        core& c, std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec
    );
    static error_code establish(core& c, queue_pair_address const& peer);
    static error_code set_remote_access(core& c, access_flags rights);
    static bool is_open(core const& c) noexcept;
    static protection_domain domain(core const& c);
    static connection_limits limits(core const& c);
    static endpoint remote_endpoint(core const& c);
    static endpoint local_endpoint(core const& c);
    static std::vector<std::byte> private_data(core const& c);
    static close_reason reason(core const& c);
    static failure last_failure(core const& c);
    static connection_statistics statistics(core const& c);
    static std::uint32_t queue_pair_number(core const& c);
    static ibv_qp* native_handle(core const& c);
    static std::size_t leaked_count() noexcept;
};

}  // namespace detail

/// A reliable connection to one peer.
///
/// Outstanding operations: one connect or accept, one disconnect, one wait; data operations as many
/// as the options allow.
template <class Executor = boost::asio::any_io_executor>
class basic_connection : public basic_data_operations<Executor> {
    using calls = detail::connection_calls;

public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_connection<Other>;
    };

    /// Makes no connection; only assignment and destruction are useful.
    basic_connection() noexcept requires std::default_initializable<Executor>
    = default;
    /// Makes an idle connection: `connection c{io};`, `connection c{own_thread};`.
    ///
    /// @param where    The executor, or the thread, that runs it.
    /// @param options  Sizes, deadlines and more.
    /// @throws boost::system::system_error: errc::invalid_option; std::system_error if a thread is
    ///                                      asked for and cannot be started.
    explicit basic_connection(runs_on<Executor> where, connection_options options = {})
        : basic_data_operations<Executor>{calls::make(where.place(), std::move(options))},
          executor_{where.get_executor()} {}
    /// Makes a connection of a peer's request, with its queue pair: post receives, then call
    /// async_accept() or reject(). A failure rejects the request.
    ///
    /// @param where    The executor, or the thread, that runs it.
    /// @param request  From acceptor::async_get_request().
    /// @param options  Sizes, deadlines and more.
    /// @throws boost::system::system_error: errc::invalid_option, errc::peer_disconnected (it has
    ///         withdrawn its request), errc::timed_out (answer_deadline has passed), errno;
    ///         std::system_error if a thread is asked for and cannot be started.
    basic_connection(
        runs_on<Executor> where, connection_request request, connection_options options = {}
    );
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
    );
    /// Converts a connection with another executor type.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>)
        basic_connection(basic_connection<Other>&& other)
        : basic_data_operations<Executor>{std::move(other.core_)},
          executor_{detail::converted<Executor>(other.executor_)} {}

    basic_connection(basic_connection&&) noexcept = default;
    basic_connection& operator=(basic_connection&& other) noexcept {
        if (this != &other) {
            close();
            this->core_ = std::move(other.core_);
            executor_ = std::move(other.executor_);
        }
        return *this;
    }
    /// Closes. Outstanding operations complete with asio::error::operation_aborted, in the
    /// background.
    ~basic_connection() { close(); }

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
                calls::start_resolve(core, peer, std::move(handler));
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
            ) { calls::start_establish(core, data, std::move(handler)); },
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
                calls::start_connect(core, peer, std::move(handler));
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
            ) { calls::start_accept(core, data, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Rejects the peer's request. The connection has ended afterwards.
    ///
    /// @param private_data  At most 148 bytes with the reason for the peer.
    /// @return errc::private_data_too_large, errc::not_connected (no request to reject). Succeeds
    ///         if the peer has already left.
    [[nodiscard]] error_code reject(std::span<std::byte const> private_data = {}) {
        return calls::reject(core(), private_data);
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
                calls::start_disconnect(core, std::move(handler));
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
                calls::start_wait(core, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    // --- connecting without the connection manager -----------------------------------------------

    /// Makes the queue pair on a device, for a connection without the connection manager.
    ///
    /// Afterwards domain() is known and receives can be posted. Makes system calls; needs no
    /// network.
    ///
    /// @param device     Its name, such as "rxe0" or "mlx5_0".
    /// @param gid_index  Index of the address (GID) to use; see: ibv_devinfo -v. Empty for the
    ///                   first that is an IPv4 address (RoCE v2), else the first.
    /// @param ec         errc::no_rdma_device, errc::already_connected, errc::invalid_option (no
    ///                   such address), errno.
    /// @return The address to send to the peer.
    queue_pair_address prepare(
        std::string const& device, std::optional<std::uint8_t> gid_index, error_code& ec
    ) {
        return calls::prepare(core(), device, gid_index, ec);
    }

    /// Connects to the peer's queue pair. Both sides call it, in any order: packets that are sent
    /// before the other side has called it are retransmitted, within ack_timeout and retry_count.
    /// Makes system calls.
    ///
    /// Without the connection manager nothing reports that the peer leaves: posted work fails, and
    /// keepalive_interval detects it without posted work. async_disconnect() ends this side only.
    ///
    /// @param peer  The result of the peer's prepare().
    /// @return errc::not_connected (not prepared), errno.
    [[nodiscard]] error_code establish(queue_pair_address const& peer) {
        return calls::establish(core(), peer);
    }

    // --- rights of the peer ----------------------------------------------------------------------

    /// Sets the peer's rights to this side's memory on this connection, whatever its keys allow:
    /// any of remote_read, remote_write and remote_atomic, or local_read for none. A connection
    /// starts with all of them (reads and atomics only if responder_resources is above 0). An
    /// operation of the peer without the right fails there with wc_errc::remote_access or
    /// remote_invalid_request, and ends the connection.
    ///
    /// Without remote_write the peer's keepalives fail, too: see set_keepalive_interval(). May be
    /// called as soon as domain() is known; before the connection is established it takes effect on
    /// establishment (on the accepting side as soon as async_accept() has started).
    ///
    /// @return errc::not_connected, or errno. Source: ibv_modify_qp(3), IBV_QP_ACCESS_FLAGS.
    [[nodiscard]] error_code set_remote_access(access_flags rights) {
        return calls::set_remote_access(core(), rights);
    }

    /// Changes liveness_options::keepalive_interval. Set 0 if the peer is about to revoke this
    /// side's right to write.
    ///
    /// @param interval  0 or more.
    void set_keepalive_interval(std::chrono::milliseconds interval) noexcept {
        calls::set_keepalive_interval(core(), interval);
    }

    // --- cancelling ------------------------------------------------------------------------------

    /// Cancels operations that wait for a place in their queue, and async_wait_disconnected(): they
    /// complete with asio::error::operation_aborted. Posted operations, receives included, are not
    /// affected: the device uses their memory until the connection ends. Connecting, accepting and
    /// disconnecting continue; close() ends them.
    void cancel() {
        if (this->core_ != nullptr) calls::cancel(*this->core_);
    }

    // --- ending at once --------------------------------------------------------------------------

    /// Ends the connection at once: outstanding operations complete with operation_aborted as soon
    /// as the device no longer uses their memory. Does not block; may be called again, in any
    /// state, from any thread.
    void close() noexcept {
        if (this->core_ != nullptr) calls::close(*this->core_);
    }
    /// Ends the connection because the peer violated a protocol on top of it. last_failure()
    /// reports the violation, reason() is close_reason::protocol_error, and the acceptor counts a
    /// violation of the peer's address; no effect if the connection had ended before.
    ///
    /// @param violation  The error. REQUIRES: not empty.
    void close(error_code violation) noexcept {
        if (this->core_ != nullptr) calls::close(*this->core_, violation);
    }

    // --- observers -------------------------------------------------------------------------------

    /// True unless default-constructed or moved from.
    bool is_valid() const noexcept { return this->core_ != nullptr; }
    /// True from the end of connecting until the connection fails or is closed.
    bool is_open() const noexcept { return is_valid() && calls::is_open(core()); }
    /// The executor that it was made with: handlers run there by default, one at a time.
    executor_type get_executor() const noexcept { return executor_; }
    /// The protection domain to register memory with; not open before async_resolve() or a request.
    protection_domain domain() const { return calls::domain(core()); }
    /// The options in effect.
    connection_limits limits() const { return calls::limits(core()); }
    /// The peer's address, once known.
    endpoint remote_endpoint() const { return calls::remote_endpoint(core()); }
    /// This side's address, once known.
    endpoint local_endpoint() const { return calls::local_endpoint(core()); }
    /// The private data of the peer's request, acceptance or rejection, padded with zeros to the
    /// full field.
    std::vector<std::byte> private_data() const { return calls::private_data(core()); }
    /// Why the connection ended.
    close_reason reason() const { return calls::reason(core()); }
    /// The first failure with its details; its code is empty if there was none.
    failure last_failure() const { return calls::last_failure(core()); }
    /// Number of connections of this process whose queue pairs could not be destroyed; their
    /// resources are leaked on purpose.
    static std::size_t leaked_count() noexcept { return calls::leaked_count(); }
    /// A snapshot of the counters.
    connection_statistics statistics() const { return calls::statistics(core()); }
    /// The queue pair's number, known as domain() is; 0 before. Source: ibv_create_qp(3).
    std::uint32_t queue_pair_number() const { return calls::queue_pair_number(core()); }
    /// The verbs object, borrowed, for functions that this library lacks. Do not post to it: the
    /// library counts its places. Null before domain() is known and after the end.
    ibv_qp* native_handle() const { return calls::native_handle(core()); }

private:
    template <class>
    friend class basic_connection;
    friend struct detail::access;

    // Shares a connection that the library made.
    basic_connection(Executor executor, std::shared_ptr<detail::connection_core> core)
        : basic_data_operations<Executor>{std::move(core)},
          executor_{std::move(executor)} {}

    detail::connection_core& core() const noexcept { return *this->core_; }

    template <class Start, class Token>
    auto control(Start start, Token&& token) {
        return boost::asio::async_initiate<Token, void(error_code)>(
            detail::initiation{
                executor_,
                [](auto handler,
                   std::shared_ptr<detail::connection_core> const& core,
                   Start const& begin) {
                    begin(*core, detail::control_handler{std::move(handler)});
                }},
            token,
            this->core_,
            std::move(start)
        );
    }

    Executor executor_;
};

/// With executors of any type.
using connection = basic_connection<>;

}  // namespace rcverbs

#include <rcverbs/request.hpp>
