// fixture.hpp — the virtual machine's pair: 10.0.0.1 on link v0, 10.0.1.1 on v1, and what can be done to the wire between.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "device/fixture.hpp"

namespace test {

inline void must(std::string const& command) {
    INFO(command);
    REQUIRE(std::system(command.c_str()) == 0);
}

/// What netem does to the packets that leave through links, as long as this lives.
class disturbance {
public:
    explicit disturbance(std::string const& what, std::vector<std::string> links = {"v1"}) : links_{std::move(links)} {
        for (std::string const& link : links_) must("tc qdisc add dev " + link + " root netem " + what);
    }
    ~disturbance() {
        for (std::string const& link : links_) static_cast<void>(std::system(("tc qdisc del dev " + link + " root").c_str()));
    }
    disturbance(disturbance const&) = delete;
    disturbance& operator=(disturbance const&) = delete;

private:
    std::vector<std::string> const links_;
};

/// Takes v1 down while it lives. Linux 6.1's rdma_rxe does not send connection management any more once it was asked to over a link
/// that was down, so its devices are made anew: by then no process may have them open, this one included.
class broken_link {
public:
    broken_link() { must("ip link set v1 down"); }
    ~broken_link() {
        static_cast<void>(std::system(
            "rdma link delete rxe0; rdma link delete rxe1; ip link set v1 up;"
            "ip route replace 10.0.0.1 dev v1 src 10.0.1.1 table 102;"
            "ip neigh replace 10.0.0.1 dev v1 lladdr $(cat /sys/class/net/v0/address) nud permanent;"
            "rdma link add rxe0 type rxe netdev v0; rdma link add rxe1 type rxe netdev v1"
        ));
    }
    broken_link(broken_link const&) = delete;
    broken_link& operator=(broken_link const&) = delete;
};

inline std::vector<std::string> const both_ways{"v0", "v1"};

/// A client on v0 and a server on v1.
inline asio::awaitable<pair> meet_across(asio::io_context& io, rcverbs::connection_options const& options) {
    rcverbs::acceptor_options accepting;
    accepting.connection = options;
    rcverbs::acceptor a{io, {"10.0.1.1", 0}, accepting};
    rcverbs::connection client{io, options};
    rcverbs::connection server =
        co_await (a.async_accept(asio::use_awaitable) && client.async_connect(a.local(), asio::use_awaitable));
    co_return pair{std::move(client), std::move(server)};
}

}  // namespace test
