// The state machines of lib/src/machines except the lifecycle, which has its own file: each state
// with each event, including illegal ones.
#include <functional>
#include <string>
#include <vector>

#include <algorithm>
#include <deque>

#include "machines/backoff.hpp"
#include "machines/completion_budget.hpp"
#include "machines/exchange_machine.hpp"
#include "machines/leased_receives.hpp"
#include "support/catch.hpp"

using namespace rcverbs::machines;

TEST_CASE("the exchange machine follows its table in every state and event", "[machines]") {
    using m = exchange_machine;
    using p = m::progress;
    using e = m::event;
    using a = m::action;
    struct row {
        std::vector<e> way;
        p outward;
        p inward;
    };
    // All nine states, as sequences of events.
    std::vector<std::vector<e>> const out_ways{{}, {e::publish}, {e::publish, e::finish}};
    std::vector<std::vector<e>> const in_ways{
        {}, {e::regions_received}, {e::regions_received, e::done_received}};
    for (std::size_t o = 0; o < 3; ++o) {
        for (std::size_t i = 0; i < 3; ++i) {
            auto const make = [&] {
                m machine;
                for (e const x : out_ways[o]) machine.resume(x);
                for (e const x : in_ways[i]) machine.resume(x);
                return machine;
            };
            auto const out = static_cast<p>(o);
            auto const in = static_cast<p>(i);
            INFO("outward " << o << ", inward " << i);
            m machine = make();
            REQUIRE(machine.outward() == out);
            REQUIRE(machine.inward() == in);
            CHECK(machine.is_complete() == (o == 2 && i == 2));

            CHECK(machine.resume(e::publish) == (out == p::opening ? a::send_regions : a::illegal));
            CHECK(machine.outward() == (out == p::opening ? p::published : out));
            machine = make();
            CHECK(machine.resume(e::finish) == (out == p::done ? a::illegal : a::send_done));
            CHECK(machine.outward() == p::done);
            CHECK(machine.inward() == in);
            machine = make();
            CHECK(
                machine.resume(e::regions_received) ==
                (in == p::opening ? a::deliver_regions : a::protocol_error)
            );
            CHECK(machine.inward() == (in == p::opening ? p::published : in));
            machine = make();
            CHECK(
                machine.resume(e::done_received) ==
                (in == p::done ? a::protocol_error : a::deliver_done)
            );
            CHECK(machine.inward() == p::done);
            CHECK(machine.outward() == out);
        }
    }
}

TEST_CASE(
    "pauses grow by their factor up to the longest, shifted by chance, as often as there are "
    "attempts",
    "[machines]"
) {
    using namespace std::chrono_literals;
    backoff plain{{100ms, 1000ms, 2.0, 0.25, 0}};
    for (auto const pause : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms})
        CHECK(plain.next(0.5) == pause);
    backoff low{{100ms, 1000ms, 2.0, 0.25, 0}};
    for (auto const pause : {75ms, 150ms, 300ms}) CHECK(low.next(0.0) == pause);
    backoff high{{100ms, 1000ms, 3.0, 0.5, 0}};
    for (auto const pause : {150ms, 450ms, 1350ms, 1500ms}) CHECK(high.next(1.0) == pause);
    // A delay that is longer than a year is a year, whatever is added to it.
    backoff endless{
        {std::chrono::milliseconds::max(), std::chrono::milliseconds::max(), 2.0, 0.5, 0}};
    for (double const chance : {0.9, 1.0, 0.6}) CHECK(endless.next(chance) == 365 * 24h);
    backoff three{{100ms, 1000ms, 2.0, 0.0, 3}};
    CHECK(three.next(0.5) == 100ms);
    CHECK(three.next(0.5) == 200ms);
    CHECK(three.next(0.5) == std::nullopt);
    backoff once{{100ms, 1000ms, 2.0, 0.0, 1}};
    CHECK(once.next(0.5) == std::nullopt);
}

TEST_CASE("leased receives follow their table", "[machines]") {
    using m = leased_receives;
    // Waiting, posted, kept; what starts a receive, a cancellation and a completion lead to.
    m r;
    CHECK(r.on_start() == m::start::post);  // 1 1 0
    CHECK(r.on_start() == m::start::post);  // 2 2 0
    r.on_cancel();  // 1 2 0
    CHECK(r.on_start() == m::start::adopt);  // 2 2 0
    r.on_cancel();  // 1 2 0
    r.on_cancel();  // 0 2 0
    CHECK(r.on_completion(false) == m::arrival::keep);  // 0 1 1
    CHECK(r.on_completion(true) == m::arrival::drop);  // 0 0 1
    CHECK(r.on_start() == m::start::take_kept);  // 0 1 0
    r.on_refused(m::start::take_kept);  // 0 0 0
    CHECK(r.on_start() == m::start::post);  // 1 1 0
    CHECK(r.on_completion(true) == m::arrival::complete);  // 0 0 0
    CHECK(r.on_start() == m::start::post);
    r.on_refused(m::start::post);
    CHECK(r.waiting() + r.posted() + r.kept() == 0);
    // A message that comes back from its handler.
    CHECK(r.on_return() == m::arrival::keep);  // 0 0 1
    CHECK(r.on_start() == m::start::take_kept);  // 0 1 0
    CHECK(r.on_start() == m::start::adopt);  // 1 1 0
    CHECK(r.on_return() == m::arrival::complete);  // 0 1 0
    CHECK(r.on_start() == m::start::adopt);  // 1 1 0
    CHECK(r.on_completion(false) == m::arrival::complete);
    CHECK(r.waiting() + r.posted() + r.kept() == 0);
}

namespace {

// The handlers and messages around the machine.
struct receiving_side {
    leased_receives machine;
    std::deque<int> handlers;  // that wait, by number
    std::deque<int> kept;
    std::vector<std::pair<int, int>> delivered;  // handler, message
    int started = 0;
    int messages = 0;
    std::size_t waiting_peak = 0;

    void start() {
        int const me = started++;
        if (machine.on_start() == leased_receives::start::take_kept) {
            delivered.emplace_back(me, kept.front());
            kept.pop_front();
        } else {
            handlers.push_back(me);
        }
        waiting_peak = std::max(waiting_peak, handlers.size());
    }
    void cancel(std::size_t which) {
        handlers.erase(handlers.begin() + static_cast<std::ptrdiff_t>(which));
        machine.on_cancel();
    }
    void arrive() {
        int const number = messages++;
        if (machine.on_completion(false) == leased_receives::arrival::complete) {
            delivered.emplace_back(handlers.front(), number);
            handlers.pop_front();
        } else {
            kept.push_back(number);
        }
    }
    bool is_sound() const {
        bool const counts = machine.waiting() == handlers.size() && machine.kept() == kept.size() &&
                            machine.waiting() <= machine.posted() &&
                            (kept.empty() || handlers.empty());
        // The connection holds what handlers have waited for at a time, and no more.
        bool const bounded =
            machine.posted() + machine.kept() <= std::max<std::size_t>(waiting_peak, 1);
        // Each message once, in order, to handlers in order.
        bool ordered = true;
        for (std::size_t i = 0; i < delivered.size(); ++i) {
            ordered = ordered && delivered[i].second == static_cast<int>(i) &&
                      (i == 0 || delivered[i - 1].first < delivered[i].first);
        }
        return counts && bounded && ordered &&
               delivered.size() + kept.size() == static_cast<std::size_t>(messages);
    }
};

// All sequences of that many steps. Returns their number.
int explore(receiving_side const& at, int steps) {
    REQUIRE(at.is_sound());
    if (steps == 0) return 1;
    int count = 0;
    auto const go = [&](auto const& change) {
        receiving_side next = at;
        change(next);
        count += explore(next, steps - 1);
    };
    go([](receiving_side& s) { s.start(); });
    for (std::size_t i = 0; i < at.handlers.size(); ++i)
        go([i](receiving_side& s) { s.cancel(i); });
    if (at.machine.posted() > 0) go([](receiving_side& s) { s.arrive(); });
    return count;
}

}  // namespace

TEST_CASE("leased receives lose no message in any sequence of steps", "[machines]") {
    CHECK(explore({}, 10) > 10000);
}

TEST_CASE(
    "a completion queue has room for what its queue pairs can have outstanding", "[machines]"
) {
    completion_budget b{100};
    int one = 0;
    int other = 0;
    completion_share const plain{30};
    completion_share const first{10, &one, 40};
    completion_share const second{10, &other, 40};

    CHECK(b.has_room_for({100}));
    CHECK_FALSE(b.has_room_for({101}));
    b.take(plain);
    CHECK(b.taken() == 30);
    CHECK(b.cost_of(first) == 50);
    b.take(first);
    CHECK(b.taken() == 80);
    // The depth of a shared queue is taken once.
    CHECK(b.cost_of(first) == 10);
    CHECK_FALSE(b.has_room_for(second));
    b.take(first);
    b.take(first);
    CHECK(b.taken() == 100);
    CHECK_FALSE(b.has_room_for({1}));
    CHECK(b.users() == 4);

    b.give_back(first);
    b.give_back(plain);
    CHECK(b.taken() == 60);
    CHECK_FALSE(b.has_room_for(second));
    b.give_back(first);
    CHECK(b.taken() == 50);
    CHECK(b.has_room_for(second));
    // Its last user gives the depth back.
    b.give_back(first);
    CHECK(b.taken() == 0);
    CHECK(b.users() == 0);
    b.take(second);
    CHECK(b.taken() == 50);
}
