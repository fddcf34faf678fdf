// Executors of every kind run a connection and its handlers, in order and one at a time; requests
// become connections on other executors; connectors reconnect connections without the session
// protocol.
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>
#include <rcverbs/experimental/retry.hpp>
#include <rcverbs/experimental/window.hpp>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// A user-defined executor that counts the functions it runs.
class foreign_executor {
public:
    foreign_executor(asio::io_context& io, std::shared_ptr<std::atomic<int>> count)
        : inner_{io.get_executor()},
          count_{std::move(count)} {}

    template <class Function>
    void execute(Function f) const {
        inner_.execute([f = std::move(f), count = count_]() mutable {
            ++*count;
            f();
        });
    }
    asio::execution_context& query(asio::execution::context_t) const noexcept {
        return inner_.context();
    }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
        return asio::execution::blocking.never;
    }
    foreign_executor require(asio::execution::blocking_t::never_t) const { return *this; }
    friend bool operator==(foreign_executor const& a, foreign_executor const& b) noexcept {
        return a.inner_ == b.inner_ && a.count_ == b.count_;
    }

private:
    asio::io_context::executor_type inner_;
    std::shared_ptr<std::atomic<int>> count_;
};

/// What a program does whenever its executor is copied: here it looks at an object of the library.
struct on_copy {
    explicit on_copy(asio::io_context& io) : inner{io.get_executor()} {}

    asio::io_context::executor_type inner;
    std::function<void()> look;
    std::atomic<bool> is_looking{false};
    std::atomic<int> copies{0};
    std::atomic<bool> was_locked{false};
    std::vector<std::future<void>> late;

    void operator()() noexcept {
        if (!look || is_looking.exchange(true)) return;
        ++copies;
        // On another thread, so that a lock that is held shows instead of ending the test.
        std::future<void> done = std::async(std::launch::async, look);
        if (done.wait_for(30s) == std::future_status::timeout) {
            was_locked = true;
            late.push_back(std::move(done));
        }
        is_looking = false;
    }
};

/// Small enough that any_io_executor copies it.
class calling_executor {
public:
    explicit calling_executor(on_copy& what) noexcept : what_{&what} {}
    calling_executor(calling_executor const& other) noexcept : what_{other.what_} { (*what_)(); }
    calling_executor(calling_executor&&) noexcept = default;
    calling_executor& operator=(calling_executor const&) = delete;

    template <class Function>
    void execute(Function f) const {
        what_->inner.execute(std::move(f));
    }
    asio::execution_context& query(asio::execution::context_t) const noexcept {
        return what_->inner.context();
    }
    static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
        return asio::execution::blocking.never;
    }
    calling_executor require(asio::execution::blocking_t::never_t) const { return *this; }
    friend bool operator==(calling_executor const& a, calling_executor const& b) noexcept {
        return a.what_ == b.what_;
    }

private:
    on_copy* what_;
};

/// Runs an io_context on several threads until it is destroyed.
class threads {
public:
    threads(asio::io_context& io, int count) : work_{io.get_executor()} {
        for (int i = 0; i < count; ++i) all_.emplace_back([&io] { io.run(); });
    }
    ~threads() {
        work_.reset();
        for (std::thread& t : all_) t.join();
    }

private:
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    std::vector<std::thread> all_;
};

/// Runs writes one at a time and many at a time; handlers without an associated executor access
/// unguarded data.
void exercise(home const& where) {
    acceptor a{where, {device_address(), 0}};
    connection client{where};
    auto accepted = a.async_accept(asio::use_future);
    client.async_connect(a.local_endpoint(), asio::use_future).get();
    connection server = accepted.get();
    CHECK(client.get_executor() == where.get_executor());
    registered_buffer ours{client.domain(), 4096, access_flags::local_write};
    registered_buffer theirs{
        server.domain(), 4096, access_flags::remote_write | access_flags::local_write};
    constexpr int count = 400;
    std::vector<int> order;
    int messages = 0;
    std::promise<void> written;
    std::promise<void> received_all;
    for (int i = 0; i < 20; ++i) {
        server.async_receive(theirs.slice(0, 64), [&](error_code ec, receive_result) {
            if (!ec && ++messages == 20) received_all.set_value();
        });
    }
    std::function<void(int)> write = [&](int i) {
        client.async_write(
            ours.slice(0, 64),
            theirs.remote().slice(64, 64),
            [&, i](error_code ec, std::size_t) {
                order.push_back(ec ? -1 : i);
                if (order.size() == count) written.set_value();
                if (i + 40 < count) write(i + 40);
            }
        );
    };
    for (int i = 0; i < 40; ++i) write(i);
    for (int i = 0; i < 20; ++i)
        CHECK(client.async_send(ours.slice(0, 64), asio::use_future).get() == 64);
    written.get_future().wait();
    received_all.get_future().wait();
    // Two threads start writes, this one the first forty and handlers the rest, so the order is not
    // fixed.
    std::ranges::sort(order);
    std::vector<int> expected(count);
    for (int i = 0; i < count; ++i) expected[static_cast<std::size_t>(i)] = i;
    CHECK(order == expected);
    client.async_disconnect(asio::use_future).get();
    server.async_wait_disconnected(asio::use_future).get();
}

}  // namespace

TEST_CASE("one io_context that four threads run calls handlers one at a time", "[device]") {
    asio::io_context io;
    threads const four{io, 4};
    exercise(io);
}

TEST_CASE("a thread_pool runs connections", "[device]") {
    asio::thread_pool pool{3};
    exercise(pool);
}

TEST_CASE("the handlers of refused operations do not overlap with others", "[device]") {
    asio::thread_pool pool{4};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(pool.get_executor());
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        std::atomic<int> inside{0};
        std::atomic<int> overlaps{0};
        std::atomic<int> calls{0};
        std::atomic<int> refused{0};
        auto const work = [&](error_code ec, std::size_t) {
            if (inside.fetch_add(1) != 0) ++overlaps;
            refused += ec == errc::out_of_range;
            for (int i = 0; i < 1000; ++i) inside.load();
            inside.fetch_sub(1);
            ++calls;
        };
        constexpr int many = 500;
        for (int i = 0; i < many; ++i) {
            p.client.async_write(ours.slice(), theirs.remote().slice(0, 32), work);
            p.client.async_write(ours.slice(), theirs.remote(), work);
            while (calls < 2 * i - 64) co_await asio::post(io, asio::use_awaitable);
        }
        while (calls < 2 * many) co_await asio::post(io, asio::use_awaitable);
        CHECK(refused == many);
        CHECK(overlaps == 0);
        p.client.close();
        p.server.close();
    });
    pool.join();
}

TEST_CASE("strands run connections", "[device]") {
    asio::thread_pool pool{3};
    SECTION("of a concrete type") { exercise(asio::make_strand(pool)); }
    SECTION("of erased type") {
        exercise(asio::make_strand(asio::any_io_executor{pool.get_executor()}));
    }
}

TEST_CASE("pollers run connections", "[device]") {
    poller const thread = poller::start();
    SECTION("by themselves") { exercise(thread); }
    SECTION("by their executor") { exercise(thread.get_executor()); }
    SECTION("of the connection's own") { exercise(own_thread); }
}

TEST_CASE("connections join and leave a poller that four threads run", "[device]") {
    constexpr int rounds = 8;
    asio::io_context io;
    threads const four{io, 4};
    poller const shared = poller::on(io);
    std::atomic<int> right{0};  // Catch2 counts assertions without a lock
    auto const one = [&](int id) -> asio::awaitable<void> {
        connection_options o = sharing();
        o.queue_pair.send_queue_depth = 16;
        o.queue_pair.receive_queue_depth = 16;
        for (int i = 0; i < rounds; ++i) {
            test::pair p = co_await connect(shared, o, o);
            registered_buffer m{p.client.domain(), 64, access_flags::local_write};
            registered_buffer n{p.server.domain(), 64, access_flags::local_write};
            std::uint64_t const value = static_cast<std::uint64_t>(id) * rounds + 1;
            std::memcpy(m.bytes().data(), &value, sizeof value);
            for (int k = 0; k < 16; ++k) {
                auto [sent, received] = co_await (
                    p.client.async_send(m.slice(), asio::use_awaitable) &&
                    p.server.async_receive(n.slice(), asio::use_awaitable)
                );
                std::uint64_t found = 0;
                std::memcpy(&found, n.bytes().data(), sizeof found);
                right += sent == 64 && received.size_bytes == 64 && found == value;
            }
            // Some leave with receives posted.
            if (i % 2 == 0) p.server.async_receive(n.slice(), [](error_code, receive_result) {});
            co_await disconnect(p);
        }
    };
    std::vector<std::future<void>> all;
    for (int id = 0; id < 8; ++id)
        all.push_back(asio::co_spawn(asio::make_strand(io), one(id), asio::use_future));
    for (std::future<void>& f : all) f.wait();  // all have ended before one's exception is thrown
    for (std::future<void>& f : all) f.get();
    CHECK(right == 8 * rounds * 16);
}

TEST_CASE("a handler may destroy the context of another connection of its poller", "[device]") {
    asio::io_context io;
    auto other = std::make_unique<asio::io_context>();
    poller const thread = poller::start();
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(thread, sharing(), sharing());
        test::pair q = co_await connect(thread, sharing(), sharing());
        registered_buffer m{p.client.domain(), 64, access_flags::local_write};
        registered_buffer n{p.server.domain(), 64, access_flags::remote_write};
        for (connection* const c : {&q.client, &q.server, &p.server}) {
            c->async_receive(m.slice(), asio::bind_executor(*other, [](error_code, receive_result) {
                             }));
        }
        p.client.async_write(m.slice(), n.remote(), [&](error_code, std::size_t) {
            // Three connections of the poller that calls this handler end in it.
            other.reset();
        });
        while (q.client.is_open() || q.server.is_open() || p.server.is_open())
            co_await asio::post(io, asio::use_awaitable);
        static_cast<void>(co_await p.client.async_wait_disconnected(awaiting));
        test::pair next = co_await connect(thread, sharing(), sharing());
        co_await disconnect(next);
    });
}

TEST_CASE(
    "a context whose handlers have run may be destroyed while the connection lives", "[device]"
) {
    asio::io_context io;
    poller const thread = poller::start();
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(thread);
        registered_buffer m{p.client.domain(), 64, access_flags::local_write};
        registered_buffer n{p.server.domain(), 64, access_flags::remote_write};
        std::optional<error_code> ended;
        p.client.async_wait_disconnected(asio::bind_executor(io, [&](error_code ec) { ended = ec; })
        );
        // Also one with the same address.
        for (int i = 0; i < 3; ++i) {
            asio::io_context other;
            std::optional<error_code> written;
            p.client.async_write(
                m.slice(),
                n.remote(),
                asio::bind_executor(other, [&](error_code ec, std::size_t) { written = ec; })
            );
            other.run();
            CHECK(written == error_code{});
        }
        CHECK(p.client.is_open());
        co_await p.client.async_write(m.slice(), n.remote(), asio::use_awaitable);
        CHECK_FALSE(ended);
        co_await disconnect(p);
        while (!ended) co_await asio::post(io, asio::use_awaitable);
    });
}

TEST_CASE("a polling thread that ends does not wait for one that waits for it", "[device]") {
    asio::io_context io;
    auto first = std::make_unique<poller>(poller::start());
    poller const second = poller::start();
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(second);
        registered_buffer m{p.client.domain(), 64, access_flags::local_write};
        registered_buffer n{p.server.domain(), 64, access_flags::remote_write};
        std::atomic<bool> is_written{false};
        p.client.async_write(
            m.slice(),
            n.remote(),
            asio::bind_executor(
                first->get_executor(), [&](error_code, std::size_t) { is_written = true; }
            )
        );
        while (!is_written) co_await asio::post(io, asio::use_awaitable);
        std::atomic<bool> has_started{false};
        asio::post(second.get_executor(), [&] {
            first.reset();
            std::this_thread::sleep_for(10ms);
            poller const third = poller::start();
            has_started = true;
        });
        while (!has_started) co_await asio::post(io, asio::use_awaitable);
        CHECK(p.client.is_open());
        co_await disconnect(p);
    });
}

TEST_CASE("an executor type of the program's own runs connections", "[device]") {
    asio::io_context io;
    threads const two{io, 2};
    auto const count = std::make_shared<std::atomic<int>>(0);
    exercise(asio::any_io_executor{foreign_executor{io, count}});
    // Completions must be posted to the executor; the number of posts depends on the completions
    // per round.
    CHECK(*count > 10);
}

TEST_CASE("destroying the io_context of a pending handler ends the connection", "[device]") {
    asio::io_context io;
    auto other = std::make_unique<asio::io_context>();
    poller const thread = poller::start();
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(thread);
        registered_buffer memory{p.client.domain(), 64, access_flags::local_write};
        p.client.async_receive(
            memory.slice(), asio::bind_executor(*other, [](error_code, receive_result) {})
        );
        REQUIRE(p.client.is_open());
        other.reset();
        CHECK_FALSE(p.client.is_open());
        CHECK(p.client.last_failure().reason == close_reason::closed_locally);
        CHECK(p.client.queue_pair_number() == 0);
        p.client.close();
        co_await p.server.async_wait_disconnected(asio::as_tuple(asio::use_awaitable));
    });
}

TEST_CASE("a connection of a concrete executor type has its default completion token", "[device]") {
    using executor = asio::io_context::executor_type;
    using token = asio::use_awaitable_t<executor>;
    using typed = token::as_default_on_t<basic_connection<executor>>;
    STATIC_REQUIRE(std::is_same_v<basic_connection<executor>::executor_type, executor>);
    STATIC_REQUIRE(std::is_same_v<
                   typed::executor_type,
                   typed::rebind_executor<typed::executor_type>::other::executor_type>);
    STATIC_REQUIRE(std::is_same_v<
                   connector::rebind_executor<
                       asio::strand<asio::any_io_executor>>::other::executor_type,
                   asio::strand<asio::any_io_executor>>);
    STATIC_REQUIRE(std::
                       is_same_v<window::rebind_executor<executor>::other, basic_window<executor>>);
    STATIC_REQUIRE(std::is_same_v<batch::rebind_executor<executor>::other, basic_batch<executor>>);
    asio::io_context io;
    std::exception_ptr failed;
    auto const work = [&]() -> asio::awaitable<void, executor> {
        basic_acceptor<executor> a{io, {device_address(), 0}};
        a.async_accept([](error_code ec, basic_connection<executor> made) {
            CHECK_FALSE(ec);
            made.close();
        });
        typed client{io};
        co_await client.async_connect(a.local_endpoint());
        registered_buffer ours{client.domain(), 64, access_flags::local_write};
        CHECK(client.get_executor() == io.get_executor());
        connection erased{std::move(client)};
        CHECK(erased.is_open());
        CHECK_FALSE(client.is_valid());
        CHECK(erased.get_executor() == asio::any_io_executor{io.get_executor()});
        co_await erased.async_wait_disconnected(asio::use_awaitable_t<executor>{});
    };
    asio::co_spawn(io, work(), [&](std::exception_ptr e) { failed = e; });
    io.run();
    if (failed) std::rethrow_exception(failed);
}

TEST_CASE("requests become connections with options and executors of their own", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        std::array const threads{poller::start(), poller::start()};
        std::vector<connection> servers;
        for (std::uint8_t i = 0; i < 2; ++i) {
            connection client{io};
            co_await client.async_resolve(a.local_endpoint(), asio::use_awaitable);
            // The depth that the client requests.
            std::vector<std::byte> const wish{std::byte(8 * (i + 1))};
            auto const serve = [&]() -> asio::awaitable<void> {
                connection_request request = co_await a.async_get_request(asio::use_awaitable);
                CHECK(request.is_valid());
                CHECK(request.local_endpoint() == a.local_endpoint());
                CHECK(request.private_data().size() == 56);
                CHECK(request.initiator_depth() > 0);
                connection_options options;
                options.queue_pair.receive_queue_depth =
                    std::to_integer<std::uint32_t>(request.private_data()[0]);
                servers.emplace_back(threads[i], std::move(request), options);
                CHECK_FALSE(request.is_valid());
                co_await servers.back().async_accept({}, asio::use_awaitable);
            };
            co_await (serve() && client.async_establish(wish, asio::use_awaitable));
            CHECK(servers.back().limits().receive_queue_depth == 8U * (i + 1U));
            CHECK(servers.back().get_executor() == threads[i].get_executor());
            CHECK(servers.back().remote_endpoint() == client.local_endpoint());
            co_await client.async_disconnect(asio::use_awaitable);
            co_await servers.back().async_wait_disconnected(asio::use_awaitable);
        }
    });
}

TEST_CASE(
    "a request that is dropped is rejected, and one that is used up makes no connection", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        connection client{io};
        auto const drop = [&]() -> asio::awaitable<void> {
            connection_request request = co_await a.async_get_request(asio::use_awaitable);
            connection_request const moved = std::move(request);
            error_code ec;
            connection const none{io, std::move(request), {}, ec};
            CHECK(ec == errc::not_connected);
            CHECK_FALSE(none.is_valid());
        };
        auto result = co_await (drop() && client.async_connect(a.local_endpoint(), awaiting));
        CHECK(std::get<0>(result) == cm_errc::rejected_by_peer);
        CHECK(a.statistics().connections == 0);
    });
}

TEST_CASE("several waits for requests are served in the order of the calls", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        std::vector<std::pair<int, connection_request>> taken;
        for (int i = 0; i < 3; ++i) {
            a.async_get_request([&, i](error_code ec, connection_request r) {
                if (!ec) taken.emplace_back(i, std::move(r));
            });
        }
        std::vector<connection> clients;
        for (int i = 0; i < 3; ++i) {
            connection& c = clients.emplace_back(io);
            co_await c.async_resolve(a.local_endpoint(), asio::use_awaitable);
            std::vector<std::byte> const name{std::byte(i)};
            c.async_establish(name, [](error_code) {});
            asio::steady_timer timer{io};
            while (taken.size() < static_cast<std::size_t>(i) + 1) {
                timer.expires_after(1ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
            CHECK(taken.back().first == i);
            CHECK(taken.back().second.private_data()[0] == std::byte(i));
        }
        for (auto& [i, request] : taken) {
            CHECK_NOTHROW(request.reject());
            CHECK_THROWS_AS(request.reject(), boost::system::system_error);
        }
    });
}

TEST_CASE(
    "a bare connection is connected again, and what may be done twice is retried", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        connector_options<connection> options;
        options.connection.placement.domain = domain_sharing::isolated;
        basic_connector<connection> to_server{io, a.local_endpoint(), options};
        connection_options shares;
        shares.placement.domain = domain_sharing::shared;
        shares.queue_pair.rnr_retry_count = 7;  // the receive may be posted late
        std::optional<registered_buffer> page;
        int served = 0;
        // The server closes each connection after its first message, except the last.
        auto const serve = [&]() -> asio::awaitable<void> {
            for (;; ++served) {
                connection c = co_await requested(a, shares);
                if (!page) page.emplace(c.domain(), 64, access_flags::local_write);
                auto [accepted] = co_await c.async_accept({}, awaiting);
                if (accepted) continue;
                static_cast<void>(co_await c.async_receive(page->slice(), awaiting));
                if (served < 2) {
                    c.close();
                    continue;
                }
                co_await c.async_send(page->slice(0, 1), asio::use_awaitable);
                co_await c.async_wait_disconnected(awaiting);
                co_return;
            }
        };
        int attempts = 0;
        connection current;
        std::optional<registered_buffer> mine;
        auto const ask = [&](connection& c) -> asio::awaitable<int> {
            ++attempts;
            // Registered once, for all connections.
            if (!mine) mine.emplace(c.domain(), 64, access_flags::local_write);
            mutable_slices const into = mine->slice(32, 32);
            const_slices const out = mine->slice(0, 8);
            co_await (
                c.async_receive(into, asio::use_awaitable) && c.async_send(out, asio::use_awaitable)
            );
            co_return 42;
        };
        auto const work = [&]() -> asio::awaitable<int> {
            int const result = co_await retry(
                to_server, current, std::chrono::steady_clock::now() + 20s * slowness, ask
            );
            co_await current.async_disconnect(awaiting);
            co_return result;
        };
        int const result = co_await (serve() && work());
        CHECK(result == 42);
        CHECK(attempts == 3);
        CHECK(to_server.attempts() == 3);
        a.close();
        // No server listens any more: the connector tries until the deadline has passed, which may be
        // before its first attempt is over.
        do {
            error_code last;
            try {
                co_await retry(
                    to_server, current, std::chrono::steady_clock::now() + 200ms * slowness, ask
                );
            } catch (boost::system::system_error const& e) {
                last = e.code();
            }
            CHECK(last == errc::timed_out);
        } while (!to_server.last_failure().code);
        CHECK(to_server.last_failure().code == cm_errc::rejected_no_listener);
    });
}

TEST_CASE(
    "a poller serves its connections in turn, however fast their work completes", "[device]"
) {
    constexpr std::size_t count = 32;
    constexpr std::size_t completions = 64 * count;
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        poller const shared = poller::on(io);
        connection_options options;
        options.placement.domain = domain_sharing::shared;
        std::vector<pair> pairs;
        for (std::size_t i = 0; i < count; ++i)
            pairs.push_back(co_await connect(shared, options, options));
        registered_buffer from{pairs[0].client.domain(), 8, access_flags::local_write};
        registered_buffer to{pairs[0].server.domain(), 8, access_flags::remote_write};
        std::vector<std::size_t> served(count);
        std::size_t in_all = 0;
        std::size_t under_way = 0;
        std::function<void(std::size_t)> const write = [&](std::size_t i) {
            ++under_way;
            pairs[i]
                .client.async_write(from.slice(), to.remote(), [&, i](error_code ec, std::size_t) {
                    --under_way;
                    CHECK_FALSE(ec);
                    if (in_all == completions) return;
                    ++served[i];
                    ++in_all;
                    if (!ec) write(i);
                });
        };
        for (std::size_t i = 0; i < count; ++i) write(i);
        while (under_way > 0) co_await asio::post(io, asio::use_awaitable);
        auto const [least, most] = std::ranges::minmax(served);
        INFO("least " << least << ", most " << most);
        // The delays of a network vary; without turns, some got nothing.
        CHECK(3 * least >= most);
        for (pair& p : pairs) co_await disconnect(p);
    });
}

TEST_CASE("no lock is held while a program's executor is copied", "[device]") {
    asio::io_context io;
    on_copy copies{io};
    asio::any_io_executor const own = calling_executor{copies};
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        {
            slot_pool_options few;
            few.slots = 1;
            slot_pool pool{own, p.client.domain(), few};
            copies.look = [&] { static_cast<void>(pool.free_count()); };
            slot_lease held = pool.try_acquire();
            int ended = 0;
            auto const count = [&](error_code const&, slot_lease const&) { ++ended; };
            pool.async_acquire(count);
            held.release();
            pool.async_acquire(count);
            pool.cancel();
            while (ended < 2) co_await asio::post(io, asio::use_awaitable);
            copies.look = {};
        }
        {
            memory_pool_options small;
            small.bytes_max = small.chunk_bytes = 65536;
            memory_pool pool{p.client.domain(), small};
            copies.look = [&] { static_cast<void>(pool.statistics()); };
            void* const all = pool.allocate(65536);
            bool is_done = false;
            pool.async_allocate(
                64,
                64,
                asio::bind_executor(
                    own,
                    [&](error_code const&, void* block) {
                        pool.deallocate(block, 64, 64);
                        is_done = true;
                    }
                )
            );
            pool.deallocate(all, 65536);
            while (!is_done) co_await asio::post(io, asio::use_awaitable);
            copies.look = {};
        }
        {
            acceptor a{own, {device_address(), 0}};
            copies.look = [&] { static_cast<void>(a.is_open()); };
            int ended = 0;
            a.async_wait_idle([&](error_code const&) { ++ended; });
            a.async_accept([&](error_code const&, connection const&) { ++ended; });
            a.close();
            while (ended < 2) co_await asio::post(io, asio::use_awaitable);
            copies.look = {};
        }
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
    CHECK(copies.copies > 0);
    CHECK_FALSE(copies.was_locked);
}
