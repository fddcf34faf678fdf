// nbd_connection.hpp — one connection to an NBD server: libnbd's calls, and what they say.
#pragma once

#include <boost/system/system_error.hpp>
#include <libnbd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace rcverbs::nvme::detail {

struct nbd_closer {
    void operator()(nbd_handle* h) const noexcept { ::nbd_close(h); }
};
using nbd_connection = std::unique_ptr<nbd_handle, nbd_closer>;

/// Connects and negotiates; blocks.
///
/// @param until  When it is given up.
/// @param stops  Gives it up when it becomes true.
/// @throws boost::system::system_error: what libnbd says, and ETIMEDOUT.
nbd_connection connect_nbd(
    std::string const& uri,
    std::chrono::steady_clock::time_point until,
    std::atomic<bool> const& stops
);

/// What a server says of its export.
struct nbd_features {
    std::uint64_t size_bytes = 0;
    std::uint32_t block_bytes_min = 1;
    std::uint32_t transfer_bytes_max = 0;
    bool is_read_only = false;
    bool can_flush = false;
    bool can_write_durably = false;
    bool can_zero = false;
    bool can_have_several = false;

    friend bool operator==(nbd_features const&, nbd_features const&) = default;
};

nbd_features features_of(nbd_handle* h) noexcept;

/// The URI without what differs from client to client: scheme, user, and parameters other than the socket.
std::string plain_nbd_uri(std::string const& uri);
/// True if the server is reached by a name that another machine has for another server.
bool is_on_this_machine(std::string const& plain_uri);

}  // namespace rcverbs::nvme::detail
