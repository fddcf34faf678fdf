// Rings of records. No receiver may ever be not ready: rnr_retry_count is 0.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/thread_pool.hpp>

#include <rcverbs/experimental/ring.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

ring_options ring_of(std::uint32_t bytes, std::uint32_t records) {
    ring_options o;
    o.ring_bytes = bytes;
    o.records = records;
    o.connection.queue_pair.rnr_retry_count = 0;
    return o;
}

struct ring_ends {
    explicit ring_ends(asio::io_context& io) : door{io, {device_address(), 0}} {}

    acceptor door;
    ring_writer writer;
    ring_reader reader;
};

asio::awaitable<void> meet_ring(
    asio::io_context& io, ring_ends& e, ring_options const& options, bool reader_connects = false
) {
    auto const answer = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
        if (reader_connects) {
            e.writer = ring_writer{io, std::move(asked), options};
            co_await e.writer.async_accept(asio::use_awaitable);
        } else {
            e.reader = ring_reader{io, std::move(asked), options};
            co_await e.reader.async_accept(asio::use_awaitable);
        }
    };
    if (reader_connects) {
        e.reader = ring_reader{io, options};
        co_await (answer() && e.reader.async_connect(e.door.local_endpoint(), asio::use_awaitable));
    } else {
        e.writer = ring_writer{io, options};
        co_await (answer() && e.writer.async_connect(e.door.local_endpoint(), asio::use_awaitable));
    }
}

/// As many bytes of record `number` as wanted, up to 64 KiB.
std::span<std::byte const> bytes_of_record(std::uint64_t number, std::size_t size) {
    static std::vector<std::byte> const all = pattern(65536 + 1021, 7);
    return std::span{all}.subspan(number % 1021, size);
}

void fill_record(std::span<std::byte> record, std::uint64_t number) {
    std::ranges::copy(bytes_of_record(number, record.size()), record.begin());
}

bool is_filled(std::span<std::byte const> record, std::uint64_t number) {
    auto const expected = bytes_of_record(number, record.size());
    return record.empty() || std::memcmp(record.data(), expected.data(), record.size()) == 0;
}

}  // namespace

TEST_CASE("records go from one side of a ring to the other, in order", "[device]") {
    bool const reader_connects = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        co_await meet_ring(io, e, ring_of(65536, 32), reader_connects);
        CHECK(e.writer.is_open());
        CHECK(e.reader.is_open());
        CHECK(e.writer.record_bytes_max() == 32760);
        auto const write = [&]() -> asio::awaitable<void> {
            for (auto const* text : {"one", "", "three"})
                co_await e.writer.async_write(bytes_of(text), asio::use_awaitable);
            std::vector<std::byte> longest(32760);
            fill_record(longest, 3);
            co_await e.writer.async_write(longest, asio::use_awaitable);
            std::vector<std::byte> const too_long(32761);
            auto const [ec] = co_await e.writer.async_write(too_long, awaiting);
            CHECK(ec == errc::out_of_range);
            co_await e.writer.async_finish(asio::use_awaitable);
        };
        auto const read = [&]() -> asio::awaitable<void> {
            for (auto const* text : {"one", "", "three"}) {
                ring_record const r = co_await e.reader.async_read(asio::use_awaitable);
                CHECK(text_of(r.bytes()) == text);
            }
            ring_record last = co_await e.reader.async_read(asio::use_awaitable);
            CHECK(last.bytes().size() == 32760);
            CHECK(is_filled(last.bytes(), 3));
            auto const [ec, none] = co_await e.reader.async_read(awaiting);
            CHECK(ec == asio::error::eof);
            // The writer waits for the last one.
            CHECK(e.writer.is_open());
            last.release();
            CHECK_FALSE(last.is_valid());
        };
        co_await (write() && read());
        CHECK_FALSE(e.writer.is_open());
        CHECK(e.writer.last_failure().reason == close_reason::completed);
        co_await until(io, [&] { return !e.reader.is_open(); });
        CHECK(e.reader.last_failure().reason == close_reason::completed);
        CHECK(e.reader.statistics().records == 4);
        CHECK(e.reader.statistics().used_bytes == 0);
        auto const [late, none] = co_await e.reader.async_read(awaiting);
        CHECK(late == asio::error::eof);
        auto const [closed] = co_await e.writer.async_write(bytes_of("late"), awaiting);
        CHECK(closed == errc::not_connected);
    });
}

namespace {

/// Records of random sizes, with a reader of random pace; all arrive, in order, with their bytes.
void stream_records(std::uint32_t records, ring_options const& options, std::uint32_t most) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        co_await meet_ring(io, e, options);
        std::uint32_t read = 0;
        bool is_right = true;
        auto const writing = [&]() -> asio::awaitable<void> {
            std::mt19937_64 random{1};
            for (std::uint32_t i = 0; i < records; ++i) {
                auto const record = bytes_of_record(i, random() % (most + 1));
                co_await e.writer.async_write(record, asio::use_awaitable);
            }
            co_await e.writer.async_finish(asio::use_awaitable);
        };
        auto const reading = [&]() -> asio::awaitable<void> {
            std::mt19937_64 sizes{1};
            std::mt19937_64 random{2};
            std::deque<ring_record> kept;
            for (;; ++read) {
                auto [ec, record] = co_await e.reader.async_read(awaiting);
                if (ec) {
                    is_right &= ec == asio::error::eof;
                    break;
                }
                is_right &= record.bytes().size() == sizes() % (most + 1);
                is_right &= is_filled(record.bytes(), read);
                // Some are kept for four records, and released in another order.
                bool const is_small = std::uint64_t{most} * 8 < options.ring_bytes;
                if (is_small && (!kept.empty() || random() % 4 == 0))
                    kept.push_back(std::move(record));
                if (kept.size() == 4) {
                    std::swap(kept[0], kept[2]);
                    kept.clear();
                }
            }
        };
        co_await (writing() && reading());
        CHECK(read == records);
        CHECK(is_right);
        CHECK(e.writer.last_failure().reason == close_reason::completed);
    });
}

}  // namespace

TEST_CASE("a program that fills the queue of a ring's connection loses no record", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        co_await meet_ring(io, e, ring_of(1 << 16, 64));
        registered_buffer const ours{e.writer.domain(), 8, access_flags::local_read};
        registered_buffer const theirs{e.reader.domain(), 8, access_flags::remote_write};
        int refused = 0;
        for (int i = 0; i < 3000; ++i) {
            e.writer.next_layer()
                .async_write(ours.slice(), theirs.remote(), [&](error_code ec, std::size_t) {
                    if (ec) ++refused;
                });
        }
        constexpr std::uint64_t records = 200;
        auto const write = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < records; ++i) {
                auto const [ec] = co_await e.writer.async_write(bytes_of_record(i, 100), awaiting);
                CHECK_FALSE(ec);
            }
        };
        auto const read = [&]() -> asio::awaitable<void> {
            for (std::uint64_t i = 0; i < records; ++i) {
                auto const [ec, record] = co_await e.reader.async_read(awaiting);
                REQUIRE_FALSE(ec);
                CHECK(is_filled(record.bytes(), i));
            }
        };
        co_await (write() && read());
        CHECK(refused > 0);
    });
}

TEST_CASE("records of any size go around a ring many times", "[device]") {
    stream_records(500, ring_of(16384, 64), 8184);
    stream_records(1000, ring_of(16384, 64), 1000);
    // The smallest ring, and more receives than a full ring of the smallest records needs.
    stream_records(500, ring_of(4096, 16), 2040);
    stream_records(2000, ring_of(4096, 1024), 0);
}

// Sanitizers take two minutes for a million; they are for the paths, which are the same.
TEST_CASE("a million records go through a ring in order", "[device][long]") {
#if defined(RCVERBS_ADDRESS_SANITIZER) || defined(RCVERBS_THREAD_SANITIZER)
    constexpr std::uint32_t records = 20'000;
#else
    constexpr std::uint32_t records = 1'000'000;
#endif
    stream_records(records, ring_of(1U << 20, 1024), 100);
}

TEST_CASE("a writer waits for a slow reader, and can be cancelled", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        co_await meet_ring(io, e, ring_of(4096, 64));
        std::vector<std::byte> record(1000);
        for (std::uint64_t i = 0; i < 4; ++i) {
            fill_record(record, i);
            co_await e.writer.async_write(record, asio::use_awaitable);
        }
        // There is no room for a fifth.
        asio::cancellation_signal stop;
        std::optional<error_code> stopped;
        std::vector<std::byte> const unwanted(1000);
        e.writer.async_write(
            unwanted,
            asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) { stopped = ec; })
        );
        bool is_written = false;
        std::vector<std::byte> fifth(500);
        fill_record(fifth, 4);
        e.writer.async_write(fifth, [&](error_code ec) {
            CHECK_FALSE(ec);
            is_written = true;
        });
        co_await pause(io, 20ms);
        CHECK_FALSE(is_written);
        stop.emit(asio::cancellation_type::total);
        co_await until(io, [&] { return stopped.has_value(); });
        co_await pause(io, 20ms);
        CHECK(*stopped == asio::error::operation_aborted);
        CHECK_FALSE(is_written);
        CHECK(e.writer.statistics().waits == 1);
        CHECK(e.writer.statistics().used_bytes == 4032);
        for (std::uint64_t i = 0; i < 5; ++i) {
            ring_record const r = co_await e.reader.async_read(asio::use_awaitable);
            CHECK(r.bytes().size() == (i < 4 ? 1000 : 500));
            CHECK(is_filled(r.bytes(), i));
        }
        co_await until(io, [&] { return is_written; });
        co_await e.writer.async_finish(asio::use_awaitable);
    });
}

TEST_CASE("what waits behind a write that is cancelled goes on, if there is room", "[device]") {
    bool const is_end = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        co_await meet_ring(io, e, ring_of(4096, 16));
        std::vector<std::byte> const some(2040);
        co_await e.writer.async_write(some, asio::use_awaitable);
        co_await e.writer.async_write(bytes_of("12345678"), asio::use_awaitable);
        ring_record kept = co_await e.reader.async_read(asio::use_awaitable);
        ring_record small = co_await e.reader.async_read(asio::use_awaitable);
        asio::cancellation_signal stop;
        auto const behind = bytes_of("behind");
        std::optional<error_code> first;
        std::optional<error_code> second;
        e.writer.async_write(some, asio::bind_cancellation_slot(stop.slot(), [&](error_code ec) {
                                 first = ec;
                             }));
        if (is_end) e.writer.async_finish([&](error_code ec) { second = ec; });
        else e.writer.async_write(behind, [&](error_code ec) { second = ec; });
        co_await until(io, [&] { return e.writer.statistics().waits == 1; });
        stop.emit(asio::cancellation_type::total);
        co_await until(io, [&] { return first.has_value(); });
        CHECK(*first == asio::error::operation_aborted);
        if (is_end) {
            auto const [ec, none] = co_await e.reader.async_read(awaiting);
            CHECK(ec == asio::error::eof);
        } else {
            ring_record const r = co_await e.reader.async_read(asio::use_awaitable);
            CHECK(text_of(r.bytes()) == "behind");
        }
        kept.release();
        small.release();
        co_await until(io, [&] { return second.has_value(); });
        CHECK_FALSE(*second);
        if (is_end) co_return;
        co_await e.writer.async_finish(asio::use_awaitable);
        CHECK(e.writer.statistics().used_bytes == 0);
    });
}

TEST_CASE("a read can be cancelled, and the record is for the next one", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        co_await meet_ring(io, e, ring_of(4096, 16));
        asio::cancellation_signal stop;
        error_code first;
        e.reader.async_read(asio::bind_cancellation_slot(
            stop.slot(), [&](error_code ec, ring_record const&) { first = ec; }
        ));
        stop.emit(asio::cancellation_type::total);
        co_await until(io, [&] { return bool{first}; });
        CHECK(first == asio::error::operation_aborted);
        co_await e.writer.async_write(bytes_of("one"), asio::use_awaitable);
        ring_record const r = co_await e.reader.async_read(asio::use_awaitable);
        CHECK(text_of(r.bytes()) == "one");
    });
}

TEST_CASE("the end of one side is heard by the other", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        {
            ring_ends e{io};
            co_await meet_ring(io, e, ring_of(4096, 16));
            co_await e.writer.async_write(bytes_of("one"), asio::use_awaitable);
            co_await until(io, [&] { return e.reader.statistics().records == 1; });
            e.writer.close();
            // What has arrived is read before.
            ring_record const r = co_await e.reader.async_read(asio::use_awaitable);
            CHECK(text_of(r.bytes()) == "one");
            auto const [ec, none] = co_await e.reader.async_read(awaiting);
            CHECK(ec == channel_errc::peer_closed_early);
            auto const [again, nil] = co_await e.reader.async_read(awaiting);
            CHECK(again == channel_errc::peer_closed_early);
        }
        {
            ring_ends e{io};
            co_await meet_ring(io, e, ring_of(4096, 16));
            std::vector<std::byte> const half(2000);
            co_await e.writer.async_write(half, asio::use_awaitable);
            co_await e.writer.async_write(half, asio::use_awaitable);
            std::optional<error_code> waiting;
            std::optional<error_code> finished;
            e.writer.async_write(half, [&](error_code ec) { waiting = ec; });
            e.writer.async_finish([&](error_code ec) { finished = ec; });
            auto const [late] = co_await e.writer.async_write(half, awaiting);
            CHECK(late == errc::operation_in_progress);
            e.reader.close();
            co_await until(io, [&] { return waiting && finished; });
            CHECK(*waiting == errc::peer_disconnected);
            CHECK(*finished == errc::peer_disconnected);
        }
    });
}

TEST_CASE(
    "a writer that finishes does not wait for ever for a reader that releases nothing", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        ring_options options = ring_of(4096, 16);
        options.finish_timeout = 300ms;
        co_await meet_ring(io, e, options);
        std::vector<std::byte> const half(2000);
        co_await e.writer.async_write(half, asio::use_awaitable);
        ring_record const kept = co_await e.reader.async_read(asio::use_awaitable);
        auto const [ec] = co_await e.writer.async_finish(awaiting);
        CHECK(ec == channel_errc::peer_not_received);
        CHECK_FALSE(e.writer.is_open());
        CHECK(e.writer.last_failure().reason == close_reason::timed_out);
        auto const [none, nothing] = co_await e.reader.async_read(awaiting);
        CHECK(none == boost::asio::error::eof);
    });
}

TEST_CASE("a writer that finishes waits as long as its reader releases records", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_ends e{io};
        ring_options options = ring_of(4096, 16);
        options.finish_timeout = 2s;
        co_await meet_ring(io, e, options);
        std::vector<std::byte> const quarter(1000);
        for (int i = 0; i < 4; ++i) co_await e.writer.async_write(quarter, asio::use_awaitable);
        auto const began = std::chrono::steady_clock::now();
        std::optional<error_code> finished;
        e.writer.async_finish([&](error_code ec) { finished = ec; });
        for (int i = 0; i < 4; ++i) {
            asio::steady_timer pause{io, 700ms};
            co_await pause.async_wait(asio::use_awaitable);
            ring_record const r = co_await e.reader.async_read(asio::use_awaitable);
            CHECK(r.bytes().size() == quarter.size());
        }
        co_await until(io, [&] { return finished.has_value(); });
        CHECK_FALSE(*finished);
        CHECK(std::chrono::steady_clock::now() - began > options.finish_timeout);
    });
}

TEST_CASE("records outlive the reader, and its context", "[device]") {
    ring_record kept;
    {
        asio::io_context io;
        run(io, [&]() -> asio::awaitable<void> {
            ring_ends e{io};
            co_await meet_ring(io, e, ring_of(4096, 16));
            co_await e.writer.async_write(bytes_of("kept"), asio::use_awaitable);
            kept = co_await e.reader.async_read(asio::use_awaitable);
        });
        CHECK(text_of(kept.bytes()) == "kept");
    }
    CHECK(text_of(kept.bytes()) == "kept");
    kept.release();
}

TEST_CASE("a reader that leaves when it has read everything harms no writer that finishes") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (int round = 0; round < 50; ++round) {
            ring_ends e{io};
            co_await meet_ring(io, e, ring_of(4096, 16));
            auto const write = [&]() -> asio::awaitable<void> {
                for (int i = 0; i < round; ++i)
                    co_await e.writer.async_write(bytes_of("record"), asio::use_awaitable);
                co_await e.writer.async_finish(asio::use_awaitable);
            };
            auto const read = [&]() -> asio::awaitable<void> {
                ring_reader mine = std::move(e.reader);
                for (;;) {
                    auto const [ec, record] = co_await mine.async_read(awaiting);
                    if (ec) break;
                }
            };
            co_await (write() && read());
        }
    });
}

TEST_CASE("peers that are no rings, or the same side, are told", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        auto const get = [&] { return door.async_get_request(asio::use_awaitable); };
        // Two writers.
        {
            ring_writer one{io};
            ring_writer two;
            error_code refused;
            auto const answer = [&]() -> asio::awaitable<void> {
                two = ring_writer{io, co_await get()};
                auto const [ec] = co_await two.async_accept(awaiting);
                refused = ec;
            };
            auto const connect = [&]() -> asio::awaitable<void> {
                auto const [ec] = co_await one.async_connect(door.local_endpoint(), awaiting);
                CHECK(ec == channel_errc::mode_mismatch);
            };
            co_await (answer() && connect());
            CHECK(refused == channel_errc::mode_mismatch);
        }
        // A connection without a hello.
        {
            connection plain{io};
            ring_reader reader;
            auto const answer = [&]() -> asio::awaitable<void> {
                reader = ring_reader{io, co_await get()};
                auto const [ec] = co_await reader.async_accept(awaiting);
                CHECK(ec == channel_errc::foreign_peer);
            };
            auto const connect = [&]() -> asio::awaitable<void> {
                auto const [ec] = co_await plain.async_connect(door.local_endpoint(), awaiting);
                CHECK(ec == cm_errc::rejected_by_peer);
            };
            co_await (answer() && connect());
        }
        // A ring that is too large for the writer.
        {
            ring_writer writer{io, ring_of(4096, 16)};
            ring_reader reader;
            auto const answer = [&]() -> asio::awaitable<void> {
                reader = ring_reader{io, co_await get(), ring_of(8192, 16)};
                co_await reader.async_accept(awaiting);
            };
            auto const connect = [&]() -> asio::awaitable<void> {
                auto const [ec] = co_await writer.async_connect(door.local_endpoint(), awaiting);
                CHECK(ec == boost::system::errc::value_too_large);
            };
            co_await (answer() && connect());
        }
        CHECK_THROWS_AS(ring_reader(io, ring_of(4097, 16)), boost::system::system_error);
        CHECK_THROWS_AS(ring_reader(io, ring_of(4096, 15)), boost::system::system_error);
        ring_writer idle{io};
        auto const [ec] = co_await idle.async_write({}, awaiting);
        CHECK(ec == errc::not_connected);
        auto const [nothing] = co_await idle.async_finish(awaiting);
        CHECK(nothing == errc::not_connected);
    });
}

TEST_CASE("a context that is destroyed takes a ring with it", "[device][any-device]") {
    // At every place: after so many steps of the context. What handlers hold goes with them.
    auto const held = std::make_shared<int>(0);
    int written = 0;
    for (int steps = 0; steps < 250; steps += 17) {
        std::deque<ring_record> kept;
        {
            asio::io_context io;
            ring_ends e{io};
            auto const use = [&, held]() -> asio::awaitable<void> {
                co_await meet_ring(io, e, ring_of(4096, 16));
                auto const write = [&, held]() -> asio::awaitable<void> {
                    std::vector<std::byte> const record(900);
                    for (;; ++written) co_await e.writer.async_write(record, asio::use_awaitable);
                };
                auto const read = [&, held]() -> asio::awaitable<void> {
                    for (;;) {
                        kept.push_back(co_await e.reader.async_read(asio::use_awaitable));
                        if (kept.size() > 3) kept.pop_front();
                    }
                };
                co_await (write() && read());
            };
            asio::co_spawn(io, use(), [held](std::exception_ptr const&) {});
            for (int i = 0; i < steps; ++i) io.run_one_for(10ms);
            if (steps % 2 == 0) kept.clear();
        }
        kept.clear();
        CHECK(held.use_count() == 1);
    }
    CHECK(written > 0);
}

TEST_CASE("a ring is written and read on many threads", "[device]") {
    asio::thread_pool threads{2};
    {
        acceptor door{threads, {device_address(), 0}};
        ring_options const options = ring_of(16384, 64);
        ring_writer writer{threads, options};
        ring_reader reader;
        std::promise<error_code> accepted;
        door.async_get_request([&](error_code ec, connection_request asked) {
            if (ec) return accepted.set_value(ec);
            reader = ring_reader{threads, std::move(asked), options};
            reader.async_accept([&](error_code why) { accepted.set_value(why); });
        });
        std::promise<error_code> connected;
        writer.async_connect(door.local_endpoint(), [&](error_code ec) {
            connected.set_value(ec);
        });
        REQUIRE_FALSE(connected.get_future().get());
        REQUIRE_FALSE(accepted.get_future().get());
        constexpr int writers = 3;
        constexpr int each = 300;
        std::atomic<int> failed{0};
        std::atomic<int> read{0};
        std::atomic<int> wrong{0};
        std::vector<std::jthread> all;
        for (int i = 0; i < writers; ++i)
            all.emplace_back([&, i] {
                std::vector<std::byte> record(64, static_cast<std::byte>(i));
                for (int n = 0; n < each; ++n) {
                    std::promise<error_code> done;
                    writer.async_write(record, [&](error_code ec) { done.set_value(ec); });
                    if (done.get_future().get()) ++failed;
                }
            });
        for (int i = 0; i < 2; ++i)
            all.emplace_back([&] {
                for (;;) {
                    std::promise<std::pair<error_code, ring_record>> done;
                    reader.async_read([&](error_code ec, ring_record record) {
                        done.set_value({ec, std::move(record)});
                    });
                    auto const got = done.get_future().get();
                    if (got.first) break;
                    auto const bytes = got.second.bytes();
                    wrong +=
                        bytes.size() == 64 && std::ranges::count(bytes, bytes[0]) == 64 ? 0 : 1;
                    ++read;
                }
            });
        for (int i = 0; i < writers; ++i) all[static_cast<std::size_t>(i)].join();
        std::promise<error_code> finished;
        writer.async_finish([&](error_code ec) { finished.set_value(ec); });
        CHECK_FALSE(finished.get_future().get());
        for (auto& t : all)
            if (t.joinable()) t.join();
        CHECK(failed == 0);
        CHECK(wrong == 0);
        CHECK(read == writers * each);
    }
    threads.join();
}

// --- hostile peers -------------------------------------------------------------------------------

namespace {

std::vector<std::byte> ring_hello(
    std::uint8_t role,
    std::uint32_t bytes = 0,
    std::uint32_t receives = 0,
    std::uint64_t address = 0,
    std::uint32_t key = 0
) {
    std::vector<std::byte> b = {std::byte{'R'}, std::byte{'I'}, std::byte{'N'}, std::byte{'G'}};
    put(b, 1, 2);
    put(b, role, 1);
    put(b, 0, 1);
    put(b, bytes, 4);
    put(b, receives, 4);
    put(b, address, 8);
    put(b, key, 4);
    put(b, 0, 4);
    return b;
}

/// A peer with a plain connection that says it is a writer.
struct forged_writer {
    explicit forged_writer(asio::io_context& io) : door{io, {device_address(), 0}}, peer{io} {}

    asio::awaitable<void> meet(asio::io_context& io) {
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            reader = ring_reader{io, std::move(asked), ring_of(4096, 16)};
            co_await reader.async_accept(asio::use_awaitable);
        };
        auto const connect = [&]() -> asio::awaitable<void> {
            co_await peer.async_resolve(door.local_endpoint(), asio::use_awaitable);
            memory = registered_buffer{peer.domain(), 4096, access_flags::local_write};
            for (int i = 0; i < 16; ++i)
                peer.async_receive(memory.slice(4032, 64), [](error_code, receive_result const&) {
                });
            co_await peer.async_establish(ring_hello(1), asio::use_awaitable);
        };
        co_await (answer() && connect());
        auto const hello = peer.private_data();
        std::uint64_t address = 0;
        for (std::size_t i = 16; i < 24; ++i)
            address = address << 8 | std::to_integer<std::uint64_t>(hello[i]);
        std::uint32_t key = 0;
        for (std::size_t i = 24; i < 28; ++i)
            key = key << 8 | std::to_integer<std::uint32_t>(hello[i]);
        ring = remote_region{address, 4096, remote_key{key}, access_flags::remote_write};
    }
    /// Writes a record with these in its header and its notice.
    asio::awaitable<error_code> forge(
        std::uint64_t offset,
        std::uint32_t bytes,
        std::uint32_t header_bytes,
        std::uint32_t sequence,
        std::uint32_t immediate
    ) {
        std::vector<std::byte> header;
        put(header, header_bytes, 4);
        put(header, sequence, 4);
        std::ranges::copy(header, memory.bytes().begin());
        auto const [ec, n] = co_await peer.async_write_with_immediate(
            memory.slice(0, bytes), ring.slice(offset, bytes), immediate, awaiting
        );
        co_return ec;
    }

    acceptor door;
    connection peer;
    registered_buffer memory;
    remote_region ring;
    ring_reader reader;
};

}  // namespace

TEST_CASE("a writer that lies loses its own ring, and is never believed", "[device][hostile]") {
    struct lie {
        char const* what;
        std::uint32_t bytes;
        std::uint32_t header_bytes;
        std::uint32_t sequence;
        std::uint32_t immediate;
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (lie const& l :
             {lie{"a header of another size", 24, 17, 0, 3},
              lie{"a header of a larger size than was written", 24, 2000, 0, 3},
              lie{"another number", 24, 16, 1, 3},
              lie{"a notice of a larger size", 24, 16, 0, 4},
              lie{"a notice of a smaller size", 24, 16, 0, 2},
              lie{"a notice of the largest size", 24, 16, 0, 0x7fffffff},
              lie{"nothing was written", 0, 0, 0, 1},
              lie{"less than a header", 4, 0, 0, 1},
              lie{"longer than a record may be", 2056, 2048, 0, 257},
              lie{"a request for more room than there is", 0, 0, 0, 0x80000201},
              lie{"a request for room with bytes", 8, 0, 0, 0x80000001},
              lie{"an end with bytes", 8, 0, 0, 0x80000000}}) {
            INFO(l.what);
            forged_writer f{io};
            co_await f.meet(io);
            co_await f.forge(0, l.bytes, l.header_bytes, l.sequence, l.immediate);
            auto const [ec, none] = co_await f.reader.async_read(awaiting);
            CHECK(ec == channel_errc::malformed_message);
            CHECK(f.reader.last_failure().reason == close_reason::protocol_error);
        }
        // A message in place of a write.
        forged_writer f{io};
        co_await f.meet(io);
        co_await f.peer.async_send(const_slice{}, awaiting);
        auto const [ec, none] = co_await f.reader.async_read(awaiting);
        CHECK(ec == channel_errc::unexpected_message);
    });
}

TEST_CASE("a writer that does not wait for room is found out", "[device][hostile]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        forged_writer f{io};
        co_await f.meet(io);
        for (std::uint32_t i = 0; i < 2; ++i) {
            auto const ec = co_await f.forge(i * 2048, 2048, 2040, i, 256);
            CHECK_FALSE(ec);
        }
        ring_record const first = co_await f.reader.async_read(asio::use_awaitable);
        ring_record const second = co_await f.reader.async_read(asio::use_awaitable);
        CHECK(first.bytes().size() == 2040);
        // The third goes over the first, which is not released.
        co_await f.forge(0, 2048, 2040, 2, 256);
        auto const [ec, none] = co_await f.reader.async_read(awaiting);
        CHECK(ec == channel_errc::malformed_message);
        // Beyond the ring the device refuses it.
        forged_writer g{io};
        co_await g.meet(io);
        auto const [refused, nothing] = co_await g.peer.async_write(
            g.memory.slice(0, 16),
            remote_region{g.ring.address() + 4088, 16, g.ring.key(), access_flags::remote_write},
            awaiting
        );
        CHECK(refused == wc_errc::remote_access);
    });
}

TEST_CASE("a reader that lies loses its own ring", "[device][hostile]") {
    struct lie {
        char const* what;
        std::uint64_t consumed;
        std::uint64_t posted;
        std::uint32_t waits;
        std::uint32_t flags;
        std::size_t bytes = 24;
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (lie const& l :
             {lie{"more than was written", 24, 16, 0, 0},
              lie{"more than can be", UINT64_MAX - 7, 16, 0, 0},
              lie{"half a unit", 4, 16, 0, 0},
              lie{"more receives than notices", 16, 18, 0, 0},
              lie{"fewer receives", 16, 15, 0, 0},
              lie{"an answer to no question", 16, 17, 1, 0},
              lie{"the end before the end", 16, 17, 0, 1},
              lie{"unknown flags", 16, 17, 0, 2},
              lie{"a short message", 16, 17, 0, 0, 23},
              lie{"nothing", 0, 0, 0, 0, 0}}) {
            INFO(l.what);
            acceptor door{io, {device_address(), 0}};
            ring_writer writer{io, ring_of(4096, 16)};
            connection peer;
            registered_buffer memory;
            auto const answer = [&]() -> asio::awaitable<void> {
                peer = connection{io, co_await door.async_get_request(asio::use_awaitable)};
                memory = registered_buffer{
                    peer.domain(), 8192, access_flags::local_write | access_flags::remote_write};
                for (int i = 0; i < 16; ++i)
                    peer.async_receive(mutable_slice{}, [](error_code, receive_result const&) {});
                auto const hello =
                    ring_hello(2, 4096, 16, memory.remote().address(), memory.remote().key().value);
                co_await peer.async_accept(hello, asio::use_awaitable);
            };
            co_await (answer() && writer.async_connect(door.local_endpoint(), asio::use_awaitable));
            co_await writer.async_write(bytes_of("12345678"), asio::use_awaitable);
            std::vector<std::byte> counts;
            put(counts, l.consumed, 8);
            put(counts, l.posted, 8);
            put(counts, l.waits, 4);
            put(counts, l.flags, 4);
            std::ranges::copy(counts, memory.bytes().begin() + 4096);
            co_await peer.async_send(memory.slice(4096, l.bytes), awaiting);
            co_await until(io, [&] { return !writer.is_open(); });
            CHECK(writer.last_failure().code == channel_errc::malformed_message);
            CHECK(writer.last_failure().reason == close_reason::protocol_error);
        }
        // Rings that cannot be.
        for (std::uint32_t const bytes : {0U, 4095U, 6144U, 1U << 31}) {
            acceptor door{io, {device_address(), 0}};
            ring_writer writer{io};
            connection peer;
            auto const answer = [&]() -> asio::awaitable<void> {
                peer = connection{io, co_await door.async_get_request(asio::use_awaitable)};
                co_await peer.async_accept(ring_hello(2, bytes, 16), awaiting);
            };
            auto const connect = [&]() -> asio::awaitable<void> {
                auto const [ec] = co_await writer.async_connect(door.local_endpoint(), awaiting);
                CHECK(ec == channel_errc::malformed_message);
            };
            co_await (answer() && connect());
        }
    });
}
