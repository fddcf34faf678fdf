// ask.hpp — requests and answers as values.
//
//     reply r = co_await c.async_request(ask{get}.head(key).into(block).within(1s), use_awaitable);
//
//     co_await c.async_notify(ask{changed}.body(key), use_awaitable);
//     co_await r.async_answer(answer{ok}.body(value), use_awaitable);
//
// A value says what is sent; nothing happens until a channel, a client or a request gets it. It can
// be copied, and sent any number of times. Functions without a rule of their own change the value and
// return it.
//
// Threads: as for any value.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include <rcverbs/bytes_view.hpp>
#include <rcverbs/slice.hpp>

namespace rcverbs {

namespace detail {

struct access;

// What a request or an answer sends.
struct message_content {
    static constexpr std::size_t head_bytes_max = 64;

    std::uint32_t number = 0;
    std::size_t head_bytes = 0;  // may be too many
    std::array<std::byte, head_bytes_max> head_storage{};
    body_source body;

    /// REQUIRES: head_bytes is not too many.
    std::span<std::byte const> head() const noexcept {
        return std::span{head_storage}.first(head_bytes);
    }
};

// A request or a notice.
struct question : message_content {
    mutable_slice into;
    std::optional<std::chrono::milliseconds> timeout;
    // Of a client's.
    std::optional<std::uint64_t> connection_number;
    bool may_repeat = false;
};

// What requests and answers have in common.
template <class Derived, class Content>
class message_value {
public:
    /// Puts bytes before the body, which the peer has with the message, also before it fetches a large
    /// body.
    ///
    /// @param bytes  0 to request_channel::head_bytes_max bytes, copied now. More are refused with
    ///               errc::message_too_large when the value is sent.
    Derived& head(bytes_view bytes) noexcept {
        content_.head_bytes = bytes.size();
        std::copy_n(
            bytes.data(),
            std::min(bytes.size(), message_content::head_bytes_max),
            content_.head_storage.begin()
        );
        return static_cast<Derived&>(*this);
    }
    /// Sends a body.
    ///
    /// @param bytes  0 to 2^32 bytes, borrowed until the handler runs: what converts to a bytes_view, or
    ///               registered memory. Up to small_bytes_max() bytes are copied; more are registered for
    ///               this message, which costs system calls. Registered memory is one slice, or a range of
    ///               up to message_channel::segments_max. A large body's regions need
    ///               access_flags::remote_read, and the peer can read them, as a whole, for as long as
    ///               they are registered.
    template <class Body>
    Derived& body(Body const& bytes) {
        content_.body = body_of(bytes);
        return static_cast<Derived&>(*this);
    }

protected:
    explicit message_value(std::uint32_t number) noexcept { content_.number = number; }

    Content content_;

private:
    friend struct detail::access;
};

}  // namespace detail

/// A request, or a notice: request_channel::async_request() and async_notify(), and those of
/// request_client.
class ask : public detail::message_value<ask, detail::question> {
public:
    /// A request without head and body.
    ///
    /// @param operation  The application's number: request::operation().
    explicit ask(std::uint32_t operation) noexcept : message_value{operation} {}

    /// Gives memory for the answer. An answer of up to its size is there when the handler runs, and
    /// reply::is_written() is true: a large one is written by the peer, which saves the fetch. A longer
    /// answer comes as without it. No effect on a notice.
    ///
    /// The peer can write to the region, as a whole, for as long as it is registered; an rcverbs peer
    /// writes until the handler runs: after a timeout or a cancellation that waits until the peer has
    /// confirmed it, or until withdraw_timeout has passed and the connection has ended.
    ///
    /// @param memory  Of a region with remote_write, borrowed until the handler runs; an empty slice for
    ///                none. The request fails with errc::region_gone, errc::foreign_domain or
    ///                errc::access_denied if it cannot be used.
    ask& into(mutable_slice const& memory) noexcept {
        content_.into = memory;
        return *this;
    }
    /// How long the answer may take, from the start of the request; of a client's, connecting and
    /// repeating count.
    ///
    /// @param timeout  Above 0; otherwise the request fails with errc::invalid_option. The default is
    ///                 request_channel_options::answer_timeout.
    ask& within(std::chrono::milliseconds timeout) noexcept {
        content_.timeout = timeout;
        return *this;
    }
    /// Of a request_client: lets it send the request again after a failure of the connection. A channel
    /// sends once.
    ///
    /// @param may  True if executing it twice does no harm. If the server has
    ///             request_channel_options::sessions, both executions come before those of later requests;
    ///             otherwise an execution may come later, and must do no harm then, either.
    ask& may_repeat(bool may = true) noexcept {
        content_.may_repeat = may;
        return *this;
    }
    /// Of a request_client: sends it only on one connection, and does not repeat it: it fails with
    /// channel_errc::other_connection if that has ended. For requests such as a flush, which mean nothing
    /// to a server that has restarted since. A channel refuses it with errc::invalid_option.
    ///
    /// @param number  reply::connection_number().
    ask& on_connection(std::uint64_t number) noexcept {
        content_.connection_number = number;
        return *this;
    }
};

/// An answer: request::async_answer().
class answer : public detail::message_value<answer, detail::message_content> {
public:
    /// An answer without head and body.
    ///
    /// @param status  The application's number: reply::status().
    explicit answer(std::uint32_t status) noexcept : message_value{status} {}
};

}  // namespace rcverbs
