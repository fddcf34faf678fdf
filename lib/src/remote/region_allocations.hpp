// region_allocations.hpp — memory that this side of a region channel allocates from the peer's pool. Used
// inside the channel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/remote_allocator.hpp>

#include "remote/recycled_map.hpp"
#include "wire/region_message.hpp"

namespace rcverbs::detail {

class memory_core;
class region_core;

class region_allocations {
public:
    using allocation_waiter = protocol::waiter<error_code, remote_allocation>;

    explicit region_allocations(region_core& channel) : channel_{channel} {}

    void allocate(std::uint64_t bytes, allocate_options const& options, allocation_waiter who);
    void resume(resume_token const& key, allocation_waiter who);
    void free(std::shared_ptr<memory_core> const& what, protocol::waiter<error_code> who);
    void share(
        std::shared_ptr<memory_core> const& what,
        std::string const& name,
        protocol::waiter<error_code> who
    );

    bool is_freeing(std::uint64_t number) const noexcept { return freeing_.contains(number); }
    /// No operation on it is under way any more.
    void on_unused(std::uint64_t number);
    void end(error_code why);
    void abandon() noexcept { freeing_.clear(); }

private:
    template <class Body>
    void ask_for_memory(
        wire::region_operation what, Body const& body, channel_errc none, allocation_waiter who
    );
    remote_allocation take(
        reply const& r, std::uint64_t question, channel_errc none, error_code& ec
    );
    void ask_to_free(std::uint64_t number);
    error_code result_of(error_code ec, reply const& r);
    bool is_own(std::shared_ptr<memory_core> const& what) const noexcept;

    region_core& channel_;
    // Memory that is freed when the operations under way have completed.
    recycled_map<protocol::waiter<error_code>> freeing_;
};

}  // namespace rcverbs::detail
