#include "common/counter.hpp"

#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "common/awaiting.hpp"

namespace demo {

namespace asio = boost::asio;
using rcverbs::access_flags;
using rcverbs::error_code;
using rcverbs::remote_atomic;
using rcverbs::remote_region;
using rcverbs::step;

namespace {

// Offsets of the words in the region "counter".
constexpr std::uint64_t counter_offset = 0;
constexpr std::uint64_t lock_offset = 8;

constexpr std::size_t record_bytes = 64;
constexpr std::uint64_t lock_is_free = 0;

// The words are in the server's byte order, which atomics use; a client of another byte order would
// have to convert them.
std::array<std::uint64_t, record_bytes / 8> words_of(std::span<std::byte const> bytes) {
    std::array<std::uint64_t, record_bytes / 8> words{};
    std::memcpy(words.data(), bytes.data(), record_bytes);
    return words;
}

bool is_consistent(std::span<std::uint64_t const> words) {
    return std::ranges::all_of(words, [&](std::uint64_t w) { return w == words[0]; });
}

// The server's exposed memory, as the client addresses it.
struct exposed {
    remote_atomic counter;
    remote_atomic lock;
    remote_region record;
    std::uint64_t ticket = 0;
};

bool find(rcverbs::peer_regions const& regions, exposed& out) {
    remote_region const* const cells = regions.find("counter");
    remote_region const* const record = regions.find("record");
    remote_region const* const ticket = regions.find("ticket");
    if (cells == nullptr || record == nullptr || ticket == nullptr) return false;
    if (cells->size() < lock_offset + 8 || record->size() < record_bytes) return false;
    // The ticket is a number, not memory: the server sends it as the address of an empty region.
    out = {
        cells->word(counter_offset),
        cells->word(lock_offset),
        record->slice(0, record_bytes),
        ticket->address()};
    return true;
}

// Runs the additions one after another, and prints the counter's value before the first and before
// the last.
asio::awaitable<error_code> add(
    rcverbs::connection& c, exposed const& theirs, counter_options const& counter, bool& has_worked
) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    for (std::uint32_t i = 0; i < counter.additions; ++i) {
        auto [ec, before] = co_await c.async_fetch_add(theirs.counter, counter.addend, awaiting);
        if (ec) co_return ec;
        has_worked = true;
        last = before;
        if (i == 0) first = before;
    }
    if (counter.additions > 0) {
        print(
            "added " + std::to_string(counter.addend) + " x " + std::to_string(counter.additions) +
            "; the counter was " + std::to_string(first) + " before the first and " +
            std::to_string(last) + " before the last."
        );
    }
    co_return error_code{};
}

asio::awaitable<error_code> take_lock(
    rcverbs::connection& c,
    exposed const& theirs,
    std::chrono::milliseconds patience,
    std::uint32_t& attempts
) {
    auto const deadline = std::chrono::steady_clock::now() + patience;
    std::chrono::microseconds pause{20};
    for (;;) {
        ++attempts;
        auto [ec, holder] =
            co_await c.async_compare_swap(theirs.lock, lock_is_free, theirs.ticket, awaiting);
        if (ec || holder == lock_is_free) co_return ec;
        if (std::chrono::steady_clock::now() >= deadline) co_return rcverbs::errc::timed_out;
        // Backoff: frequent attempts would slow down the lock's owner.
        asio::steady_timer timer{co_await asio::this_coro::executor, pause};
        co_await timer.async_wait(awaiting);
        pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds{2});
    }
}

// Reads, changes and writes back the record; one that is spoiled is whole again afterwards.
// REQUIRES: the lock is held.
asio::awaitable<error_code> change(
    rcverbs::connection& c,
    exposed const& theirs,
    rcverbs::registered_buffer& copy,
    std::uint64_t& seen,
    bool& is_whole
) {
    auto [failed, read] = co_await c.async_read(theirs.record, copy.slice(), awaiting);
    if (failed) co_return failed;
    auto words = words_of(copy.bytes());
    is_whole = read == record_bytes && is_consistent(words);
    seen = words[0];
    words.fill(seen + 1);
    std::memcpy(copy.bytes().data(), words.data(), record_bytes);
    auto [ec, written] = co_await c.async_write(copy.slice(), theirs.record, awaiting);
    static_cast<void>(written);
    co_return ec;
}

asio::awaitable<exit_code> update(
    rcverbs::session& s,
    exposed const& theirs,
    exchange_options const& options,
    counter_options const& counter
) {
    rcverbs::connection& c = s.next_layer();
    rcverbs::registered_buffer copy{c.domain(), record_bytes, access_flags::local_write};
    std::uint32_t attempts = 0;
    std::uint64_t seen = 0;
    for (std::uint32_t i = 0; i < counter.updates; ++i) {
        error_code ec = co_await take_lock(c, theirs, counter.patience, attempts);
        if (ec) co_return report(s, ec, step::transfer);
        co_await hold_if(options, "locked", s);
        bool is_whole = false;
        ec = co_await change(c, theirs, copy, seen, is_whole);
        if (ec) co_return report(s, ec, step::transfer);
        std::uint64_t holder = 0;
        std::tie(ec, holder) =
            co_await c.async_compare_swap(theirs.lock, theirs.ticket, lock_is_free, awaiting);
        if (ec) co_return report(s, ec, step::transfer);
        if (!is_whole || holder != theirs.ticket) {
            print_error("another client changed the record while this client had the lock");
            co_return exit_code::not_verified;
        }
    }
    if (counter.updates > 0) {
        print(
            "changed the record x " + std::to_string(counter.updates) +
            " under the lock, taken in " + std::to_string(attempts) + " attempts; it was at " +
            std::to_string(seen) + " before the last."
        );
    }
    co_return exit_code::done;
}

}  // namespace

asio::awaitable<exit_code> add_to_counter(
    rcverbs::session& s, exchange_options const& options, counter_options const& counter
) {
    co_await hold_if(options, "connected", s);
    error_code ec;
    rcverbs::peer_regions regions;
    std::tie(ec, regions) = co_await s.async_wait_regions(awaiting);
    if (ec) co_return report(s, ec, step::exchange);
    exposed theirs;
    if (!find(regions, theirs)) {
        print_error("the peer exposes no counter");
        co_return exit_code::refused;
    }
    print("received MSG_MR. adding to the remote counter...");
    co_await hold_if(options, "regions-received", s);
    bool has_worked = false;
    ec = co_await add(s.next_layer(), theirs, counter, has_worked);
    if (ec) co_return report(s, ec, step::transfer, has_worked);
    exit_code const code = co_await update(s, theirs, options, counter);
    if (code != exit_code::done) co_return code;
    co_await hold_if(options, "transferred", s);
    std::tie(ec) = co_await s.async_send_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    co_await hold_if(options, "done-sent", s);
    std::tie(ec) = co_await s.async_wait_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    std::tie(ec) = co_await s.async_disconnect(awaiting);
    if (ec) co_return report(s, ec, step::disconnect);
    print(options.farewell);
    co_return exit_code::done;
}

asio::awaitable<exit_code> shared_counter::serve(
    rcverbs::session& s, exchange_options const& options
) {
    std::uint64_t const ticket = enter();
    exit_code code = exit_code::other;
    std::exception_ptr failed;
    try {
        code = co_await serve(s, options, ticket);
    } catch (...) {
        failed = std::current_exception();
    }
    leave(ticket);
    if (failed) std::rethrow_exception(failed);
    co_return code;
}

asio::awaitable<exit_code> shared_counter::serve(
    rcverbs::session& s, exchange_options const& options, std::uint64_t ticket
) {
    rcverbs::protection_domain const domain = s.domain();
    // All clients use the same memory. It is registered anew in each client's protection domain,
    // with only the rights that the mode needs.
    rcverbs::memory_region const words{
        domain, std::as_writable_bytes(std::span{&cells_, 1}), access_flags::remote_atomic};
    rcverbs::memory_region const record{
        domain,
        std::as_writable_bytes(std::span{record_}),
        access_flags::remote_read | access_flags::remote_write};
    co_await hold_if(options, "connected", s);
    std::vector<rcverbs::named_region> const regions{
        {"counter", words},
        {"record", record},
        {"ticket", remote_region{ticket, 0, {}, access_flags::local_read}}};
    auto [ec] = co_await s.async_publish(regions, awaiting);
    if (ec) co_return report(s, ec, step::exchange);
    print("send completed successfully.");
    co_await hold_if(options, "regions-sent", s);
    std::tie(ec) = co_await s.async_wait_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    std::tie(ec) = co_await s.async_send_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    co_await hold_if(options, "done-sent", s);
    std::tie(ec) = co_await s.async_disconnect(awaiting);
    if (ec) co_return report(s, ec, step::disconnect);
    print(options.farewell);
    say_counter();
    co_return exit_code::done;
}

// Random, so that no client can guess another client's ticket.
std::uint64_t shared_counter::enter() {
    std::lock_guard const lock{mutex_};
    was_used_ = true;
    for (;;) {
        std::uint64_t const ticket = random_();
        if (ticket != lock_is_free && tickets_.insert(ticket).second) return ticket;
    }
}

void shared_counter::leave(std::uint64_t ticket) {
    std::lock_guard const lock{mutex_};
    tickets_.erase(ticket);
    // Nobody else changes it while this client's ticket is in the lock, or while there is no client.
    bool const has_lock = std::atomic_ref{cells_.lock}.load() == ticket;
    if (has_lock || tickets_.empty()) mend_record();
    free_foreign_lock();
}

// A client that fails in the middle of a change, or writes what it likes, must not spoil the record
// for those that come later.
void shared_counter::mend_record() {
    std::array<std::uint64_t, record_words> words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::atomic_ref{record_[i]}.load();
    if (is_consistent(words)) {
        last_whole_ = words[0];
        return;
    }
    print_error("a client left the record spoiled; it is as before");
    for (std::uint64_t& w : record_) std::atomic_ref{w}.store(last_whole_);
}

void shared_counter::tend() {
    std::lock_guard const lock{mutex_};
    free_foreign_lock();
}

// The atomics of some devices are not atomic with respect to the CPU. The CPU may still free the
// lock: as long as it is held, every compare-and-swap that takes it fails and writes nothing.
void shared_counter::free_foreign_lock() noexcept {
    std::uint64_t holder = std::atomic_ref{cells_.lock}.load();
    if (holder == lock_is_free || tickets_.contains(holder)) return;
    std::atomic_ref{cells_.lock}.compare_exchange_strong(holder, lock_is_free);
}

void shared_counter::say_counter() const {
    print("counter: " + std::to_string(std::atomic_ref{cells_.counter}.load()));
}

exit_code shared_counter::conclude() const {
    if (!was_used_) return exit_code::done;
    std::array<std::uint64_t, record_words> words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::atomic_ref{record_[i]}.load();
    say_counter();
    if (!is_consistent(words)) {
        print_error("two clients changed the record at the same time");
        return exit_code::not_verified;
    }
    print("record: changed " + std::to_string(words[0]) + " times.");
    return exit_code::done;
}

}  // namespace demo
