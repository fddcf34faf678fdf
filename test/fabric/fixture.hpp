// fixture.hpp — rcverbs on a stepped world: one thread, a virtual clock, and an event order that
// follows from the seed.
#pragma once

#include <rcverbs/fabric.hpp>

#include <infiniband/verbs.h>

#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "device/fixture.hpp"
#include "support/seeds.hpp"

namespace test {

using rcverbs::fabric::world;

/// Runs on the world's one thread, and sleeps when there is nothing to do.
inline home stepped(asio::io_context& io) {
    return rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
}

/// Runs a test until nothing is left to do; an unfinished test or an exception fails it.
void run(world& w, asio::io_context& io, test_body test);

/// Connects two ends in the world.
inline asio::awaitable<pair> meet(
    asio::io_context& io,
    rcverbs::connection_options client = {},
    rcverbs::connection_options server = {}
) {
    co_return co_await connect(stepped(io), std::move(client), std::move(server));
}

asio::awaitable<void> sleep(asio::io_context& io, std::chrono::nanoseconds time);

/// The default's two devices, with their options changed.
template <class Change>
rcverbs::fabric::world_options two_devices(Change change) {
    rcverbs::fabric::world_options o;
    for (auto const& [name, address] :
         {std::pair{"fab0", "10.0.0.1"}, std::pair{"fab1", "10.0.1.1"}}) {
        rcverbs::fabric::device_options& d = o.devices.emplace_back();
        d.name = name;
        d.addresses = {address};
        change(d);
    }
    return o;
}

/// True if no object is left except those that live as long as the io_context.
inline bool is_clean(world const& w) {
    rcverbs::fabric::object_counts left = w.live();
    left.event_channels = 0;
    return left == rcverbs::fabric::object_counts{};
}

/// A memory window of type 2 over a buffer of `owner`, which the peer may write to and invalidate.
/// Made with plain verbs.
class plain_window {
public:
    plain_window(rcverbs::connection const& owner, std::span<std::byte> bytes) {
        ibv_pd* const domain = owner.domain().native_handle();
        region_ = ibv_reg_mr(
            domain, bytes.data(), bytes.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND
        );
        window_ = ibv_alloc_mw(domain, IBV_MW_TYPE_2);
        REQUIRE(region_ != nullptr);
        REQUIRE(window_ != nullptr);
        auto const address = reinterpret_cast<std::uintptr_t>(bytes.data());
        ibv_send_wr bind{};
        bind.wr_id =
            ~std::uint64_t{0} >> 2;  // not one of the library's ids: it ignores the completion
        bind.opcode = IBV_WR_BIND_MW;
        bind.send_flags = IBV_SEND_SIGNALED;
        bind.bind_mw = {
            window_,
            ibv_inc_rkey(window_->rkey),
            {region_, address, bytes.size(), IBV_ACCESS_REMOTE_WRITE}};
        ibv_send_wr* bad = nullptr;
        REQUIRE(ibv_post_send(owner.native_handle(), &bind, &bad) == 0);
        remote_ = {
            address,
            bytes.size(),
            rcverbs::remote_key{bind.bind_mw.rkey},
            rcverbs::access_flags::remote_write};
    }
    plain_window(plain_window const&) = delete;
    plain_window& operator=(plain_window const&) = delete;
    ~plain_window() {
        if (window_ != nullptr) ibv_dealloc_mw(window_);
        if (region_ != nullptr) ibv_dereg_mr(region_);
    }

    rcverbs::remote_region const& remote() const noexcept { return remote_; }

private:
    ibv_mr* region_ = nullptr;
    ibv_mw* window_ = nullptr;
    rcverbs::remote_region remote_;
};

/// Counts operations: the number started, and how each ended.
class ledger {
public:
    /// A handler for one operation; it must be called once.
    auto entry(std::string name) {
        std::size_t const index = entries_.size();
        entries_.push_back({std::move(name), 0, {}});
        return [this, index](error_code ec, auto&&...) {
            ++entries_[index].calls;
            entries_[index].code = ec;
        };
    }

    struct line {
        std::string name;
        int calls;
        error_code code;
    };
    std::vector<line> const& lines() const { return entries_; }

    /// True if each handler was called exactly once.
    bool is_balanced() const {
        return std::ranges::all_of(entries_, [](line const& l) { return l.calls == 1; });
    }
    bool has_failure() const {
        return std::ranges::any_of(entries_, [](line const& l) { return l.code.failed(); });
    }

private:
    std::vector<line> entries_;
};

}  // namespace test
