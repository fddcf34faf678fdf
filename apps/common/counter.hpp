// counter.hpp — the `atomic` mode: a counter, a lock and a record that the server exposes to all
// clients.
//
// Clients add to the counter with fetch-and-add. They take the lock with compare-and-swap to read,
// change and write back the record; its eight words stay equal as long as the lock works, and the
// server repairs them after a client that spoiled them. The
// server gives each client a ticket, a random number that the lock holds while the client owns it.
// The server frees the lock when its value is not the ticket of a connected client. A client that
// sends no MSG_DONE is disconnected at its deadline, so no client can hold the lock for ever.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string>

#include <rcverbs/session.hpp>

#include "common/exchange.hpp"

namespace demo {

struct counter_options {
    /// The addend of each fetch-and-add.
    std::uint64_t addend = 1;
    /// The number of additions.
    std::uint32_t additions = 1;
    /// The number of changes to the record under the lock.
    std::uint32_t updates = 1;
    /// The deadline for taking the lock.
    std::chrono::milliseconds patience{10000};
};

/// The client's side, over an established session.
boost::asio::awaitable<exit_code> add_to_counter(
    rcverbs::session& s, exchange_options const& options, counter_options const& counter
);

/// The server's side: the exposed memory, shared by any number of clients. Safe from any thread.
class shared_counter {
public:
    /// Serves one client over an established session.
    boost::asio::awaitable<exit_code> serve(rcverbs::session& s, exchange_options const& options);
    /// Frees the lock if its value is no connected client's ticket. To be called periodically.
    void tend();
    /// Prints `counter: N`, its present value.
    void say_counter() const;
    /// Prints the counter and the number of changes to the record; call it once no client is left.
    /// Returns not_verified if two clients changed the record at the same time.
    exit_code conclude() const;

private:
    static constexpr std::size_t record_words = 8;

    // The device writes these words, unseen by the compiler: read them with std::atomic_ref only.
    struct cells {
        std::uint64_t counter;
        std::uint64_t lock;
    };
    boost::asio::awaitable<exit_code> serve(
        rcverbs::session& s, exchange_options const& options, std::uint64_t ticket
    );
    std::uint64_t enter();
    void leave(std::uint64_t ticket);
    void free_foreign_lock() noexcept;
    void mend_record();

    // On separate cache lines, so that atomics and writes do not share one.
    alignas(64) mutable cells cells_{};
    alignas(64) mutable std::array<std::uint64_t, record_words> record_{};

    std::mutex mutex_;
    std::set<std::uint64_t> tickets_;  // of the connected clients
    std::mt19937_64 random_{std::random_device{}()};
    std::uint64_t last_whole_ = 0;  // what the record was when it was last seen whole
    bool was_used_ = false;
};

}  // namespace demo
