// message_channel.hpp — messages of any size, in order, with flow control.
//
//     message_channel c{io};
//     co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
//     co_await c.async_send(text, 7, use_awaitable);
//     message answer = co_await c.async_receive(use_awaitable);
//     use(answer.tag(), answer.bytes());
//     co_await c.async_finish(use_awaitable);
//
// Small messages are copied into registered memory, and arrive in registered memory of the
// receiver, which uses them in place. When a message is destroyed, its receive is given back to the
// sender. The receiver of a large message chooses the memory, and reads the bytes from the sender's
// memory: async_fetch(). Messages arrive in the order of the sends, whatever their sizes, one for
// each send.
//
// A message is sent only when the peer has a receive for it. While the receiver holds messages in
// all its receives, the sender waits. So a slow receiver slows the sender down, and never ends the
// connection.
//
// It uses public functions of connection only; docs/reference/channel-format.md has its messages.
// Threads: as for connection. Any thread may start operations and destroy messages; handlers run on
// get_executor() by default, one at a time.
#pragma once

#include <boost/asio/async_result.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/authentication.hpp>
#include <rcverbs/close_reason.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/detail/control_handler.hpp>
#include <rcverbs/detail/channel.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/bytes_view.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/slice.hpp>
#include <rcverbs/message.hpp>

namespace rcverbs {

/// Options of a message channel.
struct message_channel_options {
    /// A number that the application chooses for its protocol; both sides must have the same.
    std::uint32_t mode = 0;
    /// Receives that this side posts. This side may hold that many messages, minus four; then the
    /// peer waits. 6 to 32767.
    std::uint16_t receives = 32;
    /// Messages of this side that may be in flight. 1 to 32767.
    std::uint16_t sends = 29;
    /// Bytes of a receive. The channel uses 16 of them, and 16 more for encryption; a longer message is a
    /// large one. The default
    /// has room for a page and 48 bytes beside it. 512 to 2^20.
    std::uint32_t slot_bytes = 4160;
    /// Deadline for the peer's end (CLOSE), from the start of async_finish(). Above 0.
    std::chrono::milliseconds finish_timeout{10000};
    /// How long the peer may take to confirm that it no longer uses this side's memory: that it does
    /// not read a large message whose send was cancelled, or the large body of a request that was
    /// cancelled or has timed out, and does not write the answer of such a request. Then the channel
    /// ends. Above 0.
    std::chrono::milliseconds withdraw_timeout{1000};
    /// Who may connect, and whether messages are encrypted. Empty: everybody.
    authentication_options authentication = {};
    /// Options of the connection, where the channel makes it. The queues are made deep enough.
    connection_options connection = {};
};

/// Counters of a message channel.
struct message_channel_statistics {
    /// Messages whose sends have succeeded.
    std::uint64_t sent = 0;
    /// Their bytes.
    std::uint64_t sent_bytes = 0;
    /// Messages that have arrived.
    std::uint64_t arrived = 0;
    /// Their bytes.
    std::uint64_t arrived_bytes = 0;
    /// Messages that only gave receives back.
    std::uint64_t credits_sent = 0;
    /// Sends that wait for a receive of the peer, or a free slot, at this moment.
    std::size_t waiting = 0;
    /// Receives that the program holds at this moment: messages neither released nor detached.
    std::size_t held = 0;
};

namespace detail {

using message_handler = erased_handler<error_code, message>;

}  // namespace detail

/// The members of basic_message_channel that do not depend on its executor type.
class RCVERBS_EXPORT message_channel_base : public detail::channel_base {
public:
    using options_type = message_channel_options;

    /// The options of a connection for a channel: `options.connection` with queues that are deep
    /// enough. For connections that the channel does not make itself.
    static connection_options needed(message_channel_options const& options = {});

    /// A snapshot of the counters.
    message_channel_statistics statistics() const;

protected:
    using channel_base::channel_base;
    message_channel_base(connection over, message_channel_options const& options);
    message_channel_base(connection over, message_channel_options const& options, error_code& ec);
    message_channel_base(message_channel_base&&) noexcept = default;
    message_channel_base& operator=(message_channel_base&&) noexcept = default;
    ~message_channel_base() = default;

    static void start_send(
        core_ptr const& core,
        detail::body_source const& body,
        std::uint64_t tag,
        detail::control_handler handler
    );
    static void start_receive(core_ptr const& core, detail::message_handler handler);
};

/// Messages over one connection.
///
/// Outstanding operations: one connect or accept; any number of the others.
template <class Executor = boost::asio::any_io_executor>
class basic_message_channel : public detail::basic_channel<message_channel_base, Executor> {
    using base = detail::basic_channel<message_channel_base, Executor>;
    using core_ptr = typename base::core_ptr;

public:
    /// Slices in a large message, at most.
    static constexpr std::size_t segments_max = 16;

    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_message_channel<Other>;
    };

    using base::base;

    /// Sends a message; waits while the peer has no receive for it.
    ///
    /// @param bytes  0 to 2^32 bytes, unchanged until the handler runs. Up to small_bytes_max()
    ///               they are copied; more are registered for the time of the message, which costs
    ///               system calls: use slices of registered memory for large messages.
    /// @param tag    A number for the receiver.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: the peer's device has the message; of a large
    ///                            message, the peer's program has fetched it.
    /// @par Cancellation          total while it waits: operation_aborted, the peer gets nothing.
    ///                            Once sent, total for a large message, which is withdrawn:
    ///                            channel_errc::message_withdrawn when the peer has confirmed that, or no
    ///                            error if it has fetched it. Terminal for a small one: closes.
    /// @par Errors                channel_errc::message_declined (a large one), errc::message_too_large,
    ///                            errc::not_connected, errc::operation_in_progress (finishing), the
    ///                            errors of memory_region, and those of connection::async_send:
    ///                            then it is not known whether the peer has it.
    template <
        class Body = std::span<std::byte const>,
        class Token = detail::default_token_t<Executor>>
    requires(!detail::slices_only<Body>) auto async_send(
        Body const& bytes, std::uint64_t tag, Token&& token = Token{}
    ) {
        return this->template initiate<error_code>(
            [body = detail::body_of(bytes), tag](
                core_ptr const& core, detail::control_handler handler
            ) { base::start_send(core, body, tag, std::move(handler)); },
            std::forward<Token>(token)
        );
    }
    /// The same from registered memory: one slice, or a range of up to segments_max. A large
    /// message's regions need access_flags::remote_read, and the peer can read them, as a whole,
    /// for as long as they are registered.
    template <class Token = detail::default_token_t<Executor>>
    auto async_send(const_slices const& source, std::uint64_t tag, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [body = detail::body_source{source}, tag](
                core_ptr const& core, detail::control_handler handler
            ) { base::start_send(core, body, tag, std::move(handler)); },
            std::forward<Token>(token)
        );
    }

    /// Waits for the next message.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, message)`
    /// @par Cancellation          total: the message remains for the next call.
    /// @par Errors                asio::error::eof (the peer has finished), and when all messages
    ///                            have been received: channel_errc::peer_closed_early,
    ///                            channel_errc::malformed_message, those of connection::async_receive,
    ///                            asio::error::operation_aborted (closed).
    template <class Token = detail::default_token_t<Executor>>
    auto async_receive(Token&& token = Token{}) {
        return this->template initiate<error_code, message>(
            &base::start_receive, std::forward<Token>(token)
        );
    }
};

/// With executors of any type.
using message_channel = basic_message_channel<>;

}  // namespace rcverbs
