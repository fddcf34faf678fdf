// acceptor.hpp — listens for RDMA connections.
//
//     acceptor a{io, {"192.168.0.1", 7471}};
//     for (;;) {
//         connection c = co_await a.async_accept(use_awaitable);
//         handle(std::move(c));
//     }
//
// Requests wait in a queue of limited length until the program takes them; one more is rejected. A
// fault of a peer never ends the acceptor. Threads: as for connection. The executor of the acceptor
// handles the events of the connection manager and calls the acceptor's handlers; each connection
// runs on the executor that it is made with.
#pragma once

#include <boost/asio/async_result.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <rcverbs/connection.hpp>
#include <rcverbs/detail/adapted_handler.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/connection_request.hpp>

namespace rcverbs {

/// Why an acceptor rejects a request without asking the program.
enum class refusal {
    /// acceptor_options::backlog requests wait already.
    backlog,
    /// acceptor_options::connections_max connections are alive.
    connections,
    /// acceptor_options::connections_per_address_max connections of the peer's address are alive.
    connections_per_address,
    /// A connection of the peer's address ended by a violation, less than
    /// acceptor_options::violation_delay ago.
    violation,
};

/// Additional descriptors of a connection on a thread of its own: epoll, eventfd, timerfd, and the
/// channel of the connection manager.
inline constexpr unsigned descriptors_per_own_thread = 4;

/// Limits of an acceptor and options of its connections.
struct acceptor_options {
    /// The options of the connections that async_accept() makes.
    connection_options connection = {};
    /// Requests that may wait to be taken, in the kernel and here; one more is rejected. 1 to 4096.
    std::size_t backlog = 1024;
    /// How long a request may wait to be taken. An older one is rejected before anything is
    /// allocated for it, because its peer has given up, or soon will. Above 0.
    std::chrono::milliseconds request_timeout{5000};
    /// How long the program may keep a request that it has taken before it makes a connection of it
    /// or rejects it; then the acceptor rejects it. Above 0.
    std::chrono::milliseconds answer_timeout{5000};
    /// Connections of this acceptor that may exist at a time, including waiting requests; one more
    /// is rejected. Each counts until its queue pair is destroyed. At least 1. Empty: as many as
    /// the process's descriptors (RLIMIT_NOFILE) and lockable memory (RLIMIT_MEMLOCK) allow when
    /// the acceptor is made, 1 to 4096.
    std::optional<std::size_t> connections_max = {};
    /// Bytes that the program registers per connection, for the computation of an empty
    /// connections_max.
    std::size_t locked_bytes_per_connection = 0;
    /// Descriptors per connection, for the same computation: 1 for its completion channel, 0 if all
    /// are made with one poller, which has one for all of them; descriptors_per_own_thread more if
    /// each has a thread of its own.
    unsigned descriptors_per_connection = 1;
    /// Connections per peer address that may exist at a time. At least 1; empty for no limit.
    std::optional<std::size_t> connections_per_address_max = {};
    /// How long requests of an address are rejected after one of its connections has ended by a
    /// violation (errc::peer_violation, or close_reason::protocol_error). The delay doubles with
    /// each further violation, to at most 64 times this, and is this again when as much time as the
    /// last delay has passed after it without a violation. Above 0; empty for no delay.
    std::optional<std::chrono::milliseconds> violation_delay = {};
    /// Private data of a rejection because of one of these limits: at most 148 bytes. A server of
    /// sessions sets session::busy_private_data(); the peer's session then reports session_errc::peer_busy.
    /// For channels there is no such value: theirs report cm_errc::rejected_by_peer.
    std::vector<std::byte> busy_private_data = {};
    /// Called for each request that is rejected because of one of these limits, with the peer's
    /// address, on a thread that runs the acceptor's context. Must not throw.
    std::function<void(endpoint const& peer, refusal why)> on_refused = {};
};

/// Counters of an acceptor; a snapshot.
struct acceptor_statistics {
    /// Requests that reached the acceptor.
    std::uint64_t requests = 0;
    /// Requests rejected because of a limit in acceptor_options.
    std::uint64_t refused_busy = 0;
    /// Requests dropped before they were taken: the peer had given up, or request_timeout had
    /// passed.
    std::uint64_t dropped = 0;
    /// Connections of the acceptor at this moment, and the waiting requests.
    std::size_t connections = 0;
    /// The sum of the counters of all connections of the acceptor, including those that have ended.
    connection_statistics of_connections = {};
};

namespace detail {

class acceptor_core;
using request_handler = erased_handler<error_code, connection_request>;

using accept_handler = erased_handler<error_code, std::shared_ptr<connection_core>>;

}  // namespace detail

/// The members of basic_acceptor that do not depend on its executor type.
class RCVERBS_EXPORT acceptor_base {
public:
    /// Cancels all outstanding operations: they complete with asio::error::operation_aborted.
    /// Waiting requests remain.
    void cancel() noexcept;
    /// Stops listening and rejects waiting requests. Delivered connections are not affected. Does
    /// not block; idempotent.
    void close() noexcept;
    /// Closes the connections that were made of its requests, as connection::close(). Neither waiting
    /// requests nor the acceptor are affected. Does not block; async_wait_idle() waits for the end.
    void close_connections() noexcept;

    /// True as long as it listens: until it is closed, or its device is removed.
    bool is_open() const;
    /// The endpoint that it listens on, with the actual port.
    endpoint local_endpoint() const;
    /// A snapshot of the counters.
    acceptor_statistics statistics() const;
    /// The failure of the last connection that async_accept() could not make, with the peer's
    /// address, or the failure that ended the acceptor; its code is empty if there was none.
    failure last_failure() const;
    /// The limit of connections, from acceptor_options::connections_max or computed.
    std::size_t connections_max() const noexcept;

protected:
    acceptor_base() noexcept = default;
    acceptor_base(detail::place const& where, endpoint const& local, acceptor_options options);
    acceptor_base(
        detail::place const& where, endpoint const& local, acceptor_options options, error_code& ec
    );
    acceptor_base(acceptor_base&&) noexcept = default;
    acceptor_base& operator=(acceptor_base&& other) noexcept;
    ~acceptor_base() { close(); }

    static void start_get_request(detail::acceptor_core& core, detail::request_handler handler);
    static void start_accept(
        detail::acceptor_core& core, detail::place where, detail::accept_handler handler
    );
    static void start_wait_idle(detail::acceptor_core& core, detail::control_handler handler);

    std::shared_ptr<detail::acceptor_core> core_;
};

/// Accepts connections at one local endpoint. It is work of its executor until close().
///
/// Outstanding operations: any number; they take requests in the order of the calls.
template <class Executor = boost::asio::any_io_executor>
class basic_acceptor : public acceptor_base {
public:
    using executor_type = Executor;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_acceptor<Other>;
    };

    /// Makes no acceptor; only assignment and destruction are useful.
    basic_acceptor() noexcept = default;
    /// Binds and listens.
    ///
    /// @param where    The executor, or the thread, that runs it.
    /// @param local    The address to bind to ("0.0.0.0" and "::" bind all devices) and the port;
    ///                 port 0 picks a free one.
    /// @param options  Its limits, and the options of its connections.
    /// @throws boost::system::system_error: errc::invalid_option, errc::private_data_too_large
    ///         (busy_private_data), errno (EADDRINUSE, EADDRNOTAVAIL, ENODEV …).
    // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved
    basic_acceptor(runs_on<Executor> where, endpoint const& local, acceptor_options options = {})
        : acceptor_base{detail::access::place_of(where), local, std::move(options)},
          executor_{where.executor_},
          poller_{where.poller_} {}
    /// The same; on failure is_open() is false.
    ///
    /// @param where    As above.
    /// @param local    As above.
    /// @param options  As above.
    /// @param ec       The errors above.
    // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved
    basic_acceptor(
        runs_on<Executor> where, endpoint const& local, acceptor_options options, error_code& ec
    )
        : acceptor_base{detail::access::place_of(where), local, std::move(options), ec},
          executor_{where.executor_},
          poller_{where.poller_} {}
    /// Converts an acceptor with another executor type.
    template <class Other>
    requires(!std::same_as<Other, Executor> && std::convertible_to<Other, Executor>)
        basic_acceptor(basic_acceptor<Other>&& other)
        : acceptor_base{std::move(other)},
          executor_{detail::converted<Executor>(other.get_executor())},
          poller_{std::move(other.poller_)} {}

    basic_acceptor(basic_acceptor&&) noexcept = default;
    basic_acceptor& operator=(basic_acceptor&&) noexcept = default;
    /// Closes.
    ~basic_acceptor() = default;

    /// Takes one request without answering it.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, connection_request)`
    /// @par Cancellation          total: no request is taken.
    /// @par Errors                asio::error::operation_aborted: cancelled, or closed.
    ///                            errc::device_removed: the device of its address was removed, and
    ///                            the acceptor is closed (is_open() is false).
    template <class Token = detail::default_token_t<Executor>>
    auto async_get_request(Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code, connection_request)>(
            detail::initiation{
                get_executor(),
                [](auto handler, std::shared_ptr<detail::acceptor_core> const& core) {
                    start_get_request(*core, detail::request_handler{std::move(handler)});
                },
                detail::failure_of{this}},
            token,
            core_
        );
    }

    /// Accepts one connection where the acceptor runs, with acceptor_options::connection.
    /// Completes when the connection is established, or when this attempt has failed.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, basic_connection<Executor>)`
    /// @par Cancellation          total while no request has come; afterwards it closes the
    ///                            connection being made.
    /// @par Errors                Those of async_get_request() and connection::async_accept, and
    ///                            errno if the queue pair could not be made. They concern one
    ///                            peer: call again while is_open().
    template <class Token = detail::default_token_t<Executor>>
    auto async_accept(Token&& token = Token{}) {
        return async_accept(runs_on<Executor>{get_executor(), poller_}, std::forward<Token>(token));
    }

    /// Accepts one connection that runs on another executor, a poller or own_thread.
    template <class Where, class Token>
    requires(std::convertible_to<Where, runs_on<Executor>> && !detail::is_runs_on<std::remove_cvref_t<Where>>) auto async_accept(
        Where&& where, Token&& token
    ) {
        return async_accept(
            runs_on<Executor>(std::forward<Where>(where)), std::forward<Token>(token)
        );
    }
    /// The same with the default token, on a context, a poller or own_thread. (An executor needs
    /// runs_on here.)
    template <class Where>
    requires detail::is_context_or_thread<std::remove_cvref_t<Where>>
    auto async_accept(Where&& where) {
        return async_accept(runs_on<Executor>(std::forward<Where>(where)));
    }
    /// The same; the connection has the executor type of `where`.
    template <class Other, class Token = detail::default_token_t<Executor>>
    auto async_accept(runs_on<Other> where, Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code, basic_connection<Other>)>(
            detail::initiation{
                get_executor(),
                []<class Handler>(
                    Handler handler,
                    std::shared_ptr<detail::acceptor_core> const& core,
                    runs_on<Other> const& at
                ) {
                    start_accept(
                        *core,
                        detail::access::place_of(at),
                        detail::accept_handler{detail::adapted_handler{
                            std::move(handler),
                            // Moved, so that nothing here belongs to a context that the handler
                            // destroys.
                            [executor = at.get_executor(
                             )](Handler own,
                                error_code ec,
                                std::shared_ptr<detail::connection_core> made) mutable {
                                std::move(own
                                )(ec,
                                  detail::access::make<basic_connection<Other>>(
                                      std::move(executor), std::move(made)
                                  ));
                            }}}
                    );
                },
                detail::failure_of{this}},
            token,
            core_,
            std::move(where)
        );
    }

    /// Waits until statistics().connections is 0: no request waits, and the queue pair of each
    /// connection is destroyed, so that no peer of them can access memory. A server that ends calls
    /// close(), close_connections(), and this. Continues when the acceptor is closed or destroyed.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          total.
    /// @par Errors                asio::error::operation_aborted: cancelled.
    template <class Token = detail::default_token_t<Executor>>
    auto async_wait_idle(Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                get_executor(),
                [](auto handler, std::shared_ptr<detail::acceptor_core> const& core) {
                    start_wait_idle(*core, detail::control_handler{std::move(handler)});
                },
                detail::failure_of{this}},
            token,
            core_
        );
    }

    /// The executor that it was made with.
    executor_type get_executor() const noexcept { return executor_.get(); }

private:
    template <class>
    friend class basic_acceptor;

    detail::stored_executor<Executor> executor_;
    // Polls for the connections, if the acceptor was made with one.
    poller poller_;
};

/// With executors of any type.
using acceptor = basic_acceptor<>;

}  // namespace rcverbs
