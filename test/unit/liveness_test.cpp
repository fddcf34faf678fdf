// Whether a connection lives, as a table of looks.
#include <rcverbs/options.hpp>

#include <vector>

#include "machines/liveness.hpp"
#include "support/catch.hpp"

using rcverbs::machines::liveness;
using view = liveness::view;
using action = liveness::action;
using namespace std::chrono_literals;

namespace {

/// Looks so often at the same, and says at which look (1: the first) it came of it; 0 for never, -1 if something else came first.
int looks_until(liveness& m, view const& v, action what, int most = 100) {
    for (int i = 1; i <= most; ++i) {
        action const a = m.look(v);
        if (a == what) return i;
        if (a != action::none && a != action::ring_again) return -1;
    }
    return 0;
}

}  // namespace

TEST_CASE("looks are an eighth of the shortest limit apart, and none are needed without a limit", "[liveness]") {
    CHECK_FALSE(liveness{{}}.looks());
    CHECK(liveness{{800ms, 0ms, 0ms}}.period() == 100ms);
    CHECK(liveness{{30s, 400ms, 4s}}.period() == 50ms);
    CHECK(liveness{{0ms, 0ms, 3ms}}.period() == 1ms);
    liveness const stall_only{{1s, 0ms, 0ms}};
    CHECK(stall_only.looks());
    CHECK_FALSE(stall_only.looks_always());
    CHECK(liveness{{0ms, 1s, 0ms}}.looks_always());
    CHECK(liveness{{0ms, 0ms, 1s}}.looks_always());
}

TEST_CASE("work that is the oldest for the stall limit is stalled, and work that moves is not", "[liveness]") {
    liveness m{{800ms, 0ms, 0ms}};
    m.begin({true, 5, 0});
    CHECK(looks_until(m, {true, 5, 0}, action::stalled) == 8);
    m.begin({true, 5, 0});
    for (std::uint64_t i = 0; i < 100; ++i) CHECK(m.look({true, 6 + i, i}) == action::none);
    // Until then each look that finds it again has the device reminded.
    m.begin({true, 5, 0});
    for (int i = 0; i < 7; ++i) CHECK(m.look({true, 5, 0}) == action::ring_again);
    // Posted since the last look: its own time begins with this one.
    liveness later{{800ms, 0ms, 0ms}};
    later.begin({false, 5, 0});
    CHECK(later.look({false, 5, 0}) == action::none);
    CHECK(looks_until(later, {true, 5, 0}, action::stalled) == 9);
}

TEST_CASE("silence asks for a sign of life, again and again, and work of one's own does as well", "[liveness]") {
    liveness m{{0ms, 800ms, 0ms}};
    m.begin({false, 0, 10});
    CHECK(looks_until(m, {false, 0, 10}, action::send_keepalive) == 8);
    // While it is under way the queue pair asks.
    CHECK(looks_until(m, {true, 0, 10}, action::send_keepalive, 50) == 0);
    // It has completed, and that was no traffic, but the peer's.
    CHECK(looks_until(m, {false, 1, 11}, action::send_keepalive) == 8);
    for (std::uint64_t i = 0; i < 50; ++i) CHECK(m.look({false, 2, 13 + i}) == action::none);
    m.stop_keepalive();
    CHECK(looks_until(m, {false, 2, 62}, action::send_keepalive) == 0);
}

TEST_CASE("a connection that nobody uses is idle, whatever keepalives it sends", "[liveness]") {
    liveness m{{0ms, 200ms, 800ms}};
    m.begin({false, 0, 0});
    std::uint64_t completed = 0;
    int looks = 0;
    int keepalives = 0;
    for (; looks < 1000; ++looks) {
        action const a = m.look({false, completed, completed});
        if (a == action::idle) break;
        if (a == action::send_keepalive) {
            ++completed;
            ++keepalives;
        }
    }
    CHECK(looks == 31);  // periods of 25 ms: the 32nd look
    CHECK(keepalives == 3);
    CHECK(looks_until(m, {false, completed, completed}, action::idle) == 1);
    CHECK(m.look({false, completed, completed + 1}) == action::none);
}

TEST_CASE("the worst case of detection follows from the options", "[liveness]") {
    rcverbs::connection_options o;
    o.ack_timeout = 1ms;  // rounded up to 4.096 us x 2^8
    o.retry_count = 3;
    o.stall_timeout = 0ms;
    auto const transport = 4 * 4 * std::chrono::nanoseconds{4096 * 256};
    CHECK(rcverbs::worst_case_detection(o).busy == transport);
    CHECK(rcverbs::worst_case_detection(o).idle == std::chrono::nanoseconds::max());
    o.stall_timeout = 8ms;
    CHECK(rcverbs::worst_case_detection(o).busy == 9ms);
    o.keepalive_interval = 80ms;
    CHECK(rcverbs::worst_case_detection(o).idle == 80ms + 1ms + 9ms);
    o.idle_timeout = 40ms;
    CHECK(rcverbs::worst_case_detection(o).idle == 41ms);
}

TEST_CASE("detect_within sets the options so that the worst case is within", "[liveness]") {
    for (auto const within : {10ms, 11ms, 100ms, 1000ms, 60'000ms, 3'600'000ms}) {
        for (std::uint8_t const retries : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{6}}) {
            rcverbs::connection_options o;
            o.retry_count = retries;
            rcverbs::detect_within(o, within);
            INFO(within.count() << " ms, " << int{retries} << " retries");
            CHECK(rcverbs::worst_case_detection(o).busy <= within);
            CHECK(rcverbs::worst_case_detection(o).idle <= within);
            // And no hastier than it must.
            CHECK(rcverbs::worst_case_detection(o).idle >= within / 3);
        }
    }
    rcverbs::connection_options o;
    CHECK_THROWS_AS(rcverbs::detect_within(o, 9ms), boost::system::system_error);
    CHECK_THROWS_AS(rcverbs::detect_within(o, 3'600'001ms), boost::system::system_error);
}
