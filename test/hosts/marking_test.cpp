// The traffic class of a connection's packets, read from the wire.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "hosts/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// Sees all packets on a link.
class capture {
public:
    explicit capture(char const* link)
        : socket_{::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL))} {
        REQUIRE(socket_ >= 0);
        sockaddr_ll at{};
        at.sll_family = AF_PACKET;
        at.sll_protocol = htons(ETH_P_ALL);
        at.sll_ifindex = static_cast<int>(if_nametoindex(link));
        REQUIRE(::bind(socket_, reinterpret_cast<sockaddr const*>(&at), sizeof at) == 0);
    }
    capture(capture const&) = delete;
    capture& operator=(capture const&) = delete;
    ~capture() { ::close(socket_); }

    // For each source address, in network order, and type of service: the number of RoCE v2 packets
    // of queue pairs other than the connection manager's.
    using counts = std::map<std::pair<std::uint32_t, unsigned>, int>;
    counts take() const {
        counts found;
        std::array<unsigned char, 2048> frame{};
        ssize_t size = 0;
        while ((size = ::recv(socket_, frame.data(), frame.size(), 0)) > 0) {
            constexpr std::size_t ip = 14;
            constexpr std::size_t udp = ip + 20;
            constexpr std::size_t transport_header = udp + 8;
            bool const is_roce = size > 60 && frame[12] == 8 && frame[13] == 0 &&
                                 frame[ip] == 0x45 && frame[ip + 9] == IPPROTO_UDP &&
                                 (frame[udp + 2] << 8 | frame[udp + 3]) == 4791;
            if (!is_roce) continue;
            unsigned char const* const bth = &frame[transport_header];
            unsigned const queue_pair = unsigned{bth[5]} << 16U | unsigned{bth[6]} << 8U | bth[7];
            if (queue_pair == 1) continue;
            std::uint32_t source = 0;
            std::memcpy(&source, &frame[ip + 12], sizeof source);
            ++found[{source, frame[ip + 1]}];
        }
        return found;
    }

private:
    int socket_;
};

}  // namespace

TEST_CASE("every packet of a connection has its traffic class, in both directions", "[hosts]") {
    auto const asked =
        GENERATE(std::optional<std::uint8_t>{}, std::optional<std::uint8_t>{26 << 2});
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        capture const wire{"v1"};
        connection_options options;
        options.placement.traffic_class = asked;
        test::pair p = co_await meet_across(io, options);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), 4096, access_flags::remote_write | access_flags::remote_read};
        for (int i = 0; i < 10; ++i) {
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
            co_await p.client.async_read(theirs.remote(), ours.slice(), asio::use_awaitable);
        }
        capture::counts const found = wire.take();
        unsigned const expected = asked.value_or(0);
        auto const of = [&](char const* address) {
            auto const at = found.find({inet_addr(address), expected});
            return at == found.end() ? 0 : at->second;
        };
        // At least one packet and one answer for each.
        CHECK(of("10.0.0.1") >= 20);
        CHECK(of("10.0.1.1") >= 20);
        CHECK(found.size() == 2);
        co_await disconnect(p);
    });
}
