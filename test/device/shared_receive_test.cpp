// A shared receive queue: many connections take receives from it, each message names its
// connection, and the queue ends when it is closed.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "device/fixture.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

namespace {

connection_options sharing(shared_receive_queue const& queue) {
    connection_options o;
    o.placement.shared_receives = queue;
    return o;
}

}  // namespace

TEST_CASE(
    "many connections take their receives from one queue, and each message identifies its own",
    "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        shared_receive_options options;
        options.depth = 8;
        shared_receive_queue queue{io, options};
        CHECK_FALSE(queue.domain().is_open());
        std::vector<test::pair> pairs;
        connection_options patient;
        patient.queue_pair.rnr_retry_count = 7;
        connection_options server = sharing(queue);
        server.queue_pair.rnr_retry_count = 7;
        for (int i = 0; i < 4; ++i) pairs.push_back(co_await connect(io, patient, server));
        CHECK(queue.domain() == pairs[0].server.domain());
        CHECK(pairs[0].server.limits().receive_queue_depth == 8);
        registered_buffer into{queue.domain(), 8 * 64, access_flags::local_write};
        std::map<std::uint32_t, std::vector<std::uint32_t>> arrived;
        std::size_t total = 0;
        int wrong = 0;
        // Each receive is started again when it completes: eight serve four connections that send
        // fifty messages each.
        std::function<void(std::size_t)> receive = [&](std::size_t slot) {
            queue.async_receive(
                into.slice(slot * 64, 64),
                asio::bind_executor(
                    io,
                    [&, slot](error_code ec, receive_result r) {
                        if (ec) return;
                        std::uint32_t text = 0;
                        std::memcpy(&text, into.bytes().data() + slot * 64, sizeof text);
                        if (r.size_bytes != 64 || r.immediate != text) ++wrong;
                        arrived[r.queue_pair_number].push_back(text);
                        ++total;
                        receive(slot);
                    }
                )
            );
        };
        for (std::size_t slot = 0; slot < 8; ++slot) receive(slot);
        registered_buffer from{pairs[0].client.domain(), 4 * 64, access_flags::local_read};
        for (std::uint32_t n = 0; n < 50; ++n) {
            for (std::uint32_t i = 0; i < 4; ++i) {
                std::uint32_t const text = i * 1000 + n;
                std::memcpy(from.bytes().data() + i * 64, &text, sizeof text);
                co_await pairs[i].client.async_send_with_immediate(
                    from.slice(i * 64, 64), text, asio::use_awaitable
                );
            }
        }
        while (total < 200) co_await asio::post(io, asio::use_awaitable);
        CHECK(wrong == 0);
        CHECK(arrived.size() == 4);
        for (std::uint32_t i = 0; i < 4; ++i) {
            std::vector<std::uint32_t> const& mine = arrived[pairs[i].server.queue_pair_number()];
            REQUIRE(mine.size() == 50);
            for (std::uint32_t n = 0; n < 50; ++n) CHECK(mine[n] == i * 1000 + n);
            CHECK(pairs[i].server.statistics().bytes_received == 50 * 64);
        }
        for (test::pair& p : pairs) co_await p.client.async_disconnect(asio::use_awaitable);
        for (test::pair& p : pairs) co_await p.server.async_wait_disconnected(asio::use_awaitable);
        queue.close();
    });
}

TEST_CASE("a shared receive queue refuses what cannot be, and keeps its limits", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        shared_receive_options small;
        small.depth = 2;
        small.waiting_max = 1;
        shared_receive_queue queue{io, small};
        auto [early, r0] = co_await queue.async_receive({}, awaiting);
        CHECK(early == errc::not_connected);
        test::pair p = co_await connect(io, {}, sharing(queue));
        connection_options alone;
        alone.placement.domain = domain_sharing::isolated;
        test::pair other = co_await connect(io, alone, alone);
        registered_buffer into{queue.domain(), 64, access_flags::local_write};
        registered_buffer fixed{queue.domain(), 64, access_flags::local_read};
        registered_buffer foreign{other.server.domain(), 64, access_flags::local_write};
        auto [own, r1] = co_await p.server.async_receive(into.slice(), awaiting);
        CHECK(own == errc::receives_are_shared);
        auto [denied, r2] = co_await queue.async_receive(fixed.slice(), awaiting);
        CHECK(denied == errc::access_denied);
        auto [not_ours, r3] = co_await queue.async_receive(foreign.slice(), awaiting);
        CHECK(not_ours == errc::foreign_domain);
        std::vector<mutable_slice> const many(33, into.slice(0, 1));
        auto [too_many, r4] = co_await queue.async_receive(many, awaiting);
        CHECK(too_many == errc::too_many_segments);
        CHECK(r0.size_bytes + r1.size_bytes + r2.size_bytes + r3.size_bytes + r4.size_bytes == 0);
        int aborted = 0;
        auto const count = [&](error_code ec, receive_result) {
            aborted += ec == asio::error::operation_aborted ? 1 : 100;
        };
        CHECK_FALSE(queue.try_start(op::receive(into.slice(0, 8)), count));
        CHECK_FALSE(queue.try_start(op::receive(into.slice(8, 8)), count));
        CHECK(queue.credits() == 2);
        CHECK(queue.try_start(op::receive(into.slice(16, 8)), count) == errc::would_block);
        asio::cancellation_signal signal;
        queue.async_receive(into.slice(16, 8), asio::bind_cancellation_slot(signal.slot(), count));
        auto [full, r5] = co_await queue.async_receive(into.slice(24, 8), awaiting);
        CHECK(full == errc::queue_full);
        CHECK(r5.size_bytes == 0);
        signal.emit(asio::cancellation_type::total);
        while (aborted < 1) co_await asio::post(io, asio::use_awaitable);
        // After close(), the device owns the posted receives as long as a connection may take them.
        queue.close();
        auto [closed, r6] = co_await queue.async_receive({}, awaiting);
        CHECK(closed == errc::not_connected);
        CHECK(r6.size_bytes == 0);
        CHECK(aborted == 1);
        p.client.close();
        p.server.close();
        while (aborted < 3) co_await asio::post(io, asio::use_awaitable);
        CHECK(aborted == 3);
        connection_options both = sharing(queue);
        both.placement.domain = domain_sharing::isolated;
        CHECK_THROWS_AS(connection(io, both), boost::system::system_error);
        other.client.close();
        other.server.close();
    });
}

TEST_CASE("a connection that breaks takes no other's receives with it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        shared_receive_queue queue{io};
        test::pair bad = co_await connect(io, {}, sharing(queue));
        test::pair good = co_await connect(io, {}, sharing(queue));
        registered_buffer into{queue.domain(), 16 * 8, access_flags::local_write};
        std::vector<std::pair<error_code, receive_result>> ended;
        for (std::size_t i = 0; i < 16; ++i) {
            queue.async_receive(
                into.slice(i * 8, 8),
                asio::bind_executor(
                    io, [&](error_code ec, receive_result r) { ended.emplace_back(ec, r); }
                )
            );
        }
        registered_buffer from{bad.client.domain(), 64, access_flags::local_read};
        // Too long for every receive: one receive fails, and its connection with it.
        auto [ec, n] = co_await bad.client.async_send(from.slice(0, 64), awaiting);
        CHECK(is_fatal(ec));
        CHECK(n == 0);
        co_await bad.client.async_wait_disconnected(awaiting);
        co_await bad.server.async_wait_disconnected(awaiting);
        for (std::size_t i = 0; i < 5; ++i)
            co_await good.client.async_send(from.slice(0, 8), asio::use_awaitable);
        auto const arrived = [&] {
            return std::ranges::count_if(ended, [](auto const& e) { return !e.first; });
        };
        while (arrived() < 5) co_await asio::post(io, asio::use_awaitable);
        for (auto const& [code, r] : ended) {
            if (!code) CHECK(r.queue_pair_number == good.server.queue_pair_number());
        }
        CHECK(good.client.is_open());
        co_await good.client.async_disconnect(asio::use_awaitable);
        co_await good.server.async_wait_disconnected(awaiting);
        queue.close();
        while (ended.size() < 16) co_await asio::post(io, asio::use_awaitable);
        CHECK(ended.size() == 16);
        CHECK(queue.credits() == 0);
    });
}

TEST_CASE(
    "handlers of a shared queue run on its executor, without a hop on a shared poller", "[device]"
) {
    asio::io_context io;
    auto const on_poller = GENERATE(true, false);
    run(io, [&]() -> asio::awaitable<void> {
        poller const shared = poller::start();
        shared_receive_queue queue{on_poller ? home{shared} : home{io}};
        test::pair p = co_await connect(io, shared, {}, sharing(queue));
        std::thread::id poller_thread;
        co_await asio::co_spawn(
            shared.get_executor(),
            [&]() -> asio::awaitable<void> {
                poller_thread = std::this_thread::get_id();
                co_return;
            },
            asio::use_awaitable
        );
        std::thread::id handler_thread;
        std::atomic<bool> done{false};
        queue.async_receive({}, [&](error_code, receive_result) {
            handler_thread = std::this_thread::get_id();
            done = true;
        });
        co_await p.client.async_send({}, asio::use_awaitable);
        while (!done) co_await asio::post(io, asio::use_awaitable);
        CHECK((handler_thread == poller_thread) == on_poller);
        CHECK((handler_thread == std::this_thread::get_id()) == !on_poller);
        co_await p.client.async_disconnect(asio::use_awaitable);
        co_await p.server.async_wait_disconnected(awaiting);
        queue.close();
    });
}

TEST_CASE("an io_context that is destroyed takes a shared queue's handlers along", "[device]") {
    auto const witness = std::make_shared<int>(0);
    auto const queue_outlives = GENERATE(false, true);
    std::optional<shared_receive_queue> queue;
    {
        asio::io_context io;
        std::optional<test::pair> p;
        std::optional<registered_buffer> into;
        run(io, [&]() -> asio::awaitable<void> {
            queue.emplace(io);
            p = co_await connect(io, {}, sharing(*queue));
            into.emplace(queue->domain(), 64, access_flags::local_write);
            queue->async_receive(into->slice(), [witness](error_code, receive_result) {});
            io.stop();
        });
        CHECK(witness.use_count() > 1);
        if (!queue_outlives) queue.reset();
        into.reset();
    }
    queue.reset();
    CHECK(witness.use_count() == 1);
}
