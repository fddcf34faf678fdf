// device.hpp — the RDMA devices of this host and their limits.
//
//     for (device_info const& d : devices())
//         std::cout << d.name << ": queues of " << d.limits.queue_depth_max << '\n';
//
// Values; they keep no device open. Safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rcverbs/error.hpp>
#include <rcverbs/export.hpp>

namespace rcverbs {

/// Limits of a device. Options are reduced to them. Source: ibv_query_device(3),
/// ibv_query_port(3).
struct device_limits {
    /// Work requests in one work queue.
    std::uint32_t queue_depth_max = 0;
    /// Entries in one completion queue.
    std::uint32_t completion_queue_depth_max = 0;
    /// Scatter/gather entries in one work request.
    std::uint32_t segments_max = 0;
    /// Reads and atomics that one queue pair may have outstanding.
    std::uint32_t initiator_depth_max = 0;
    /// Reads and atomics of the peer that one queue pair serves at a time.
    std::uint32_t responder_resources_max = 0;
    /// Bytes in one memory region.
    std::uint64_t region_bytes_max = 0;
    /// Memory regions of all processes. Source: ibv_query_device(3), max_mr.
    std::uint32_t regions_max = 0;
    /// Bytes in one message: a longer read or write is split, a longer send fails.
    std::uint64_t message_bytes_max = 0;
    /// True if fetch-and-add and compare-and-swap work, atomically at least among this device's own
    /// operations.
    bool has_atomics = false;
    /// True if they are atomic against the CPU of the host that has the memory, and against its
    /// other devices, too. If not, read and write such a word through the device only, also on its
    /// own host. Source: ibv_query_device(3), atomic_cap.
    bool has_atomics_against_cpu = false;
    /// True if a send can carry a key for the receiving device to invalidate.
    bool has_send_with_invalidate = false;
    /// Sends and writes with immediate data; iWARP has none.
    bool has_immediate_data = true;
    /// True if it has memory windows of type 2: see window.hpp.
    bool has_memory_windows = false;
    /// True if memory can be registered with access_flags::on_demand for reliable connections.
    bool has_on_demand_paging = false;
    /// Vectors on which completion queues may report their events. 1 or more.
    std::uint32_t completion_vectors = 1;
    /// Receives in one shared receive queue; 0 if there are none.
    std::uint32_t shared_receive_depth_max = 0;
};

/// One RDMA device.
struct device_info {
    /// The kernel's name for it, such as "mlx5_0" or "rxe0".
    std::string name;
    /// Its limits, those of port 1 included.
    device_limits limits;
};

/// The devices of this host that libibverbs can open.
///
/// @throws boost::system::system_error with the errno of the C call that failed.
RCVERBS_EXPORT std::vector<device_info> devices();

/// Makes registered memory safe for fork(). A program whose process forks calls it once, before it
/// uses anything of this library or of verbs. The child must not use the library (no connection, no
/// io_context of a connection), and must end by exec or _exit.
///
/// Kernels from 5.12 on copy pinned pages when a process forks: they need no preparation, and the
/// child has a copy of registered memory. On older kernels the child has no such memory, and every
/// registration costs more from then on. Source: ibv_fork_init(3), ibv_is_fork_initialized(3).
///
/// @throws boost::system::system_error with errno: EINVAL if verbs have been used already, ENOSYS if
///         the kernel cannot do it.
RCVERBS_EXPORT void prepare_for_fork();
/// The same; reports through `ec` instead of throwing.
RCVERBS_EXPORT void prepare_for_fork(error_code& ec) noexcept;

}  // namespace rcverbs
