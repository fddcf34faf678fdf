// Operations that own their memory: what a cancellation leaves behind, and who gets which message.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include <rcverbs/memory_lease.hpp>
#include <rcverbs/shared_receive_queue.hpp>
#include <rcverbs/slot_pool.hpp>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// Two leased_ends, slots for the server's receives, and memory of the client's to send from.
struct leased_ends {
    test::pair both;
    slot_pool slots;
    registered_buffer from;

    leased_ends(asio::io_context& io, test::pair p, std::uint32_t count = 8)
        : both{std::move(p)},
          slots{io, both.server.domain(), {.slots = count, .slot_bytes = 64}},
          from{both.client.domain(), 64, access_flags::local_write} {}

    connection& client() { return both.client; }
    connection& server() { return both.server; }
    asio::awaitable<void> send(int number) {
        std::memcpy(from.bytes().data(), &number, sizeof(number));
        co_await both.client.async_send(from.slice(0, sizeof(number)), asio::use_awaitable);
    }
};

int number_in(leased_receive_result const& got) {
    int number = 0;
    REQUIRE(got.bytes().size() == sizeof(number));
    std::memcpy(&number, got.bytes().data(), sizeof(number));
    return number;
}

// A receive whose outcome can be looked at, and which can be cancelled.
struct watched_receive {
    asio::cancellation_signal cancel;
    bool is_done = false;
    error_code code;
    leased_receive_result got;

    void start(connection& c, slot_lease slot) {
        c.async_receive(
            std::move(slot),
            asio::bind_cancellation_slot(
                cancel.slot(),
                [this](error_code ec, leased_receive_result r) {
                    is_done = true;
                    code = ec;
                    got = std::move(r);
                }
            )
        );
    }
};

asio::awaitable<void> until(asio::io_context& io, bool const& condition) {
    while (!condition) co_await asio::post(io, asio::use_awaitable);
}

asio::awaitable<void> until_free(asio::io_context& io, slot_pool const& slots) {
    while (slots.free_count() < slots.options().slots) co_await asio::post(io, asio::use_awaitable);
}

}  // namespace

TEST_CASE("a receive that owns its memory gets its message, and the memory with it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        leased_ends e{io, co_await connect(io)};
        for (int i = 0; i < 30; ++i) {
            slot_lease slot = co_await e.slots.async_acquire(asio::use_awaitable);
            auto got = co_await (
                e.server().async_receive(std::move(slot), asio::use_awaitable) && e.send(i)
            );
            CHECK(number_in(got) == i);
            CHECK(got.memory.size() == 64);
            CHECK(e.slots.free_count() == 7);
        }
        CHECK(e.slots.free_count() == 8);
        // Anything that owns registered memory will do.
        registered_buffer own{e.server().domain(), 4096, access_flags::local_write};
        auto got =
            co_await (e.server().async_receive(std::move(own), asio::use_awaitable) && e.send(7));
        CHECK(got.memory.size() == 4096);
        CHECK(number_in(got) == 7);
        co_await disconnect(e.both);
    });
}

TEST_CASE("receive || timer does not end the connection, and loses no message", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        leased_ends e{io, co_await connect(io)};
        asio::steady_timer timer{io};
        for (int i = 0; i < 20; ++i) {
            timer.expires_after(2ms);
            slot_lease slot = co_await e.slots.async_acquire(asio::use_awaitable);
            auto won = co_await (
                e.server().async_receive(std::move(slot), awaiting) || timer.async_wait(awaiting)
            );
            CHECK(won.index() == 1);
            REQUIRE(e.server().is_open());
        }
        // One receive is posted, however many were cancelled.
        CHECK(e.slots.free_count() == 7);
        CHECK(e.server().statistics().receive_credits == 1);
        // A message that arrives while nobody waits is kept.
        co_await e.send(42);
        slot_lease slot = co_await e.slots.async_acquire(asio::use_awaitable);
        auto const got = co_await e.server().async_receive(std::move(slot), asio::use_awaitable);
        CHECK(number_in(got) == 42);
        co_await disconnect(e.both);
    });
}

TEST_CASE("every type of cancellation completes a leased receive at once", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        leased_ends e{io, co_await connect(io)};
        for (auto const type :
             {asio::cancellation_type::total,
              asio::cancellation_type::partial,
              asio::cancellation_type::terminal,
              asio::cancellation_type::all}) {
            watched_receive r;
            r.start(e.server(), e.slots.try_acquire());
            r.cancel.emit(type);
            CHECK_FALSE(r.is_done);
            co_await until(io, r.is_done);
            CHECK(r.code == asio::error::operation_aborted);
            CHECK_FALSE(r.got.memory.is_valid());
            r.cancel.emit(type);  // too late: without effect
        }
        watched_receive r;
        r.start(e.server(), e.slots.try_acquire());
        e.server().cancel();
        co_await until(io, r.is_done);
        CHECK(r.code == asio::error::operation_aborted);
        CHECK(e.server().is_open());
        CHECK(e.slots.free_count() == 7);
        co_await disconnect(e.both);
        co_await until_free(io, e.slots);
    });
}

TEST_CASE("handlers get messages in the order of their calls, cancelled ones none", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        leased_ends e{io, co_await connect(io)};
        watched_receive first, second, third, fourth;
        first.start(e.server(), e.slots.try_acquire());
        second.start(e.server(), e.slots.try_acquire());
        first.cancel.emit(asio::cancellation_type::terminal);
        third.start(e.server(), e.slots.try_acquire());
        // The third handler waits for the receive that the first one has left.
        CHECK(e.slots.free_count() == 6);
        co_await e.send(1);
        co_await e.send(2);
        co_await until(io, third.is_done);
        CHECK(number_in(second.got) == 1);
        CHECK(number_in(third.got) == 2);
        // Kept messages, too, in their order.
        watched_receive fifth;
        fourth.start(e.server(), e.slots.try_acquire());
        fifth.start(e.server(), e.slots.try_acquire());
        fourth.cancel.emit(asio::cancellation_type::total);
        fifth.cancel.emit(asio::cancellation_type::total);
        co_await e.send(3);
        co_await e.send(4);
        for (int i = 3; i <= 4; ++i) {
            watched_receive late;
            late.start(e.server(), e.slots.try_acquire());
            CHECK_FALSE(late.is_done);
            co_await until(io, late.is_done);
            CHECK(number_in(late.got) == i);
        }
        e.client().close();
        co_await e.server().async_wait_disconnected(awaiting);
    });
}

TEST_CASE(
    "no message is lost and no slot leaks, whenever receives are cancelled", "[device][any-device]"
) {
    asio::io_context io;
    constexpr int messages = 300;
    std::uint32_t const seed = GENERATE(1U, 2U, 3U);
    run(io, [&]() -> asio::awaitable<void> {
        // The client waits for as long as no receive is posted.
        connection_options patient;
        patient.queue_pair.rnr_retry_count = 7;
        leased_ends e{io, co_await connect(io, patient, patient), 4};
        std::mt19937 random{seed};
        int received = 0;
        bool is_over = false;
        auto const serve = [&]() -> asio::awaitable<void> {
            asio::steady_timer timer{io};
            while (received < messages) {
                slot_lease slot = co_await e.slots.async_acquire(asio::use_awaitable);
                timer.expires_after(std::chrono::microseconds{random() % 200});
                auto won = co_await (
                    e.server().async_receive(std::move(slot), awaiting) ||
                    timer.async_wait(awaiting)
                );
                if (auto const* const done = std::get_if<0>(&won)) {
                    auto const& [ec, got] = *done;
                    REQUIRE_FALSE(ec);
                    CHECK(number_in(got) == received++);
                }
            }
            is_over = true;
        };
        auto const ask = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < messages; ++i) co_await e.send(i);
        };
        co_await (serve() && ask());
        CHECK(is_over);
        CHECK(e.server().is_open());
        CHECK(e.server().statistics().receive_credits <= 1);
        co_await disconnect(e.both);
        co_await until_free(io, e.slots);
    });
}

TEST_CASE(
    "a cancelled operation that owns its memory releases it when the device has", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options peer;
        peer.queue_pair.rnr_retry_count = 7;  // unlimited: the receives come at any time
        test::pair p = co_await connect(io, {}, peer);
        slot_pool slots{io, p.client.domain(), {.slots = 8, .slot_bytes = 64}};
        registered_buffer theirs{
            p.server.domain(),
            64,
            access_flags::remote_write | access_flags::remote_read | access_flags::remote_atomic};
        slot_lease slot = slots.try_acquire();
        std::memset(slot.bytes().data(), 7, 64);
        auto [written, memory] = co_await p.client.async_start(
            op::write(std::move(slot), 64, theirs.remote()), asio::use_awaitable
        );
        CHECK(written == 64);
        CHECK(memory.is_valid());
        CHECK(theirs.bytes()[63] == std::byte{7});
        auto [read, again] = co_await p.client.async_start(
            op::read(theirs.remote().slice(0, 16), std::move(memory)), asio::use_awaitable
        );
        CHECK(read == 16);
        CHECK(again.size() == 64);
        auto [before, word] = co_await p.client.async_start(
            op::fetch_add(theirs.remote().word(0), 1, std::move(again)), asio::use_awaitable
        );
        CHECK(before == 0x0707070707070707);
        std::uint64_t stored = 0;
        std::memcpy(&stored, word.bytes().data(), sizeof(stored));
        CHECK(stored == before);
        auto [swapped, cell] = co_await p.client.async_start(
            op::compare_swap(theirs.remote().word(8), before, 5, std::move(word)),
            asio::use_awaitable
        );
        CHECK(swapped == before);
        cell.release();
        CHECK(slots.free_count() == 8);

        // The peer posts no receive yet, so that the send and what follows it stay posted.
        int aborted = 0;
        asio::cancellation_signal signal;
        auto cancelled = asio::bind_cancellation_slot(
            signal.slot(),
            [&](error_code ec, std::size_t n, memory_lease none) {
                CHECK(ec == asio::error::operation_aborted);
                CHECK(n == 0);
                CHECK_FALSE(none.is_valid());
                ++aborted;
            }
        );
        p.client.async_start(op::send(slots.try_acquire(), 8), std::move(cancelled));
        co_await asio::post(io, asio::use_awaitable);
        signal.emit(asio::cancellation_type::terminal);
        while (aborted < 1) co_await asio::post(io, asio::use_awaitable);
        CHECK(p.client.is_open());
        CHECK(slots.free_count() == 7);
        registered_buffer into{p.server.domain(), 64, access_flags::local_write};
        // The send is carried out all the same, and a later one comes after it.
        slot_lease other = slots.try_acquire();
        std::memset(other.bytes().data(), 9, 64);
        auto const receive_both = [&]() -> asio::awaitable<void> {
            auto const one = co_await p.server.async_receive(into.slice(), asio::use_awaitable);
            CHECK(one.size_bytes == 8);
            auto const two = co_await p.server.async_receive(into.slice(), asio::use_awaitable);
            CHECK(two.size_bytes == 9);
        };
        auto const send_other = [&]() -> asio::awaitable<void> {
            auto [n, back] =
                co_await p.client.async_start(op::send(std::move(other), 9), asio::use_awaitable);
            CHECK(n == 9);
        };
        co_await (receive_both() && send_other());
        CHECK(slots.free_count() == 8);
        co_await disconnect(p);
    });
}

TEST_CASE("an operation that owns its memory gives it back with its error", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        slot_pool slots{io, p.client.domain(), {.slots = 4, .slot_bytes = 64}};
        slot_pool foreign{io, p.server.domain(), {.slots = 4, .slot_bytes = 64}};
        registered_buffer theirs{p.server.domain(), 128, access_flags::remote_write};
        auto [too_small, n, memory] = co_await p.client.async_start(
            op::write(slots.try_acquire(), 128, theirs.remote()), awaiting
        );
        CHECK(too_small == errc::out_of_range);
        CHECK(memory.is_valid());
        auto [denied, m, still] = co_await p.client.async_start(
            op::read(theirs.remote().slice(0, 64), std::move(memory)), awaiting
        );
        CHECK(denied == errc::access_denied);
        CHECK(still.is_valid());
        if (p.client.domain().native_handle() != p.server.domain().native_handle()) {
            auto [wrong, k, gone] =
                co_await p.client.async_start(op::send(foreign.try_acquire(), 8), awaiting);
            CHECK(wrong == errc::foreign_domain);
            auto [bad, got] = co_await p.client.async_receive(foreign.try_acquire(), awaiting);
            CHECK(bad == errc::foreign_domain);
            CHECK(got.memory.is_valid());
        }
        // After the end, the reason; those that wait get their memory back, too.
        watched_receive waiting;
        waiting.start(p.client, slots.try_acquire());
        p.server.close();
        co_await until(io, waiting.is_done);
        CHECK(waiting.code);
        CHECK(waiting.got.memory.is_valid());
        co_await p.client.async_wait_disconnected(awaiting);
        auto [ended, none] = co_await p.client.async_receive(slots.try_acquire(), awaiting);
        CHECK(ended == errc::peer_disconnected);
        CHECK(none.memory.is_valid());
        auto [over, j, back] =
            co_await p.client.async_start(op::send(slots.try_acquire(), 8), awaiting);
        CHECK(over == errc::peer_disconnected);
        CHECK(back.is_valid());
    });
}

TEST_CASE(
    "a connection receives into borrowed memory, or into memory that receives own", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        leased_ends e{io, co_await connect(io)};
        registered_buffer borrowed{e.server().domain(), 64, access_flags::local_write};
        watched_receive own;
        own.start(e.server(), e.slots.try_acquire());
        auto [mixed, none] = co_await e.server().async_receive(borrowed.slice(), awaiting);
        CHECK(mixed == errc::receives_mixed);
        CHECK(e.server().try_start(op::receive(borrowed.slice()), [](auto&&...) {}) == mixed);
        co_await e.send(1);
        co_await until(io, own.is_done);
        CHECK(number_in(own.got) == 1);

        slot_pool of_client{io, e.client().domain(), {.slots = 1, .slot_bytes = 64}};
        e.client().async_receive(e.from.slice(), [](error_code, receive_result) {});
        auto [other, got] = co_await e.client().async_receive(of_client.try_acquire(), awaiting);
        CHECK(other == errc::receives_mixed);
        CHECK(got.memory.is_valid());
        co_await disconnect(e.both);
    });
}

TEST_CASE("a connection with shared receives refuses leased ones", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        shared_receive_queue queue{io, {}};
        connection_options sharing;
        sharing.placement.shared_receives = queue;
        leased_ends e{io, co_await connect(io, {}, sharing)};
        auto [ec, got] = co_await e.server().async_receive(e.slots.try_acquire(), awaiting);
        CHECK(ec == errc::receives_are_shared);
        CHECK(got.memory.is_valid());
        co_await disconnect(e.both);
    });
}

TEST_CASE("a context that is destroyed takes leased operations with it", "[device]") {
    auto io = std::make_unique<asio::io_context>();
    auto const watched = std::make_shared<int>(1);
    std::optional<connection> left;
    std::optional<slot_pool> slots;
    run(*io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(*io);
        slots.emplace(*io, p.server.domain(), slot_pool_options{.slots = 4, .slot_bytes = 64});
        p.server.async_receive(slots->try_acquire(), [watched](error_code, leased_receive_result) {
            FAIL("called");
        });
        p.server.async_start(
            op::send(slots->try_acquire(), 8),
            [watched](error_code, std::size_t, memory_lease) { FAIL("called"); }
        );
        CHECK(watched.use_count() == 3);
        left.emplace(std::move(p.server));
        p.client.close();
        io->stop();
        co_return;
    });
    io.reset();
    CHECK(watched.use_count() == 1);
}

TEST_CASE("handlers of leased operations run on their own executors", "[device]") {
    asio::io_context io;
    asio::thread_pool elsewhere{1};
    run(io, [&]() -> asio::awaitable<void> {
        leased_ends e{io, co_await connect(io)};
        std::atomic<bool> was_there{false};
        std::atomic<bool> is_done{false};
        e.server().async_receive(
            e.slots.try_acquire(),
            asio::bind_executor(
                elsewhere,
                [&](error_code ec, leased_receive_result got) {
                    was_there = !ec && elsewhere.get_executor().running_in_this_thread() &&
                                got.memory.is_valid();
                    is_done = true;
                }
            )
        );
        co_await e.send(1);
        while (!is_done) co_await asio::post(io, asio::use_awaitable);
        CHECK(was_there);
        co_await disconnect(e.both);
    });
    elsewhere.join();
}
