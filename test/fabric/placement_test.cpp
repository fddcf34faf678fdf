// What only some devices have: completion vectors, memory windows, dmabufs, memory that is not
// pinned. The fabric's devices have what a test asks for.
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <set>

#include <rcverbs/experimental/window.hpp>

#include "fabric/fixture.hpp"
#include "support/bytes.hpp"
#include "support/live_blocks.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// A file in memory, in place of a dmabuf.
class memory_file {
public:
    explicit memory_file(std::size_t size_bytes)
        : fd_{::memfd_create("rcverbs", MFD_CLOEXEC)},
          size_bytes_{size_bytes} {
        REQUIRE(fd_ >= 0);
        REQUIRE(::ftruncate(fd_, static_cast<off_t>(size_bytes)) == 0);
        mapping_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        REQUIRE(mapping_ != MAP_FAILED);
    }
    memory_file(memory_file const&) = delete;
    memory_file& operator=(memory_file const&) = delete;
    ~memory_file() {
        ::munmap(mapping_, size_bytes_);
        ::close(fd_);
    }
    int descriptor() const noexcept { return fd_; }
    std::span<std::byte> bytes() const noexcept {
        return {static_cast<std::byte*>(mapping_), size_bytes_};
    }

private:
    int fd_;
    std::size_t size_bytes_;
    void* mapping_;
};

}  // namespace

TEST_CASE(
    "what two devices offer beyond the specification is used without the manager", "[fabric]"
) {
    std::array<std::uint32_t, 2> const offered{0b0110, 0b0011};
    std::size_t made = 0;
    world w{two_devices([&](fabric::device_options& d) { d.ece_options = offered.at(made++); })};
    asio::io_context io;
    auto const used = [](connection const& c) {
        ibv_ece now{};
        REQUIRE(ibv_query_ece(c.native_handle(), &now) == 0);
        return now.options;
    };
    run(w, io, [&]() -> asio::awaitable<void> {
        connection a{io};
        connection b{io};
        queue_pair_address const of_a = a.prepare("fab0");
        queue_pair_address of_b = b.prepare("fab1");
        CHECK(of_a.ece_vendor != 0);
        CHECK(of_a.ece_options == offered[0]);
        CHECK(of_b.ece_options == offered[1]);
        a.establish(of_b);
        b.establish(of_a);
        CHECK(used(a) == 0b0010);
        CHECK(used(b) == 0b0010);
        // What another vendor's device offers means nothing to this one.
        connection c{io};
        static_cast<void>(c.prepare("fab0"));
        of_b.ece_vendor = 1;
        c.establish(of_b);
        CHECK(used(c) == offered[0]);
        co_return;
    });
}

// SoftRoCE reports neither.
TEST_CASE(
    "without the manager a path has the service level and the hop limit asked for", "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.placement.service_level = std::uint8_t{3};
        options.placement.hop_limit = std::uint8_t{7};
        connection asking{io, options};
        connection other{io};
        queue_pair_address const of_asking = asking.prepare("fab0");
        queue_pair_address const of_other = other.prepare("fab1");
        asking.establish(of_other);
        other.establish(of_asking);
        auto const path = [](connection const& c) {
            ibv_qp_attr now{};
            ibv_qp_init_attr initial{};
            REQUIRE(ibv_query_qp(c.native_handle(), &now, IBV_QP_AV, &initial) == 0);
            return now.ah_attr;
        };
        CHECK(path(asking).sl == 3);
        CHECK(path(asking).grh.hop_limit == 7);
        CHECK(path(other).sl == 0);
        CHECK(path(other).grh.hop_limit == 64);
        co_return;
    });
}

TEST_CASE("connections are spread over the device's completion vectors", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) { d.completion_vectors = 4; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        std::multiset<std::uint32_t> used;
        for (int i = 0; i < 4; ++i) {
            test::pair p = co_await meet(io);
            used.insert(p.client.limits().completion_vector);
            used.insert(p.server.limits().completion_vector);
            co_await disconnect(p);
        }
        CHECK(used == std::multiset<std::uint32_t>{0, 0, 1, 1, 2, 2, 3, 3});
        test::pair p = co_await connect(home{poller::on(io, {.completion_vector = 3})});
        CHECK(p.client.limits().completion_vector == 3);
        CHECK(p.server.limits().completion_vector == 3);
        co_await disconnect(p);
    });
}

TEST_CASE("a client whose packets this port would drop is not accepted", "[fabric]") {
    std::uint32_t const server_mtu = GENERATE(1024U, 4096U);
    CAPTURE(server_mtu);
    fabric::world_options devices =
        two_devices([](fabric::device_options& d) { d.path_mtu_bytes = 2048; });
    devices.devices.back().path_mtu_bytes = server_mtu;
    world w{std::move(devices)};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {"10.0.1.1", 0}};
        connection client{io};
        auto const [accepted, connected] = co_await (
            door.async_accept(awaiting) && client.async_connect(door.local_endpoint(), awaiting)
        );
        CHECK(
            std::get<0>(accepted) ==
            (server_mtu < 2048 ? error_code{errc::path_mtu_too_large} : error_code{})
        );
        CHECK(
            std::get<0>(connected) ==
            (server_mtu < 2048 ? error_code{cm_errc::rejected_by_peer} : error_code{})
        );
    });
}

TEST_CASE("a device without memory windows reports windows_unsupported", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) { d.has_memory_windows = false; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        CHECK_FALSE(p.client.domain().limits().has_memory_windows);
        try {
            window const none{p.client};
            FAIL("there are windows");
        } catch (boost::system::system_error const& e) {
            CHECK(e.code() == errc::windows_unsupported);
        }
        co_await disconnect(p);
    });
    CHECK(is_clean(w));
}

TEST_CASE("connections of one domain share registrations for the results of atomics", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        constexpr int count = 40;
        acceptor door{stepped(io), {"10.0.0.1", 0}};
        // Each server connection has a domain of its own, and so a region.
        auto const before = w.live().memory_regions;
        std::vector<connection> clients;
        std::vector<connection> servers;
        for (int i = 0; i < count; ++i) {
            clients.emplace_back(stepped(io));
            servers.push_back(co_await (
                door.async_accept(asio::use_awaitable) &&
                clients.back().async_connect(door.local_endpoint(), asio::use_awaitable)
            ));
        }
        auto const of_clients = w.live().memory_regions - before - count;
        CHECK(of_clients >= 1);
        CHECK(of_clients <= 5);

        // Each result comes to its own connection.
        std::vector<registered_buffer> words;
        for (connection& s : servers)
            words.emplace_back(s.domain(), 8, access_flags::remote_atomic);
        std::vector<std::optional<std::uint64_t>> found(count);
        for (int round = 0; round < 3; ++round) {
            for (std::size_t i = 0; i < count; ++i) {
                found[i].reset();
                clients[i].async_fetch_add(
                    words[i].remote().word(0),
                    1000 + i,
                    [&, i](error_code ec, std::uint64_t was) {
                        if (!ec) found[i] = was;
                    }
                );
            }
            for (std::size_t i = 0; i < count; ++i) {
                while (!found[i]) co_await test::sleep(io, 1ms);
                CHECK(*found[i] == static_cast<std::uint64_t>(round) * (1000 + i));
            }
        }

        // Places are used again, and the last one takes the registration along.
        for (int i = 0; i < 5; ++i) {
            co_await (clients[7].async_disconnect(asio::use_awaitable));
            co_await servers[7].async_wait_disconnected(awaiting);
            clients[7] = connection{stepped(io)};
            servers[7] = co_await (
                door.async_accept(asio::use_awaitable) &&
                clients[7].async_connect(door.local_endpoint(), asio::use_awaitable)
            );
        }
        words.clear();
        CHECK(w.live().memory_regions - before - count == of_clients);
        for (connection& c : clients) c.close();
        for (connection& s : servers) co_await s.async_wait_disconnected(awaiting);
        for (connection& c : clients) co_await c.async_wait_disconnected(awaiting);
        clients.clear();
        servers.clear();
        while (w.live().memory_regions != before) co_await test::sleep(io, 1ms);
    });
}

TEST_CASE("what an authentication needs is gone when it is over", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor door{stepped(io), {"10.0.0.1", 0}};
        std::array<std::byte, 32> const key{};
        session_options options;
        std::array<std::size_t, 2> regions{};
        for (std::size_t& count : regions) {
            auto const before = w.live().memory_regions;
            session client{stepped(io), options};
            session server;
            auto const serve = [&]() -> asio::awaitable<void> {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                server = session{stepped(io), std::move(asked), options};
                co_await server.async_accept(asio::use_awaitable);
            };
            co_await (serve() && client.async_connect(door.local_endpoint(), asio::use_awaitable));
            co_await test::sleep(io, 1ms);
            count = w.live().memory_regions - before;
            client.close();
            co_await server.next_layer().async_wait_disconnected(awaiting);
            co_await client.next_layer().async_wait_disconnected(awaiting);
            client = {};
            server = {};
            while (w.live().memory_regions != before) co_await test::sleep(io, 1ms);
            options.authentication.keys.add("alice", key);
        }
        CHECK(regions[0] == regions[1]);
    });
}

TEST_CASE("memory of a file descriptor is registered by any addresses", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_file const file{3 * 4096};
        // Addresses of another device: this side's processor cannot use them.
        auto* const elsewhere = reinterpret_cast<std::byte*>(std::uintptr_t{0x7000'0000'0040});
        memory_region const region = memory_region::from_dmabuf(
            p.server.domain(),
            file.descriptor(),
            4096 + 64,
            {elsewhere, 4096},
            access_flags::remote_write | access_flags::remote_read
        );
        CHECK(region.remote().address() == 0x7000'0000'0040);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        fill(ours.bytes(), 5);
        co_await p.client.async_write(ours.slice(), region.remote(), asio::use_awaitable);
        CHECK(same(file.bytes().subspan(4096 + 64, 4096), ours.bytes()));
        // And as the local side of a send.
        registered_buffer inbox{p.client.domain(), 128, access_flags::local_write};
        p.client.async_receive(inbox.slice(), [](error_code ec, receive_result r) {
            CHECK_FALSE(ec);
            CHECK(r.size_bytes == 128);
        });
        co_await p.server.async_send(region.slice(1000, 128), asio::use_awaitable);
        co_await sleep(io, 1ms);
        CHECK(same(inbox.bytes(), ours.bytes().subspan(1000, 128)));
        co_await disconnect(p);
    });
    CHECK(is_clean(w));
}

TEST_CASE("a device without dmabufs reports dmabuf_unsupported", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) { d.has_dmabuf = false; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_file const file{4096};
        error_code ec;
        auto const none = memory_region::from_dmabuf(
            p.client.domain(), file.descriptor(), 0, file.bytes(), access_flags::local_write, ec
        );
        CHECK(ec == errc::dmabuf_unsupported);
        CHECK_FALSE(none.is_open());
        CHECK_THROWS_AS(
            memory_region::from_dmabuf(
                p.client.domain(), file.descriptor(), 0, file.bytes(), access_flags::local_write
            ),
            boost::system::system_error
        );
        co_await disconnect(p);
    });
}

TEST_CASE("a bad descriptor is no dmabuf", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer some{p.client.domain(), 4096, access_flags::local_write};
        error_code ec;
        auto const none = memory_region::from_dmabuf(
            p.client.domain(), -1, 0, some.bytes(), access_flags::local_write, ec
        );
        CHECK(ec == boost::system::errc::bad_file_descriptor);
        CHECK_FALSE(none.is_open());
        co_await disconnect(p);
    });
}

TEST_CASE("memory need not be pinned where the device asks for its pages", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) { d.has_on_demand_paging = true; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        CHECK(p.server.domain().limits().has_on_demand_paging);
        std::vector<std::byte> memory(4096);
        memory_region const region{
            p.server.domain(), memory, access_flags::remote_write | access_flags::on_demand};
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        fill(ours.bytes(), 6);
        co_await p.client.async_write(ours.slice(), region.remote(), asio::use_awaitable);
        CHECK(same(memory, ours.bytes()));
        co_await disconnect(p);
    });
}

TEST_CASE("a block that returns to a memory pool needs no memory", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        constexpr std::size_t size = 65536;
        {
            memory_pool pool{p.client.domain()};
            std::vector<void*> blocks;
            for (int i = 0; i < 20; ++i) blocks.push_back(pool.allocate(size, 64));
            std::optional<long> const before = live_blocks();
            // Every other one, so that each becomes a free block of its own.
            for (std::size_t i = 1; i < blocks.size(); i += 2) pool.deallocate(blocks[i], size, 64);
            std::optional<long> const after = live_blocks();
            for (std::size_t i = 0; i < blocks.size(); i += 2) pool.deallocate(blocks[i], size, 64);
            if (before) CHECK(*after <= *before);
            CHECK(pool.statistics().largest_free_bytes == pool.statistics().registered_bytes);
        }
        co_await disconnect(p);
    });
    CHECK(is_clean(w));
}
