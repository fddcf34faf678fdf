// device_list.hpp — the devices that librdmacm has opened.
//
// librdmacm opens each device once per process, and closes it itself: that of a device that was
// removed, when it looks for devices again and no id and no list of devices uses it. So whatever uses
// a device holds a device_context from here, which keeps a list. Source: remove_cma_dev() and
// rdma_free_devices() in rdma-core, librdmacm/cma.c.
//
// All functions may be called from any thread. They may open all devices of the machine, and fail with
// errno: EMFILE unless there are descriptors for that.
#pragma once

#include <string>

#include <rcverbs/error.hpp>

#include "verbs/device.hpp"

namespace rcverbs::cm {

/// Keeps a device open. errc::device_removed if it was removed. REQUIRES: an id or a device_context
/// uses it.
verbs::device_context keep_open(ibv_context* device, error_code& ec);

/// The device of that name. errc::no_rdma_device if there is none.
verbs::device_context find_device(std::string const& name, error_code& ec);

}  // namespace rcverbs::cm
