// protection_domain.hpp — groups memory regions and queue pairs that may be used together.
//
//     protection_domain const domain = c.domain();
//     registered_buffer page{domain, 4096, access_flags::local_write};
//
// A handle: copies share one domain, which exists until the last copy, region and queue pair of it
// is gone. By default, connections of one io_context on one device share a domain, so that memory
// is registered once for all of them. Give a connection a domain of its own
// (domain_sharing::isolated) if its peer must not reach other regions by guessing a key. Distinct
// handles may be used from distinct threads.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <rcverbs/detail/access.hpp>
#include <rcverbs/device.hpp>
#include <rcverbs/export.hpp>

struct ibv_pd;

namespace rcverbs {

namespace verbs {
class domain;
}  // namespace verbs

/// A protection domain of one device.
class RCVERBS_EXPORT protection_domain {
public:
    /// No domain; is_open() is false.
    protection_domain() = default;

    /// True unless default-constructed.
    bool is_open() const noexcept { return impl_ != nullptr; }
    /// The device's limits. REQUIRES: is_open().
    device_limits const& limits() const noexcept;
    /// The device's name, such as "rxe0". REQUIRES: is_open().
    std::string device_name() const;
    /// The verbs object, borrowed: valid as long as this handle. REQUIRES: is_open().
    ibv_pd* native_handle() const noexcept;

    friend bool operator==(protection_domain const&, protection_domain const&) = default;

private:
    friend struct detail::access;
    explicit protection_domain(std::shared_ptr<verbs::domain> impl) noexcept
        : impl_{std::move(impl)} {}

    std::shared_ptr<verbs::domain> impl_;
};

}  // namespace rcverbs
