// request_channel.hpp — requests and their answers, in both directions, over one connection.
//
//     request_channel c{io};
//     co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
//     reply r = co_await c.async_request(get, key, use_awaitable);
//     use(r.status(), r.bytes());
//     co_await c.async_finish(use_awaitable);
//
// and on the other side, which may ask as well:
//
//     for (;;) {
//         request r = co_await c.async_next(use_awaitable);
//         auto const value = find(r.operation(), r.bytes());
//         co_await r.async_answer(0, value, use_awaitable);
//     }
//
// Any number of requests may be outstanding, and be answered in any order. Each has a deadline, can
// be cancelled, and ends in one of three ways: with a reply, with an error, or with the channel.
//
// What the peer can access of this side's memory: the body of a large request. Plain bytes are
// registered for that request alone, and deregistered before its handler runs; of registered slices
// the peer can read the whole region for as long as it is registered. A request that gives memory
// for its answer lets the peer write to the region of that memory.
//
// Bodies are messages (message_channel.hpp): small ones are copied, large ones fetched. A program
// may keep requests and replies as long as it likes: while half of the receives are held, bodies are
// detached, so that neither side waits for the other for ever.
//
// Threads: as for connection. Any thread may start operations and destroy requests and replies;
// handlers run on get_executor() by default, one at a time.
#pragma once

#include <boost/asio/async_result.hpp>
#include <boost/asio/deferred.hpp>

#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include <rcverbs/ask.hpp>
#include <rcverbs/client_sessions.hpp>
#include <rcverbs/detail/channel.hpp>
#include <rcverbs/detail/initiation.hpp>
#include <rcverbs/bytes_view.hpp>
#include <rcverbs/export.hpp>
#include <rcverbs/message_channel.hpp>
#include <rcverbs/remote_region.hpp>

namespace rcverbs {

namespace detail {

class client_core;
class request_core;

// Answers a request once; if it is destroyed before, the peer gets channel_errc::request_dropped.
class RCVERBS_EXPORT responder {
public:
    responder() noexcept;
    responder(
        std::shared_ptr<request_core> core, std::uint16_t id, remote_region const& target
    ) noexcept;
    responder(responder&& other) noexcept;
    responder& operator=(responder&& other) noexcept;
    ~responder();

    bool is_open() const noexcept { return is_open_; }
    bool is_cancelled() const noexcept;
    // Answers if the answer `is_wanted` and none was started before; else the handler is told.
    void start(bool is_wanted, message_content const& what, control_handler handler);
    void drop() noexcept;
    // The request goes back to its channel.
    void disarm() noexcept { is_open_ = false; }
    std::uint64_t target_bytes() const noexcept;
    /// The channel's. REQUIRES: it has been one of a request.
    boost::asio::any_io_executor executor() const;

private:
    std::shared_ptr<request_core> core_;
    remote_region target_;  // where the answer may be written; empty if nowhere
    std::uint16_t id_ = 0;
    bool is_open_ = false;
};

}  // namespace detail

/// A request of the peer's, or a notice, which wants no answer. It is also the message that came
/// with it: bytes(), slice(), size(), is_large(); a large one may be given to async_fetch() and is
/// answered all the same.
///
/// If it is destroyed without an answer, the peer gets channel_errc::request_dropped. Movable to any thread;
/// one thread at a time uses it. Remains valid after the channel.
class RCVERBS_EXPORT request : public message {
public:
    /// No request.
    request() noexcept = default;

    /// The operation that the peer requests, a number of the application.
    std::uint32_t operation() const noexcept { return static_cast<std::uint32_t>(tag()); }
    /// The head that the peer has put before the body: 0 to request_channel::head_bytes_max bytes,
    /// there also before a large body is fetched. Valid until the request is released.
    using message::head;
    /// Bytes of memory that the peer has for the answer. Up to so many are written there; a longer
    /// answer is sent, as all are if it is 0.
    std::uint64_t target_bytes() const noexcept { return responder_.target_bytes(); }
    /// True until it is answered; false for a notice.
    bool wants_answer() const noexcept { return responder_.is_open() && !is_notice_; }
    /// True if the peer no longer waits: it has cancelled the request, or the channel has ended. The
    /// request may be answered, or just be destroyed. False once it is answered.
    bool is_cancelled() const noexcept { return responder_.is_cancelled(); }

    /// Answers. A large body that was not fetched is declined. REQUIRES: this has been a request.
    ///
    /// An operation that is launched later (deferred, use_awaitable) refers to this object until then;
    /// one that is never launched leaves the request unanswered, and its body readable.
    ///
    /// @param what   Status, head and body; the memory of the body is borrowed until the handler runs.
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: the peer's device has the answer; of a large
    ///                            one, the peer's program has fetched it.
    /// @par Cancellation          As for message_channel::async_send(); without an answer the peer
    ///                            gets channel_errc::request_dropped.
    /// @par Errors                After an error the peer gets channel_errc::request_dropped.
    ///                            channel_errc::already_answered; errc::message_too_large (the head, or
    ///                            the body); channel_errc::not_answered if async_finish() has ended the
    ///                            channel, because this answer came later than finish_timeout; those of
    ///                            message_channel::async_send().
    template <class Token = boost::asio::deferred_t>
    auto async_answer(answer const& what, Token&& token = Token{}) {
        return detail::initiate_checked<Token, void(error_code)>(
            detail::initiation{
                responder_.executor(),
                [](auto handler, request* self, answer const& given) {
                    // The peer's request ends when its body is free.
                    if (self->is_large() && self->wants_answer()) self->release();
                    self->responder_.start(
                        !self->is_notice_,
                        detail::access::content_of(given),
                        detail::control_handler{std::move(handler)}
                    );
                }},
            token,
            this,
            what
        );
    }
    /// Short for `async_answer(answer{status}.body(bytes), token)`.
    template <class Body = std::span<std::byte const>, class Token = boost::asio::deferred_t>
    auto async_answer(std::uint32_t status, Body const& bytes, Token&& token = Token{}) {
        return async_answer(answer{status}.body(bytes), std::forward<Token>(token));
    }

private:
    friend class detail::request_core;

    detail::responder responder_;
    bool is_notice_ = false;
};

/// The answer to a request: the message that came, and the peer's status. A large one may be given
/// to async_fetch().
class RCVERBS_EXPORT reply : public message {
public:
    /// No reply.
    reply() noexcept = default;

    /// The peer's number.
    std::uint32_t status() const noexcept { return static_cast<std::uint32_t>(tag()); }
    /// The head that the peer has put before the body, as request::head().
    using message::head;
    /// True if the bytes are in the memory that the request gave: then slice() and bytes() are a
    /// part of it.
    bool is_written() const noexcept { return is_elsewhere(); }
    /// Of a request_client: the number of its connection that the reply came on: 1, 2 … For requests
    /// that must go to the same: ask::on_connection(). Otherwise 0.
    std::uint64_t connection_number() const noexcept { return connection_number_; }

private:
    friend class detail::request_core;
    friend class detail::client_core;

    void move_to(mutable_slice const& into);

    std::uint64_t connection_number_ = 0;
};

/// The number by which a server knows a client that connects again; chosen at random by the client.
using client_identity = std::array<std::byte, 16>;

/// Options of a request channel.
struct request_channel_options {
    /// Options of its messages.
    message_channel_options messages = {};
    /// Requests and notices of the peer's that may be unanswered at a time; further ones wait at the
    /// peer. 1 to 65535.
    std::uint16_t requests = 64;
    /// How long an answer may take, for requests without a timeout of their own. Above 0.
    std::chrono::milliseconds answer_timeout{30000};
    /// Of the connecting side: the client that this channel belongs to. A request_client chooses one.
    /// Leaves 16 bytes for the greeting.
    std::optional<client_identity> identity = {};
    /// Of the accepting side: a client's channel is accepted only when nothing of its older channels
    /// can be executed any more: see client_sessions.hpp. async_accept() waits for that at most
    /// messages.finish_timeout, and then refuses the client as busy. Empty: accepted at once.
    std::optional<client_sessions> sessions = {};
};

/// Counters of a request channel.
struct request_channel_statistics {
    /// Counters of its messages.
    message_channel_statistics messages = {};
    /// Requests of this side that were answered.
    std::uint64_t answered = 0;
    /// Requests of this side that ended otherwise.
    std::uint64_t failed = 0;
    /// Requests and notices of the peer's that have arrived.
    std::uint64_t arrived = 0;
    /// Requests and notices of this side that wait at this moment, because the peer's limit is
    /// reached.
    std::size_t waiting = 0;
    /// Requests and notices of this side that were sent and are not answered at this moment.
    std::size_t outstanding = 0;
};

namespace detail {

using next_handler = erased_handler<error_code, request>;
using reply_handler = erased_handler<error_code, reply>;

}  // namespace detail

namespace detail {

/// What request_channel and request_client have in common. `Handle` has initiate(), and functions that
/// start a question.
template <class Handle>
class requester : public Handle {
    using executor = typename Handle::executor_type;

protected:
    using typename Handle::core_ptr;

public:
    /// Bytes of a head, at most.
    static constexpr std::size_t head_bytes_max = message_content::head_bytes_max;

    using Handle::Handle;

    /// Sends a request to the peer, and waits for the reply. Waits first while the peer's limit of
    /// requests is reached; a client connects first if need be.
    ///
    /// @param what   The request; its memory is borrowed until the handler runs. A client's must belong
    ///               to domain().
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, reply)`. The peer cannot access the memory any
    ///                            more.
    /// @par Cancellation          total: the peer gets a cancellation, and a late answer is ignored.
    /// @par Errors                channel_errc::request_timed_out, channel_errc::request_dropped,
    ///                            errc::not_connected, errc::operation_in_progress (finishing),
    ///                            errc::message_too_large, those that `ask` names, and those of
    ///                            message_channel::async_send() and async_receive(): then it is not
    ///                            known whether the peer has executed the request. Of a client:
    ///                            transient ones only if the request may not be repeated, or its
    ///                            timeout has passed; channel_errc::request_timed_out also if there
    ///                            was no channel in time; those of connector::async_connect() that
    ///                            are not transient; channel_errc::other_connection;
    ///                            asio::error::operation_aborted (closed).
    template <class Token = default_token_t<executor>>
    auto async_request(ask const& what, Token&& token = Token{}) {
        return this->template initiate<error_code, reply>(
            [what](core_ptr const& core, reply_handler handler) {
                Handle::start_request(core, access::content_of(what), std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Short for `async_request(ask{operation}.body(bytes), token)`.
    template <class Body = std::span<std::byte const>, class Token = default_token_t<executor>>
    auto async_request(std::uint32_t operation, Body const& bytes, Token&& token = Token{}) {
        return async_request(ask{operation}.body(bytes), std::forward<Token>(token));
    }

    /// Sends a notice to the peer: a request without an answer.
    ///
    /// @param what   As for async_request().
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code)`: the peer's device has it; of a large one, the
    ///                            peer's program has fetched it, or destroyed it.
    /// @par Cancellation          total, as for async_request().
    /// @par Errors                As for async_request().
    template <class Token = default_token_t<executor>>
    auto async_notify(ask const& what, Token&& token = Token{}) {
        return this->template initiate<error_code>(
            [what](core_ptr const& core, control_handler handler) {
                Handle::start_notify(core, access::content_of(what), std::move(handler));
            },
            std::forward<Token>(token)
        );
    }
    /// Short for `async_notify(ask{operation}.body(bytes), token)`.
    template <class Body = std::span<std::byte const>, class Token = default_token_t<executor>>
    auto async_notify(std::uint32_t operation, Body const& bytes, Token&& token = Token{}) {
        return async_notify(ask{operation}.body(bytes), std::forward<Token>(token));
    }
};

}  // namespace detail

/// The members of basic_request_channel that do not depend on its executor type.
class RCVERBS_EXPORT request_channel_base : public detail::channel_base {
public:
    using options_type = request_channel_options;

    /// The options of a connection for a channel: `options.messages.connection` with queues that are
    /// deep enough. For connections that the channel does not make itself.
    static connection_options needed(request_channel_options const& options = {});

    /// A snapshot of the counters.
    request_channel_statistics statistics() const;

protected:
    using channel_base::channel_base;
    request_channel_base(connection over, request_channel_options const& options);
    request_channel_base(connection over, request_channel_options const& options, error_code& ec);
    request_channel_base(request_channel_base&&) noexcept = default;
    request_channel_base& operator=(request_channel_base&&) noexcept = default;
    ~request_channel_base() = default;

    static void start_request(
        core_ptr const& core, detail::question const& what, detail::reply_handler handler
    );
    static void start_notify(
        core_ptr const& core, detail::question const& what, detail::control_handler handler
    );
    static void start_next(core_ptr const& core, detail::next_handler handler);
};

/// Requests and answers over one connection, in both directions.
///
/// Outstanding operations: one connect or accept; any number of the others.
template <class Executor = boost::asio::any_io_executor>
class basic_request_channel
    : public detail::requester<detail::basic_channel<request_channel_base, Executor>> {
    using base = detail::requester<detail::basic_channel<request_channel_base, Executor>>;
    using core_ptr = typename base::core_ptr;

public:
    /// The same with another executor type.
    template <class Other>
    struct rebind_executor {
        using other = basic_request_channel<Other>;
    };

    using base::base;

    /// Waits for the next request, or notice, of the peer's.
    ///
    /// @param token  Completion token.
    /// @par Completion signature  `void(error_code, request)`
    /// @par Cancellation          total: the request remains for the next call.
    /// @par Errors                asio::error::eof (the peer sends no more requests), and when all
    ///                            requests have been delivered those of
    ///                            message_channel::async_receive().
    template <class Token = detail::default_token_t<Executor>>
    auto async_next(Token&& token = Token{}) {
        return this->template initiate<error_code, request>(
            &base::start_next, std::forward<Token>(token)
        );
    }
};

/// With executors of any type.
using request_channel = basic_request_channel<>;

}  // namespace rcverbs
