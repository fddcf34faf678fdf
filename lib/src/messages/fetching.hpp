// fetching.hpp — the reads that bring a large message of the peer's into the program's memory.
//
// Its segments are read one after another, so that many messages that are fetched at a time leave room
// in the connection's queues.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <rcverbs/message.hpp>
#include <rcverbs/slice.hpp>

#include "messages/channel_core.hpp"
#include "wire/channel_message.hpp"

namespace rcverbs::detail {

/// The memory for each segment: the parts of `into`, in order, that have as many bytes.
/// REQUIRES: `into` has as many bytes as all segments.
std::vector<std::vector<mutable_slice>> parts_of(
    slice_list const& into, wire::channel_segments const& segments
);

/// Copies the bytes of a small message. REQUIRES: `into` has as many.
void copy_to(slice_list const& into, std::span<std::byte const> bytes) noexcept;

/// Keeps the channel, and the message, until its handler is called.
struct channel_core::fetching : std::enable_shared_from_this<fetching> {
    std::shared_ptr<channel_core> core;
    message what;
    waiter handler;
    wire::channel_segments segments;
    std::vector<std::vector<mutable_slice>> parts;
    std::size_t next = 0;

    void read();
    void on_read(error_code ec);
    void end(error_code ec);
};

}  // namespace rcverbs::detail
