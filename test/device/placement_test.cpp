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
