// The state machines of lib/src/machines except the lifecycle, which has its own file: each state
// with each event, including illegal ones.
#include <functional>
#include <string>
#include <vector>

#include "machines/backoff.hpp"
#include "machines/exchange_machine.hpp"
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
    backoff three{{100ms, 1000ms, 2.0, 0.0, 3}};
    CHECK(three.next(0.5) == 100ms);
    CHECK(three.next(0.5) == 200ms);
    CHECK(three.next(0.5) == std::nullopt);
    backoff once{{100ms, 1000ms, 2.0, 0.0, 1}};
    CHECK(once.next(0.5) == std::nullopt);
}
