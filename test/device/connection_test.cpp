// The life of a connection on a real device: every way to connect and to end, and no leaked
// resources.
#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>

#include <rdma/rdma_cma.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// The kernel's count of RDMA objects, without contexts: librdmacm keeps the device open until the
// process ends.
// librdmacm leaves the protection domain that it makes for a device when the list of devices outlives the
// last id, until the next id has gone.
void use_an_id() {
    rdma_event_channel* const channel = rdma_create_event_channel();
    REQUIRE(channel != nullptr);
    rdma_cm_id* id = nullptr;
    REQUIRE(rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP) == 0);
    asio::ip::tcp::endpoint address{asio::ip::make_address(device_address()), 0};
    CHECK(rdma_bind_addr(id, address.data()) == 0);
    rdma_destroy_id(id);
    rdma_destroy_event_channel(channel);
}

std::string resources() {
    use_an_id();
    std::string const shown = output_of({"rdma", "resource", "show"});
    return shown.substr(0, shown.find("ctx"));
}

}  // namespace

TEST_CASE("connect, accept and disconnect work in every way of driving", "[device]") {
    asio::io_context io;
    auto const how = GENERATE(drive::own_thread, drive::poller, drive::context);
    auto const mode = GENERATE(poll_mode::busy, poll_mode::adaptive, poll_mode::event);
    places at{io, how, {.mode = mode}};
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(at(), at());
        CHECK(p.client.is_open());
        CHECK(p.server.is_open());
        CHECK(p.client.remote_endpoint() == p.server.local_endpoint());
        CHECK(p.client.local_endpoint() == p.server.remote_endpoint());
        co_await disconnect(p);
        CHECK_FALSE(p.client.is_open());
        CHECK_FALSE(p.server.is_open());
        CHECK(p.client.last_failure().reason == close_reason::closed_locally);
        CHECK(p.server.last_failure().reason == close_reason::peer_disconnected);
    });
}

TEST_CASE("connecting works over IPv6", "[device]") {
    if (device_address_v6().empty()) {
        WARN("skipped: the device has no IPv6 address");
        return;
    }
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address_v6(), 0}};
        connection c{io};
        connection s = co_await (
            a.async_accept(asio::use_awaitable) &&
            c.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        CHECK(c.remote_endpoint().address().is_v6());
        CHECK(s.is_open());
        co_await c.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("an operation completes in the form that its token asks for", "[device]") {
    asio::io_context io;
    acceptor a{io, {device_address(), 0}};
    std::thread runner{[&] { io.run(); }};
    connection with_future{io};
    std::future<connection> accepted = a.async_accept(asio::use_future);
    with_future.async_connect(a.local_endpoint(), asio::use_future).get();
    connection server = accepted.get();
    CHECK(server.is_open());

    std::promise<error_code> called;
    auto next = a.async_accept(asio::use_future);
    connection with_callback{io};
    with_callback.async_connect(a.local_endpoint(), [&](error_code ec) { called.set_value(ec); });
    CHECK_FALSE(called.get_future().get());
    connection second = next.get();

    auto third_accepted = a.async_accept(asio::use_future);
    connection with_deferred{io};
    auto operation = with_deferred.async_connect(a.local_endpoint());
    std::move(operation)(asio::use_future).get();
    connection third = third_accepted.get();

    // The same for data operations.
    registered_buffer ours{with_future.domain(), 64, access_flags::local_write};
    registered_buffer theirs{
        server.domain(), 64, access_flags::remote_write | access_flags::remote_read};
    CHECK(with_future.async_write(ours.slice(), theirs.remote(), asio::use_future).get() == 64);
    CHECK(with_future.async_read(theirs.remote(), ours.slice())(asio::use_future).get() == 64);
    auto arrived = server.async_receive(theirs.slice(), asio::use_future);
    CHECK(with_future.async_send(ours.slice(0, 7))(asio::use_future).get() == 7);
    CHECK(arrived.get().size_bytes == 7);
    with_future.async_write(ours.slice(), theirs.remote(), asio::detached);
    for (connection* c : {&with_future, &with_callback, &with_deferred})
        c->async_disconnect(asio::use_future).get();
    a.close();
    for (connection* c : {&server, &second, &third}) c->close();
    runner.join();
}

TEST_CASE("no listener, no host, no route and loopback each have their own error", "[device]") {
    struct expectation {
        endpoint where;
        error_code code;
        step at;
        std::string hint;
    };
    error_code const unreachable{ENETUNREACH, boost::system::system_category()};
    std::vector<expectation> const cases{
        {{device_address(), 1},
         cm_errc::rejected_no_listener,
         step::connect,
         "no program listens there"},
        {{"127.0.0.1", 1}, errc::no_rdma_device, step::resolve_route, "not the loopback address"},
        {{"10.0.0.99", 1}, cm_errc::address_error, step::resolve_address, "ping it"},
        {{"203.0.113.1", 1}, unreachable, step::resolve_address, "No route leads there"},
    };
    for (expectation const& e : cases) {
        if (e.at == step::resolve_address && !has_known_network()) {
            WARN(
                "skipped: " << e.where.to_string()
                            << " means something in the virtual machine's network only"
            );
            continue;
        }
        asio::io_context io;
        run(io, [&]() -> asio::awaitable<void> {
            connection c{io};
            auto [ec] = co_await c.async_connect(e.where, awaiting);
            failure const f = c.last_failure();
            INFO(f.message());
            CHECK(ec == e.code);
            CHECK(f.code == e.code);
            CHECK(f.where == e.at);
            CHECK(f.message().find(e.where.to_string()) != std::string::npos);
            CHECK(f.message().find(e.hint) != std::string::npos);
            CHECK(c.last_failure().reason == close_reason::refused);
        });
    }
}

TEST_CASE("private data travels with request, acceptance and refusal", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        std::vector<std::byte> const question(56, std::byte{1});
        std::vector<std::byte> const answer(196, std::byte{2});
        std::vector<std::byte> const refusal(148, std::byte{3});
        for (bool const accepts : {true, false}) {
            connection c{io};
            co_await c.async_resolve(a.local_endpoint(), asio::use_awaitable);
            CHECK(c.domain().is_open());
            auto const serve = [&]() -> asio::awaitable<connection> {
                connection s = co_await requested(a);
                CHECK(s.private_data() == question);
                CHECK_FALSE(s.is_open());
                if (accepts) {
                    co_await s.async_accept(answer, asio::use_awaitable);
                } else {
                    CHECK_FALSE(reported([&](error_code& e) { s.reject(refusal, e); }));
                    CHECK(reported([&](error_code& e) {
                              s.reject(refusal, e);
                          }) == errc::not_connected);
                }
                co_return s;
            };
            auto [s, result] = co_await (serve() && c.async_establish(question, awaiting));
            CHECK(
                std::get<0>(result) ==
                (accepts ? error_code{} : error_code{cm_errc::rejected_by_peer})
            );
            CHECK(c.private_data() == (accepts ? answer : refusal));
            c.close();
            co_await c.async_wait_disconnected(awaiting);
        }
    });
}

TEST_CASE("private data that is too long is refused before anything is sent", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        connection c{io};
        co_await c.async_resolve(a.local_endpoint(), asio::use_awaitable);
        auto [ec] = co_await c.async_establish(std::vector<std::byte>(57), awaiting);
        CHECK(ec == errc::private_data_too_large);
        auto [s, second] =
            co_await (a.async_accept(asio::use_awaitable) && c.async_establish({}, awaiting));
        CHECK_FALSE(std::get<0>(second));
        CHECK(s.is_open());
        co_await c.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("a connect that the server never answers fails at the deadline", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor silent{io, {device_address(), 0}};
        connection_options options;
        options.timeouts.connect = 500ms;
        connection c{io, options};
        auto const start = std::chrono::steady_clock::now();
        auto [ec] = co_await c.async_connect(silent.local_endpoint(), awaiting);
        auto const took = std::chrono::steady_clock::now() - start;
        CHECK(ec == errc::timed_out);
        CHECK(c.last_failure().where == step::connect);
        CHECK(c.last_failure().reason == close_reason::timed_out);
        CHECK(took >= 500ms);
    });
}

TEST_CASE("connecting can be cancelled", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor silent{io, {device_address(), 0}};
        connection c{io};
        asio::steady_timer soon{io, 200ms};
        auto result = co_await (
            c.async_connect(silent.local_endpoint(), awaiting) ||
            soon.async_wait(asio::use_awaitable)
        );
        CHECK(result.index() == 1);
        co_await c.async_wait_disconnected(awaiting);
        CHECK(c.last_failure().reason == close_reason::closed_locally);
        CHECK_FALSE(c.is_open());
    });
}

TEST_CASE(
    "an acceptor's waits can be cancelled, each or all, and end when it is closed", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        asio::steady_timer soon{io, 50ms};
        auto result = co_await (a.async_accept(awaiting) || soon.async_wait(asio::use_awaitable));
        CHECK(result.index() == 1);
        std::vector<error_code> ended;
        a.async_accept([&](error_code ec, connection) { ended.push_back(ec); });
        asio::post(io, [&] { a.cancel(); });
        auto [second, none] = co_await a.async_get_request(awaiting);
        CHECK(second == asio::error::operation_aborted);
        CHECK_FALSE(none.is_valid());
        CHECK(ended == std::vector<error_code>{asio::error::operation_aborted});
        CHECK(a.is_open());
        a.async_accept([&](error_code ec, connection) { ended.push_back(ec); });
        asio::post(io, [&] { a.close(); });
        auto [third, nothing] = co_await a.async_accept(awaiting);
        CHECK(third == asio::error::operation_aborted);
        CHECK(ended.size() == 2);
        auto [fourth, still_nothing] = co_await a.async_accept(awaiting);
        CHECK(fourth == asio::error::operation_aborted);
        static_cast<void>(nothing);
        static_cast<void>(still_nothing);
    });
}

TEST_CASE("a second acceptor at the same address and port fails", "[device]") {
    asio::io_context io;
    acceptor first{io, {device_address(), 0}};
    CHECK_THROWS_WITH(
        (acceptor{io, first.local_endpoint()}),
        ContainsSubstring(first.local_endpoint().to_string())
    );
    error_code ec;
    acceptor const second{io, first.local_endpoint(), {}, ec};
    CHECK(ec == boost::system::errc::address_in_use);
    CHECK_FALSE(second.is_open());
    acceptor_options wrong;
    wrong.backlog = 0;
    acceptor const third{io, {device_address(), 0}, wrong, ec};
    CHECK(ec == errc::invalid_option);
    CHECK_FALSE(third.is_open());
    // All connections share a poller's descriptor.
    acceptor_options shared;
    shared.descriptors_per_connection = 0;
    acceptor const other{io, {device_address(), 0}, shared, ec};
    CHECK_FALSE(ec);
    CHECK(other.is_open());
}

TEST_CASE("a connection object connects once", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        auto [ec] = co_await p.client.async_connect(p.server.local_endpoint(), awaiting);
        CHECK(ec == errc::already_connected);
        CHECK(p.client.is_open());
        co_await p.client.async_disconnect(asio::use_awaitable);
        auto [again] = co_await p.client.async_disconnect(awaiting);
        CHECK_FALSE(again);
    });
}

TEST_CASE("both sides may disconnect at the same time", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (int i = 0; i < 10; ++i) {
            test::pair p = co_await connect(io);
            auto [a, b] = co_await (
                p.client.async_disconnect(awaiting) && p.server.async_disconnect(awaiting)
            );
            CHECK_FALSE(std::get<0>(a));
            CHECK_FALSE(std::get<0>(b));
        }
    });
}

TEST_CASE("an io_context destroyed with connections up leaves nothing behind", "[device]") {
    auto const how = GENERATE(drive::own_thread, drive::context);
    std::string const before = resources();
    auto const token = std::make_shared<int>();
    {
        asio::io_context io;
        places at{io, how};
        asio::co_spawn(
            io,
            [&, token]() -> asio::awaitable<void> {
                test::pair p = co_await connect(at(), at());
                registered_buffer b{p.server.domain(), 4096, access_flags::local_write};
                p.server.async_receive(b.slice(), [token](error_code, receive_result) {});
                io.stop();
                co_await p.server.async_wait_disconnected(asio::use_awaitable);
            },
            asio::detached
        );
        io.run();
        CHECK(token.use_count() > 1);
    }
    // Objects on a polling thread are destroyed asynchronously.
    auto const until = std::chrono::steady_clock::now() + 20s;
    while ((token.use_count() > 1 || resources() != before) &&
           std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(1ms);
    }
    CHECK(token.use_count() == 1);
    CHECK(resources() == before);
}

TEST_CASE(
    "thirty connections in one process, connected and ended at once, leave nothing behind",
    "[device]"
) {
    auto const how = GENERATE(drive::own_thread, drive::poller, drive::context);
    std::string const before = resources();
    {
        asio::io_context io;
        int served = 0;
        places at{io, how};
        run(io, [&]() -> asio::awaitable<void> {
            acceptor a{io, {device_address(), 0}};
            constexpr int count = 30;
            std::vector<connection> clients;
            std::vector<connection> servers;
            for (int i = 0; i < count; ++i) clients.emplace_back(at());
            std::vector<error_code> results(count, errc::not_drained);
            for (int i = 0; i < count; ++i) {
                clients[static_cast<std::size_t>(i)].async_connect(
                    a.local_endpoint(),
                    asio::bind_executor(
                        io, [&, i](error_code ec) { results[static_cast<std::size_t>(i)] = ec; }
                    )
                );
            }
            for (int i = 0; i < count; ++i) {
                auto [ec, c] = co_await a.async_accept(at(), awaiting);
                CHECK_FALSE(ec);
                servers.push_back(std::move(c));
                ++served;
            }
            // A server's side may be established before its client's handler has run.
            asio::steady_timer timer{io};
            while (std::ranges::count(results, error_code{errc::not_drained}) > 0) {
                timer.expires_after(1ms);
                co_await timer.async_wait(asio::use_awaitable);
            }
            for (connection& c : clients) c.close();
            for (connection& c : servers) co_await c.async_wait_disconnected(awaiting);
            for (error_code const& ec : results) CHECK_FALSE(ec);
        });
        CHECK(served == 30);
    }
    // Objects on a polling thread are destroyed asynchronously.
    auto const until = std::chrono::steady_clock::now() + 20s;
    while (resources() != before && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(1ms);
    CHECK(resources() == before);
}

TEST_CASE("options are clamped to the device, and limits() returns the result", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.queue_pair.send_segments_max = 100'000;
        options.queue_pair.receive_segments_max = 100'000;
        options.queue_pair.initiator_depth = 255;
        options.queue_pair.responder_resources = 255;
        test::pair p = co_await connect(io, options, options);
        device_limits const device = p.client.domain().limits();
        connection_limits const limits = p.client.limits();
        CHECK(limits.send_segments_max == device.segments_max);
        CHECK(limits.receive_segments_max == device.segments_max);
        CHECK(limits.send_queue_depth == options.queue_pair.send_queue_depth);
        CHECK(limits.initiator_depth <= device.initiator_depth_max);
        CHECK(limits.initiator_depth > 0);
        // No device moves more in one operation than a segment has.
        CHECK(
            limits.message_bytes_max ==
            std::min<std::uint64_t>(device.message_bytes_max, std::uint64_t{1} << 31)
        );
        std::string const name = p.client.domain().device_name();
        auto const all = devices();
        CHECK(std::ranges::any_of(all, [&](device_info const& d) { return d.name == name; }));
        p.client.close();
        p.server.close();
    });
}

namespace {

struct allocation_counts {
    std::atomic<int> taken{0};
    std::atomic<int> held{0};
};

/// Counts the allocations and deallocations of a handler's operation.
template <class T>
struct counting_allocator {
    using value_type = T;

    allocation_counts* of;

    explicit counting_allocator(allocation_counts& c) noexcept : of{&c} {}
    template <class U>
    counting_allocator(counting_allocator<U> const& other) noexcept : of{other.of} {}

    T* allocate(std::size_t n) {
        ++of->taken;
        ++of->held;
        return std::allocator<T>{}.allocate(n);
    }
    void deallocate(T* p, std::size_t n) {
        --of->held;
        std::allocator<T>{}.deallocate(p, n);
    }
    template <class U>
    bool operator==(counting_allocator<U> const& other) const noexcept {
        return of == other.of;
    }
};

}  // namespace

TEST_CASE(
    "an operation allocates with its handler's allocator, and frees before the handler runs",
    "[device]"
) {
    asio::io_context io;
    allocation_counts counts;
    counting_allocator<int> const allocator{counts};
    acceptor a{io, {device_address(), 0}};
    connection client{io};
    connection server;
    int held_inside = -1;
    a.async_accept([&](error_code, connection c) { server = std::move(c); });
    client.async_connect(a.local_endpoint(), asio::bind_allocator(allocator, [&](error_code ec) {
                             held_inside = counts.held;
                             CHECK_FALSE(ec);
                             client
                                 .async_disconnect(asio::bind_allocator(allocator, [&](error_code) {
                                     server.close();
                                     a.close();
                                 }));
                         }));
    io.run();
    CHECK(counts.taken > 0);
    CHECK(held_inside == 0);
    CHECK(counts.held == 0);
}

TEST_CASE("a client hears that the server has left while it accepted", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (int i = 0; i < 20; ++i) {
            acceptor a{io, {device_address(), 0}};
            auto const serve = [&]() -> asio::awaitable<void> {
                connection c{io, co_await a.async_get_request(asio::use_awaitable)};
                // The client's first message may arrive before the handshake is over.
                registered_buffer into{c.domain(), 8, access_flags::local_write};
                c.async_receive(into.slice(), [&](error_code, receive_result const&) {
                    c.close();
                });
                co_await c.async_accept({}, awaiting);
                co_await c.async_wait_disconnected(awaiting);
            };
            auto const ask = [&]() -> asio::awaitable<void> {
                connection c{io};
                co_await c.async_connect(a.local_endpoint(), asio::use_awaitable);
                registered_buffer from{c.domain(), 8, access_flags::local_write};
                co_await c.async_send(from.slice(), awaiting);
                co_await c.async_wait_disconnected(awaiting);
                close_reason const why = c.last_failure().reason;
                CHECK(
                    (why == close_reason::peer_disconnected || why == close_reason::transport_error)
                );
            };
            co_await (serve() && ask());
        }
    });
}

TEST_CASE("an empty executor is refused", "[device]") {
    auto const code_of = [](auto const& make) {
        try {
            make();
        } catch (boost::system::system_error const& e) {
            return e.code();
        }
        return error_code{};
    };
    CHECK(code_of([] { connection{asio::any_io_executor{}}; }) == errc::invalid_option);
    CHECK(code_of([] { poller::on(asio::any_io_executor{}); }) == errc::invalid_option);
    CHECK(code_of([] { message_channel{asio::any_io_executor{}}; }) == errc::invalid_option);
}

TEST_CASE("an accepted connection whose handler goes with its context is closed", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options one;
        one.connections_max = 1;
        acceptor a{io, {device_address(), 0}, one};
        auto other = std::make_unique<asio::io_context>();
        a.async_accept(asio::bind_executor(other->get_executor(), [](error_code, connection) {
            FAIL("called");
        }));
        connection first{io};
        co_await first.async_connect(a.local_endpoint(), asio::use_awaitable);
        for (int i = 0; i < 100; ++i) co_await asio::post(io, asio::use_awaitable);
        // The handler waits there, or is about to.
        other.reset();
        co_await first.async_wait_disconnected(awaiting);
        co_await a.async_wait_idle(asio::use_awaitable);

        // One that goes before there is a request leaves it to the next who waits.
        other = std::make_unique<asio::io_context>();
        a.async_accept(asio::bind_executor(other->get_executor(), [](error_code, connection) {
            FAIL("called");
        }));
        other.reset();
        connection second{io};
        auto const accept = [&]() -> asio::awaitable<connection> {
            co_return co_await a.async_accept(asio::use_awaitable);
        };
        connection server;
        auto const serve = [&]() -> asio::awaitable<void> { server = co_await accept(); };
        co_await (serve() && second.async_connect(a.local_endpoint(), asio::use_awaitable));
        CHECK(server.is_open());
        second.close();
        co_await server.async_wait_disconnected(awaiting);
    });
}
