// link.hpp — the kernel and device resources of one connection: the connection manager's id, the
// protection domain, the queue pair, the completion queue; and the timer.
//
// Carries out the actions of the lifecycle. A function returns the next event if it is known at
// once. Guarded by the connection's lock.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <set>
#include <vector>

#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/options.hpp>
#include <rcverbs/queue_pair_address.hpp>
#include <rcverbs/runs_on.hpp>
#include <rcverbs/detail/timeouts.hpp>

#include "cm/id.hpp"
#include "connection/connection_limiter.hpp"
#include "connection/data_path.hpp"
#include "connection/connection_services.hpp"
#include "connection/shared_receives.hpp"
#include "connection/waiting_request.hpp"
#include "machines/lifecycle.hpp"
#include "progress/cq_poller.hpp"
#include "verbs/device.hpp"
#include "verbs/domain.hpp"
#include "verbs/memory_window.hpp"
#include "verbs/queue_pair.hpp"

namespace rcverbs::detail {

class link {
public:
    using event = machines::lifecycle::event;
    using event_kind = machines::lifecycle::event_kind;
    /// The next event, if it is known already.
    using next = std::optional<event>;

    /// The receivers of events, and the executor and sequence of the polling rounds.
    struct listener {
        std::weak_ptr<cm::event_sink> manager;
        std::shared_ptr<cm::device_event_sink> device;
        boost::asio::any_io_executor const& executor;
        std::shared_ptr<hosting::sequence> const& order;
    };

    /// What a queue pair needs.
    struct queues {
        /// Without the connection manager: its only purpose is to keep the event channel running.
        std::unique_ptr<cm::id> id;
        std::shared_ptr<verbs::domain> domain;
        std::shared_ptr<shared_receives> shared;
        progress::cq_place completions;
        verbs::queue_pair qp;
        verbs::queue_sizes sizes;
        /// The memory for the results of atomics.
        std::shared_ptr<verbs::atomic_results::place> atomic_results;
        connection_limits limits;
        data_path path;
        queue_pair_address own_address;
        verbs::port_address port_address;
        std::uint32_t port = 1;
        endpoint peer;
        endpoint local;
        /// queue_pair_made or failed.
        event result{event_kind::queue_pair_made};
    };

    link(connection_services& on, connection_options const& options, place const& where);

    // --- setup -----------------------------------------------------------------------------------

    /// Sets the target: the peer's address; or, without the connection manager, a device by name,
    /// and later the peer's queue pair.
    void aim(endpoint const& peer) { peer_ = peer; }
    void aim(std::string device, verbs::wanted_address const& wanted);
    void aim(queue_pair_address const& peer) { peer_address_ = peer; }

    /// Takes over a peer's request; a failure, if any.
    next take(waiting_request::parts request, listener const& who);
    next resolve_address(std::weak_ptr<cm::event_sink> sink);
    next resolve_route();
    /// Creates the queue pair and what it needs: milliseconds of system calls. Called without the
    /// connection's lock, by one thread at a time, while nothing changes the link; adopt() follows.
    queues make_queues(bool is_passive, listener const& who) const;
    /// Uses what was made; the teardown releases it, even if `result` is a failure.
    void adopt(queues made);
    /// Delivers the completions to `sink` from now on. Call wake() of the result without the
    /// connection's lock. REQUIRES: adopt() got a queue pair.
    std::shared_ptr<progress::cq_poller> join(std::shared_ptr<progress::completion_sink> sink) {
        return queues_.completions.join(queues_.qp.get()->qp_num, std::move(sink));
    }
    next connect(std::span<std::byte const> private_data);
    next accept(std::span<std::byte const> private_data);
    /// Sets the attributes of the queue pair: all without the connection manager, otherwise those
    /// that it leaves unset.
    next open(bool is_passive);

    // --- while open ------------------------------------------------------------------------------

    /// Sets the peer's access rights: now if `is_now`, otherwise as soon as the queue pair accepts
    /// them.
    error_code set_remote_access(access_flags rights, bool is_now);
    /// True if the queue pair is known to be in the error state.
    bool has_stopped() const noexcept { return queues_.qp.is_in_error_state(); }
    /// Translates an event of the connection manager, and keeps the peer's private data; empty if
    /// the event does not affect a reliable connection.
    next describe(cm::event& e, bool is_passive, bool is_open);
    /// Translates an event of the device; empty if the event does not concern this connection.
    next describe(cm::device_event const& e) noexcept;

    /// Has destroy_queue_pair() free the window. REQUIRES: a queue pair.
    void add_window(verbs::memory_window& window) { windows_.insert(&window); }
    verbs::memory_window::handle drop_window(verbs::memory_window& window) noexcept;

    // --- teardown --------------------------------------------------------------------------------

    void reject(std::span<std::byte const> private_data);
    /// Moves the queue pair to the error state, which flushes all posted work. Disconnects before
    /// if `tells_peer`.
    void stop(bool tells_peer);
    /// Frees all windows and destroys the queue pair; gives its last completions to `take`. False if
    /// it cannot be destroyed: its resources are then leaked on purpose. REQUIRES: called in the
    /// sequence, or nothing runs there any more.
    bool destroy_queue_pair(progress::cq_place::take_function const& take);
    /// Releases the rest. REQUIRES: destroy_queue_pair() was called.
    void give_back(connection_statistics const& counted, bool is_violated);
    /// Releases everything at once. Returns false if the queue pair cannot be destroyed, as above.
    /// REQUIRES: the context is being destroyed, and nothing runs any more.
    bool abandon() noexcept;
    /// Returns the shared receive queue, if any, and stops using it.
    std::shared_ptr<shared_receives> leave_shared() noexcept { return std::move(queues_.shared); }

    // --- timer -----------------------------------------------------------------------------------

    /// Calls `expired(use)` on the executor unless the timer is armed or disarmed before.
    template <class Function>
    void arm(std::chrono::milliseconds after, Function&& expired) {
        timer_->expires_after(bounded(after));
        timer_->async_wait([use = ++timer_use_,
                            expired = std::forward<Function>(expired)](error_code const& ec) {
            if (!ec) expired(use);
        });
    }
    void disarm() noexcept {
        ++timer_use_;
        timer_->cancel();
    }
    /// True if the timer has not been armed or disarmed since.
    bool is_armed(std::uint64_t use) const noexcept { return use == timer_use_; }

    // --- observers -------------------------------------------------------------------------------

    verbs::queue_pair& queue_pair() noexcept { return queues_.qp; }
    verbs::queue_pair const& queue_pair() const noexcept { return queues_.qp; }
    std::shared_ptr<verbs::domain> const& domain() const noexcept { return queues_.domain; }
    progress::cq_place const& completions() const noexcept { return queues_.completions; }
    std::shared_ptr<shared_receives> const& shared() const noexcept { return queues_.shared; }
    connection_limits const& limits() const noexcept { return queues_.limits; }
    endpoint const& peer() const noexcept { return peer_; }
    endpoint const& local() const noexcept { return local_; }
    /// What the peer sent with its request, its acceptance or its rejection.
    std::vector<std::byte> const& peer_private_data() const noexcept { return peer_private_data_; }
    queue_pair_address const& own_address() const noexcept { return queues_.own_address; }
    bool is_out_of_band() const noexcept { return out_of_band_.has_value(); }

private:
    next failed(step where, error_code ec) const;
    // The error for a peer that no RDMA device leads to.
    errc no_device() const noexcept;
    error_code explained(error_code ec) const;
    error_code mark_packets();
    error_code find_device(queues& made, verbs::device_context& on) const;
    error_code check_path(queues const& made, verbs::device_context const& on) const;
    error_code find_domain(queues& made, verbs::device_context const& on, bool is_passive) const;
    error_code find_place(queues& made, verbs::device_context const& on, listener const& who) const;
    std::shared_ptr<progress::cq_poller> make_poller(
        verbs::domain const& domain, listener const& who
    ) const;
    error_code make_queues(
        queues& made, verbs::device_context const& on, bool is_passive, listener const& who
    ) const;
    data_path make_data_path(queues const& made) const;
    cm::connection_parameters parameters(std::span<std::byte const> private_data) const noexcept;

    connection_services& services_;
    connection_options const& options_;
    // Null for a poller of the connection's own.
    std::shared_ptr<progress::poller_core const> poller_;
    std::optional<boost::asio::steady_timer> timer_;
    std::uint64_t timer_use_ = 0;

    // Without the connection manager its only purpose is to keep the event channel running.
    std::unique_ptr<cm::id> id_;
    // An acceptor's permit, released after the queue pair is destroyed.
    std::shared_ptr<connection_limiter::permit> admitted_;
    queues queues_;
    std::set<verbs::memory_window*> windows_;

    struct named_device {
        std::string name;
        verbs::wanted_address address;
    };
    // The named device. Set only without the connection manager.
    std::optional<named_device> out_of_band_;
    queue_pair_address peer_address_;
    // Of the peer's request.
    std::uint32_t asked_initiator_depth_ = UINT32_MAX;
    std::uint32_t asked_responder_resources_ = UINT32_MAX;
    endpoint peer_;
    endpoint local_;
    std::vector<std::byte> peer_private_data_;
    std::optional<access_flags> remote_access_;
};

}  // namespace rcverbs::detail
