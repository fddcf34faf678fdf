// region_core.hpp — a region channel: a layer above a request channel, whose connection's order it shares.
//
// It has the messages; what they mean is the business of its parts: region_grants (what the peer has of
// this side's regions), region_finds (what this side has of the peer's), region_pool and
// region_allocations (the same for memory of pools), region_changes (news of names). Everything here runs
// inside, except where it says otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>

#include "remote/numbered_queue.hpp"
#include "remote/region_allocations.hpp"
#include "remote/region_bodies.hpp"
#include "remote/region_changes.hpp"
#include "remote/region_finds.hpp"
#include "remote/region_grants.hpp"
#include "remote/region_pool.hpp"
#include "wire/region_message.hpp"

namespace rcverbs::detail {

/// The first option out of its range; empty if there is none.
std::string problem_of(region_offers_options const& options);
std::string problem_of(region_channel_options const& options);

class region_core final : public protocol::driver {
public:
    region_core(request_channel over, region_offers offers, std::uint32_t changes_max);
    /// For an open channel: starts.
    void begin();

    // Any thread.
    request_channel& channel() noexcept { return channel_; }
    boost::asio::any_io_executor own_executor() const noexcept { return channel_.get_executor(); }
    connection& below() noexcept { return lower(); }
    failure last_failure() const;
    region_channel_statistics statistics() const noexcept;
    std::optional<region_refusal> peer_refusal() const { return finds_.refusal(); }
    std::optional<region_refusal> own_refusal() const { return grants_.refusal(); }
    using actor::deliver;
    using actor::enter;
    using actor::in_order;
    using actor::ordered;
    using driver::held;

    // Inside.
    void connect(endpoint const& peer, protocol::waiter<error_code> who);
    void accept(protocol::waiter<error_code> who);
    void finish(protocol::waiter<error_code> who);
    void next(protocol::waiter<error_code, request> who);

    region_grants& grants() noexcept { return grants_; }
    region_finds& finds() noexcept { return finds_; }
    region_allocations& allocations() noexcept { return allocations_; }
    region_changes& changes() noexcept { return changes_; }

    // For the parts.
    std::shared_ptr<region_core> self() {
        return std::static_pointer_cast<region_core>(shared_from_this());
    }
    bool has_begun() const noexcept { return has_begun_; }
    /// The connection has ended.
    bool has_ended() const noexcept { return has_ended_; }
    /// What follows the requests that have arrived; empty while there may be more.
    error_code end_of_requests() const noexcept { return end_; }
    /// Empty while this side may ask.
    error_code usable() const noexcept;
    void violated();
    void fail_with(error_code why, close_reason reason);
    void answer(request r, wire::region_status status, std::vector<std::byte> body = {});
    /// Sends a request; `then(error_code, reply const&)` runs inside.
    template <class Body, class Then>
    void ask_peer(
        wire::region_operation what,
        Body body,
        Then then,
        std::optional<std::chrono::milliseconds> timeout = {}
    ) {
        auto const kept = make_recycled<Body const>(std::move(body));
        ask wanted{number_of(what)};
        wanted.body(*kept);
        if (timeout) wanted.within(*timeout);
        channel_.async_request(
            wanted, ordered([kept, t = std::move(then)](error_code ec, reply const& r) mutable {
                t(ec, r);
            })
        );
    }
    /// Sends a notice; `then()` runs inside when it is over.
    template <class Then>
    void notify(wire::region_operation what, std::span<std::byte const> of_body, Then then) {
        auto const body =
            make_recycled<std::vector<std::byte> const>(of_body.begin(), of_body.end());
        channel_.async_notify(
            number_of(what), *body, ordered([this, body, t = std::move(then)](error_code ec) {
                on_notified(ec);
                t();
            })
        );
    }

private:
    void open();
    void on_end(failure const& why) override;
    void on_abandoned() noexcept override;
    void pump();
    void take(request r);
    void take_own(request r);
    void on_change(region_change::kind what, request const& r);
    void give_requests();
    void on_notified(error_code ec);

    request_channel channel_;
    bool has_begun_ = false;
    bool has_ended_ = false;
    error_code end_;
    std::atomic<bool> has_failed_{false};
    region_finds finds_;
    region_allocations allocations_;
    region_changes changes_;
    // What it gives back, no peer can access: it is destroyed after the grants.
    region_pool pool_;
    region_grants grants_;
    // The program's requests, in the order of arrival; those that a cancelled wait has left, too.
    numbered_queue<request> arrived_;
    protocol::wait_list<error_code, request> nexts_;
    // Finished, and waiting for the connection's end.
    std::vector<protocol::waiter<error_code>> finishing_;
};

}  // namespace rcverbs::detail
