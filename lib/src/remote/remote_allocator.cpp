#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/protocol/option_check.hpp>

#include <utility>

#include "remote/memory_core.hpp"
#include "remote/pool_core.hpp"
#include "remote/region_core.hpp"
#include "remote/start_in_order.hpp"

namespace rcverbs {

// --- pool ----------------------------------------------------------------------------------------

remote_pool::remote_pool() noexcept = default;

remote_pool::remote_pool(
    region_offers const& offers, std::span<std::byte> memory, remote_pool_options const& options
) {
    if (!offers.is_valid()) throw boost::system::system_error{errc::invalid_option, "remote_pool"};
    detail::throw_if_refused(detail::problem_of(options, memory));
    auto const pool = std::make_shared<detail::pool_core>(offers.core_, memory, options);
    if (!offers.core_->set_pool(pool))
        throw boost::system::system_error{
            errc::invalid_option, "remote_pool: the list of offers has a pool"};
    list_ = offers.core_;
}

remote_pool::executor_type remote_pool::get_executor() const { return list_->executor(); }
remote_pool_statistics remote_pool::statistics() const { return list_->pool()->statistics(); }

void remote_pool::start_close(list_ptr const& list, detail::control_handler handler) {
    list->pool()->close(std::move(handler));
}

// --- allocator -----------------------------------------------------------------------------------

remote_allocator_base::remote_allocator_base(region_channel_base const& over) noexcept
    : core_{over.core_} {}

void remote_allocator_base::start_allocate(
    core_ptr const& core,
    std::uint64_t bytes,
    allocate_options const& options,
    allocation_handler handler
) {
    detail::start_in_order(
        core,
        std::move(handler),
        [bytes, options](detail::region_core& c, auto who) {
            c.allocations().allocate(bytes, options, std::move(who));
        }
    );
}

void remote_allocator_base::start_resume(
    core_ptr const& core, resume_token const& key, allocation_handler handler
) {
    detail::start_in_order(core, std::move(handler), [key](detail::region_core& c, auto who) {
        c.allocations().resume(key, std::move(who));
    });
}

void remote_allocator_base::start_free(
    core_ptr const& core, remote_memory const& what, detail::control_handler handler
) {
    detail::start_in_order(core, std::move(handler), [what](detail::region_core& c, auto who) {
        c.allocations().free(detail::memory_core::core_of(what), std::move(who));
    });
}

void remote_allocator_base::start_share(
    core_ptr const& core,
    remote_memory const& what,
    std::string const& name,
    detail::control_handler handler
) {
    detail::start_in_order(
        core,
        std::move(handler),
        [what, name](detail::region_core& c, auto who) {
            c.allocations().share(detail::memory_core::core_of(what), name, std::move(who));
        }
    );
}

}  // namespace rcverbs
