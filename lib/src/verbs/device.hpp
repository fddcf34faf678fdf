// device.hpp — an open RDMA device, and its limits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <rcverbs/device.hpp>
#include <rcverbs/error.hpp>

#include "verbs/handles.hpp"

namespace rcverbs::verbs {

/// An open device; it stays open as long as any copy exists. Every object of the device holds one, or
/// a protection domain, which holds one.
using device_context = std::shared_ptr<ibv_context>;

/// The address of a port, as InfiniBand and RoCE have it.
using gid_bytes = std::array<std::uint8_t, 16>;

/// A GID of a port, and the port attributes that a queue pair needs.
struct port_address {
    gid_bytes gid{};
    std::uint8_t port = 1;
    std::uint8_t gid_index = 0;
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;
};

/// Which GID of a device is wanted.
struct wanted_address {
    /// That of port 1 at this index.
    std::optional<std::uint8_t> index = {};
    /// This one.
    std::optional<gid_bytes> exactly = {};
    /// Best one of the same family.
    std::optional<gid_bytes> peer = {};
};

/// How good a GID is for a connection; 0: it is none. The families of RoCE do not understand each other, so
/// RoCE v2 comes first; then the family of the peer; then IPv4, and IPv6 before link-local.
///
/// @param is_roce_v1  Known to be of RoCE v1.
int worth_of(gid_bytes const& gid, bool is_roce_v1, std::optional<gid_bytes> const& peer) noexcept;
/// Finds the GID that is wanted, else the best one of a port that is active, else the best one.
/// errc::invalid_option if there is none.
port_address find_address(ibv_context* context, wanted_address const& wanted, error_code& ec);

/// The code of an MTU of 256, 512, 1024, 2048 or 4096 bytes; 0 of another number. Source: enum ibv_mtu.
std::uint8_t encode_mtu(std::uint32_t bytes) noexcept;

/// The largest path MTU of packets that an Ethernet port receives, as its code; none for other ports,
/// whose paths have an MTU that both sides can use. Source: ibv_query_port(3), active_mtu.
std::optional<unsigned> path_mtu_max(ibv_context* context, std::uint32_t port, error_code& ec);

/// An open device and its limits.
class device {
public:
    /// Reads the limits of an open device.
    static device query(device_context context, error_code& ec);
    /// Opens a device by name, once more. errc::no_rdma_device if no device has that name.
    static device open(std::string const& name, error_code& ec);

    device_context const& context() const noexcept { return context_; }
    device_limits const& limits() const noexcept { return limits_; }
    std::string name() const;
    /// Memory regions of this process on the device, through any context. Registration adds and
    /// subtracts.
    std::atomic<std::size_t>& open_regions() const noexcept { return *open_regions_; }
    /// True for SoftRoCE. In Linux 6.1, and possibly in later versions, its requester can stop
    /// between two checks of the same counter. Posted work requests are then not sent, no timer
    /// runs, and no completion arrives, until the next post. Source: rxe_requester() and
    /// rxe_completer() in drivers/infiniband/sw/rxe, `wait_psn`.
    bool forgets_posted_work() const noexcept { return forgets_posted_work_; }
    /// True for Soft iWARP. It completes a send or a write at once although a read before it is not
    /// complete; with a fence it waits. It refuses a send with invalidate that is inline. Source:
    /// siw_activate_tx_from_sq() in drivers/infiniband/sw/siw.
    bool is_soft_iwarp() const noexcept { return is_soft_iwarp_; }
    /// True for iWARP, where a queue pair moves to the error state when the peer closes its
    /// connection.
    bool is_iwarp() const noexcept {
        return context_->device->transport_type == IBV_TRANSPORT_IWARP;
    }

    /// Segments of a read. 1 or more. Source: ibv_query_device(3), max_sge_rd.
    std::size_t read_segments_max() const noexcept { return read_segments_max_; }

private:
    void read_limits(error_code& ec);

    device_context context_;
    device_limits limits_;
    // Of all contexts of the same device.
    std::atomic<std::size_t>* open_regions_ = nullptr;
    bool forgets_posted_work_ = false;
    bool is_soft_iwarp_ = false;
    std::size_t read_segments_max_ = SIZE_MAX;
};

}  // namespace rcverbs::verbs
