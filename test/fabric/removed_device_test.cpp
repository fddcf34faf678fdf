// What still uses a device that was removed, after librdmacm has looked for devices again.
#include <rdma/rdma_cma.h>

#include <boost/asio/ip/tcp.hpp>

#include "fabric/fixture.hpp"

#include <cerrno>
#include <optional>

#include <rcverbs/open_domain.hpp>

using namespace rcverbs;
using namespace test;

namespace {

fabric::world_options three_devices() {
    fabric::world_options three = two_devices([](fabric::device_options&) {});
    three.devices.push_back({"fab2", {"10.0.2.1"}});
    return three;
}

/// librdmacm looks for devices, and finds that fab0 is gone.
void look_again(asio::io_context& io) {
    error_code ec;
    CHECK_FALSE(open_domain(stepped(io), "fab0", ec).is_open());
    CHECK(ec == errc::no_rdma_device);
    CHECK(open_domain(stepped(io), "fab2").is_open());
}

/// A connection from fab2 to itself.
asio::awaitable<void> connect_elsewhere(asio::io_context& io) {
    acceptor a{stepped(io), {"10.0.2.1", 0}};
    connection_options from;
    from.placement.bind_address = asio::ip::make_address("10.0.2.1");
    connection c{stepped(io), from};
    connection const s = co_await (
        a.async_accept(asio::use_awaitable) &&
        c.async_connect(a.local_endpoint(), asio::use_awaitable)
    );
    CHECK(s.domain().device_name() == "fab2");
    c.close();
}

}  // namespace

TEST_CASE("librdmacm closes a removed device as soon as nothing uses it", "[fabric]") {
    bool const has_id = GENERATE(true, false);
    CAPTURE(has_id);
    world w{three_devices()};
    rdma_event_channel* const channel = rdma_create_event_channel();
    rdma_cm_id* id = nullptr;
    REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0);
    asio::ip::tcp::endpoint address{asio::ip::make_address("10.0.0.1"), 0};
    REQUIRE(rdma_bind_addr(id, address.data()) == 0);
    int count = 0;
    ibv_context** const before = rdma_get_devices(&count);
    REQUIRE(before != nullptr);
    CHECK(count == 3);
    if (!has_id) rdma_destroy_id(id);
    w.remove_device("fab0");
    ibv_context** const after = rdma_get_devices(&count);
    REQUIRE(after != nullptr);
    CHECK(count == 2);
    CHECK(w.is_device_open("fab0"));
    rdma_free_devices(before);
    CHECK(w.is_device_open("fab0") == has_id);
    if (has_id) rdma_destroy_id(id);
    CHECK_FALSE(w.is_device_open("fab0"));
    w.remove_device("fab1");
    w.remove_device("fab2");
    errno = 0;
    CHECK(rdma_get_devices(&count) == nullptr);
    CHECK(errno == ENODEV);
    CHECK(count == 0);
    CHECK(w.is_device_open("fab1"));  // not noticed
    rdma_free_devices(after);
    rdma_destroy_event_channel(channel);
}

TEST_CASE("a removed device stays open until everything that uses it is destroyed", "[fabric]") {
    bool const handle_stays = GENERATE(true, false);
    CAPTURE(handle_stays);
    world w{three_devices()};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);  // the server is on fab0
        std::optional<registered_buffer> memory{
            std::in_place, p.server.domain(), 4096, access_flags::remote_write};
        w.remove_device("fab0");
        co_await p.server.async_wait_disconnected(awaiting);
        // Its device is another one.
        p.client.close();
        co_await p.client.async_wait_disconnected(awaiting);
        p.client = connection{};
        if (!handle_stays) p.server = connection{};
        look_again(io);
        CHECK(w.is_device_open("fab0"));
        co_await connect_elsewhere(io);
        CHECK(w.is_device_open("fab0"));
        if (handle_stays) {
            memory.reset();
            co_await connect_elsewhere(io);
            CHECK(w.is_device_open("fab0"));
            p.server = connection{};
        }
        memory.reset();
        co_await test::sleep(io, 1ms);
        co_await connect_elsewhere(io);
        CHECK_FALSE(w.is_device_open("fab0"));
    });
    CHECK(is_clean(w));
}

TEST_CASE("memory of a removed device can outlive its io_context", "[fabric]") {
    world w{three_devices()};
    std::optional<registered_buffer> memory;
    {
        asio::io_context io;
        run(w, io, [&]() -> asio::awaitable<void> {
            test::pair p = co_await meet(io);
            memory.emplace(p.server.domain(), 4096, access_flags::remote_write);
            w.remove_device("fab0");
            co_await p.server.async_wait_disconnected(awaiting);
        });
    }
    asio::io_context io;
    look_again(io);
    run(w, io, [&]() -> asio::awaitable<void> { co_await connect_elsewhere(io); });
    CHECK(w.is_device_open("fab0"));
    memory.reset();
    CHECK_FALSE(w.is_device_open("fab0"));
}

TEST_CASE("a removed device that nothing uses is closed while others are used", "[fabric]") {
    world w{three_devices()};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        {
            acceptor a{stepped(io), {"10.0.2.1", 0}};
            co_await connect_elsewhere(io);
        }
        co_await test::sleep(io, 1ms);
        w.remove_device("fab2");
        error_code ec;
        CHECK_FALSE(open_domain(stepped(io), "fab2", ec).is_open());
        CHECK(ec == errc::no_rdma_device);
        // It has no connection, so the next one notices that.
        test::pair second = co_await meet(io);
        CHECK_FALSE(w.is_device_open("fab2"));
        CHECK(p.client.is_open());
        for (connection* const each : {&p.client, &p.server, &second.client, &second.server})
            each->close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("an event from before is none of a new connection's", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        {
            test::pair p = co_await meet(io);
            p.client.close();
            p.server.close();
        }
        co_await test::sleep(io, 10ms);
        w.port_down("fab0");
        w.port_up("fab0");
        connection c{stepped(io)};
        c.prepare("fab0");
        co_await test::sleep(io, 10ms);
        CHECK(c.last_failure().code == error_code{});
        c.close();
    });
}
