// Connections of one poller share the completion queues of a device: who gets which completion, and
// what one of them takes along.
#include <boost/asio/detached.hpp>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;
using fabric::completion_fate;
using fabric::completion_info;

namespace {

connection_options small_queues(std::uint32_t depth = 16) {
    connection_options o = sharing();
    o.queue_pair.send_queue_depth = depth;
    o.queue_pair.receive_queue_depth = depth;
    return o;
}

/// Connections of one poller, each of which sends numbered messages and receives them in order.
class crowd {
public:
    struct member {
        test::pair ends;
        registered_buffer from;
        registered_buffer to;
        std::uint64_t sent = 0;
        std::uint64_t received = 0;
        std::size_t under_way = 0;
        bool is_closing = false;
        std::optional<error_code> unexpected;

        explicit member(test::pair p)
            : ends{std::move(p)},
              from{ends.client.domain(), 16 * sizeof(std::uint64_t), access_flags::local_write},
              to{ends.server.domain(), 16 * sizeof(std::uint64_t), access_flags::local_write} {}
    };

    crowd(asio::io_context& io, std::uint64_t seed) : where_{stepped(io)}, random_{seed} {}

    asio::awaitable<void> join(connection_options const& options) {
        all_.push_back(std::make_unique<member>(co_await connect(where_, options, options)));
    }

    std::vector<std::unique_ptr<member>>& members() { return all_; }

    /// Starts a message of that member's: a receive, and the send that fills it.
    void exchange(member& m) {
        std::size_t const slot = m.sent % 16;
        std::uint64_t const value = ++m.sent;
        mutable_slice const from = m.from.slice(slot * 8, 8);
        mutable_slice const to = m.to.slice(slot * 8, 8);
        std::memcpy(from.data(), &value, sizeof value);
        m.under_way += 2;
        m.ends.server.async_receive(
            to,
            [this, &m, to, value](error_code ec, receive_result const&) {
                --m.under_way;
                if (note(m, ec)) return;
                ++m.received;
                CHECK(m.received == value);  // each once, in order
                std::uint64_t found = 0;
                std::memcpy(&found, to.data(), sizeof found);
                CHECK(found == value);
                ++delivered_;
                if (throws_one_in > 0 && random_() % throws_one_in == 0) throw thrown{};
            }
        );
        m.ends.client.async_send(from, [&m](error_code ec, std::size_t) {
            --m.under_way;
            note(m, ec);
        });
    }

    struct thrown {};
    unsigned throws_one_in = 0;
    std::size_t delivered() const { return delivered_; }

private:
    static bool note(member& m, error_code ec) {
        if (ec && !m.is_closing) m.unexpected = ec;
        return ec.failed();
    }

    home where_;
    std::mt19937_64 random_;
    std::vector<std::unique_ptr<member>> all_;
    std::size_t delivered_ = 0;
};

}  // namespace

TEST_CASE("connections of one poller share few queues and one descriptor", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        constexpr std::size_t count = 64;
        home const where = stepped(io);
        for (int round = 0; round < 2; ++round) {
            std::vector<test::pair> all;
            for (std::size_t i = 0; i < count; ++i)
                all.push_back(co_await connect(where, small_queues(), small_queues()));
            // One for each of the two devices.
            CHECK(w.live().completion_channels == 2);
            CHECK(w.live().completion_queues >= 2);
            CHECK(w.live().completion_queues <= 2 * 8);
            for (test::pair& p : all) {
                registered_buffer m{p.client.domain(), 8, access_flags::local_write};
                registered_buffer n{p.server.domain(), 8, access_flags::remote_write};
                co_await p.client.async_write(m.slice(), n.remote(), asio::use_awaitable);
                CHECK(p.client.statistics().completions == 1);
            }
            for (test::pair& p : all) co_await disconnect(p);
            CHECK(w.live().completion_channels == 0);
        }
    });
    CHECK(is_clean(w));
}

TEST_CASE("a connection without a poller has a queue of its own", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        test::pair q = co_await connect(io);
        CHECK(w.live().completion_channels == 4);
        CHECK(w.live().completion_queues == 4);
        co_await disconnect(p);
        co_await disconnect(q);
    });
}

TEST_CASE(
    "members of a shared queue get their own completions, in order and once, while others come and "
    "go and handlers throw",
    "[fabric][invariants]"
) {
    for (std::uint64_t const seed : seeds(are_seeds_fixed() ? 15 : 120)) {
        fabric::world_options options;
        options.seed = seed;
        world w{options};
        std::mt19937_64 random{seed};
        auto const one_in = [&random](unsigned n) { return random() % n == 0; };
        w.set_destroy({one_in(2), one_in(2)});
        bool const is_late = one_in(2);
        if (is_late) {
            w.on_completion([&random](completion_info const&) {
                return random() % 10 == 0
                           ? completion_fate{completion_fate::kind::delay, std::chrono::microseconds(random() % 300)}
                           : completion_fate{};
            });
        }
        INFO("seed " << seed);
        {
            asio::io_context io;
            crowd all{io, seed};
            if (one_in(2)) all.throws_one_in = 20;
            bool is_done = false;
            connection_options o = small_queues();
            // A queue pair with delayed completions is destroyed.
            if (one_in(2)) o.timeouts.drain = 1ms;
            asio::co_spawn(
                io,
                [&]() -> asio::awaitable<void> {
                    for (int step = 0; step < 60; ++step) {
                        std::size_t const n = all.members().size();
                        if (n < 3 || (n < 12 && one_in(4))) {
                            co_await all.join(o);
                            continue;
                        }
                        for (int i = 0; i < 12; ++i) {
                            crowd::member& m = *all.members()[random() % n];
                            if (!m.is_closing && m.under_way <= 2 * 8) all.exchange(m);
                        }
                        if (one_in(3)) {
                            crowd::member& m = *all.members()[random() % n];
                            m.is_closing = true;
                            (one_in(2) ? m.ends.client : m.ends.server).close();
                            static_cast<void>(
                                co_await m.ends.client.async_wait_disconnected(awaiting)
                            );
                            static_cast<void>(
                                co_await m.ends.server.async_wait_disconnected(awaiting)
                            );
                            while (m.under_way > 0) co_await test::sleep(io, 10us);
                            std::erase_if(all.members(), [&m](auto const& each) {
                                return each.get() == &m;
                            });
                        }
                        if (one_in(2)) co_await test::sleep(io, 50us);
                    }
                    for (auto const& m : all.members()) {
                        while (m->under_way > 0) co_await test::sleep(io, 10us);
                        CHECK(m->received == m->sent);
                        CHECK(m->unexpected == std::nullopt);
                        m->is_closing = true;
                    }
                    for (auto const& m : all.members()) co_await disconnect(m->ends);
                    all.members().clear();
                    is_done = true;
                },
                asio::detached
            );
            for (int i = 0; !is_done && i < 100000; ++i) {
                try {
                    w.run_until(io, [&is_done] { return is_done; });
                } catch (crowd::thrown const&) {}
            }
            CHECK(is_done);
            CHECK(all.delivered() > 100);
            w.run(io);
        }
        for (char const* const device : {"fab0", "fab1"}) CHECK(w.counters(device).overruns == 0);
        CHECK(w.live() == fabric::object_counts{});
    }
}

TEST_CASE("completions that a destroyed queue pair leaves behind reach nobody else", "[fabric]") {
    bool const removes = GENERATE(false, true);
    world w;
    w.set_destroy({removes, true});
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const where = stepped(io);
        connection_options hasty = small_queues();
        hasty.timeouts.drain = 1ms;
        test::pair stays = co_await connect(where, small_queues(), small_queues());
        for (int round = 0; round < 20; ++round) {
            ledger book;
            test::pair goes = co_await connect(where, hasty, hasty);
            registered_buffer m{goes.server.domain(), 64, access_flags::local_write};
            for (int i = 0; i < 8; ++i) goes.server.async_receive(m.slice(), book.entry("receive"));
            std::uint32_t const number = goes.server.native_handle()->qp_num;
            // They are late, and the queue pair is destroyed after the drain deadline.
            w.on_completion([number](completion_info const& c) {
                return c.queue_pair == number ? completion_fate{completion_fate::kind::delay, 1h}
                                              : completion_fate{};
            });
            goes.server.close();
            co_await goes.server.async_wait_disconnected(awaiting);
            w.on_completion(nullptr);
            goes.client.close();
            co_await goes.client.async_wait_disconnected(awaiting);
            CHECK(book.is_balanced());
            // The next has its number; the numbers of its work begin anew, as those of the old work.
            test::pair next = co_await connect(where, small_queues(), small_queues());
            registered_buffer n{next.server.domain(), 64, access_flags::local_write};
            registered_buffer f{next.client.domain(), 64, access_flags::local_write};
            bool is_early = true;
            next.server.async_receive(n.slice(), [&](error_code ec, receive_result const& a) {
                CHECK_FALSE(is_early);
                CHECK_FALSE(ec);
                CHECK(a.size_bytes == 64);
            });
            co_await test::sleep(io, 1ms);
            is_early = false;
            co_await next.client.async_send(f.slice(), asio::use_awaitable);
            co_await disconnect(next);
        }
        registered_buffer m{stays.client.domain(), 8, access_flags::local_write};
        registered_buffer n{stays.server.domain(), 8, access_flags::remote_write};
        co_await stays.client.async_write(m.slice(), n.remote(), asio::use_awaitable);
        CHECK(w.live().completion_queues <= 6);  // places are used again
        co_await disconnect(stays);
    });
    CHECK(is_clean(w));
}

TEST_CASE("a lost completion ends its connection, and no other", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const where = stepped(io);
        connection_options o = small_queues();
        o.liveness.stall_timeout = 1s;
        test::pair p = co_await connect(where, o, o);
        test::pair q = co_await connect(where, o, o);
        registered_buffer m{p.client.domain(), 8, access_flags::local_write};
        registered_buffer n{p.server.domain(), 8, access_flags::remote_write};
        registered_buffer r{q.server.domain(), 8, access_flags::remote_write};
        std::uint32_t const number = p.client.native_handle()->qp_num;
        w.on_completion([number](completion_info const& c) {
            return c.queue_pair == number ? completion_fate{completion_fate::kind::lose, {}}
                                          : completion_fate{};
        });
        auto [ec, bytes] = co_await p.client.async_write(m.slice(), n.remote(), awaiting);
        CHECK(ec == errc::stalled);
        for (int i = 0; i < 20; ++i)
            co_await q.client.async_write(m.slice(), r.remote(), asio::use_awaitable);
        p.server.close();
        co_await p.server.async_wait_disconnected(awaiting);
        co_await disconnect(q);
    });
    CHECK(is_clean(w));
}

TEST_CASE("a broken queue ends its members, and the poller makes another", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const where{poller::on(io, {.polling = {.spin = std::chrono::milliseconds{1}}})};
        std::vector<test::pair> all;
        for (int i = 0; i < 3; ++i)
            all.push_back(co_await connect(where, small_queues(), small_queues()));
        w.overrun("fab1");
        for (test::pair& p : all) {
            auto [why] = co_await p.client.async_wait_disconnected(awaiting);
            CHECK(why == errc::completion_queue_broken);
        }
        // While the old members of the other device are still there.
        test::pair next = co_await connect(where, small_queues(), small_queues());
        registered_buffer m{next.client.domain(), 8, access_flags::local_write};
        registered_buffer n{next.server.domain(), 8, access_flags::remote_write};
        co_await next.client.async_write(m.slice(), n.remote(), asio::use_awaitable);
        co_await disconnect(next);
        for (test::pair& p : all) {
            p.server.close();
            co_await p.server.async_wait_disconnected(awaiting);
        }
    });
    CHECK(is_clean(w));
}

TEST_CASE(
    "a queue pair that cannot be destroyed keeps its queue, and the others go on", "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const where = stepped(io);
        test::pair p = co_await connect(where, small_queues(), small_queues());
        test::pair q = co_await connect(where, small_queues(), small_queues());
        w.fail_call("ibv_destroy_qp", 1, EBUSY);
        p.server.close();
        co_await p.server.async_wait_disconnected(awaiting);
        p.client.close();
        co_await p.client.async_wait_disconnected(awaiting);
        registered_buffer m{q.client.domain(), 8, access_flags::local_write};
        registered_buffer n{q.server.domain(), 8, access_flags::remote_write};
        co_await q.client.async_write(m.slice(), n.remote(), asio::use_awaitable);
        co_await disconnect(q);
    });
    // The io_context ran out of work, although the queue is kept.
    CHECK(w.live().queue_pairs == 1);
    CHECK(w.live().completion_queues == 1);
}

TEST_CASE("completions of a queue pair that could not be destroyed are nobody else's", "[fabric]") {
    // Several share a completion queue with the last one; each is the only one that is left.
    constexpr std::size_t pairs = 12;
    for (std::size_t kept = 0; kept + 1 < pairs; ++kept) {
        CAPTURE(kept);
        world w;
        asio::io_context io;
        run(w, io, [&]() -> asio::awaitable<void> {
            home const where = stepped(io);
            std::vector<test::pair> all;
            for (std::size_t i = 0; i < pairs; ++i)
                all.push_back(co_await connect(where, small_queues(), small_queues()));
            for (std::size_t i = 0; i + 1 < pairs; ++i) {
                if (i != kept) co_await disconnect(all[i]);
            }
            test::pair& lost = all.back();
            test::pair& left = all[kept];
            registered_buffer of_lost{lost.server.domain(), 64, access_flags::local_write};
            registered_buffer into{left.server.domain(), 64, access_flags::local_write};
            registered_buffer from{left.client.domain(), 64, access_flags::local_write};
            // Each has the first number of its queue.
            std::optional<error_code> received;
            lost.server.async_receive(of_lost.slice(), [](error_code, receive_result const&) {});
            left.server.async_receive(into.slice(), [&](error_code ec, receive_result const&) {
                received = ec;
            });
            // Later than timeouts.drain, which is one second.
            w.set_flush({2s, 64});
            // The peer has no work to drain, so its queue pair is destroyed first.
            w.fail_call("ibv_destroy_qp", 2, EBUSY);
            lost.server.close();
            auto [why] = co_await lost.server.async_wait_disconnected(awaiting);
            CHECK(why == errc::not_drained);
            co_await test::sleep(io, 2s);
            CHECK_FALSE(received);
            w.set_flush({});
            co_await left.client.async_send(from.slice(), asio::use_awaitable);
            co_await test::sleep(io, 1ms);
            REQUIRE(received);
            CHECK_FALSE(*received);
            co_await disconnect(left);
            lost.client.close();
        });
    }
}

TEST_CASE("a shared receive queue is counted once in a shared queue", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const where = stepped(io);
        shared_receive_options deep;
        deep.depth = 4096;
        shared_receive_queue receives{io, deep};
        connection_options server = small_queues();
        server.placement.shared_receives = receives;
        std::vector<test::pair> all;
        for (int i = 0; i < 32; ++i) all.push_back(co_await connect(where, small_queues(), server));
        // Had each taken the depth of the shared queue, the 32 would need 4 queues of the largest
        // size besides the first five.
        CHECK(w.live().completion_queues <= 12);
        for (test::pair& p : all) co_await disconnect(p);
    });
    CHECK(w.counters("fab0").overruns == 0);
}

TEST_CASE("a receive whose completion is lost is an error, never a success", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        home const where = stepped(io);
        test::pair p = co_await connect(where, small_queues(), small_queues());
        registered_buffer m{p.client.domain(), 64, access_flags::local_write};
        registered_buffer n{p.server.domain(), 3 * 64, access_flags::local_write};
        std::vector<error_code> codes;
        for (std::size_t i = 0; i < 3; ++i) {
            p.server.async_receive(
                n.slice(i * 64, 64),
                [&](error_code ec, receive_result const& got) {
                    codes.push_back(ec);
                    if (!ec) CHECK(got.size_bytes == 10);
                }
            );
        }
        std::uint32_t const number = p.server.native_handle()->qp_num;
        bool is_lost = false;
        w.on_completion([&](completion_info const& c) {
            bool const is_first = c.queue_pair == number && c.is_receive && !is_lost;
            is_lost |= is_first;
            return is_first ? completion_fate{completion_fate::kind::lose, {}} : completion_fate{};
        });
        co_await p.client.async_send(m.slice(0, 10), asio::use_awaitable);
        co_await p.client.async_send(m.slice(0, 10), asio::use_awaitable);
        co_await p.server.async_wait_disconnected(awaiting);
        CHECK(is_lost);
        REQUIRE(codes.size() == 3);
        CHECK(codes[0] == errc::completion_queue_broken);
        CHECK_FALSE(codes[1]);
        CHECK(codes[2]);
        CHECK(p.server.last_failure().code == errc::completion_queue_broken);
        p.client.close();
        co_await p.client.async_wait_disconnected(awaiting);
    });
    CHECK(is_clean(w));
}

namespace {

/// Clients that connect, send two numbers, wait for one, and leave, again and again; and what of that
/// was lost. Handlers pause, so that connections join a queue while another leaves it.
class visits {
public:
    explicit visits(int most) : most_{most}, door_{others_, {"10.0.0.1", 0}} {}

    void run() {
        auto const keep = asio::make_work_guard(servers_);
        auto const keep_others = asio::make_work_guard(others_);
        accept();
        for (int i = 0; i < 16; ++i) asio::post(clients_, [this] { begin(); });
        std::jthread const serving{[this] { servers_.run(); }};
        std::jthread const accepting{[this] { others_.run(); }};
        clients_.run();
        door_.close();
        servers_.stop();
        others_.stop();
    }

    std::atomic<int> served{0};
    std::atomic<int> failed{0};
    std::atomic<int> lengths_wrong{0};

private:
    static connection_options depths() {
        connection_options o;
        o.queue_pair.send_queue_depth = o.queue_pair.receive_queue_depth = 8;
        o.queue_pair.rnr_retry_count = 7;
        return o;
    }

    struct visit {
        visit(connection over) : c{std::move(over)}, memory{} {}
        connection c;
        registered_buffer memory;
        int received = 0;
    };
    using visit_ptr = std::shared_ptr<visit>;

    void pause() {
        if (random_() % 4 == 0)
            std::this_thread::sleep_for(std::chrono::microseconds{random_() % 3000});
    }

    void accept() {
        door_.async_get_request([this](error_code ec, connection_request asked) {
            if (ec) return;
            auto const v =
                std::make_shared<visit>(connection{shared_, std::move(asked), depths(), ec});
            if (!ec) serve(v);
            accept();
        });
    }
    void serve(visit_ptr const& v) {
        v->memory = {v->c.domain(), 64, access_flags::local_write};
        for (std::size_t i = 0; i < 3; ++i) {
            v->c.async_receive(
                v->memory.slice(i * 8, 8),
                [this, v](error_code ec, receive_result const& got) {
                    if (ec) return;
                    lengths_wrong += got.size_bytes != 8;
                    pause();
                    if (++v->received < 2) return;
                    v->c.async_send(v->memory.slice(0, 8), [this, v](error_code, std::size_t) {
                        pause();
                        leave(v);
                    });
                }
            );
        }
        v->c.async_accept({}, [v](error_code) {});
    }

    // In several ways, on several threads.
    void leave(visit_ptr const& v) {
        switch (random_() % 5) {
        case 0: return v->c.close();
        case 1: return asio::post(others_, [v] { v->c.close(); });
        case 2: v->c = connection{}; return;
        default: v->c.async_wait_disconnected([this, v](error_code) { pause(); });
        }
    }

    void begin() {
        if (begun_ == most_) return;
        ++begun_;
        auto const v = std::make_shared<visit>(connection{of_clients_, depths()});
        v->c.async_connect(door_.local_endpoint(), [this, v](error_code ec) {
            if (ec) return end(v, ec);
            v->memory = {v->c.domain(), 64, access_flags::local_write};
            v->c.async_receive(
                v->memory.slice(32, 8),
                [this, v](error_code failure, receive_result const&) { end(v, failure); }
            );
            auto const timer = std::make_shared<asio::steady_timer>(clients_, 20s);
            for (std::size_t i = 0; i < 2; ++i)
                v->c.async_send(v->memory.slice(i * 8, 8), [v](error_code, std::size_t) {});
            timer->async_wait([v, weak = std::weak_ptr{timer}](error_code late) {
                if (!late) v->c.close();
            });
            v->c.async_wait_disconnected([timer](error_code) { timer->cancel(); });
        });
    }
    void end(visit_ptr const& v, error_code ec) {
        ++(ec ? failed : served);
        v->c.close();
        begin();
    }

    int const most_;
    int begun_ = 0;
    asio::io_context servers_;
    asio::io_context others_;
    asio::io_context clients_;
    poller shared_ = poller::on(servers_, {.polling = {.mode = poll_mode::busy}});
    poller of_clients_ = poller::on(clients_);
    acceptor door_;
    std::minstd_rand random_{1};
};

}  // namespace

TEST_CASE("connections that join and leave a shared queue lose nothing", "[fabric]") {
    fabric::world_options real;
    real.mode = fabric::scheduling::real;
    world w{real};
    {
        visits all{400};
        all.run();
        CHECK(all.served == 400);
        CHECK(all.failed == 0);
        CHECK(all.lengths_wrong == 0);
    }
}
