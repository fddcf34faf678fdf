// The completion token `blocking`: results, errors, limits, and threads on which nothing would ever complete.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/experimental/ring.hpp>

#include "device/channel_fixture.hpp"

using namespace rcverbs;
using namespace test;
using namespace std::chrono_literals;

namespace blocking_test {

namespace {

// Two ends, each with a thread of its own.
struct both_ends {
    explicit both_ends(connection_options const& options = {})
        : door{own_thread, {device_address(), 0}, {.connection = options}},
          client{own_thread, options} {
        std::thread other{[&] { server = door.async_accept(blocking); }};
        client.async_connect(door.local_endpoint(), blocking);
        other.join();
        mine = registered_buffer{
            client.domain(), 4096, access_flags::local_write | access_flags::remote_write};
        theirs = registered_buffer{
            server.domain(),
            4096,
            access_flags::remote_write | access_flags::remote_read | access_flags::remote_atomic};
    }

    acceptor door;
    connection client;
    connection server;
    registered_buffer mine;
    registered_buffer theirs;
};

// Runs an io_context until the end of the test.
class runner {
public:
    explicit runner(asio::io_context& io)
        : work_{io.get_executor()},
          thread_{[&io] { io.run(); }} {}
    ~runner() {
        work_.reset();
        thread_.join();
    }

private:
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    std::thread thread_;
};

// The text of what is thrown; empty if nothing is.
template <class Function>
std::string thrown_by(Function&& f) {
    try {
        f();
    } catch (boost::system::system_error const& e) {
        return e.what();
    }
    return {};
}

// The token fits every operation of every handle. Compiled, never called.
[[maybe_unused]] void all_of_them() {
    error_code ec;
    connection c;
    c.async_connect(endpoint{}, blocking);
    c.async_accept(std::span<std::byte const>{}, blocking);
    c.async_resolve(endpoint{}, blocking);
    c.async_establish(std::span<std::byte const>{}, blocking);
    c.async_disconnect(blocking(ec));
    c.async_wait_disconnected(blocking.within(1s));
    registered_buffer b;
    remote_region r;
    static_assert(std::same_as<decltype(c.async_write(b.slice(), r, blocking)), std::size_t>);
    static_assert(std::same_as<decltype(c.async_fetch_add({}, 1, blocking)), std::uint64_t>);
    static_assert(std::same_as<decltype(c.async_receive(b.slice(), blocking)), receive_result>);
    static_assert(std::same_as<
                  decltype(c.async_receive(memory_lease{}, blocking.within(1s)(ec))),
                  leased_receive_result>);
    static_assert(std::same_as<
                  decltype(c.async_start(op::write(memory_lease{}, 1, r), blocking)),
                  std::tuple<std::size_t, memory_lease>>);
    batch some{c};
    some.async_submit(blocking);
    session s;
    s.async_connect(endpoint{}, blocking);
    s.async_publish(std::vector<named_region>{}, blocking);
    s.async_wait_regions(blocking);
    s.async_exchange(blocking);
    s.async_send_done(blocking);
    s.async_wait_done(blocking);
    s.async_finish(blocking.within(1s)(ec));
    message_channel m;
    m.async_send(std::span<std::byte const>{}, 1, blocking);
    static_assert(std::same_as<decltype(m.async_receive(blocking)), message>);
    m.async_fetch(message{}, b.slice(), blocking);
    m.async_finish(blocking);
    message{}.async_take(b.slice(), blocking);
    request_channel q;
    static_assert(std::same_as<decltype(q.async_request(ask{1}, blocking)), reply>);
    q.async_notify(ask{1}, blocking);
    static_assert(std::same_as<decltype(q.async_next(blocking)), request>);
    request{}.async_answer(answer{0}, blocking);
    request_client client;
    client.async_request(ask{1}, blocking.within(1s));
    client.async_finish(blocking);
    request_server server;
    server.async_next(blocking);
    server.async_finish(blocking);
    acceptor a;
    static_assert(std::same_as<decltype(a.async_get_request(blocking)), connection_request>);
    a.async_wait_idle(blocking);
    basic_connector<session> to;
    static_assert(std::same_as<decltype(to.async_connect(blocking)), session>);
    shared_receive_queue srq;
    srq.async_receive(b.slice(), blocking);
    static_assert(std::same_as<
                  decltype(std::declval<slot_pool&>().async_acquire(blocking)),
                  slot_lease>);
    static_assert(std::same_as<
                  decltype(std::declval<memory_pool&>().async_allocate(64, 64, blocking)),
                  void*>);
    region_channel regions;
    regions.async_connect(endpoint{}, blocking);
    ring_writer writer;
    writer.async_connect(endpoint{}, blocking);
    ring_reader reader;
    reader.async_accept(blocking);
    remote_allocator allocator;
    allocator.async_allocate(64, blocking);
}

}  // namespace

TEST_CASE("blocking: operations return their results", "[device][any-device]") {
    both_ends e;
    fill(e.mine.bytes(), 7);
    CHECK(e.client.async_write(e.mine.slice(), e.theirs.remote(), blocking) == 4096);
    CHECK(std::ranges::equal(e.mine.bytes(), e.theirs.bytes()));
    std::uint64_t before = 5;
    std::memcpy(e.theirs.bytes().data(), &before, sizeof before);
    auto const word = e.theirs.remote().word(0);
    CHECK(e.client.async_fetch_add(word, 3, blocking) == 5);
    error_code ec = errc::timed_out;
    CHECK(e.client.async_compare_swap(word, 8, 9, blocking(ec)) == 8);
    CHECK_FALSE(ec);
    std::thread sender{[&] { e.client.async_send(e.mine.slice(0, 10), blocking); }};
    receive_result const got = e.server.async_receive(e.theirs.slice(), blocking.within(60s));
    sender.join();
    CHECK(got.size_bytes == 10);
    // What an adapter of Asio's makes of an operation.
    auto later =
        e.client.async_read(e.theirs.remote().slice(0, 8), e.mine.slice(0, 8), asio::deferred);
    CHECK(std::move(later)(blocking) == 8);
    e.client.async_disconnect(blocking);
    e.server.async_wait_disconnected(blocking);
}

TEST_CASE(
    "blocking: errors are thrown with the failure's text, or returned", "[device][any-device]"
) {
    both_ends e;
    auto const mine = e.mine.slice(0, 8);
    // Of the operation alone.
    std::string const text =
        thrown_by([&] { e.client.async_write(mine, e.theirs.remote(), blocking); });
    CHECK(text.starts_with(error_code{errc::out_of_range}.message()));
    error_code ec;
    CHECK(e.client.async_write(mine, e.theirs.remote(), blocking(ec)) == 0);
    CHECK(ec == errc::out_of_range);
    // Of the connection: with its step and address.
    connection lost{own_thread};
    endpoint const nobody{device_address(), 1};
    try {
        lost.async_connect(nobody, blocking);
        FAIL("connected");
    } catch (operation_failed const& failed) {
        CHECK(failed.code() == lost.last_failure().code);
        CHECK(failed.what() == lost.last_failure().message());
        CHECK(failed.why().where == step::connect);
        CHECK(failed.why().address == nobody);
    }
    message_channel channel{own_thread};
    CHECK_THROWS_AS(channel.async_connect(nobody, blocking), operation_failed);
    request_client client{own_thread, nobody, {.backoff = {.attempts_max = 1}}};
    client.async_request(ask{1}, blocking(ec));
    CHECK(ec == condition::refused);
}

TEST_CASE("blocking: a limit cancels, and nothing that came is lost", "[device][any-device]") {
    acceptor door{own_thread, {device_address(), 0}};
    error_code ec;
    auto const begin = std::chrono::steady_clock::now();
    door.async_get_request(blocking(ec).within(50ms));
    CHECK(ec == errc::timed_out);
    CHECK(std::chrono::steady_clock::now() - begin >= 50ms);
    door.async_get_request(blocking.within(-1s)(ec));
    CHECK(ec == errc::timed_out);

    message_channel server;
    message_channel client{own_thread};
    std::thread other{[&] {
        server = message_channel{own_thread, door.async_get_request(blocking)};
        server.async_accept(blocking);
    }};
    client.async_connect(door.local_endpoint(), blocking.within(60s));
    other.join();
    // Each message is received once, whichever limits pass meanwhile.
    constexpr std::uint64_t count = 2000;
    std::thread sender{[&] {
        for (std::uint64_t i = 1; i <= count; ++i) {
            client.async_send(std::as_bytes(std::span{&i, 1}), i, blocking);
            if (i % 16 == 0) std::this_thread::sleep_for(100us);
        }
    }};
    std::uint64_t last = 0;
    std::size_t late = 0;
    while (last < count) {
        message const m = server.async_receive(blocking(ec).within(std::chrono::microseconds{30}));
        if (ec == errc::timed_out) {
            ++late;
            continue;
        }
        if (ec) break;
        std::uint64_t number = 0;
        std::memcpy(&number, m.bytes().data(), sizeof number);
        if (number != last + 1) break;
        last = number;
    }
    sender.join();
    CHECK_FALSE((ec && ec != errc::timed_out));
    CHECK(last == count);
    CHECK(late > 0);
    // What was posted cannot be taken back: the connection ends.
    both_ends e;
    e.client.async_receive(e.mine.slice(), blocking(ec).within(50ms));
    CHECK(ec == errc::timed_out);
    CHECK_FALSE(e.client.is_open());
}

TEST_CASE("blocking: a thread that runs the object's executor is refused", "[device][any-device]") {
    both_ends e;
    error_code ec;
    std::promise<error_code> from_handler;
    e.client.async_write(e.mine.slice(), e.theirs.remote(), [&](error_code, std::size_t) {
        error_code inner;
        e.client.async_write(e.mine.slice(), e.theirs.remote(), blocking(inner));
        from_handler.set_value(inner);
    });
    CHECK(from_handler.get_future().get() == errc::would_deadlock);
    // The connection goes on.
    e.client.async_write(e.mine.slice(), e.theirs.remote(), blocking(ec));
    CHECK_FALSE(ec);
    // On any thread of a pool, in a strand or not.
    asio::thread_pool pool{2};
    connection pooled{asio::make_strand(pool)};
    std::promise<error_code> from_pool;
    asio::post(pool, [&] {
        error_code inner;
        pooled.async_connect({device_address(), 1}, blocking(inner));
        from_pool.set_value(inner);
    });
    CHECK(from_pool.get_future().get() == errc::would_deadlock);
    pooled.async_connect({device_address(), 1}, blocking(ec));
    CHECK(ec == condition::refused);
    // A thread of another object's executor may wait.
    std::promise<error_code> from_other;
    e.server.async_write(e.theirs.slice(), e.mine.remote(), [&](error_code, std::size_t) {
        error_code inner;
        e.client.async_write(e.mine.slice(), e.theirs.remote(), blocking(inner));
        from_other.set_value(inner);
    });
    CHECK(from_other.get_future().get() == error_code{});
    pool.join();
}

TEST_CASE("blocking: a context that nobody runs is noticed", "[device][any-device]") {
    both_ends e;  // the process has other threads
    asio::io_context io;
    endpoint const nobody{device_address(), 1};
    {
        connection c{io};
        error_code ec;
        c.async_connect(nobody, blocking(ec));
        CHECK(ec == errc::would_deadlock);
        CHECK(c.last_failure().code == error_code{});
        {
            runner const runs{io};
            c.async_connect(nobody, blocking(ec));
            CHECK(ec == condition::refused);
        }
        // It has run, and is stopped.
        connection again{io};
        again.async_connect(nobody, blocking(ec));
        CHECK(ec == errc::would_deadlock);
    }
    io.restart();
    runner const runs{io};
    connection c{io};
    error_code ec;
    c.async_connect(nobody, blocking(ec));
    CHECK(ec == condition::refused);
}

TEST_CASE("blocking: a context that is destroyed ends the wait", "[device][any-device]") {
    both_ends e;
    auto io = std::make_unique<asio::io_context>();
    std::optional<runner> runs{*io};
    acceptor door{*io, {device_address(), 0}};
    std::promise<error_code> result;
    std::thread waits{[&] {
        error_code ec;
        door.async_get_request(blocking(ec));
        result.set_value(ec);
    }};
    auto got = result.get_future();
    CHECK(got.wait_for(200ms) == std::future_status::timeout);
    io->stop();
    runs.reset();
    io.reset();
    CHECK(got.get() == asio::error::operation_aborted);
    waits.join();
}

TEST_CASE("blocking: many threads wait for one client", "[device][any-device]") {
    request_server server{own_thread, {device_address(), 0}};
    std::thread serving{[&] {
        for (;;) {
            error_code ec;
            request r = server.async_next(blocking(ec));
            if (ec) return;
            r.async_answer(answer{0}.body(r.bytes()), blocking(ec));
        }
    }};
    request_client client{own_thread, server.local_endpoint()};
    std::atomic<int> wrong = 0;
    std::vector<std::thread> callers;
    for (std::uint64_t thread = 0; thread < 8; ++thread)
        callers.emplace_back([&, thread] {
            for (std::uint64_t i = 0; i < 200; ++i) {
                std::uint64_t const body = thread << 32 | i;
                auto const bytes = std::as_bytes(std::span{&body, 1});
                reply const r = client.async_request(ask{1}.body(bytes), blocking.within(60s));
                if (!std::ranges::equal(r.bytes(), bytes)) ++wrong;
            }
        });
    for (std::thread& t : callers) t.join();
    CHECK(wrong == 0);
    client.async_finish(blocking);
    server.async_finish(blocking);
    serving.join();
}

TEST_CASE("blocking: memory of a pool, and objects of Asio's", "[device][any-device]") {
    both_ends e;
    memory_pool pool{e.client.domain(), {}};
    void* const block = pool.async_allocate(64, 64, blocking);
    CHECK(block != nullptr);
    pool.deallocate(block, 64, 64);
    asio::io_context io;
    runner const runs{io};
    asio::steady_timer timer{io, 1h};
    error_code ec;
    timer.async_wait(blocking(ec).within(10ms));
    CHECK(ec == errc::timed_out);
}

}  // namespace blocking_test
