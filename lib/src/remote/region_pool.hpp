// region_pool.hpp — what the peer of a region channel asks of this side's pool. Used inside the channel.
#pragma once

#include <cstdint>
#include <memory>

#include <rcverbs/request_channel.hpp>

#include "remote/pool_core.hpp"
#include "remote/recycled_map.hpp"

namespace rcverbs::detail {

class region_core;

class region_pool {
public:
    explicit region_pool(region_core& channel) : channel_{channel} {}

    void on_allocate(request r);
    void on_resume(request r);
    void on_free(request r);
    void on_share(request r);
    /// Requests that wait are not answered any more.
    void drop_requests() noexcept { to_be_freed_.clear(); }
    /// Gives back what the peer has. REQUIRES: no peer can access it.
    void end() noexcept { lease_.reset(); }

private:
    /// Null if this side has no pool.
    pool_core* open();
    void on_resumed(request r, pool_core::allocated const& a);
    void answer(request r, pool_core::allocated const& a, bool is_new);
    void on_freed(std::uint64_t number);

    region_core& channel_;
    std::shared_ptr<pool_core> pool_;
    std::unique_ptr<pool_core::lease> lease_;
    // Answered when the memory is free.
    recycled_map<request> to_be_freed_;
};

}  // namespace rcverbs::detail
