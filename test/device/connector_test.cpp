// Reconnecting: what survives, what does not, and when a connector gives up.
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <memory>
#include <optional>
#include <vector>
#include <rcverbs/experimental/retry.hpp>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

connector_options<> hasty() {
    connector_options<> o;
    o.backoff.delay_first = 20ms;
    o.backoff.delay_max = 100ms;
    return o;
}

}  // namespace

TEST_CASE("a connector waits for a server that is not there yet", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<acceptor> a;
        a.emplace(io, endpoint{device_address(), 0});
        endpoint const at = a->local_endpoint();
        a.reset();
        connector_options<> options = hasty();
        std::vector<std::uint64_t> retries;
        options.on_retry = [&](std::uint64_t attempts, failure const& why) {
            CHECK(why.code == cm_errc::rejected_no_listener);
            retries.push_back(attempts);
        };
        connector to_server{io, at, options};
        auto const appear = [&]() -> asio::awaitable<session> {
            asio::steady_timer timer{io};
            while (to_server.attempts() < 3) {
                timer.expires_after(10ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
            CHECK(to_server.last_failure().code == cm_errc::rejected_no_listener);
            a.emplace(io, at);
            co_return co_await accept_session(*a);
        };
        auto [server, client] = co_await (appear() && to_server.async_connect(asio::use_awaitable));
        CHECK(client.next_layer().is_open());
        CHECK(to_server.attempts() >= 3);
        CHECK(retries.size() == to_server.attempts() - 1);
        CHECK(retries.front() == 1);
        client.close();
        server.close();
    });
}

TEST_CASE("a connector tries the endpoints of its peer in turn", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        acceptor gone{io, {device_address(), 0}};
        endpoint const nobody = gone.local_endpoint();
        gone.close();
        connector_options<> options = hasty();
        options.on_retry = [](std::uint64_t, failure const&) { FAIL("a delay between endpoints"); };
        connector to_server{io, std::vector{nobody, nobody, a.local_endpoint()}, options};
        auto const meet = [&]() -> asio::awaitable<std::pair<session, session>> {
            co_return co_await (accept_session(a) && to_server.async_connect(asio::use_awaitable));
        };
        auto [server, client] = co_await meet();
        CHECK(to_server.attempts() == 3);
        client.close();
        server.close();
        // The one that has worked comes first.
        auto [server_again, client_again] = co_await meet();
        CHECK(to_server.attempts() == 4);
        client_again.close();
        server_again.close();
        a.close();
        CHECK_THROWS_AS((connector{io, std::vector<endpoint>{}}), boost::system::system_error);
    });
}

TEST_CASE("of several endpoints that fail the delay follows the last", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor gone{io, {device_address(), 0}};
        endpoint const nobody = gone.local_endpoint();
        gone.close();
        connector_options<> options = hasty();
        options.backoff.attempts_max = 2;
        std::vector<std::uint64_t> retries;
        options.on_retry = [&](std::uint64_t attempts, failure const&) {
            retries.push_back(attempts);
        };
        connector to_server{io, std::vector{nobody, nobody, nobody}, options};
        auto const [ec, none] = co_await to_server.async_connect(awaiting);
        CHECK(ec == cm_errc::rejected_no_listener);
        CHECK(to_server.attempts() == 6);
        CHECK(retries == std::vector<std::uint64_t>{3});
    });
}

TEST_CASE(
    "after a restart of the server memory stays registered, keys are new, and lost operations have "
    "failed",
    "[device]"
) {
    asio::io_context io;
    bool const is_private = GENERATE(false, true);
    run(io, [&]() -> asio::awaitable<void> {
        connector_options<> options = hasty();
        options.protocol.connection.placement.domain =
            is_private ? domain_sharing::isolated : domain_sharing::automatic;
        acceptor a{io, {device_address(), 0}};
        connector to_server{io, a.local_endpoint(), options};
        std::optional<registered_buffer> ours;
        ibv_pd* domain = nullptr;
        for (int round = 0; round < 3; ++round) {
            auto [server, client] =
                co_await (accept_session(a) && to_server.async_connect(asio::use_awaitable));
            // Registered once, and valid for every session.
            if (!ours) {
                ours.emplace(client.next_layer().domain(), 4096, access_flags::local_write);
                domain = to_server.domain().native_handle();
            }
            CHECK(client.next_layer().domain().native_handle() == domain);
            registered_buffer theirs{
                server.next_layer().domain(), 4096, access_flags::remote_write};
            std::vector<named_region> const exposed{{"r" + std::to_string(round), theirs}};
            std::vector<named_region> const nothing;
            auto [seen, none] = co_await (
                client.async_exchange(nothing, asio::use_awaitable) &&
                server.async_exchange(exposed, asio::use_awaitable)
            );
            REQUIRE(seen.find("r" + std::to_string(round)) != nullptr);
            std::ranges::fill(ours->bytes(), static_cast<std::byte>(round + 1));
            co_await client.next_layer().async_write(ours->slice(), seen[0], asio::use_awaitable);
            CHECK(theirs.bytes()[4095] == static_cast<std::byte>(round + 1));
            // The server closes while a receive is waiting that will never complete. It fails, and
            // is not repeated on the next session.
            auto const dies = [&dying = server]() -> asio::awaitable<void> {
                dying.close();
                co_return;
            };
            auto [ec] = co_await (dies() && client.async_wait_done(awaiting));
            CHECK(ec == session_errc::peer_closed_early);
            co_await client.next_layer().async_wait_disconnected(awaiting);
            auto [late, n] =
                co_await client.next_layer().async_write(ours->slice(), seen[0], awaiting);
            CHECK(late == errc::peer_disconnected);  // the reason why the connection ended
            co_await server.next_layer().async_wait_disconnected(awaiting);
        }
    });
}

TEST_CASE(
    "a connector gives up after a permanent error, and after the configured attempts", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        session_options other;
        other.mode = 7;
        connector wrong_mode{io, a.local_endpoint(), hasty()};
        auto const refuse = [&]() -> asio::awaitable<void> {
            session s{co_await requested(a), other};
            co_await s.async_accept(awaiting);
        };
        auto result = co_await (refuse() && wrong_mode.async_connect(awaiting));
        CHECK(std::get<0>(result) == session_errc::mode_mismatch);
        CHECK(wrong_mode.attempts() == 1);

        connector_options<> three = hasty();
        three.backoff.attempts_max = 3;
        endpoint const nobody{device_address(), 1};
        connector nowhere{io, nobody, three};
        auto [ec, none] = co_await nowhere.async_connect(awaiting);
        CHECK(ec == cm_errc::rejected_no_listener);
        CHECK(nowhere.attempts() == 3);
    });
}

TEST_CASE(
    "a connector can be cancelled, has one operation at a time, and checks its options", "[device]"
) {
    asio::io_context io;
    bool const by_destruction = GENERATE(false, true);
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<connector> nowhere;
        nowhere.emplace(io, endpoint{device_address(), 1}, hasty());
        error_code first;
        bool has_ended = false;
        nowhere->async_connect([&](error_code ec, session) {
            first = ec;
            has_ended = true;
        });
        auto [second, none] = co_await nowhere->async_connect(awaiting);
        CHECK(second == errc::operation_in_progress);
        asio::steady_timer timer{io, 100ms};
        co_await timer.async_wait(asio::use_awaitable);
        CHECK_FALSE(has_ended);
        if (by_destruction) {
            nowhere.reset();
        } else {
            nowhere->cancel();
        }
        while (!has_ended) co_await asio::post(io, asio::use_awaitable);
        CHECK(first == asio::error::operation_aborted);
    });
    connector_options<> bad;
    bad.backoff.jitter = 1.5;
    CHECK_THROWS_AS((connector{io, {device_address(), 1}, bad}), boost::system::system_error);
    bad = {};
    bad.backoff.delay_max = 1ms;
    CHECK_THROWS_AS((connector{io, {device_address(), 1}, bad}), boost::system::system_error);
}

TEST_CASE(
    "errors of a peer that has left are transient, for operations started before and after",
    "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::vector<error_code> failures;
        for (int round = 0; round < 6; ++round) {
            test::pair p = co_await connect(io);
            registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
            std::optional<registered_buffer> theirs{
                std::in_place, p.server.domain(), 4096, access_flags::remote_write};
            remote_region const target = theirs->remote();
            int outstanding = 0;
            auto const start = [&] {
                ++outstanding;
                p.client.async_write(
                    ours.slice(),
                    target,
                    asio::bind_executor(
                        io,
                        [&](error_code ec, std::size_t) {
                            --outstanding;
                            if (ec) failures.push_back(ec);
                        }
                    )
                );
            };
            for (int i = 0; i < 100; ++i) start();
            // In every other round, the memory is released first, as when the kernel ends a
            // process.
            if (round % 2 == 0) theirs.reset();
            p.server.close();
            co_await p.client.async_wait_disconnected(awaiting);
            for (int i = 0; i < 10; ++i) start();
            asio::steady_timer timer{io};
            while (outstanding > 0) {
                timer.expires_after(1ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
            theirs.reset();
        }
        CHECK(failures.size() >= 60);
        for (error_code const& ec : failures) {
            INFO(ec.message());
            CHECK(is_transient(ec));
        }
    });
}

TEST_CASE("a connector whose handler goes with its context connects again", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        basic_connector<connection> to{io, a.local_endpoint()};
        for (bool const is_connected : {false, true}) {
            auto other = std::make_unique<asio::io_context>();
            connection server;
            bool is_over = false;
            a.async_accept([&](error_code, connection c) {
                server = std::move(c);
                is_over = true;
            });
            to.async_connect(asio::bind_executor(other->get_executor(), [](error_code, connection) {
                FAIL("called");
            }));
            if (is_connected) {
                while (!server.is_open()) co_await asio::post(io, asio::use_awaitable);
                for (int i = 0; i < 100; ++i) co_await asio::post(io, asio::use_awaitable);
            }
            other.reset();
            // The connection that nobody gets is closed, perhaps before the server has it.
            while (!is_over) co_await asio::post(io, asio::use_awaitable);
            if (server.is_valid()) co_await server.async_wait_disconnected(awaiting);
            connection again;
            auto const serve = [&]() -> asio::awaitable<void> {
                server = co_await a.async_accept(asio::use_awaitable);
            };
            auto const ask = [&]() -> asio::awaitable<void> {
                again = co_await to.async_connect(asio::use_awaitable);
            };
            co_await (serve() && ask());
            CHECK(again.is_open());
            again.close();
            co_await server.async_wait_disconnected(awaiting);
        }
    });
}

TEST_CASE("nothing is tried after the deadline of retry()", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        basic_connector<connection> to{io, a.local_endpoint()};
        connection current;
        int calls = 0;
        error_code why;
        try {
            co_await retry(
                to,
                current,
                std::chrono::steady_clock::now() - 1s,
                [&](connection&) -> asio::awaitable<void> {
                    ++calls;
                    co_return;
                }
            );
        } catch (boost::system::system_error const& e) {
            why = e.code();
        }
        CHECK(why == errc::timed_out);
        CHECK(calls == 0);
        CHECK(to.attempts() == 0);
    });
}
