// Which address of a device a connection without the connection manager has.
#include "verbs/device.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace device_address_test {

using rcverbs::verbs::gid_bytes;
using rcverbs::verbs::worth_of;

namespace {

gid_bytes ipv4() {
    gid_bytes g{};
    g[10] = g[11] = 0xff;
    g[12] = 10;
    g[15] = 1;
    return g;
}
gid_bytes ipv6() {
    gid_bytes g{};
    g[0] = 0xfd;
    g[15] = 1;
    return g;
}
gid_bytes link_local() {
    gid_bytes g{};
    g[0] = 0xfe;
    g[1] = 0x80;
    g[15] = 1;
    return g;
}

struct candidate {
    std::string name;
    gid_bytes gid;
    bool is_roce_v1;
};

// Their names from best to worst.
std::vector<std::string> order_for(std::optional<gid_bytes> const& peer) {
    std::vector<candidate> all{
        {"link-local v1", link_local(), true},
        {"link-local", link_local(), false},
        {"IPv4 v1", ipv4(), true},
        {"IPv4", ipv4(), false},
        {"IPv6 v1", ipv6(), true},
        {"IPv6", ipv6(), false}};
    std::ranges::sort(all, std::greater{}, [&](candidate const& c) {
        return worth_of(c.gid, c.is_roce_v1, peer);
    });
    std::vector<std::string> names;
    for (candidate const& each : all) names.push_back(each.name);
    return names;
}

}  // namespace

TEST_CASE("an address is chosen by RoCE's version, then by the peer's family", "[device-address]") {
    using names = std::vector<std::string>;
    CHECK(
        order_for({}) == names{"IPv4", "IPv6", "link-local", "IPv4 v1", "IPv6 v1", "link-local v1"}
    );
    CHECK(order_for(ipv4()) == order_for({}));
    CHECK(
        order_for(ipv6()) ==
        names{"IPv6", "IPv4", "link-local", "IPv6 v1", "IPv4 v1", "link-local v1"}
    );
    CHECK(
        order_for(link_local()) ==
        names{"link-local", "IPv4", "IPv6", "link-local v1", "IPv4 v1", "IPv6 v1"}
    );
    CHECK(worth_of({}, false, {}) == 0);
    CHECK(worth_of({}, false, gid_bytes{}) == 0);
    CHECK(worth_of(link_local(), true, {}) > 0);
}

TEST_CASE("an MTU is one of five numbers", "[device-address]") {
    using rcverbs::verbs::encode_mtu;
    CHECK(encode_mtu(256) == 1);
    CHECK(encode_mtu(1024) == 3);
    CHECK(encode_mtu(4096) == 5);
    for (std::uint32_t const none : {0U, 1U, 255U, 1000U, 2049U, 8192U, ~0U})
        CHECK(encode_mtu(none) == 0);
}

}  // namespace device_address_test
