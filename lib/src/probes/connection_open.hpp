// connection_open.hpp — the probe that names the peer of a connection.
#pragma once

#include <cstdint>

#include <rcverbs/endpoint.hpp>

namespace rcverbs::detail {

/// Fires connection_open(connection, number of the queue pair, the peer's address as a C string, its port).
/// The text is made only if somebody listens.
void fire_connection_open(
    void const* connection, std::uint32_t queue_pair_number, endpoint const& peer
);

}  // namespace rcverbs::detail
