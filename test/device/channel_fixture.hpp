// channel_fixture.hpp — what tests of message channels and request channels share: messages, and
// peers that send what they like.
#pragma once

#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/fixture.hpp"
#include "support/bytes.hpp"

namespace test {

inline std::vector<std::byte> bytes_of(std::string const& text) {
    auto const bytes = std::as_bytes(std::span{text});
    return {bytes.begin(), bytes.end()};
}
inline std::string text_of(std::span<std::byte const> bytes) {
    return {reinterpret_cast<char const*>(bytes.data()), bytes.size()};
}

/// What is in a message of this size and number, so that a receiver can check it.
inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t number) {
    std::vector<std::byte> bytes(size);
    fill(bytes, static_cast<std::uint32_t>(number));
    return bytes;
}

inline asio::awaitable<void> pause(asio::io_context& io, std::chrono::milliseconds time) {
    asio::steady_timer timer{io, time};
    co_await timer.async_wait(asio::use_awaitable);
}

/// Waits until something is true; the test's own timeout ends it.
template <class Condition>
asio::awaitable<void> until(asio::io_context& io, Condition is_true) {
    while (!is_true()) co_await pause(io, 1ms);
}

// --- hostile peers -------------------------------------------------------------------------------

inline void put(std::vector<std::byte>& to, std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = bytes; i-- > 0;) to.push_back(static_cast<std::byte>(value >> (8 * i)));
}

/// A message of a channel, as its format says, or not.
struct forged {
    char const* what;
    std::uint8_t type = 1;
    std::uint8_t credits_taken = 0;
    std::uint16_t given_back = 0;
    std::uint32_t count = 0;
    std::uint64_t tag = 0;
    std::size_t more = 0;
    /// Of a LARGE: the size that its segment claims; 0 for no segment.
    std::uint64_t segment_bytes = 0;

    std::vector<std::byte> bytes() const {
        std::vector<std::byte> b;
        put(b, type, 1);
        put(b, credits_taken, 1);
        put(b, given_back, 2);
        put(b, count, 4);
        put(b, tag, 8);
        b.resize(b.size() + more);
        if (segment_bytes == 0) return b;
        put(b, 4096, 8);
        put(b, segment_bytes, 8);
        put(b, 1, 4);
        put(b, 4, 4);
        return b;
    }
};

/// The hello of a channel of mode 3 with receives of 512 bytes.
///
/// @param requests  Of a request channel; else 0.
inline std::vector<std::byte> forged_hello(std::uint16_t requests = 0, std::uint16_t receives = 8) {
    auto h = bytes_of("RCVC");
    put(h, 2, 2);
    put(h, 0, 2);
    put(h, 3, 4);
    put(h, 512, 4);
    put(h, receives, 2);
    put(h, 0, 2);
    put(h, requests, 2);
    put(h, 0, 2);
    return h;
}

/// A server's channel whose peer is a bare connection that has sent a proper hello.
template <class Channel>
struct hostile_ends {
    explicit hostile_ends(asio::io_context& io) : door{io, {device_address(), 0}}, peer{io} {}

    rcverbs::acceptor door;
    rcverbs::connection peer;
    Channel server;
    rcverbs::registered_buffer memory;  // of the peer

    /// Posts a receive of the peer's. Its number is 0 to 7.
    void receive(std::size_t i, bool for_ever) {
        peer.async_receive(
            memory.slice(8192 + 512 * i, 512),
            [this, i, for_ever](rcverbs::error_code ec, rcverbs::receive_result const&) {
                if (!ec && for_ever) receive(i, true);
            }
        );
    }
};

/// @param options   Of the server's channel: mode 3, 8 receives of 512 bytes.
/// @param receives  That the peer says it has; it posts 8, again and again if it says more.
template <class Channel>
asio::awaitable<void> meet_hostile(
    asio::io_context& io,
    hostile_ends<Channel>& e,
    typename Channel::options_type options,
    std::uint16_t requests = 0,
    std::uint16_t receives = 8
) {
    using namespace rcverbs;
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        connection_options all = Channel::needed(options);
        all.queue_pair.rnr_retry_count = 0;
        e.server = Channel{connection{io, std::move(asked), all}, options};
        co_await e.server.async_accept(asio::use_awaitable);
    };
    auto const visit = [&]() -> asio::awaitable<void> {
        co_await e.peer.async_resolve(e.door.local_endpoint(), asio::use_awaitable);
        e.memory = registered_buffer{e.peer.domain(), 16384, access_flags::local_write};
        for (std::size_t i = 0; i < 8; ++i) {
            e.receive(i, receives > 8);
        }
        auto const hello = forged_hello(requests, receives);
        co_await e.peer.async_establish(hello, asio::use_awaitable);
    };
    co_await (answer() && visit());
}

template <class Channel>
asio::awaitable<error_code> send(hostile_ends<Channel>& e, std::vector<std::byte> bytes) {
    std::ranges::copy(bytes, e.memory.bytes().begin());
    auto [ec, size] = co_await e.peer.async_send(e.memory.slice(0, bytes.size()), awaiting);
    co_return ec;
}

}  // namespace test
