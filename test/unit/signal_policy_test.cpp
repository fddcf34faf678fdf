// Which work requests are signaled: those with a handler, and enough of the others that a full
// queue always has a signaled one.
#include "machines/signal_policy.hpp"

#include <random>

#include "machines/work_window.hpp"
#include "support/catch.hpp"

using rcverbs::machines::signal_policy;
using rcverbs::machines::work_window;

TEST_CASE(
    "work without a handler is signaled once half of the queue is unsignaled", "[signal_policy]"
) {
    signal_policy p{8};
    p.set_read_depth(16);
    for (int round = 0; round < 3; ++round) {
        CHECK_FALSE(p.decide(false, false));
        CHECK_FALSE(p.decide(false, false));
        CHECK_FALSE(p.decide(false, false));
        CHECK(p.decide(false, false));
    }
}

TEST_CASE("work with a handler is always signaled, and restarts the count", "[signal_policy]") {
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

TEST_CASE("a read is signaled once half of the read depth is unsignaled", "[signal_policy]") {
    signal_policy p{64};
    p.set_read_depth(4);
    CHECK_FALSE(p.decide(true, false));
    CHECK_FALSE(p.decide(false, false));
    CHECK(p.decide(true, false));
    p.set_read_depth(1);
    CHECK(p.decide(true, false));
    CHECK(p.decide(true, false));
}

TEST_CASE("with a queue of one slot every request is signaled", "[signal_policy]") {
    signal_policy p{1};
    CHECK(p.decide(false, false));
    CHECK(p.decide(false, false));
}

TEST_CASE("if a request could not be posted, the next one is signaled", "[signal_policy]") {
    signal_policy p{64};
    CHECK_FALSE(p.decide(false, false));
    p.start_over();
    CHECK(p.decide(false, false));
    CHECK_FALSE(p.decide(false, false));
}

TEST_CASE("a full queue or a full read depth always has a signaled request", "[signal_policy]") {
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
        // The device completes in order: retires the oldest signaled request and all before it.
        std::uint64_t sequence = window.oldest();
        std::size_t const had = window.signalled();
        while (window.signalled() == had) window.retire(sequence++, [](int, std::uint64_t) {});
    }
}
