// counter.hpp — the `atomic` mode: a counter, a lock and a record that the server exposes to all its clients.
//
// Clients add to the counter with fetch-and-add, and take the lock with compare-and-swap to read, change and write back the
// record, whose eight words are always the same as long as the lock does its work. The server gives each client a ticket,
// which is what the lock holds while that client has it: so the lock of a client that died can be given back.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <rcverbs/session.hpp>

#include "common/exchange.hpp"

namespace demo {

struct counter_options {
    /// What each addition adds.
    std::uint64_t addend = 1;
    /// How many additions.
    std::uint32_t additions = 1;
    /// How often to change the record under the lock.
    std::uint32_t updates = 1;
    /// How long to try to get the lock.
    std::chrono::milliseconds patience{10000};
};

/// The client's part, over an established session.
boost::asio::awaitable<exit_code> add_to_counter(
    rcverbs::session& s, exchange_options const& options, counter_options const& counter
);

/// The server's part: what is exposed, to one client or many at a time. Safe from any thread.
class shared_counter {
public:
    /// Serves one client over an established session.
    boost::asio::awaitable<exit_code> serve(rcverbs::session& s, exchange_options const& options);
    /// Says `counter: N`, as it is now.
    void say_counter() const;
    /// Says the counter and how often the record was changed, once no client is left; not_verified if two clients changed
    /// it at a time.
    exit_code conclude() const;

private:
    static constexpr std::size_t record_words = 8;

    // The device changes these behind the compiler's back: read with std::atomic_ref only.
    struct cells {
        std::uint64_t counter;
        std::uint64_t lock;
    };
    boost::asio::awaitable<exit_code> serve(rcverbs::session& s, exchange_options const& options, std::uint64_t ticket);
    void give_back(std::uint64_t ticket) noexcept;

    // A cache line each, so that a device's atomics and writes do not meet the neighbour's.
    alignas(64) mutable cells cells_{};
    alignas(64) mutable std::array<std::uint64_t, record_words> record_{};
    std::atomic<std::uint64_t> tickets_{0};
};

}  // namespace demo
