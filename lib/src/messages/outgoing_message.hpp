// outgoing_message.hpp — a message of this side's: what the program gave, and its bytes in a send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <rcverbs/batch.hpp>
#include <rcverbs/bytes_view.hpp>
#include <rcverbs/connection.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/remote_region.hpp>

#include "wire/channel_message.hpp"
#include "wire/request_tag.hpp"

namespace rcverbs::detail {

/// A body that is written to the peer's memory before its message is sent.
struct written_body {
    slice_list source;
    remote_region target;
    batch all;

    /// Puts the writes and the message into the batch. All or nothing: the message says that the
    /// bytes are there.
    void add(mutable_slice const& message);
};

struct outgoing_message {
    static constexpr std::uint64_t bytes_max = std::uint64_t{1} << 32;

    std::uint64_t tag = 0;
    std::uint64_t size_bytes = 0;  // without the prefix
    bool is_large = false;
    wire::request_prefix prefix;  // of a request channel
    slice_list source;  // of a small message

    /// The program's memory, if it is used until the message is over, not only until it is posted.
    struct exposed {
        std::vector<remote_region> segments;  // of a large message
        const_memory_region registered;  // for this message
        std::shared_ptr<written_body> writes;
    };
    std::unique_ptr<exposed> memory;

    bool has_memory() const noexcept { return memory != nullptr; }
    /// True if the body is written before the message is sent.
    bool is_written() const noexcept { return has_memory() && memory->writes != nullptr; }
    /// What is counted as sent, wherever it goes.
    std::uint64_t all_bytes() const noexcept {
        std::uint64_t const written = is_written() ? memory->writes->source.size() : 0;
        return prefix.size_bytes + size_bytes + written;
    }
    /// Writes all but the head, and sets `head.count`. Returns the bytes behind the head.
    ///
    /// @param place  Of the message, head and all. REQUIRES: room.
    std::size_t encode(wire::channel_head& head, std::span<std::byte> place) const;
};

/// Makes a message; a large one may be registered for it.
///
/// @param over      The channel's connection.
/// @param body      The program's memory, unchanged until the message is over.
/// @param before    What precedes the body, on a request channel.
/// @param is_large  It does not fit into a receive.
/// @param refused   errc::message_too_large, errc::too_many_segments, and the errors of
///                  memory_region and of protocol::expose().
outgoing_message compose(
    connection& over,
    body_source const& body,
    wire::request_prefix const& before,
    bool is_large,
    error_code& refused
);
/// Makes a message whose body is written to the peer's memory before.
outgoing_message compose_written(
    connection& over, body_source const& body, remote_region const& target, error_code& refused
);

}  // namespace rcverbs::detail
