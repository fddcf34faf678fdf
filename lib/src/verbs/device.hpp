// device.hpp — an open RDMA device, its own or borrowed from librdmacm.
//
// librdmacm opens each device once for the process and closes it itself: such a context is borrowed. A device opened by
// name is owned.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include <rcverbs/device.hpp>
#include <rcverbs/error.hpp>

#include "verbs/handles.hpp"

namespace rcverbs::verbs {

/// An open device and what it can do.
/// A port's address by index, and what a queue pair needs to know of it.
struct port_address {
    std::array<std::uint8_t, 16> gid{};
    std::uint8_t gid_index = 0;
    std::uint16_t lid = 0;
    std::uint8_t mtu = 0;
};

/// Looks an address of port 1 up: the one of that index, or the first that is an IPv4 address of RoCE v2, of any kind, or at all.
/// errc::invalid_option if there is none.
port_address find_address(ibv_context* context, std::optional<std::uint8_t> index, error_code& ec);

class device {
public:
    /// Takes a context that somebody else opened and will close.
    static device borrow(ibv_context* context, error_code& ec);
    /// Opens a device of its own by name. errc::no_rdma_device if there is none of that name.
    static device open(std::string const& name, error_code& ec);

    ibv_context* context() const noexcept { return context_; }
    device_limits const& limits() const noexcept { return limits_; }
    std::string name() const;
    /// True for SoftRoCE. In Linux 6.1, if not in later ones, its requester may go to sleep between two looks at the same counter: it then sends
    /// nothing more of what is posted, no timer runs, and no completion ever comes, until something is posted.
    /// Source: rxe_requester() and rxe_completer() in drivers/infiniband/sw/rxe, `wait_psn`.
    bool forgets_posted_work() const noexcept { return forgets_posted_work_; }

private:
    void query(error_code& ec);

    device_handle owned_;
    ibv_context* context_ = nullptr;
    device_limits limits_;
    bool forgets_posted_work_ = false;
};

}  // namespace rcverbs::verbs
