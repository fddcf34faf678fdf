// registrations.hpp — pieces of memory that threads of the program register for a region channel. A thread
// may run longer than the channel, and must not keep anything of the channel's.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include <rcverbs/error.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/protection_domain.hpp>
#include <rcverbs/registration_limit.hpp>

#include "machines/piece_map.hpp"
#include "remote/offers_core.hpp"

namespace rcverbs::detail {

/// One part of an offer, registered in a domain.
memory_region registered(
    protection_domain const& domain,
    offered_region const& what,
    machines::piece_map::part const& at,
    error_code& ec
);

/// Used inside the channel.
class registrations {
public:
    /// One registration. Its result is there when it has completed.
    class job {
    public:
        job(offer_ptr of, std::uint32_t of_piece) noexcept;

        std::uint64_t const number;
        std::uint32_t const piece;
        memory_region region;
        error_code ec;
        registration_limit limit;

    private:
        friend class registrations;
        void run(machines::piece_map::part const& at);
        // Deregisters it, and lets the memory go. With the mutex.
        void drop() noexcept;

        // Nobody waits for it any more.
        std::atomic<bool> is_cancelled_{false};
        std::mutex mutex_;  // held while it is registered
        bool is_over_ = false;  // the channel has ended
        boost::asio::any_io_executor io_;
        protection_domain domain_;
        offer_ptr what_;
    };
    using job_ptr = std::shared_ptr<job>;

    /// Cancelled ones included, until their threads have seen that: a peer cannot make more of them.
    std::size_t size() const noexcept { return under_way_.size(); }
    /// Registers on a thread of `on`, and then calls `then(job_ptr)` on `io`.
    job_ptr start(
        boost::asio::any_io_executor const& on,
        boost::asio::any_io_executor const& io,
        protection_domain const& domain,
        offer_ptr const& what,
        std::uint32_t piece,
        machines::piece_map::part const& at,
        std::function<void(job_ptr)> then
    );
    /// REQUIRES: `then` was called with it.
    void remove(job_ptr const& which) noexcept { under_way_.erase(which); }
    static void cancel(job& which) noexcept;
    /// The memory is the program's after that, so a registration that runs is waited for.
    void end() noexcept;

private:
    std::set<job_ptr> under_way_;
};

}  // namespace rcverbs::detail
