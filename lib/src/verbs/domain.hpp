// domain.hpp — what a protection_domain handle shares.
#pragma once

#include <memory>

#include "verbs/device.hpp"
#include "verbs/handles.hpp"

namespace rcverbs::verbs {

/// A protection domain of our own on a device. Never librdmacm's default one, whose lifetime is librdmacm's.
class domain {
public:
    static std::shared_ptr<domain> create(device on, error_code& ec);

    device const& on() const noexcept { return device_; }
    ibv_pd* get() const noexcept { return handle_.get(); }

private:
    device device_;
    domain_handle handle_;
};

}  // namespace rcverbs::verbs
