// slot_pool_core.hpp — what a slot_pool and its leases share: the memory of all slots.
#pragma once

#include <cstdint>
#include <memory>

#include <rcverbs/slot_pool.hpp>

#include "memory/lending.hpp"

namespace rcverbs::detail {

class slot_pool_core final : public lending<slot_lease> {
public:
    /// Throws as basic_slot_pool does.
    static std::shared_ptr<slot_pool_core> make(
        place const& where, protection_domain const& domain, slot_pool_options const& options
    );
    slot_pool_core(
        place const& where, protection_domain const& domain, slot_pool_options const& options
    );

    memory_region const& region() const noexcept { return memory_.region(); }
    slot_pool_options const& options() const noexcept { return options_; }

private:
    slot_lease lend(std::uint32_t index) noexcept override;

    slot_pool_options const options_;
    std::size_t const stride_bytes_;
    registered_buffer const memory_;
};

}  // namespace rcverbs::detail
