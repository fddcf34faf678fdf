// acceptor.hpp — listens for RDMA connections.
//
// A request that nobody has asked for yet waits in a queue of limited length; one more is refused. A fault of one peer's
// never ends the acceptor. Threads: as for connection; its handlers run on the io_context by default.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <rcverbs/connection.hpp>

namespace rcverbs {

namespace detail {
class acceptor_core;
using accept_handler = boost::asio::any_completion_handler<void(error_code, connection)>;
}  // namespace detail

/// How an acceptor listens.
struct acceptor_options {
    /// The connections' own options.
    connection_options connection;
    /// Requests that may wait to be taken, in the kernel and here; one more is refused. 1 to 4096.
    std::size_t backlog = 128;
    /// Connections of this acceptor's that may be alive at a time, the requests that wait included; one more is refused. Each
    /// counts until its queue pair is gone. 0 for no limit.
    std::size_t connections_max = 4096;
    /// The same for each peer's address. 0 for no limit.
    std::size_t connections_per_address_max = 0;
    /// What a peer that is refused for these limits gets as private data: at most 148 bytes. A server of sessions gives
    /// session::busy_answer(), and the peer's session then says errc::peer_busy.
    std::vector<std::byte> busy_answer;
};

/// What an acceptor has done so far; a snapshot.
struct acceptor_statistics {
    /// Requests that reached it.
    std::uint64_t requests = 0;
    /// Those of them that it refused for backlog, connections_max or connections_per_address_max.
    std::uint64_t refused_busy = 0;
    /// Its connections that are alive at this moment, and requests that wait.
    std::size_t connections = 0;
};

/// Accepts connections at one local endpoint.
///
/// Outstanding operations: one async_accept or async_get_request.
class RCVERBS_EXPORT acceptor {
public:
    using executor_type = boost::asio::any_io_executor;

    /// No acceptor; only assignment and destruction are useful.
    acceptor() noexcept = default;
    /// Binds and listens.
    ///
    /// @param context  Runs it; must outlive it.
    /// @param local    The address to bind to ("0.0.0.0" and "::" bind all devices) and the port; port 0 picks a free one.
    /// @param options  Its connections' options.
    /// @throws boost::system::system_error: errc::invalid_option, errc::private_data_too_large (busy_answer), errno (EADDRINUSE,
    ///         EADDRNOTAVAIL, ENODEV …).
    acceptor(boost::asio::io_context& context, endpoint const& local, acceptor_options options = {});

    acceptor(acceptor&&) noexcept = default;
    acceptor& operator=(acceptor&& other) noexcept;
    /// Closes.
    ~acceptor();

    /// Accepts one connection: completes when it is established, or when this one attempt failed.
    ///
    /// A peer that falls silent in the middle holds it up for connect_deadline. A program that must serve others
    /// meanwhile takes requests with async_get_request() and answers each on its own.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, connection)`
    /// @par Cancellation          total while no request has come; afterwards it closes the connection being made.
    /// @par Errors                Those of connection::async_accept: they concern one peer, call again.
    ///                            asio::error::operation_aborted: closed. errc::device_removed: the device that it listens on
    ///                            is gone, and the acceptor closed (is_open() tells). errc::operation_in_progress.
    template <class Token = boost::asio::deferred_t>
    auto async_accept(Token&& token = Token{}) {
        return initiate(true, std::forward<Token>(token));
    }

    /// Takes one request without answering it: a connection to look at (peer, private_data), to post receives on, and
    /// then to async_accept or reject.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, connection)`
    /// @par Cancellation          total: no request is taken.
    /// @par Errors                asio::error::operation_aborted: closed. errc::device_removed: the device that it listens on
    ///                            is gone, and the acceptor closed (is_open() tells). errc::operation_in_progress. errno if one
    ///                            peer's queue pair could not be made: that peer is refused, call again.
    template <class Token = boost::asio::deferred_t>
    auto async_get_request(Token&& token = Token{}) {
        return initiate(false, std::forward<Token>(token));
    }

    /// Stops listening; requests that wait are refused. Connections already delivered go on. Does not block; idempotent.
    void close() noexcept;

    /// True as long as it listens: until it is closed, or its device is removed.
    bool is_open() const;
    /// Where it listens, with the port that was picked.
    endpoint local() const;
    /// What it has done so far.
    acceptor_statistics statistics() const;
    /// The io_context's executor.
    executor_type get_executor() const noexcept;

private:
    static void start_accept(
        std::shared_ptr<detail::acceptor_core> const& core, bool establish, detail::accept_handler handler
    );

    template <class Token>
    auto initiate(bool establish, Token&& token) {
        return boost::asio::async_initiate<Token, void(error_code, connection)>(
            [](auto handler, std::shared_ptr<detail::acceptor_core> const& core, bool whole) {
                start_accept(core, whole, detail::accept_handler{std::move(handler)});
            },
            token,
            core_,
            establish
        );
    }

    std::shared_ptr<detail::acceptor_core> core_;
};

}  // namespace rcverbs
