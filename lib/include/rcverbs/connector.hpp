// connector.hpp — connects a session to a peer that may not be there yet, or not any more, by trying again.
//
// What a broken connection was doing is lost: its operations have failed, none is done again behind the program's back, and
// keys are exchanged anew. What survives is the program's memory and its registrations: the protection domain is kept, so that
// regions of it work on the next session as they did on the last. That a peer is tried again at all is the program's choice,
// by calling async_connect() once more:
//
//     rcverbs::connector to_server{io, {"192.168.0.1", 7471}};
//     for (;;) {
//         rcverbs::session s = co_await to_server.async_connect();
//         co_await work(s);      // until it is done, or fails
//     }
//
// Threads: as for connection. Handlers run on the io_context by default.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>

#include <cstdint>
#include <memory>

#include <rcverbs/backoff_options.hpp>
#include <rcverbs/session.hpp>

namespace rcverbs {

/// How a connector makes sessions.
struct connector_options {
    /// The connections'. With private_domain all of them share one domain of the connector's own.
    connection_options connection;
    /// The sessions'.
    session_options session;
    /// Between attempts.
    backoff_options backoff;
};

namespace detail {
class connector_core;
using session_handler = boost::asio::any_completion_handler<void(error_code, session)>;
}  // namespace detail

/// Connects sessions to one peer, again and again.
///
/// Outstanding operations: one async_connect.
class RCVERBS_EXPORT connector {
public:
    using executor_type = boost::asio::any_io_executor;

    /// A connector to one peer.
    ///
    /// @param context  Runs it; must outlive it.
    /// @param peer     Where to connect to.
    /// @param options  How.
    /// @throws boost::system::system_error: errc::invalid_option.
    connector(boost::asio::io_context& context, endpoint peer, connector_options options = {});
    connector(connector&&) noexcept = default;
    connector& operator=(connector&& other) noexcept;
    /// Cancels.
    ~connector();

    /// Connects, trying again after errors of which is_transient() is true.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, session)`
    /// @par Cancellation          total.
    /// @par Errors                Those of session::async_connect: the last attempt's. asio::error::operation_aborted,
    ///                            errc::operation_in_progress, errc::foreign_domain (private_domain, and the address
    ///                            leads to another device now).
    template <class Token = boost::asio::deferred_t>
    auto async_connect(Token&& token = Token{}) {
        return boost::asio::async_initiate<Token, void(error_code, session)>(
            [](auto handler, std::shared_ptr<detail::connector_core> const& core) {
                start_connect(core, detail::session_handler{std::move(handler)});
            },
            token,
            core_
        );
    }

    /// Ends an async_connect() that is under way. Sessions that it has delivered go on. Does not block; idempotent.
    void cancel() noexcept;

    /// The domain of the last session that was connected, and of the next, as long as the way leads over the same device. Not
    /// open before the first.
    protection_domain domain() const;
    /// Attempts so far, of all calls.
    std::uint64_t attempts() const noexcept;
    /// What the last attempt failed with.
    failure last_failure() const;
    /// The io_context's executor.
    executor_type get_executor() const noexcept;

private:
    static void start_connect(std::shared_ptr<detail::connector_core> const& core, detail::session_handler handler);

    std::shared_ptr<detail::connector_core> core_;
};

}  // namespace rcverbs
