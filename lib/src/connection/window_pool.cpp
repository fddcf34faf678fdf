#include <rcverbs/experimental/window_pool.hpp>

#include <utility>

#include <rcverbs/detail/option_check.hpp>
#include "connection/core.hpp"
#include "connection/window_core.hpp"
#include "connection/window_pool_core.hpp"

namespace rcverbs {

// --- leases --------------------------------------------------------------------------------------

window_lease::window_lease() noexcept = default;

window_lease::window_lease(
    std::shared_ptr<detail::window_pool_core> pool, window& lent, std::uint32_t index
) noexcept
    : pool_{std::move(pool)},
      window_{&lent},
      index_{index} {}

window_lease::window_lease(window_lease&& other) noexcept
    : pool_{std::move(other.pool_)},
      window_{std::exchange(other.window_, nullptr)},
      index_{other.index_} {}

window_lease& window_lease::operator=(window_lease&& other) noexcept {
    if (this != &other) {
        release();
        pool_ = std::move(other.pool_);
        window_ = std::exchange(other.window_, nullptr);
        index_ = other.index_;
    }
    return *this;
}

window_lease::~window_lease() { release(); }

void window_lease::disarm() noexcept {
    pool_.reset();
    window_ = nullptr;
}

void window_lease::release() noexcept {
    // The pool may end with this reference, after the window has been returned.
    auto const pool = std::move(pool_);
    disarm();
    if (pool != nullptr) pool->take_back(index_);
}

namespace detail {

// --- the pool ------------------------------------------------------------------------------------

std::shared_ptr<window_pool_core> window_pool_core::make(
    place const& where,
    std::shared_ptr<connection_core> const& on,
    window_pool_options const& options
) {
    option_check check{"window_pool_options"};
    check.within("windows", options.windows, 1, 65536);
    throw_if_refused(check.problem());
    auto made = std::make_shared<window_pool_core>(where, on, options);
    made->join_context();
    return made;
}

window_pool_core::window_pool_core(
    place const& where, std::shared_ptr<connection_core> on, window_pool_options const& options
)
    : lending{where, options.windows},
      on_{std::move(on)} {
    windows_.reserve(options.windows);
    for (std::uint32_t i = 0; i < options.windows; ++i)
        windows_.push_back(access::make<window>(on_));
}

window_lease window_pool_core::lend(std::uint32_t index) noexcept {
    auto self = std::static_pointer_cast<window_pool_core>(shared_from_this());
    return window_lease{std::move(self), windows_[index], index};
}

void window_pool_core::take_back(std::uint32_t index) noexcept {
    if (windows_[index].is_bound()) replace(windows_[index]);
    give_back(index);
}

// Freeing a window makes its key invalid at once: whoever drops a lease may deregister the memory
// next. If there is no other window then, operations of the freed one fail with not_connected.
void window_pool_core::replace(window& bound) noexcept {
    window_core& core = *access::core_of(bound);
    core.connection->drop_window(core.window);
    try {
        bound = access::make<window>(on_);
    } catch (...) {}
}

template class lender_base<window_lease>;

}  // namespace detail

window_pool_base::window_pool_base(
    detail::place const& where,
    std::shared_ptr<detail::connection_core> const& on,
    window_pool_options const& options
)
    : lender_base{detail::window_pool_core::make(where, on, options)} {}

}  // namespace rcverbs
