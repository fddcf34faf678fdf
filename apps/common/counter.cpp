#include "common/counter.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

namespace demo {

namespace asio = boost::asio;
using rcverbs::access_flags;
using rcverbs::error_code;
using rcverbs::remote_region;
using rcverbs::remote_word;
using rcverbs::step;

namespace {

constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

// Where the words lie in the region "counter".
constexpr std::uint64_t counter_offset = 0;
constexpr std::uint64_t lock_offset = 8;

constexpr std::size_t record_bytes = 64;
constexpr std::uint64_t lock_is_free = 0;

// What the peer of another byte order would do with the words is its business: atomics are in the owner's.
std::array<std::uint64_t, record_bytes / 8> words_of(std::span<std::byte const> bytes) {
    std::array<std::uint64_t, record_bytes / 8> words{};
    std::memcpy(words.data(), bytes.data(), record_bytes);
    return words;
}

bool is_consistent(std::span<std::uint64_t const> words) {
    return std::ranges::all_of(words, [&](std::uint64_t w) { return w == words[0]; });
}

// What the server exposes, as the client sees it.
struct exposed {
    remote_word counter;
    remote_word lock;
    remote_region record;
    std::uint64_t ticket = 0;
};

bool find(rcverbs::peer_regions const& regions, exposed& out) {
    remote_region const* const cells = regions.find("counter");
    remote_region const* const record = regions.find("record");
    remote_region const* const ticket = regions.find("ticket");
    if (cells == nullptr || record == nullptr || ticket == nullptr) return false;
    if (cells->size_bytes() < lock_offset + 8 || record->size_bytes() < record_bytes) return false;
    // The ticket is a number, not memory: a region of no bytes that begins there.
    out = {cells->word(counter_offset), cells->word(lock_offset), record->slice(0, record_bytes), ticket->address()};
    return true;
}

// Adds, one after the other, and says what was there.
asio::awaitable<error_code> add(rcverbs::connection& c, exposed const& theirs, counter_options const& counter) {
    std::uint64_t first = 0;
    std::uint64_t last = 0;
    for (std::uint32_t i = 0; i < counter.additions; ++i) {
        auto [ec, before] = co_await c.async_fetch_add(theirs.counter, counter.addend, awaiting);
        if (ec) co_return ec;
        last = before;
        if (i == 0) first = before;
    }
    if (counter.additions > 0) {
        say("added " + std::to_string(counter.addend) + " x " + std::to_string(counter.additions) + "; the counter was " +
            std::to_string(first) + " before the first and " + std::to_string(last) + " before the last.");
    }
    co_return error_code{};
}

asio::awaitable<error_code> take_lock(
    rcverbs::connection& c, exposed const& theirs, std::chrono::milliseconds patience, std::uint32_t& attempts
) {
    auto const deadline = std::chrono::steady_clock::now() + patience;
    std::chrono::microseconds pause{20};
    for (;;) {
        ++attempts;
        auto [ec, holder] = co_await c.async_compare_swap(theirs.lock, lock_is_free, theirs.ticket, awaiting);
        if (ec || holder == lock_is_free) co_return ec;
        if (std::chrono::steady_clock::now() >= deadline) co_return rcverbs::errc::timed_out;
        // Who has it gets on better if not everybody asks all the time.
        asio::steady_timer timer{co_await asio::this_coro::executor, pause};
        co_await timer.async_wait(awaiting);
        pause = std::min<std::chrono::microseconds>(pause * 2, std::chrono::milliseconds{2});
    }
}

// Reads, changes and writes back the record. REQUIRES: the lock is held.
asio::awaitable<error_code> change(
    rcverbs::connection& c, exposed const& theirs, rcverbs::buffer& copy, std::uint64_t& seen, bool& is_whole
) {
    auto [failed, read] = co_await c.async_read(theirs.record, copy.slice(), awaiting);
    if (failed) co_return failed;
    auto words = words_of(copy.bytes());
    is_whole = read == record_bytes && is_consistent(words);
    seen = words[0];
    for (std::uint64_t& w : words) ++w;
    std::memcpy(copy.bytes().data(), words.data(), record_bytes);
    auto [ec, written] = co_await c.async_write(copy.slice(), theirs.record, awaiting);
    static_cast<void>(written);
    co_return ec;
}

asio::awaitable<exit_code> update(
    rcverbs::session& s, exposed const& theirs, exchange_options const& options, counter_options const& counter
) {
    rcverbs::connection& c = s.next_layer();
    rcverbs::buffer copy{c.domain(), record_bytes, access_flags::local_write};
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
        std::tie(ec, holder) = co_await c.async_compare_swap(theirs.lock, theirs.ticket, lock_is_free, awaiting);
        if (ec) co_return report(s, ec, step::transfer);
        if (!is_whole || holder != theirs.ticket) {
            complain("the record was changed by somebody else while this client had the lock");
            co_return exit_code::not_verified;
        }
    }
    if (counter.updates > 0) {
        say("changed the record x " + std::to_string(counter.updates) + " under the lock, taken in " + std::to_string(attempts) +
            " attempts; it was at " + std::to_string(seen) + " before the last.");
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
        complain("the peer exposes no counter");
        co_return exit_code::refused;
    }
    say("received MSG_MR. adding to the remote counter...");
    co_await hold_if(options, "regions-received", s);
    ec = co_await add(s.next_layer(), theirs, counter);
    if (ec) co_return report(s, ec, step::transfer);
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
    say(options.farewell);
    co_return exit_code::done;
}

asio::awaitable<exit_code> shared_counter::serve(rcverbs::session& s, exchange_options const& options) {
    std::uint64_t const ticket = ++tickets_;
    exit_code const code = co_await serve(s, options, ticket);
    give_back(ticket);
    co_return code;
}

asio::awaitable<exit_code> shared_counter::serve(
    rcverbs::session& s, exchange_options const& options, std::uint64_t ticket
) {
    rcverbs::protection_domain const domain = s.next_layer().domain();
    // The same memory for every client, registered anew for each one's device, and open for just what it is for.
    rcverbs::memory_region const words{domain, std::as_writable_bytes(std::span{&cells_, 1}), access_flags::remote_atomic};
    rcverbs::memory_region const record{
        domain, std::as_writable_bytes(std::span{record_}), access_flags::remote_read | access_flags::remote_write};
    co_await hold_if(options, "connected", s);
    std::vector<rcverbs::named_region> const regions{
        {"counter", words}, {"record", record}, {"ticket", remote_region{ticket, 0, {}, access_flags::local_read}}};
    auto [ec] = co_await s.async_publish(regions, awaiting);
    if (ec) co_return report(s, ec, step::exchange);
    say("send completed successfully.");
    co_await hold_if(options, "regions-sent", s);
    std::tie(ec) = co_await s.async_wait_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    std::tie(ec) = co_await s.async_send_done(awaiting);
    if (ec) co_return report(s, ec, step::finish);
    co_await hold_if(options, "done-sent", s);
    std::tie(ec) = co_await s.async_disconnect(awaiting);
    if (ec) co_return report(s, ec, step::disconnect);
    say(options.farewell);
    say_counter();
    co_return exit_code::done;
}

// A device's compare-and-swap that fails writes nothing, and as long as the lock is held all of them fail: so the program
// may set it free, even where devices are atomic among themselves only.
void shared_counter::give_back(std::uint64_t ticket) noexcept {
    std::uint64_t expected = ticket;
    std::atomic_ref{cells_.lock}.compare_exchange_strong(expected, lock_is_free);
}

void shared_counter::say_counter() const {
    say("counter: " + std::to_string(std::atomic_ref{cells_.counter}.load()));
}

exit_code shared_counter::conclude() const {
    if (tickets_ == 0) return exit_code::done;
    std::array<std::uint64_t, record_words> words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::atomic_ref{record_[i]}.load();
    say_counter();
    if (!is_consistent(words)) {
        complain("the record was changed by two clients at a time");
        return exit_code::not_verified;
    }
    say("record: changed " + std::to_string(words[0]) + " times.");
    return exit_code::done;
}

}  // namespace demo
