// Every machine of lib/src/machines: each state with each event, the illegal ones included. The tables below are the
// whole behaviour; a machine that differs from its table in one cell fails.
#include <functional>
#include <string>
#include <vector>

#include "machines/accept_machine.hpp"
#include "machines/backoff.hpp"
#include "machines/connect_machine.hpp"
#include "machines/exchange_machine.hpp"
#include "machines/teardown_machine.hpp"
#include "support/catch.hpp"

using namespace rcverbs::machines;

namespace {

template <class Machine>
struct cell {
    typename Machine::action then;
    typename Machine::state to;
};

// Brings a machine into a state by the events that lead there.
template <class Machine>
Machine after(std::vector<typename Machine::event> const& events) {
    Machine m;
    for (auto const e : events) m.resume(e);
    return m;
}

template <class Machine>
void check_row(
    std::vector<typename Machine::event> const& way, typename Machine::state from, std::vector<cell<Machine>> const& row
) {
    for (std::size_t i = 0; i < row.size(); ++i) {
        Machine m = after<Machine>(way);
        REQUIRE(m.current() == from);
        INFO("state " << static_cast<int>(from) << ", event " << i);
        CHECK(m.resume(static_cast<typename Machine::event>(i)) == row[i].then);
        CHECK(m.current() == row[i].to);
    }
}

}  // namespace

TEST_CASE("the connect machine follows its table in every state and event", "[machines]") {
    using m = connect_machine;
    using s = m::state;
    using e = m::event;
    using a = m::action;
    using c = cell<m>;
    auto const illegal = [](s here) { return c{a::illegal, here}; };
    c const fails{a::report_failure, s::failed};
    std::vector<e> const straight{e::resolve, e::address_resolved, e::route_resolved, e::queue_pair_made, e::connect, e::established};
    auto const way = [&](std::size_t n) { return std::vector<e>(straight.begin(), straight.begin() + static_cast<std::ptrdiff_t>(n)); };
    // Columns: resolve, address_resolved, route_resolved, queue_pair_made, connect, established, error, deadline, abort.
    check_row<m>(way(0), s::idle, {{a::resolve_address, s::resolving_address}, illegal(s::idle), illegal(s::idle), illegal(s::idle), illegal(s::idle), illegal(s::idle), illegal(s::idle), illegal(s::idle), fails});
    check_row<m>(way(1), s::resolving_address, {illegal(s::resolving_address), {a::resolve_route, s::resolving_route}, illegal(s::resolving_address), illegal(s::resolving_address), illegal(s::resolving_address), illegal(s::resolving_address), fails, fails, fails});
    check_row<m>(way(2), s::resolving_route, {illegal(s::resolving_route), illegal(s::resolving_route), {a::make_queue_pair, s::making_queue_pair}, illegal(s::resolving_route), illegal(s::resolving_route), illegal(s::resolving_route), fails, fails, fails});
    check_row<m>(way(3), s::making_queue_pair, {illegal(s::making_queue_pair), illegal(s::making_queue_pair), illegal(s::making_queue_pair), {a::report_ready, s::ready}, illegal(s::making_queue_pair), illegal(s::making_queue_pair), fails, fails, fails});
    check_row<m>(way(4), s::ready, {illegal(s::ready), illegal(s::ready), illegal(s::ready), illegal(s::ready), {a::connect, s::connecting}, illegal(s::ready), fails, fails, fails});
    check_row<m>(way(5), s::connecting, {illegal(s::connecting), illegal(s::connecting), illegal(s::connecting), illegal(s::connecting), illegal(s::connecting), {a::report_established, s::established}, fails, fails, fails});
    for (s const over : {s::established, s::failed}) {
        c const late{a::none, over};
        std::vector<e> const there = over == s::established ? way(6) : std::vector<e>{e::abort};
        check_row<m>(there, over, {illegal(over), late, late, late, illegal(over), late, late, late, late});
    }
}

TEST_CASE("the accept machine follows its table in every state and event", "[machines]") {
    using m = accept_machine;
    using s = m::state;
    using e = m::event;
    using a = m::action;
    using c = cell<m>;
    c const fails{a::report_failure, s::failed};
    c const refuses{a::reject, s::refused};
    // Columns: accept, reject, established, error, deadline, abort.
    check_row<m>({}, s::requested, {{a::accept, s::accepting}, refuses, {a::illegal, s::requested}, fails, fails, refuses});
    check_row<m>({e::accept}, s::accepting, {{a::illegal, s::accepting}, {a::illegal, s::accepting}, {a::report_established, s::established}, fails, fails, fails});
    std::vector<std::pair<s, std::vector<e>>> const finals{
        {s::established, {e::accept, e::established}}, {s::refused, {e::reject}}, {s::failed, {e::error}}};
    for (auto const& [over, there] : finals) {
        c const late{a::none, over};
        c const illegal{a::illegal, over};
        check_row<m>(there, over, {illegal, illegal, late, late, late, late});
    }
}

TEST_CASE("the teardown machine follows its table in every state and event", "[machines]") {
    using m = teardown_machine;
    using s = m::state;
    using e = m::event;
    using a = m::action;
    // Columns: disconnect, close, peer_disconnected, broken, drained, deadline.
    check_row<m>({}, s::live, {{a::stop, s::disconnecting}, {a::stop, s::draining}, {a::stop, s::draining}, {a::stop, s::draining}, {a::none, s::live}, {a::illegal, s::live}});
    check_row<m>({e::disconnect}, s::disconnecting, {{a::illegal, s::disconnecting}, {a::drain, s::draining}, {a::drain, s::draining}, {a::none, s::disconnecting}, {a::none, s::awaiting_peer}, {a::drain, s::draining}});
    check_row<m>({e::disconnect, e::drained}, s::awaiting_peer, {{a::illegal, s::awaiting_peer}, {a::finish, s::finished}, {a::finish, s::finished}, {a::none, s::awaiting_peer}, {a::none, s::awaiting_peer}, {a::finish, s::finished}});
    check_row<m>({e::close}, s::draining, {{a::illegal, s::draining}, {a::none, s::draining}, {a::none, s::draining}, {a::none, s::draining}, {a::finish, s::finished}, {a::give_up, s::finished}});
    check_row<m>({e::close, e::drained}, s::finished, {{a::illegal, s::finished}, {a::none, s::finished}, {a::none, s::finished}, {a::none, s::finished}, {a::none, s::finished}, {a::none, s::finished}});
}

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
    // All nine states, by the ways there.
    std::vector<std::vector<e>> const out_ways{{}, {e::publish}, {e::publish, e::finish}};
    std::vector<std::vector<e>> const in_ways{{}, {e::regions_received}, {e::regions_received, e::done_received}};
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
            CHECK(machine.resume(e::regions_received) == (in == p::opening ? a::deliver_regions : a::protocol_error));
            CHECK(machine.inward() == (in == p::opening ? p::published : in));
            machine = make();
            CHECK(machine.resume(e::done_received) == (in == p::done ? a::protocol_error : a::deliver_done));
            CHECK(machine.inward() == p::done);
            CHECK(machine.outward() == out);
        }
    }
}

TEST_CASE("pauses grow by their factor up to the longest, shifted by chance, as often as there are attempts", "[machines]") {
    using namespace std::chrono_literals;
    backoff plain{{100ms, 1000ms, 2.0, 0.25, 0}};
    for (auto const expected : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) CHECK(plain.next(0.5) == expected);
    backoff low{{100ms, 1000ms, 2.0, 0.25, 0}};
    for (auto const expected : {75ms, 150ms, 300ms}) CHECK(low.next(0.0) == expected);
    backoff high{{100ms, 1000ms, 3.0, 0.5, 0}};
    for (auto const expected : {150ms, 450ms, 1350ms, 1500ms}) CHECK(high.next(1.0) == expected);
    backoff three{{100ms, 1000ms, 2.0, 0.0, 3}};
    CHECK(three.next(0.5) == 100ms);
    CHECK(three.next(0.5) == 200ms);
    CHECK(three.next(0.5) == std::nullopt);
    backoff once{{100ms, 1000ms, 2.0, 0.0, 1}};
    CHECK(once.next(0.5) == std::nullopt);
}
