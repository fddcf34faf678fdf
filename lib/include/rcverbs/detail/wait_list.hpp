// wait_list.hpp — the handlers of one kind of operation that wait for the same thing.
//
// First in, first out; a cancelled one is found by its serial number. Its owner guards it with a
// lock. A handler is neither called nor destroyed by it: what is removed is returned, for the time
// when the lock is released. Internal.
#pragma once

#include <boost/asio/cancellation_type.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <variant>

#include <rcverbs/detail/handler_memory.hpp>
#include <rcverbs/detail/waiting_handler.hpp>

namespace rcverbs::detail {

/// `Handler` has slot(), and note() for what assign_noted() returns. `More` is what the owner keeps with each handler. Everything in this class REQUIRES the owner's
/// lock.
template <class Handler, class More = std::monostate>
class wait_list {
public:
    struct waiting {
        Handler handler;
        More more;
        std::uint64_t serial;

        explicit waiting(Handler&& h, More&& m = {}, std::uint64_t number = 0)
            : handler{std::move(h)},
              more{std::move(m)},
              serial{number} {}
    };
    /// What was removed: one, all, or nothing.
    using removed = std::list<waiting, recycling_allocator<waiting>>;

    bool empty() const noexcept { return all_.empty(); }
    std::size_t size() const noexcept { return all_.size(); }
    waiting const& front() const noexcept { return all_.front(); }

    /// Adds a handler behind the others. If its cancellation signal is emitted, with any type, calls
    /// `cancel(serial)` of the owner, without the lock. Returns the serial number. If this throws,
    /// nothing has changed.
    template <class Owner>
    std::uint64_t add(
        Handler&& handler,
        std::weak_ptr<Owner> owner,
        void (Owner::*cancel)(std::uint64_t serial),
        More more = {}
    ) {
        removed one;
        if (spare_.empty()) {
            one.emplace_back(std::move(handler), std::move(more), ++last_serial_);
        } else {
            one.splice(one.begin(), spare_, spare_.begin());
            one.front() = waiting{std::move(handler), std::move(more), ++last_serial_};
        }
        connect_cancellation(
            one.front().handler,
            [owner = std::move(owner), cancel, serial = last_serial_](boost::asio::cancellation_type
            ) {
                if (auto const self = owner.lock()) (self.get()->*cancel)(serial);
            }
        );
        all_.splice(all_.end(), one);
        return last_serial_;
    }

    /// Puts what was removed back to the front.
    void put_back(removed& one) noexcept { all_.splice(all_.begin(), one); }

    /// True if the one that add() gave this serial number still waits.
    bool contains(std::uint64_t serial) const noexcept {
        return std::ranges::find(all_, serial, &waiting::serial) != all_.end();
    }
    /// Removes the first.
    removed take_first() noexcept {
        removed first;
        if (!all_.empty()) first.splice(first.begin(), all_, all_.begin());
        return first;
    }
    /// Removes the first and returns its handler, at less cost for the next add(). REQUIRES: !empty().
    Handler pop_first() noexcept {
        Handler first = std::move(all_.front().handler);
        if (spare_.size() < spare_max) spare_.splice(spare_.begin(), all_, all_.begin());
        else all_.pop_front();
        return first;
    }
    /// Removes the first for which `is_wanted(handler)`.
    template <class Predicate>
    removed take_first_that(Predicate is_wanted) {
        removed one;
        auto const found = std::ranges::find_if(all_, is_wanted, &waiting::handler);
        if (found != all_.end()) one.splice(one.begin(), all_, found);
        return one;
    }
    /// Removes the one that add() gave this serial number, if it still waits.
    removed take(std::uint64_t serial) noexcept {
        removed one;
        auto const found = std::ranges::find(all_, serial, &waiting::serial);
        if (found != all_.end()) one.splice(one.begin(), all_, found);
        return one;
    }
    removed take_all() noexcept { return std::exchange(all_, {}); }

private:
    static constexpr std::size_t spare_max = 16;

    removed all_;
    removed spare_;  // memory of former ones
    std::uint64_t last_serial_ = 0;
};

}  // namespace rcverbs::detail
