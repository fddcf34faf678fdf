// session.hpp — exchanges memory keys over a connection, and shuts it down gracefully.
//
//     session s{io};
//     co_await s.async_connect({"192.168.0.1", 7471}, use_awaitable);
//     peer_regions theirs = co_await s.async_exchange(use_awaitable);
//     registered_buffer page{s, 4096};
//     co_await s.async_read(theirs.at("page"), page, use_awaitable);
//     co_await s.async_finish(use_awaitable);
//
// A session begins with a hello in the private data of the connection manager (version and mode).
// Each side may send its regions once (MSG_MR), and ends when both have sent MSG_DONE. In between,
// the program reads and writes. The session posts its receives before the peer can
// send, so that its messages never meet RNR.
//
// It uses public functions of connection only; docs/reference/wire-format.md has its messages.
// Threads: as for connection. Any thread may start operations; handlers run on get_executor() by
// default, one at a time.
#pragma once

#include <boost/asio/async_result.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/authentication.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/session_error.hpp>

namespace rcverbs {

/// A region and its name for the peer.
struct named_region {
    /// 0 to 24 bytes; unique within a message if the peer finds it by name.
    std::string name;
    /// The region.
    remote_region region;

    /// From a region.
    named_region(std::string_view n, remote_region r) : name{n}, region{r} {}
    /// From a whole memory region.
    named_region(std::string_view n, memory_region const& r) : name{n}, region{r.remote()} {}
    /// From a whole buffer.
    named_region(std::string_view n, registered_buffer const& b) : name{n}, region{b.remote()} {}
};

/// The regions that the peer exposes.
class RCVERBS_EXPORT peer_regions {
public:
    /// No regions.
    peer_regions() = default;
    /// The regions of a MSG_MR.
    explicit peer_regions(std::vector<named_region> regions) noexcept
        : regions_{std::move(regions)} {}

    /// Number of regions.
    std::size_t size() const noexcept { return regions_.size(); }
    /// A region, in the peer's order. REQUIRES: index < size().
    remote_region const& operator[](std::size_t index) const noexcept {
        return regions_[index].region;
    }
    /// The first of that name; null if there is none.
    remote_region const* find(std::string_view name) const noexcept;
    /// The same.
    ///
    /// @throws boost::system::system_error: channel_errc::no_such_region, with the names that there are.
    remote_region const& at(std::string_view name) const;
    /// All of them.
    std::span<named_region const> all() const noexcept { return regions_; }

private:
    std::vector<named_region> regions_;
};

/// Options of a session.
struct session_options {
    /// A number that the application chooses for its protocol; both sides must have the same.
    std::uint32_t mode = 0;
    /// Deadline for the peer's MSG_MR, from the start of the wait. Above 0.
    std::chrono::milliseconds exchange_timeout{10000};
    /// Deadline for the peer's MSG_DONE, from the start of the wait, and for its disconnect. Above
    /// 0.
    std::chrono::milliseconds finish_timeout{10000};
    /// Who may connect, and whether messages are encrypted, keys included. Empty: everybody.
    authentication_options authentication = {};
    /// Options of the connection, where the session makes it.
    connection_options connection = {};
};

namespace detail {

class session_core;
using regions_handler = erased_handler<error_code, peer_regions>;

}  // namespace detail

/// The members of basic_session that do not depend on its executor type.
class RCVERBS_EXPORT session_base {
public:
    using options_type = session_options;

    /// The options of a connection for a session: `options.connection`.
    static connection_options needed(session_options const& options = {});
    /// Ends at once, as connection::close().
    void close() noexcept;
    /// Why it ended, with close_reason::completed only if both sides shut it down gracefully; and the first
    /// failure, of the session or its connection.
    failure last_failure() const;
    /// The identity that the peer has proved: see authentication_options. Empty on the connecting side,
    /// and without authentication. Any thread.
    std::string peer_identity() const;
    /// The private data with which an acceptor of sessions rejects clients over its limits: a value
    /// for acceptor_options::busy_private_data.
    static std::vector<std::byte> busy_private_data();

protected:
    using core_ptr = std::shared_ptr<detail::session_core>;

    session_base() noexcept = default;
    explicit session_base(core_ptr core) noexcept : core_{std::move(core)} {}
    session_base(connection over, session_options const& options);
    session_base(connection over, session_options const& options, error_code& ec);
    session_base(session_base&&) noexcept = default;
    session_base& operator=(session_base&&) noexcept = default;
    ~session_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    static void start_connect(
        core_ptr const& core, endpoint const& peer, detail::control_handler handler
    );
    static void start_accept(core_ptr const& core, detail::control_handler handler);
    static void start_publish(
        core_ptr const& core,
        std::vector<named_region> const& regions,
        detail::control_handler handler
    );
    static void start_wait_regions(core_ptr const& core, detail::regions_handler handler);
    static void start_exchange(
        core_ptr const& core, std::vector<named_region> regions, detail::regions_handler handler
    );
    static void start_send_done(core_ptr const& core, detail::control_handler handler);
    static void start_wait_done(core_ptr const& core, detail::control_handler handler);
    static void start_disconnect(core_ptr const& core, detail::control_handler handler);
    static void start_finish(core_ptr const& core, detail::control_handler handler);

private:
    friend struct detail::access;

    core_ptr core_;
};

/// The session protocol on one connection.
///
/// Outstanding operations: one of each kind.
template <class Executor = boost::asio::any_io_executor>
class basic_session : public protocol::handle<session_base, Executor> {
    using base = protocol::handle<session_base, Executor>;
    using core_ptr = typename base::core_ptr;

public:
    /// Memory that a session registers for its messages: it counts against RLIMIT_MEMLOCK.
    static constexpr std::size_t locked_bytes = 16384;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_session<Other>;
    };

    using base::base;

    /// Connects, and exchanges hellos with the peer.
    ///
    /// @param peer   The endpoint to connect to.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of connection::async_connect, and session_errc::foreign_peer,
    ///                            version_mismatch, mode_mismatch, peer_busy, malformed_message.
    template <class Token = detail::default_token_t<Executor>>
    auto async_connect(endpoint const& peer, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [peer](core_ptr const& core, detail::control_handler handler) {
                base::start_connect(core, peer, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Checks the peer's hello, and accepts the connection or rejects it with the reason.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of connection::async_accept, and session_errc::foreign_peer,
    ///                            version_mismatch, mode_mismatch, malformed_message: the peer was
    ///                            rejected.
    template <class Token = detail::default_token_t<Executor>>
    auto async_accept(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_accept, std::forward<Token>(token));
    }

    /// Sends MSG_MR with the regions that the peer may use. At most once, and before MSG_DONE.
    ///
    /// @param regions  0 to 64 regions, copied at once; they must stay registered until the peer's
    ///                 MSG_DONE. Inside a co_await expression pass a variable: g++ 12 does not
    ///                 compile a braced list there.
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code)`: called when the peer's device has it.
    /// @par Errors                errc::message_too_large (too many regions, or a name too long),
    ///                            errc::operation_in_progress (MSG_MR or MSG_DONE was sent before),
    ///                            and those of connection::async_send.
    template <class Token = detail::default_token_t<Executor>>
    auto async_publish(std::vector<named_region> regions, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [regions = std::move(regions)](core_ptr const& core, detail::control_handler handler) {
                base::start_publish(core, regions, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// Waits for the peer's MSG_MR; completes at once if it has come already.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, peer_regions)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                errc::timed_out, session_errc::peer_closed_early,
    ///                            session_errc::unexpected_message (MSG_DONE came instead, or MSG_MR
    ///                            twice), session_errc::malformed_message, and those of
    ///                            connection::async_receive.
    template <class Token = detail::default_token_t<Executor>>
    auto async_wait_regions(Token&& token = Token{}) {
        return this->template initiate<error_code, peer_regions>(
            &base::start_wait_regions, std::forward<Token>(token)
        );
    }

    /// Exchanges MSG_MR: async_publish() and async_wait_regions().
    ///
    /// @param regions  As for async_publish().
    /// @param token    Completion token.
    /// @par Completion signature  `void(error_code, peer_regions)`
    /// @par Errors                Those of the two.
    template <class Token = detail::default_token_t<Executor>>
    auto async_exchange(std::vector<named_region> regions, Token&& token = Token{}) {
        return this->template initiate<error_code, peer_regions>(
            [regions = std::move(regions)](core_ptr const& core, detail::regions_handler handler) {
                base::start_exchange(core, regions, std::move(handler));
            },
            std::forward<Token>(token)
        );
    }

    /// The same without regions of this side.
    template <class Token = detail::default_token_t<Executor>>
    requires(!std::convertible_to<Token, std::vector<named_region>>) auto async_exchange(
        Token&& token = Token{}
    ) {
        return async_exchange(std::vector<named_region>{}, std::forward<Token>(token));
    }

    /// As connection::async_write(). next_layer() has the other operations.
    template <class Token = detail::default_token_t<Executor>>
    auto async_write(const_slices const& source, remote_region target, Token&& token = Token{}) {
        return this->next_layer().async_write(source, target, std::forward<Token>(token));
    }
    /// As connection::async_read().
    template <class Token = detail::default_token_t<Executor>>
    auto async_read(remote_region source, mutable_slices const& target, Token&& token = Token{}) {
        return this->next_layer().async_read(source, target, std::forward<Token>(token));
    }
    /// As connection::async_fetch_add().
    template <class Token = detail::default_token_t<Executor>>
    auto async_fetch_add(remote_atomic target, std::uint64_t add, Token&& token = Token{}) {
        return this->next_layer().async_fetch_add(target, add, std::forward<Token>(token));
    }
    /// As connection::async_compare_swap().
    template <class Token = detail::default_token_t<Executor>>
    auto async_compare_swap(
        remote_atomic target, std::uint64_t expected, std::uint64_t desired, Token&& token = Token{}
    ) {
        return this->next_layer().async_compare_swap(
            target, expected, desired, std::forward<Token>(token)
        );
    }

    /// Sends MSG_DONE, once: this side no longer uses the peer's regions, and the peer revokes its
    /// rights.
    ///
    /// Everything written before on the same connection is in the peer's memory when MSG_DONE
    /// arrives.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: called when the peer's device has it. On the
    ///                            accepting side also, with no error, when the peer has
    ///                            disconnected after its own MSG_DONE: it does so when it has this
    ///                            one, and the acknowledgement may be lost.
    /// @par Errors                errc::operation_in_progress (sent before),
    ///                            session_errc::peer_closed_early, and those of connection::async_send.
    template <class Token = detail::default_token_t<Executor>>
    auto async_send_done(Token&& token = Token{}) {
        return this->template initiate<error_code>(
            &base::start_send_done, std::forward<Token>(token)
        );
    }

    /// Waits for the peer's MSG_DONE; completes at once if it has come already.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                As async_wait_regions().
    template <class Token = detail::default_token_t<Executor>>
    auto async_wait_done(Token&& token = Token{}) {
        return this->template initiate<error_code>(
            &base::start_wait_done, std::forward<Token>(token)
        );
    }

    /// Shuts the connection down gracefully. The connecting side disconnects; the accepting side waits for
    /// that until finish_timeout, and then disconnects itself.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`; no error only if both sides had sent
    ///                            MSG_DONE.
    /// @par Cancellation          terminal: closes.
    /// @par Errors                session_errc::peer_closed_early, errc::timed_out, and those of
    ///                            connection::async_disconnect.
    template <class Token = detail::default_token_t<Executor>>
    auto async_disconnect(Token&& token = Token{}) {
        return this->template initiate<error_code>(
            &base::start_disconnect, std::forward<Token>(token)
        );
    }

    /// Finishes: async_send_done(), async_wait_done() and async_disconnect().
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Errors                Those of the three.
    template <class Token = detail::default_token_t<Executor>>
    auto async_finish(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_finish, std::forward<Token>(token));
    }
};

/// With executors of any type.
using session = basic_session<>;

}  // namespace rcverbs
