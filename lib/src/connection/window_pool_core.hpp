// window_pool_core.hpp — what a window_pool and its leases share.
#pragma once

#include <memory>
#include <vector>

#include <rcverbs/experimental/window_pool.hpp>

#include "memory/lending.hpp"

namespace rcverbs::detail {

class window_pool_core final : public lending<window_lease> {
public:
    /// Throws as basic_window_pool does.
    static std::shared_ptr<window_pool_core> make(
        place const& where,
        std::shared_ptr<connection_core> const& on,
        window_pool_options const& options
    );
    window_pool_core(
        place const& where, std::shared_ptr<connection_core> on, window_pool_options const& options
    );

    /// Makes the window's key invalid if it is bound, and lends the window to the next.
    void take_back(std::uint32_t index) noexcept;

private:
    window_lease lend(std::uint32_t index) noexcept override;
    void replace(window& bound) noexcept;

    std::shared_ptr<connection_core> const on_;
    std::vector<window> windows_;
};

}  // namespace rcverbs::detail
