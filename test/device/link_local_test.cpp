// Peers that have link-local addresses: their scope is the interface of the device.
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <boost/asio/ip/tcp.hpp>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "device/fixture.hpp"
#include "support/catch.hpp"

using namespace rcverbs;
using namespace test;
namespace ip = boost::asio::ip;

namespace {

/// The link-local address, with its scope, of the interface that has the device's address.
std::optional<ip::address_v6> link_local_address() {
    ifaddrs* list = nullptr;
    if (::getifaddrs(&list) != 0) return std::nullopt;
    std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const owner{list, ::freeifaddrs};
    ip::address_v4 const own = ip::make_address_v4(device_address());
    std::string interface;
    for (ifaddrs const* a = list; a != nullptr; a = a->ifa_next) {
        if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != AF_INET) continue;
        sockaddr_in here{};
        std::memcpy(&here, a->ifa_addr, sizeof here);
        if (ntohl(here.sin_addr.s_addr) == own.to_uint()) interface = a->ifa_name;
    }
    for (ifaddrs const* a = list; a != nullptr; a = a->ifa_next) {
        if (a->ifa_addr == nullptr || a->ifa_addr->sa_family != AF_INET6) continue;
        if (interface != a->ifa_name) continue;
        ip::tcp::endpoint e;
        std::memcpy(e.data(), a->ifa_addr, sizeof(sockaddr_in6));
        if (!e.address().to_v6().is_link_local()) continue;
        ip::address_v6 found = e.address().to_v6();
        found.scope_id(::if_nametoindex(interface.c_str()));
        return found;
    }
    return std::nullopt;
}

}  // namespace

TEST_CASE("a peer with a link-local address can be connected back to", "[device]") {
    auto const address = link_local_address();
    if (!address) {
        WARN("skipped: the device's interface has no link-local address");
        return;
    }
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        // At that address, and at the wildcard, which says nothing about the interface.
        for (ip::address const& at : {ip::address{*address}, ip::address{ip::address_v6::any()}}) {
            CAPTURE(at.to_string());
            acceptor door{io, {at, 0}};
            acceptor back{io, {*address, 0}};
            connection client{io};
            std::uint16_t const port = door.local_endpoint().port();
            auto [server, gone] = co_await (
                door.async_accept(asio::use_awaitable) &&
                client.async_connect({*address, port}, asio::as_tuple(asio::use_awaitable))
            );
            CHECK_FALSE(std::get<0>(gone));
            CHECK(server.remote_endpoint().address() == ip::address{*address});
            CHECK(server.local_endpoint().address() == ip::address{*address});
            endpoint const there{server.remote_endpoint().address(), back.local_endpoint().port()};
            connection other{io};
            auto [again, failed] = co_await (
                back.async_accept(asio::use_awaitable) &&
                other.async_connect(there, asio::as_tuple(asio::use_awaitable))
            );
            CHECK_FALSE(std::get<0>(failed));
            client.close();
            other.close();
            co_await server.async_wait_disconnected(awaiting);
            co_await again.async_wait_disconnected(awaiting);
        }
        // Without its interface the address is incomplete, and the message says so.
        ip::address_v6 bare = *address;
        bare.scope_id(0);
        try {
            acceptor const nowhere{io, {bare, 0}};
            FAIL("listening at an address without its interface");
        } catch (boost::system::system_error const& e) {
            CHECK_THAT(e.what(), ContainsSubstring("needs its network interface"));
        }
    });
}
