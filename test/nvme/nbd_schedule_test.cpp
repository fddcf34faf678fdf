// Which request of an NBD store goes to which connection, and what a lost connection means: tables, and a model of
// servers with caches that are killed.
#include "nbd_schedule.hpp"

#include <deque>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/seeds.hpp"

using namespace rcverbs::nvme::detail;

namespace {

using kind = nbd_kind;

nbd_request of(kind k, std::uint64_t offset = 0, std::uint64_t bytes = 1, std::uint64_t host = 0) {
    nbd_request r;
    r.kind = k;
    r.offset = offset;
    r.bytes = k == kind::flush ? 0 : bytes;
    r.host = host;
    return r;
}

struct schedule : nbd_schedule {
    explicit schedule(unsigned connections, unsigned under_way = 8)
        : nbd_schedule{connections, under_way} {
        for (unsigned i = 0; i < connections; ++i) on_open(i);
    }
    /// Adds it, and lets a connection answer it.
    void carry_out(nbd_request& r, unsigned connection = 0) {
        add(r);
        REQUIRE(take(connection) == &r);
        on_answered(r, true);
    }
};

}  // namespace

TEST_CASE("nbd schedule: hosts have turns, and a connection has as many as it may") {
    schedule s{1, 3};
    std::vector<nbd_request> all{
        of(kind::read, 0, 1, 1),
        of(kind::read, 1, 1, 1),
        of(kind::read, 2, 1, 2),
        of(kind::read, 3, 1, 1)};
    for (auto& each : all) s.add(each);
    CHECK(s.take(0) == &all[0]);
    CHECK(s.take(0) == &all[2]);
    CHECK(s.take(0) == &all[1]);
    CHECK(s.take(0) == nullptr);
    s.on_answered(all[2], true);
    CHECK(s.take(0) == &all[3]);
}

TEST_CASE("nbd schedule: what a lost connection had is repeated first, in its order") {
    schedule s{1};
    std::vector<nbd_request> all{
        of(kind::write, 0), of(kind::read, 5), of(kind::write, 1), of(kind::read, 7)};
    for (auto& each : all) s.add(each);
    for (int i = 0; i < 3; ++i) REQUIRE(s.take(0) != nullptr);
    s.on_answered(all[1], true);
    s.on_lost(0);
    CHECK(s.take(0) == nullptr);
    s.on_open(0);
    CHECK(s.take(0) == &all[0]);
    CHECK(s.take(0) == &all[2]);
    CHECK(s.take(0) == &all[3]);
    CHECK(all[0].is_repeated);
    CHECK(!all[3].is_repeated);
}

TEST_CASE("nbd schedule: later requests for what a repeated write writes wait for it") {
    schedule s{2};
    nbd_request first = of(kind::write, 8, 4);
    s.add(first);
    REQUIRE(s.take(0) == &first);
    s.on_lost(0);
    nbd_request same = of(kind::write, 11, 2);
    nbd_request reads = of(kind::read, 6, 3);
    nbd_request other = of(kind::write, 12, 4);
    for (auto* each : {&same, &reads, &other}) s.add(*each);
    CHECK(s.take(1) == &first);
    CHECK(s.take(1) == &other);
    CHECK(s.take(1) == nullptr);
    s.on_open(0);
    CHECK(s.take(0) == nullptr);
    // Also if it is lost once more.
    s.on_lost(1);
    CHECK(s.take(0) == &first);
    CHECK(s.take(0) == &other);
    CHECK(s.take(0) == nullptr);
    s.on_answered(first, true);
    CHECK(s.take(0) == &same);
    CHECK(s.take(0) == &reads);
}

TEST_CASE("nbd schedule: a server that is lost with writes that were not flushed has lost them") {
    schedule s{1};
    nbd_request write = of(kind::write);
    nbd_request durable = of(kind::durable_write);
    nbd_request flush = of(kind::flush);
    SECTION("not if they were durable") {
        s.carry_out(durable);
        s.on_lost(0);
        CHECK(!s.has_lost_writes());
    }
    SECTION("not if they were flushed") {
        s.carry_out(write);
        s.carry_out(flush);
        s.on_lost(0);
        CHECK(!s.has_lost_writes());
    }
    SECTION("not if they were not acknowledged") {
        s.add(write);
        REQUIRE(s.take(0) != nullptr);
        s.on_lost(0);
        CHECK(!s.has_lost_writes());
    }
    SECTION("but if the flush was older") {
        s.add(flush);
        REQUIRE(s.take(0) == &flush);
        s.carry_out(write);
        s.on_answered(flush, true);
        s.on_lost(0);
        CHECK(s.has_lost_writes());
    }
    SECTION("but if the flush failed") {
        s.carry_out(write);
        s.add(flush);
        REQUIRE(s.take(0) == &flush);
        s.on_answered(flush, false);
        s.on_lost(0);
        CHECK(s.has_lost_writes());
    }
}

TEST_CASE(
    "nbd schedule: another connection to the same server can flush what a lost one has written"
) {
    schedule s{2};
    nbd_request write = of(kind::write);
    nbd_request read = of(kind::read);
    nbd_request flush = of(kind::flush);
    SECTION("the older one answers later, and is lost") {
        s.carry_out(write);
        s.on_lost(0);
        CHECK(!s.has_lost_writes());
        s.on_open(0);
        s.add(flush);
        CHECK(s.take(0) == nullptr);
        REQUIRE(s.take(1) == &flush);
        SECTION("the other flushes") {
            s.on_answered(flush, true);
            s.on_lost(1);
            CHECK(!s.has_lost_writes());
        }
        SECTION("the other is lost, too") {
            s.on_lost(1);
            CHECK(s.has_lost_writes());
        }
    }
    SECTION("the younger one has written, and the older one has not answered since") {
        s.carry_out(write, 1);
        s.on_lost(1);
        CHECK(s.has_lost_writes());
    }
    SECTION("the younger one has written, and the older one has answered since") {
        s.carry_out(write, 1);
        s.carry_out(read, 0);
        s.on_lost(1);
        CHECK(!s.has_lost_writes());
    }
    SECTION("what was not sent was not answered") {
        s.carry_out(write, 1);
        s.add(read);
        REQUIRE(s.take(0) == &read);
        s.on_dropped(read);
        s.on_lost(1);
        CHECK(s.has_lost_writes());
    }
    SECTION("one that was opened later is another server's, for all we know") {
        s.on_lost(1);
        s.carry_out(write, 0);
        s.on_open(1);
        s.on_lost(0);
        CHECK(s.has_lost_writes());
    }
}

TEST_CASE("nbd schedule: what waits is taken out, and long ones have their turns back") {
    schedule s{1};
    std::deque<nbd_request> all;
    for (int i = 0; i < 4; ++i) {
        all.push_back(of(kind::write, static_cast<std::uint64_t>(i)));
        all.back().is_long = true;
        s.add(all.back());
    }
    // Two long ones at a time.
    REQUIRE(s.take(0) == &all[0]);
    REQUIRE(s.take(0) == &all[1]);
    REQUIRE(s.take(0) == nullptr);
    auto const removed = s.remove_waiting([&](nbd_request const& r) { return &r == &all[2]; });
    CHECK(removed == std::vector<nbd_request*>{&all[2]});
    s.on_answered(all[0], true);
    CHECK(s.take(0) == &all[3]);
}

// Servers with a cache, one after the other. A connection belongs to one of them, and notices late that it was killed.
TEST_CASE(
    "nbd schedule: a flush that succeeds has made durable what was written, with any server killed"
) {
    struct server {
        bool is_alive = true;
        std::set<std::size_t> cache;
    };
    std::size_t flushes = 0;
    std::size_t losses = 0;
    for (std::uint64_t const seed : test::seeds(3000)) {
        INFO("RCVERBS_FABRIC_SEED=" << seed);
        std::mt19937_64 random{seed};
        auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
        unsigned const connections = 1 + static_cast<unsigned>(below(3));
        schedule s{connections, 4};
        std::vector<server> servers(1);
        std::vector<std::optional<std::size_t>> of_connection(connections, 0);
        std::deque<nbd_request> all;
        std::set<std::size_t> durable;
        std::set<std::size_t> acknowledged;
        std::set<std::size_t> answered;
        std::vector<std::set<std::size_t>> before(0
        );  // of a flush: what was acknowledged when it was sent
        auto const number_of = [&](nbd_request const* r) {
            return static_cast<std::size_t>(
                std::ranges::find_if(all, [r](auto const& each) { return &each == r; }) -
                all.begin()
            );
        };
        for (int step = 0; step < 150; ++step) {
            auto const c = static_cast<unsigned>(below(connections));
            switch (below(8)) {
            case 0:
            case 1:
                all.push_back(
                    below(3) == 0 ? of(kind::flush) : of(kind::write, below(4), 1 + below(2))
                );
                before.emplace_back();
                s.add(all.back());
                break;
            case 2:
                if (below(4) > 0) break;
                servers.back().is_alive = false;
                servers.emplace_back();
                break;
            case 3:
                if (of_connection[c] && (!servers[*of_connection[c]].is_alive || below(20) == 0)) {
                    of_connection[c].reset();
                    s.on_lost(c);
                }
                break;
            case 4:
                if (!of_connection[c]) {
                    of_connection[c] = servers.size() - 1;
                    s.on_open(c);
                }
                break;
            case 5:
            case 6:
                if (nbd_request* const r = s.take(c)) {
                    std::size_t const n = number_of(r);
                    if (r->kind == kind::flush) before[n] = acknowledged;
                    // Executed at once, if at all; no two that overlap after a repetition.
                    for (unsigned other = 0; other < connections; ++other)
                        for (nbd_request const* const there : s.under_way(other))
                            if (there != r && there->is_repeated && there->kind == kind::write &&
                                there->serial < r->serial && r->kind != kind::flush) {
                                bool const overlap = there->offset < r->offset + r->bytes &&
                                                     r->offset < there->offset + there->bytes;
                                REQUIRE(!overlap);
                            }
                    server& on = servers[*of_connection[c]];
                    if (!on.is_alive) break;
                    if (r->kind == kind::write) on.cache.insert(n);
                    else durable.insert(on.cache.begin(), on.cache.end());
                }
                break;
            case 7: {
                auto const there = s.under_way(c);
                if (there.empty() || !servers[*of_connection[c]].is_alive) break;
                nbd_request* const r = there[below(there.size())];
                std::size_t const n = number_of(r);
                REQUIRE(answered.insert(n).second);
                s.on_answered(*r, true);
                if (r->kind == kind::write) {
                    acknowledged.insert(n);
                } else if (!s.has_lost_writes()) {
                    ++flushes;
                    CHECK(std::ranges::includes(durable, before[n]));
                }
                break;
            }
            }
        }
        losses += s.has_lost_writes();
    }
    CHECK(flushes > 1000);
    CHECK(losses > 100);
}
