// request_client.hpp — requests to one peer, over a channel that is connected again after failures.
//
//     request_client c{io, {"192.168.0.1", 7471}};
//     reply r = co_await c.async_request(ask{get}.body(key).may_repeat(), use_awaitable);
//
// Shared by all parts of a program that ask the same server. The first request connects; requests
// that come meanwhile wait for the same attempt. When the channel fails, the requests that may be
// repeated are sent again on the next one, until their timeout; the others fail, because it is not
// known whether the peer has executed them.
//
// The server may execute a repeated request twice, and the first execution may still be under way
// when the second has been answered. A server whose channels have request_channel_options::sessions
// has finished with the requests of the old channel before it accepts the new one: then no request
// is executed after a later one. With any other server the first execution of a request may
// come after later requests.
//
// Threads: any thread may start operations. Handlers run on get_executor() by default; after the
// channel was connected again they may overlap on an executor with several threads, unless it is a
// strand.
#pragma once

#include <boost/asio/async_result.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <rcverbs/backoff_options.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/runs_on.hpp>

namespace rcverbs {

/// Options of a request_client.
struct request_client_options {
    /// Options of the channels, and in `messages.connection` of their connections.
    request_channel_options channel = {};
    /// Delays between attempts to connect. A request that comes during a delay shortens it to
    /// delay_first.
    backoff_options backoff = {.delay_max = std::chrono::milliseconds{1000}};
    /// Called with each channel that was connected, before its requests are sent; for example to take
    /// the peer's requests: keep the pointer until async_next() on it has failed. The client closes and
    /// finishes the channel. Not called concurrently. Must not throw.
    std::function<void(std::shared_ptr<request_channel> connected)> on_connected = {};
    /// As connector_options::on_retry.
    std::function<void(std::uint64_t attempts, failure const& why)> on_retry = {};
};

/// Counters of a request_client.
struct request_client_statistics {
    /// Channels that were connected.
    std::uint64_t connected = 0;
    /// Requests that were started again.
    std::uint64_t repeated = 0;
    /// Requests that wait for a channel at this moment.
    std::size_t waiting = 0;
};

namespace detail {

class client_core;

}  // namespace detail

/// The members of basic_request_client that do not depend on its executor type.
class RCVERBS_EXPORT request_client_base {
public:
    /// Ends at once: outstanding requests end with asio::error::operation_aborted, or with what ended
    /// their channel. Idempotent.
    void close() noexcept;
    /// True until close() or async_finish().
    bool is_open() const noexcept;
    /// True while a channel is connected.
    bool is_connected() const noexcept;
    /// The protection domain of the channels, as connector::domain(): memory that is registered in it
    /// stays registered when the channel is connected again. Not open before the first.
    protection_domain domain() const;
    /// Why the last channel ended, or the last attempt to connect failed.
    failure last_failure() const;
    /// A snapshot of the counters.
    request_client_statistics statistics() const;

protected:
    using core_ptr = std::shared_ptr<detail::client_core>;

    request_client_base() noexcept = default;
    request_client_base(
        runs_on<boost::asio::any_io_executor> where,
        std::vector<endpoint> peers,
        request_client_options options
    );
    request_client_base(request_client_base&&) noexcept = default;
    request_client_base& operator=(request_client_base&&) noexcept = default;
    ~request_client_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    static void start_request(
        core_ptr const& core, detail::question const& what, detail::reply_handler handler
    );
    static void start_notify(
        core_ptr const& core, detail::question const& what, detail::control_handler handler
    );
    static void start_finish(core_ptr const& core, detail::control_handler handler);

private:
    core_ptr core_;
};

/// Requests to one peer.
///
/// Outstanding operations: one finish; any number of requests and notices.
template <class Executor = boost::asio::any_io_executor>
class basic_request_client
    : public detail::requester<protocol::service_handle<request_client_base, Executor>> {
    using base = detail::requester<protocol::service_handle<request_client_base, Executor>>;
    using core_ptr = typename base::core_ptr;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_request_client<Other>;
    };

    using base::base;
    /// Makes no client; only assignment and destruction are useful.
    basic_request_client() noexcept = default;
    /// Makes a client; the first request connects.
    ///
    /// @param where    The executor, or the thread, that runs it and its channels; own_thread is one
    ///                 thread for all of them.
    /// @param peer     The endpoint to connect to.
    /// @param options  Of the channels, and of connecting.
    /// @throws boost::system::system_error (errc::invalid_option); std::system_error if a thread is
    ///         asked for and cannot be started.
    basic_request_client(
        runs_on<Executor> where, endpoint const& peer, request_client_options options = {}
    )
        : basic_request_client{std::move(where), std::vector{peer}, std::move(options)} {}
    /// Makes a client of one peer with several addresses, which are tried in turn.
    ///
    /// @param where    As above.
    /// @param peers    The endpoints. At least one.
    /// @param options  As above.
    /// @throws as above.
    basic_request_client(
        runs_on<Executor> where, std::vector<endpoint> peers, request_client_options options = {}
    )
        : base{std::in_place, where, std::move(peers), std::move(options)} {}

    /// Shuts down gracefully: no further requests; waits as request_channel::async_finish() for those that
    /// are with the peer. Requests that wait for a channel are aborted.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of request_channel::async_finish(); none without a channel.
    template <class Token = detail::default_token_t<Executor>>
    auto async_finish(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_finish, std::forward<Token>(token));
    }
};

/// With executors of any type.
using request_client = basic_request_client<>;

}  // namespace rcverbs
