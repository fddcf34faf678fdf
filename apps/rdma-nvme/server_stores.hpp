// server_stores.hpp — the disks that are on servers: of NBD, and of Ceph.
#pragma once

#include <memory>
#include <string>

#include <rcverbs/nvme/block_store.hpp>

#include "rdma-nvme/configuration.hpp"

namespace demo {

/// True for a disk on a server.
bool is_on_server(disk_description const& d) noexcept;

/// Opens it; waits for the server.
///
/// @throws boost::system::system_error: ENOTSUP if this program was built without the library for it.
std::shared_ptr<rcverbs::nvme::block_store> make_server_store(
    disk_description const& d, std::string const& nqn, store_surroundings const& around
);

/// True if the store fails flushes until it is opened again.
bool has_lost_writes(rcverbs::nvme::block_store const& store);

}  // namespace demo
