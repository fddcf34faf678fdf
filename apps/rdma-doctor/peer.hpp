// peer.hpp — tests RDMA between two machines: one serves, the other connects, and writes and reads
// single packets of growing sizes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include <rcverbs/endpoint.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/failure.hpp>

namespace rdma_doctor {

/// The port of serve(), unless another is given.
inline constexpr std::uint16_t peer_port = 7475;

struct peer_result {
    /// The peer's address, and this machine's, if a route was found.
    std::string address;
    std::string local_address;
    std::uint16_t port = 0;
    /// The largest packets of the connection, in bytes of data; 0 without a connection.
    unsigned path_mtu = 0;
    /// The largest single packets that arrived there, by a write, and here, by a read.
    std::size_t written_bytes = 0;
    std::size_t read_bytes = 0;
    /// The bytes of the operation under way, and its direction.
    std::size_t size_bytes = 0;
    bool is_reading = false;
    /// The step that failed, its cause and its text; empty if all succeeded.
    rcverbs::step where = rcverbs::step::open;
    rcverbs::error_code code;
    std::string failure;

    bool works() const noexcept { return failure.empty(); }
};

/// Connects to a peer that serves. `deadline` applies to each step. Failures are returned, never
/// thrown.
peer_result test_peer(rcverbs::endpoint const& peer, std::chrono::milliseconds deadline);

/// Serves such tests at an address (empty for all) until SIGINT or SIGTERM, and prints each.
/// Throws boost::system::system_error if it cannot listen.
void serve(std::string const& address, std::uint16_t port, std::chrono::milliseconds deadline);

}  // namespace rdma_doctor
