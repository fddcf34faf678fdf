// Tests that need a hardware device: its own counters beside the library's, and a completion queue
// that overflows.
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/asio/steady_timer.hpp>
#include <rcverbs/experimental/ring.hpp>

#include <array>
#include <thread>

#include "device/fixture.hpp"
#include "support/hardware_counter.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// The kernel reads its counters from the device only when the last reading is 10 ms old.
void wait_for_new_reading() { std::this_thread::sleep_for(20ms); }

}  // namespace

TEST_CASE("a connection's statistics agree with the device's packet counters", "[device]") {
    if (!hardware_counter("sent_pkts")) {
        WARN("skipped: the device does not count packets by that name");
        return;
    }
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 256, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 256, access_flags::remote_write};
        wait_for_new_reading();
        std::uint64_t const before = *hardware_counter("sent_pkts");
        std::uint64_t const not_ready = *hardware_counter("send_rnr_err");
        constexpr std::uint64_t count = 200;
        for (std::uint64_t i = 0; i < count; ++i)
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        wait_for_new_reading();
        std::uint64_t const sent = *hardware_counter("sent_pkts") - before;
        connection_statistics const s = p.client.statistics();
        CHECK(s.sends_posted == count);
        CHECK(s.bytes_sent == count * 256);
        // One packet and one acknowledgement each, and few retransmissions.
        CHECK(sent >= 2 * s.sends_posted);
        CHECK(sent <= 2 * s.sends_posted + s.sends_posted / 5);
        CHECK(*hardware_counter("send_rnr_err") == not_ready);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a ring's receiver is never not ready, by the device's counters", "[device]") {
    if (!hardware_counter("send_rnr_err")) {
        WARN("skipped: the device does not count refused packets by that name");
        return;
    }
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        ring_options options;
        options.ring_bytes = 4096;
        options.records = 16;
        ring_writer writer{io, options};
        ring_reader reader;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            reader = ring_reader{io, std::move(asked), options};
            co_await reader.async_accept(asio::use_awaitable);
        };
        co_await (answer() && writer.async_connect(door.local_endpoint(), asio::use_awaitable));
        wait_for_new_reading();
        std::uint64_t const before = *hardware_counter("send_rnr_err");
        constexpr int records = 3000;  // many times around, with a reader that is slower at times
        auto const write = [&]() -> asio::awaitable<void> {
            std::vector<std::byte> const record(40);
            for (int i = 0; i < records; ++i)
                co_await writer.async_write(std::span{record}, asio::use_awaitable);
        };
        auto const read = [&]() -> asio::awaitable<void> {
            asio::steady_timer pause{io};
            for (int i = 0; i < records; ++i) {
                if (i % 500 == 0) {
                    pause.expires_after(5ms);
                    co_await pause.async_wait(asio::use_awaitable);
                }
                co_await reader.async_read(asio::use_awaitable);
            }
        };
        co_await (write() && read());
        wait_for_new_reading();
        CHECK(*hardware_counter("send_rnr_err") == before);
        auto const drain = [&]() -> asio::awaitable<void> {
            auto const [ec, none] = co_await reader.async_read(awaiting);
            CHECK(ec == asio::error::eof);
        };
        co_await (writer.async_finish(asio::use_awaitable) && drain());

        // The counter counts: a message without a receive.
        test::pair p = co_await connect(io);
        registered_buffer const ours{p.client.domain(), 256, access_flags::local_write};
        p.client.async_send(ours.slice(0, 64), [](error_code, std::size_t) {});
        for (;;) {
            wait_for_new_reading();
            if (*hardware_counter("send_rnr_err") > before) break;
            asio::steady_timer pause{io, 1ms};
            co_await pause.async_wait(asio::use_awaitable);
        }
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("SoftRoCE reports dmabuf_unsupported", "[device]") {
    asio::io_context io;
    protection_domain const domain = open_domain(io, {device_address(), 0});
    if (devices().front().name.find("rxe") == std::string::npos) {
        WARN("skipped: the device is not SoftRoCE");
        return;
    }
    int const fd = ::memfd_create("rcverbs", MFD_CLOEXEC);
    REQUIRE(fd >= 0);
    std::array<std::byte, 4096> memory{};
    error_code ec;
    auto const none =
        memory_region::from_dmabuf(domain, fd, 0, memory, access_flags::local_write, ec);
    ::close(fd);
    CHECK(ec == errc::dmabuf_unsupported);
    CHECK_FALSE(none.is_open());
}

TEST_CASE(
    "a completion queue that overflows ends its connection, although no completion reports it",
    "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 16;
        options.queue_pair.receive_queue_depth = 16;
        test::pair p = co_await connect(io, options, options);
        // Bypasses the library's accounting. Nothing polls meanwhile, since this thread does not
        // run the io_context.
        ibv_qp* const qp = p.client.native_handle();
        int posted = 0;
        for (int i = 0; i < 2000 && posted < 1000; ++i) {
            ibv_send_wr nothing{};
            nothing.wr_id = ~std::uint64_t{0} >> 2;  // not one of the library's ids
            nothing.opcode = IBV_WR_RDMA_WRITE;
            nothing.send_flags = IBV_SEND_SIGNALED;
            ibv_send_wr* bad = nullptr;
            if (ibv_post_send(qp, &nothing, &bad) == 0) {
                ++posted;
            } else {
                std::this_thread::sleep_for(1ms);
            }
        }
        INFO(posted << " posted");
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        INFO(p.client.last_failure().message());
        CHECK((why == errc::completion_queue_broken || why == errc::queue_pair_failed));
        CHECK(p.client.last_failure().reason == close_reason::transport_error);
        co_await p.server.async_wait_disconnected(awaiting);
    });
}
