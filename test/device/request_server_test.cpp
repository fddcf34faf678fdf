// A request_server: the requests of all clients, in turn, and an end in order.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <rcverbs/experimental/request_server.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

request_server_options served() {
    request_server_options o;
    o.channel.messages.connection.queue_pair.rnr_retry_count = 0;
    o.channel.messages.finish_timeout = 60s;
    o.channel.answer_timeout = 60s;
    return o;
}

request_channel_options of_client() { return served().channel; }

endpoint here() { return {device_address(), 0}; }

// Answers with the operation + 1 and the same bytes until the server ends.
asio::awaitable<error_code> serve(request_server& s, std::vector<std::uint32_t>* order = nullptr) {
    for (;;) {
        auto [ec, r] = co_await s.async_next(awaiting);
        if (ec) co_return ec;
        if (order != nullptr) order->push_back(r.operation());
        std::uint32_t const status = r.operation() + 1;
        std::vector<std::byte> const body{r.bytes().begin(), r.bytes().end()};
        if (r.wants_answer()) co_await r.async_answer(status, std::span{body}, awaiting);
    }
}

}  // namespace

TEST_CASE("a server takes the requests of all clients, and finishes in order", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto options = served();
        options.greeting = bytes_of("welcome");
        int accepted = 0;
        std::vector<failure> left;
        options.on_accepted = [&](std::shared_ptr<request_channel> const& c) {
            CHECK(c->is_open());
            ++accepted;
        };
        options.on_left = [&](failure const& why) { left.push_back(why); };
        request_server server{io, here(), options};
        CHECK(server.is_open());
        std::optional<error_code> end;
        co_spawn(io, serve(server), [&](std::exception_ptr failed, error_code ec) {
            CHECK_FALSE(failed);
            end = ec;
        });
        std::list<request_channel> clients;
        for (std::uint32_t i = 0; i < 5; ++i) {
            auto& c = clients.emplace_back(io, of_client());
            co_await c.async_connect(server.local_endpoint(), asio::use_awaitable);
            CHECK(text_of(c.greeting()) == "welcome");
            auto const body = pattern(i * 100, i);
            reply const r = co_await c.async_request(i, std::span{body}, asio::use_awaitable);
            CHECK(r.status() == i + 1);
            CHECK(test::same(r.bytes(), body));
        }
        CHECK(accepted == 5);
        CHECK(server.statistics().clients == 5);
        CHECK(server.statistics().accepted == 5);
        // Of those that leave by themselves one does not finish.
        co_await clients.front().async_finish(asio::use_awaitable);
        clients.pop_front();
        clients.front().close();
        clients.pop_front();
        co_await until(io, [&] { return left.size() == 2; });
        CHECK(left[0].reason == close_reason::completed);
        CHECK(left[0].address.address().to_string() == device_address());
        CHECK(left[1].code == channel_errc::peer_closed_early);
        CHECK(server.last_failure().code == channel_errc::peer_closed_early);
        CHECK(server.statistics().clients == 3);

        // The others are told, and finish, too.
        for (auto& c : clients) {
            c.async_next([&c](error_code ec, request const&) {
                CHECK(ec == asio::error::eof);
                c.async_finish([](error_code failed) { CHECK_FALSE(failed); });
            });
        }
        co_await server.async_finish(asio::use_awaitable);
        CHECK_FALSE(server.is_open());
        co_await until(io, [&] { return end.has_value(); });
        CHECK(*end == asio::error::eof);
        CHECK(server.statistics().clients == 0);
        CHECK(left.size() == 5);
        // Nobody listens any more; finishing again is the same.
        request_channel late{io, of_client()};
        auto const [refused] = co_await late.async_connect(server.local_endpoint(), awaiting);
        CHECK(refused == cm_errc::rejected_no_listener);
        co_await server.async_finish(asio::use_awaitable);
        auto const [ec, none] = co_await server.async_next(awaiting);
        CHECK(ec == asio::error::eof);
    });
}

TEST_CASE("clients of a server are served in turn", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        request_server server{io, here(), served()};
        request_channel busy{io, of_client()};
        request_channel other{io, of_client()};
        co_await busy.async_connect(server.local_endpoint(), asio::use_awaitable);
        co_await other.async_connect(server.local_endpoint(), asio::use_awaitable);
        int answered = 0;
        auto const ask = [&](request_channel& c, std::uint32_t operation) {
            c.async_request(
                operation,
                std::span<std::byte const>{},
                [&](error_code ec, reply const&) {
                    CHECK_FALSE(ec);
                    ++answered;
                }
            );
        };
        for (int i = 0; i < 20; ++i) ask(busy, 1);
        co_await pause(io, 50ms);
        ask(other, 2);
        co_await pause(io, 50ms);
        std::vector<std::uint32_t> order;
        bool has_served = false;
        co_spawn(io, serve(server, &order), [&](std::exception_ptr, error_code) {
            has_served = true;
        });
        co_await until(io, [&] { return answered == 21; });
        // Before it at most one that had been taken, and one in turn.
        CHECK(std::ranges::find(order, 2U) - order.begin() <= 2);
        server.close();
        co_await until(io, [&] { return has_served; });
    });
}

TEST_CASE("a server finishes with clients that are being accepted", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        request_server server{io, here(), served()};
        std::optional<error_code> end;
        co_spawn(io, serve(server), [&](std::exception_ptr, error_code ec) { end = ec; });
        // Each finishes as soon as the server does.
        std::list<request_channel> clients;
        std::size_t finished = 0;
        std::size_t refused = 0;
        for (int i = 0; i < 20; ++i) {
            auto& c = clients.emplace_back(io, of_client());
            c.async_connect(server.local_endpoint(), [&](error_code ec) {
                if (ec) {
                    ++refused;
                    return;
                }
                c.async_next([&](error_code, request const&) {
                    c.async_finish([&](error_code failed) {
                        CHECK_FALSE(failed);
                        ++finished;
                    });
                });
            });
        }
        co_await until(io, [&] { return server.statistics().accepted >= 3; });
        co_await server.async_finish(asio::use_awaitable);
        co_await until(io, [&] { return finished + refused == clients.size(); });
        CHECK(finished >= 3);
        CHECK(server.statistics().acceptor.connections == 0);
        co_await until(io, [&] { return end.has_value(); });
        CHECK(*end == asio::error::eof);
    });
}

TEST_CASE("a server that is closed, cancelled or destroyed ends its waits", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<request_server> server;
        server.emplace(io, here(), served());
        asio::cancellation_signal stop;
        std::optional<error_code> cancelled;
        server->async_next(asio::bind_cancellation_slot(
            stop.slot(), [&](error_code ec, request const&) { cancelled = ec; }
        ));
        stop.emit(asio::cancellation_type::total);
        co_await until(io, [&] { return cancelled.has_value(); });
        CHECK(*cancelled == asio::error::operation_aborted);
        request_channel c{io, of_client()};
        co_await c.async_connect(server->local_endpoint(), asio::use_awaitable);
        std::optional<error_code> asked;
        c.async_request(1, std::span<std::byte const>{}, [&](error_code ec, reply const&) {
            asked = ec;
        });
        // A finish that is cancelled closes.
        std::optional<error_code> finished;
        server->async_finish(asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) {
            finished = ec;
        }));
        std::optional<error_code> waiting;
        co_await pause(io, 20ms);
        CHECK_FALSE(finished);
        request held = co_await server->async_next(asio::use_awaitable);
        server->async_next([&](error_code ec, request const&) { waiting = ec; });
        stop.emit(asio::cancellation_type::terminal);
        co_await until(io, [&] { return finished && waiting && asked; });
        CHECK(*finished == asio::error::operation_aborted);
        CHECK(*waiting == asio::error::operation_aborted);
        CHECK(*asked == channel_errc::peer_closed_early);
        CHECK(held.is_cancelled());
        // A destroyed one.
        server.emplace(io, here(), served());
        waiting.reset();
        server->async_next([&](error_code ec, request const&) { waiting = ec; });
        server.reset();
        co_await until(io, [&] { return waiting.has_value(); });
        CHECK(*waiting == asio::error::operation_aborted);
        CHECK_FALSE(request_server{}.is_open());
    });
}

TEST_CASE("a server's options are checked, and limit its clients", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto wrong = served();
        wrong.channel.requests = 0;
        CHECK_THROWS_AS((request_server{io, here(), wrong}), boost::system::system_error);
        wrong = served();
        wrong.greeting.resize(33);
        CHECK_THROWS_AS((request_server{io, here(), wrong}), boost::system::system_error);
        auto few = served();
        few.acceptor.connections_max = 1;
        request_server server{io, here(), few};
        request_channel first{io, of_client()};
        request_channel second{io, of_client()};
        co_await first.async_connect(server.local_endpoint(), asio::use_awaitable);
        auto const [ec] = co_await second.async_connect(server.local_endpoint(), awaiting);
        CHECK(ec == cm_errc::rejected_by_peer);
        server.close();
    });
}

TEST_CASE("a context that is destroyed takes its server with it", "[device]") {
    bool was_called = false;
    std::optional<request_server> server;
    {
        asio::io_context io;
        server.emplace(io, here(), served());
        server->async_next([&](error_code, request const&) { was_called = true; });
        server->async_finish([&](error_code) { was_called = true; });
        io.poll_one();
    }
    CHECK_FALSE(was_called);
    server->close();
}
