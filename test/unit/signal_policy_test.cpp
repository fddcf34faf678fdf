// Which work asks for a completion: what somebody waits for, and enough of the rest that a full queue always has one coming.
#include "machines/signal_policy.hpp"

#include <random>

#include "machines/work_window.hpp"
#include "support/catch.hpp"

using rcverbs::machines::signal_policy;
using rcverbs::machines::work_window;

TEST_CASE("work that nobody waits for asks for a completion when half of the queue has gone without", "[signal_policy]") {
    signal_policy p{8};
    p.set_read_depth(16);
    for (int round = 0; round < 3; ++round) {
        CHECK_FALSE(p.decide(false, false));
        CHECK_FALSE(p.decide(false, false));
        CHECK_FALSE(p.decide(false, false));
        CHECK(p.decide(false, false));
    }
}

TEST_CASE("work that somebody waits for always asks, and starts the count anew", "[signal_policy]") {
    signal_policy p{8};
    CHECK(p.decide(false, true));
    CHECK_FALSE(p.decide(false, false));
    CHECK_FALSE(p.decide(false, false));
    CHECK(p.decide(false, true));
    CHECK_FALSE(p.decide(false, false));
    CHECK_FALSE(p.decide(false, false));
    CHECK_FALSE(p.decide(false, false));
    CHECK(p.decide(false, false));
}

TEST_CASE("reads ask when half of their depth has gone without", "[signal_policy]") {
    signal_policy p{64};
    p.set_read_depth(4);
    CHECK_FALSE(p.decide(true, false));
    CHECK_FALSE(p.decide(false, false));
    CHECK(p.decide(true, false));
    p.set_read_depth(1);
    CHECK(p.decide(true, false));
    CHECK(p.decide(true, false));
}

TEST_CASE("a queue of one place asks every time", "[signal_policy]") {
    signal_policy p{1};
    CHECK(p.decide(false, false));
    CHECK(p.decide(false, false));
}

TEST_CASE("the next work asks when what was decided could not be posted", "[signal_policy]") {
    signal_policy p{64};
    CHECK_FALSE(p.decide(false, false));
    p.start_over();
    CHECK(p.decide(false, false));
    CHECK_FALSE(p.decide(false, false));
}

TEST_CASE("whatever is posted, a full queue or a full depth has a completion to come", "[signal_policy]") {
    unsigned const seed = GENERATE(take(50, random(0U, 1'000'000U)));
    INFO("seed " << seed);
    std::mt19937 random{seed};
    auto const below = [&](std::size_t n) { return random() % n; };
    std::size_t const slots = 1 + below(70);
    std::size_t const depth = below(20);
    work_window<int> window{slots, depth};
    signal_policy policy{slots};
    policy.set_read_depth(depth);
    for (int step = 0; step < 2000; ++step) {
        bool const is_read = depth > 0 && below(3) == 0;
        if (window.can_post(is_read)) {
            window.post(0, is_read, policy.decide(is_read, below(10) == 0));
            continue;
        }
        REQUIRE(window.signalled() > 0);
        // The device completes in order: the oldest that asked, and what came before it.
        std::uint64_t sequence = window.oldest();
        std::size_t const had = window.signalled();
        while (window.signalled() == had) window.retire(sequence++, [](int, std::uint64_t) {});
    }
}
