// The interface besides data transfer: domains before connections, events, totals, cancelling, and
// registered memory that sockets read into.
#include <boost/asio/buffer.hpp>
#include <boost/asio/local/connect_pair.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <optional>
#include <type_traits>
#include <vector>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/window.hpp>

#include "device/fixture.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// A handle is the only owner: its base cannot be copied or moved out of it, or made alone.
template <class Base, class Handle>
constexpr bool is_closed_base =
    std::is_base_of_v<Base, Handle> && !std::is_constructible_v<Base, Handle&&> &&
    !std::is_default_constructible_v<Base> && !std::is_destructible_v<Base> &&
    !std::is_polymorphic_v<Base> && std::is_nothrow_move_constructible_v<Handle>;
static_assert(is_closed_base<connection_base, connection>);
static_assert(is_closed_base<acceptor_base, acceptor>);
static_assert(is_closed_base<connector_base, connector>);
static_assert(is_closed_base<session_base, session>);
static_assert(is_closed_base<message_channel_base, message_channel>);
static_assert(is_closed_base<request_channel_base, request_channel>);
static_assert(is_closed_base<shared_receive_queue_base, shared_receive_queue>);
static_assert(is_closed_base<slot_pool_base, slot_pool>);
static_assert(is_closed_base<window_base, window>);

/// Connects `client`, and returns the acceptor's end.
asio::awaitable<connection> accepted(acceptor& a, connection& client) {
    co_return co_await (
        a.async_accept(asio::use_awaitable) &&
        client.async_connect(a.local_endpoint(), asio::use_awaitable)
    );
}

}  // namespace

TEST_CASE("a server registers its memory before it listens", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        protection_domain const domain = open_domain(io, {device_address(), 0});
        CHECK(domain == open_domain(io, domain.device_name()));
        registered_buffer blocks{domain, 4096, access_flags::remote_read};
        blocks.bytes()[4095] = std::byte{9};
        acceptor_options options;
        options.connection.placement.domain = domain;
        acceptor a{io, {device_address(), 0}, options};
        connection client{io};
        connection server = co_await accepted(a, client);
        CHECK(server.domain() == domain);
        registered_buffer into{client.domain(), 8, access_flags::local_write};
        co_await client.async_read(
            blocks.remote().slice(4088, 8), into.slice(), asio::use_awaitable
        );
        CHECK(into.bytes()[7] == std::byte{9});
        co_await client.async_disconnect(asio::use_awaitable);
        co_await server.async_wait_disconnected(asio::use_awaitable);
    });
}

TEST_CASE("a client opens the domain towards a peer before it connects", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        endpoint const nobody{device_address(), 1};
        protection_domain const domain =
            co_await async_open_domain(io, nobody, asio::use_awaitable);
        CHECK(domain == open_domain(io, endpoint{device_address(), 0}));
        test::pair p = co_await connect(io);
        CHECK(p.client.domain() == domain);
        co_await disconnect(p);
        endpoint const unreachable{"127.0.0.1", 1};
        auto const [ec, none] = co_await async_open_domain(io, unreachable, awaiting);
        CHECK(ec == errc::no_rdma_device);
        CHECK_FALSE(none.is_open());
    });
}

TEST_CASE("an object that is not used does not keep its context running", "[device]") {
    asio::io_context io;
    connection const c{io};
    session const s{connection{io}};
    message_channel const m{io};
    request_channel const r{io};
    request_client const a{io, endpoint{device_address(), 1}};
    io.poll();
    CHECK(io.stopped());
}

TEST_CASE("open_domain() without a device reports the reason", "[device]") {
    asio::io_context io;
    error_code ec;
    CHECK_FALSE(open_domain(io, std::string{"no_such_device"}, ec).is_open());
    CHECK(ec == errc::no_rdma_device);
    CHECK_FALSE(open_domain(io, endpoint{}, ec).is_open());
    CHECK(ec == errc::no_rdma_device);
    CHECK_THROWS_AS(open_domain(io, std::string{"no_such_device"}), boost::system::system_error);
    io.run();
}

TEST_CASE("cancel() aborts waiting operations and leaves posted ones", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options few;
        few.queue_pair.send_queue_depth = few.queue_pair.receive_queue_depth = 4;
        test::pair p = co_await connect(io, few, few);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        std::vector<error_code> receives;
        for (int i = 0; i < 6; ++i) {
            p.client.async_receive(ours.slice(), [&](error_code ec, receive_result) {
                receives.push_back(ec);
            });
        }
        std::optional<error_code> waited;
        p.client.async_wait_disconnected([&](error_code ec) { waited = ec; });
        p.client.cancel();
        CHECK(receives.empty());
        asio::steady_timer timer{io};
        while (receives.size() < 2 || !waited) {
            timer.expires_after(1ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
        // The two waiting receives are withdrawn; the four posted ones remain, and a message can
        // still arrive.
        CHECK(receives == std::vector<error_code>(2, asio::error::operation_aborted));
        CHECK(*waited == asio::error::operation_aborted);
        CHECK(p.client.is_open());
        p.client.cancel();
        co_await p.server.async_send({}, asio::use_awaitable);
        while (receives.size() < 3) {
            timer.expires_after(1ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
        CHECK_FALSE(receives.back());
        co_await disconnect(p);
        while (receives.size() < 6) {
            timer.expires_after(1ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
    });
}

TEST_CASE("an acceptor sums its connections' counters, and has their last failure", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options options;
        options.connection.timeouts.connect = 500ms;
        acceptor a{io, {device_address(), 0}, options};
        CHECK_FALSE(a.last_failure().code);
        std::vector<connection> servers;
        for (int i = 0; i < 3; ++i) {
            connection client{io};
            connection server = co_await accepted(a, client);
            registered_buffer into{server.domain(), 8, access_flags::local_write};
            registered_buffer from{client.domain(), 8, access_flags::local_read};
            auto [arrived, sent] = co_await (
                server.async_receive(into.slice(), awaiting) &&
                client.async_send(from.slice(), awaiting)
            );
            CHECK_FALSE(std::get<0>(arrived));
            if (i > 0) {
                co_await client.async_disconnect(asio::use_awaitable);
                co_await server.async_wait_disconnected(asio::use_awaitable);
            } else {
                servers.push_back(std::move(server));
                servers.push_back(std::move(client));
            }
        }
        // Two connections have ended, one has not.
        acceptor_statistics const now = a.statistics();
        CHECK(now.connections == 1);
        CHECK(now.of_connections.bytes_received == 24);
        CHECK(now.of_connections.operations_completed == 3);
        CHECK_FALSE(a.last_failure().code);
        servers.clear();
    });
}

TEST_CASE("memory that is mapped read-only can be sent from, and read by the peer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        std::vector<std::uint32_t> const numbers(1000, 0xC0FFEE);
        const_memory_region const ours{p.client.domain(), std::span{numbers}};
        registered_buffer theirs{p.server.domain(), 4000, access_flags::remote_write};
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        CHECK(same(theirs.bytes(), std::as_bytes(std::span{numbers})));
        // Nothing can be received there.
        static_assert(!std::is_convertible_v<decltype(ours.slice()), mutable_slices>);
        static_assert(!std::is_convertible_v<const_memory_region, mutable_slices>);
        const_slice const some = ours.slice(std::span{numbers}.subspan(10, 5));
        CHECK(some.size() == 20);
        CHECK(some.bytes().data() == ours.bytes().data() + 40);

        const_memory_region const shown{
            p.server.domain(), std::span{numbers}, access_flags::remote_read};
        registered_buffer copy{p.client.domain(), 4000, access_flags::local_write};
        co_await p.client.async_read(shown.remote(), copy.slice(), asio::use_awaitable);
        CHECK(same(copy.bytes(), std::as_bytes(std::span{numbers})));
        error_code ec;
        const_memory_region const wrong{
            p.server.domain(), std::span{numbers}, access_flags::remote_write, ec};
        CHECK(ec == boost::system::errc::invalid_argument);
        CHECK_FALSE(wrong.is_open());
        co_await disconnect(p);
    });
}

TEST_CASE("a socket reads into registered memory, and writes from it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        protection_domain const domain = open_domain(io, {device_address(), 0});
        registered_buffer pages{domain, 4096, access_flags::local_write};
        asio::local::stream_protocol::socket left{io};
        asio::local::stream_protocol::socket right{io};
        asio::local::connect_pair(left, right);
        std::vector<mutable_slice> const scattered{pages.slice(100, 3), pages.slice(0, 4)};
        co_await asio::async_write(left, asio::buffer("abcdefg", 7), asio::use_awaitable);
        co_await asio::async_read(right, scattered, asio::use_awaitable);
        CHECK(pages.bytes()[102] == std::byte{'c'});
        CHECK(pages.bytes()[3] == std::byte{'g'});
        co_await asio::async_write(right, pages.slice(0, 4), asio::use_awaitable);
        co_await asio::async_read(
            left, asio::buffer(pages), asio::transfer_exactly(4), asio::use_awaitable
        );
        CHECK(pages.bytes()[0] == std::byte{'d'});
    });
}
