// How a connection's packets and events are marked, where polling threads run, and registrations
// with particular rights.
#include <infiniband/verbs.h>

#include <sched.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>

#include <array>
#include <cstdint>
#include <future>

#include "device/fixture.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

namespace {

ibv_global_route route_of(connection const& c) {
    ibv_qp_attr attributes{};
    ibv_qp_init_attr initial{};
    REQUIRE(ibv_query_qp(c.native_handle(), &attributes, IBV_QP_AV, &initial) == 0);
    return attributes.ah_attr.grh;
}

}  // namespace

TEST_CASE("the connecting side's traffic class holds for both directions", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options client;
        client.placement.traffic_class = std::uint8_t{26 << 2};  // DSCP AF31
        connection_options server;
        server.placement.traffic_class = std::uint8_t{46 << 2};
        test::pair p = co_await connect(io, client, server);
        CHECK(route_of(p.client).traffic_class == 26 << 2);
        CHECK(route_of(p.server).traffic_class == 26 << 2);
        co_await disconnect(p);
    });
}

TEST_CASE("without a traffic class the packets have the default", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        CHECK(route_of(p.client).traffic_class == 0);
        CHECK(route_of(p.server).traffic_class == 0);
        co_await disconnect(p);
    });
}

TEST_CASE("without the connection manager each side marks its own packets", "[device]") {
    asio::io_context io;
    connection_options marked;
    marked.placement.traffic_class = std::uint8_t{10 << 2};
    marked.placement.flow_label = 0xABCDE;
    connection a{io, marked};
    connection b{io};
    error_code ec;
    std::string const device = devices().front().name;
    queue_pair_address const of_a = a.prepare(device, {}, ec);
    REQUIRE_FALSE(ec);
    queue_pair_address const of_b = b.prepare(device, {}, ec);
    REQUIRE_FALSE(ec);
    REQUIRE_FALSE(reported([&](error_code& e) { a.establish(of_b, e); }));
    REQUIRE_FALSE(reported([&](error_code& e) { b.establish(of_a, e); }));
    CHECK(route_of(a).traffic_class == 10 << 2);
    CHECK(route_of(a).flow_label == 0xABCDE);
    CHECK(route_of(b).traffic_class == 0);
    CHECK(route_of(b).flow_label == 0);
    a.close();
    b.close();
    io.run();
}

TEST_CASE("without the connection manager the smaller path MTU holds for both", "[device]") {
    asio::io_context io;
    std::string const device = devices().front().name;
    connection_options chosen;
    chosen.placement.path_mtu_bytes = 512U;
    connection a{io, chosen};
    connection b{io};
    error_code ec;
    queue_pair_address const of_a = a.prepare(device, {}, ec);
    REQUIRE_FALSE(ec);
    queue_pair_address const of_b = b.prepare_for(device, of_a, ec);
    REQUIRE_FALSE(ec);
    CHECK(of_a.mtu == IBV_MTU_512);
    CHECK(of_b.mtu > IBV_MTU_512);
    CHECK(of_b.gid == of_a.gid);
    a.establish(of_b);
    b.establish(of_a);
    ibv_qp_attr of_path{};
    ibv_qp_init_attr initial{};
    for (connection const* c : {&a, &b}) {
        REQUIRE(ibv_query_qp(c->native_handle(), &of_path, IBV_QP_PATH_MTU, &initial) == 0);
        CHECK(of_path.path_mtu == IBV_MTU_512);
    }
    a.close();
    b.close();
    io.run();
}

TEST_CASE("without the connection manager an address of the device can be chosen", "[device]") {
    asio::io_context io;
    std::string const device = devices().front().name;
    error_code ec;
    // That of the connection manager's connections, which is an IPv4 address in this network.
    auto const here = asio::ip::make_address(device_address());
    auto const gid_of = [](asio::ip::address const& a) {
        return (a.is_v4() ? asio::ip::make_address_v6(asio::ip::v4_mapped, a.to_v4()) : a.to_v6())
            .to_bytes();
    };
    connection_options from_here;
    from_here.placement.bind_address = here;
    connection chosen{io, from_here};
    queue_pair_address const own = chosen.prepare(device, {}, ec);
    REQUIRE_FALSE(ec);
    CHECK(own.gid == gid_of(here));
    // A peer of the other family is answered from that, if the device has it.
    queue_pair_address peer;
    peer.gid = gid_of(asio::ip::make_address("fd00::99"));
    connection answering{io};
    queue_pair_address const answer = answering.prepare_for(device, peer, ec);
    REQUIRE_FALSE(ec);
    if (has_known_network()) CHECK((answer.gid[0] == 0xfd && answer.gid[1] == 0));
    connection_options from_nowhere;
    from_nowhere.placement.bind_address = asio::ip::make_address("203.0.113.1");
    connection nowhere{io, from_nowhere};
    static_cast<void>(nowhere.prepare(device, {}, ec));
    CHECK(ec == errc::invalid_option);
}

TEST_CASE("a flow label is refused with the connection manager, a long one always", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options o;
        o.placement.flow_label = 1;
        acceptor a{io, {device_address(), 0}};
        connection c{io, o};
        auto [ec] = co_await c.async_connect(a.local_endpoint(), awaiting);
        CHECK(ec == errc::invalid_option);
        o.placement.flow_label = 0x100000;
        CHECK_THROWS_AS((connection{io, o}), boost::system::system_error);
        // Likewise what else the manager chooses.
        connection_options others[3];
        others[0].placement.service_level = std::uint8_t{1};
        others[1].placement.hop_limit = std::uint8_t{1};
        others[2].placement.path_mtu_bytes = 1024U;
        for (connection_options const& each : others) {
            connection managed{io, each};
            auto const [refused] = co_await managed.async_connect(a.local_endpoint(), awaiting);
            CHECK(refused == errc::invalid_option);
        }
        others[0].placement.service_level = std::uint8_t{16};
        others[1].placement.hop_limit = std::uint8_t{0};
        others[2].placement.path_mtu_bytes = 1000U;
        for (connection_options const& each : others)
            CHECK_THROWS_AS((connection{io, each}), boost::system::system_error);
    });
}

TEST_CASE("a completion vector beyond the device's is taken modulo", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::uint32_t const vectors = devices().front().limits.completion_vectors;
        REQUIRE(vectors > 0);
        poller const chosen = poller::on(
            io, {.polling = {.mode = poll_mode::event}, .completion_vector = vectors + vectors / 2}
        );
        test::pair p = co_await connect(chosen, io);
        CHECK(p.client.limits().completion_vector == vectors / 2);
        CHECK(p.server.limits().completion_vector < vectors);
        // Its events come.
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        co_await disconnect(p);
    });
}

TEST_CASE("a poller runs on the processors that it is given", "[device]") {
    cpu_set_t mine;
    REQUIRE(sched_getaffinity(0, sizeof mine, &mine) == 0);
    unsigned last = 0;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &mine)) last = cpu;
    }
    poller const thread = poller::start({.cpus = {last}});
    std::future<cpu_set_t> allowed =
        asio::post(thread.get_executor(), asio::use_future([] {
                       cpu_set_t set;
                       return sched_getaffinity(0, sizeof set, &set) == 0 ? set : cpu_set_t{};
                   }));
    cpu_set_t expected;
    CPU_ZERO(&expected);
    CPU_SET(last, &expected);
    cpu_set_t const found = allowed.get();
    CHECK(CPU_EQUAL(&found, &expected));

    CHECK_THROWS_AS(poller::start({.cpus = {CPU_SETSIZE}}), boost::system::system_error);
    CHECK_THROWS_AS(poller::start({.cpus = {CPU_SETSIZE - 1}}), boost::system::system_error);
    // The program's own threads stay where they were.
    cpu_set_t now;
    REQUIRE(sched_getaffinity(0, sizeof now, &now) == 0);
    CHECK(CPU_EQUAL(&now, &mine));
}

TEST_CASE(
    "memory with relaxed ordering carries data, whether or not the device knows it", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{
            p.client.domain(), 4096, access_flags::local_write | access_flags::relaxed_ordering};
        registered_buffer theirs{
            p.server.domain(), 4096, access_flags::remote_write | access_flags::relaxed_ordering};
        fill(ours.bytes(), 3);
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        CHECK(same(ours.bytes(), theirs.bytes()));
        co_await disconnect(p);
    });
}

TEST_CASE("memory that need not be pinned is refused where the device cannot", "[device]") {
    asio::io_context io;
    protection_domain const domain = open_domain(io, {device_address(), 0});
    std::array<std::byte, 4096> memory{};
    error_code ec;
    memory_region const region{
        domain, memory, access_flags::local_write | access_flags::on_demand, ec};
    CHECK(region.is_open() == domain.limits().has_on_demand_paging);
    if (!region.is_open()) CHECK(ec == errc::on_demand_paging_unsupported);
}
