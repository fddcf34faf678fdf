#include "verbs/domain.hpp"

#include <rcverbs/protection_domain.hpp>

#include "verbs/errno_map.hpp"

namespace rcverbs::verbs {

std::shared_ptr<domain> domain::create(device on, error_code& ec) {
    auto made = std::make_shared<domain>();
    made->device_ = std::move(on);
    made->handle_.reset(ibv_alloc_pd(made->device_.context().get()));
    ec = from_pointer(made->handle_.get());
    return ec ? nullptr : made;
}

}  // namespace rcverbs::verbs

namespace rcverbs {

device_limits const& protection_domain::limits() const noexcept { return impl_->on().limits(); }
std::string protection_domain::device_name() const { return impl_->on().name(); }
ibv_pd* protection_domain::native_handle() const noexcept { return impl_->get(); }

}  // namespace rcverbs
