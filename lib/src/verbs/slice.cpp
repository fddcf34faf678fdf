#include <rcverbs/slice.hpp>

#include <infiniband/verbs.h>

#include <rcverbs/remote_region.hpp>

#include "verbs/region_record.hpp"

namespace rcverbs {

namespace detail {

remote_region remote_of(plain_slice const& slice, error_code& ec) noexcept {
    ec.clear();
    if (slice.record == nullptr) return {};
    region_record const& record = *slice.record;
    // Relaxed: who has a slice of an open region has it behind open_record(); of a closed one, any handle will do.
    auto const* const handle = record.handle.load(std::memory_order_relaxed);
    if (handle == nullptr ||
        record.generation.load(std::memory_order_acquire) != slice.generation) {
        ec = errc::region_gone;
        return {};
    }
    auto const address = reinterpret_cast<std::uintptr_t>(slice.data);  // the peer needs an integer
    return {
        address,
        slice.size,
        remote_key{handle->rkey},
        record.rights.load(std::memory_order_relaxed)};
}

remote_region remote_of(plain_slice const& slice) {
    error_code ec;
    remote_region const found = remote_of(slice, ec);
    if (ec) throw boost::system::system_error{ec, "remote"};
    return found;
}

void check_range(std::size_t size, std::size_t offset, std::size_t length) {
    if (offset > size || length > size - offset)
        throw boost::system::system_error{errc::out_of_range, "slice"};
}

}  // namespace detail

remote_region const_slice::remote() const { return detail::remote_of(plain()); }
remote_region const_slice::remote(error_code& ec) const noexcept {
    return detail::remote_of(plain(), ec);
}
remote_region mutable_slice::remote() const { return detail::remote_of(plain()); }
remote_region mutable_slice::remote(error_code& ec) const noexcept {
    return detail::remote_of(plain(), ec);
}

}  // namespace rcverbs
