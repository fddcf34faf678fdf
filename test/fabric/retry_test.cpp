// retry(): which error it reports, and when, in virtual time.
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/strand.hpp>

#include <chrono>
#include <cstdint>

#include <rcverbs/connector.hpp>
#include <rcverbs/experimental/retry.hpp>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

struct outcome {
    error_code code;
    std::chrono::milliseconds after{0};
};

// Repeats an operation that fails with `failing`, for 60 seconds of virtual time at most. At
// 10.0.0.1:7471 a server accepts plain connections.
template <class Protocol = connection>
outcome retry_against(
    endpoint const& peer, std::uint32_t attempts_max, error_code const& failing = {}
) {
    world w;
    asio::io_context io;
    outcome result;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {"10.0.0.1", 7471}};
        std::vector<connection> accepted;
        auto const serve = [&]() -> asio::awaitable<void> {
            for (;;) {
                auto [ec, c] = co_await door.async_accept(awaiting);
                if (ec) co_return;
                accepted.push_back(std::move(c));
            }
        };
        auto const work = [&]() -> asio::awaitable<void> {
            connector_options<Protocol> o;
            if (attempts_max > 0) o.backoff.attempts_max = attempts_max;
            basic_connector<Protocol> to{io, peer, o};
            Protocol current;
            auto const begin = std::chrono::steady_clock::now();
            auto const fail = [&](Protocol&) -> asio::awaitable<void> {
                if (failing) throw boost::system::system_error{failing};
                co_return;
            };
            try {
                co_await retry(to, current, begin + 60s, fail);
            } catch (boost::system::system_error const& e) {
                result.code = e.code();
            }
            result.after = std::chrono::duration_cast<std::chrono::milliseconds>(
                std::chrono::steady_clock::now() - begin
            );
            current.close();
            door.close();
        };
        co_await (serve() && work());
    });
    return result;
}

}  // namespace

TEST_CASE("fabric: retry reports a permanent error of connecting at once", "[fabric]") {
    // A plain connection's server knows no sessions.
    outcome const o = retry_against<session>({"10.0.0.1", 7471}, 1);
    CHECK(o.code == session_errc::foreign_peer);
    CHECK(o.after < 1s);
}

TEST_CASE("fabric: retry goes on after a transient error, and reports it at the deadline") {
    outcome const o = retry_against({"10.0.0.1", 9999}, 1);
    CHECK(o.code == cm_errc::rejected_no_listener);
    CHECK(o.after >= 59s);
    CHECK(o.after < 62s);
    // The connector itself goes on, and has told no error yet.
    outcome const endless = retry_against({"10.0.0.1", 9999}, 0);
    CHECK(endless.code == errc::timed_out);
    CHECK(endless.after >= 60s);
}

TEST_CASE("fabric: retry reports errors of the operation: transient ones at the deadline") {
    outcome const wrong = retry_against({"10.0.0.1", 7471}, 1, errc::out_of_range);
    CHECK(wrong.code == errc::out_of_range);
    CHECK(wrong.after < 1s);
    outcome const gone = retry_against({"10.0.0.1", 7471}, 1, errc::stalled);
    CHECK(gone.code == errc::stalled);
    CHECK(gone.after >= 59s);
    CHECK(retry_against({"10.0.0.1", 7471}, 1).code == error_code{});
}

namespace {

struct cancelled_at {
    error_code code;
    bool is_usable = false;
    std::size_t events = 0;
};

// Connects, and cancels at an event of the network or of the program. The handler runs on a strand,
// not on the connector's.
cancelled_at cancel_at(std::size_t at, std::uint64_t seed) {
    fabric::world_options options;
    options.seed = seed;
    world w{options};
    asio::io_context io;
    auto const elsewhere = asio::make_strand(io);
    cancelled_at result;
    acceptor door{io, {"10.0.0.1", 0}};
    std::vector<connection> accepted;
    basic_connector<connection> to{io, door.local_endpoint()};
    connection made;
    bool has_ended = false;
    door.async_accept([&](error_code, connection c) { accepted.push_back(std::move(c)); });
    to.async_connect(asio::bind_executor(elsewhere, [&](error_code ec, connection c) {
        result.code = ec;
        made = std::move(c);
        has_ended = true;
    }));
    CHECK(w.run_until(io, [&] {
        if (result.events == at) to.cancel();
        ++result.events;
        return has_ended;
    }));
    // What a cancellation that comes too late may still do.
    w.run_for(io, 1s);
    result.is_usable = made.is_open();
    if (made.is_open()) made.close();
    door.close();
    CHECK(w.run(io));
    for (connection const& c : accepted) CHECK_FALSE(c.is_open());
    return result;
}

}  // namespace

TEST_CASE(
    "fabric: a connector that is cancelled at any moment has connected, or has not", "[fabric]"
) {
    int connected = 0;
    int aborted = 0;
    for (std::uint64_t const seed : seeds(are_seeds_fixed() ? 1 : 5)) {
        std::size_t const whole = cancel_at(SIZE_MAX, seed).events;
        for (std::size_t at = 0; at <= whole; ++at) {
            INFO(
                "RCVERBS_FABRIC_SEED=" << seed << ", cancelled at event " << at << " of " << whole
            );
            cancelled_at const r = cancel_at(at, seed);
            CHECK((r.code == asio::error::operation_aborted || !r.code));
            CHECK(r.is_usable == !r.code);
            ++(r.code ? aborted : connected);
        }
    }
    CHECK(aborted > 0);
    CHECK(connected > 0);
}

TEST_CASE("fabric: a connection on its way to its handler is not cancelled any more", "[fabric]") {
    world w;
    asio::io_context io;
    asio::io_context elsewhere;
    acceptor door{io, {"10.0.0.1", 0}};
    connection accepted;
    basic_connector<connection> to{io, door.local_endpoint()};
    connection made;
    door.async_accept([&](error_code, connection c) { accepted = std::move(c); });
    to.async_connect(asio::bind_executor(elsewhere, [&](error_code ec, connection c) {
        CHECK_FALSE(ec);
        made = std::move(c);
    }));
    // Connected, but nobody runs the handler's context yet.
    w.run_for(io, 1s);
    CHECK(accepted.is_open());
    to.cancel();
    w.run_for(io, 1s);
    CHECK(elsewhere.run() > 0);
    CHECK(made.is_open());
    made.close();
    door.close();
    CHECK(w.run(io));
}
