// connection_limiter.hpp — limits the live connections of an acceptor, in total and per address,
// and delays addresses after a violation.
//
// A connection holds its permit until its queue pair is destroyed. Safe from any thread.
#pragma once

#include <boost/asio/ip/address.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <rcverbs/acceptor.hpp>
#include <rcverbs/detail/timeouts.hpp>

namespace rcverbs::detail {

class connection_limiter : public std::enable_shared_from_this<connection_limiter> {
public:
    using clock = std::chrono::steady_clock;

    struct limits {
        std::size_t in_all;
        std::size_t of_each_address;
        // 0 for none.
        std::chrono::milliseconds violation_delay{0};
    };

    /// The right to one connection. Its destructor returns it to the limiter.
    class permit {
    public:
        permit(std::shared_ptr<connection_limiter> at, boost::asio::ip::address whose)
            : at_{std::move(at)},
              whose_{std::move(whose)} {}
        permit(permit const&) = delete;
        permit& operator=(permit const&) = delete;
        ~permit() { at_->leave(*this); }

        /// Records the connection that holds this permit.
        void belong_to(std::weak_ptr<connection_core> core) { at_->note(*this, std::move(core)); }
        /// Records how the connection ended: its final counters, and whether the peer's violation
        /// ended it.
        void end(connection_statistics const& counted, bool by_violation) noexcept {
            counted_ = counted;
            is_violated_ = by_violation;
        }

    private:
        std::shared_ptr<connection_limiter> const at_;
        boost::asio::ip::address const whose_;
        connection_statistics counted_;
        bool is_violated_ = false;

        friend class connection_limiter;
    };

    /// A permit, or null and the reason for the refusal.
    struct verdict {
        std::shared_ptr<permit> given;
        refusal why;
    };

    explicit connection_limiter(limits l) noexcept : limits_{l} {}

    /// Sets what is called, on any thread, when the last permit has been returned. Must not throw.
    /// REQUIRES: no permit has been given.
    void set_idle_handler(std::function<void()> handler) { on_idle_ = std::move(handler); }

    std::size_t connections_max() const noexcept { return limits_.in_all; }

    /// Requests a permit for one more connection from that address.
    verdict admit(boost::asio::ip::address const& whose) {
        std::lock_guard const lock{mutex_};
        forget_reformed();
        address& theirs = of_address_[whose];
        bool const is_full = all_ >= limits_.in_all;
        bool const has_enough = theirs.connections >= limits_.of_each_address;
        bool const is_slowed = theirs.violations > 0 && clock::now() < theirs.refused_until;
        if (is_full || has_enough || is_slowed) {
            if (theirs.is_unknown()) of_address_.erase(whose);
            return {
                nullptr,
                is_slowed ? refusal::violation
                : is_full ? refusal::connections
                          : refusal::connections_per_address};
        }
        ++theirs.connections;
        ++all_;
        return {std::make_shared<permit>(shared_from_this(), whose), {}};
    }

    std::size_t count() const {
        std::lock_guard const lock{mutex_};
        return all_;
    }

    /// The summed counters of all ended connections, and the connections that have not ended.
    std::pair<connection_statistics, std::vector<std::weak_ptr<connection_core>>> accounts() const {
        std::lock_guard const lock{mutex_};
        std::vector<std::weak_ptr<connection_core>> alive;
        for (auto const& [at, core] : alive_) alive.push_back(core);
        return {ended_, std::move(alive)};
    }

private:
    // violation_delay doubles with each violation, at most this many times. After the last delay
    // has passed, the violations are remembered for the same time again.
    static constexpr unsigned doublings_max = 6;
    // Bounds the memory for remembered addresses; sufficient for the peers of a large network.
    static constexpr std::size_t remembered_max = 65536;

    struct address {
        std::size_t connections = 0;
        unsigned violations = 0;
        clock::time_point refused_until;
        clock::time_point forgotten_at;

        bool is_unknown() const noexcept { return connections == 0 && violations == 0; }
    };

    void note(permit const& at, std::weak_ptr<connection_core> core) {
        std::lock_guard const lock{mutex_};
        alive_.emplace(&at, std::move(core));
    }

    void leave(permit const& at) noexcept {
        if (count_out(at) && on_idle_) on_idle_();
    }

    // True if it was the last.
    bool count_out(permit const& at) noexcept {
        std::lock_guard const lock{mutex_};
        alive_.erase(&at);
        ended_ += at.counted_;
        --all_;
        auto const found = of_address_.find(at.whose_);
        address& theirs = found->second;
        --theirs.connections;
        if (at.is_violated_ && limits_.violation_delay.count() > 0 &&
            of_address_.size() <= remembered_max) {
            auto const delay = bounded(
                bounded(limits_.violation_delay) * (1 << std::min(theirs.violations, doublings_max))
            );
            ++theirs.violations;
            theirs.refused_until = clock::now() + delay;
            theirs.forgotten_at = theirs.refused_until + delay;
            next_forgotten_ = std::min(next_forgotten_, theirs.forgotten_at);
        }
        if (theirs.is_unknown()) of_address_.erase(found);
        return all_ == 0;
    }

    // REQUIRES: mutex_ is held.
    void forget_reformed() {
        auto const now = clock::now();
        if (now < next_forgotten_) return;
        next_forgotten_ = clock::time_point::max();
        for (auto i = of_address_.begin(); i != of_address_.end();) {
            address& a = i->second;
            if (a.violations > 0 && now >= a.forgotten_at) a.violations = 0;
            if (a.violations > 0) next_forgotten_ = std::min(next_forgotten_, a.forgotten_at);
            i = a.is_unknown() ? of_address_.erase(i) : std::next(i);
        }
    }

    limits const limits_;
    std::function<void()> on_idle_;
    mutable std::mutex mutex_;
    std::size_t all_ = 0;
    std::map<permit const*, std::weak_ptr<connection_core>> alive_;
    connection_statistics ended_;
    std::map<boost::asio::ip::address, address> of_address_;
    clock::time_point next_forgotten_ = clock::time_point::max();
};

}  // namespace rcverbs::detail
