// fixture.hpp — the virtual machine's two devices, 10.0.0.1 on link v0 and 10.0.1.1 on v1, and
// faults on the wire between them.
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

/// Applies netem to the packets that leave through `links`, until destruction.
class disturbance {
public:
    explicit disturbance(std::string const& what, std::vector<std::string> links = {"v1"})
        : links_{std::move(links)} {
        for (std::string const& link : links_)
            must("tc qdisc add dev " + link + " root netem " + what);
    }
    ~disturbance() {
        for (std::string const& link : links_)
            static_cast<void>(std::system(("tc qdisc del dev " + link + " root").c_str()));
    }
    disturbance(disturbance const&) = delete;
    disturbance& operator=(disturbance const&) = delete;

private:
    std::vector<std::string> const links_;
};

/// Takes v1 down until destruction. In Linux 6.1, rdma_rxe sends no more connection management
/// packets once it had to send over a link that was down, so the destructor creates the devices
/// anew: by then no process, including this one, may have them open.
class broken_link {
public:
    broken_link() { must("ip link set v1 down"); }
    ~broken_link() {
        static_cast<void>(std::system("rdma link delete rxe0; rdma link delete rxe1"));
        mend();
        static_cast<void>(std::system(
            "rdma link add rxe0 type rxe netdev v0; rdma link add rxe1 type rxe netdev v1"
        ));
    }
    /// Packets pass again. The devices remain, and with them what they have ended.
    void mend() const {
        static_cast<void>(std::system(
            "ip link set v1 up; ip route replace 10.0.0.1 dev v1 src 10.0.1.1 table 102;"
            "ip neigh replace 10.0.0.1 dev v1 lladdr $(cat /sys/class/net/v0/address) nud permanent"
        ));
    }
    broken_link(broken_link const&) = delete;
    broken_link& operator=(broken_link const&) = delete;
};

inline std::vector<std::string> const both_ways{"v0", "v1"};

/// Connects a client on v0 to a server on v1.
inline asio::awaitable<pair> meet_across(
    asio::io_context& io, rcverbs::connection_options const& options
) {
    rcverbs::acceptor_options accepting;
    accepting.connection = options;
    rcverbs::acceptor a{io, {"10.0.1.1", 0}, accepting};
    rcverbs::connection client{io, options};
    rcverbs::connection server = co_await (
        a.async_accept(asio::use_awaitable) &&
        client.async_connect(a.local_endpoint(), asio::use_awaitable)
    );
    co_return pair{std::move(client), std::move(server)};
}

}  // namespace test
