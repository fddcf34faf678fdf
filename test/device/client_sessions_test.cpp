// Clients that connect again: what of their older channels is still being executed, and what a server does before it accepts the new one.
#include <boost/asio/detached.hpp>

#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
#include <rcverbs/experimental/request_client.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr std::uint32_t slow = 2;

request_channel_options options_of(std::uint8_t client) {
    request_channel_options o;
    o.messages.connection.queue_pair.rnr_retry_count = 0;
    o.messages.finish_timeout = 60s;
    o.answer_timeout = 60s;
    if (client > 0) o.identity.emplace().fill(std::byte{client});
    return o;
}

// Executes requests, which have a number each: those of operation `slow` when the test says so.
struct server : std::enable_shared_from_this<server> {
    explicit server(asio::io_context& on, bool has_sessions = true)
        : io{on},
          door{on, {device_address(), 0}},
          options{options_of(0)} {
        if (has_sessions) options.sessions.emplace();
    }

    void accept_next() {
        door.async_get_request(
            [this, self = shared_from_this()](error_code ec, connection_request asked) {
                if (ec) return;
                auto const c = std::make_shared<request_channel>(io, std::move(asked), options);
                channels.push_back(c);
                c->async_accept([this, c, self](error_code failed) {
                    results.push_back(failed);
                    if (failed) return;
                    ++accepted;
                    if (takes_requests) take_next(c);
                });
                accept_next();
            }
        );
    }
    void take_next(std::shared_ptr<request_channel> const& c) {
        c->async_next([this, c, self = shared_from_this()](error_code ec, request r) {
            if (ec) {
                ends.push_back(ec);
                if (ec == asio::error::eof) c->async_finish([c](error_code) {});
                return;
            }
            if (r.operation() == slow && slow_left > 0) {
                --slow_left;
                held.push_back(std::move(r));
            } else {
                execute(std::move(r));
            }
            take_next(c);
        });
    }
    void execute(request r) {
        executed.push_back(std::to_integer<int>(r.bytes()[0]));
        if (!r.wants_answer()) return;
        auto const kept = std::make_shared<request>(std::move(r));
        kept->async_answer(0, std::span<std::byte const>{}, [kept](error_code) {});
    }
    /// As if the connection had failed: the client is not the one that ends it.
    void break_connection() { channels.back()->next_layer().close(); }
    void close() {
        door.close();
        held.clear();
        for (auto const& c : channels) c->close();
    }

    asio::io_context& io;
    acceptor door;
    request_channel_options options;
    std::vector<std::shared_ptr<request_channel>> channels;
    std::list<request> held;
    std::vector<int> executed;
    std::vector<error_code> results;
    std::vector<error_code> ends;
    int accepted = 0;
    int slow_left = 1;
    bool takes_requests = true;
};

// Of a client that connects again soon.
request_client_options eager() {
    request_client_options o;
    o.channel = options_of(0);
    o.backoff.delay_first = 5ms;
    o.backoff.delay_max = 20ms;
    return o;
}

std::shared_ptr<server> started(asio::io_context& io, bool has_sessions = true) {
    auto const s = std::make_shared<server>(io, has_sessions);
    s->accept_next();
    return s;
}

std::array<std::byte, 1> body_of(int number) { return {static_cast<std::byte>(number)}; }

}  // namespace

TEST_CASE("a repeated request is not executed after a later one", "[device]") {
    bool const is_notice = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io);
        server& s = *kept;
        request_client c{io, s.door.local_endpoint(), eager()};
        auto const one = body_of(1);
        auto const two = body_of(2);
        std::optional<error_code> first;
        if (is_notice) {
            // One that has been sent is over for the client; the next one must wait for it all the same.
            co_await c.async_notify(ask{slow}.body(one).may_repeat(), asio::use_awaitable);
            first.emplace();
        } else {
            c.async_request(ask{slow}.body(one).may_repeat(), [&](error_code ec, reply const&) {
                first = ec;
            });
        }
        co_await until(io, [&] { return !s.held.empty(); });
        CHECK_FALSE(s.held.front().is_cancelled());
        s.break_connection();
        std::optional<error_code> second;
        auto const ask_second = [&] {
            c.async_request(ask{1}.body(two).may_repeat(), [&](error_code ec, reply const&) {
                second = ec;
            });
        };
        // A notice that was sent is over for the client.
        if (is_notice) ask_second();
        co_await until(io, [&] { return s.held.front().is_cancelled(); });
        // The server is still executing it.
        co_await pause(io, 100ms);
        CHECK(s.accepted == 1);
        CHECK((is_notice || !first));
        CHECK_FALSE(second);
        s.execute(std::move(s.held.front()));
        s.held.clear();
        co_await until(io, [&] { return first.has_value(); });
        CHECK_FALSE(*first);
        if (!is_notice) ask_second();
        co_await until(io, [&] { return second.has_value(); });
        CHECK_FALSE(*second);
        CHECK(s.accepted == 2);
        auto const order = is_notice ? std::vector{1, 2} : std::vector{1, 1, 2};
        CHECK(s.executed == order);
        co_await c.async_finish(awaiting);
        s.close();
    });
}

TEST_CASE(
    "without sessions a client is accepted at once, and its old requests are cancelled", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io, false);
        server& s = *kept;
        request_client c{io, s.door.local_endpoint(), eager()};
        auto const one = body_of(1);
        std::optional<error_code> first;
        c.async_request(ask{slow}.body(one).may_repeat(), [&](error_code ec, reply const&) {
            first = ec;
        });
        co_await until(io, [&] { return !s.held.empty(); });
        s.break_connection();
        co_await until(io, [&] { return first.has_value(); });
        CHECK_FALSE(*first);
        CHECK(s.executed.size() == 1);
        CHECK(s.held.front().is_cancelled());
        // Nobody waits for this answer.
        auto [late] =
            co_await s.held.front().async_answer(0, std::span<std::byte const>{}, awaiting);
        CHECK(late);
        CHECK_FALSE(s.held.front().is_cancelled());
        co_await c.async_finish(awaiting);
        s.close();
    });
}

TEST_CASE(
    "a client's newer channel ends the older one, of which nothing is executed any more", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io);
        server& s = *kept;
        s.takes_requests = false;
        request_channel old{io, options_of(1)};
        request_channel other{io, options_of(2)};
        co_await old.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        co_await other.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        auto const one = body_of(1);
        std::optional<error_code> first;
        old.async_request(1, one, [&](error_code ec, reply const&) { first = ec; });
        // It has arrived, and the server's program has not taken it.
        co_await until(io, [&] { return s.channels[0]->statistics().arrived == 1; });
        request_channel newer{io, options_of(1)};
        co_await newer.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        co_await until(io, [&] { return first.has_value(); });
        CHECK(*first);
        auto const [ec, none] = co_await s.channels[0]->async_next(awaiting);
        CHECK(ec == channel_errc::client_reconnected);
        CHECK_FALSE(none.is_valid());
        // Other clients go on.
        CHECK(s.channels[1]->is_open());
        CHECK(other.is_open());
        CHECK(newer.is_open());
        s.close();
    });
}

TEST_CASE("of a client's channels that wait to be accepted the newest is", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io);
        server& s = *kept;
        request_channel old{io, options_of(1)};
        co_await old.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        auto const one = body_of(1);
        old.async_request(slow, one, [](error_code, reply const&) {});
        co_await until(io, [&] { return !s.held.empty(); });
        request_channel second{io, options_of(1)};
        std::optional<error_code> of_second;
        second.async_connect(s.door.local_endpoint(), [&](error_code ec) { of_second = ec; });
        co_await until(io, [&] { return s.channels.size() == 2 && !s.ends.empty(); });
        CHECK(s.ends[0] == channel_errc::client_reconnected);
        request_channel third{io, options_of(1)};
        std::optional<error_code> of_third;
        third.async_connect(s.door.local_endpoint(), [&](error_code ec) { of_third = ec; });
        co_await until(io, [&] { return of_second.has_value(); });
        CHECK(*of_second == channel_errc::peer_busy);
        CHECK(is_transient(*of_second));
        CHECK(s.results.back() == channel_errc::client_reconnected);
        co_await pause(io, 50ms);
        CHECK_FALSE(of_third);
        // Another client does not wait.
        request_channel other{io, options_of(2)};
        co_await other.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        s.held.clear();
        co_await until(io, [&] { return of_third.has_value(); });
        CHECK_FALSE(*of_third);
        s.close();
    });
}

TEST_CASE("a client whose old requests are not answered in time is refused as busy", "[device]") {
    bool const is_closed = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io);
        server& s = *kept;
        s.options.messages.finish_timeout = is_closed ? std::chrono::milliseconds{60s} : 100ms;
        request_channel old{io, options_of(1)};
        co_await old.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        auto const one = body_of(1);
        old.async_request(slow, one, [](error_code, reply const&) {});
        co_await until(io, [&] { return !s.held.empty(); });
        request_channel newer{io, options_of(1)};
        std::optional<error_code> result;
        newer.async_connect(s.door.local_endpoint(), [&](error_code ec) { result = ec; });
        co_await until(io, [&] { return s.channels.size() == 2; });
        // The program closes the channel that waits to be accepted.
        if (is_closed) s.channels[1]->close();
        co_await until(io, [&] { return result.has_value() && s.results.size() == 2; });
        if (!is_closed) CHECK(*result == channel_errc::peer_busy);
        CHECK(*result);
        CHECK(
            s.results[1] ==
            (is_closed ? error_code{asio::error::operation_aborted} : error_code{errc::timed_out})
        );
        // The next attempt succeeds once the request is over.
        s.held.clear();
        request_channel again{io, options_of(1)};
        co_await again.async_connect(s.door.local_endpoint(), asio::use_awaitable);
        s.close();
    });
}

TEST_CASE("what waits to be accepted is destroyed with its context", "[device]") {
    asio::io_context clients;
    request_channel old{clients, options_of(1)};
    request_channel newer{clients, options_of(1)};
    auto const one = body_of(1);
    bool was_called = false;
    {
        asio::io_context io;
        auto const kept = started(io);
        server& s = *kept;
        bool has_come = false;
        old.async_connect(s.door.local_endpoint(), [&](error_code ec) {
            REQUIRE_FALSE(ec);
            old.async_request(slow, one, [](error_code, reply const&) {});
        });
        bool is_newer_started = false;
        while (!has_come) {
            clients.poll();
            clients.restart();
            io.poll();
            io.restart();
            if (!s.held.empty() && !std::exchange(is_newer_started, true)) {
                newer.async_connect(s.door.local_endpoint(), [&](error_code) {
                    was_called = true;
                });
            }
            has_come = s.channels.size() == 2;
        }
        io.poll();
        CHECK(s.results.size() == 1);
    }
    CHECK_FALSE(was_called);
    old.close();
    newer.close();
    clients.restart();
    clients.run();
}

TEST_CASE("an identity leaves 16 bytes for the greeting", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io);
        server& s = *kept;
        std::vector<std::byte> greeting(16, std::byte{7});
        request_channel c{io, options_of(1)};
        co_await c.async_connect(s.door.local_endpoint(), greeting, asio::use_awaitable);
        CHECK(s.channels[0]->greeting() == greeting);
        greeting.resize(17);
        request_channel d{io, options_of(2)};
        auto const [ec] = co_await d.async_connect(s.door.local_endpoint(), greeting, awaiting);
        CHECK(ec == errc::private_data_too_large);
        s.close();
    });
}

TEST_CASE("a request that is for one connection is not sent on another one", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const kept = started(io);
        server& s = *kept;
        request_client c{io, s.door.local_endpoint(), eager()};
        auto const one = body_of(1);
        reply const written = co_await c.async_request(1, one, asio::use_awaitable);
        CHECK(written.connection_number() == 1);
        reply const flushed = co_await c.async_request(
            ask{1}.body(one).may_repeat().on_connection(written.connection_number()),
            asio::use_awaitable
        );
        CHECK(flushed.connection_number() == 1);
        // One that is under way when the connection ends is not repeated.
        std::optional<error_code> under_way;
        c.async_request(
            ask{slow}.body(one).may_repeat().on_connection(written.connection_number()),
            [&](error_code ec, reply const&) { under_way = ec; }
        );
        co_await until(io, [&] { return !s.held.empty(); });
        s.break_connection();
        co_await until(io, [&] { return under_way.has_value(); });
        CHECK(*under_way);
        CHECK(*under_way != channel_errc::other_connection);
        s.held.clear();
        for (bool const is_connected : {false, true}) {
            CHECK(c.is_connected() == is_connected);
            auto const [ec, none] = co_await c.async_request(
                ask{1}.body(one).may_repeat().on_connection(written.connection_number()), awaiting
            );
            CHECK(ec == channel_errc::other_connection);
            auto const [failed] = co_await c.async_notify(
                ask{1}.body(one).may_repeat().on_connection(written.connection_number()), awaiting
            );
            CHECK(failed == channel_errc::other_connection);
            reply const next = co_await c.async_request(1, one, asio::use_awaitable);
            CHECK(next.connection_number() == 2);
        }
        CHECK(s.executed.size() == 4);
        co_await c.async_finish(awaiting);
        s.close();
    });
}
