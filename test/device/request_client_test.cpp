// A request_client: one channel for many callers, which is connected again after failures.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>
#include <rcverbs/experimental/request_client.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

request_client_options eager_client() {
    request_client_options o;
    o.channel.messages.connection.queue_pair.rnr_retry_count = 0;
    o.channel.answer_timeout = 60s;
    o.backoff.delay_first = 10ms;
    o.backoff.delay_max = 50ms;
    return o;
}

/// A server of one client at a time: it answers with the bytes of the request,
/// keeps requests of operation `kept`, and leaves, unanswered, at operation `fatal`.
struct server_of_one {
    static constexpr std::uint32_t kept = 2;
    static constexpr std::uint32_t fatal = 3;

    explicit server_of_one(asio::io_context& on) : io{on}, door{on, {device_address(), 0}} {
        accept_next();
    }

    void accept_next() {
        door.async_get_request([this](error_code ec, connection_request asked) {
            if (ec) return;
            channel = request_channel{io, std::move(asked), {}, ec};
            if (ec) return accept_next();
            ++visits;
            channel.async_accept([this](error_code failed) {
                if (!failed) take_next();
                accept_next();
            });
        });
    }
    void take_next() {
        channel.async_next([this](error_code ec, request r) {
            if (ec) return;
            ++requests;
            if (r.operation() == fatal && fatal_left > 0) {
                --fatal_left;
                return channel.close();
            }
            if (r.operation() == kept) held.push_back(std::move(r));
            else {
                auto const body =
                    std::make_shared<std::vector<std::byte>>(r.bytes().begin(), r.bytes().end());
                r.async_answer(7, *body, [body](error_code) {});
            }
            take_next();
        });
    }

    asio::io_context& io;
    acceptor door;
    request_channel channel;
    std::vector<request> held;
    int visits = 0;
    int requests = 0;
    int fatal_left = 0;
};

}  // namespace

TEST_CASE("callers of a client share one channel, which the first of them connects", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        server_of_one server{io};
        auto options = eager_client();
        int connected = 0;
        options.on_connected = [&](std::shared_ptr<request_channel> const& c) {
            CHECK(c->is_open());
            ++connected;
        };
        request_client c{io, server.door.local_endpoint(), options};
        CHECK_FALSE(c.is_connected());
        int answered = 0;
        for (std::uint8_t i = 0; i < 100; ++i) {
            auto const body = std::make_shared<std::vector<std::byte>>(pattern(100, i));
            c.async_request(ask{1}.body(*body), [&, body](error_code ec, reply const& r) {
                CHECK_FALSE(ec);
                CHECK(test::same(r.bytes(), *body));
                ++answered;
            });
        }
        CHECK(c.statistics().waiting == 100);
        while (answered < 100) co_await pause(io, 1ms);
        CHECK(connected == 1);
        CHECK(server.visits == 1);
        CHECK(c.is_connected());
        CHECK(c.domain().is_open());
        CHECK(c.statistics().connected == 1);
        co_await (
            c.async_finish(asio::use_awaitable) && server.channel.async_finish(asio::use_awaitable)
        );
        CHECK_FALSE(c.is_connected());
        auto [ec, r] = co_await c.async_request(ask{1}, awaiting);
        CHECK(ec == errc::operation_in_progress);
        server.door.close();
    });
}

TEST_CASE("a client sends notices, waiting for a channel as requests do", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<server_of_one> server{std::in_place, io};
        request_client c{io, server->door.local_endpoint(), eager_client()};
        CHECK(c.is_open());
        auto const body = pattern(100, 1);
        auto const head = pattern(10, 2);
        co_await c.async_notify(
            ask{server_of_one::kept}.head(head).body(body), asio::use_awaitable
        );
        while (server->held.empty()) co_await pause(io, 1ms);
        CHECK(test::same(server->held[0].head(), head));
        CHECK(test::same(server->held[0].bytes(), body));
        CHECK_FALSE(server->held[0].wants_answer());
        // A request with the default options is answered on the same channel.
        reply const r = co_await c.async_request(1, body, asio::use_awaitable);
        CHECK(r.status() == 7);
        CHECK(c.statistics().connected == 1);

        // Without a server it waits as long as its timeout, or until it is cancelled.
        server->held.clear();
        server->channel.close();
        server->door.close();
        while (c.is_connected()) co_await pause(io, 1ms);
        auto [late] = co_await c.async_notify(ask{1}.body(body).within(50ms), awaiting);
        CHECK(late == channel_errc::request_timed_out);
        asio::cancellation_signal stop;
        std::optional<error_code> ended;
        c.async_notify(
            ask{1}.body(body),
            asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) { ended = ec; })
        );
        stop.emit(asio::cancellation_type::total);
        while (!ended) co_await pause(io, 1ms);
        CHECK(*ended == asio::error::operation_aborted);
        c.close();
        CHECK_FALSE(c.is_open());
        auto [refused] = co_await c.async_notify(ask{1}.body(body), awaiting);
        CHECK(refused == asio::error::operation_aborted);
        CHECK_FALSE(request_client{}.is_open());
        CHECK_FALSE(request_client{}.is_connected());
    });
}

TEST_CASE("a client repeats what it may on the next channel, and fails the rest", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        server_of_one server{io};
        request_client c{io, server.door.local_endpoint(), eager_client()};
        auto const body = pattern(200, 3);
        co_await c.async_request(ask{1}.body(body), asio::use_awaitable);
        server.fatal_left = 2;
        std::optional<error_code> kept;
        std::optional<error_code> repeated;
        c.async_request(ask{2}.body(body), [&](error_code ec, reply const&) { kept = ec; });
        c.async_request(ask{2}.body(body).may_repeat(), [&](error_code ec, reply const&) {
            repeated = ec;
        });
        while (server.held.size() < 2) co_await pause(io, 1ms);
        // Twice the server leaves instead of answering.
        reply const r =
            co_await c.async_request(ask{3}.body(body).may_repeat(), asio::use_awaitable);
        CHECK(r.status() == 7);
        CHECK(test::same(r.bytes(), body));
        REQUIRE(kept);
        CHECK(is_transient(*kept));
        CHECK_FALSE(repeated);
        CHECK(server.visits == 3);
        CHECK(c.statistics().connected == 3);
        CHECK(c.statistics().repeated >= 4);
        while (server.held.size() < 4) co_await pause(io, 1ms);
        co_await server.held.back().async_answer(0, body, asio::use_awaitable);
        while (!repeated) co_await pause(io, 1ms);
        CHECK_FALSE(*repeated);
        server.held.clear();
        c.close();
        server.channel.close();
        server.door.close();
    });
}

TEST_CASE("a request that comes during a delay shortens it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<server_of_one> server;
        server.emplace(io);
        endpoint const at = server->door.local_endpoint();
        server->door.close();
        auto options = eager_client();
        options.channel.answer_timeout = 600s;
        options.backoff.delay_first = 10ms;
        options.backoff.delay_max = 600s;
        options.backoff.factor = 100;
        std::uint64_t attempts = 0;
        options.on_retry = [&](std::uint64_t count, failure const&) { attempts = count; };
        request_client c{io, std::vector{at, at}, options};
        auto const body = pattern(10, 1);
        std::optional<error_code> first;
        c.async_request(ask{1}.body(body), [&](error_code ec, reply const&) { first = ec; });
        // Delays of 10 ms, 1 s, 100 s.
        while (attempts < 6) co_await pause(io, 1ms);
        server->door = acceptor{io, at};
        server->accept_next();
        co_await pause(io, 50ms);
        CHECK_FALSE(first);
        auto const [ec, r] = co_await c.async_request(ask{1}.body(body).within(30s), awaiting);
        CHECK_FALSE(ec);
        while (!first) co_await pause(io, 1ms);
        CHECK_FALSE(*first);
        c.close();
        server->channel.close();
        server->door.close();
    });
}

TEST_CASE("requests of a client wait for a server as long as their timeouts say", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<server_of_one> server;
        server.emplace(io);
        endpoint const at = server->door.local_endpoint();
        server->door.close();
        request_client c{io, at, eager_client()};
        auto [ec, r] = co_await c.async_request(ask{1}.within(30ms), awaiting);
        CHECK(ec == channel_errc::request_timed_out);
        CHECK(c.statistics().waiting == 0);
        auto [negative, nothing] =
            co_await c.async_request(ask{1}.within(std::chrono::milliseconds::min()), awaiting);
        CHECK(negative == errc::invalid_option);
        auto [refused, none] = co_await c.async_request(ask{1}.within(0ms), awaiting);
        CHECK(refused == errc::invalid_option);

        // One is cancelled, another is answered when the server has come.
        asio::cancellation_signal stop;
        std::optional<error_code> cancelled;
        std::optional<error_code> answered;
        c.async_request(
            ask{1},
            asio::bind_cancellation_slot(
                stop.slot(), [&](error_code e, reply const&) { cancelled = e; }
            )
        );
        c.async_request(ask{1}, [&](error_code e, reply const&) { answered = e; });
        while (!c.last_failure().code) co_await pause(io, 1ms);
        stop.emit(asio::cancellation_type::total);
        CHECK_FALSE(cancelled);
        while (!cancelled) co_await pause(io, 1ms);
        CHECK(*cancelled == asio::error::operation_aborted);
        CHECK_FALSE(answered);
        acceptor next{io, at};
        std::swap(server->door, next);
        server->accept_next();
        while (!answered) co_await pause(io, 1ms);
        CHECK_FALSE(*answered);

        // One that is with the server is cancelled, too.
        cancelled.reset();
        c.async_request(
            ask{2},
            asio::bind_cancellation_slot(
                stop.slot(), [&](error_code e, reply const&) { cancelled = e; }
            )
        );
        while (server->held.empty()) co_await pause(io, 1ms);
        stop.emit(asio::cancellation_type::terminal);
        while (!cancelled) co_await pause(io, 1ms);
        CHECK(*cancelled == asio::error::operation_aborted);
        CHECK(c.is_connected());
        c.close();
        server->held.clear();
        server->channel.close();
        server->door.close();
    });
}

TEST_CASE("a client whose server finishes goes on with whoever listens next", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        // A server of its own for each channel; the first keeps requests of operation 2.
        std::vector<std::shared_ptr<request_channel>> servers;
        std::vector<request> held;
        auto const serve = [&](std::shared_ptr<request_channel> c) -> asio::awaitable<void> {
            co_await c->async_accept(asio::use_awaitable);
            for (;;) {
                auto [ec, r] = co_await c->async_next(awaiting);
                if (ec) break;
                if (r.operation() == 2) held.push_back(std::move(r));
                else co_await r.async_answer(7, {}, awaiting);
            }
            co_await c->async_finish(awaiting);
        };
        std::function<void()> const accept = [&] {
            door.async_get_request([&](error_code ec, connection_request asked) {
                if (ec) return;
                servers.push_back(std::make_shared<request_channel>(io, std::move(asked)));
                asio::co_spawn(io, serve(servers.back()), asio::detached);
                accept();
            });
        };
        accept();
        request_client c{io, door.local_endpoint(), eager_client()};
        auto const body = pattern(100, 1);
        reply const first = co_await c.async_request(ask{1}.body(body), asio::use_awaitable);
        CHECK(first.status() == 7);
        // One that the first server answers late.
        bool is_answered = false;
        c.async_request(ask{2}.body(body), [&](error_code ec, reply const& r) {
            CHECK_FALSE(ec);
            CHECK(r.status() == 9);
            is_answered = true;
        });
        while (held.empty()) co_await pause(io, 1ms);
        std::optional<error_code> finished;
        servers[0]->async_finish([&](error_code ec) { finished = ec; });
        // Not repeatable: each is sent once, to the first server or to the next.
        for (int i = 0; i < 200 && servers.size() == 1; ++i) {
            auto [ec, r] = co_await c.async_request(ask{1}.body(body), awaiting);
            CHECK_FALSE(ec);
            co_await pause(io, 1ms);
        }
        REQUIRE(servers.size() == 2);
        CHECK_FALSE(finished);
        CHECK_FALSE(is_answered);
        CHECK(c.is_connected());
        // A client that finishes waits for both servers.
        std::optional<error_code> client_finished;
        c.async_finish([&](error_code ec) { client_finished = ec; });
        co_await servers[1]->async_finish(asio::use_awaitable);
        co_await pause(io, 5ms);
        CHECK_FALSE(client_finished);
        co_await held[0].async_answer(9, {}, asio::use_awaitable);
        while (!client_finished || !finished) co_await pause(io, 1ms);
        CHECK(is_answered);
        CHECK_FALSE(*client_finished);
        CHECK_FALSE(*finished);
        CHECK(servers[0]->last_failure().reason == close_reason::completed);
        CHECK(c.statistics().connected == 2);
        CHECK(c.statistics().repeated == 0);
        door.close();
        held.clear();
    });
}

TEST_CASE("a server that finishes may answer later than its client's finish_timeout", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        server_of_one server{io};
        request_client_options options = eager_client();
        options.channel.messages.finish_timeout = 50ms;
        request_client c{io, server.door.local_endpoint(), options};
        auto const body = pattern(100, 1);
        std::optional<error_code> answered;
        c.async_request(ask{server_of_one::kept}.body(body), [&](error_code ec, reply const&) {
            answered = ec;
        });
        while (server.held.empty()) co_await pause(io, 1ms);
        std::optional<error_code> finished;
        server.channel.async_finish([&](error_code ec) { finished = ec; });
        co_await pause(io, 300ms);
        CHECK_FALSE(answered);
        CHECK_FALSE(finished);
        co_await server.held[0].async_answer(1, {}, asio::use_awaitable);
        while (!answered || !finished) co_await pause(io, 1ms);
        CHECK_FALSE(*answered);
        CHECK_FALSE(*finished);
        server.held.clear();
        server.door.close();
    });
}

TEST_CASE("a client that is closed or destroyed ends its requests", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        server_of_one server{io};
        for (bool const is_connected : {false, true}) {
            request_client c{io, server.door.local_endpoint(), eager_client()};
            int ended = 0;
            auto const count = server.held.size();
            for (int i = 0; i < 10; ++i) {
                c.async_request(ask{2}.may_repeat(), [&](error_code ec, reply const&) {
                    CHECK(ec == asio::error::operation_aborted);
                    ++ended;
                });
            }
            while (is_connected && server.held.size() < count + 10) co_await pause(io, 1ms);
            c = {};
            while (ended < 10) co_await pause(io, 1ms);
        }
        server.held.clear();
        server.channel.close();
        server.door.close();
    });
}

TEST_CASE("a context that is destroyed takes the requests of its client with it", "[device]") {
    auto const owned = std::make_shared<int>(0);
    std::optional<request_client> c;
    {
        asio::io_context io;
        // No server: the requests wait.
        c.emplace(io, endpoint{device_address(), 1}, eager_client());
        for (int i = 0; i < 3; ++i)
            c->async_request(ask{1}, [owned](error_code, reply const&) { FAIL("called"); });
        io.run_for(20ms);
    }
    CHECK(owned.use_count() == 1);
    c.reset();
}

TEST_CASE(
    "requests of a client are cancelled on one thread while replies arrive on another", "[device]"
) {
    asio::io_context serving;
    server_of_one server{serving};
    std::thread server_thread{[&] { serving.run(); }};
    {
        request_client client{own_thread, server.door.local_endpoint(), eager_client()};
        // Of this thread: the handlers, and what cancels them.
        asio::io_context mine;
        struct one {
            asio::cancellation_signal signal;
            std::uint64_t body = 0;
            bool is_cancelled = false;
            int calls = 0;
        };
        constexpr std::size_t count = 2000;
        std::deque<one> all;
        std::size_t over = 0;
        std::string wrong;
        while (over < count) {
            while (all.size() < count && all.size() - over < 8) {
                one& x = all.emplace_back();
                x.body = all.size();
                auto on_reply = [&](error_code ec, reply const& r) {
                    ++over;
                    bool const is_right =
                        ec ? x.is_cancelled && ec == asio::error::operation_aborted
                           : same(r.bytes(), std::as_bytes(std::span{&x.body, 1}));
                    if (++x.calls == 1 && is_right) return;
                    wrong += "request " + std::to_string(x.body) + ", call " +
                             std::to_string(x.calls) + (x.is_cancelled ? ", cancelled: " : ": ") +
                             ec.message() + '\n';
                };
                client.async_request(
                    1,
                    std::as_bytes(std::span{&x.body, 1}),
                    asio::bind_executor(
                        mine.get_executor(), asio::bind_cancellation_slot(x.signal.slot(), on_reply)
                    )
                );
            }
            one& victim = all[all.size() - 1 - over % std::min<std::size_t>(8, all.size())];
            if (victim.calls == 0 && !victim.is_cancelled && over % 3 != 0) {
                victim.is_cancelled = true;
                victim.signal.emit(asio::cancellation_type::total);
            }
            // The others need the processor, too.
            mine.restart();
            if (mine.poll() == 0) mine.run_one_for(1ms);
        }
        CHECK(wrong == "");
    }
    asio::post(serving, [&] {
        server.door.close();
        server.door.close_connections();
    });
    server_thread.join();
}

TEST_CASE("an error that no other attempt mends reaches the caller at once", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        server_of_one server{io};
        auto options = eager_client();
        options.channel.messages.mode = 99;
        request_client c{io, server.door.local_endpoint(), options};
        auto [ec, r] = co_await c.async_request(ask{1}.may_repeat(), awaiting);
        CHECK(ec == channel_errc::mode_mismatch);
        CHECK(c.last_failure().code == channel_errc::mode_mismatch);
        options.channel.messages.connection.timeouts.connect = 0ms;
        CHECK_THROWS_AS(
            (request_client{io, server.door.local_endpoint(), options}), boost::system::system_error
        );
        options = eager_client();
        options.channel.requests = 0;
        CHECK_THROWS_AS(
            (request_client{io, server.door.local_endpoint(), options}), boost::system::system_error
        );
        server.channel.close();
        server.door.close();
    });
}

TEST_CASE("an acceptor closes its connections, and says when there are none", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        co_await a.async_wait_idle(asio::use_awaitable);  // there are none
        std::vector<connection> accepted;
        std::vector<connection> clients;
        for (int i = 0; i < 5; ++i) {
            clients.emplace_back(io);
            auto const connect = [&]() -> asio::awaitable<void> {
                co_await clients.back().async_connect(a.local_endpoint(), asio::use_awaitable);
            };
            auto const accept = [&]() -> asio::awaitable<void> {
                accepted.push_back(co_await a.async_accept(asio::use_awaitable));
            };
            co_await (accept() && connect());
        }
        CHECK(a.statistics().connections == 5);
        std::optional<error_code> idle;
        std::optional<error_code> cancelled;
        asio::cancellation_signal stop;
        a.async_wait_idle([&](error_code ec) {
            idle = ec;
            CHECK(a.statistics().connections == 0);
        });
        a.async_wait_idle(asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) {
            cancelled = ec;
        }));
        stop.emit(asio::cancellation_type::total);
        while (!cancelled) co_await pause(io, 1ms);
        CHECK(*cancelled == asio::error::operation_aborted);
        CHECK_FALSE(idle);
        a.close();
        CHECK_FALSE(idle);
        a.close_connections();
        while (!idle) co_await pause(io, 1ms);
        CHECK_FALSE(*idle);
        for (connection const& c : accepted) CHECK_FALSE(c.is_open());
        for (connection& c : clients) c.close();
    });
}

TEST_CASE("the wait for the last connection outlives the acceptor", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<acceptor> a;
        a.emplace(io, endpoint{device_address(), 0});
        connection client{io};
        auto [server, none] = co_await (
            a->async_accept(asio::use_awaitable) &&
            client.async_connect(a->local_endpoint(), asio::as_tuple(asio::use_awaitable))
        );
        std::optional<error_code> idle;
        a->async_wait_idle([&](error_code ec) { idle = ec; });
        a.reset();
        co_await pause(io, 5ms);
        CHECK_FALSE(idle);
        server.close();
        while (!idle) co_await pause(io, 1ms);
        CHECK_FALSE(*idle);
        client.close();
    });
}

TEST_CASE("a request that was withdrawn leaves an acceptor idle", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        connection_options hasty;
        hasty.timeouts.connect = 50ms;
        connection client{io, hasty};
        auto [ec] = co_await client.async_connect(a.local_endpoint(), awaiting);
        CHECK(ec == errc::timed_out);
        client = {};
        while (a.statistics().requests == 0) co_await pause(io, 1ms);
        co_await pause(io, 50ms);
        std::optional<error_code> idle;
        std::optional<error_code> taken;
        a.async_wait_idle([&](error_code why) { idle = why; });
        a.async_get_request([&](error_code why, connection_request const&) { taken = why; });
        while (!idle) co_await pause(io, 1ms);
        CHECK_FALSE(*idle);
        CHECK_FALSE(taken);
        CHECK(a.statistics().dropped == 1);
        a.close();
        while (!taken) co_await pause(io, 1ms);
        CHECK(*taken == asio::error::operation_aborted);
    });
}

TEST_CASE("a channel that cannot be made of its options fails the connect", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        connector_options<request_channel> options;
        options.protocol.requests = 0;
        basic_connector<request_channel> to{io, a.local_endpoint(), options};
        auto [ec, made] = co_await to.async_connect(awaiting);
        CHECK(ec == errc::invalid_option);
        CHECK(to.last_failure().code == errc::invalid_option);
        options.protocol.messages.connection.timeouts.connect = 0ms;
        CHECK_THROWS_AS(
            (basic_connector<request_channel>{io, a.local_endpoint(), options}),
            boost::system::system_error
        );
        // With an error code, no form of the constructor throws.
        connection client{io};
        auto const knock = [&]() -> asio::awaitable<void> {
            auto [refused] = co_await client.async_connect(a.local_endpoint(), awaiting);
            CHECK(refused.failed());
        };
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await a.async_get_request(asio::use_awaitable);
            error_code problem;
            request_channel const c{io, std::move(asked), options.protocol, problem};
            CHECK(problem == errc::invalid_option);
        };
        co_await (knock() && answer());
        a.close();
    });
}
