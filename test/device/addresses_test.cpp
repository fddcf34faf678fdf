// Addresses in the forms that getaddrinfo(3) and sockets give.
#include <boost/asio/ip/tcp.hpp>

#include <rcverbs/open_domain.hpp>

#include "device/fixture.hpp"
#include "support/catch.hpp"

using namespace rcverbs;
using namespace test;
namespace ip = boost::asio::ip;

TEST_CASE("an IPv4 address in IPv6 form is that IPv4 address", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ip::address_v4 const own = ip::make_address_v4(device_address());
        ip::address const mapped{ip::make_address_v6(ip::v4_mapped, own)};
        acceptor door{io, {mapped, 0}};
        connection client{io};
        auto [server, gone] = co_await (
            door.async_accept(asio::use_awaitable) &&
            client.async_connect(
                {mapped, door.local_endpoint().port()}, asio::as_tuple(asio::use_awaitable)
            )
        );
        CHECK_FALSE(std::get<0>(gone));
        CHECK(server.remote_endpoint().address() == ip::address{own});
        client.close();
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a domain that cannot be opened names the step and the remedy", "[device]") {
    asio::io_context io;
    try {
        static_cast<void>(open_domain(io, endpoint{"127.0.0.1", 0}));
        FAIL("the loopback interface has a device");
    } catch (boost::system::system_error const& e) {
        CHECK(e.code() == errc::no_rdma_device);
        CHECK_THAT(e.what(), StartsWith("open 127.0.0.1:0: ") && ContainsSubstring("rdma link"));
    }
}
