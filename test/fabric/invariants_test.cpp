// Invariants: properties that hold in every seeded run, whatever fails.
//
// Buffers: a buffer belongs to the caller again when its handler runs, which happens exactly once;
// from then on no byte of it changes. Accounting: tiny queues are never overfilled, no completion
// is lost, and order and memory use are kept.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <random>

#include "fabric/fixture.hpp"
#include "support/live_blocks.hpp"

using namespace rcverbs;
using namespace test;
using fabric::packet_fate;
using fabric::packet_info;

namespace {

class dice {
public:
    explicit dice(std::uint64_t seed) : random_{seed} {}
    std::size_t below(std::size_t n) { return random_() % n; }
    bool one_in(std::size_t n) { return below(n) == 0; }
    std::chrono::nanoseconds time(std::chrono::nanoseconds most) {
        return std::chrono::nanoseconds{
            static_cast<std::int64_t>(below(static_cast<std::size_t>(most.count())))};
    }

private:
    std::mt19937_64 random_;
};

constexpr std::byte returned_mark{0xa5};

/// One side's operations, each with its own slot of memory.
class side {
public:
    static constexpr std::size_t slot_bytes = 4096;
    static constexpr std::size_t slot_count = 60;

    side(connection& c, dice& d)
        : connection_{c},
          dice_{d},
          memory_{
              c.domain(),
              2 * slot_bytes * slot_count,
              access_flags::remote_read | access_flags::remote_write |
                  access_flags::remote_atomic} {}

    /// The half of the memory on which the peer operates.
    remote_region exposed() const {
        return memory_.remote().slice(slot_bytes * slot_count, slot_bytes * slot_count);
    }

    /// Starts the next operation, of a random kind.
    void start(remote_region const& theirs) {
        std::size_t const i = started_++;
        std::size_t const size = dice_.one_in(4) ? slot_bytes : 1 + dice_.below(64);
        mutable_slice const local = memory_.slice(i * slot_bytes, size);
        remote_region const target = theirs.slice(i * slot_bytes, size);
        signals_.emplace_back();
        auto handler = boost::asio::bind_cancellation_slot(
            signals_.back().slot(),
            [this, i, done = book_.entry("operation " + std::to_string(i))](
                error_code ec, auto&&...
            ) mutable {
                done(ec);
                std::ranges::fill(slot(i), returned_mark);
            }
        );
        switch (dice_.below(5)) {
        case 0: return connection_.async_write(local, target, std::move(handler));
        case 1: return connection_.async_read(target, local, std::move(handler));
        case 2: return connection_.async_send(local, std::move(handler));
        case 3:
            return connection_.async_receive(
                memory_.slice(i * slot_bytes, slot_bytes), std::move(handler)
            );
        default:
            return connection_.async_fetch_add(theirs.word(i * slot_bytes), 1, std::move(handler));
        }
    }
    void cancel_one(asio::cancellation_type type) {
        if (!signals_.empty()) signals_[dice_.below(signals_.size())].emit(type);
    }
    void cancel_one() {
        asio::cancellation_type const types[] = {
            asio::cancellation_type::total,
            asio::cancellation_type::partial,
            asio::cancellation_type::terminal};
        cancel_one(types[dice_.below(3)]);
    }
    bool has_more() const { return started_ < slot_count; }

    void check() {
        CHECK(book_.is_balanced());
        for (std::size_t i = 0; i < started_; ++i) {
            if (book_.lines()[i].calls == 0) continue;
            bool const is_untouched =
                std::ranges::all_of(slot(i), [](std::byte b) { return b == returned_mark; });
            INFO(book_.lines()[i].name << " ended with " << book_.lines()[i].code.message());
            CHECK(is_untouched);
        }
    }

private:
    std::span<std::byte> slot(std::size_t i) {
        return memory_.bytes().subspan(i * slot_bytes, slot_bytes);
    }

    connection& connection_;
    dice& dice_;
    registered_buffer memory_;
    ledger book_;
    std::deque<asio::cancellation_signal> signals_;
    std::size_t started_ = 0;
};

/// Applies a random fault, disconnect or close, or none.
void disturb(world& w, dice& d, test::pair& p) {
    switch (d.below(10)) {
    case 0: return p.client.close();
    case 1: return p.server.close();
    case 2: return w.kill_program("fab0");
    case 3: return w.kill_program("fab1");
    case 4: return w.power_off("fab0");
    case 5: return w.remove_device("fab1");
    case 6: return p.client.async_disconnect([](error_code) {});
    case 7: return w.fail_work(1 + d.below(5), 21);
    case 8: return w.overrun("fab1");
    default: return;
    }
}

asio::awaitable<void> storm(world& w, asio::io_context& io, dice& d) {
    connection_options options;
    options.queue_pair.send_queue_depth = static_cast<std::uint32_t>(1 + d.below(8));
    options.queue_pair.receive_queue_depth = static_cast<std::uint32_t>(1 + d.below(8));
    options.queue_pair.initiator_depth = static_cast<std::uint8_t>(1 + d.below(3));
    options.queue_pair.rnr_retry_count = static_cast<std::uint8_t>(d.below(4));
    options.queue_pair.ack_timeout = 1ms;
    options.queue_pair.retry_count = 3;
    // Only polling detects an overrun; a sleeping connection is not woken.
    home const where{poller::on(io, {.polling = {.spin = std::chrono::milliseconds{1}}})};
    test::pair p = co_await connect(where, options, options);
    side client{p.client, d};
    side server{p.server, d};
    if (d.one_in(2)) {
        w.set_flush({d.time(100ms), {}});
    }
    if (d.one_in(2)) {
        w.on_packet([&d](packet_info const&) {
            if (d.one_in(30)) return packet_fate{packet_fate::kind::drop, {}};
            if (d.one_in(30)) return packet_fate{packet_fate::kind::delay, d.time(50us)};
            if (d.one_in(30)) return packet_fate{packet_fate::kind::duplicate, {}};
            return packet_fate{};
        });
    }
    std::size_t const when = d.below(2 * side::slot_count);
    // A deadline that cancels one random operation.
    asio::steady_timer deadline{io, d.time(3ms)};
    deadline.async_wait([&](error_code ec) {
        if (!ec) client.cancel_one(asio::cancellation_type::terminal);
    });
    bool const has_deadline = d.one_in(3);
    if (!has_deadline) deadline.cancel();
    for (std::size_t i = 0; client.has_more() || server.has_more(); ++i) {
        side& one = (d.one_in(2) && server.has_more()) || !client.has_more() ? server : client;
        one.start(&one == &client ? server.exposed() : client.exposed());
        if (d.one_in(8)) one.cancel_one();
        if (i == when) disturb(w, d, p);
        if (d.one_in(3)) co_await test::sleep(io, d.time(30us));
    }
    co_await test::sleep(io, d.time(5ms));
    p.client.close();
    p.server.close();
    co_await (
        p.client.async_wait_disconnected(awaiting) && p.server.async_wait_disconnected(awaiting)
    );
    // Packets still in flight arrive.
    co_await test::sleep(io, 1s);
    client.check();
    server.check();
    w.on_packet(nullptr);
}

}  // namespace

TEST_CASE(
    "no byte of a buffer changes after its handler ran, whatever happens", "[fabric][invariants]"
) {
    for (std::uint64_t const seed : seeds(are_seeds_fixed() ? 30 : 200)) {
        fabric::world_options options;
        options.seed = seed;
        world w{options};
        {
            asio::io_context io;
            dice d{seed};
            INFO("storm " << seed);
            run(w, io, [&]() -> asio::awaitable<void> { return storm(w, io, d); });
        }
        CHECK(w.live() == fabric::object_counts{});
    }
}

namespace {

/// Random traffic in bursts, through queues much too small for it.
asio::awaitable<void> rush(
    asio::io_context& io, dice& d, std::vector<std::optional<long>>& blocks, std::uint32_t depth
) {
    connection_options options;
    options.queue_pair.send_queue_depth = depth;
    options.queue_pair.receive_queue_depth = depth;
    options.queue_pair.initiator_depth = static_cast<std::uint8_t>(1 + d.below(2));
    options.queue_pair.responder_resources = options.queue_pair.initiator_depth;
    options.queue_pair.waiting_operations_max = 200;
    options.queue_pair.min_rnr_timer = 10us;
    options.queue_pair.rnr_retry_count = 7;
    options.queue_pair.ack_timeout = 1ms;
    options.queue_pair.retry_count = 6;
    test::pair p = co_await meet(io, options, options);
    constexpr std::size_t size = 256;
    registered_buffer ours{p.client.domain(), 100 * size, access_flags::local_write};
    registered_buffer theirs{
        p.server.domain(),
        100 * size,
        access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic};
    for (int burst = 0; burst < 12; ++burst) {
        std::size_t done = 0;
        std::size_t expected = 0;
        std::size_t last_sent = 0;
        std::size_t last_received = 0;
        auto const count = [&](std::size_t number, std::size_t& last) {
            return [&, number](error_code ec, auto&&...) {
                CHECK_FALSE(ec);
                CHECK(number == last + 1);  // in the order of their start
                last = number;
                ++done;
            };
        };
        std::size_t sends = 0;
        std::size_t receives = 0;
        for (std::size_t i = 0; i < 100; ++i) {
            mutable_slice const local = ours.slice(i * size, size);
            remote_region const remote = theirs.remote().slice(i * size, size);
            ++expected;
            auto handler = count(++sends, last_sent);
            // The first burst needs the most operations on both sides; they are kept.
            switch (burst == 0 ? 3 : d.below(4)) {
            case 0: p.client.async_write(local, remote, handler); break;
            case 1: p.client.async_read(remote, local, handler); break;
            case 2: p.client.async_fetch_add(remote.word(0), 1, handler); break;
            default:
                p.client.async_send(local, handler);
                ++expected;
                p.server.async_receive(
                    theirs.slice(i * size, size), count(++receives, last_received)
                );
            }
        }
        while (done < expected) co_await test::sleep(io, 10us);
        blocks.push_back(live_blocks());
    }
    co_await disconnect(p);
}

}  // namespace

TEST_CASE(
    "tiny queues are never overfilled, lose nothing, keep order and leave memory flat, on any "
    "network",
    "[fabric][invariants]"
) {
    bool const is_disturbed = GENERATE(false, true);
    for (std::uint64_t const seed : seeds(are_seeds_fixed() ? 8 : 40)) {
        fabric::world_options options;
        options.seed = seed;
        world w{options};
        asio::io_context io;
        dice d{seed};
        dice fate{seed + 1};
        if (is_disturbed) {
            w.on_packet([&fate](packet_info const&) {
                if (fate.one_in(50)) return packet_fate{packet_fate::kind::drop, {}};
                if (fate.one_in(20)) return packet_fate{packet_fate::kind::delay, fate.time(50us)};
                if (fate.one_in(20)) return packet_fate{packet_fate::kind::duplicate, {}};
                return packet_fate{};
            });
        }
        std::vector<std::optional<long>> blocks;
        blocks.reserve(16);
        INFO("rush " << seed);
        run(w, io, [&]() -> asio::awaitable<void> {
            return rush(io, d, blocks, static_cast<std::uint32_t>(1 + seed % 4));
        });
        for (char const* const device : {"fab0", "fab1"}) {
            CHECK(w.counters(device).posts_refused == 0);
            CHECK(w.counters(device).overruns == 0);
        }
        REQUIRE(blocks.size() == 12);
        if (blocks[0]) CHECK(*blocks[11] == *blocks[3]);
    }
}

namespace {

struct thrown {};

/// True if a handler threw.
bool pump(world& w, asio::io_context& io) {
    io.restart();
    try {
        w.run_for(io, 1s);
    } catch (thrown const&) {
        return true;
    }
    return false;
}

}  // namespace

TEST_CASE("handlers run in order, whichever of them throw", "[fabric]") {
    constexpr std::size_t count = 24;
    bool const is_shared = GENERATE(false, true);
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        fabric::world_options options;
        options.seed = seed;
        world w{options};
        asio::io_context io;
        test::pair p;
        std::optional<shared_receive_queue> queue;
        connection_options sharing;
        if (is_shared) {
            queue.emplace(stepped(io));
            sharing.placement.shared_receives = *queue;
        }
        auto const connect_both = [&]() -> asio::awaitable<void> {
            p = co_await meet(io, {}, sharing);
        };
        asio::co_spawn(io, connect_both, asio::detached);
        REQUIRE(w.run_until(io, [&] { return p.client.is_open() && p.server.is_open(); }));
        registered_buffer from{p.client.domain(), 8, access_flags::local_write};
        registered_buffer to{
            is_shared ? queue->domain() : p.server.domain(), 8 * count, access_flags::local_write};
        std::vector<std::size_t> received;
        std::vector<std::size_t> sent;
        for (std::size_t i = 0; i < count; ++i) {
            auto on_receive = [&, i](error_code, receive_result const&) {
                received.push_back(i);
                if (i % 3 == 0) throw thrown{};
            };
            if (is_shared) queue->async_receive(to.slice(8 * i, 8), on_receive);
            else p.server.async_receive(to.slice(8 * i, 8), on_receive);
        }
        for (std::size_t i = 0; i < count; ++i) {
            p.client.async_send(from.slice(), [&, i](error_code, std::size_t) {
                sent.push_back(i);
                if (i % 4 == 0) throw thrown{};
            });
        }
        while (received.size() < count || sent.size() < count) static_cast<void>(pump(w, io));
        INFO("seed " << seed);
        CHECK(std::ranges::is_sorted(received));
        CHECK(std::ranges::is_sorted(sent));
        CHECK(received.size() == count);
        CHECK(sent.size() == count);
        p.client.close();
        p.server.close();
        if (queue) queue->close();
        while (pump(w, io)) {}
    }
}

TEST_CASE("messages come in order, whichever handlers throw", "[fabric]") {
    constexpr std::uint64_t count = 40;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        fabric::world_options options;
        options.seed = seed;
        world w{options};
        asio::io_context io;
        message_channel client{stepped(io)};
        message_channel server;
        bool is_up = false;
        auto const open_both = [&]() -> asio::awaitable<void> {
            acceptor a{stepped(io), {"10.0.0.1", 0}};
            auto const serve = [&]() -> asio::awaitable<void> {
                server =
                    message_channel{stepped(io), co_await a.async_get_request(asio::use_awaitable)};
                co_await server.async_accept(asio::use_awaitable);
            };
            co_await (serve() && client.async_connect(a.local_endpoint(), asio::use_awaitable));
            is_up = true;
        };
        asio::co_spawn(io, open_both, asio::detached);
        REQUIRE(w.run_until(io, [&] { return is_up; }));
        std::vector<std::uint64_t> received;
        std::uint64_t sent = 0;
        std::function<void()> receive = [&] {
            server.async_receive([&](error_code ec, message const& m) {
                if (ec) return;
                received.push_back(m.tag());
                if (received.size() < count) receive();
                throw thrown{};
            });
        };
        receive();
        std::array<std::byte, 5> const bytes{};
        for (std::uint64_t i = 0; i < count; ++i) {
            client.async_send(bytes, i, [&](error_code ec) {
                if (!ec) ++sent;
                throw thrown{};
            });
        }
        INFO("seed " << seed);
        for (int i = 0; i < 200 && (received.size() < count || sent < count); ++i)
            static_cast<void>(pump(w, io));
        CHECK(received.size() == count);
        CHECK(sent == count);
        CHECK(std::ranges::is_sorted(received));
        client.close();
        server.close();
        while (pump(w, io)) {}
    }
}
