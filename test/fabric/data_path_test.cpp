// How operations become work requests, observed at the device.
#include <rcverbs/experimental/ring.hpp>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>

#include <array>
#include <cerrno>

#include "fabric/fixture.hpp"
#include "support/live_blocks.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

TEST_CASE("small sends and writes go inline, others quietly do not", "[fabric]") {
    struct row {
        std::uint32_t asked;
        std::uint32_t granted;
    };
    // The default device accepts 256 inline bytes; the library halves a larger request until the
    // device accepts it.
    row const r = GENERATE(row{0, 0}, row{64, 64}, row{256, 256}, row{300, 150}, row{4096, 256});
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.inline_bytes_max = r.asked;
        test::pair p = co_await meet(io, options);
        CHECK(p.client.limits().inline_bytes_max == r.granted);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), 4096, access_flags::remote_write | access_flags::remote_read};
        for (std::size_t i = 0; i < ours.size(); ++i)
            ours.bytes()[i] = static_cast<std::byte>(i * 7 + 1);
        auto const inlined = [&] { return w.counters("fab1").inline_requests; };
        for (std::size_t const size :
             {std::size_t{1},
              std::size_t{r.granted},
              std::size_t{r.granted} + 1,
              std::size_t{4096}}) {
            if (size == 0) continue;
            std::uint64_t const before = inlined();
            co_await p.client.async_write(
                ours.slice(0, size), theirs.remote().slice(0, size), asio::use_awaitable
            );
            CHECK(inlined() - before == (size <= r.granted ? 1U : 0U));
            CHECK(std::ranges::equal(ours.bytes().first(size), theirs.bytes().first(size)));
        }
        std::uint64_t const before = inlined();
        co_await p.client.async_write({}, {}, awaiting);
        co_await p.client.async_read(
            theirs.remote().slice(0, 1), ours.slice(0, 1), asio::use_awaitable
        );
        CHECK(inlined() == before);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("an operation longer than the device's messages is split", "[fabric]") {
    // The devices enforce this limit.
    world w{two_devices([](fabric::device_options& d) { d.message_bytes_max = 4096; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        std::size_t const size = 10 * 4096 + 5;
        registered_buffer ours{p.client.domain(), size, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), size, access_flags::remote_write | access_flags::remote_read};
        fill(ours.bytes(), 1);
        connection_statistics const before = p.client.statistics();
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        connection_statistics const after = p.client.statistics();
        CHECK(same(ours.bytes(), theirs.bytes()));
        CHECK(after.sends_posted - before.sends_posted == 11);
        CHECK(after.sends_signalled - before.sends_signalled == 1);
        CHECK(after.doorbells - before.doorbells == 1);
        fill(theirs.bytes(), 2);
        co_await p.client.async_read(theirs.remote(), ours.slice(), asio::use_awaitable);
        CHECK(same(ours.bytes(), theirs.bytes()));
        auto [refused, n] = co_await p.client.async_send(ours.slice(0, 4097), awaiting);
        CHECK(refused == errc::message_too_large);
        CHECK(n == 0);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("work that a full device rejects waits, in order, and is not lost", "[fabric]") {
    std::size_t const size = GENERATE(1U, 20U);
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, access_flags::remote_write};
        fill(ours.bytes(), 1);
        std::vector<int> completed;
        auto const note = [&](int i) {
            return [&, i](error_code ec, std::size_t) { completed.push_back(ec ? -1 : i); };
        };
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(0, 8), note(0));
        w.fail_call("ibv_post_send", 1, ENOMEM);
        batch b{p.client};
        for (std::size_t i = 0; i < size; ++i)
            b.add(op::write(ours.slice(i * 100, 100), theirs.remote().slice(i * 100, 100)));
        b.async_submit(note(1));
        CHECK(w.has_failed_call());
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(2048, 8), note(2));
        while (completed.size() < 3) co_await sleep(io, 10us);
        CHECK(completed == std::vector<int>{0, 1, 2});
        CHECK(same(ours.bytes().first(size * 100), theirs.bytes().first(size * 100)));
        CHECK(p.client.is_open());
        CHECK(p.client.statistics().sends_posted == size + 2);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE(
    "a work request that the device refuses fails its operation, and not the others", "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        w.fail_call("ibv_post_send", 1, EINVAL);
        auto [ec, n] = co_await p.client.async_write(ours.slice(), theirs.remote(), awaiting);
        CHECK(ec == boost::system::errc::invalid_argument);
        CHECK(n == 0);
        CHECK(p.client.is_open());
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        w.fail_call("ibv_post_recv", 1, ENOMEM);
        auto [no_room, r] = co_await p.client.async_receive(ours.slice(), awaiting);
        CHECK(no_room == boost::system::errc::not_enough_memory);
        CHECK(r.size_bytes == 0);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE(
    "a refused work request leaves those behind it in the same doorbell in their order", "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 256, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), 256, access_flags::remote_write | access_flags::remote_atomic};
        fill(ours.bytes(), 1);
        std::vector<std::pair<int, error_code>> ended;
        std::vector<std::uint64_t> words;
        std::vector<mutable_slice> const many{
            ours.slice(0, 8),
            ours.slice(8, 8),
            ours.slice(16, 8),
            ours.slice(24, 8),
            ours.slice(32, 8),
            ours.slice(40, 8)};
        auto const note = [&](int i) {
            return [&, i](error_code ec, std::size_t) { ended.emplace_back(i, ec); };
        };
        // Started in a handler, so that all work is posted with one doorbell: single work requests,
        // atomics with their result slots, and operations of several work requests.
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(0, 8), [&](auto...) {
            w.fail_call("ibv_post_send", 1, EINVAL);
            p.client.async_write(ours.slice(0, 8), theirs.remote().slice(8, 8), note(0));
            for (int i = 0; i < 2; ++i) {
                p.client.async_fetch_add(
                    theirs.remote().word(64),
                    5,
                    [&](error_code, std::uint64_t before) { words.push_back(before); }
                );
            }
            p.client.async_write(many, theirs.remote().slice(128, 48), note(1));
            p.client.async_write(ours.slice(0, 8), theirs.remote().slice(192, 8), note(2));
        });
        while (ended.size() < 3) co_await sleep(io, 10us);
        CHECK(w.has_failed_call());
        CHECK(ended[0].first == 0);
        CHECK(ended[0].second == boost::system::errc::invalid_argument);
        CHECK(ended[1] == std::pair{1, error_code{}});
        CHECK(ended[2] == std::pair{2, error_code{}});
        CHECK(words == std::vector<std::uint64_t>{0, 5});
        CHECK(same(ours.bytes().first(48), theirs.bytes().subspan(128, 48)));
        CHECK(same(ours.bytes().first(8), theirs.bytes().subspan(192, 8)));
        CHECK(p.client.is_open());
        connection_statistics const now = p.client.statistics();
        CHECK(now.operations_failed == 1);
        CHECK(now.operations_completed == 5);
        CHECK(now.sends_outstanding == 0);
        p.client.close();
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("a refused receive leaves those behind it in the same list in their order", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 256, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 256, access_flags::remote_write};
        std::vector<std::pair<int, error_code>> ended;
        std::vector<std::size_t> received;
        std::vector<mutable_slice> const two{ours.slice(64, 4), ours.slice(72, 4)};
        auto const note = [&](int i) {
            return [&, i](error_code ec, receive_result what) {
                ended.emplace_back(i, ec);
                if (!ec) received.push_back(what.size_bytes);
            };
        };
        // Started in a handler, so that all are posted as one list; one has two slices.
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(0, 8), [&](auto...) {
            w.fail_call("ibv_post_recv", 1, EINVAL);
            p.client.async_receive(ours.slice(0, 8), note(0));
            p.client.async_receive(ours.slice(8, 8), note(1));
            p.client.async_receive(two, note(2));
            p.client.async_receive(ours.slice(16, 8), note(3));
        });
        while (ended.empty()) co_await sleep(io, 10us);
        CHECK(w.has_failed_call());
        CHECK(p.client.statistics().receive_credits == 3);
        for (std::size_t i = 1; i < 4; ++i) {
            fill(theirs.bytes().first(8), static_cast<std::uint32_t>(i));
            co_await p.server.async_send(theirs.slice(0, 5 + i), asio::use_awaitable);
        }
        while (ended.size() < 4) co_await sleep(io, 10us);
        CHECK(ended[0].first == 0);
        CHECK(ended[0].second == boost::system::errc::invalid_argument);
        for (int i = 1; i < 4; ++i)
            CHECK(ended[static_cast<std::size_t>(i)] == std::pair{i, error_code{}});
        CHECK(received == std::vector<std::size_t>{6, 7, 8});
        CHECK(same(ours.bytes().subspan(16, 8), theirs.bytes().first(8)));
        connection_statistics const now = p.client.statistics();
        CHECK(now.receives_posted == 3);
        CHECK(now.receive_credits == 0);
        p.client.close();
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("what a handler starts is posted as one list, however long", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 1024, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), 1024, access_flags::remote_write | access_flags::remote_atomic};
        fill(ours.bytes(), 1);
        std::vector<int> written;
        std::vector<std::uint64_t> words;
        std::vector<error_code> received;
        std::uint64_t before = 0;
        // More than the lists have room for at first; atomics have their results in the lists' order.
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(0, 8), [&](auto...) {
            before = p.client.statistics().doorbells;
            for (int i = 0; i < 40; ++i) {
                auto const at = static_cast<std::size_t>(8 * i);
                p.client.async_write(
                    ours.slice(at, 8),
                    theirs.remote().slice(at, 8),
                    [&, i](error_code ec, std::size_t) { written.push_back(ec ? -1 : i); }
                );
                if (i % 10 != 0) continue;
                p.client.async_fetch_add(
                    theirs.remote().word(512),
                    3,
                    [&](error_code, std::uint64_t value) { words.push_back(value); }
                );
            }
            for (std::size_t i = 0; i < 30; ++i) {
                p.client.async_receive(
                    ours.slice(512 + 8 * i, 8),
                    [&](error_code ec, receive_result const&) { received.push_back(ec); }
                );
            }
        });
        while (written.size() < 40 || words.size() < 4) co_await sleep(io, 10us);
        connection_statistics const now = p.client.statistics();
        CHECK(now.doorbells == before + 1);
        CHECK(now.receive_credits == 30);
        for (int i = 0; i < 40; ++i) CHECK(written[static_cast<std::size_t>(i)] == i);
        CHECK(words == std::vector<std::uint64_t>{0, 3, 6, 9});
        CHECK(same(ours.bytes().first(320), theirs.bytes().first(320)));
        for (std::size_t i = 0; i < 30; ++i) {
            fill(theirs.bytes().subspan(600, 8), static_cast<std::uint32_t>(i));
            co_await p.server.async_send(theirs.slice(600, 8), asio::use_awaitable);
            while (received.size() <= i) co_await sleep(io, 10us);
            CHECK(same(ours.bytes().subspan(512 + 8 * i, 8), theirs.bytes().subspan(600, 8)));
        }
        for (error_code const ec : received) CHECK_FALSE(ec);
        p.client.close();
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE(
    "receives that a handler starts before it closes are over with the connection", "[fabric]"
) {
    world w;
    asio::io_context io;
    std::vector<error_code> ended;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        auto const note = [&](error_code ec, receive_result const&) { ended.push_back(ec); };
        p.client.async_receive(ours.slice(0, 8), note);
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(0, 8), [&](auto...) {
            // They are in a list that is not posted any more.
            p.client.async_receive(ours.slice(0, 8), note);
            p.client.async_receive(ours.slice(8, 8), note);
            p.client.close();
        });
        while (ended.size() < 3) co_await sleep(io, 10us);
        CHECK(p.client.statistics().receive_credits == 0);
        p.server.close();
    });
    for (error_code const ec : ended) CHECK(ec == asio::error::operation_aborted);
    CHECK(is_clean(w));
}

TEST_CASE("a list of slices may change as soon as an operation is made of it", "[fabric]") {
    // Up to four are kept in the operation, more elsewhere.
    std::size_t const count = GENERATE(2U, 4U, 5U, 9U);
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options shallow;
        shallow.queue_pair.send_queue_depth = 2;
        shallow.queue_pair.send_segments_max = 16;
        shallow.queue_pair.receive_segments_max = 16;
        test::pair p = co_await meet(io, shallow, shallow);
        std::size_t const size = count * 4;
        registered_buffer ours{p.client.domain(), 1024, access_flags::local_write};
        registered_buffer wrong{p.client.domain(), 1024, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 1024, access_flags::remote_write};
        for (std::size_t i = 0; i < 256; ++i) ours.bytes()[i] = static_cast<std::byte>(i);
        // Every second word, from the last to the first.
        auto const scattered = [&](registered_buffer const& from) {
            std::vector<mutable_slice> list;
            for (std::size_t i = count; i-- > 0;) list.push_back(from.slice(i * 8, 4));
            return list;
        };
        std::vector<std::byte> expected;
        for (mutable_slice const& each : scattered(ours))
            expected.insert(expected.end(), each.bytes().begin(), each.bytes().end());
        std::vector<mutable_slice> list = scattered(ours);
        auto later = p.client.async_write(list, theirs.remote().slice(0, size), asio::deferred);
        auto const value = op::write(list, theirs.remote().slice(256, size));
        batch both{p.client};
        both.add(value).add(op::write(list, theirs.remote().slice(512, size)));
        list = scattered(wrong);
        int done = 0;
        auto const count_it = [&](error_code ec, std::size_t) {
            CHECK_FALSE(ec);
            ++done;
        };
        // More than the queue takes: most of them wait.
        for (int i = 0; i < 6; ++i) p.client.async_start(value, count_it);
        both.async_submit(count_it);
        co_await std::move(later)(asio::use_awaitable);
        while (done < 7) co_await sleep(io, 1ms);
        for (std::size_t const at : {0U, 256U, 512U})
            CHECK(std::ranges::equal(theirs.bytes().subspan(at, size), expected));
        // The same for what is received.
        registered_buffer into{p.server.domain(), 1024, access_flags::local_write};
        registered_buffer unused{p.server.domain(), 1024, access_flags::local_write};
        std::vector<mutable_slice> places = scattered(into);
        auto receiving = p.server.async_receive(places, asio::deferred);
        places = scattered(unused);
        co_await (
            std::move(receiving)(asio::use_awaitable) &&
            p.client.async_send(scattered(ours), asio::use_awaitable)
        );
        for (std::size_t i = 0; i < count; ++i)
            CHECK(std::ranges::equal(into.bytes().subspan(i * 8, 4), ours.bytes().subspan(i * 8, 4))
            );
        CHECK(std::ranges::count(unused.bytes(), std::byte{0}) == 1024);
        p.client.close();
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE(
    "an operation that the device refuses after its first part ends the connection, and all "
    "handlers run",
    "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options shallow;
        shallow.queue_pair.send_queue_depth = 2;
        shallow.queue_pair.send_segments_max = 1;
        test::pair p = co_await meet(io, shallow);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        // Three work requests where only two slots are free.
        std::vector<mutable_slice> const three{
            ours.slice(0, 8), ours.slice(8, 8), ours.slice(16, 8)};
        int told = 0;
        int failed = 0;
        auto const note = [&](error_code ec, std::size_t) {
            ++told;
            failed += ec ? 1 : 0;
        };
        w.fail_call("ibv_post_send", 2, EINVAL);
        p.client.async_write(three, theirs.remote().slice(0, 24), note);
        p.client.async_write(ours.slice(0, 8), theirs.remote().slice(32, 8), note);
        auto [ec] = co_await p.client.async_wait_disconnected(awaiting);
        CHECK(ec == boost::system::errc::invalid_argument);
        CHECK(told == 2);
        CHECK(failed == 2);
        connection_statistics const now = p.client.statistics();
        CHECK(now.operations_started == now.operations_failed);
        CHECK(p.client.last_failure().reason == close_reason::transport_error);
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("a send with invalidate invalidates the key, and the receive reports it", "[fabric]") {
    // Soft iWARP refuses one that is inline.
    bool const is_soft_iwarp = GENERATE(false, true);
    world w{two_devices([&](fabric::device_options& d) { d.is_soft_iwarp = is_soft_iwarp; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::local_write};
        plain_window const open{p.server, theirs.bytes()};
        co_await sleep(io, 1ms);
        remote_region const exposed = open.remote();
        co_await p.client.async_write(ours.slice(), exposed, asio::use_awaitable);
        auto [arrived, sent] = co_await (
            p.server.async_receive(theirs.slice(), awaiting) &&
            p.client.async_send_with_invalidate(ours.slice(0, 8), exposed.key(), awaiting)
        );
        CHECK_FALSE(std::get<0>(sent));
        CHECK(std::get<1>(arrived).size_bytes == 8);
        CHECK(std::get<1>(arrived).invalidated == exposed.key());
        CHECK_FALSE(std::get<1>(arrived).immediate);
        auto [denied, n] = co_await p.client.async_write(ours.slice(), exposed, awaiting);
        CHECK(denied == wc_errc::remote_access);
        CHECK(n == 0);
        co_await p.client.async_wait_disconnected(awaiting);
        co_await p.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("the stall timeout is accurate to an eighth of its length", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.liveness.stall_timeout = 8s;
        options.queue_pair.ack_timeout = 1000s;
        test::pair p = co_await meet(io, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        co_await sleep(io, 60s);
        // Regular completions prevent a stall.
        for (int i = 0; i < 40; ++i) {
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
            co_await sleep(io, 700ms);
        }
        w.on_packet([](fabric::packet_info const&) {
            return fabric::packet_fate{fabric::packet_fate::kind::drop, 0ns};
        });
        auto const start = w.now();
        auto [ec, n] = co_await p.client.async_write(ours.slice(), theirs.remote(), awaiting);
        auto const took = w.now() - start;
        CHECK(ec == errc::stalled);
        CHECK(n == 0);
        CHECK(took >= 7s);
        CHECK(took <= 9s + 10ms);
        p.server.close();
    });
}

TEST_CASE("a SoftRoCE send queue that lost work is kicked, even if it is full", "[fabric]") {
    // Source: docs/decisions/0007-softroce-loses-work.md.
    bool const is_softroce = GENERATE(true, false);
    world w{two_devices([&](fabric::device_options& d) { d.is_softroce = is_softroce; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options shallow;
        shallow.liveness.stall_timeout = 8s;
        shallow.queue_pair.send_queue_depth = 4;
        test::pair p = co_await meet(io, shallow);
        std::size_t const size = std::size_t{256} * 1024;
        registered_buffer ours{p.client.domain(), size, access_flags::local_read};
        registered_buffer theirs{p.server.domain(), size, access_flags::remote_write};
        std::vector<error_code> ends;
        for (int i = 0; i < 4; ++i)
            p.client.async_write(ours.slice(), theirs.remote(), [&](error_code ec, std::size_t) {
                ends.push_back(ec);
            });
        // By now, some of the data is in flight.
        co_await sleep(io, 20us);
        w.stop_send_queues("fab1");
        auto const start = w.now();
        while (ends.size() < 4) co_await sleep(io, 1ms);
        if (is_softroce) {
            CHECK(ends == std::vector<error_code>(4));
            CHECK(w.now() - start <= 2s + 100ms);
            CHECK(w.counters("fab1").posts_refused > 0);
            p.client.close();
        } else {
            CHECK(ends.back() == errc::stalled);
            CHECK(w.counters("fab1").posts_refused == 0);
        }
        p.server.close();
    });
}

TEST_CASE("without a stall timeout no connection is reported as stalled", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.liveness.stall_timeout = std::nullopt;
        options.queue_pair.ack_timeout = 4000s;
        test::pair p = co_await meet(io, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        w.on_packet([](fabric::packet_info const&) {
            return fabric::packet_fate{fabric::packet_fate::kind::drop, 0ns};
        });
        bool has_ended = false;
        p.client.async_write(ours.slice(), theirs.remote(), [&](error_code, std::size_t) {
            has_ended = true;
        });
        co_await sleep(io, 3000s);
        CHECK_FALSE(has_ended);
        p.client.close();
        p.server.close();
        while (!has_ended) co_await sleep(io, 1ms);
    });
}

TEST_CASE(
    "on a device without atomics they are refused, and no memory is registered for them", "[fabric]"
) {
    world w{two_devices([](fabric::device_options& d) { d.has_atomics = false; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        CHECK(w.live().memory_regions == 0);
        CHECK_FALSE(p.client.domain().limits().has_atomics);
        registered_buffer ours{p.client.domain(), 8, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 8, access_flags::remote_write};
        // As if the peer had granted remote_atomic.
        remote_atomic const word{theirs.remote().address(), theirs.remote().key()};
        auto [added, n] = co_await p.client.async_fetch_add(word, 1, awaiting);
        CHECK(added == errc::atomics_unsupported);
        auto [swapped, m] = co_await p.client.async_compare_swap(word, 0, 1, awaiting);
        CHECK(swapped == errc::atomics_unsupported);
        batch b{p.client};
        b.add(op::write(ours.slice(), theirs.remote())).add(op::fetch_add(word, 1, ours.slice()));
        auto [mixed, k] = co_await b.async_submit(awaiting);
        CHECK(mixed == errc::atomics_unsupported);
        CHECK(n + m + k == 0);
        CHECK(p.client.statistics().sends_posted == 0);
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("on a device without send with invalidate it is refused before posting", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) { d.has_send_with_invalidate = false; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        std::uint64_t const posted = w.counters("fab1").send_requests;
        auto [ec, n] =
            co_await p.client.async_send_with_invalidate(ours.slice(), remote_key{7}, awaiting);
        CHECK(ec == errc::invalidate_unsupported);
        CHECK_FALSE(is_fatal(ec));
        CHECK(w.counters("fab1").send_requests == posted);
        co_await p.client.async_write(
            {}, remote_region{0, 0, remote_key{0}, access_flags::remote_write}, asio::use_awaitable
        );
        CHECK(p.client.is_open());
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("on a device without immediate data it is refused before posting", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) {
        d.is_iwarp = true;
        d.has_atomics = false;
    })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        CHECK_FALSE(p.client.domain().limits().has_immediate_data);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        auto [sent, n] = co_await p.client.async_send_with_immediate(ours.slice(), 7, awaiting);
        auto [written, m] = co_await p.client.async_write_with_immediate(
            ours.slice(), theirs.remote(), 7, awaiting
        );
        CHECK(sent == errc::immediate_unsupported);
        CHECK(written == errc::immediate_unsupported);
        CHECK_FALSE(is_fatal(sent));
        CHECK(n + m == 0);
        CHECK(p.client.statistics().sends_posted == 0);
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        // It reads into one segment only: reads into several slices are several reads.
        registered_buffer source{p.server.domain(), 64, access_flags::remote_read};
        fill(source.bytes(), 5);
        std::array<mutable_slice, 3> const into{
            ours.slice(40, 20), ours.slice(0, 4), ours.slice(10, 30)};
        co_await p.client.async_read(
            source.remote().slice(0, 54), mutable_slices{into}, asio::use_awaitable
        );
        CHECK(same(ours.bytes().subspan(40, 20), source.bytes().first(20)));
        CHECK(same(ours.bytes().first(4), source.bytes().subspan(20, 4)));
        CHECK(same(ours.bytes().subspan(10, 30), source.bytes().subspan(24, 30)));
        p.client.close();
        p.server.close();
        // A ring, whose records have immediate data, says so, and does not wait.
        acceptor door{io, {"10.0.0.1", 0}};
        ring_writer writer{io};
        auto const refused = co_await writer.async_connect(door.local_endpoint(), awaiting);
        CHECK(std::get<0>(refused) == errc::immediate_unsupported);
        // A rejection has an errno there, and means the same.
        connection unwanted{io};
        auto const reject = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            asked.reject();
        };
        auto const ask = [&](endpoint const& to) -> asio::awaitable<error_code> {
            unwanted = connection{io};
            auto const [ec] = co_await unwanted.async_connect(to, awaiting);
            co_return ec;
        };
        error_code const by_peer = co_await (ask(door.local_endpoint()) && reject());
        CHECK(by_peer == cm_errc::rejected_by_peer);
        error_code const by_nobody = co_await ask({"10.0.0.1", 9});
        CHECK(by_nobody == cm_errc::rejected_no_listener);
    });
}

TEST_CASE("nothing completes before a read that was started earlier", "[fabric]") {
    world w{two_devices([](fabric::device_options& d) { d.is_soft_iwarp = true; })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), 4096, access_flags::remote_read | access_flags::remote_write};
        fill(theirs.bytes(), 6);
        std::vector<int> order;
        auto const note = [&](int number) {
            return [&order, number](error_code ec, std::size_t) {
                CHECK_FALSE(ec);
                order.push_back(number);
            };
        };
        // One doorbell, and another one while the reads are under way.
        batch together{p.client};
        together.add(op::write(ours.slice(0, 8), theirs.remote().slice(8, 8)));
        together.add(op::read(theirs.remote().slice(0, 8), ours.slice(0, 8)));
        together.add(op::read(theirs.remote().slice(16, 8), ours.slice(16, 8)).fenced());
        together.add(op::write(ours.slice(100, 8), theirs.remote().slice(100, 8)));
        together.async_submit([&](error_code ec, std::size_t) {
            CHECK_FALSE(ec);
            CHECK(same(ours.bytes().first(8), theirs.bytes().first(8)));
            order.push_back(0);
        });
        p.client.async_read(theirs.remote().slice(0, 64), ours.slice(0, 64), note(1));
        p.client.async_write(ours.slice(200, 8), theirs.remote().slice(200, 8), note(2));
        while (order.size() < 3) co_await sleep(io, 10us);
        CHECK(order == std::vector{0, 1, 2});
        CHECK(p.client.is_open());
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("a server reads from a client that asks for no reads, on Soft iWARP too", "[fabric]") {
    bool const is_soft_iwarp = GENERATE(false, true);
    world w{two_devices([&](fabric::device_options& d) {
        d.is_iwarp = d.is_soft_iwarp = is_soft_iwarp;
    })};
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.initiator_depth = 0;
        test::pair p = co_await meet(io, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::remote_read};
        registered_buffer theirs{p.server.domain(), 64, access_flags::local_write};
        fill(ours.bytes(), 3);
        std::size_t const n =
            co_await p.server.async_read(ours.remote(), theirs.slice(), asio::use_awaitable);
        CHECK(n == 64);
        CHECK(same(ours.bytes(), theirs.bytes()));
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("many operations through a queue of eight hold no more memory than a few", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 8;
        options.queue_pair.waiting_operations_max = 64;
        test::pair p = co_await meet(io, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        struct chain {
            connection& on;
            mutable_slice from;
            remote_region to;
            std::size_t to_start;
            std::size_t done = 0;
            void start() {
                --to_start;
                on.async_write(from, to, [this](error_code ec, std::size_t) {
                    CHECK_FALSE(ec);
                    ++done;
                    if (to_start > 0) start();
                });
            }
        };
        auto const go = [&](std::size_t count) -> asio::awaitable<void> {
            chain c{p.client, ours.slice(), theirs.remote(), count};
            for (int i = 0; i < 64; ++i) c.start();
            while (c.done < count) co_await asio::post(io, asio::use_awaitable);
        };
        co_await go(1000);
        // No count under a sanitizer.
        std::optional<long> const before = live_blocks();
        std::size_t const many = before ? 100'000 : 10'000;
        co_await go(many);
        std::optional<long> const after = live_blocks();
        if (before) CHECK(*after <= *before + 8);
        CHECK(p.client.statistics().operations_completed == 1000 + many);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("an idle connection takes little memory, and more when operations need it", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        constexpr std::size_t pairs = 16;
        std::vector<test::pair> open;
        open.reserve(pairs);
        co_await [&]() -> asio::awaitable<void> {
            // What the first one leaves behind belongs to the context.
            test::pair first = co_await meet(io);
            co_await disconnect(first);
        }();
        std::optional<long> const before = live_bytes();
        for (std::size_t i = 0; i < pairs; ++i) open.push_back(co_await meet(io));
        std::optional<long> const idle = live_bytes();
        long const each = before ? (*idle - *before) / static_cast<long>(2 * pairs) : 0;
        INFO("an idle connection: " << each << " bytes");
        constexpr long idle_bytes_max = 12'000;
        CHECK(each <= idle_bytes_max);
        // One operation at a time needs one chunk of operations.
        registered_buffer ours{open[0].client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{open[0].server.domain(), 64, access_flags::remote_write};
        for (int i = 0; i < 500; ++i)
            co_await open[0].client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        std::optional<long> const one = live_bytes();
        if (before) {
            INFO("one that writes: " << *one - *idle << " bytes more");
            constexpr long writing_bytes_max = 32'000;
            CHECK(*one - *idle <= writing_bytes_max);
        }
        for (test::pair& p : open) co_await disconnect(p);
    });
}

TEST_CASE("a signal for a completed operation affects no later one", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 4;
        options.queue_pair.receive_queue_depth = 4;
        options.queue_pair.waiting_operations_max = 4;
        test::pair p = co_await meet(io, options);
        registered_buffer ours{p.client.domain(), 8, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 8, access_flags::remote_write};
        asio::cancellation_signal late;
        int completed = 0;
        auto const count = [&](error_code ec, std::size_t) { completed += ec ? 0 : 1; };
        p.client.async_write(
            ours.slice(), theirs.remote(), asio::bind_cancellation_slot(late.slot(), count)
        );
        co_await sleep(io, 10ms);
        // The connection uses its 20 operations in turn, so each of them several times.
        for (int i = 1; i < 100; ++i) {
            p.client.async_write(ours.slice(), theirs.remote(), count);
            late.emit(asio::cancellation_type::terminal);
            co_await sleep(io, 10ms);
            late.emit(asio::cancellation_type::all);
        }
        CHECK(completed == 100);
        p.client.close();
        p.server.close();
        p.client = connection{io};
        co_await sleep(io, 10ms);
        late.emit(asio::cancellation_type::all);
    });
}

TEST_CASE("in event mode a queue sleeps as soon as it is empty", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        auto const before = p.client.statistics();
        for (int i = 0; i < 200; ++i)
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        auto const after = p.client.statistics();
        auto const sleeps = after.sleeps - before.sleeps;
        CHECK(sleeps >= 199);  // it may be about to sleep
        // One before the queue is armed, and one after.
        CHECK(after.empty_polls - before.empty_polls <= 2 * sleeps);
        p.client.close();
        p.server.close();
    });
}
