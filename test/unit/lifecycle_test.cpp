// The behaviour of a connection's lifecycle in each state with each event, as one table; any
// difference in the machine fails the test. Then sequences of events that one cell of the table
// cannot show.
#include <boost/asio/error.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <rcverbs/session_error.hpp>

#include "machines/lifecycle.hpp"
#include "support/catch.hpp"

using namespace rcverbs;
using machines::lifecycle;

namespace {

using event_kind = lifecycle::event_kind;

constexpr auto last_event = static_cast<int>(event_kind::gone);

// An event of that kind, with typical data.
lifecycle::event typical(event_kind what) {
    switch (what) {
    case event_kind::violated: return {what, session_errc::unexpected_message};
    case event_kind::failed: return {what, cm_errc::unreachable, -110};
    case event_kind::peer_gone: return {what, {}, 7};
    case event_kind::work_failed: return {what, wc_errc::remote_access, 0x88};
    case event_kind::broken: return {what, errc::port_down, 0, close_reason::device_gone};
    default: return {what};
    }
}

std::string name_of(error_code ec) {
    if (!ec) return "success";
    if (ec == boost::asio::error::operation_aborted) return "aborted";
    if (ec == errc::not_connected) return "not_connected";
    static std::map<int, char const*> const known{
        {static_cast<int>(errc::already_connected), "already_connected"},
        {static_cast<int>(errc::timed_out), "timed_out"},
        {static_cast<int>(errc::peer_disconnected), "peer_disconnected"},
        {static_cast<int>(errc::peer_violation), "peer_violation"},
        {static_cast<int>(session_errc::unexpected_message), "unexpected_message"},
        {static_cast<int>(errc::port_down), "port_down"},
        {static_cast<int>(errc::not_drained), "not_drained"}};
    if (ec == make_error_code(cm_errc::unreachable)) return "unreachable";
    if (ec == make_error_code(wc_errc::remote_access)) return "remote_access";
    auto const found = known.find(ec.value());
    return found != known.end() ? found->second : ec.message();
}

// The effect of an event, as text.
std::string describe(lifecycle const& before, lifecycle::answer const& a, lifecycle const& after) {
    std::string all;
    auto const add = [&](std::string const& text) { all += (all.empty() ? " " : "; ") + text; };
    using std::string;
    if (after.current() != before.current()) add(string{"-> "} + to_string(after.current()));
    if (a.then != lifecycle::action::none) add(to_string(a.then));
    if (a.until != lifecycle::deadline::same) add(string{"deadline "} + to_string(a.until));
    if (a.done) add(string{"done "} + to_string(*a.done));
    if (a.setup) add("setup told " + name_of(*a.setup));
    if (a.disconnect) add("disconnect told " + name_of(*a.disconnect));
    if (a.end) add("end told " + name_of(*a.end));
    if (after.reason() != before.reason()) add(string{"reason "} + to_string(after.reason()));
    if (after.failure().code != before.failure().code) {
        add(string{"failure "} + to_string(after.failure().where) + ' ' +
            name_of(after.failure().code));
    }
    return all.empty() ? " nothing" : all;
}

struct way {
    char const* name;
    lifecycle::state first;
    std::vector<event_kind> events;
};

// Every state, several times if its history matters.
std::vector<way> ways() {
    using h = event_kind;
    using s = lifecycle::state;
    std::vector<h> const to_open{
        h::resolve_and_connect,
        h::address_resolved,
        h::route_resolved,
        h::queue_pair_made,
        h::established,
        h::opened};
    auto const open_and = [&](std::vector<h> more) {
        std::vector<h> all = to_open;
        all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    return {
        {"idle", s::idle, {}},
        {"resolving_address", s::idle, {h::resolve}},
        {"resolving_route", s::idle, {h::resolve, h::address_resolved}},
        {"making_queue_pair", s::idle, {h::resolve, h::address_resolved, h::route_resolved}},
        {"making_queue_pair, to be connected at once",
         s::idle,
         {h::resolve_and_connect, h::address_resolved, h::route_resolved}},
        {"ready",
         s::idle,
         {h::resolve, h::address_resolved, h::route_resolved, h::queue_pair_made}},
        {"connecting",
         s::idle,
         {h::resolve_and_connect, h::address_resolved, h::route_resolved, h::queue_pair_made}},
        {"requested", s::requested, {}},
        {"accepting", s::requested, {h::accept}},
        {"opening, connected",
         s::idle,
         {h::resolve_and_connect,
          h::address_resolved,
          h::route_resolved,
          h::queue_pair_made,
          h::established}},
        {"opening, accepted", s::requested, {h::accept, h::established}},
        {"open", s::idle, to_open},
        {"open, out of band", s::idle, {h::prepare, h::queue_pair_made, h::establish, h::opened}},
        {"disconnecting", s::idle, open_and({h::disconnect})},
        {"awaiting_peer", s::idle, open_and({h::disconnect, h::drained})},
        {"draining, closed", s::idle, open_and({h::close})},
        {"draining, left by the peer", s::idle, open_and({h::peer_gone})},
        {"draining, stopped for a reason that is only guessed", s::idle, open_and({h::stopped})},
        {"finishing, closed", s::idle, open_and({h::close, h::drained})},
        {"finishing, left by the peer", s::idle, open_and({h::peer_gone, h::drained})},
        {"ended, closed", s::idle, open_and({h::close, h::drained, h::finished})},
        {"ended, broken", s::idle, open_and({h::broken, h::drained, h::finished})},
    };
}

lifecycle at_end_of(way const& w) {
    lifecycle life{w.first};
    for (event_kind const h : w.events) life.resume(typical(h));
    return life;
}

// One line for each state and event; events with the same effect share a line.
std::string whole_table() {
    std::ostringstream out;
    for (way const& w : ways()) {
        lifecycle const before = at_end_of(w);
        out << w.name << '\n';
        std::vector<std::pair<std::string, std::string>> lines;
        for (int i = 0; i <= last_event; ++i) {
            auto const what = static_cast<event_kind>(i);
            lifecycle after = before;
            std::string const led_to = describe(before, after.resume(typical(what)), after);
            auto const same = std::find_if(lines.begin(), lines.end(), [&](auto const& l) {
                return l.second == led_to;
            });
            if (same == lines.end()) {
                lines.emplace_back(to_string(what), led_to);
            } else {
                same->first += std::string{", "} + to_string(what);
            }
        }
        for (auto const& [events, led_to] : lines) out << "    " << events << ':' << led_to << '\n';
    }
    return out.str();
}

std::string const expected =
    R"(idle
    resolve, resolve_and_connect: -> resolving_address; resolve_address; deadline resolve_address
    prepare: -> making_queue_pair; make_queue_pair
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, deadline, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    gone: -> ended; reason closed locally
resolving_address
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, route_resolved, queue_pair_made, established, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    address_resolved: -> resolving_route; resolve_route; deadline resolve_route; done resolve address
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure resolve address unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure resolve address peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure resolve address timed_out
    gone: -> ended; reason closed locally
resolving_route
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, queue_pair_made, established, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    route_resolved: -> making_queue_pair; make_queue_pair; deadline none; done resolve route
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure resolve route unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure resolve route peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure resolve route timed_out
    gone: -> ended; reason closed locally
making_queue_pair
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, established, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    queue_pair_made: -> ready; setup told success
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure create queue pair unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure create queue pair peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure create queue pair timed_out
    gone: -> ended; reason closed locally
making_queue_pair, to be connected at once
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, established, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    queue_pair_made: -> connecting; connect; deadline connect
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure create queue pair unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure create queue pair peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure create queue pair timed_out
    gone: -> ended; reason closed locally
ready
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect: -> connecting; connect; deadline connect
    establish: -> opening; open
    accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, established, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure connect unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure connect peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure connect timed_out
    gone: -> ended; reason closed locally
connecting
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    established: -> opening; open; deadline none
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure connect unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure connect peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure connect timed_out
    gone: -> ended; reason closed locally
requested
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish: setup told not_connected
    accept: -> accepting; accept; deadline connect
    reject: -> draining; reject; deadline drain; setup told not_connected; reason refused
    disconnect: disconnect told not_connected
    close: -> draining; reject; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; reject; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    address_resolved, route_resolved, queue_pair_made, established, opened, drained, finished, kept: nothing
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure accept unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure accept peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure accept timed_out
    gone: -> ended; reason closed locally
accepting
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, opened, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    established: -> opening; open; deadline none
    failed: -> draining; stop; deadline drain; setup told unreachable; reason refused; failure accept unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason refused; failure accept peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure accept timed_out
    gone: -> ended; reason closed locally
opening, connected
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, established, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    opened: -> open; done connect; setup told success
    failed: -> draining; stop; deadline drain; setup told unreachable; reason transport error; failure connect unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason transport error; failure connect peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure connect timed_out
    gone: -> ended; reason closed locally
opening, accepted
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, established, drained, finished, kept: nothing
    disconnect: disconnect told not_connected
    close: -> draining; stop; deadline drain; setup told aborted; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; setup told unexpected_message; reason protocol error; failure transfer unexpected_message
    opened: -> open; done accept; setup told success
    failed: -> draining; stop; deadline drain; setup told unreachable; reason transport error; failure accept unreachable
    peer_gone: -> draining; stop; deadline drain; setup told peer_disconnected; reason transport error; failure accept peer_disconnected
    work_failed: -> draining; stop; deadline drain; setup told remote_access; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; setup told port_down; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; setup told peer_violation; reason transport error; failure transfer peer_violation
    deadline: -> draining; stop; deadline drain; setup told timed_out; reason timed out; failure accept timed_out
    gone: -> ended; reason closed locally
open
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, established, opened, failed, deadline, drained, finished, kept: nothing
    disconnect: -> disconnecting; stop; deadline disconnect; reason closed locally
    close: -> draining; stop; deadline drain; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; reason protocol error; failure transfer unexpected_message
    peer_gone: -> draining; stop; deadline drain; reason peer disconnected; failure transfer peer_disconnected
    work_failed: -> draining; stop; deadline drain; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; reason transport error; failure transfer peer_violation
    gone: -> ended; reason closed locally
open, out of band
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, address_resolved, route_resolved, queue_pair_made, established, opened, failed, deadline, drained, finished, kept: nothing
    disconnect: -> draining; stop; deadline drain; reason closed locally
    close: -> draining; stop; deadline drain; disconnect told aborted; reason closed locally
    violated: -> draining; stop; deadline drain; reason protocol error; failure transfer unexpected_message
    peer_gone: -> draining; stop; deadline drain; reason peer disconnected; failure transfer peer_disconnected
    work_failed: -> draining; stop; deadline drain; reason transport error; failure transfer remote_access
    broken: -> draining; stop; deadline drain; reason device gone; failure transfer port_down
    stopped: -> draining; stop; deadline drain; reason transport error; failure transfer peer_violation
    gone: -> ended; reason closed locally
disconnecting
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, disconnect, address_resolved, route_resolved, queue_pair_made, established, opened, failed, work_failed, broken, stopped, finished, kept: nothing
    close: -> draining; deadline drain; disconnect told aborted
    violated, peer_gone: -> draining; deadline drain
    deadline: -> draining; deadline drain; reason timed out; failure disconnect timed_out
    drained: -> awaiting_peer
    gone: -> ended
awaiting_peer
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, disconnect, address_resolved, route_resolved, queue_pair_made, established, opened, failed, work_failed, broken, stopped, drained, finished, kept: nothing
    close: -> finishing; finish; deadline none; disconnect told aborted
    violated, peer_gone: -> finishing; finish; deadline none
    deadline: -> finishing; finish; deadline none; reason timed out; failure disconnect timed_out
    gone: -> ended
draining, closed
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, disconnect, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, work_failed, broken, stopped, finished, kept: nothing
    close: disconnect told aborted
    deadline, drained: -> finishing; finish; deadline none
    gone: -> ended
draining, left by the peer
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish: setup told not_connected
    accept: setup told peer_disconnected
    reject, disconnect, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, broken, stopped, finished, kept: nothing
    close: disconnect told aborted
    work_failed: reason transport error; failure transfer remote_access
    deadline, drained: -> finishing; finish; deadline none
    gone: -> ended
draining, stopped for a reason that is only guessed
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish: setup told not_connected
    accept: setup told peer_violation
    reject, disconnect, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, stopped, finished, kept: nothing
    close: disconnect told aborted
    work_failed: failure transfer remote_access
    broken: reason device gone; failure transfer port_down
    deadline, drained: -> finishing; finish; deadline none
    gone: -> ended
finishing, closed
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, disconnect, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, work_failed, broken, stopped, deadline, drained: nothing
    close: disconnect told aborted
    finished: -> ended; deadline none; setup told aborted; disconnect told success; end told success
    kept: -> ended; deadline none; setup told not_drained; disconnect told not_drained; end told not_drained; reason transport error; failure drain not_drained
    gone: -> ended
finishing, left by the peer
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish: setup told not_connected
    accept: setup told peer_disconnected
    reject, disconnect, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, broken, stopped, deadline, drained: nothing
    close: disconnect told aborted
    work_failed: reason transport error; failure transfer remote_access
    finished: -> ended; deadline none; setup told aborted; disconnect told success; end told success
    kept: -> ended; deadline none; setup told not_drained; disconnect told not_drained; end told not_drained; reason transport error; failure drain not_drained
    gone: -> ended
ended, closed
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish, accept: setup told not_connected
    reject, close, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, work_failed, broken, stopped, deadline, drained, finished, kept, gone: nothing
    disconnect: disconnect told success
ended, broken
    resolve, resolve_and_connect, prepare: setup told already_connected
    connect, establish: setup told not_connected
    accept: setup told port_down
    reject, close, violated, address_resolved, route_resolved, queue_pair_made, established, opened, failed, peer_gone, work_failed, broken, stopped, deadline, drained, finished, kept, gone: nothing
    disconnect: disconnect told port_down
)";

}  // namespace

TEST_CASE("the lifecycle follows its table in every state and event", "[machines]") {
    std::istringstream is{whole_table()};
    std::istringstream should_be{expected};
    std::string line;
    std::string right;
    std::string state;
    while (std::getline(should_be, right)) {
        REQUIRE(std::getline(is, line));
        if (right.front() != ' ') state = right;
        INFO("in the state " << state);
        CHECK(line == right);
    }
    CHECK_FALSE(std::getline(is, line));
}

namespace {

// An open connection after these events.
lifecycle open_and(std::vector<lifecycle::event> const& events) {
    lifecycle life;
    using h = event_kind;
    for (auto const what :
         {h::resolve_and_connect,
          h::address_resolved,
          h::route_resolved,
          h::queue_pair_made,
          h::established,
          h::opened})
        life.resume({what});
    REQUIRE(life.is_open());
    for (auto const& e : events) life.resume(e);
    return life;
}

}  // namespace

TEST_CASE(
    "a failed work request stays the root cause, even if DISCONNECTED arrives first", "[machines]"
) {
    using h = event_kind;
    // A message was too long for its receive: the local completion fails, and the peer, which
    // received an error, disconnects. The DISCONNECTED event arrives first.
    error_code const cause = GENERATE(
        error_code{wc_errc::local_qp_operation},
        error_code{wc_errc::local_length},
        error_code{wc_errc::remote_access}
    );
    lifecycle const life = open_and({{h::peer_gone}, {h::work_failed, cause, 5}});
    CHECK(life.reason() == close_reason::transport_error);
    CHECK(life.failure().code == cause);
    CHECK(life.failure().status == 5);
    // Errors that the disconnect causes for work in flight are not the root cause.
    error_code const effect = GENERATE(
        error_code{wc_errc::flushed},
        error_code{wc_errc::retry_exceeded},
        error_code{wc_errc::rnr_retry_exceeded}
    );
    lifecycle const left = open_and({{h::peer_gone}, {h::work_failed, effect}});
    CHECK(left.reason() == close_reason::peer_disconnected);
    CHECK(left.end_code() == error_code{});
    CHECK(left.flush_code() == errc::peer_disconnected);
}

TEST_CASE(
    "an error completion that is found in the last poll still becomes the reason", "[machines]"
) {
    using h = event_kind;
    // An unsignaled work request failed, and the DISCONNECTED event arrived first.
    std::vector<lifecycle::event> events{
        {h::peer_gone}, {h::drained}, {h::work_failed, wc_errc::remote_access}};
    lifecycle life = open_and(events);
    CHECK(life.current() == lifecycle::state::finishing);
    CHECK(life.reason() == close_reason::transport_error);
    lifecycle::answer const told = life.resume({h::finished});
    CHECK(told.end == error_code{wc_errc::remote_access});
    // Later events have no effect: the end has been reported.
    life.resume({h::work_failed, wc_errc::remote_operation});
    life.resume({h::broken, errc::port_down, 0, close_reason::device_gone});
    CHECK(life.failure().code == wc_errc::remote_access);
}

TEST_CASE("a guessed reason is replaced only by one that names the cause", "[machines]") {
    using h = event_kind;
    lifecycle const guessed = open_and({{h::work_failed, wc_errc::flushed}});
    CHECK(guessed.reason() == close_reason::transport_error);
    CHECK(guessed.failure().code == errc::peer_violation);
    CHECK(guessed.flush_code() == errc::peer_violation);

    lifecycle const named = open_and(
        {{h::stopped},
         {h::work_failed, wc_errc::flushed},
         {h::work_failed, wc_errc::remote_access},
         {h::work_failed, wc_errc::remote_operation}}
    );
    CHECK(named.failure().code == wc_errc::remote_access);

    lifecycle const gone =
        open_and({{h::stopped}, {h::broken, errc::device_removed, 0, close_reason::device_gone}});
    CHECK(gone.reason() == close_reason::device_gone);

    lifecycle const left = open_and({{h::stopped}, {h::work_failed, wc_errc::retry_exceeded}});
    CHECK(left.reason() == close_reason::peer_disconnected);

    // On iWARP a queue pair stops when the peer closes.
    lifecycle iwarp;
    iwarp.runs_on_iwarp();
    for (auto const what :
         {h::resolve_and_connect,
          h::address_resolved,
          h::route_resolved,
          h::queue_pair_made,
          h::established,
          h::opened,
          h::stopped})
        iwarp.resume({what});
    CHECK(iwarp.reason() == close_reason::peer_disconnected);
    CHECK(iwarp.end_code() == error_code{});
}

TEST_CASE("a connection that could not be opened has failed, and was never open", "[machines]") {
    using h = event_kind;
    lifecycle life{lifecycle::state::requested};
    life.resume({h::accept});
    life.resume({h::established});
    error_code const why{boost::system::errc::make_error_code(boost::system::errc::io_error)};
    lifecycle::answer const told = life.resume({h::failed, why});
    CHECK(told.setup == why);
    CHECK(life.current() == lifecycle::state::draining);
    CHECK(life.reason() == close_reason::transport_error);
    CHECK(life.failure().where == step::accept);
    CHECK(life.refusal_code() == why);
}

TEST_CASE("a queue pair that cannot be destroyed outweighs every other reason", "[machines]") {
    using h = event_kind;
    lifecycle const life = open_and({{h::close}, {h::drained}, {h::kept}});
    CHECK(life.reason() == close_reason::transport_error);
    CHECK(life.failure().code == errc::not_drained);
    CHECK(life.failure().where == step::drain);
    CHECK(life.end_code() == errc::not_drained);
    CHECK(life.flush_code() == errc::not_drained);
}

TEST_CASE("cancelling an operation does not abort a pending disconnect", "[machines]") {
    using h = event_kind;
    lifecycle life = open_and({{h::disconnect}});
    lifecycle::answer const a = life.resume({h::close, boost::asio::error::operation_aborted});
    CHECK_FALSE(a.disconnect);
    CHECK(life.resume({h::close}).disconnect == boost::asio::error::operation_aborted);
}

TEST_CASE("cancelling a posted operation ends the connection with closed_locally", "[machines]") {
    using h = event_kind;
    lifecycle const life =
        open_and({{h::close, boost::asio::error::operation_aborted}, {h::drained}, {h::finished}});
    CHECK(life.reason() == close_reason::closed_locally);
    CHECK(life.failure().where == step::transfer);
    CHECK(life.end_code() == error_code{});
    CHECK(life.refusal_code() == errc::not_connected);
}
