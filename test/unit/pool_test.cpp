// Blocks of a pool, and who has them.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "machines/buddy_allocator.hpp"
#include "machines/early_numbers.hpp"
#include "machines/pool_books.hpp"
#include "machines/unsent_changes.hpp"
#include "remote/takeover.hpp"

using namespace rcverbs;
using machines::buddy_allocator;
using machines::early_numbers;
using machines::pool_books;

TEST_CASE("blocks of two halves are divided and joined again") {
    buddy_allocator b{16};
    CHECK(b.free_units() == 16);
    CHECK(b.largest_free_units() == 16);
    CHECK(b.allocate(1) == 0);
    // 1, 2, 4 and 8 units are left.
    CHECK(b.largest_free_units() == 8);
    CHECK(b.allocate(8) == 8);
    CHECK(b.allocate(2) == 2);
    CHECK(b.allocate(4) == 4);
    CHECK(b.allocate(1) == 1);
    CHECK(b.free_units() == 0);
    CHECK(b.largest_free_units() == 0);
    CHECK_FALSE(b.allocate(1));
    b.free(1);
    b.free(2);
    CHECK(b.free_units() == 3);
    CHECK(b.largest_free_units() == 2);
    b.free(0);
    CHECK(b.largest_free_units() == 4);
    b.free(8);
    b.free(4);
    CHECK(b.largest_free_units() == 16);
    CHECK(b.allocate(16) == 0);
}

TEST_CASE("sizes are rounded to blocks, and what no block can have is 0") {
    CHECK(buddy_allocator::rounded(0) == 0);
    CHECK(buddy_allocator::rounded(1) == 1);
    CHECK(buddy_allocator::rounded(3) == 4);
    CHECK(buddy_allocator::rounded(buddy_allocator::units_max) == buddy_allocator::units_max);
    CHECK(buddy_allocator::rounded(buddy_allocator::units_max + std::uint64_t{1}) == 0);
    CHECK(buddy_allocator::rounded(UINT64_MAX) == 0);
}

TEST_CASE("a pool of any number of units is used to the last one") {
    for (std::uint32_t const units : {1U, 2U, 3U, 7U, 100U, 1023U, 1025U}) {
        INFO(units);
        buddy_allocator b{units};
        std::uint32_t const largest = b.largest_free_units();
        CHECK(largest <= units);
        CHECK(largest * 2 > units);
        std::set<std::uint32_t> all;
        while (auto const unit = b.allocate(1)) all.insert(*unit);
        CHECK(all.size() == units);
        CHECK(*all.rbegin() == units - 1);
        for (std::uint32_t const unit : all) b.free(unit);
        CHECK(b.free_units() == units);
        CHECK(b.largest_free_units() == largest);
    }
}

TEST_CASE("a million random allocations do not overlap, and all memory joins again") {
    for (std::uint32_t const units : {4096U, 5003U}) {
        std::mt19937_64 random{units};
        buddy_allocator b{units};
        std::uint32_t const largest = b.largest_free_units();
        std::vector<std::uint8_t> taken(units);
        struct block {
            std::uint32_t first;
            std::uint32_t size;
        };
        std::vector<block> live;
        std::uint32_t in_use = 0;
        bool is_right = true;
        auto const free_one = [&](std::size_t which) {
            block const gone = live[which];
            live[which] = live.back();
            live.pop_back();
            std::fill_n(taken.begin() + gone.first, gone.size, 0);
            in_use -= gone.size;
            b.free(gone.first);
        };
        for (int i = 0; i < 500'000; ++i) {
            std::uint32_t const size = 1U << (random() % 8);
            if (auto const unit = b.allocate(size)) {
                is_right &= *unit % size == 0 && *unit + size <= units;
                auto const begin = taken.begin() + *unit;
                is_right &= std::all_of(begin, begin + size, [](auto t) { return t == 0; });
                std::fill_n(begin, size, 1);
                live.push_back({*unit, size});
                in_use += size;
            } else {
                is_right &= b.largest_free_units() < size;
            }
            is_right &= b.free_units() == units - in_use;
            if (!live.empty() && random() % 2 == 0) free_one(random() % live.size());
        }
        CHECK(is_right);
        while (!live.empty()) free_one(0);
        CHECK(b.free_units() == units);
        CHECK(b.largest_free_units() == largest);
    }
}

namespace {

using outcome = pool_books::outcome;
using namespace std::chrono_literals;

constexpr pool_books::time_point start_of_time{};

pool_books::token token_of(std::uint8_t n) {
    pool_books::token t{};
    t[15] = std::byte{n};
    return t;
}

struct books_of_two {
    pool_books books{16, {8, 3, 8, 1000ms}};
    std::uint64_t one = books.open();
    std::uint64_t two = books.open();
    pool_books::block where;

    outcome give(
        std::uint64_t lease,
        std::uint64_t number,
        std::uint32_t units,
        std::optional<pool_books::token> const& keep = {}
    ) {
        return books.allocate(lease, number, units, keep, where);
    }
    void gone(std::uint64_t number) {
        books.released(number);
        books.cleaned(number);
    }
};

}  // namespace

TEST_CASE("a lease gets what it may have, and what there is") {
    books_of_two b;
    CHECK(b.give(b.one, 1, 16) == outcome::over_quota);
    CHECK(b.give(b.one, 2, 4) == outcome::done);
    CHECK(b.books.units_left(b.one) == 4);
    CHECK(b.books.units_left(b.two) == 8);
    CHECK(b.give(b.one, 3, 8) == outcome::over_quota);
    CHECK(b.give(b.one, 4, 2) == outcome::done);
    CHECK(b.give(b.one, 5, 1) == outcome::done);
    // Three blocks.
    CHECK(b.give(b.one, 6, 1) == outcome::over_quota);
    CHECK(b.give(b.two, 7, 8) == outcome::done);
    CHECK(b.books.blocks() == 4);
    std::uint64_t const three = b.books.open();
    CHECK(b.give(three, 8, 2) == outcome::exhausted);
    CHECK(b.give(three, 9, 1) == outcome::done);
    CHECK(b.books.memory().free_units() == 0);
}

TEST_CASE("only the lease that has a block frees it, once, and it counts until it is clean") {
    books_of_two b;
    REQUIRE(b.give(b.one, 1, 8) == outcome::done);
    CHECK_FALSE(b.books.free(b.two, 1));
    CHECK_FALSE(b.books.free(b.one, 2));
    CHECK(b.books.holds(b.one, 1));
    CHECK(b.books.free(b.one, 1));
    CHECK_FALSE(b.books.holds(b.one, 1));
    CHECK_FALSE(b.books.free(b.one, 1));
    CHECK(b.books.units_left(b.one) == 0);
    CHECK(b.give(b.one, 3, 1) == outcome::over_quota);
    auto const block = b.books.released(1);
    CHECK(block.units == 8);
    CHECK(b.books.units_left(b.one) == 0);
    CHECK(b.books.memory().free_units() == 8);
    b.books.cleaned(1);
    CHECK(b.books.units_left(b.one) == 8);
    CHECK(b.books.blocks() == 0);
    CHECK(b.books.memory().largest_free_units() == 16);
}

TEST_CASE("the blocks of a lease leave with it, and may be clean before or after its end") {
    books_of_two b;
    REQUIRE(b.give(b.one, 1, 2) == outcome::done);
    REQUIRE(b.give(b.one, 2, 2) == outcome::done);
    REQUIRE(b.give(b.two, 3, 2) == outcome::done);
    REQUIRE(b.books.free(b.one, 1));
    CHECK(b.books.end_lease(b.one, start_of_time) == 2);
    CHECK_FALSE(b.books.end_lease(b.one, start_of_time));
    CHECK_FALSE(b.books.end_lease(b.one, start_of_time));
    b.gone(1);
    b.gone(2);
    CHECK(b.books.holds(b.two, 3));
    CHECK(b.books.units_left(b.two) == 6);
    CHECK(b.books.memory().free_units() == 14);
}

TEST_CASE("kept blocks wait for their token, within a time and a limit") {
    books_of_two b;
    REQUIRE(b.give(b.one, 1, 4, token_of(1)) == outcome::done);
    REQUIRE(b.give(b.one, 2, 1, token_of(2)) == outcome::done);
    REQUIRE(b.give(b.one, 3, 1) == outcome::done);
    REQUIRE(b.give(b.two, 4, 8, token_of(4)) == outcome::done);
    CHECK_FALSE(b.books.next_expiry());
    // What is not to be kept leaves.
    CHECK(b.books.end_lease(b.one, start_of_time) == 3);
    CHECK_FALSE(b.books.end_lease(b.one, start_of_time));
    CHECK(b.books.kept_units() == 5);
    // 8 units more would be too much.
    CHECK(b.books.end_lease(b.two, start_of_time) == 4);
    CHECK_FALSE(b.books.end_lease(b.two, start_of_time));
    b.gone(3);
    b.gone(4);
    CHECK(b.books.blocks() == 2);

    std::uint64_t const three = b.books.open();
    CHECK(b.books.resume(three, token_of(4)).what == outcome::unknown);
    auto const again = b.books.resume(three, token_of(1));
    CHECK(again.what == outcome::done);
    CHECK(again.number == 1);
    CHECK(again.taken_from == 0);
    CHECK(b.books.kept_units() == 1);
    CHECK(b.books.units_left(three) == 4);
    CHECK(b.books.holds(three, 1));
    // It is there already.
    CHECK(b.books.resume(three, token_of(1)).number == 1);
    CHECK(b.books.units_left(three) == 4);

    CHECK(b.books.next_expiry() == start_of_time + 1000ms);
    CHECK_FALSE(b.books.expire(start_of_time + 999ms));
    CHECK(b.books.expire(start_of_time + 1000ms) == 2);
    CHECK_FALSE(b.books.expire(start_of_time + 1000ms));
    CHECK_FALSE(b.books.next_expiry());
    CHECK(b.books.resume(three, token_of(2)).what == outcome::unknown);
    b.gone(2);
    CHECK(b.books.kept_units() == 0);
    CHECK(b.books.memory().free_units() == 12);
}

TEST_CASE("a token takes its block from a lease that still has it, within the quota") {
    books_of_two b;
    REQUIRE(b.give(b.one, 1, 4, token_of(1)) == outcome::done);
    REQUIRE(b.give(b.two, 2, 8) == outcome::done);
    CHECK(b.books.resume(b.two, token_of(1)).what == outcome::over_quota);
    CHECK(b.books.holds(b.one, 1));
    REQUIRE(b.books.free(b.two, 2));
    b.gone(2);
    auto const taken = b.books.resume(b.two, token_of(1));
    CHECK(taken.what == outcome::done);
    CHECK(taken.taken_from == b.one);
    CHECK_FALSE(b.books.holds(b.one, 1));
    CHECK_FALSE(b.books.free(b.one, 1));
    CHECK(b.books.units_left(b.one) == 8);
    CHECK(b.books.units_left(b.two) == 4);
    CHECK_FALSE(b.books.end_lease(b.one, start_of_time));
    CHECK(b.books.holds(b.two, 1));
    // A block that leaves has no token any more.
    REQUIRE(b.books.free(b.two, 1));
    CHECK(b.books.resume(b.two, token_of(1)).what == outcome::unknown);
}

TEST_CASE("at the end of a pool every block leaves once") {
    books_of_two b;
    REQUIRE(b.give(b.one, 1, 4, token_of(1)) == outcome::done);
    REQUIRE(b.give(b.two, 2, 1) == outcome::done);
    REQUIRE(b.give(b.two, 3, 1) == outcome::done);
    REQUIRE_FALSE(b.books.end_lease(b.one, start_of_time));
    std::set<std::uint64_t> left;
    while (auto const number = b.books.revoke_one()) left.insert(*number);
    CHECK(left == std::set<std::uint64_t>{1, 2, 3});
    for (std::uint64_t const number : left) b.gone(number);
    CHECK(b.books.blocks() == 0);
    CHECK(b.books.memory().largest_free_units() == 16);
}

TEST_CASE("random leases, blocks and tokens: the books agree with a plain model") {
    struct block {
        std::uint32_t units;
        std::uint64_t lease;  // 0: it leaves
        bool is_kept;  // with a token
        bool waits;  // for its token
        std::uint64_t counted;
    };
    constexpr std::uint32_t units = 64;
    constexpr std::uint32_t lease_units = 24;
    constexpr std::uint32_t lease_blocks = 6;
    constexpr std::uint32_t kept_units = 16;
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        std::mt19937_64 random{seed};
        pool_books books{units, {lease_units, lease_blocks, kept_units, 1000ms}};
        std::map<std::uint64_t, block> model;
        std::vector<std::uint64_t> leases{books.open(), books.open(), books.open()};
        std::uint64_t last = 0;
        bool is_right = true;
        auto const sum = [&](auto counts) {
            std::uint32_t all = 0;
            for (auto const& [number, b] : model) all += counts(b) ? b.units : 0;
            return all;
        };
        auto const left_of = [&](std::uint64_t lease) {
            return lease_units - sum([&](block const& b) { return b.counted == lease; });
        };
        auto const count_of = [&](std::uint64_t lease) {
            return std::ranges::count_if(model, [&](auto const& m) {
                return m.second.counted == lease;
            });
        };
        auto const token_of_number = [](std::uint64_t number) {
            pool_books::token t{};
            t[0] = std::byte(number >> 8);
            t[1] = std::byte(number);
            return t;
        };
        for (int i = 0; i < 5000; ++i) {
            std::uint64_t& lease = leases[random() % leases.size()];
            auto some = model.begin();
            if (!model.empty()) std::advance(some, random() % model.size());
            switch (random() % 6) {
            case 0:
            case 1: {
                std::uint32_t const size = 1U << (random() % 5);
                bool const keep = random() % 2 == 0;
                std::optional<pool_books::token> key;
                if (keep) key = token_of_number(++last);
                else ++last;
                bool const fits = size <= left_of(lease) && count_of(lease) < lease_blocks;
                pool_books::block where;
                auto const what = books.allocate(lease, last, size, key, where);
                is_right &= (what == outcome::over_quota) == !fits;
                if (what == outcome::done) model[last] = {size, lease, keep, false, lease};
                if (what == outcome::exhausted)
                    is_right &= books.memory().largest_free_units() < size;
                break;
            }
            case 2: {
                if (model.empty()) break;
                bool const may = some->second.lease == lease;
                is_right &= books.free(lease, some->first) == may;
                if (may) some->second.lease = 0;
                break;
            }
            case 3: {  // the block is clean
                if (model.empty() || some->second.lease != 0 || some->second.waits) break;
                is_right &= books.released(some->first).units == some->second.units;
                books.cleaned(some->first);
                model.erase(some);
                break;
            }
            case 4: {
                if (model.empty()) break;
                block& b = some->second;
                bool const is_there = b.is_kept && (b.lease != 0 || b.waits);
                bool const is_own = b.lease == lease;
                bool const fits = b.units <= left_of(lease) && count_of(lease) < lease_blocks;
                auto const r = books.resume(lease, token_of_number(some->first));
                is_right &= (r.what == outcome::unknown) == !is_there;
                if (!is_there || is_own) break;
                is_right &= (r.what == outcome::done) == fits;
                if (!fits) break;
                is_right &= r.taken_from == b.lease;
                b.lease = b.counted = lease;
                b.waits = false;
                break;
            }
            case 5: {
                if (random() % 8 != 0) break;
                std::set<std::uint64_t> gone;
                while (auto const number = books.end_lease(lease, start_of_time))
                    gone.insert(*number);
                for (auto& [number, b] : model) {
                    if (b.counted == lease) b.counted = 0;
                    if (b.lease != lease) continue;
                    b.lease = 0;
                    b.waits = b.is_kept &&
                              sum([](block const& k) { return k.waits; }) + b.units <= kept_units;
                    is_right &= gone.contains(number) == !b.waits;
                }
                lease = books.open();
                break;
            }
            }
            is_right &= books.blocks() == model.size();
            is_right &= books.kept_units() == sum([](block const& b) { return b.waits; });
            is_right &=
                books.memory().free_units() == units - sum([](block const&) { return true; });
            is_right &= books.units_left(lease) == left_of(lease);
            if (!is_right) break;
        }
        INFO(seed);
        CHECK(is_right);
    }
}

TEST_CASE("what was taken back is known until the questions of that time are answered") {
    early_numbers e;
    e.add(1);
    CHECK(e.size() == 0);
    auto const first = e.open();
    e.add(2);
    auto const second = e.open();
    CHECK(e.contains(2, first));
    // It was asked later, so its answer is right.
    CHECK_FALSE(e.contains(2, second));
    e.add(3);
    CHECK(e.contains(3, first));
    CHECK(e.contains(3, second));
    // Again: now the second question is too old, too.
    e.add(2);
    CHECK(e.contains(2, second));
    CHECK(e.size() == 3);
    auto const third = e.open();
    e.close(first);
    CHECK(e.contains(2, second));
    e.close(second);
    CHECK_FALSE(e.contains(2, second));
    CHECK_FALSE(e.contains(3, second));
    CHECK(e.size() == 0);
    e.add(4);
    CHECK(e.contains(4, third));
    e.close(third);
    CHECK(e.size() == 0);
    // This side's own do not count: the peer has nothing to do with them.
    auto const fourth = e.open();
    e.add_own(7);
    CHECK(e.contains(7, fourth));
    CHECK(e.size() == 0);
    e.add(8);
    CHECK(e.size() == 1);
    e.close(fourth);
    CHECK_FALSE(e.contains(7, fourth));
    CHECK(e.size() == 0);
    // Questions without an end do not let it grow.
    std::uint64_t open = e.open();
    for (std::uint64_t i = 0; i < 10'000; ++i) {
        std::uint64_t const next = e.open();
        e.add(i);
        e.close(open);
        open = next;
    }
    CHECK(e.size() <= 2);
}

TEST_CASE("a change of a name that nobody has heard of is taken back") {
    machines::unsent_changes u;
    auto const next = [&] {
        auto const c = u.take();
        return (c.is_offered ? '+' : '-') + c.name;
    };
    u.offered("a");
    u.withdrawn("a");
    CHECK(u.empty());
    // The peer knows it.
    u.withdrawn("a");
    u.offered("b");
    u.offered("a");
    CHECK(u.size() == 2);
    CHECK(next() == "-a");
    CHECK(next() == "+a");
    CHECK(next() == "+b");
    CHECK(u.empty());
    u.withdrawn("a");
    u.offered("a");
    u.withdrawn("a");
    CHECK(next() == "-a");
    CHECK(u.empty());
}

TEST_CASE("a peer that hears of changes late knows in the end what there is") {
    for (unsigned seed = 0; seed < 50; ++seed) {
        std::mt19937 random{seed};
        machines::unsent_changes u;
        std::set<std::string> there;
        std::set<std::string> known;
        bool is_right = true;
        auto const tell = [&] {
            auto const c = u.take();
            // Each is news.
            is_right =
                is_right && (c.is_offered ? known.insert(c.name).second : known.erase(c.name) == 1);
        };
        for (int i = 0; i < 2000 && is_right; ++i) {
            std::string const name(1, static_cast<char>('a' + random() % 5));
            if (there.erase(name) == 1) u.withdrawn(name);
            else if (there.insert(name).second) u.offered(name);
            if (random() % 3 == 0 && !u.empty()) tell();
            is_right = is_right && u.size() <= 5;
        }
        while (!u.empty() && is_right) tell();
        INFO(seed);
        CHECK(is_right);
        CHECK(known == there);
    }
}

TEST_CASE("memory that is taken over again and again is let go in turn, in little stack") {
    using rcverbs::detail::takeover;
    constexpr int count = 1'000'000;
    int called = 0;
    bool is_in_turn = true;
    auto first = std::make_shared<takeover>([&] { is_in_turn = is_in_turn && called++ == 0; });
    auto last = first;
    std::vector<std::shared_ptr<takeover>> held;
    for (int i = 1; i < count; ++i) {
        auto const next =
            std::make_shared<takeover>([&, i] { is_in_turn = is_in_turn && called++ == i; });
        last->add(next);
        last = next;
        // Somebody else has this one, too.
        if (i == count / 2) held.push_back(next);
    }
    last.reset();
    first.reset();
    CHECK(called == count / 2);
    held.clear();
    CHECK(called == count);
    CHECK(is_in_turn);
}
