// Two devices with a real packet path between them, with packet loss, links that go down, and
// unreachable peers.
//
// Runs in the virtual machine with --topology pair: 10.0.0.1 on link v0, 10.0.1.1 on v1.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>

#include <boost/asio/bind_executor.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>

#include "hosts/fixture.hpp"
#include "support/bytes.hpp"
#include "support/child_process.hpp"

using namespace rcverbs;
using namespace test;

namespace {

connection_options hasty() {
    connection_options o;
    o.queue_pair.ack_timeout = 67ms;  // 2^14 x 4.096 us
    o.queue_pair.retry_count = 3;
    return o;
}

}  // namespace

TEST_CASE("a write into a black hole ends when its retries are used up", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet_across(io, hasty());
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, access_flags::remote_write};
        disturbance const hole{"loss 100%"};
        auto [ec, n] = co_await p.client.async_write(ours.slice(), theirs.remote(), awaiting);
        CHECK(ec == wc_errc::retry_exceeded);
        CHECK(n == 0);
        CHECK(p.client.last_failure().reason == close_reason::transport_error);
        p.server.close();
    });
}

// Once connected, the client's device would send the packets of a long write for ever, and its process could not
// be killed.
TEST_CASE("a client on a network interface with a larger MTU is not accepted", "[hosts]") {
    must("ip link set v1 mtu 1500");
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {"10.0.1.1", 0}};
        connection client{io};
        auto const [accepted, connected] = co_await (
            door.async_accept(awaiting) && client.async_connect(door.local_endpoint(), awaiting)
        );
        CHECK(std::get<0>(accepted) == errc::path_mtu_too_large);
        CHECK(std::get<0>(connected) == cm_errc::rejected_by_peer);
    });
    must("ip link set v1 mtu 4500");
    asio::io_context again;
    run(again, [&]() -> asio::awaitable<void> {
        test::pair const p = co_await meet_across(again, {});
        CHECK(p.client.is_open());
    });
}

TEST_CASE("connecting into a black hole ends with the deadline", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {"10.0.1.1", 0}};
        connection_options options;
        options.timeouts.connect = 500ms;
        connection c{io, options};
        disturbance const hole{"loss 100%"};
        auto [ec] = co_await c.async_connect(a.local_endpoint(), awaiting);
        CHECK(ec == errc::timed_out);
        CHECK(c.last_failure().where == step::connect);
    });
}

TEST_CASE(
    "all data arrives over a path that loses, duplicates, delays and reorders packets", "[hosts]"
) {
    auto const what = GENERATE(
        std::string{"loss 2%"},
        std::string{"duplicate 10%"},
        std::string{"delay 2ms 1ms"},
        std::string{"delay 3ms reorder 30% 50%"}
    );
    INFO(what);
    asio::io_context io;
    connection_options options;
    options.queue_pair.ack_timeout = 17ms;
    options.queue_pair.retry_count = 6;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet_across(io, options);
        constexpr std::size_t size = 32768;
        registered_buffer ours{p.client.domain(), size, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), size, access_flags::remote_write | access_flags::remote_read};
        disturbance const wire{what, both_ways};
        for (int round = 0; round < 8; ++round) {
            for (std::size_t i = 0; i < size; ++i)
                ours.bytes()[i] = static_cast<std::byte>(i * 13 + static_cast<std::size_t>(round));
            std::vector<std::byte> const sent{ours.bytes().begin(), ours.bytes().end()};
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
            CHECK(test::same(theirs.bytes(), sent));
            std::ranges::fill(ours.bytes(), std::byte{0});
            co_await p.client.async_read(theirs.remote(), ours.slice(), asio::use_awaitable);
            CHECK(test::same(ours.bytes(), sent));
            // Messages, too, arrive once each and in order.
            auto const on_message = [round](error_code ec, receive_result r) {
                CHECK_FALSE(ec);
                CHECK(r.immediate == static_cast<std::uint32_t>(round));
            };
            // The handler runs here, not on the polling thread: CHECK must stay on one thread.
            p.server.async_receive(theirs.slice(0, 4), asio::bind_executor(io, on_message));
            co_await p.client.async_send_with_immediate(
                ours.slice(0, 4), static_cast<std::uint32_t>(round), asio::use_awaitable
            );
        }
        p.client.close();
        p.server.close();
        co_await p.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("two idle ends detect a cut path within worst_case_detection()", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        detect_within(options, 1s);
        test::pair p = co_await meet_across(io, options);
        // While packets pass, both connections stay open.
        asio::steady_timer timer{io, 1500ms};
        co_await timer.async_wait(asio::use_awaitable);
        REQUIRE(p.client.is_open());
        REQUIRE(p.server.is_open());
        disturbance const hole{"loss 100%", both_ways};
        auto const began = std::chrono::steady_clock::now();
        auto const ended = [&](connection& c
                           ) -> asio::awaitable<std::chrono::steady_clock::duration> {
            auto [why] = co_await c.async_wait_disconnected(awaiting);
            CHECK(why == wc_errc::retry_exceeded);
            CHECK(c.last_failure().reason == close_reason::transport_error);
            co_return std::chrono::steady_clock::now() - began;
        };
        auto const [client, server] = co_await (ended(p.client) && ended(p.server));
        // The promised time, the drain deadline, and a margin for late timers on a busy machine.
        auto const promised = worst_case_detection(options).idle + options.timeouts.drain + 1s;
        CHECK(client <= promised * slowness);
        CHECK(server <= promised * slowness);
    });
}

// The server does not notice that the path was cut: it has nothing to send.
TEST_CASE("a request that is repeated after a cut is not executed after a later one", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        request_server_options of_server;
        of_server.channel.answer_timeout = 60s;
        of_server.channel.messages.finish_timeout = 60s;
        of_server.channel.messages.connection.timeouts.connect = 60s;
        request_server server{io, {"10.0.1.1", 0}, of_server};
        std::vector<std::uint32_t> executed;
        std::optional<request> held;
        auto const execute = [&](request r) -> asio::awaitable<void> {
            executed.push_back(r.operation());
            co_await r.async_answer(0, std::span<std::byte const>{}, awaiting);
        };
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                bool is_first = true;
                for (;;) {
                    auto [ec, r] = co_await server.async_next(awaiting);
                    if (ec) break;
                    if (std::exchange(is_first, false)) held.emplace(std::move(r));
                    else co_await execute(std::move(r));
                }
            },
            asio::detached
        );
        request_client_options of_client;
        of_client.channel = of_server.channel;
        of_client.channel.messages.connection.queue_pair = hasty().queue_pair;
        request_client client{io, server.local_endpoint(), of_client};
        std::optional<error_code> first;
        std::optional<error_code> second;
        client.async_request(ask{1}.may_repeat(), [&](error_code ec, reply const&) { first = ec; });
        while (!held) co_await asio::post(io, asio::use_awaitable);
        {
            disturbance const hole{"loss 100%", both_ways};
            client.async_request(ask{2}.may_repeat(), [&](error_code ec, reply const&) {
                second = ec;
            });
            while (client.is_connected()) co_await asio::post(io, asio::use_awaitable);
        }
        while (!held->is_cancelled()) co_await asio::post(io, asio::use_awaitable);
        asio::steady_timer timer{io, 500ms};
        co_await timer.async_wait(asio::use_awaitable);
        CHECK(server.statistics().accepted == 1);
        CHECK(executed.empty());
        co_await execute(std::move(*held));
        held.reset();
        while (!first || !second) co_await asio::post(io, asio::use_awaitable);
        CHECK_FALSE(*first);
        CHECK_FALSE(*second);
        // The first execution of 1, and then its repeat and 2 in either order.
        CHECK(executed.size() == 3);
        CHECK(executed.front() == 1);
        CHECK(client.statistics().connected == 2);
        client.close();
        server.close();
    });
}

TEST_CASE("one server serves clients that come in over two devices", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options options;
        options.connection = sharing();
        acceptor a{io, {"0.0.0.0", 0}, options};
        std::vector<test::pair> all;
        for (char const* const address : {"10.0.0.1", "10.0.1.1"}) {
            connection client{io};
            connection server = co_await (
                a.async_accept(asio::use_awaitable) &&
                client.async_connect({address, a.local_endpoint().port()}, asio::use_awaitable)
            );
            CHECK(server.local_endpoint().address().to_string() == address);
            all.push_back({std::move(client), std::move(server)});
        }
        // One domain per device.
        CHECK(all[0].server.domain().native_handle() != all[1].server.domain().native_handle());
        CHECK(all[0].server.domain().native_handle() == all[1].client.domain().native_handle());
        for (test::pair& p : all) {
            registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
            registered_buffer theirs{p.server.domain(), 4096, access_flags::remote_write};
            std::ranges::fill(ours.bytes(), std::byte{7});
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
            CHECK(theirs.bytes()[4095] == std::byte{7});
        }
        // Memory of one device is invalid on the other.
        registered_buffer wrong{all[0].client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{all[1].server.domain(), 64, access_flags::remote_write};
        auto [ec, n] = co_await all[1].client.async_write(wrong.slice(), theirs.remote(), awaiting);
        CHECK(ec == errc::foreign_domain);
        for (test::pair& p : all) p.client.close();
        for (test::pair& p : all) co_await p.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a storm of three hundred clients, thirty at a time, is served to the last", "[hosts]") {
    constexpr int storm = 300;
    constexpr int at_a_time = 30;
    asio::io_context io;
    std::size_t const leaked = connection::leaked_count();
    run(io, [&]() -> asio::awaitable<void> {
        // Tests that each client is served, not how soon.
        acceptor_options accepting;
        connection_options& patient = accepting.connection;
        patient.timeouts.resolve_address = patient.timeouts.resolve_route = 60s;
        patient.timeouts.connect = accepting.request_timeout = accepting.answer_timeout = 60s;
        acceptor a{io, {"10.0.1.1", 0}, accepting};
        int served = 0;
        int done = 0;
        auto const or_fail = [](std::exception_ptr failed) {
            if (failed) std::rethrow_exception(failed);
        };
        auto const serve_one = [&](session s) -> asio::awaitable<void> {
            co_await s.async_accept(asio::use_awaitable);
            registered_buffer theirs{s.next_layer().domain(), 64, access_flags::remote_write};
            std::vector<named_region> const exposed{{"cell", theirs}};
            co_await s.async_exchange(exposed, asio::use_awaitable);
            co_await s.async_finish(asio::use_awaitable);
            CHECK(theirs.bytes()[63] == std::byte{42});
            ++served;
        };
        auto const serve_all = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < storm; ++i) {
                session s{co_await requested(a)};
                asio::co_spawn(io, serve_one(std::move(s)), or_fail);
            }
        };
        auto const client = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < storm / at_a_time; ++i) {
                session s{connection{io, accepting.connection}};
                co_await s.async_connect(a.local_endpoint(), asio::use_awaitable);
                std::vector<named_region> const nothing;
                peer_regions const there = co_await s.async_exchange(nothing, asio::use_awaitable);
                registered_buffer ours{s.next_layer().domain(), 64, access_flags::local_read};
                std::ranges::fill(ours.bytes(), std::byte{42});
                co_await s.next_layer().async_write(ours.slice(), there[0], asio::use_awaitable);
                co_await s.async_finish(asio::use_awaitable);
                CHECK(s.last_failure().reason == close_reason::completed);
                ++done;
            }
        };
        asio::co_spawn(io, serve_all(), or_fail);
        for (int i = 0; i < at_a_time; ++i) {
            asio::co_spawn(io, client(), or_fail);
        }
        asio::steady_timer timer{io};
        while (done < storm || served < storm) {
            timer.expires_after(50ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
        CHECK(a.statistics().requests == storm);
        CHECK(a.statistics().refused_busy == 0);
        while (a.statistics().connections > 0) {
            timer.expires_after(50ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
    });
    CHECK(connection::leaked_count() == leaked);
}

TEST_CASE("a client whose server becomes unreachable exits at the deadline", "[hosts]") {
    auto const beside = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    child_process server{
        {beside / "rdma-server", "write", "--bind", "10.0.1.1", "--hold-at", "connected"}};
    REQUIRE(server.wait_for_output(".\n"));
    std::string const before = "listening on port ";
    std::string const port =
        server.output().substr(before.size(), server.output().find('.') - before.size());
    child_process client{{beside / "rdma-client", "write", "10.0.1.1", port, "--timeout", "2s"}};
    REQUIRE(client.wait_for_output("send completed successfully."));
    disturbance const hole{"loss 100%"};
    CHECK(client.wait() == 4);  // a deadline passed
    CHECK(client.error().find("in time") != std::string::npos);
}
