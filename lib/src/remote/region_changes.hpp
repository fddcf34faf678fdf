// region_changes.hpp — a region channel's news of names: the peer's, for the program, and this side's, for
// the peer. Used inside the channel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>

#include "machines/unsent_changes.hpp"
#include "remote/numbered_queue.hpp"

namespace rcverbs::detail {

class region_core;

class region_changes {
public:
    /// @param most  Changes of the peer's that are kept; later ones are one `missed`.
    region_changes(region_core& channel, std::uint32_t most);

    void next(protocol::waiter<error_code, region_change> who);
    /// The peer's. REQUIRES: a name.
    void add(region_change::kind what, std::string name);
    /// There are no more: also what waits is told.
    void end();

    void offered(std::string const& name);
    void withdrawn(std::string const& name);

private:
    // Notices that are under way at a time.
    static constexpr std::size_t under_way_max = 16;

    void note_missed();
    void give();
    void notify();

    region_core& channel_;
    std::uint32_t const most_;
    numbered_queue<region_change> all_;
    bool has_missed_ = false;
    protocol::wait_list<error_code, region_change> waits_;
    machines::unsent_changes unsent_;
    std::size_t under_way_ = 0;
};

}  // namespace rcverbs::detail
