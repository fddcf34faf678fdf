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

/// A GID of a port, and the port attributes that a queue pair needs.
struct port_address {
    std::array<std::uint8_t, 16> gid{};
    std::uint8_t gid_index = 0;
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;
};

/// Finds a GID of port 1: the one at `index`; without an index the first IPv4 GID of RoCE v2, else
/// the first IPv4 GID, else the first GID. errc::invalid_option if there is none.
port_address find_address(ibv_context* context, std::optional<std::uint8_t> index, error_code& ec);

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
    /// True for Soft iWARP, which completes a send or a write at once although a read before it is not
    /// complete; with a fence it waits. Source: siw_activate_tx() in drivers/infiniband/sw/siw.
    bool completes_reads_late() const noexcept { return completes_reads_late_; }
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
    bool completes_reads_late_ = false;
    std::size_t read_segments_max_ = SIZE_MAX;
};

}  // namespace rcverbs::verbs
