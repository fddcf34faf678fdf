// The forms of operations: lists of slices, typed memory, batches, work without a handler, and
// calls that do not wait for a slot; their accounting; and errors detected before posting.
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "device/fixture.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr access_flags all_remote =
    access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic;

/// Cuts a buffer into `count` slices of uneven sizes, some of them empty, in shuffled order.
std::vector<mutable_slice> cut(
    registered_buffer const& from, std::size_t count, std::uint32_t seed
) {
    std::mt19937 random{seed};
    std::vector<mutable_slice> pieces;
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t const size = i % 7 == 3 ? 0 : 1 + random() % 97;
        pieces.push_back(from.slice(at, size));
        at += size;
    }
    std::ranges::shuffle(pieces, random);
    return pieces;
}

std::vector<std::byte> flat(std::vector<mutable_slice> const& pieces) {
    std::vector<std::byte> all;
    for (mutable_slice const& p : pieces) all.insert(all.end(), p.bytes().begin(), p.bytes().end());
    return all;
}

}  // namespace

// --- lists of slices -----------------------------------------------------------------------------

TEST_CASE("any number of slices is gathered and scattered as if they were one", "[device]") {
    asio::io_context io;
    std::uint32_t const segments = GENERATE(1U, 4U, 30U);
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_segments_max = segments;
        test::pair p = co_await connect(io, options);
        registered_buffer ours{p.client.domain(), 16384, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 16384, all_remote};
        for (std::size_t count = 1; count <= 100; count += count < 8 ? 1 : 23) {
            INFO(count << " slices, " << segments << " at a time");
            fill(ours.bytes(), static_cast<std::uint32_t>(count));
            std::ranges::fill(theirs.bytes(), std::byte{0xEE});
            std::vector<mutable_slice> const pieces = cut(ours, count, segments);
            std::vector<std::byte> const expected = flat(pieces);
            remote_region const target = theirs.remote().slice(8, expected.size());
            std::size_t const written =
                co_await p.client.async_write(pieces, target, asio::use_awaitable);
            CHECK(written == expected.size());
            CHECK(same(theirs.bytes().subspan(8, expected.size()), expected));
            CHECK(all_are(theirs.bytes().first(8), std::byte{0xEE}));
            CHECK(all_are(theirs.bytes().subspan(8 + expected.size()), std::byte{0xEE}));

            std::ranges::fill(ours.bytes(), std::byte{0});
            std::size_t const read =
                co_await p.client.async_read(target, pieces, asio::use_awaitable);
            CHECK(read == expected.size());
            CHECK(flat(pieces) == expected);
        }
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a message is gathered from slices and scattered to slices", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_read};
        registered_buffer theirs{p.server.domain(), 4096, access_flags::local_write};
        fill(ours.bytes(), 1);
        std::array const from{
            ours.slice(1000, 10), ours.slice(0, 0), ours.slice(5, 90), ours.slice(2000, 1)};
        std::array const into{theirs.slice(100, 7), theirs.slice(50, 20), theirs.slice(3000, 500)};
        auto [arrived, sent] = co_await (
            p.server.async_receive(into, awaiting) && p.client.async_send(from, awaiting)
        );
        CHECK_FALSE(std::get<0>(sent));
        CHECK(std::get<1>(sent) == 101);
        CHECK_FALSE(std::get<0>(arrived));
        CHECK(std::get<1>(arrived).size_bytes == 101);
        CHECK(std::get<1>(arrived).queue_pair_number == p.server.queue_pair_number());
        CHECK(same(theirs.bytes().subspan(100, 7), ours.bytes().subspan(1000, 7)));
        CHECK(same(theirs.bytes().subspan(50, 3), ours.bytes().subspan(1007, 3)));
        CHECK(same(theirs.bytes().subspan(53, 17), ours.bytes().subspan(5, 17)));
        CHECK(same(theirs.bytes().subspan(3000, 73), ours.bytes().subspan(22, 73)));
        CHECK(theirs.bytes()[3073] == ours.bytes()[2000]);

        // A message is not split: too many slices are rejected; empty slices do not count.
        std::vector<mutable_slice> const many(
            p.client.limits().send_segments_max + 1, ours.slice(0, 8)
        );
        auto [refused, n] = co_await p.client.async_send(many, awaiting);
        CHECK(refused == errc::too_many_segments);
        std::vector<mutable_slice> const wide(
            p.server.limits().receive_segments_max + 1, theirs.slice(0, 8)
        );
        auto [refused_too, r] = co_await p.server.async_receive(wide, awaiting);
        CHECK(refused_too == errc::too_many_segments);
        CHECK(n + r.size_bytes == 0);
        CHECK(p.client.is_open());
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a split write with immediate completes one receive, after all its bytes", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 16384, access_flags::local_read};
        registered_buffer theirs{p.server.domain(), 16384, all_remote};
        fill(ours.bytes(), 2);
        std::vector<mutable_slice> const pieces = cut(ours, 60, 5);
        std::vector<std::byte> const expected = flat(pieces);
        bool was_there = false;
        int notices = 0;
        for (int i = 0; i < 2; ++i) {
            p.server
                .async_receive({}, asio::bind_executor(io, [&](error_code ec, receive_result r) {
                                   if (ec) return;
                                   ++notices;
                                   was_there =
                                       r.immediate == 99U && r.is_write &&
                                       same(theirs.bytes().first(expected.size()), expected);
                               }));
        }
        std::size_t const written = co_await p.client.async_write_with_immediate(
            pieces, theirs.remote().slice(0, expected.size()), 99, asio::use_awaitable
        );
        CHECK(written == expected.size());
        while (notices == 0) co_await asio::post(io, asio::use_awaitable);
        CHECK(was_there);
        CHECK(notices == 1);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE(
    "elements of any trivially copyable type travel, and their neighbours stay as they are",
    "[device]"
) {
    struct point {
        std::int32_t x;
        std::int32_t y;
        bool operator==(point const&) const = default;
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        std::vector<double> values(10);
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = 1.0 / (1.0 + static_cast<double>(i));
        std::vector<double> copies(10, -1.0);
        std::array<point, 4> points{point{1, 2}, point{3, 4}, point{5, 6}, point{7, 8}};
        memory_region const ours{p.client.domain(), std::span{values}, access_flags::local_write};
        memory_region const theirs{p.server.domain(), std::span{copies}, all_remote};
        memory_region const shapes{p.server.domain(), std::span{points}, all_remote};

        co_await p.client.async_write(
            ours.slice(std::span{values}.subspan(3, 1)),
            theirs.remote().elements<double>(3, 1),
            asio::use_awaitable
        );
        for (std::size_t i = 0; i < copies.size(); ++i)
            CHECK(copies[i] == (i == 3 ? values[3] : -1.0));
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        CHECK(std::memcmp(copies.data(), values.data(), sizeof(double) * values.size()) == 0);

        std::array<point, 4> seen{};
        memory_region const view{p.client.domain(), std::span{seen}, access_flags::local_write};
        co_await p.client.async_read(
            shapes.remote().elements<point>(1, 2),
            view.slice(std::span{seen}.first(2)),
            asio::use_awaitable
        );
        CHECK((seen == std::array{point{3, 4}, point{5, 6}, point{}, point{}}));

        std::vector<double> elsewhere(2);
        CHECK_THROWS_AS(ours.slice(std::span{elsewhere}), boost::system::system_error);
        CHECK_THROWS_AS(theirs.remote().elements<double>(9, 2), boost::system::system_error);
        CHECK_THROWS_AS(
            theirs.remote().elements<double>(~std::uint64_t{0} / 2, 2), boost::system::system_error
        );
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

// --- batches -------------------------------------------------------------------------------------

TEST_CASE("a batch is one list with one doorbell and one completion", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, all_remote};
        fill(ours.bytes(), 7);
        std::optional<receive_result> arrived;
        p.server.async_receive(
            theirs.slice(4000, 8),
            asio::bind_executor(
                io,
                [&](error_code ec, receive_result r) {
                    if (!ec) arrived = r;
                }
            )
        );
        connection_statistics const before = p.client.statistics();
        batch b{p.client, 16};
        for (std::size_t i = 0; i < 13; ++i)
            b.add(op::write(ours.slice(i * 100, 50), theirs.remote().slice(i * 200, 50)));
        b.add(op::fetch_add(theirs.remote().word(3200), 5, ours.slice(2048, 8)));
        b.add(op::compare_swap(theirs.remote().word(3200), 5, 77, ours.slice(2056, 8)).fenced());
        b.add(op::read(theirs.remote().slice(0, 50), ours.slice(3000, 50)))
            .add(op::send_with_immediate(ours.slice(8, 8), 4));
        std::size_t const moved = co_await b.async_submit(asio::use_awaitable);
        CHECK(moved == 13 * 50 + 8 + 8 + 50 + 8);
        for (std::size_t i = 0; i < 13; ++i) {
            CHECK(same(theirs.bytes().subspan(i * 200, 50), ours.bytes().subspan(i * 100, 50)));
        }
        std::array<std::uint64_t, 2> seen{};
        std::memcpy(seen.data(), ours.bytes().data() + 2048, 16);
        CHECK(seen == std::array<std::uint64_t, 2>{0, 5});
        CHECK(same(ours.bytes().subspan(3000, 50), ours.bytes().first(50)));
        while (!arrived) co_await asio::post(io, asio::use_awaitable);
        CHECK(arrived->immediate == 4U);
        CHECK(same(theirs.bytes().subspan(4000, 8), ours.bytes().subspan(8, 8)));
        connection_statistics const after = p.client.statistics();
        CHECK(after.doorbells - before.doorbells == 1);
        CHECK(after.sends_posted - before.sends_posted == 17);
        CHECK(after.sends_signalled - before.sends_signalled == 1);
        CHECK(after.operations_completed - before.operations_completed == 1);

        // A batch can be submitted again, and can be cleared and filled again.
        b.clear();
        b.add(op::send({}));
        int more = 0;
        auto count =
            asio::bind_executor(io, [&](error_code ec, receive_result) { more += ec ? 0 : 1; });
        p.server.async_receive({}, count);
        p.server.async_receive({}, count);
        co_await b.async_submit(asio::use_awaitable);
        co_await b.async_submit(asio::use_awaitable);
        while (more < 2) co_await asio::post(io, asio::use_awaitable);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE(
    "a batch longer than the queue goes out in parts, in order, and completes once", "[device]"
) {
    asio::io_context io;
    auto const reads = GENERATE(false, true);
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 64;
        options.queue_pair.initiator_depth = 4;
        test::pair p = co_await connect(io, options);
        registered_buffer ours{p.client.domain(), 8192, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 8192, all_remote};
        fill(reads ? theirs.bytes() : ours.bytes(), 3);
        batch b{p.client};
        for (std::size_t i = 0; i < 200; ++i) {
            // The slices overlap, so the result is correct only if the order is kept.
            mutable_slice const here = ours.slice(i * 16, 64);
            remote_region const there = theirs.remote().slice(i * 16, 64);
            if (reads) {
                b.add(op::read(there, here));
            } else {
                b.add(op::write(here, there));
            }
        }
        int calls = 0;
        b.async_submit(asio::bind_executor(io, [&](error_code ec, std::size_t n) {
            CHECK_FALSE(ec);
            CHECK(n == 200 * 64);
            ++calls;
        }));
        // A later operation completes after the whole batch.
        std::size_t const behind = co_await p.client.async_write(
            ours.slice(0, 8),
            theirs.remote().slice(8000, 8),
            asio::bind_executor(io, asio::use_awaitable)
        );
        CHECK(behind == 8);
        while (calls == 0) co_await asio::post(io, asio::use_awaitable);
        CHECK(same(ours.bytes().first(199 * 16 + 64), theirs.bytes().first(199 * 16 + 64)));
        CHECK(calls == 1);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("functions posted to a polling thread run, however many completions arrive", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        constexpr std::size_t list_length = 16;
        constexpr std::size_t lists = 8;
        constexpr std::size_t lists_to_do = 1000 / slowness;
        connection_options options;
        options.queue_pair.send_queue_depth = list_length * lists;
        poller const busy = poller::start({.polling = {.mode = poll_mode::busy}});
        test::pair p = co_await connect(busy, io, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, all_remote};
        // Everything except the wait runs on the polling thread.
        std::vector<batch> all;
        std::size_t to_start = lists_to_do;
        std::size_t done = 0;
        std::size_t waited_max = 0;
        bool has_failed = false;
        std::promise<void> ended;
        std::function<void(std::size_t)> submit = [&](std::size_t i) {
            --to_start;
            all[i].async_submit([&, i](error_code ec, std::size_t) {
                if (ec) to_start = 0;
                if (++done == lists_to_do || (ec && !std::exchange(has_failed, true)))
                    ended.set_value();
                if (to_start > 0) submit(i);
            });
        };
        std::function<void()> take_turn = [&] {
            asio::post(p.client.get_executor(), [&, posted = done] {
                waited_max = std::max(waited_max, done - posted);
                if (done < lists_to_do) take_turn();
            });
        };
        for (std::size_t i = 0; i < lists; ++i) {
            batch& b = all.emplace_back(p.client, list_length);
            for (std::size_t k = 0; k < list_length; ++k)
                b.add(op::write(ours.slice(0, 8), theirs.remote().slice(8, 8)));
        }
        asio::post(p.client.get_executor(), [&] {
            for (std::size_t i = 0; i < lists; ++i) submit(i);
            take_turn();
        });
        ended.get_future().wait();
        // Waits until take_turn's last function has run.
        co_await asio::post(p.client.get_executor(), asio::use_awaitable);
        co_await asio::post(io, asio::use_awaitable);
        // A round handles up to 192 work requests plus those of the last poll; each turn waits for
        // one round.
        CHECK(waited_max <= 256 / list_length + 2 * lists);
        CHECK_FALSE(has_failed);
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("a batch with an invalid request posts nothing", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 128, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 128, access_flags::remote_write};
        fill(ours.bytes(), 7);
        connection_statistics const before = p.client.statistics();
        batch b{p.client};
        auto [empty, n0] = co_await b.async_submit(awaiting);
        CHECK(empty == errc::invalid_option);
        b.add(op::write(ours.slice(0, 8), theirs.remote().slice(0, 8)))
            .add(op::read(theirs.remote(), ours.slice()));
        auto [denied, n1] = co_await b.async_submit(awaiting);
        CHECK(denied == errc::access_denied);
        b.clear();
        b.add(op::write(ours.slice(0, 8), theirs.remote().slice(0, 9)));
        auto [longer, n2] = co_await b.async_submit(awaiting);
        CHECK(longer == errc::out_of_range);
        b.clear();
        std::vector<mutable_slice> const many(
            p.client.limits().send_segments_max + 1, ours.slice(0, 1)
        );
        b.add(op::write(ours.slice(0, 8), theirs.remote().slice(0, 8))).add(op::send(many));
        auto [wide, n3] = co_await b.async_submit(awaiting);
        CHECK(wide == errc::too_many_segments);
        CHECK(n0 + n1 + n2 + n3 == 0);
        CHECK(p.client.statistics().sends_posted == before.sends_posted);
        CHECK(all_are(theirs.bytes(), std::byte{0}));
        CHECK(p.client.is_open());
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

// --- operations as values ------------------------------------------------------------------------

namespace {

template <class Op>
concept can_be_added = requires(batch& b, Op const& what) {
    b.add(what);
};
template <class Op>
concept can_be_fenced = requires(Op const& what) {
    what.fenced();
};
template <class Op>
concept can_be_silent = requires(connection& c, Op const& what) {
    c.try_start(what);
};

static_assert(can_be_added<op::write_t> && can_be_added<op::atomic_t> && !can_be_added<op::receive_t>);
static_assert(can_be_fenced<op::send_t> && !can_be_fenced<op::receive_t>);
// Without a handler nobody would learn that the bytes are there.
static_assert(can_be_silent<op::write_t> && can_be_silent<op::send_t>);
static_assert(!can_be_silent<op::read_t> && !can_be_silent<op::receive_t>);
// Nothing but a connection owns a connection.
static_assert(!std::is_copy_constructible_v<connection_base>);
static_assert(!std::is_constructible_v<connection_base, connection&&>);

}  // namespace

TEST_CASE("an operation is a value: started again, copied, and fenced", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, all_remote};
        op::write_t const what = op::write(ours.slice(0, 8), theirs.remote().slice(0, 8));
        for (std::uint32_t round = 0; round < 3; ++round) {
            fill(ours.bytes().first(8), round);
            std::size_t const n = co_await p.client.async_start(what, asio::use_awaitable);
            CHECK(n == 8);
            CHECK(same(theirs.bytes().first(8), ours.bytes().first(8)));
        }
        op::write_t const after = what.fenced();
        std::size_t const n = co_await p.client.async_start(after, asio::use_awaitable);
        CHECK(n == 8);
        // The server writes, and the client learns it by the immediate alone.
        auto const [arrived, sent] = co_await (
            p.client.async_start(op::receive({}), asio::use_awaitable) &&
            p.server.async_start(op::write_with_immediate({}, {}, 7), asio::use_awaitable)
        );
        CHECK(arrived.immediate == 7U);
        CHECK(sent == 0);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE(
    "an atomic gives the old value to its handler, and to memory if it is asked", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, all_remote};
        remote_atomic const cell = theirs.remote().word(8);
        auto const at = [&](std::size_t offset) {
            std::uint64_t value = 0;
            std::memcpy(&value, ours.bytes().data() + offset, sizeof value);
            return value;
        };
        // Awaited outside of CHECK, which g++ evaluates twice.
        auto const start = [&](op::atomic_t what) {
            return p.client.async_start(what, asio::use_awaitable);
        };
        fill(ours.bytes(), 1);
        std::uint64_t const untouched = at(8);
        std::uint64_t const first = co_await start(op::fetch_add(cell, 5));
        CHECK(first == 0);
        std::uint64_t const second = co_await start(op::fetch_add(cell, 2, ours.slice(0, 8)));
        CHECK(second == 5);
        CHECK(at(0) == 5);
        CHECK(at(8) == untouched);
        std::uint64_t const third =
            co_await start(op::compare_swap(cell, 7, 100, ours.slice(16, 8)).fenced());
        CHECK(third == 7);
        CHECK(at(16) == 7);
        std::uint64_t const swapped = co_await start(op::fetch_add(cell, 0));
        CHECK(swapped == 100);
        // Several in flight, with memory of the program's and without.
        std::vector<std::uint64_t> before;
        for (std::size_t i = 0; i < 4; ++i) {
            auto const note = [&](error_code ec, std::uint64_t value) {
                CHECK_FALSE(ec);
                before.push_back(value);
            };
            if (i % 2 == 0) p.client.async_start(op::fetch_add(cell, 1), note);
            else p.client.async_start(op::fetch_add(cell, 1, ours.slice(8 * i, 8)), note);
        }
        while (before.size() < 4) co_await asio::post(io, asio::use_awaitable);
        CHECK(before == std::vector<std::uint64_t>{100, 101, 102, 103});
        CHECK(at(8) == 101);
        CHECK(at(24) == 103);
        auto [ec, n] =
            co_await p.client.async_start(op::fetch_add(cell, 1, ours.slice(0, 4)), awaiting);
        CHECK(ec == errc::out_of_range);
        // In a batch of its own, an atomic needs no memory.
        batch one{p.client};
        one.add(op::fetch_add(cell, 1));
        std::size_t const bytes = co_await one.async_submit(asio::use_awaitable);
        CHECK(bytes == 8);
        std::uint64_t const last = co_await start(op::fetch_add(cell, 0));
        CHECK(last == 105);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

// --- without waiting -----------------------------------------------------------------------------

TEST_CASE(
    "a try_ call on a full queue returns would_block and does not move the handler", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 4;
        options.queue_pair.receive_queue_depth = 2;
        options.queue_pair.initiator_depth = 2;
        // Handlers run on the test's own thread, so none can run in between.
        test::pair p = co_await connect(io, options, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, all_remote};
        mutable_slice const here = ours.slice(0, 8);
        remote_region const there = theirs.remote().slice(0, 8);
        int done = 0;
        auto const count = [&](error_code ec, auto) { done += ec ? 100 : 1; };
        CHECK_FALSE(p.client.try_start(op::write(here, there), count));
        CHECK_FALSE(p.client.try_start(op::read(there, here), count));
        CHECK_FALSE(p.client.try_start(op::fetch_add(theirs.remote().word(8), 1), count));
        CHECK(
            p.client.try_start(op::compare_swap(theirs.remote().word(8), 1, 2), count) ==
            errc::would_block
        );
        CHECK_FALSE(p.client.try_start(op::write(here, there)));
        auto kept = std::make_unique<int>(5);
        auto only = [&done, kept = std::move(kept)](error_code, std::size_t) { done += *kept; };
        CHECK(p.client.try_start(op::write(here, there), std::move(only)) == errc::would_block);
        CHECK(p.client.try_start(op::send(here), count) == errc::would_block);
        CHECK(p.client.try_start(op::send(here)) == errc::would_block);
        batch b{p.client};
        b.add(op::write(here, there)).add(op::write(here, there));
        CHECK(b.try_submit(count) == errc::would_block);
        CHECK_FALSE(p.client.try_start(op::receive(here), [](error_code, receive_result) {}));
        CHECK_FALSE(p.client.try_start(op::receive(here), [](error_code, receive_result) {}));
        CHECK(p.client.try_start(op::receive(here), [](error_code, receive_result) {
        }) == errc::would_block);
        while (done < 3) co_await asio::post(io, asio::use_awaitable);
        // The handler still has its capture: would_block must not move it.
        CHECK_FALSE(p.client.try_start(op::write(here, there), std::move(only)));
        CHECK_FALSE(b.try_submit(count));
        while (done < 9) co_await asio::post(io, asio::use_awaitable);
        CHECK(done == 9);
        CHECK(p.client.try_start(op::write(here, theirs.remote()), count) == errc::out_of_range);
        p.client.close();
        CHECK(p.client.try_start(op::write(here, there), count) == errc::not_connected);
        CHECK(p.client.try_start(op::write(here, there)) == errc::not_connected);
    });
}

TEST_CASE("work without a handler is signaled once per half queue, and never stalls", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 64;
        test::pair p = co_await connect(io, options);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, access_flags::remote_write};
        fill(ours.bytes(), 4);
        constexpr std::size_t count = 20'000;
        connection_statistics const before = p.client.statistics();
        for (std::size_t i = 0; i < count;) {
            std::size_t const at = i % 512 * 8;
            error_code const ec =
                p.client.try_start(op::write(ours.slice(at, 8), theirs.remote().slice(at, 8)));
            if (!ec) {
                ++i;
                continue;
            }
            REQUIRE(ec == errc::would_block);
            co_await asio::post(io, asio::use_awaitable);
        }
        // Handlers run in order: this write completes after all unsignaled ones.
        co_await p.client.async_write({}, theirs.remote().slice(0, 0), asio::use_awaitable);
        CHECK(same(ours.bytes(), theirs.bytes()));
        connection_statistics const after = p.client.statistics();
        CHECK(after.sends_posted - before.sends_posted == count + 1);
        CHECK(after.sends_signalled - before.sends_signalled <= count / 32 + 1);
        CHECK(after.operations_completed - before.operations_completed == count + 1);
        CHECK(after.sends_outstanding == 0);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a failure of work without a handler ends the connection with its reason", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_read};
        remote_region const lie{
            theirs.remote().address(), 64, theirs.remote().key(), access_flags::remote_write};
        CHECK_FALSE(p.client.try_start(op::write(ours.slice(), lie)));
        auto [end] = co_await p.client.async_wait_disconnected(awaiting);
        CHECK(end == wc_errc::remote_access);
    });
}

// --- accounts ------------------------------------------------------------------------------------

TEST_CASE("a hundred thousand operations go through a queue of eight, in order", "[device][long]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_queue_depth = 8;
        options.queue_pair.initiator_depth = 2;
        options.queue_pair.waiting_operations_max = 64;
        test::pair p = co_await connect(io, options, options);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, all_remote};
        constexpr std::size_t count = 100'000;
        std::size_t started = 0;
        std::size_t completed = 0;
        std::size_t out_of_order = 0;
        std::size_t failed = 0;
        auto const client = p.client.get_executor();
        // Starts as many as may wait, then one for each that completes; all on the polling thread.
        std::function<void()> start_one = [&] {
            std::size_t const me = started++;
            std::size_t const at = me % 256 * 16;
            auto const note = [&, me](error_code ec, std::size_t) {
                failed += ec ? 1 : 0;
                out_of_order += me == completed ? 0 : 1;
                ++completed;
                if (started < count) start_one();
            };
            if (me % 11 == 0) {
                p.client.async_read(theirs.remote().slice(at, 16), ours.slice(at, 16), note);
            } else {
                p.client.async_write(ours.slice(at, 16), theirs.remote().slice(at, 16), note);
            }
        };
        asio::post(client, [&] {
            for (int i = 0; i < 48; ++i) start_one();
        });
        std::size_t seen = 0;
        while (seen < count) {
            co_await asio::post(io, asio::use_awaitable);
            seen = co_await asio::co_spawn(
                client,
                [&]() -> asio::awaitable<std::size_t> { co_return completed; },
                asio::use_awaitable
            );
        }
        CHECK(failed == 0);
        CHECK(out_of_order == 0);
        connection_statistics const after = p.client.statistics();
        CHECK(after.operations_started == count);
        CHECK(after.operations_completed == count);
        CHECK(after.sends_posted == count);
        CHECK(after.slot_waits > 0);
        CHECK(after.doorbells < count);
        CHECK(after.completions >= count);
        CHECK(after.polls > after.empty_polls);
        CHECK(after.completions_per_poll() >= 1.0);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE(
    "a thousand immediates arrive, each once and in order, whichever side is slower", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.receive_queue_depth = 16;
        options.queue_pair.rnr_retry_count = 7;
        test::pair p = co_await connect(io, options, options);
        std::vector<std::uint32_t> arrived;
        int failed = 0;
        std::function<void()> receive = [&] {
            p.server.async_receive({}, [&](error_code ec, receive_result r) {
                if (ec) return;
                arrived.push_back(r.immediate.value_or(~0U));
                receive();
            });
        };
        // Half of them before the first receive, half with all receives waiting.
        for (std::uint32_t i = 0; i < 16; ++i)
            p.client.async_write_with_immediate({}, {}, i, [&](error_code ec, std::size_t) {
                failed += ec ? 1 : 0;
            });
        for (int i = 0; i < 16; ++i) receive();
        for (std::uint32_t i = 16; i < 1000; ++i) {
            auto [ec, n] = co_await p.client.async_write_with_immediate({}, {}, i, awaiting);
            failed += ec || n != 0 ? 1 : 0;
        }
        // The last write has completed, so all immediates have arrived; their handlers may still be
        // pending.
        std::size_t seen = 0;
        while (seen < 1000) {
            seen = co_await asio::co_spawn(
                p.server.get_executor(),
                [&]() -> asio::awaitable<std::size_t> { co_return arrived.size(); },
                asio::use_awaitable
            );
        }
        CHECK(failed == 0);
        co_await p.client.async_disconnect(asio::use_awaitable);
        co_await p.server.async_wait_disconnected(awaiting);
        CHECK(arrived.size() == 1000);
        for (std::uint32_t i = 0; i < arrived.size(); ++i) CHECK(arrived[i] == i);
    });
}

TEST_CASE("operations that handlers start in one round are posted with one doorbell", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, all_remote};
        connection_statistics before;
        int done = 0;
        std::optional<connection_statistics> after;
        p.client.async_write(
            ours.slice(0, 8),
            theirs.remote().slice(0, 8),
            [&](error_code, std::size_t) {
                before = p.client.statistics();
                for (std::size_t i = 0; i < 10; ++i) {
                    p.client.async_write(
                        ours.slice(i * 8, 8),
                        theirs.remote().slice(i * 8, 8),
                        [&](error_code, std::size_t) {
                            if (++done == 10)
                                asio::post(io, [&] { after = p.client.statistics(); });
                        }
                    );
                }
                // Nothing has been posted yet.
                CHECK(p.client.statistics().sends_posted == before.sends_posted);
            }
        );
        while (!after) co_await asio::post(io, asio::use_awaitable);
        CHECK(after->sends_posted - before.sends_posted == 10);
        CHECK(after->doorbells - before.doorbells == 1);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("statistics add up", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.inline_bytes_max = 64;
        test::pair p = co_await connect(io, options);
        registered_buffer ours{p.client.domain(), 4096, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 4096, all_remote};
        CHECK(p.client.statistics().operations_started == 0);
        p.server.async_receive(theirs.slice(0, 100), [](error_code, receive_result) {});
        p.server.async_receive(theirs.slice(0, 100), [](error_code, receive_result) {});
        CHECK(p.server.statistics().receive_credits == 2);
        co_await p.client.async_write(
            ours.slice(0, 1000), theirs.remote().slice(0, 1000), asio::use_awaitable
        );
        co_await p.client.async_read(
            theirs.remote().slice(0, 200), ours.slice(0, 200), asio::use_awaitable
        );
        co_await p.client.async_fetch_add(theirs.remote().word(0), 1, asio::use_awaitable);
        co_await p.client.async_send(ours.slice(0, 50), asio::use_awaitable);
        connection_statistics const sent = p.client.statistics();
        CHECK(sent.operations_started == 4);
        CHECK(sent.operations_completed == 4);
        CHECK(sent.operations_failed == 0);
        CHECK(sent.bytes_sent == 1050);
        CHECK(sent.bytes_read == 208);
        CHECK(sent.sends_posted == 4);
        CHECK(sent.sends_signalled == 4);
        CHECK(sent.doorbells == 4);
        CHECK(sent.completions == 4);
        CHECK(sent.sends_inline == (p.client.limits().inline_bytes_max >= 50 ? 1U : 0U));
        while (p.server.statistics().operations_completed == 0)
            co_await asio::post(io, asio::use_awaitable);
        connection_statistics const received = p.server.statistics();
        CHECK(received.bytes_received == 50);
        CHECK(received.receives_posted == 2);
        CHECK(received.receive_credits == 1);
        p.server.close();
        co_await p.server.async_wait_disconnected(awaiting);
        CHECK(p.server.statistics().operations_failed == 1);
        CHECK(p.server.statistics().receive_credits == 0);
        co_await p.client.async_wait_disconnected(awaiting);
    });
}

TEST_CASE(
    "work that stays unanswered ends the connection when the stall timeout has passed", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.liveness.stall_timeout = 400ms;
        connection_options peer;
        peer.queue_pair.rnr_retry_count = 7;  // unlimited
        test::pair p = co_await connect(io, options, peer);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        // An idle connection does not stall, nor does one whose work completes.
        asio::steady_timer timer{io, 500ms};
        co_await timer.async_wait(asio::use_awaitable);
        co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
        auto const start = std::chrono::steady_clock::now();
        auto [ec, n] = co_await p.client.async_send(ours.slice(), awaiting);
        auto const took = std::chrono::steady_clock::now() - start;
        CHECK(ec == errc::stalled);
        CHECK(n == 0);
        CHECK(took >= 350ms);
        CHECK(p.client.last_failure().reason == close_reason::timed_out);
        CHECK(p.client.last_failure().code == errc::stalled);
        co_await p.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("work without a handler, complete but unsignaled, is no stall", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.liveness.stall_timeout = 200ms;
        test::pair p = co_await connect(io, options);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        fill(ours.bytes(), 3);
        CHECK_FALSE(p.client.try_start(op::write(ours.slice(), theirs.remote())));
        asio::steady_timer timer{io, 700ms};
        co_await timer.async_wait(asio::use_awaitable);
        CHECK(p.client.is_open());
        CHECK_FALSE(p.client.last_failure().code);
        // Covers the one before.
        co_await p.client.async_write({}, theirs.remote().slice(0, 0), asio::use_awaitable);
        CHECK(same(ours.bytes(), theirs.bytes()));
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a fenced write sends the result of the read before it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        std::size_t const size = 256 * 1024;
        registered_buffer ours{p.client.domain(), size, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 2 * size, all_remote};
        for (std::uint32_t round = 0; round < 10; ++round) {
            fill(theirs.bytes().first(size), round);
            int done = 0;
            auto count =
                asio::bind_executor(io, [&](error_code ec, std::size_t) { done += ec ? 100 : 1; });
            p.client.async_read(theirs.remote().slice(0, size), ours.slice(), count);
            p.client.async_start(
                op::write(ours.slice(), theirs.remote().slice(size, size)).fenced(), count
            );
            while (done < 2) co_await asio::post(io, asio::use_awaitable);
            CHECK(done == 2);
            CHECK(same(theirs.bytes().first(size), theirs.bytes().last(size)));
        }
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

// --- refused before posting ----------------------------------------------------------------------

TEST_CASE("memory that is gone, foreign or not writable is refused before posting", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options alone;
        alone.placement.domain = domain_sharing::isolated;
        test::pair p = co_await connect(io);
        test::pair other = co_await connect(io, alone, alone);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer fixed{p.client.domain(), 64, access_flags::local_read};
        registered_buffer foreign{other.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, all_remote};
        mutable_slice stale;
        {
            registered_buffer const short_lived{p.client.domain(), 64, access_flags::local_write};
            stale = short_lived.slice();
        }
        auto const posted = [&] {
            return p.client.statistics().sends_posted + p.client.statistics().receives_posted;
        };
        std::uint64_t const before = posted();
        auto [gone, n1] = co_await p.client.async_write(stale, theirs.remote(), awaiting);
        CHECK(gone == errc::region_gone);
        // A new region may reuse the slot of the destroyed one.
        registered_buffer const next{p.client.domain(), 64, access_flags::local_write};
        auto [still_gone, n2] = co_await p.client.async_read(theirs.remote(), stale, awaiting);
        CHECK(still_gone == errc::region_gone);
        auto [foreign_source, n3] = co_await p.client.async_send(foreign.slice(), awaiting);
        CHECK(foreign_source == errc::foreign_domain);
        auto [fixed_target, n4] =
            co_await p.client.async_read(theirs.remote(), fixed.slice(), awaiting);
        CHECK(fixed_target == errc::access_denied);
        auto [fixed_receive, r] = co_await p.client.async_receive(fixed.slice(), awaiting);
        CHECK(fixed_receive == errc::access_denied);
        std::array const mixed{ours.slice(0, 32), stale.first(32)};
        auto [one_gone, n5] = co_await p.client.async_write(mixed, theirs.remote(), awaiting);
        CHECK(one_gone == errc::region_gone);
        CHECK(n1 + n2 + n3 + n4 + n5 + r.size_bytes == 0);
        CHECK(posted() == before);
        CHECK(p.client.is_open());
        std::size_t const moved =
            co_await p.client.async_write(fixed.slice(), theirs.remote(), asio::use_awaitable);
        CHECK(moved == 64);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a wrong key or range at the peer is an error of this connection alone", "[device]") {
    asio::io_context io;
    auto const wrong = GENERATE(0, 1, 2);
    auto const reads = GENERATE(false, true);
    run(io, [&]() -> asio::awaitable<void> {
        test::pair victim = co_await connect(io, {}, sharing());
        test::pair bystander = co_await connect(io, {}, sharing());
        registered_buffer ours{victim.client.domain(), 100, access_flags::local_write};
        registered_buffer theirs{
            victim.server.domain(), 100, access_flags::remote_read | access_flags::remote_write};
        remote_region const right = theirs.remote();
        // A key that was never issued, a range that ends one byte too late, and one that begins one
        // byte too early.
        remote_region const lies[] = {
            {right.address(), 100, remote_key{right.key().value ^ 0x5A00}, right.rights()},
            {right.address() + 1, 100, right.key(), right.rights()},
            {right.address() - 1, 100, right.key(), right.rights()}};
        remote_region const lie = lies[wrong];
        auto [ec, n] = reads ? co_await victim.client.async_read(lie, ours.slice(), awaiting)
                             : co_await victim.client.async_write(ours.slice(), lie, awaiting);
        CHECK(ec == wc_errc::remote_access);
        CHECK(n == 0);
        CHECK(is_fatal(ec));
        co_await victim.client.async_wait_disconnected(awaiting);
        CHECK(victim.client.last_failure().reason == close_reason::transport_error);
        std::size_t const moved =
            co_await bystander.client.async_write(ours.slice(), right, asio::use_awaitable);
        CHECK(moved == 100);
        co_await bystander.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("an operation started by itself is posted before the call returns", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(own_thread, io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        for (std::uint64_t i = 1; i <= 5; ++i) {
            auto written = p.client.async_write(ours.slice(), theirs.remote(), asio::use_future);
            CHECK(p.client.statistics().sends_posted == i);
            CHECK(p.client.statistics().doorbells == i);
            written.get();
        }
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE(
    "a handler runs on its connection's polling thread, and one that blocks holds up no other "
    "connection",
    "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair slow = co_await connect(own_thread, io);
        test::pair quick = co_await connect(own_thread, io);
        registered_buffer a{slow.client.domain(), 64, access_flags::local_write};
        registered_buffer b{slow.server.domain(), 64, access_flags::remote_write};
        std::promise<std::thread::id> polling;
        asio::post(slow.client.get_executor(), [&] {
            polling.set_value(std::this_thread::get_id());
        });
        std::promise<std::thread::id> entered;
        std::promise<void> leave;
        slow.client.async_write(a.slice(), b.remote(), [&](error_code, std::size_t) {
            entered.set_value(std::this_thread::get_id());
            leave.get_future().wait();
        });
        // The handler runs on the thread that polls the completion.
        CHECK(entered.get_future().get() == polling.get_future().get());
        registered_buffer c{quick.client.domain(), 64, access_flags::local_write};
        registered_buffer d{quick.server.domain(), 64, access_flags::remote_write};
        for (int i = 0; i < 100; ++i)
            co_await quick.client.async_write(c.slice(), d.remote(), asio::use_awaitable);
        CHECK(quick.client.statistics().operations_completed == 100);
        leave.set_value();
        co_await (
            slow.client.async_disconnect(asio::use_awaitable) &&
            quick.client.async_disconnect(asio::use_awaitable)
        );
    });
}
