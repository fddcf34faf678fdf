// request_server.hpp — the requests of all clients of a server.
//
//     request_server server{io, {"0.0.0.0", 7471}};
//     for (;;) {
//         request r = co_await server.async_next(use_awaitable);
//         auto const value = find(r.operation(), r.bytes());
//         co_await r.async_answer(0, value, use_awaitable);
//     }
//
// and to stop, on any thread:
//
//     co_await server.async_finish(use_awaitable);  // answers what was asked, then async_next() ends
//
// It accepts clients, owns their channels, and ends them. A client that connects again is accepted
// when nothing of its older channels is executed any more (client_sessions.hpp), so that requests
// that are repeated stay in order. Clients are served in turn: one that asks much does not keep the
// others waiting.
//
// Threads: any thread may start operations, answer and destroy requests. Handlers run on
// get_executor() by default.
#pragma once

#include <boost/asio/async_result.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <rcverbs/acceptor.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

/// Options of a request_server.
struct request_server_options {
    /// Limits of clients. The options of connections are those of `channel`.
    acceptor_options acceptor = {};
    /// Options of the clients' channels, and in `messages.connection` of their connections. `sessions`
    /// is made if it is empty.
    request_channel_options channel = {};
    /// Bytes for each client, request_channel::greeting() there: at most 32.
    std::vector<std::byte> greeting = {};
    /// Called with each client's channel that was accepted, before its requests are taken; for example
    /// to send it requests. The server closes and finishes the channel. Called on threads that run the
    /// executor, for several clients at a time if there are several. Must not throw.
    std::function<void(std::shared_ptr<request_channel> client)> on_accepted = {};
    /// Called when a client has left, or could not be accepted, with the reason; as above.
    std::function<void(failure const& why)> on_left = {};
};

/// Counters of a request_server; a snapshot.
struct request_server_statistics {
    /// Clients at this moment.
    std::size_t clients = 0;
    /// Clients that were accepted.
    std::uint64_t accepted = 0;
    /// Clients that could not be accepted.
    std::uint64_t failed = 0;
    /// Counters of the acceptor.
    acceptor_statistics acceptor = {};
};

namespace detail {

class server_core;

}  // namespace detail

/// The members of basic_request_server that do not depend on its executor type.
class RCVERBS_EXPORT request_server_base {
public:
    /// Ends at once: no further clients, and the channels close. async_next() ends with
    /// asio::error::operation_aborted. Idempotent.
    void close() noexcept;
    /// True until close() or async_finish().
    bool is_open() const noexcept;
    /// The address and port that it listens at.
    endpoint local_endpoint() const;
    /// Why the acceptor has ended; otherwise why the last client left that did not finish.
    failure last_failure() const;
    /// A snapshot of the counters.
    request_server_statistics statistics() const;

protected:
    using core_ptr = std::shared_ptr<detail::server_core>;

    request_server_base() noexcept = default;
    request_server_base(
        runs_on<boost::asio::any_io_executor> where,
        endpoint const& local,
        request_server_options options
    );
    request_server_base(request_server_base&&) noexcept = default;
    request_server_base& operator=(request_server_base&&) noexcept = default;
    ~request_server_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    static void start_next(core_ptr const& core, detail::next_handler handler);
    static void start_finish(core_ptr const& core, detail::control_handler handler);

private:
    core_ptr core_;
};

/// Accepts clients, and takes their requests. It is work of its executor until close(), or until
/// async_finish() has ended.
///
/// Outstanding operations: any number.
template <class Executor = boost::asio::any_io_executor>
class basic_request_server : public protocol::service_handle<request_server_base, Executor> {
    using base = protocol::service_handle<request_server_base, Executor>;
    using core_ptr = typename base::core_ptr;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_request_server<Other>;
    };

    using base::base;
    /// Makes no server; only assignment and destruction are useful.
    basic_request_server() noexcept = default;
    /// Makes a server, which listens from now on.
    ///
    /// @param where    The executor, or the thread, that runs it and its channels.
    /// @param local    The address and port to listen at.
    /// @param options  Limits, and the channels'.
    /// @throws boost::system::system_error: errc::invalid_option; the errors of acceptor;
    ///         std::system_error if a thread is asked for and cannot be started.
    basic_request_server(
        runs_on<Executor> where, endpoint const& local, request_server_options options = {}
    )
        : base{std::in_place, where, local, std::move(options)} {}

    /// Waits for the next request, or notice, of any client.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, request)`
    /// @par Cancellation          total: the request remains for the next call.
    /// @par Errors                asio::error::eof (async_finish() was called, and no client asks any
    ///                            more), asio::error::operation_aborted (closed), and what has ended
    ///                            the acceptor, such as errc::device_removed, when no client is left.
    template <class Token = detail::default_token_t<Executor>>
    auto async_next(Token&& token = Token{}) {
        return this->template initiate<error_code, request>(
            &base::start_next, std::forward<Token>(token)
        );
    }

    /// Finishes: no further clients; finishes each channel as request_channel::async_finish(), also
    /// those that are being accepted. Meanwhile the program must go on with async_next(), and answer.
    /// It may be called more than once.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: all connections have ended. No error unless
    ///                            the server was closed: a client that does not finish in time is
    ///                            that client's failure.
    /// @par Cancellation          terminal: closes.
    /// @par Errors                asio::error::operation_aborted (closed).
    template <class Token = detail::default_token_t<Executor>>
    auto async_finish(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_finish, std::forward<Token>(token));
    }
};

/// With executors of any type.
using request_server = basic_request_server<>;

}  // namespace rcverbs
