// The kit for protocols: order, handlers that wait, the end, violations, deadlines, memory for the
// peer. apps/examples/own_protocol.cpp and the tests of sessions use it, too.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <rcverbs/experimental/protocol.hpp>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// A protocol without messages, whose parts the tests look at.
class probe final : public protocol::driver {
public:
    explicit probe(connection over) : driver{std::move(over)} {}

    connection& below() { return lower(); }
    using driver::complete;
    using driver::enter;
    using driver::fail;
    using driver::held;
    template <class Function>
    void run(Function f) {
        in_order(std::move(f));
    }
    template <class Function>
    auto in_turn(Function f) {
        return ordered(std::move(f));
    }

    protocol::wait_list<error_code, int> waiting{*this};
    protocol::deadline limit{*this};
    std::vector<failure> ends;
    int abandoned = 0;
    bool fails_all = false;

private:
    void on_end(failure const& why) override {
        ends.push_back(why);
        if (fails_all) waiting.fail_all(why.code);
    }
    void on_abandoned() noexcept override { ++abandoned; }
};

template <class Token>
auto async_wait(std::shared_ptr<probe> const& on, Token&& token) {
    return protocol::initiate<error_code, int>(
        on, [](probe& p, auto who) { p.waiting.add(std::move(who)); }, std::forward<Token>(token)
    );
}

struct probes {
    std::shared_ptr<probe> client;
    std::shared_ptr<probe> server;
};

asio::awaitable<probes> probe_both(asio::io_context& io) {
    test::pair p = co_await connect(io);
    co_return probes{
        protocol::make<probe>(std::move(p.client)), protocol::make<probe>(std::move(p.server))};
}

asio::awaitable<void> until_ended(asio::io_context& io, probe const& p) {
    while (p.ends.empty()) co_await asio::post(io, asio::use_awaitable);
}

}  // namespace

TEST_CASE("a handler that begins to wait after the end is completed with its error", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(io);
        p.server->fails_all = true;
        p.client->close();
        co_await until_ended(io, *p.client);
        co_await until_ended(io, *p.server);
        auto const [closed, none] = co_await async_wait(p.client, awaiting);
        CHECK(closed == asio::error::operation_aborted);
        CHECK(none == 0);
        auto const [left, nothing] = co_await async_wait(p.server, awaiting);
        CHECK(left == errc::peer_disconnected);
        // on_end() has said it otherwise.
        p.server->enter([&] { p.server->waiting.fail_all(channel_errc::peer_closed_early); });
        auto const [told, nobody] = co_await async_wait(p.server, awaiting);
        CHECK(told == channel_errc::peer_closed_early);
        CHECK(p.client->waiting.empty());
        CHECK(p.server->waiting.empty());
    });
}

TEST_CASE("a driver hears the end once, also with nothing posted", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(io);
        p.client->close();
        co_await until_ended(io, *p.client);
        co_await until_ended(io, *p.server);
        CHECK(p.client->ends[0].reason == close_reason::closed_locally);
        CHECK(p.client->ends[0].code == asio::error::operation_aborted);
        CHECK(p.server->ends[0].reason == close_reason::peer_disconnected);
        CHECK(p.server->ends[0].code == errc::peer_disconnected);
        CHECK(p.server->last_failure().reason == close_reason::peer_disconnected);
        p.server->close();
        for (int i = 0; i < 10; ++i) co_await asio::post(io, asio::use_awaitable);
        CHECK(p.client->ends.size() == 1);
        CHECK(p.server->ends.size() == 1);
        // Of a connection that was never made.
        auto const idle = protocol::make<probe>(connection{io});
        idle->close();
        co_await until_ended(io, *idle);
        auto const lost = protocol::make<probe>(connection{io});
        auto [refused] = co_await lost->below().async_connect({device_address(), 1}, awaiting);
        CHECK(refused == cm_errc::rejected_no_listener);
        co_await until_ended(io, *lost);
        CHECK(lost->ends[0].code == cm_errc::rejected_no_listener);
        CHECK(lost->ends[0].reason == close_reason::refused);
    });
}

TEST_CASE("a driver's failure ends the connection, and is the first that counts", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(io);
        error_code const why =
            p.server->fail(step::transfer, errc::malformed_message, close_reason::protocol_error);
        CHECK(why == errc::malformed_message);
        p.server->fail(step::finish, errc::timed_out, close_reason::timed_out);
        CHECK_FALSE(p.server->complete());
        failure const f = p.server->last_failure();
        CHECK(f.where == step::transfer);
        CHECK(f.code == errc::malformed_message);
        CHECK(f.reason == close_reason::protocol_error);
        CHECK(f.address == p.server->below().remote_endpoint());
        co_await until_ended(io, *p.server);
        CHECK(p.server->ends[0].code == errc::malformed_message);
        CHECK(p.server->ends[0].reason == close_reason::protocol_error);
        co_await until_ended(io, *p.client);
        // An end in order is no failure, whoever disconnects.
        probes q = co_await probe_both(io);
        CHECK(q.client->complete());
        q.client->fail(step::finish, errc::timed_out, close_reason::timed_out);
        q.server->close();
        co_await until_ended(io, *q.client);
        CHECK(q.client->last_failure().reason == close_reason::completed);
        CHECK_FALSE(q.client->last_failure().code);
        CHECK(q.client->ends[0].code == asio::error::eof);
        // A failure of its own that is nobody's violation.
        probes r = co_await probe_both(io);
        r.client->fail(step::transfer, errc::timed_out, close_reason::timed_out);
        co_await until_ended(io, *r.client);
        CHECK(r.client->ends[0].code == errc::timed_out);
        CHECK(r.client->ends[0].reason == close_reason::timed_out);
    });
}

TEST_CASE("handlers that wait hear the end of a driver that nobody has after close()", "[device]") {
    asio::io_context io;
    bool const connects = GENERATE(true, false);
    run(io, [&]() -> asio::awaitable<void> {
        probes p;
        if (connects) p = co_await probe_both(io);
        else p.client = protocol::make<probe>(connection{io});
        p.client->fails_all = true;
        int calls = 0;
        error_code why;
        async_wait(p.client, [&](error_code ec, int) {
            ++calls;
            why = ec;
        });
        while (p.client->waiting.empty()) co_await asio::post(io, asio::use_awaitable);
        std::weak_ptr<probe> const watched = p.client;
        p.client->close();
        p.client.reset();
        while (!watched.expired()) co_await asio::post(io, asio::use_awaitable);
        CHECK(calls == 1);
        CHECK(why == asio::error::operation_aborted);
        if (connects) co_await until_ended(io, *p.server);
    });
}

TEST_CASE("an operation of a driver can be cancelled before it has started", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const d = protocol::make<probe>(connection{io});
        asio::cancellation_signal signal;
        std::vector<error_code> ends;
        auto const note = [&](error_code ec, int) { ends.push_back(ec); };
        async_wait(d, asio::bind_cancellation_slot(signal.slot(), note));
        signal.emit(asio::cancellation_type::partial);
        while (ends.empty()) co_await asio::post(io, asio::use_awaitable);
        CHECK(ends == std::vector<error_code>{asio::error::operation_aborted});
        // Both start in the order of the driver, where nothing that it starts can run meanwhile.
        bool is_over = false;
        d->run([&] {
            auto both = [&]() -> asio::awaitable<void> {
                co_await (async_wait(d, awaiting) || asio::post(io, asio::use_awaitable));
                is_over = true;
            };
            asio::co_spawn(io, std::move(both), asio::detached);
        });
        while (!is_over) co_await asio::post(io, asio::use_awaitable);
        CHECK(d->waiting.empty());
        // All at once, with success or an error, which is never empty.
        for (int i = 0; i < 2; ++i) async_wait(d, note);
        while (d->waiting.size() < 2) co_await asio::post(io, asio::use_awaitable);
        d->run([&] { d->waiting.complete_all({}, 5); });
        while (ends.size() < 3) co_await asio::post(io, asio::use_awaitable);
        CHECK_FALSE(ends[2]);
        async_wait(d, note);
        while (d->waiting.empty()) co_await asio::post(io, asio::use_awaitable);
        d->run([&] { d->waiting.fail_all({}); });
        while (ends.size() < 4) co_await asio::post(io, asio::use_awaitable);
        CHECK(ends[3] == asio::error::operation_aborted);
        d->close();
    });
}

TEST_CASE("handlers wait in a list, by turn and by number, and can be cancelled", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(io);
        std::vector<std::string> calls;
        auto const note = [&](std::string name) {
            return [&, name](error_code ec, int value) {
                calls.push_back(name + ' ' + (ec ? ec.message() : std::to_string(value)));
            };
        };
        auto const settle = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 10; ++i) co_await asio::post(io, asio::use_awaitable);
        };
        asio::cancellation_signal signal;
        async_wait(p.client, note("a"));
        async_wait(p.client, asio::bind_cancellation_slot(signal.slot(), note("b")));
        async_wait(p.client, note("c"));
        async_wait(p.client, note("d"));
        CHECK(p.client->waiting.size() == 4);
        signal.emit(asio::cancellation_type::total);
        co_await settle();
        p.client->enter([&] {
            CHECK(p.client->waiting.complete(3, {}, 33));
            CHECK_FALSE(p.client->waiting.complete(2, {}, 22));  // cancelled
            CHECK(p.client->waiting.complete_first({}, 11));
            p.client->waiting.fail_all(errc::timed_out);
            CHECK_FALSE(p.client->waiting.complete_first({}, 1));
        });
        CHECK(calls.size() == 1);  // never from inside
        co_await settle();
        std::string const aborted = error_code{asio::error::operation_aborted}.message();
        std::string const late = error_code{errc::timed_out}.message();
        CHECK(calls == std::vector<std::string>{"b " + aborted, "c 33", "a 11", "d " + late});
        p.client->close();
        co_await until_ended(io, *p.server);
    });
}

TEST_CASE("a deadline passes once, unless it is cancelled or started again", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(io);
        int passed = 0;
        p.client->limit.start(1ms, [&] { passed += 1; });
        p.client->limit.cancel();
        p.client->limit.start(1ms, [&] { passed += 10; });
        p.client->limit.start(2ms, [&] { passed += 100; });
        while (passed == 0) co_await asio::post(io, asio::use_awaitable);
        asio::steady_timer more{io, 20ms};
        co_await more.async_wait(asio::use_awaitable);
        CHECK(passed == 100);
        p.client->limit.start(1h, [&] { passed += 1000; });
        p.client->close();
        co_await until_ended(io, *p.server);
        p.client.reset();  // does not wait for the hour
    });
}

TEST_CASE("a driver's functions do not overlap, on any number of threads", "[device]") {
    asio::thread_pool pool{4};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(pool.get_executor());
        auto const d = protocol::make<probe>(std::move(p.client));
        registered_buffer ours{d->below().domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        std::atomic<int> inside{0};
        std::atomic<int> overlaps{0};
        std::atomic<int> calls{0};
        auto const work = [&] {
            if (inside.fetch_add(1) != 0) ++overlaps;
            for (int i = 0; i < 100; ++i) inside.load();
            inside.fetch_sub(1);
            ++calls;
        };
        constexpr int many = 500;
        for (int i = 0; i < many; ++i) {
            d->run(work);
            d->below().async_write(
                ours.slice(), theirs.remote(), d->held([&](error_code, std::size_t) { work(); })
            );
            d->enter(work);
            async_wait(d, [&](error_code, int) { ++calls; });
            d->run([&, d] {
                work();
                d->waiting.complete_first({}, 1);
            });
            asio::post(pool, d->in_turn(work));
            while (calls < 5 * i) co_await asio::post(io, asio::use_awaitable);
        }
        while (calls < 6 * many) co_await asio::post(io, asio::use_awaitable);
        CHECK(overlaps == 0);
        d->close();
        p.server.close();
    });
    pool.join();
}

TEST_CASE(
    "a context that is destroyed takes a driver's handlers and deadlines with it", "[device]"
) {
    auto io = std::make_unique<asio::io_context>();
    auto const watched = std::make_shared<int>(1);
    std::shared_ptr<probe> left;
    run(*io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(*io);
        left = p.client;
        async_wait(p.client, [watched](error_code, int) { FAIL("called"); });
        p.client->limit.start(1h, [watched] { FAIL("called"); });
        for (int i = 0; i < 10; ++i) co_await asio::post(*io, asio::use_awaitable);
        p.client->run([watched] { FAIL("called"); });
        CHECK(p.client->waiting.size() == 1);
        p.server->close();
        io->stop();
    });
    io.reset();
    CHECK(watched.use_count() == 1);
    CHECK(left->abandoned == 1);
    CHECK(left->ends.empty());
    CHECK_FALSE(left->executor());
    left->close();
    left.reset();
}

TEST_CASE("memory is exposed only if the peer can use it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes p = co_await probe_both(io);
        connection const& here = p.client->below();
        error_code ec;
        registered_buffer readable{here.domain(), 64, access_flags::remote_read};
        remote_region const region =
            protocol::expose(readable.slice(8, 8), access_flags::remote_read, here, ec);
        CHECK_FALSE(ec);
        CHECK(region == readable.remote().slice(8, 8));
        CHECK(protocol::expose(readable.slice(), access_flags::remote_write, here, ec).size() == 0);
        CHECK(ec == errc::access_denied);
        if (here.domain().native_handle() != p.server->below().domain().native_handle()) {
            registered_buffer other{p.server->below().domain(), 64, access_flags::remote_read};
            protocol::expose(other.slice(), access_flags::remote_read, here, ec);
            CHECK(ec == errc::foreign_domain);
        }
        mutable_slice const gone =
            registered_buffer{here.domain(), 64, access_flags::remote_read}.slice();
        protocol::expose(gone, access_flags::remote_read, here, ec);
        CHECK(ec == errc::region_gone);
        std::array<std::byte, 8> plain{};
        protocol::expose(mutable_slice{plain, local_key{}}, access_flags::remote_read, here, ec);
        CHECK(ec == errc::access_denied);
        p.client->close();
        co_await until_ended(io, *p.server);
    });
}

TEST_CASE("protocols refuse a connection that is none", "[device]") {
    auto const code_of = [](auto const& make) {
        try {
            make();
        } catch (boost::system::system_error const& e) {
            return e.code();
        }
        return error_code{};
    };
    CHECK(code_of([] { session{connection{}}; }) == errc::not_connected);
    CHECK(code_of([] { message_channel{connection{}}; }) == errc::not_connected);
    CHECK(code_of([] { request_channel{connection{}}; }) == errc::not_connected);
}

TEST_CASE("a driver exists until its ordered handlers have run", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto d = protocol::make<probe>(connection{io});
        std::weak_ptr<probe> const watched = d;
        int calls = 0;
        d->in_turn([&, watched](int n) { calls += watched.expired() ? 100 : n; })(1);
        d->close();
        d.reset();
        while (calls == 0) co_await asio::post(io, asio::use_awaitable);
        CHECK(calls == 1);
    });
}

TEST_CASE(
    "a deadline that is destroyed while its expiry waits for its turn calls nothing", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        probes const p = co_await probe_both(io);
        int called = 0;
        for (int i = 0; i < 400; ++i) {
            auto const limit = std::make_shared<std::unique_ptr<protocol::deadline>>();
            auto const is_over = std::make_shared<bool>(false);
            bool is_gone = false;
            p.client->run([&, limit] {
                *limit = std::make_unique<protocol::deadline>(*p.client);
                (*limit)->start(0ms, [&called, is_over] { called += *is_over ? 1 : 0; });
            });
            // The order of its expiry and of the end differs.
            for (int turns = i % 8; turns > 0; --turns)
                co_await asio::post(io, asio::use_awaitable);
            std::this_thread::sleep_for(std::chrono::microseconds{i % 3 * 500});
            p.client->run([&, limit] {
                limit->reset();
                *is_over = is_gone = true;
            });
            while (!is_gone) co_await asio::post(io, asio::use_awaitable);
        }
        asio::steady_timer pause{io, 5ms};
        co_await pause.async_wait(asio::use_awaitable);
        CHECK(called == 0);
        p.client->close();
        p.server->close();
        co_await until_ended(io, *p.client);
        co_await until_ended(io, *p.server);
    });
}
