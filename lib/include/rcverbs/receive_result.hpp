// receive_result.hpp — the outcome of a receive. Values; no threading rule.
//
//     receive_result got = co_await c.async_receive(inbox.slice(), use_awaitable);
//     if (got.immediate) std::cout << "number " << *got.immediate << '\n';
//     if (!got.is_write) use(inbox.bytes().first(got.size_bytes));
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <rcverbs/keys.hpp>

namespace rcverbs {

/// The outcome of one receive.
struct receive_result {
    /// Bytes that arrived: those now in the buffer for a send, those written elsewhere for a write
    /// with immediate.
    std::size_t size_bytes = 0;
    /// The immediate data in host byte order, if the peer sent any. 0 is a value like any other.
    std::optional<std::uint32_t> immediate;
    /// True if the peer's operation was a write with immediate, which leaves the receive's buffer
    /// untouched.
    bool is_write = false;
    /// The key that the message invalidated on this side, if the peer asked for that and the device
    /// reports it.
    std::optional<remote_key> invalidated;
    /// The number of the queue pair that received the message: identifies the connection when
    /// connections share their receives.
    std::uint32_t queue_pair_number = 0;
};

}  // namespace rcverbs
