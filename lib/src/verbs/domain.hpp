// domain.hpp — the protection domain behind protection_domain handles.
#pragma once

#include <memory>

#include "verbs/atomic_results.hpp"
#include "verbs/device.hpp"
#include "verbs/handles.hpp"

namespace rcverbs::verbs {

/// A protection domain that this library allocates. librdmacm's default domain is not used, because
/// librdmacm controls its lifetime.
class domain {
public:
    static std::shared_ptr<domain> create(device on, error_code& ec);

    device const& on() const noexcept { return device_; }
    ibv_pd* get() const noexcept { return handle_.get(); }
    atomic_results& results() noexcept { return results_; }

private:
    device device_;
    domain_handle handle_;
    atomic_results results_;
};

}  // namespace rcverbs::verbs
