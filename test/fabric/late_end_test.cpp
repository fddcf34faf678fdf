// Messages that have arrived are received, whatever has happened to the connection since.
#include <boost/asio/detached.hpp>

#include <rcverbs/message_channel.hpp>
#include <rcverbs/request_channel.hpp>

#include "fabric/fixture.hpp"

#include <optional>

using namespace rcverbs;
using namespace test;

namespace {

message_channel_options with(std::uint16_t receives) {
    message_channel_options o;
    o.receives = receives;
    o.sends = 64;
    o.slot_bytes = 512;
    return o;
}

bool has_called(world& w, std::string_view function) {
    auto const all = w.calls();
    return std::ranges::find(all, function) != all.end();
}

/// Receives until that fails.
struct receiving {
    int messages = 0;
    std::optional<error_code> end;

    asio::awaitable<void> run(message_channel& from) {
        for (;;) {
            auto const [ec, m] = co_await from.async_receive(awaiting);
            if (ec) {
                end = ec;
                co_return;
            }
            ++messages;
        }
    }
};

}  // namespace

TEST_CASE(
    "messages that were faster than the handshake are not lost when the peer leaves", "[fabric]"
) {
    world w;
    asio::io_context here;
    asio::io_context there;
    acceptor door{stepped(here), {"10.0.0.1", 0}};
    std::optional<message_channel> server;
    receiving got;
    auto const serve = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await door.async_get_request(asio::use_awaitable);
        server.emplace(stepped(here), std::move(asked), with(64));
        co_await server->async_accept(asio::use_awaitable);
        co_await got.run(*server);
        door.close();
    };
    message_channel client{stepped(there), with(64)};
    constexpr int count = 20;
    int sent = 0;
    auto const visit = [&]() -> asio::awaitable<void> {
        co_await client.async_connect(door.local_endpoint(), asio::use_awaitable);
        std::vector<std::byte> const message(100);
        for (; sent < count; ++sent) co_await client.async_send(message, 1, asio::use_awaitable);
        client.close();
    };
    asio::co_spawn(here, serve(), asio::detached);
    asio::co_spawn(there, visit(), asio::detached);
    w.run_until(there, [&] { return has_called(w, "rdma_connect"); });
    // The server's program does nothing more until the client has left.
    REQUIRE(w.run_until(here, [&] { return has_called(w, "rdma_accept"); }));
    REQUIRE(w.run(there));
    CHECK(sent == count);
    CHECK(w.run(here));
    CHECK(got.messages == count);
    CHECK(got.end == channel_errc::peer_closed_early);
}

TEST_CASE(
    "messages that wait in a long queue are not lost when the peer has finished", "[fabric]"
) {
    world w;
    asio::io_context here;
    asio::io_context there;
    acceptor door{stepped(here), {"10.0.0.1", 0}};
    std::optional<message_channel> server;
    receiving got;
    std::optional<error_code> finished;
    auto const serve = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await door.async_get_request(asio::use_awaitable);
        server.emplace(stepped(here), std::move(asked), with(1000));
        co_await server->async_accept(asio::use_awaitable);
        server->async_finish([&](error_code ec) { finished = ec; });
        co_await got.run(*server);
        door.close();
    };
    message_channel client{stepped(there), with(1000)};
    constexpr int count = 800;
    int sent = 0;
    bool goes_on = false;
    auto const visit = [&]() -> asio::awaitable<void> {
        co_await client.async_connect(door.local_endpoint(), asio::use_awaitable);
        while (!goes_on) co_await test::sleep(there, 1ms);
        std::vector<std::byte> const message(100);
        for (; sent < count; ++sent) co_await client.async_send(message, 1, asio::use_awaitable);
        co_await client.async_finish(asio::use_awaitable);
    };
    asio::co_spawn(here, serve(), asio::detached);
    asio::co_spawn(there, visit(), asio::detached);
    w.run_until(there, [&] { return has_called(w, "rdma_connect"); });
    w.run_until(here, [&] { return has_called(w, "rdma_accept"); });
    w.run_until(there, [&] { return client.is_open(); });
    w.run_until(here, [&] { return server->is_open(); });
    w.run_for(here, 10ms);  // it has said that it finishes
    goes_on = true;
    REQUIRE(w.run_until(there, [&] { return sent == count; }));
    w.run_for(there, 10ms);
    CHECK(w.run(here));
    CHECK(w.run(there));
    CHECK(got.messages == count);
    CHECK(got.end == asio::error::eof);
    CHECK(finished == error_code{});
}
