// device.hpp — an open RDMA device, its own or borrowed from librdmacm.
//
// librdmacm opens each device once for the process and closes it itself: such a context is borrowed. A device opened by
// name is owned.
#pragma once

#include <string>

#include <rcverbs/device.hpp>
#include <rcverbs/error.hpp>

#include "verbs/handles.hpp"

namespace rcverbs::verbs {

/// An open device and what it can do.
class device {
public:
    /// Takes a context that somebody else opened and will close.
    static device borrow(ibv_context* context, error_code& ec);
    /// Opens a device of its own by name. errc::no_rdma_device if there is none of that name.
    static device open(std::string const& name, error_code& ec);

    ibv_context* context() const noexcept { return context_; }
    device_limits const& limits() const noexcept { return limits_; }
    std::string name() const;

private:
    void query(error_code& ec);

    device_handle owned_;
    ibv_context* context_ = nullptr;
    device_limits limits_;
};

}  // namespace rcverbs::verbs
