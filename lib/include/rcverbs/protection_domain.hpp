// protection_domain.hpp — the group of memory regions and queue pairs that may be used together.
//
// A handle: copies share one domain, which lives until the last copy, region and queue pair of it is gone. Connections
// of one io_context over one device share a domain by default, so memory registered once serves all of them; give a
// connection its own (connection_options::private_domain) where peers must not be able to reach each other's regions by
// guessing a key. Distinct handles are safe to use from distinct threads.
#pragma once

#include <memory>
#include <string>

#include <rcverbs/device.hpp>
#include <rcverbs/export.hpp>

struct ibv_pd;

namespace rcverbs {

namespace verbs {
class domain;
}

/// A protection domain of one device.
class RCVERBS_EXPORT protection_domain {
public:
    /// No domain; is_open() is false.
    protection_domain() = default;
    /// Takes part in a domain; made by the library.
    explicit protection_domain(std::shared_ptr<verbs::domain> impl) noexcept : impl_{std::move(impl)} {}

    /// True unless default-constructed.
    bool is_open() const noexcept { return impl_ != nullptr; }
    /// The device's limits. REQUIRES: is_open().
    device_limits const& limits() const noexcept;
    /// The device's name, such as "rxe0". REQUIRES: is_open().
    std::string device_name() const;
    /// The verbs object, borrowed: valid as long as this handle. REQUIRES: is_open().
    ibv_pd* native_handle() const noexcept;

    /// For the library's own use.
    std::shared_ptr<verbs::domain> const& impl() const noexcept { return impl_; }

    friend bool operator==(protection_domain const&, protection_domain const&) = default;

private:
    std::shared_ptr<verbs::domain> impl_;
};

}  // namespace rcverbs
