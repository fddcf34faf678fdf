// Injected faults between and behind two connections, and the errors that the program receives.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iostream>
#include <optional>
#include <random>

#include <rcverbs/message_channel.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/slot_pool.hpp>

#include "fabric/fixture.hpp"
#include "support/child_process.hpp"

using namespace rcverbs;
using namespace test;
using fabric::cm_event_fate;
using fabric::cm_event_info;
using fabric::packet_fate;
using fabric::packet_info;

namespace {

// enum rdma_cm_event_type
constexpr int cm_address_resolved = 0;
constexpr int cm_route_resolved = 2;
constexpr int cm_connect_request = 4;
constexpr int cm_connect_response = 5;
constexpr int cm_established = 9;
constexpr int cm_disconnected = 10;
// enum ibv_wc_status
constexpr int general_error = 21;

/// Memory of both ends, for one write.
struct memory_pair {
    registered_buffer ours;
    registered_buffer theirs;

    explicit memory_pair(test::pair const& p, std::size_t size = 65536)
        : ours{p.client.domain(), size, access_flags::local_write},
          theirs{
              p.server.domain(),
              size,
              access_flags::remote_read | access_flags::remote_write |
                  access_flags::remote_atomic} {}
};

}  // namespace

// --- the network ---------------------------------------------------------------------------------

TEST_CASE("lost packets are retransmitted without an effect on the programs", "[fabric]") {
    world w;
    asio::io_context io;
    unsigned const percent = GENERATE(1U, 3U, 5U);
    std::uint64_t lost = 0;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        w.on_packet([&lost,
                     percent,
                     random = std::mt19937_64{w.seed()}](packet_info const& on_its_way) mutable {
            if (random() % 100 >= percent) return packet_fate{};
            // A later acknowledgement replaces a lost one, so these losses do not count.
            if (on_its_way.what != packet_info::kind::acknowledge) ++lost;
            return packet_fate{packet_fate::kind::drop, {}};
        });
        for (std::size_t i = 0; i < m.ours.size(); ++i)
            m.ours.bytes()[i] = static_cast<std::byte>(i * 7 >> 3);
        co_await p.client.async_write(m.ours.slice(), m.theirs.remote(), asio::use_awaitable);
        CHECK(std::ranges::equal(m.ours.bytes(), m.theirs.bytes()));
        std::ranges::fill(m.ours.bytes(), std::byte{0});
        co_await p.client.async_read(m.theirs.remote(), m.ours.slice(), asio::use_awaitable);
        CHECK(std::ranges::equal(m.ours.bytes(), m.theirs.bytes()));
        std::ranges::fill(m.theirs.bytes(), std::byte{0});
        for (std::uint64_t i = 0; i < 20; ++i) {
            std::uint64_t const before = co_await p.client.async_fetch_add(
                m.theirs.remote().word(8), 1, asio::use_awaitable
            );
            CHECK(before == i);
        }
        w.on_packet(nullptr);
        co_await disconnect(p);
    });
    std::uint64_t const again =
        w.counters("fab0").packets_sent_again + w.counters("fab1").packets_sent_again;
    CHECK((lost == 0 || again > 0));
}

TEST_CASE("duplicate and late packets have no effect", "[fabric]") {
    world w;
    asio::io_context io;
    auto const what = GENERATE(packet_fate::kind::duplicate, packet_fate::kind::delay);
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        unsigned count = 0;
        w.on_packet([&](packet_info const&) {
            return ++count % 3 == 0 ? packet_fate{what, 20us} : packet_fate{};
        });
        for (std::uint64_t i = 0; i < 50; ++i) {
            std::uint64_t const before = co_await p.client.async_fetch_add(
                m.theirs.remote().word(0), 1, asio::use_awaitable
            );
            CHECK(before == i);
        }
        for (int i = 0; i < 20; ++i) {
            std::byte const mark{static_cast<unsigned char>(i)};
            std::ranges::fill(m.ours.bytes(), mark);
            co_await p.client.async_write(m.ours.slice(), m.theirs.remote(), asio::use_awaitable);
            CHECK(m.theirs.bytes()[65535] == mark);
        }
        w.on_packet(nullptr);
        co_await disconnect(p);
    });
}

TEST_CASE("a cut path is detected after the configured retries", "[fabric]") {
    world w;
    asio::io_context io;
    enum class cut { packets, port, power };
    auto const how = GENERATE(cut::packets, cut::port, cut::power);
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.ack_timeout = 16ms;
        options.queue_pair.retry_count = 3;
        test::pair p = co_await meet(io, options);
        memory_pair m{p};
        if (how == cut::packets)
            w.on_packet([](packet_info const&) {
                return packet_fate{packet_fate::kind::drop, {}};
            });
        if (how == cut::port) w.port_down("fab0");
        if (how == cut::power) w.power_off("fab0");
        auto const began = w.now();
        auto [ec, n] = co_await p.client.async_write(m.ours.slice(), m.theirs.remote(), awaiting);
        CHECK(ec == wc_errc::retry_exceeded);
        CHECK(n == 0);
        // The timeout is rounded up to a power of two; one first try and three retries.
        CHECK(w.now() - began >= 4 * 16ms);
        CHECK(w.now() - began <= 4 * 32ms);
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        CHECK(why == wc_errc::retry_exceeded);
        CHECK(p.client.last_failure().reason == close_reason::transport_error);
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("a link that comes back in time costs time only", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        // Keeps the connection open while the port is down: this test is about retries.
        connection_options patient;
        patient.liveness.ends_on_port_down = false;
        test::pair p = co_await meet(io, patient, patient);
        memory_pair m{p};
        m.ours.bytes()[0] = std::byte{42};
        w.port_down("fab0");
        auto const mend = [&]() -> asio::awaitable<void> {
            co_await test::sleep(io, 200ms);
            w.port_up("fab0");
        };
        co_await (
            p.client.async_write(m.ours.slice(), m.theirs.remote(), asio::use_awaitable) && mend()
        );
        CHECK(m.theirs.bytes()[0] == std::byte{42});
        p.client.close();
        p.server.close();
    });
}

// --- work and queues -----------------------------------------------------------------------------

TEST_CASE("a failed work request reports its status, and later ones are flushed", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        ledger book;
        w.fail_work(3, general_error);
        for (int i = 0; i < 6; ++i) {
            p.client.async_write(
                m.ours.slice(0, 64), m.theirs.remote().slice(0, 64), book.entry(std::to_string(i))
            );
        }
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        CHECK(why == wc_errc::general);
        CHECK(book.is_balanced());
        for (std::size_t i = 0; i < 6; ++i) {
            error_code const ec = book.lines()[i].code;
            if (i < 2) CHECK_FALSE(ec);
            if (i == 2) CHECK(ec == wc_errc::general);
            if (i > 2) CHECK(ec == wc_errc::flushed);
        }
        CHECK(p.client.last_failure().code == wc_errc::general);
        p.server.close();
    });
}

TEST_CASE(
    "a connection waits for a late flush, and ends at the drain deadline without one", "[fabric]"
) {
    world w;
    asio::io_context io;
    enum class flush { late, partial, absent };
    auto const how = GENERATE(flush::late, flush::partial, flush::absent);
    std::size_t const leaked = connection::leaked_count();
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        ledger book;
        for (int i = 0; i < 8; ++i)
            p.server.async_receive(m.theirs.slice(0, 64), book.entry("receive"));
        co_await test::sleep(io, 1ms);
        fabric::flush_policy policy;
        if (how == flush::late) policy.delay = 500ms;
        if (how == flush::partial) policy.completions_max = 3;
        if (how == flush::absent) policy.completions_max = 0;
        w.set_flush(policy);
        auto const began = w.now();
        p.server.close();
        auto [why] = co_await p.server.async_wait_disconnected(awaiting);
        static_cast<void>(why);
        CHECK(book.is_balanced());
        for (ledger::line const& l : book.lines()) CHECK(l.code);
        // timeouts.drain is one second.
        CHECK(w.now() - began >= (how == flush::late ? 500ms : 1000ms));
        p.client.close();
    });
    // The queue pair could be destroyed, so no resources were leaked.
    CHECK(connection::leaked_count() == leaked);
    CHECK(is_clean(w));
}

TEST_CASE(
    "a queue pair that can be neither flushed nor destroyed is kept, and counted", "[fabric]"
) {
    world w;
    asio::io_context io;
    std::size_t const leaked = connection::leaked_count();
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        ledger book;
        p.server.async_receive(m.theirs.slice(0, 64), book.entry("receive"));
        co_await test::sleep(io, 1ms);
        w.set_flush({0ns, 0});
        // The peer has no work to drain, so its queue pair is destroyed first.
        w.fail_call("ibv_destroy_qp", 2, EBUSY);
        p.server.close();
        auto [why] = co_await p.server.async_wait_disconnected(awaiting);
        CHECK(why == errc::not_drained);
        CHECK(book.is_balanced());
        CHECK(book.lines()[0].code == errc::not_drained);
        p.client.close();
    });
    CHECK(connection::leaked_count() == leaked + 1);
    CHECK(w.live().queue_pairs == 1);
    CHECK(w.live().completion_queues == 1);
}

TEST_CASE("memory of a queue pair that cannot be destroyed is not given back", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        slot_pool slots{p.server.get_executor(), p.server.domain(), {.slots = 2}};
        asio::cancellation_signal stop;
        std::optional<error_code> waited;
        bool has_memory = true;
        auto const ignore = [](error_code, leased_receive_result) {};
        // One without a handler, and one with.
        p.server.async_receive(
            slots.try_acquire(), asio::bind_cancellation_slot(stop.slot(), ignore)
        );
        stop.emit(asio::cancellation_type::total);
        co_await test::sleep(io, 1ms);
        p.server.async_receive(slots.try_acquire(), ignore);
        p.server.async_receive(slots.try_acquire(), [&](error_code ec, leased_receive_result r) {
            waited = ec;
            has_memory = !r.bytes().empty();
        });
        co_await test::sleep(io, 1ms);
        std::size_t const lent = 2 - slots.free_count();
        w.set_flush({0ns, 0});
        w.fail_call("ibv_destroy_qp", 2, EBUSY);
        p.server.close();
        auto [why] = co_await p.server.async_wait_disconnected(awaiting);
        CHECK(why == errc::not_drained);
        co_await test::sleep(io, 1ms);
        CHECK(lent == 2);
        CHECK(slots.free_count() == 0);
        CHECK(waited == errc::not_drained);
        CHECK_FALSE(has_memory);
        p.client.close();
    });
}

TEST_CASE(
    "memory of a queue pair that cannot be destroyed is not given back with its io_context",
    "[fabric]"
) {
    world w;
    asio::io_context other;
    std::optional<slot_pool> slots;
    test::pair p;
    {
        asio::io_context io;
        asio::co_spawn(
            io, [&]() -> asio::awaitable<void> { p = co_await meet(io); }, [](std::exception_ptr) {}
        );
        REQUIRE(w.run_until(io, [&] { return p.server.is_open() && p.client.is_open(); }));
        slots.emplace(other.get_executor(), p.server.domain(), slot_pool_options{.slots = 2});
        for (int i = 0; i < 2; ++i) {
            p.server.async_receive(slots->try_acquire(), [](error_code, leased_receive_result) {});
        }
        w.run_for(io, 1ms);
        w.fail_call("ibv_destroy_qp", 1, EBUSY);
        w.fail_call("ibv_destroy_qp", 2, EBUSY);
    }
    CHECK(slots->free_count() == 0);
    CHECK(w.live().queue_pairs == 2);
}

TEST_CASE(
    "memory that a handler owns stays if its queue pair cannot be destroyed with the io_context",
    "[fabric]"
) {
    world w;
    std::size_t regions = 0;
    bool is_posted = false;
    {
        asio::io_context io;
        test::pair p;
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                p = co_await meet(io);
                auto const own = std::make_shared<registered_buffer>(
                    p.server.domain(), 64, access_flags::local_write
                );
                p.server.async_receive(own->slice(), [own](error_code, receive_result const&) {});
                is_posted = true;
            },
            [](std::exception_ptr) {}
        );
        REQUIRE(w.run_until(io, [&] { return is_posted; }));
        w.run_for(io, 1ms);
        regions = w.live().memory_regions;
        w.fail_call("ibv_destroy_qp", 1, EBUSY);
        w.fail_call("ibv_destroy_qp", 2, EBUSY);
    }
    CHECK(w.live().queue_pairs == 2);
    CHECK(w.live().memory_regions == regions);
}

TEST_CASE(
    "memory of a channel stays if its queue pair cannot be destroyed with the io_context",
    "[fabric]"
) {
    world w;
    std::size_t regions = 0;
    {
        asio::io_context io;
        acceptor door{io, {"10.0.0.1", 0}};
        message_channel client{stepped(io)};
        message_channel server;
        door.async_get_request([&](error_code ec, connection_request asked) {
            REQUIRE_FALSE(ec);
            server = message_channel{stepped(io), std::move(asked)};
            server.async_accept([](error_code) {});
        });
        client.async_connect(door.local_endpoint(), [](error_code) {});
        REQUIRE(w.run_until(io, [&] { return client.is_open() && server.is_open(); }));
        regions = w.live().memory_regions;
        w.fail_call("ibv_destroy_qp", 1, EBUSY);
        w.fail_call("ibv_destroy_qp", 2, EBUSY);
    }
    CHECK(regions >= 2);
    CHECK(w.live().queue_pairs == 2);
    CHECK(w.live().memory_regions == regions);
}

// The handler of a request may own the memory that the answer is written to.
TEST_CASE(
    "an io_context ends the device's work before it destroys a channel's handlers", "[fabric]"
) {
    bool const can_be_destroyed = GENERATE(true, false);
    world w;
    // The queue pairs that the handlers' destructors have found: the peer's only, which has an
    // io_context of its own.
    std::vector<std::size_t> found;
    struct witness {
        world* in;
        std::vector<std::size_t>* to;
        registered_buffer answer;
        witness(world& w, std::vector<std::size_t>& all, registered_buffer memory)
            : in{&w},
              to{&all},
              answer{std::move(memory)} {}
        witness(witness const&) = delete;
        ~witness() { to->push_back(in->live().queue_pairs); }
    };
    asio::io_context theirs;
    {
        asio::io_context io;
        acceptor door{theirs, {"10.0.0.1", 0}};
        request_channel client{stepped(io)};
        request_channel server;
        request asked;
        door.async_get_request([&](error_code ec, connection_request r) {
            REQUIRE_FALSE(ec);
            server = request_channel{stepped(theirs), std::move(r)};
            server.async_accept([](error_code) {});
            server.async_next([&](error_code, request given) { asked = std::move(given); });
        });
        auto const run_both = [&](auto const& done) {
            REQUIRE(w.run_until(io, [&] { return theirs.poll(), done(); }));
        };
        client.async_connect(door.local_endpoint(), [](error_code) {});
        run_both([&] { return client.is_open() && server.is_open(); });
        {
            auto const kept = std::make_shared<witness>(
                w,
                found,
                registered_buffer{
                    client.next_layer().domain(),
                    4096,
                    access_flags::remote_write | access_flags::local_write}
            );
            client.async_request(
                ask{1}.into(kept->answer.slice()),
                [kept](error_code, reply const&) { FAIL("called"); }
            );
        }
        run_both([&] { return asked.wants_answer(); });
        if (!can_be_destroyed) w.fail_call("ibv_destroy_qp", 1, EBUSY);
    }
    if (can_be_destroyed) {
        CHECK(found == std::vector<std::size_t>{1});
    } else {
        CHECK(found.empty());
        CHECK(w.live().queue_pairs == 2);
    }
}

TEST_CASE(
    "a queue pair that cannot be destroyed keeps shared receives until they are closed", "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        shared_receive_queue shared{stepped(io)};
        connection_options with;
        with.placement.shared_receives = shared;
        test::pair p = co_await meet(io, {}, with);
        registered_buffer memory{p.server.domain(), 64, access_flags::local_write};
        std::optional<error_code> ended;
        shared.async_receive(memory.slice(), [&](error_code ec, auto const&...) { ended = ec; });
        co_await test::sleep(io, 1ms);
        w.fail_call("ibv_destroy_qp", 1, EBUSY);
        w.fail_call("ibv_destroy_qp", 2, EBUSY);
        p.server.close();
        auto [why] = co_await p.server.async_wait_disconnected(awaiting);
        CHECK(why == errc::not_drained);
        co_await test::sleep(io, 1ms);
        CHECK_FALSE(ended);
        shared.close();
        co_await test::sleep(io, 1ms);
        CHECK(ended == errc::not_drained);
        p.client.close();
    });
}

TEST_CASE("a connection for whose queues there is no memory fails with that reason", "[fabric]") {
    char const* const call = GENERATE("ibv_alloc_pd", "ibv_create_cq", "rdma_create_qp");
    CAPTURE(call);
    world w;
    asio::io_context io;
    bool has_thrown = false;
    w.on_call([&](std::string_view function) {
        if (function == call && !std::exchange(has_thrown, true)) throw std::bad_alloc{};
    });
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        connection c{stepped(io)};
        auto [ec] = co_await c.async_connect(a.local_endpoint(), awaiting);
        CHECK(has_thrown);
        CHECK(ec == boost::system::errc::not_enough_memory);
        CHECK_FALSE(c.is_open());
    });
    w.on_call(nullptr);
    CHECK(is_clean(w));
}

TEST_CASE("an overrun completion queue ends the connections that use it", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const busy{poller::on(io, {.polling = {.mode = poll_mode::busy}})};
        // A poller that polls busily does so during the whole deadline.
        connection_options options;
        options.timeouts.drain = 10ms;
        test::pair p = co_await connect(busy, stepped(io), options);
        memory_pair m{p};
        w.overrun("fab1");
        auto [ec, n] = co_await p.client.async_write(m.ours.slice(), m.theirs.remote(), awaiting);
        CHECK(ec);
        CHECK(n == 0);
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        CHECK(why == errc::completion_queue_broken);
        p.server.close();
    });
    CHECK(is_clean(w));
}

// --- the connection manager ----------------------------------------------------------------------

TEST_CASE("a lost event ends its step at the deadline", "[fabric]") {
    world w;
    asio::io_context io;
    int const lost =
        GENERATE(cm_address_resolved, cm_route_resolved, cm_connect_request, cm_connect_response);
    CAPTURE(lost);
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        connection client{stepped(io)};
        w.on_cm_event([&](cm_event_info const& e) {
            return e.type == lost ? cm_event_fate{cm_event_fate::kind::lose, {}} : cm_event_fate{};
        });
        a.async_accept([](error_code, connection) {});
        auto const began = w.now();
        auto [ec] = co_await client.async_connect(a.local_endpoint(), awaiting);
        CHECK(ec == errc::timed_out);
        CHECK(w.now() - began >= 2s);
        CHECK(w.now() - began <= 10s);
        a.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("keepalives asked for while connecting leave the deadline alone", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {"10.0.0.1", 0}};
        connection client{stepped(io)};
        w.on_cm_event([&](cm_event_info const& e) {
            return e.type == cm_connect_request ? cm_event_fate{cm_event_fate::kind::lose, {}}
                                                : cm_event_fate{};
        });
        auto const began = w.now();
        std::optional<error_code> ended;
        client.async_connect(a.local_endpoint(), [&](error_code ec) { ended = ec; });
        co_await sleep(io, 1ms);
        client.set_keepalive_interval(1h);
        while (!ended) co_await sleep(io, 10ms);
        CHECK(*ended == errc::timed_out);
        CHECK(w.now() - began <= 10s);
        a.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("an accept that the peer never confirms fails at the deadline", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        connection client{stepped(io)};
        // The connecting side's event comes from the response; this is the accepting side's.
        w.on_cm_event([&](cm_event_info const& e) {
            return e.type == cm_established ? cm_event_fate{cm_event_fate::kind::lose, {}}
                                            : cm_event_fate{};
        });
        auto [accepted, connected] = co_await (
            a.async_accept(awaiting) && client.async_connect(a.local_endpoint(), awaiting)
        );
        CHECK(std::get<0>(accepted) == errc::timed_out);
        static_cast<void>(connected);
        client.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE(
    "a lost or late DISCONNECTED event delays a disconnect no longer than its deadline", "[fabric]"
) {
    world w;
    asio::io_context io;
    auto const what = GENERATE(cm_event_fate::kind::lose, cm_event_fate::kind::delay);
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        w.on_cm_event([&](cm_event_info const& e) {
            return e.type == cm_disconnected ? cm_event_fate{what, 300ms} : cm_event_fate{};
        });
        auto const began = w.now();
        auto [ec] = co_await p.client.async_disconnect(awaiting);
        if (what == cm_event_fate::kind::lose) {
            CHECK(ec == errc::timed_out);
            CHECK(w.now() - began >= 2s);
        } else {
            CHECK_FALSE(ec);
            CHECK(w.now() - began >= 300ms);
        }
        CHECK(w.now() - began <= 5s);
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("a request that the network rejects has the reason", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {"10.0.0.1", 0}};
        connection client{stepped(io)};
        w.reject_next_request(10);
        auto [ec] = co_await client.async_connect(a.local_endpoint(), awaiting);
        CHECK(ec == cm_errc::rejected_stale);
        CHECK(client.last_failure().reason == close_reason::refused);
    });
}

// --- peers and devices ---------------------------------------------------------------------------

TEST_CASE("the end of the peer's program is detected at once, during any operation", "[fabric]") {
    world w;
    asio::io_context io;
    auto const after = GENERATE(0us, 3us, 10us, 50us, 200us, 1000us);
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        ledger book;
        for (int i = 0; i < 40; ++i)
            p.client.async_write(m.ours.slice(), m.theirs.remote(), book.entry("write"));
        co_await test::sleep(io, after);
        w.kill_program("fab0");
        auto const killed = w.now();
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        static_cast<void>(why);
        CHECK(w.now() - killed < 100ms);
        CHECK(p.client.last_failure().reason != close_reason::completed);
        CHECK(p.client.last_failure().reason != close_reason::closed_locally);
        CHECK(book.is_balanced());
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("a device that is pulled out ends its connections with that reason", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        ledger book;
        p.client.async_receive(m.ours.slice(), book.entry("receive"));
        w.remove_device("fab1");
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        CHECK(why == errc::device_removed);
        CHECK(book.is_balanced());
        p.server.close();
    });
    CHECK(is_clean(w));
}

TEST_CASE("a machine without power acknowledges nothing and sends no disconnect", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        w.power_off("fab0");
        p.server.close();
        auto [gone] = co_await p.server.async_wait_disconnected(awaiting);
        static_cast<void>(gone);
        p.server = connection{};
        co_await test::sleep(io, 10ms);
        auto const began = w.now();
        auto [ec] = co_await p.client.async_disconnect(awaiting);
        CHECK(ec == errc::timed_out);
        CHECK(w.now() - began >= 2s);
    });
    CHECK(is_clean(w));
}

// --- a request whose peer has withdrawn it -------------------------------------------------------

TEST_CASE(
    "a request that its peer withdraws during accept fails with peer_disconnected, not with EINVAL",
    "[fabric]"
) {
    world w;
    asio::io_context io;
    bool const while_accepting = GENERATE(true, false);
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        connection client{stepped(io)};
        // The kernel's answer in this case. The device itself could create the queue pair.
        w.fail_call(
            while_accepting ? "rdma_accept" : "rdma_create_qp", while_accepting ? 1 : 2, EINVAL
        );
        auto const reach = [&]() -> asio::awaitable<void> {
            auto [ec] = co_await client.async_connect(a.local_endpoint(), awaiting);
            CHECK(ec.category() == connection_manager_category());
            a.close();
        };
        auto const serve = [&]() -> asio::awaitable<error_code> {
            auto [ec, made] = co_await a.async_accept(awaiting);
            co_return ec;
        };
        error_code const ec = co_await (serve() && reach());
        // A request that cannot be accepted is dropped, and the acceptor continues until it is
        // closed.
        CHECK(
            ec == (while_accepting ? error_code{errc::peer_disconnected}
                                   : error_code{asio::error::operation_aborted})
        );
        CHECK(a.statistics().dropped == (while_accepting ? 0 : 1));
    });
}

TEST_CASE(
    "a queue pair that the device stops while its connection opens fails with peer_violation, not "
    "with EINVAL",
    "[fabric]"
) {
    world w;
    asio::io_context io;
    bool const while_accepting = GENERATE(true, false);
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        connection client{stepped(io)};
        // First the accepting side modifies its queue pair, then the other: to RTR, to RTS, and then
        // min_rnr_timer.
        w.break_queue_pair(while_accepting ? 3 : 6);
        auto const reach = [&]() -> asio::awaitable<error_code> {
            auto [ec] = co_await client.async_connect(a.local_endpoint(), awaiting);
            a.close();
            co_return ec;
        };
        auto const serve = [&]() -> asio::awaitable<error_code> {
            auto [ec, made] = co_await a.async_accept(awaiting);
            co_return ec;
        };
        auto const [accepted, connected] = co_await (serve() && reach());
        CHECK((while_accepting ? accepted : connected) == errc::peer_violation);
    });
    CHECK(is_clean(w));
}

// --- time ----------------------------------------------------------------------------------------

namespace {

/// The completion times of some writes, and of the disconnect.
std::vector<std::int64_t> trace(std::uint64_t seed) {
    fabric::world_options options;
    options.seed = seed;
    world w{options};
    asio::io_context io;
    std::vector<std::int64_t> times;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io);
        memory_pair m{p};
        for (int i = 0; i < 20; ++i) {
            co_await p.client.async_write(m.ours.slice(), m.theirs.remote(), asio::use_awaitable);
            times.push_back(w.now().count());
        }
        w.kill_program("fab0");
        auto [why] = co_await p.client.async_wait_disconnected(awaiting);
        static_cast<void>(why);
        times.push_back(w.now().count());
        p.server.close();
    });
    return times;
}

std::string text_of(std::vector<std::int64_t> const& times) {
    std::string text;
    for (std::int64_t const t : times) text += std::to_string(t) + "\n";
    return text;
}

}  // namespace

// Run by the test below, in separate processes.
TEST_CASE("trace", "[.]") { std::cout << text_of(trace(1)) << "end\n"; }

TEST_CASE(
    "the same seed gives the same run, in every process, and another seed another", "[fabric]"
) {
    std::string const here = text_of(trace(1)) + "end\n";
    CHECK(here != text_of(trace(2)) + "end\n");
    for (int i = 0; i < 3; ++i) {
        child_process other{
            {std::filesystem::read_symlink("/proc/self/exe"), "trace", "--reporter", "compact"}};
        REQUIRE(other.wait() == 0);
        CHECK(other.output().find(here) != std::string::npos);
    }
}

TEST_CASE("an idle hour takes no time, and timers expire in their order", "[fabric]") {
    world w;
    asio::io_context io;
    std::vector<int> order;
    auto const wall = std::chrono::system_clock::now();
    auto const steady = std::chrono::steady_clock::now();
    asio::steady_timer late{io, 1h};
    asio::steady_timer soon{io, 1s};
    late.async_wait([&](error_code) { order.push_back(2); });
    soon.async_wait([&](error_code) { order.push_back(1); });
    CHECK(w.run(io));
    CHECK(order == std::vector{1, 2});
    CHECK(w.now() >= 1h);
    CHECK(std::chrono::steady_clock::now() - steady >= 1h);
    CHECK(std::chrono::system_clock::now() - wall < 1h);
}

TEST_CASE("run() distinguishes a program that waits for ever from one that has ended", "[fabric]") {
    world w;
    asio::io_context io;
    acceptor a{io, {"10.0.0.1", 0}};
    a.async_accept([](error_code, connection) {});
    CHECK_FALSE(w.run(io));
    a.close();
    CHECK(w.run(io));
}

TEST_CASE("a world can be run for a while, until something is so, or step by step", "[fabric]") {
    world w;
    asio::io_context io;
    int ticks = 0;
    asio::steady_timer timer{io};
    std::function<void(error_code)> tick = [&](error_code) {
        ++ticks;
        timer.expires_after(10ms);
        timer.async_wait(tick);
    };
    tick({});
    auto const began = w.now();
    w.run_for(io, 105ms);
    CHECK(ticks == 11);
    CHECK(w.now() - began >= 105ms);
    CHECK(w.run_until(io, [&] { return ticks == 20; }));
    timer.cancel();
    io.stop();
    // Plain calls without an io_context: an unanswered address resolution times out.
    rdma_event_channel* const channel = rdma_create_event_channel();
    REQUIRE(channel != nullptr);
    rdma_cm_id* id = nullptr;
    REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0);
    sockaddr_in nobody{};
    nobody.sin_family = AF_INET;
    nobody.sin_addr.s_addr = htonl(0x0a000063);  // 10.0.0.99
    REQUIRE(rdma_resolve_addr(id, nullptr, reinterpret_cast<sockaddr*>(&nobody), 700) == 0);
    auto const asked = w.now();
    // The call blocks; the world advances while it waits.
    rdma_cm_event* event = nullptr;
    REQUIRE(rdma_get_cm_event(channel, &event) == 0);
    CHECK(event->event == RDMA_CM_EVENT_ADDR_ERROR);
    CHECK(event->status == -ETIMEDOUT);
    CHECK(w.now() - asked >= 700ms);
    rdma_ack_cm_event(event);
    while (w.step()) {}
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

TEST_CASE("without a free descriptor a call fails, and the next one works again", "[fabric]") {
    world const w;
    int count = 0;
    ibv_device** const devices = ibv_get_device_list(&count);
    REQUIRE(count > 0);
    ibv_context* const opened = ibv_open_device(devices[0]);
    REQUIRE(opened != nullptr);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    int const next = ::dup(0);
    ::close(next);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
    errno = 0;
    ibv_comp_channel* const channel = ibv_create_comp_channel(opened);
    int const of_channel = errno;
    errno = 0;
    ibv_context* const second = ibv_open_device(devices[0]);
    int const of_context = errno;
    errno = 0;
    rdma_event_channel* const events = rdma_create_event_channel();
    int const of_events = errno;
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(channel == nullptr);
    CHECK(of_channel == EMFILE);
    CHECK(second == nullptr);
    CHECK(of_context == EMFILE);
    CHECK(events == nullptr);
    CHECK(of_events == EMFILE);
    ibv_comp_channel* const again = ibv_create_comp_channel(opened);
    REQUIRE(again != nullptr);
    ibv_destroy_comp_channel(again);
    ibv_close_device(opened);
    ibv_free_device_list(devices);
}
