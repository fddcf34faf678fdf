// session.hpp — memory keys and an orderly end over a connection.
//
// A session opens with a hello in the connection manager's private data (protocol version and the application's mode),
// lets each side tell the other which memory it may use (MSG_MR, at most one a side), and ends when each side has said
// that it is done (MSG_DONE). In between the two use next_layer() to read and write. Its receives are posted before the
// peer can send, so no message of the session's ever finds the receiver not ready.
//
// Built from public connection calls alone; what the messages look like is in docs/reference/wire-format.md.
//
// Threads: as for connection. Operations may be started from any thread; handlers run on get_executor() by default.
#pragma once

#include <boost/asio/any_completion_handler.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/buffer.hpp>
#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>

namespace rcverbs {

/// One region and the name under which the peer finds it.
struct named_region {
    /// 0 to 24 bytes; unique within a message, if the peer is to find it by name.
    std::string name;
    /// The region.
    remote_region region;

    /// A region in any form.
    named_region(std::string_view n, remote_region r) : name{n}, region{r} {}
    /// All of a registered region.
    named_region(std::string_view n, memory_region const& r) : name{n}, region{r.remote()} {}
    /// All of a buffer.
    named_region(std::string_view n, buffer const& b) : name{n}, region{b.remote()} {}
};

/// What the peer exposes.
class RCVERBS_EXPORT peer_regions {
public:
    /// Nothing.
    peer_regions() = default;
    /// What MSG_MR said.
    explicit peer_regions(std::vector<named_region> regions) noexcept : regions_{std::move(regions)} {}

    /// How many there are.
    std::size_t size() const noexcept { return regions_.size(); }
    /// In the order in which the peer named them. REQUIRES: index < size().
    remote_region const& operator[](std::size_t index) const noexcept { return regions_[index].region; }
    /// The first of that name; null if there is none.
    remote_region const* find(std::string_view name) const noexcept;
    /// All of them.
    std::span<named_region const> all() const noexcept { return regions_; }

private:
    std::vector<named_region> regions_;
};

/// How a session is made.
struct session_options {
    /// The application's own number for what the session is about; both sides must have the same.
    std::uint32_t mode = 0;
    /// For the peer's MSG_MR, from the moment one waits for it. Above 0.
    std::chrono::milliseconds exchange_deadline{10000};
    /// For the peer's MSG_DONE, from the moment one waits for it, and for its disconnect. Above 0.
    std::chrono::milliseconds finish_deadline{10000};
};

namespace detail {
class session_core;
using regions_handler = boost::asio::any_completion_handler<void(error_code, peer_regions)>;
}  // namespace detail

/// The session protocol on one connection.
///
/// Outstanding operations: one of each kind.
class RCVERBS_EXPORT session {
public:
    using executor_type = boost::asio::any_io_executor;

    /// No session; only assignment and destruction are useful.
    session() noexcept = default;
    /// Takes over a connection: an idle one, to async_connect, or a request from acceptor::async_get_request, to
    /// async_accept.
    ///
    /// @throws boost::system::system_error: errc::invalid_option.
    explicit session(connection over, session_options options = {});

    session(session&&) noexcept = default;
    session& operator=(session&& other) noexcept;
    /// Closes.
    ~session();

    /// Connects and says hello.
    ///
    /// @param peer   Where to connect to.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of connection::async_connect, and errc::foreign_peer, version_mismatch,
    ///                            mode_mismatch, peer_busy.
    template <class Token = boost::asio::deferred_t>
    auto async_connect(endpoint peer, Token&& token = Token{}) {
        return control(
            [peer](auto const& core, detail::control_handler handler) {
                start_connect(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Looks at the peer's hello and accepts it, or refuses it and tells the peer why.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of connection::async_accept, and errc::foreign_peer, version_mismatch,
    ///                            mode_mismatch: the peer was refused.
    template <class Token = boost::asio::deferred_t>
    auto async_accept(Token&& token = Token{}) {
        return control(
            [](auto const& core, detail::control_handler handler) { start_accept(core, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Tells the peer which regions it may use: sends MSG_MR. At most once, and before MSG_DONE.
    ///
    /// @param regions  0 to 64 regions, copied at once; they must stay registered until the peer is done. Inside a
    ///                 co_await expression pass a variable: g++ 12 does not compile a braced list there.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code)`: called when the peer's device has it.
    /// @par Errors                errc::message_too_large (too many regions, or a name too long),
    ///                            errc::operation_in_progress (MSG_MR or MSG_DONE was sent before), and those of
    ///                            connection::async_send.
    template <class Token = boost::asio::deferred_t>
    auto async_publish(std::vector<named_region> regions, Token&& token = Token{}) {
        return control(
            [regions = std::move(regions)](auto const& core, detail::control_handler handler) {
                start_publish(core, regions, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Waits for the peer's MSG_MR; completes at once if it has come already.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, peer_regions)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                errc::timed_out, errc::peer_closed_early, errc::unexpected_message (MSG_DONE came
    ///                            instead, or MSG_MR twice), errc::malformed_message, and those of
    ///                            connection::async_receive.
    template <class Token = boost::asio::deferred_t>
    auto async_wait_regions(Token&& token = Token{}) {
        return boost::asio::async_initiate<Token, void(error_code, peer_regions)>(
            [](auto handler, std::shared_ptr<detail::session_core> const& core) {
                start_wait_regions(core, detail::regions_handler{std::move(handler)});
            },
            token,
            core_
        );
    }

    /// Exchanges MSG_MR: async_publish() and async_wait_regions().
    ///
    /// @param regions  As for async_publish().
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, peer_regions)`
    /// @par Errors                Those of the two.
    template <class Token = boost::asio::deferred_t>
    auto async_exchange(std::vector<named_region> regions, Token&& token = Token{}) {
        return boost::asio::async_initiate<Token, void(error_code, peer_regions)>(
            [](auto handler, std::shared_ptr<detail::session_core> const& core, std::vector<named_region> r) {
                start_exchange(core, std::move(r), detail::regions_handler{std::move(handler)});
            },
            token,
            core_,
            std::move(regions)
        );
    }

    /// Tells the peer that this side is done with its regions: sends MSG_DONE, once. From then on it may not touch them: the
    /// peer takes its right to do so away.
    ///
    /// Everything written before on the same connection is in the peer's memory when MSG_DONE arrives.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: called when the peer's device has it.
    /// @par Errors                errc::operation_in_progress (sent before), and those of connection::async_send.
    template <class Token = boost::asio::deferred_t>
    auto async_send_done(Token&& token = Token{}) {
        return control(
            [](auto const& core, detail::control_handler handler) { start_send_done(core, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Waits for the peer's MSG_DONE; completes at once if it has come already.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                As async_wait_regions().
    template <class Token = boost::asio::deferred_t>
    auto async_wait_done(Token&& token = Token{}) {
        return control(
            [](auto const& core, detail::control_handler handler) { start_wait_done(core, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Ends the connection in order. The connecting side disconnects; the accepting side waits for that until
    /// finish_deadline, and then disconnects itself.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`; no error only if both sides had sent MSG_DONE.
    /// @par Cancellation          terminal: closes.
    /// @par Errors                errc::peer_closed_early, errc::timed_out, and those of connection::async_disconnect.
    template <class Token = boost::asio::deferred_t>
    auto async_disconnect(Token&& token = Token{}) {
        return control(
            [](auto const& core, detail::control_handler handler) { start_disconnect(core, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Finishes: async_send_done(), async_wait_done() and async_disconnect().
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Errors                Those of the three.
    template <class Token = boost::asio::deferred_t>
    auto async_finish(Token&& token = Token{}) {
        return control(
            [](auto const& core, detail::control_handler handler) { start_finish(core, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// What an acceptor of sessions answers to a peer for whom it has no room: for acceptor_options::busy_answer.
    static std::vector<std::byte> busy_answer();

    /// Ends at once: as connection::close().
    void close() noexcept;

    /// The connection to read and write with. Do not receive on it: the session does.
    connection& next_layer() noexcept;
    connection const& next_layer() const noexcept;
    /// The connection's executor.
    executor_type get_executor() const noexcept;
    /// Why the session ended; `completed` only after MSG_DONE from both sides.
    close_reason reason() const;
    /// The first failure, of the session or its connection.
    failure last_failure() const;

private:
    using core_ptr = std::shared_ptr<detail::session_core>;
    static void start_connect(core_ptr const&, endpoint const&, detail::control_handler);
    static void start_accept(core_ptr const&, detail::control_handler);
    static void start_publish(core_ptr const&, std::vector<named_region> const&, detail::control_handler);
    static void start_wait_regions(core_ptr const&, detail::regions_handler);
    static void start_exchange(core_ptr const&, std::vector<named_region>, detail::regions_handler);
    static void start_send_done(core_ptr const&, detail::control_handler);
    static void start_wait_done(core_ptr const&, detail::control_handler);
    static void start_disconnect(core_ptr const&, detail::control_handler);
    static void start_finish(core_ptr const&, detail::control_handler);

    template <class Start, class Token>
    auto control(Start start, Token&& token) {
        return boost::asio::async_initiate<Token, void(error_code)>(
            [](auto handler, core_ptr const& core, Start const& begin) {
                begin(core, detail::control_handler{std::move(handler)});
            },
            token,
            core_,
            std::move(start)
        );
    }

    core_ptr core_;
};

}  // namespace rcverbs
