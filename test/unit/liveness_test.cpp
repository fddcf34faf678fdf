// Failure detection of a connection, as sequences of ticks.
#include <rcverbs/options.hpp>

#include <vector>

#include "machines/liveness.hpp"
#include "support/catch.hpp"

using rcverbs::machines::liveness;
using sample = liveness::sample;
using action = liveness::action;
using namespace std::chrono_literals;

namespace {

/// Repeats ticks with the same sample; returns the number of the tick (from 1) that gave the action;
/// 0 for never, -1 if another action came first.
int ticks_until(liveness& m, sample const& v, action what, int most = 100) {
    for (int i = 1; i <= most; ++i) {
        action const a = m.tick(v);
        if (a == what) return i;
        if (a != action::none && a != action::kick_send_queue) return -1;
    }
    return 0;
}

}  // namespace

TEST_CASE(
    "ticks are an eighth of the shortest limit apart, and none are needed without a limit",
    "[liveness]"
) {
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

TEST_CASE(
    "work that is the oldest for the stall limit is stalled, and work that moves is not",
    "[liveness]"
) {
    liveness m{{800ms, 0ms, 0ms}};
    m.begin({true, 5, 0});
    CHECK(ticks_until(m, {true, 5, 0}, action::stalled) == 8);
    m.begin({true, 5, 0});
    for (std::uint64_t i = 0; i < 100; ++i) CHECK(m.tick({true, 6 + i, i}) == action::none);
    // Until then, each tick with the same oldest request kicks the send queue.
    m.begin({true, 5, 0});
    for (int i = 0; i < 7; ++i) CHECK(m.tick({true, 5, 0}) == action::kick_send_queue);
    // A request posted since the last tick: its time begins with this tick.
    liveness later{{800ms, 0ms, 0ms}};
    later.begin({false, 5, 0});
    CHECK(later.tick({false, 5, 0}) == action::none);
    CHECK(ticks_until(later, {true, 5, 0}, action::stalled) == 9);
}

TEST_CASE(
    "a keepalive is due after each silent interval, and own completions restart the interval",
    "[liveness]"
) {
    liveness m{{0ms, 800ms, 0ms}};
    m.begin({false, 0, 10});
    CHECK(ticks_until(m, {false, 0, 10}, action::send_keepalive) == 8);
    // While the keepalive is in flight, no other is sent: the queue pair retries by itself.
    CHECK(ticks_until(m, {true, 0, 10}, action::send_keepalive, 50) == 0);
    // The keepalive's completion restarts the interval.
    CHECK(ticks_until(m, {false, 1, 11}, action::send_keepalive) == 8);
    for (std::uint64_t i = 0; i < 50; ++i) CHECK(m.tick({false, 2, 13 + i}) == action::none);
}

TEST_CASE("unsignaled work neither stalls nor keeps the other limits from acting", "[liveness]") {
    // Posted, no completion due.
    sample const rest{false, 7, 10, true};
    liveness stalls{{800ms, 0ms, 0ms}};
    stalls.begin(rest);
    for (int i = 0; i < 100; ++i) CHECK(stalls.tick(rest) == action::kick_send_queue);
    // Signaled work behind it stalls as any other, from the first look at it.
    CHECK(ticks_until(stalls, {true, 7, 10, true}, action::stalled) == 8);

    liveness asks{{0ms, 800ms, 0ms}};
    asks.begin(rest);
    CHECK(ticks_until(asks, rest, action::send_keepalive) == 8);
    // Its completion covers the rest, too.
    CHECK(asks.tick({false, 9, 12, false}) == action::none);
    CHECK(ticks_until(asks, {false, 9, 12, false}, action::send_keepalive) == 8);

    liveness unused{{0ms, 0ms, 800ms}};
    unused.begin(rest);
    CHECK(ticks_until(unused, rest, action::idle) == 8);
}

TEST_CASE("a keepalive that cannot be sent is no traffic", "[liveness]") {
    liveness m{{0ms, 200ms, 800ms}};
    sample const nothing{false, 0, 10};
    m.begin(nothing);
    int looks = 0;
    for (; looks < 1000; ++looks) {
        action const a = m.tick(nothing);
        if (a == action::idle) break;
        if (a == action::send_keepalive) m.keepalive_failed();
    }
    CHECK(looks == 31);  // as with keepalives
}

TEST_CASE("a connection that nobody uses is idle, whatever keepalives it sends", "[liveness]") {
    liveness m{{0ms, 200ms, 800ms}};
    m.begin({false, 0, 0});
    std::uint64_t completed = 0;
    int looks = 0;
    int keepalives = 0;
    for (; looks < 1000; ++looks) {
        action const a = m.tick({false, completed, completed});
        if (a == action::idle) break;
        if (a == action::send_keepalive) {
            ++completed;
            ++keepalives;
        }
    }
    CHECK(looks == 31);  // periods of 25 ms: the 32nd tick
    CHECK(keepalives == 3);
    CHECK(ticks_until(m, {false, completed, completed}, action::idle) == 1);
    CHECK(m.tick({false, completed, completed + 1}) == action::none);
}

TEST_CASE("the worst case of detection follows from the options", "[liveness]") {
    rcverbs::connection_options o;
    o.queue_pair.ack_timeout = 1ms;  // rounded up to 4.096 us x 2^8
    o.queue_pair.retry_count = 3;
    o.liveness.stall_timeout = std::nullopt;
    auto const transport = 4 * 4 * std::chrono::nanoseconds{4096 * 256};
    CHECK(rcverbs::worst_case_detection(o).busy == transport);
    CHECK(rcverbs::worst_case_detection(o).idle == std::chrono::nanoseconds::max());
    o.liveness.stall_timeout = 8ms;
    CHECK(rcverbs::worst_case_detection(o).busy == 9ms);
    o.liveness.keepalive_interval = 80ms;
    CHECK(rcverbs::worst_case_detection(o).idle == 80ms + 1ms + 9ms);
    o.liveness.idle_timeout = 40ms;
    CHECK(rcverbs::worst_case_detection(o).idle == 41ms);
}

TEST_CASE("detect_within sets the options so that the worst case is within", "[liveness]") {
    for (auto const within : {10ms, 11ms, 100ms, 1000ms, 60'000ms, 3'600'000ms}) {
        for (std::uint8_t const retries : {std::uint8_t{0}, std::uint8_t{3}, std::uint8_t{6}}) {
            rcverbs::connection_options o;
            o.queue_pair.retry_count = retries;
            rcverbs::detect_within(o, within);
            INFO(within.count() << " ms, " << int{retries} << " retries");
            CHECK(rcverbs::worst_case_detection(o).busy <= within);
            CHECK(rcverbs::worst_case_detection(o).idle <= within);
            // Nor may the detection be much faster than requested.
            CHECK(rcverbs::worst_case_detection(o).idle >= within / 3);
        }
    }
    rcverbs::connection_options o;
    CHECK_THROWS_AS(rcverbs::detect_within(o, 9ms), boost::system::system_error);
    CHECK_THROWS_AS(rcverbs::detect_within(o, 3'600'001ms), boost::system::system_error);
}
