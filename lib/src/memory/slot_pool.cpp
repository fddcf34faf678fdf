#include <rcverbs/slot_pool.hpp>

#include <bit>
#include <utility>

#include <rcverbs/detail/option_check.hpp>
#include "memory/slot_pool_core.hpp"

namespace rcverbs {

// --- leases --------------------------------------------------------------------------------------

slot_lease::slot_lease() noexcept = default;

slot_lease::slot_lease(
    std::shared_ptr<detail::slot_pool_core> pool, mutable_slice slice, std::uint32_t index
) noexcept
    : pool_{std::move(pool)},
      slice_{slice},
      index_{index} {}

slot_lease::slot_lease(slot_lease&& other) noexcept
    : pool_{std::move(other.pool_)},
      slice_{std::exchange(other.slice_, mutable_slice{})},
      index_{other.index_} {}

slot_lease& slot_lease::operator=(slot_lease&& other) noexcept {
    if (this != &other) {
        release();
        pool_ = std::move(other.pool_);
        slice_ = std::exchange(other.slice_, mutable_slice{});
        index_ = other.index_;
    }
    return *this;
}

slot_lease::~slot_lease() { release(); }

void slot_lease::disarm() noexcept {
    pool_.reset();
    slice_ = {};
}

void slot_lease::release() noexcept {
    // The pool may end with this reference, after the slot has been returned.
    auto const pool = std::move(pool_);
    disarm();
    if (pool != nullptr) pool->give_back(index_);
}

memory_lease::memory_lease(slot_lease&& slot) noexcept
    : slice_{slot.slice_},
      owner_{std::move(slot.pool_)},
      give_back_{[](void* pool, std::uint32_t index) noexcept {
          static_cast<detail::slot_pool_core*>(pool)->give_back(index);
      }},
      index_{slot.index_} {
    slot.disarm();
}

remote_region slot_lease::remote() const {
    memory_region const& all = pool_->region();
    auto const offset = static_cast<std::size_t>(slice_.data() - all.bytes().data());
    return all.remote().slice(offset, slice_.size());
}

namespace detail {

namespace {

std::size_t stride(slot_pool_options const& o) noexcept {
    return (o.slot_bytes + o.alignment_bytes - 1) / o.alignment_bytes * o.alignment_bytes;
}

}  // namespace

// --- the pool ------------------------------------------------------------------------------------

std::shared_ptr<slot_pool_core> slot_pool_core::make(
    place const& where, protection_domain const& domain, slot_pool_options const& options
) {
    constexpr std::size_t bytes_max = std::size_t{1} << 40;
    option_check check{"slot_pool_options"};
    check.within("slots", options.slots, 1, 1U << 24)
        .within("slot_bytes", options.slot_bytes, 1, bytes_max)
        .that(
            std::has_single_bit(options.alignment_bytes) && options.alignment_bytes <= 4096,
            "alignment_bytes",
            "is not a power of two up to 4096"
        );
    throw_if_refused(check.problem());
    auto made = std::make_shared<slot_pool_core>(where, domain, options);
    made->join_context();
    return made;
}

slot_pool_core::slot_pool_core(
    place const& where, protection_domain const& domain, slot_pool_options const& options
)
    : lending{where, options.slots},
      options_{options},
      stride_bytes_{stride(options)},
      memory_{domain, stride_bytes_ * options.slots, options.rights} {}

slot_lease slot_pool_core::lend(std::uint32_t index) noexcept {
    mutable_slice const slice = memory_.slice().slice(index * stride_bytes_, options_.slot_bytes);
    auto self = std::static_pointer_cast<slot_pool_core>(shared_from_this());
    return slot_lease{std::move(self), slice, index};
}

template class lender_base<slot_lease>;

}  // namespace detail

// --- the members of pools ------------------------------------------------------------------------

slot_pool_base::slot_pool_base(
    detail::place const& where, protection_domain const& domain, slot_pool_options const& options
)
    : lender_base{detail::slot_pool_core::make(where, domain, options)} {}

memory_region const& slot_pool_base::region() const noexcept {
    return static_cast<detail::slot_pool_core const&>(*pool_).region();
}
slot_pool_options const& slot_pool_base::options() const noexcept {
    return static_cast<detail::slot_pool_core const&>(*pool_).options();
}

}  // namespace rcverbs
