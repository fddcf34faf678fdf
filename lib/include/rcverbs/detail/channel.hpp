// channel.hpp — what message channels and request channels have in common: connecting, fetching, and
// the end. Internal.
#pragma once

#include <boost/asio/async_result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/experimental/protocol/handle.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/message.hpp>

namespace rcverbs::detail {

/// The members of both kinds of channel that do not depend on the executor type.
class RCVERBS_EXPORT channel_base {
public:
    /// Bytes of the application's greeting, at most.
    static constexpr std::size_t greeting_bytes_max = 32;

    /// Cancels the sends, receives, requests, notices and answers that are outstanding, each as its
    /// cancellation slot does with `total`: what is not sent ends with
    /// asio::error::operation_aborted, what the peer can still access ends when the peer has confirmed
    /// that it does not, and small messages that were sent are not affected. Neither are connecting,
    /// accepting, fetching and finishing; close() ends them.
    void cancel();
    /// Ends at once, as connection::close().
    void close() noexcept;
    /// Why it ended, with close_reason::completed only if both sides ended it in order; and the first
    /// failure, of the channel or its connection.
    failure last_failure() const;
    /// The peer's greeting. Known to the accepting side at once, to the connecting one when
    /// connected.
    std::vector<std::byte> greeting() const;
    /// The identity that the peer has proved: see authentication_options. Empty on the connecting side,
    /// and without authentication. Any thread.
    std::string peer_identity() const;
    /// Messages up to this size are copied; longer ones are large. Follows from the slot_bytes of
    /// both sides, so it is known when connected.
    std::uint32_t small_bytes_max() const noexcept;

protected:
    using core_ptr = std::shared_ptr<channel_core>;

    channel_base() noexcept = default;
    explicit channel_base(core_ptr core) noexcept : core_{std::move(core)} {}
    channel_base(channel_base&&) noexcept = default;
    channel_base& operator=(channel_base&&) noexcept = default;
    ~channel_base() = default;
    core_ptr const& core() const noexcept { return core_; }

    static void start_connect(
        core_ptr const& core,
        endpoint const& peer,
        std::vector<std::byte> greeting,
        control_handler handler
    );
    static void start_accept(
        core_ptr const& core, std::vector<std::byte> greeting, control_handler handler
    );
    static void start_fetch(
        core_ptr const& core, message what, mutable_slices const& into, control_handler handler
    );
    static void start_finish(core_ptr const& core, control_handler handler);

private:
    friend struct access;

    core_ptr core_;
};

/// `Base` is derived from channel_base.
template <class Base, class Executor>
class basic_channel : public protocol::handle<Base, Executor> {
    using base = protocol::handle<Base, Executor>;

protected:
    using typename base::core_ptr;

public:
    /// Connects, and exchanges hellos with the peer.
    ///
    /// @param peer      The endpoint to connect to.
    /// @param greeting  0 to greeting_bytes_max bytes of the application's for the peer, copied.
    /// @param token     Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of connection::async_connect, and channel_errc::foreign_peer,
    ///                            version_mismatch, mode_mismatch, peer_busy, malformed_message,
    ///                            queues_too_small (the connection was not made with needed());
    ///                            errc::private_data_too_large (the greeting); with
    ///                            authentication_options errc::security_mismatch,
    ///                            authentication_failed, unknown_identity, identity_refused.
    template <class Token = default_token_t<Executor>>
    auto async_connect(
        endpoint const& peer, std::span<std::byte const> greeting, Token&& token = Token{}
    ) {
        return this->template initiate<error_code>(
            [peer, bytes = std::vector<std::byte>(greeting.begin(), greeting.end())](
                core_ptr const& core, control_handler handler
            ) { base::start_connect(core, peer, bytes, std::move(handler)); },
            std::forward<Token>(token)
        );
    }
    /// The same without a greeting.
    template <class Token = default_token_t<Executor>>
    requires(!std::convertible_to<Token, std::span<std::byte const>>) auto async_connect(
        endpoint const& peer, Token&& token = Token{}
    ) {
        return async_connect(peer, std::span<std::byte const>{}, std::forward<Token>(token));
    }

    /// Checks the peer's hello, and accepts the connection or rejects it with the reason.
    ///
    /// @param greeting  As for async_connect().
    /// @param token     Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          terminal: closes.
    /// @par Errors                Those of connection::async_accept, and channel_errc::foreign_peer,
    ///                            version_mismatch, mode_mismatch, malformed_message: the peer was
    ///                            rejected; queues_too_small; errc::private_data_too_large; those of
    ///                            authentication, as for async_connect().
    template <class Token = default_token_t<Executor>>
    auto async_accept(std::span<std::byte const> greeting, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [bytes = std::vector<std::byte>(greeting.begin(), greeting.end())](
                core_ptr const& core, control_handler handler
            ) { base::start_accept(core, bytes, std::move(handler)); },
            std::forward<Token>(token)
        );
    }
    /// The same without a greeting.
    template <class Token = default_token_t<Executor>>
    requires(!std::convertible_to<Token, std::span<std::byte const>>) auto async_accept(
        Token&& token = Token{}
    ) {
        return async_accept(std::span<std::byte const>{}, std::forward<Token>(token));
    }

    /// Brings the bytes of a message into memory of the program's, and releases it: those of a large
    /// one are read from the peer's memory, those of a small one are copied. So a program need not
    /// know which it is.
    ///
    /// @param what   A message of this channel.
    /// @param into   As many bytes as the message has. For a large one registered with local_write.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`
    /// @par Cancellation          None: the reads of the peer's memory run to their end, or until
    ///                            the channel is closed.
    /// @par Errors                errc::out_of_range (another size, or no message of this channel),
    ///                            channel_errc::message_withdrawn, and those of connection::async_read.
    template <class Token = default_token_t<Executor>>
    auto async_fetch(message what, mutable_slices into, Token&& token = Token{}) {
        return initiate_checked<Token, void(error_code)>(
            initiation{
                this->get_executor(),
                [](auto handler, core_ptr const& core, message m, mutable_slices const& to) {
                    base::start_fetch(core, std::move(m), to, control_handler{std::move(handler)});
                },
                failure_of{this}},
            token,
            this->core(),
            std::move(what),
            into
        );
    }

    /// Finishes: waits until all messages of this side have been sent and its requests have been
    /// answered, sends the end to the peer, waits until the peer has finished, and disconnects.
    /// Meanwhile the program can receive the peer's messages and answer its requests, and must do
    /// so if the peer waits for that. It may be called more than once, by whoever ends the channel
    /// and by the loop that receives: all get the same result.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`; no error only if both sides have finished.
    /// @par Cancellation          terminal: closes.
    /// @par Errors                After finish_timeout channel_errc::peer_not_answered, not_answered,
    ///                            peer_not_received or peer_not_finished, which say for what it has
    ///                            waited and are condition::timed_out; channel_errc::peer_closed_early,
    ///                            errc::not_connected, and those of connection::async_disconnect.
    template <class Token = default_token_t<Executor>>
    auto async_finish(Token&& token = Token{}) {
        return this->template initiate<error_code>(&base::start_finish, std::forward<Token>(token));
    }

    using base::base;
};

}  // namespace rcverbs::detail
