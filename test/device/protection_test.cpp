// The protection of a server from its clients, and of clients from each other: limits, deadlines,
// keys and access rights.
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstring>
#include <functional>

#include "device/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// A session's hello, as documented in docs/reference/wire-format.md.
std::array<std::byte, 24> hello(std::uint8_t version = 1) {
    unsigned char const bytes[24] = {
        'R', 'C', 'V', 'S', 0, version, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c, 0x10, 0, 2};
    std::array<std::byte, 24> out;
    std::memcpy(out.data(), bytes, sizeof bytes);
    return out;
}

/// A peer that runs the session protocol by hand, and so can violate it.
struct rogue {
    connection c;
    registered_buffer out;
    registered_buffer in;

    explicit rogue(asio::io_context& io) : c{io} {}

    asio::awaitable<void> connect(endpoint to) {
        co_await c.async_resolve(to, asio::use_awaitable);
        out = registered_buffer{c.domain(), 8192, access_flags::local_read};
        in = registered_buffer{c.domain(), 8192, access_flags::local_write};
        auto const h = hello();
        co_await c.async_establish(h, asio::use_awaitable);
    }
    void put(std::initializer_list<int> bytes) {
        std::size_t i = 0;
        for (int const b : bytes) out.bytes()[i++] = static_cast<std::byte>(b);
    }
    void put_done() { put({'R', 'C', 'V', 'M', 1, 2, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0}); }
    /// MSG_MR without regions.
    void put_regions() { put({'R', 'C', 'V', 'M', 1, 1, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0}); }
    /// Ignores the result: the peer may have disconnected before the completion is polled.
    asio::awaitable<void> send(std::size_t size) {
        co_await c.async_send(out.slice(0, size), awaiting);
    }
};

}  // namespace

TEST_CASE(
    "a stolen key opens a server's memory to other clients, unless each has a domain of its own",
    "[device]"
) {
    asio::io_context io;
    bool const is_isolated = GENERATE(false, true);
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options accepting;
        accepting.connection.placement.domain =
            is_isolated ? domain_sharing::isolated : domain_sharing::shared;
        acceptor a{io, {device_address(), 0}, accepting};
        connection owner{io};
        connection to_owner = co_await (
            a.async_accept(asio::use_awaitable) &&
            owner.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        connection thief{io};
        connection to_thief = co_await (
            a.async_accept(asio::use_awaitable) &&
            thief.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        registered_buffer secret{
            to_owner.domain(), 64, access_flags::remote_read | access_flags::remote_write};
        std::ranges::fill(secret.bytes(), std::byte{0x5e});
        registered_buffer loot{thief.domain(), 64, access_flags::local_write};
        auto [ec, n] = co_await thief.async_read(secret.remote(), loot.slice(), awaiting);
        if (is_isolated) {
            CHECK(ec.category() == work_completion_category());
            CHECK(loot.bytes()[0] == std::byte{0});
        } else {
            CHECK_FALSE(ec);
            CHECK(loot.bytes()[63] == std::byte{0x5e});
        }
        // The client that received the key is served in any case.
        registered_buffer mine{owner.domain(), 64, access_flags::local_write};
        co_await owner.async_read(secret.remote(), mine.slice(), asio::use_awaitable);
        CHECK(mine.bytes()[63] == std::byte{0x5e});
        owner.close();
        thief.close();
    });
}

TEST_CASE("after MSG_DONE the peer can access no memory", "[device]") {
    asio::io_context io;
    int const what = GENERATE(0, 1, 2);
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        rogue peer{io};
        session s = co_await (accept_session(a) && peer.connect(a.local_endpoint()));
        registered_buffer memory{
            s.next_layer().domain(),
            64,
            access_flags::remote_read | access_flags::remote_write | access_flags::remote_atomic};
        auto const touch = [&]() -> asio::awaitable<error_code> {
            error_code ec;
            if (what == 0)
                std::tie(ec, std::ignore) =
                    co_await peer.c.async_write(peer.out.slice(0, 64), memory.remote(), awaiting);
            if (what == 1)
                std::tie(ec, std::ignore) =
                    co_await peer.c.async_read(memory.remote(), peer.in.slice(0, 64), awaiting);
            if (what == 2)
                std::tie(ec, std::ignore) =
                    co_await peer.c.async_fetch_add(memory.remote().word(0), 1, awaiting);
            co_return ec;
        };
        error_code before = co_await touch();
        CHECK_FALSE(before);
        peer.put_done();
        co_await peer.send(16);
        co_await s.async_wait_done(asio::use_awaitable);
        std::ranges::fill(memory.bytes(), std::byte{0x77});
        peer.put({0x11});
        error_code after = co_await touch();
        INFO(after.message());
        CHECK(after.category() == work_completion_category());
        CHECK(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0x77}; })
        );
        co_await s.next_layer().async_wait_disconnected(awaiting);
    });
}

TEST_CASE("nothing can touch memory by way of a connection that was closed", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{p.server.domain(), 64, access_flags::remote_write};
        remote_region const target = theirs.remote();
        p.server.close();
        std::ranges::fill(ours.bytes(), std::byte{0x11});
        auto [ec, n] = co_await p.client.async_write(ours.slice(), target, awaiting);
        CHECK(ec);
        co_await p.client.async_wait_disconnected(awaiting);
        CHECK(theirs.bytes()[0] == std::byte{0});
    });
}

TEST_CASE("the rights of a connection can be cut to less than its keys allow", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        registered_buffer theirs{
            p.server.domain(), 64, access_flags::remote_write | access_flags::remote_read};
        std::ranges::fill(theirs.bytes(), std::byte{0x42});
        for (access_flags const wrong : {access_flags::on_demand, access_flags::local_write})
            CHECK(reported([&](error_code& e) {
                      p.server.set_remote_access(wrong, e);
                  }) == errc::invalid_option);
        CHECK_FALSE(reported([&](error_code& e) {
            p.server.set_remote_access(access_flags::remote_read, e);
        }));
        co_await p.client.async_read(theirs.remote(), ours.slice(), asio::use_awaitable);
        CHECK(ours.bytes()[63] == std::byte{0x42});
        std::ranges::fill(ours.bytes(), std::byte{0x11});
        auto [ec, n] = co_await p.client.async_write(ours.slice(), theirs.remote(), awaiting);
        CHECK(ec.category() == work_completion_category());
        CHECK(theirs.bytes()[0] == std::byte{0x42});
        co_await p.server.async_wait_disconnected(awaiting);
        CHECK(reported([&](error_code& e) {
                  p.server.set_remote_access(access_flags::remote_read, e);
              }) == errc::not_connected);
    });
}

TEST_CASE("a full server rejects a client, and has room when another has left", "[device]") {
    asio::io_context io;
    bool const per_address = GENERATE(false, true);
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options accepting;
        if (per_address) {
            accepting.connections_per_address_max = 2;
        } else {
            accepting.connections_max = 2;
        }
        std::vector<refusal> refusals;
        accepting.on_refused = [&](endpoint const& peer, refusal why) {
            CHECK_FALSE(peer.address().is_unspecified());
            refusals.push_back(why);
        };
        accepting.busy_private_data = session::busy_private_data();
        acceptor a{io, {device_address(), 0}, accepting};
        session c1{connection{io}};
        session s1 = co_await (
            accept_session(a) && c1.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        session c2{connection{io}};
        session s2 = co_await (
            accept_session(a) && c2.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        session c3{connection{io}};
        auto [ec] = co_await c3.async_connect(a.local_endpoint(), awaiting);
        CHECK(ec == session_errc::peer_busy);
        CHECK(c3.last_failure().reason == close_reason::refused);
        connection plain{io};
        auto [foreign] = co_await plain.async_connect(a.local_endpoint(), awaiting);
        CHECK(foreign == cm_errc::rejected_by_peer);
        CHECK(a.statistics().requests == 4);
        CHECK(a.statistics().refused_busy == 2);
        CHECK(
            refusals ==
            std::vector(2, per_address ? refusal::connections_per_address : refusal::connections)
        );
        CHECK(a.statistics().connections == 2);
        // The other connections are not affected.
        CHECK(c2.next_layer().is_open());
        s1.close();
        co_await s1.next_layer().async_wait_disconnected(awaiting);
        CHECK(a.statistics().connections == 1);
        session c4{connection{io}};
        session s4 = co_await (
            accept_session(a) && c4.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        CHECK(s4.next_layer().is_open());
        for (session* s : {&c1, &c2, &c4, &s2, &s4}) {
            s->close();
            co_await s->next_layer().async_wait_disconnected(awaiting);
        }
        CHECK(a.statistics().connections == 0);
    });
}

TEST_CASE(
    "a request that the program leaves unanswered is refused at the deadline and gives its place "
    "back",
    "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options accepting;
        accepting.answer_timeout = 200ms;
        accepting.connections_max = 1;
        acceptor a{io, {device_address(), 0}, accepting};
        connection client{io};
        connection_request request;
        auto const take = [&]() -> asio::awaitable<void> {
            request = co_await a.async_get_request(asio::use_awaitable);
        };
        auto const start = std::chrono::steady_clock::now();
        auto connected = co_await (take() && client.async_connect(a.local_endpoint(), awaiting));
        CHECK(std::get<0>(connected) == cm_errc::rejected_by_peer);
        CHECK(std::chrono::steady_clock::now() - start >= 200ms);
        CHECK_FALSE(request.is_valid());
        error_code late;
        request.reject({}, late);
        CHECK(late == errc::not_connected);
        connection const none{io, std::move(request), {}, late};
        CHECK(late == errc::timed_out);
        CHECK_FALSE(none.is_valid());
        CHECK(a.statistics().connections == 0);
    });
}

TEST_CASE("silent peers are dropped at the deadline, and nothing of them is left", "[device]") {
    asio::io_context io;
    constexpr int count = 50;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options accepting;
        acceptor a{io, {device_address(), 0}, accepting};
        session_options options;
        options.exchange_timeout = 500ms;
        std::vector<std::unique_ptr<rogue>> silent;
        int dropped = 0;
        for (int i = 0; i < count; ++i) {
            silent.push_back(std::make_unique<rogue>(io));
            session s =
                co_await (accept_session(a, options) && silent.back()->connect(a.local_endpoint()));
            asio::co_spawn(
                io,
                [](session held, int& ended) -> asio::awaitable<void> {
                    auto [ec, regions] = co_await held.async_wait_regions(awaiting);
                    CHECK(ec == errc::timed_out);
                    co_await held.next_layer().async_wait_disconnected(awaiting);
                    CHECK(held.last_failure().reason == close_reason::timed_out);
                    ++ended;
                }(std::move(s), dropped),
                asio::detached
            );
        }
        for (auto const& r : silent) co_await r->c.async_wait_disconnected(awaiting);
        while (dropped < count) co_await asio::post(io, asio::use_awaitable);
        CHECK(a.statistics().connections == 0);
        CHECK(a.statistics().requests == count);
    });
}

TEST_CASE("a message that breaks the protocol ends its own connection and no other", "[device]") {
    struct row {
        char const* what;
        std::function<asio::awaitable<void>(rogue&)> sends;
        error_code code;
    };
    std::vector<row> const rows{
        {"truncated",
         [](rogue& r) -> asio::awaitable<void> {
             r.put_done();
             co_await r.send(15);
         },
         session_errc::malformed_message},
        {"empty",
         [](rogue& r) -> asio::awaitable<void> { co_await r.send(0); },
         session_errc::malformed_message},
        {"longer than it says",
         [](rogue& r) -> asio::awaitable<void> {
             r.put_done();
             co_await r.send(17);
         },
         session_errc::malformed_message},
        {"not a message",
         [](rogue& r) -> asio::awaitable<void> { co_await r.send(64); },
         session_errc::malformed_message},
        {"of another version",
         [](rogue& r) -> asio::awaitable<void> {
             r.put_done();
             r.out.bytes()[4] = std::byte{9};
             co_await r.send(16);
         },
         session_errc::version_mismatch},
        {"repeated MSG_MR",
         [](rogue& r) -> asio::awaitable<void> {
             r.put_regions();
             co_await r.send(16);
             co_await r.send(16);
         },
         session_errc::unexpected_message},
        {"MSG_MR after MSG_DONE",
         [](rogue& r) -> asio::awaitable<void> {
             r.put_done();
             co_await r.send(16);
             r.put_regions();
             co_await r.send(16);
         },
         session_errc::unexpected_message},
        {"a region around the end of the address space",
         [](rogue& r) -> asio::awaitable<void> {
             r.put({'R',  'C',  'V',  'M',  1,    1,    0,    1, 0, 0, 0, 64, 0, 0, 0,    0,
                    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 0,  0, 0, 0x20, 0});
             co_await r.send(64);
         },
         session_errc::malformed_message},
        {"a region with rights that do not exist",
         [](rogue& r) -> asio::awaitable<void> {
             r.put({'R', 'C', 'V',  'M', 1, 1, 0, 1, 0, 0, 0, 64, 0, 0, 0, 0, 0,    0, 0, 0,
                    0,   0,   0x10, 0,   0, 0, 0, 0, 0, 0, 0, 8,  0, 0, 0, 1, 0x80, 0, 0, 0});
             co_await r.send(64);
         },
         session_errc::malformed_message},
        {"a write with immediate data",
         [](rogue& r) -> asio::awaitable<void> {
             co_await r.c.async_write_with_immediate({}, remote_region{}, 7, awaiting);
         },
         session_errc::unexpected_message},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        session good{connection{io}};
        session to_good = co_await (
            accept_session(a) && good.async_connect(a.local_endpoint(), asio::use_awaitable)
        );
        for (row const& r : rows) {
            INFO(r.what);
            rogue bad{io};
            session s = co_await (accept_session(a) && bad.connect(a.local_endpoint()));
            co_await r.sends(bad);
            auto [ec] = co_await s.next_layer().async_wait_disconnected(awaiting);
            CHECK(ec == r.code);
            CHECK(s.last_failure().reason == close_reason::protocol_error);
            co_await bad.c.async_wait_disconnected(awaiting);
        }
        // A message longer than the receives is rejected by the device itself, which ends the
        // connection.
        rogue big{io};
        session s = co_await (accept_session(a) && big.connect(a.local_endpoint()));
        auto [failed, n] = co_await big.c.async_send(big.out.slice(), awaiting);
        CHECK((failed.category() == work_completion_category() || failed == errc::peer_disconnected)
        );
        co_await s.next_layer().async_wait_disconnected(awaiting);
        CHECK(s.last_failure().reason == close_reason::transport_error);

        co_await (
            good.async_finish(asio::use_awaitable) && to_good.async_finish(asio::use_awaitable)
        );
        CHECK(to_good.last_failure().reason == close_reason::completed);
    });
}

TEST_CASE(
    "a connection can use a domain that the program holds, of the device that its address leads to",
    "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options own;
        own.placement.domain = domain_sharing::isolated;
        test::pair first = co_await connect(io, own);
        protection_domain const kept = first.client.domain();
        registered_buffer memory{kept, 4096, access_flags::local_write};
        first.client.close();
        co_await first.client.async_wait_disconnected(awaiting);

        connection_options again;
        again.placement.domain = kept;
        test::pair second = co_await connect(io, again);
        CHECK(second.client.domain().native_handle() == kept.native_handle());
        registered_buffer theirs{second.server.domain(), 4096, access_flags::remote_write};
        std::ranges::fill(memory.bytes(), std::byte{9});
        co_await second.client.async_write(memory.slice(), theirs.remote(), asio::use_awaitable);
        CHECK(theirs.bytes()[4095] == std::byte{9});
        co_await second.client.async_disconnect(asio::use_awaitable);
    });
}

TEST_CASE("keepalives go out on a connection that is silent, and change nothing", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options options;
        options.liveness.keepalive_interval = 40ms;
        test::pair p = co_await connect(io, options);
        asio::steady_timer timer{io};
        while (p.client.is_open() && p.client.statistics().keepalives_sent < 2) {
            timer.expires_after(1ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
        CHECK(p.client.is_open());
        CHECK(p.client.statistics().operations_failed == 0);
        CHECK(p.server.statistics().completions == 0);
        co_await p.client.async_disconnect(asio::use_awaitable);
    });
}
