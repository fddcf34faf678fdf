// The session protocol with one side dying at any moment: the survivor ends in time, and never
// reports a loss as success.
#include <boost/asio/detached.hpp>

#include <optional>
#include <random>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

session_options impatient() {
    session_options o;
    o.mode = 7;
    return o;
}

struct ending {
    bool has_ended = false;
    bool wrote = false;
    error_code code;
    close_reason reason = close_reason::open;
};

/// The session of rdma-server and rdma-client, as run by both sides.
asio::awaitable<void> live(session& s, ending& e, asio::awaitable<void> meeting, std::byte mark) {
    try {
        co_await std::move(meeting);
        registered_buffer ours{s.next_layer().domain(), 256, access_flags::local_write};
        registered_buffer exposed{s.next_layer().domain(), 256, access_flags::remote_write};
        std::vector<named_region> const list{{"message", exposed}};
        peer_regions const theirs = co_await s.async_exchange(list, asio::use_awaitable);
        std::ranges::fill(ours.bytes(), mark);
        co_await s.next_layer().async_write(ours.slice(), theirs[0], asio::use_awaitable);
        e.wrote = true;
        co_await s.async_finish(asio::use_awaitable);
        if (s.last_failure().reason == close_reason::completed)
            CHECK(exposed.bytes()[255] == (mark ^ std::byte{1}));
    } catch (boost::system::system_error const& failed) {
        e.code = failed.code();
    }
    s.close();
    e.reason = s.last_failure().reason;
    e.has_ended = true;
}

/// How a session is cut short: which side dies; whether its kernel disconnects (`tells`); and when,
/// by the number of events or by time.
struct death {
    bool is_server = false;
    bool tells = false;
    std::optional<std::size_t> at_event;
    std::chrono::nanoseconds at_time{0};
};

struct life_result {
    ending survivor;
    std::size_t events = 0;
    bool has_died = false;
};

/// One run of two sessions, with a death.
life_result live_once(std::uint64_t seed, death const& d) {
    fabric::world_options options;
    options.seed = seed;
    world w{options};
    ending client_end;
    ending server_end;
    life_result result;
    auto const die = [&] {
        result.has_died = true;
        char const* const device = d.is_server ? "fab0" : "fab1";
        if (d.tells) {
            w.kill_program(device);
        } else {
            w.power_off(device);
        }
    };
    {
        asio::io_context io;
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        session client{connection{stepped(io)}, impatient()};
        session server;
        auto const serve = [&]() -> asio::awaitable<void> {
            error_code failed;
            try {
                server = session{co_await requested(a), impatient()};
            } catch (boost::system::system_error const& e) {
                failed = e.code();
            }
            if (failed) {
                server_end = {true, false, failed, close_reason::refused};
                co_return;
            }
            co_await live(
                server, server_end, server.async_accept(asio::use_awaitable), std::byte{2}
            );
        };
        asio::co_spawn(io, serve(), asio::detached);
        asio::co_spawn(
            io,
            live(
                client,
                client_end,
                client.async_connect(a.local_endpoint(), asio::use_awaitable),
                std::byte{3}
            ),
            asio::detached
        );
        asio::steady_timer end{io, 60s};
        end.async_wait([&](error_code) { a.close(); });
        asio::steady_timer killer{io};
        if (!d.at_event) {
            killer.expires_after(d.at_time);
            killer.async_wait([&](error_code) { die(); });
        }
        // The predicate runs after every event.
        static_cast<void>(w.run_until(io, [&] {
            if (d.at_event && result.events == *d.at_event) die();
            ++result.events;
            return client_end.has_ended && server_end.has_ended;
        }));
        end.cancel();
        killer.cancel();
        a.close();
        CHECK(w.run(io));
    }
    CHECK(w.live() == fabric::object_counts{});
    result.survivor = d.is_server ? client_end : server_end;
    return result;
}

/// The survivor has ended, and reports success only if the whole exchange was done.
void check_end(ending const& survivor) {
    CHECK(survivor.has_ended);
    if (survivor.reason == close_reason::completed) {
        CHECK(survivor.wrote);
        CHECK_FALSE(survivor.code);
    } else {
        CHECK(survivor.code);
    }
}

struct last_words {
    error_code code;
    close_reason reason = close_reason::open;
    failure remembered;
};

/// Two sessions without regions to write to; the client disconnects `after` both have sent MSG_DONE.
last_words finish_with_client_leaving(
    std::chrono::nanoseconds after, std::chrono::milliseconds deadline, std::uint64_t seed
) {
    fabric::world_options options;
    options.seed = seed;
    world w{options};
    asio::io_context io;
    last_words result;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        session client{connection{stepped(io)}, impatient()};
        auto const serve = [&]() -> asio::awaitable<void> {
            session_options patient = impatient();
            patient.finish_timeout = deadline;
            session server{co_await requested(a), patient};
            co_await server.async_accept(asio::use_awaitable);
            co_await server.async_exchange({}, asio::use_awaitable);
            auto [ec] = co_await server.async_finish(awaiting);
            co_await sleep(io, 1ms);
            result = {ec, server.last_failure().reason, server.last_failure()};
        };
        auto const leave = [&]() -> asio::awaitable<void> {
            co_await client.async_connect(a.local_endpoint(), asio::use_awaitable);
            co_await client.async_exchange({}, asio::use_awaitable);
            co_await client.async_send_done(asio::use_awaitable);
            co_await client.async_wait_done(asio::use_awaitable);
            co_await sleep(io, after);
            client.close();
        };
        co_await (serve() && leave());
        a.close();
    });
    return result;
}

enum class client_end { finishes, leaves_without_done, leaves_after_done };

/// Two sessions end, and the client's acknowledgement of the server's MSG_DONE never arrives.
last_words end_without_last_acknowledgement(client_end how, std::uint64_t seed) {
    using fabric::packet_fate;
    using fabric::packet_info;
    fabric::world_options options;
    options.seed = seed;
    world w{options};
    asio::io_context io;
    std::uint32_t server_qp = 0;
    bool is_losing = false;
    w.on_packet([&](packet_info const& p) {
        bool const is_lost =
            is_losing && p.what == packet_info::kind::acknowledge && p.target_qp == server_qp;
        return packet_fate{is_lost ? packet_fate::kind::drop : packet_fate::kind::deliver};
    });
    last_words result;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        session client{connection{stepped(io)}, impatient()};
        auto const serve = [&]() -> asio::awaitable<void> {
            session server{co_await requested(a), impatient()};
            co_await server.async_accept(asio::use_awaitable);
            server_qp = server.next_layer().queue_pair_number();
            co_await server.async_exchange({}, asio::use_awaitable);
            if (how != client_end::leaves_without_done)
                co_await server.async_wait_done(asio::use_awaitable);
            if (how == client_end::leaves_after_done)
                co_await server.next_layer().async_wait_disconnected(asio::use_awaitable);
            is_losing = true;
            auto [ec] = co_await server.async_finish(awaiting);
            result = {ec, server.last_failure().reason, server.last_failure()};
        };
        auto const end = [&]() -> asio::awaitable<void> {
            co_await client.async_connect(a.local_endpoint(), asio::use_awaitable);
            co_await client.async_exchange({}, asio::use_awaitable);
            switch (how) {
            case client_end::finishes:
                co_await client.async_finish(asio::use_awaitable);
                CHECK(client.last_failure().reason == close_reason::completed);
                break;
            case client_end::leaves_without_done:
                co_await client.async_wait_done(asio::use_awaitable);
                break;
            case client_end::leaves_after_done:
                co_await client.async_send_done(asio::use_awaitable);
                break;
            }
            client.close();
        };
        co_await (serve() && end());
        a.close();
    });
    return result;
}

}  // namespace

TEST_CASE(
    "both sides of a finished session say so, although an acknowledgement is lost", "[fabric]"
) {
    for (std::uint64_t const seed : seeds(are_seeds_fixed() ? 50 : 200)) {
        INFO("RCVERBS_FABRIC_SEED=" << seed);
        last_words const last = end_without_last_acknowledgement(client_end::finishes, seed);
        CHECK_FALSE(last.code);
        CHECK(last.reason == close_reason::completed);
        CHECK_FALSE(last.remembered.code);
    }
}

TEST_CASE("a client that leaves before both have sent MSG_DONE has left early", "[fabric]") {
    auto const how = GENERATE(client_end::leaves_without_done, client_end::leaves_after_done);
    for (std::uint64_t const seed : seeds(are_seeds_fixed() ? 50 : 200)) {
        INFO("RCVERBS_FABRIC_SEED=" << seed);
        last_words const last = end_without_last_acknowledgement(how, seed);
        CHECK(last.code == session_errc::peer_closed_early);
        CHECK(last.reason == close_reason::peer_closed_early);
        CHECK(last.remembered.code == session_errc::peer_closed_early);
    }
}

TEST_CASE(
    "whichever side dies, at whatever event, the other ends in time and reports no success",
    "[fabric]"
) {
    std::uint64_t const seed = seeds(1).front();
    INFO("RCVERBS_FABRIC_SEED=" << seed);
    // An undisturbed run counts the events.
    death never;
    never.at_event = SIZE_MAX;
    life_result const whole = live_once(seed, never);
    REQUIRE(whole.survivor.reason == close_reason::completed);
    int completed = 0;
    int lost = 0;
    for (bool const is_server : {false, true}) {
        for (bool const tells : {false, true}) {
            for (std::size_t at = 0; at < whole.events; ++at) {
                INFO(
                    (is_server ? "server" : "client")
                    << (tells ? " killed" : " without power") << " at event " << at << " of "
                    << whole.events
                );
                life_result const r = live_once(seed, {is_server, tells, at, {}});
                CHECK(r.has_died);
                check_end(r.survivor);
                ++(r.survivor.reason == close_reason::completed ? completed : lost);
            }
        }
    }
    CHECK(lost > 0);
    CHECK(completed > 0);  // a side that dies at the last event has completed its part
}

TEST_CASE("a session whose peer dies at any time ends in time", "[fabric]") {
    std::size_t const lives = are_seeds_fixed() ? 250 : 10'000;
    std::size_t completed = 0;
    for (std::uint64_t const seed : seeds(lives)) {
        INFO("RCVERBS_FABRIC_SEED=" << seed);
        std::mt19937_64 life{seed};
        death d;
        d.is_server = life() % 2 == 0;
        d.tells = life() % 2 == 0;
        // A whole exchange takes about 300 us.
        d.at_time = std::chrono::nanoseconds{life() % 500'000};
        life_result const r = live_once(seed, d);
        check_end(r.survivor);
        completed += r.survivor.reason == close_reason::completed ? 1 : 0;
    }
    CHECK(completed > 0);
    CHECK(completed < lives);
}

TEST_CASE("a session whose peer disconnects at the deadline has completed, or failed", "[fabric]") {
    constexpr std::chrono::milliseconds deadline{1};
    int completed = 0;
    int failed = 0;
    std::chrono::nanoseconds after = deadline - 40us;
    std::chrono::nanoseconds const step = are_seeds_fixed() ? 500ns : 100ns;
    for (std::uint64_t const seed : seeds(static_cast<std::size_t>(50us / step))) {
        INFO("RCVERBS_FABRIC_SEED=" << seed << ", " << after.count() << " ns after MSG_DONE");
        last_words const last = finish_with_client_leaving(after, deadline, seed);
        CHECK((last.reason == close_reason::completed) == !last.code);
        CHECK(last.remembered.code == last.code);
        ++(last.code ? failed : completed);
        after += step;
    }
    CHECK(completed > 0);
    CHECK(failed > 0);
}
