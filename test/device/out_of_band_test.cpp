// Connecting without the connection manager, and through addresses that are not a device's.
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <array>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// A device's name.
std::string some_device() {
    auto const all = devices();
    REQUIRE_FALSE(all.empty());
    return all.front().name;
}

/// Sends this side's address and receives the peer's, over a TCP socket.
asio::awaitable<queue_pair_address> swap(asio::ip::tcp::socket& s, queue_pair_address const& own) {
    auto const out = own.encode();
    co_await asio::async_write(s, asio::buffer(out), asio::use_awaitable);
    std::array<std::byte, queue_pair_address::encoded_bytes> in;
    co_await asio::async_read(s, asio::buffer(in), asio::use_awaitable);
    error_code ec;
    queue_pair_address const theirs = queue_pair_address::decode(in, ec);
    CHECK_FALSE(ec);
    co_return theirs;
}

asio::awaitable<void> meet(connection& c, asio::ip::tcp::socket& s, std::string device) {
    error_code ec;
    queue_pair_address const own = c.prepare(device, {}, ec);
    INFO(ec.message());
    REQUIRE_FALSE(ec);
    CHECK(own.queue_pair_number == c.queue_pair_number());
    queue_pair_address const theirs = co_await swap(s, own);
    error_code failed;
    c.establish(theirs, failed);
    INFO(failed.message());
    REQUIRE_FALSE(failed);
    CHECK(c.is_open());
}

}  // namespace

TEST_CASE("two sides that exchange their addresses over a TCP socket are connected", "[device]") {
    asio::io_context io;
    auto const how = GENERATE(drive::own_thread, drive::context);
    places at{io, how};
    run(io, [&]() -> asio::awaitable<void> {
        std::string const device = some_device();
        asio::ip::tcp::acceptor listening{io, {asio::ip::address_v4::loopback(), 0}};
        asio::ip::tcp::socket a{io};
        co_await a.async_connect(listening.local_endpoint(), asio::use_awaitable);
        asio::ip::tcp::socket b = co_await listening.async_accept(asio::use_awaitable);
        connection_options options;
        options.queue_pair.initiator_depth = 4;
        connection left{at(), options};
        connection right{at()};
        co_await (meet(left, a, device) && meet(right, b, device));
        CHECK(left.limits().initiator_depth == 4);
        CHECK(right.limits().responder_resources >= 4);

        registered_buffer ours{left.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{
            right.domain(),
            4096,
            access_flags::remote_write | access_flags::remote_read | access_flags::remote_atomic};
        std::ranges::fill(ours.bytes(), std::byte{42});
        co_await left.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        CHECK(theirs.bytes()[4095] == std::byte{42});
        std::uint64_t const before =
            co_await left.async_fetch_add(theirs.remote().word(0), 1, asio::use_awaitable);
        CHECK(before == 0x2a2a2a2a2a2a2a2a);
        auto const [r, sent] = co_await (
            right.async_receive(theirs.slice(0, 64), asio::use_awaitable) &&
            left.async_send_with_immediate(ours.slice(0, 5), 9, asio::use_awaitable)
        );
        CHECK(r.size_bytes == 5);
        CHECK(sent == 5);
        // Each side disconnects on its own.
        co_await left.async_disconnect(asio::use_awaitable);
        CHECK(left.last_failure().reason == close_reason::closed_locally);
        CHECK(right.is_open());
        right.close();
        auto [end] = co_await right.async_wait_disconnected(awaiting);
        CHECK_FALSE(end);
    });
}

TEST_CASE("prepare() and establish() report their errors", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        error_code ec;
        connection lost{io};
        CHECK_THROWS_AS(lost.establish({}), boost::system::system_error);
        CHECK_THROWS_AS(connection{io}.prepare("no such device"), boost::system::system_error);
        CHECK(reported([&](error_code& e) { lost.establish({}, e); }) == errc::not_connected);
        static_cast<void>(lost.prepare("no such device", {}, ec));
        CHECK(ec == errc::no_rdma_device);
        static_cast<void>(lost.prepare(some_device(), {}, ec));
        CHECK(ec == errc::already_connected);
        connection wrong{io};
        static_cast<void>(wrong.prepare(some_device(), std::uint8_t{255}, ec));
        CHECK(ec == errc::invalid_option);
        // A missing peer is detected when something is sent to it.
        connection_options hasty;
        hasty.queue_pair.ack_timeout = 4ms;
        hasty.queue_pair.retry_count = 2;
        connection lonely{io, hasty};
        queue_pair_address const own = lonely.prepare(some_device(), {}, ec);
        CHECK_FALSE(ec);
        queue_pair_address nobody = own;
        nobody.queue_pair_number = 0xFFFFF0;
        CHECK_FALSE(reported([&](error_code& e) { lonely.establish(nobody, e); }));
        auto [failed, n] = co_await lonely.async_send({}, awaiting);
        CHECK(failed == wc_errc::retry_exceeded);
    });
}

TEST_CASE(
    "an InfiniBand address on another device is refused with address_family_unsupported", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        endpoint const there = endpoint::infiniband(
            {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, 1}, 7471
        );
        CHECK(there.to_string() == "ib[fe80::200:ff:fe00:1]:7471");
        connection c{io};
        auto [ec] = co_await c.async_connect(there, awaiting);
        CHECK(ec == errc::address_family_unsupported);
        CHECK(c.last_failure().where <= step::resolve_route);
        CHECK(
            c.last_failure().message().find("use the IP address of its network interface") !=
            std::string::npos
        );
    });
}
