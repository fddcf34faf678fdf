// offers_core.hpp — the regions that a process offers, for all channels that have the list.
//
// An offer lives as long as the list, or a channel whose peer has it: when the last of them is gone,
// nobody can access the memory any more, and async_withdraw() completes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/experimental/protocol.hpp>

namespace rcverbs::detail {

class pool_core;
class region_core;

/// Memory that windows are bound to.
struct window_memory {
    protection_domain domain;
    memory_region region;
};

/// One offer, or one block of a pool. Its members do not change.
class offered_region {
public:
    offered_region(
        std::weak_ptr<offers_core> list,
        std::uint64_t called,
        std::vector<std::span<std::byte>> ranges,
        access_flags allowed,
        std::shared_ptr<window_memory const> inside = {},
        bool is_of_pool = false
    );
    /// Tells the list.
    ~offered_region();
    offered_region(offered_region const&) = delete;
    offered_region& operator=(offered_region const&) = delete;

    /// A number that was never used in this process.
    static std::uint64_t next_number() noexcept;

    std::uint64_t const number;
    std::vector<std::span<std::byte>> const memory;
    access_flags const rights;
    /// What the one range is a part of: connections of that domain get keys by memory windows. Null if
    /// there is no such memory.
    std::shared_ptr<window_memory const> const around;
    /// True for a block of a pool.
    bool const is_block;

private:
    std::weak_ptr<offers_core> const list_;
};

using offer_ptr = std::shared_ptr<offered_region const>;

/// Any thread.
class offers_core final : public protocol::actor {
public:
    offers_core(boost::asio::any_io_executor executor, region_offers_options const& options);

    void add(std::string_view name, std::vector<std::span<std::byte>> memory, access_flags rights);
    void withdraw(std::string const& name, control_handler handler);
    std::size_t size() const;
    /// Calls a handler, not from inside this call.
    void complete(protocol::waiter<error_code> who, error_code ec);
    region_offers_options const& options() const noexcept { return options_; }

    /// The pool that peers may allocate from; null if there is none.
    std::shared_ptr<pool_core> pool() const;
    /// False if there is one.
    bool set_pool(std::shared_ptr<pool_core> pool);
    /// Offers a block under a name; false if the name is taken.
    bool publish(std::string const& name, offer_ptr const& block);
    /// Nobody finds the region any more, and those who have it are asked to stop.
    ///
    /// @param name  Peers are told that it is withdrawn, if it is this region's. Empty if it has none.
    void revoke(offer_ptr const& what, std::string const& name);

    /// From now on the channel is told of changes, until it is gone.
    void join(std::weak_ptr<region_core> channel);
    /// Null if there is none.
    offer_ptr find(std::string_view name) const;
    /// Nobody has the offer any more.
    void on_gone(std::uint64_t number) noexcept;

private:
    std::vector<std::shared_ptr<region_core>> channels();
    void announce(std::string const& name);
    // From all channels. An empty name is not announced.
    void take_back(offer_ptr const& what, std::string const& name);
    std::weak_ptr<offers_core> weak_self();
    void on_abandoned() noexcept override;
    void give_up() noexcept override {}

    region_offers_options const options_;

    mutable std::mutex mutex_;
    std::map<std::string, offer_ptr, std::less<>> offers_;
    // By number: those whose offers are being withdrawn.
    std::map<std::uint64_t, protocol::waiter<error_code>> withdrawing_;
    std::map<std::string, std::uint64_t, std::less<>> names_withdrawing_;
    std::vector<std::weak_ptr<region_core>> channels_;
    std::shared_ptr<pool_core> pool_;
};

}  // namespace rcverbs::detail
