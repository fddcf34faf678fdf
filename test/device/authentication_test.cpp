// Who may connect: sessions, channels, rings and drivers with keys; sides that do not fit; and peers without
// a key, which lie, are silent, use memory, or stand between two that have one.
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/experimental/ring.hpp>

#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/channel_fixture.hpp"

namespace authentication_tests {

using namespace rcverbs;
using namespace test;

std::vector<std::byte> key_of(int number) {
    return pattern(32, static_cast<std::uint64_t>(number));
}

pre_shared_keys keys(std::string const& identity, std::vector<int> const& numbers) {
    pre_shared_keys all;
    for (int const n : numbers) all.add(identity, key_of(n));
    return all;
}

authentication_options with_keys(std::vector<int> const& numbers = {1}) {
    authentication_options o;
    o.keys = keys("alice", numbers);
    return o;
}

template <class Options>
Options options_of(authentication_options const& how) {
    Options o;
    if constexpr (requires { o.messages; }) o.messages.authentication = how;
    else o.authentication = how;
    return o;
}

// The results of both sides, and the two ends.
template <class Client, class Server, class ClientOptions, class ServerOptions>
struct meeting {
    acceptor door;
    Client client;
    Server server;
    error_code client_got, server_got;

    explicit meeting(asio::io_context& io) : door{io, {device_address(), 0}} {}
};

template <class Client, class Server, class Options>
asio::awaitable<void> meet(
    asio::io_context& io,
    meeting<Client, Server, Options, Options>& m,
    Options const& client_options,
    Options const& server_options
) {
    auto const serve = [&]() -> asio::awaitable<void> {
        connection_request asked = co_await m.door.async_get_request(asio::use_awaitable);
        m.server = Server{io, std::move(asked), server_options};
        auto const [ec] = co_await m.server.async_accept(awaiting);
        m.server_got = ec;
    };
    auto const ask = [&]() -> asio::awaitable<void> {
        m.client = Client{io, client_options};
        auto const [ec] = co_await m.client.async_connect(m.door.local_endpoint(), awaiting);
        m.client_got = ec;
    };
    co_await (serve() && ask());
}

using channels =
    meeting<message_channel, message_channel, message_channel_options, message_channel_options>;
using sessions = meeting<session, session, session_options, session_options>;

struct outcome {
    error_code client, server;
};

asio::awaitable<outcome> outcome_of(
    asio::io_context& io, authentication_options const& client, authentication_options const& server
) {
    channels m{io};
    co_await meet(
        io,
        m,
        options_of<message_channel_options>(client),
        options_of<message_channel_options>(server)
    );
    // What both say afterwards.
    CHECK(m.client.last_failure().code == m.client_got);
    co_return outcome{m.client_got, m.server_got};
}

}  // namespace authentication_tests

using namespace authentication_tests;

TEST_CASE("authentication: a message channel between two that have a key", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (bool const encrypts : {false, true}) {
            authentication_options how = with_keys();
            how.encrypts_messages = encrypts;
            auto const options = options_of<message_channel_options>(how);
            channels m{io};
            co_await meet(io, m, options, options);
            REQUIRE_FALSE(m.client_got);
            REQUIRE_FALSE(m.server_got);
            CHECK(m.server.peer_identity() == "alice");
            CHECK(m.client.peer_identity().empty());
            CHECK(m.client.small_bytes_max() == 4160U - 16U - (encrypts ? 16U : 0U));
            for (std::size_t const size :
                 {std::size_t{0}, std::size_t{1}, std::size_t{m.client.small_bytes_max()}}) {
                for (int i = 0; i < 50; ++i) {
                    auto const bytes = pattern(size, static_cast<std::uint64_t>(i));
                    co_await m.client.async_send(bytes, 7, asio::use_awaitable);
                    message got = co_await m.server.async_receive(asio::use_awaitable);
                    CHECK(std::ranges::equal(got.bytes(), bytes));
                    CHECK(got.peer_identity() == "alice");
                    co_await m.server.async_send(got.bytes(), 8, asio::use_awaitable);
                    message back = co_await m.client.async_receive(asio::use_awaitable);
                    CHECK(std::ranges::equal(back.bytes(), bytes));
                }
            }
            auto const large = pattern(100000, 1);
            auto const send = [&]() -> asio::awaitable<error_code> {
                auto const [ec] = co_await m.client.async_send(large, 1, awaiting);
                co_return ec;
            };
            if (encrypts) {
                CHECK((co_await send()) == errc::message_too_large);
            } else {
                auto const take = [&]() -> asio::awaitable<void> {
                    message got = co_await m.server.async_receive(asio::use_awaitable);
                    registered_buffer into{m.server.domain(), large.size()};
                    co_await got.async_take(into, asio::use_awaitable);
                    CHECK(std::ranges::equal(into.bytes(), large));
                };
                error_code const ec = co_await (send() && take());
                CHECK_FALSE(ec);
            }
            co_await (
                m.client.async_finish(asio::use_awaitable) &&
                m.server.async_finish(asio::use_awaitable)
            );
        }
    });
}

TEST_CASE("authentication: a session between two that have a key", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (bool const encrypts : {false, true}) {
            authentication_options how = with_keys();
            how.encrypts_messages = encrypts;
            auto options = options_of<session_options>(how);
            options.connection.liveness.keepalive_interval = 5ms;
            sessions m{io};
            co_await meet(io, m, options, options);
            REQUIRE_FALSE(m.client_got);
            REQUIRE_FALSE(m.server_got);
            CHECK(m.server.peer_identity() == "alice");
            CHECK(m.client.next_layer().keepalive_interval() == 5ms);
            registered_buffer page{
                m.server, 4096, access_flags::local_write | access_flags::remote_read};
            fill(page.bytes(), 9);
            registered_buffer into{m.client, 4096};
            auto const publish = [&]() -> asio::awaitable<void> {
                std::vector<named_region> own;
                own.emplace_back("page", page);
                co_await m.server.async_exchange(own, asio::use_awaitable);
            };
            auto const ask = [&]() -> asio::awaitable<void> {
                peer_regions const theirs = co_await m.client.async_exchange(
                    std::vector<named_region>{}, asio::use_awaitable
                );
                // Keepalives of both sides meanwhile.
                co_await pause(io, 50ms);
                co_await m.client.next_layer().async_read(
                    theirs.at("page"), into, asio::use_awaitable
                );
            };
            co_await (publish() && ask());
            CHECK(std::ranges::equal(into.bytes(), page.bytes()));
            CHECK(m.client.next_layer().statistics().keepalives_sent > 0);
            CHECK(m.server.next_layer().statistics().keepalives_sent > 0);
            co_await (
                m.client.async_finish(asio::use_awaitable) &&
                m.server.async_finish(asio::use_awaitable)
            );
        }
    });
}

TEST_CASE("authentication: a ring between two that have a key, whoever connects", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_options const options = options_of<ring_options>(with_keys());
        auto const transfer = [&](ring_writer& w, ring_reader& r) -> asio::awaitable<void> {
            for (int i = 0; i < 100; ++i) {
                auto const record = pattern(1000, static_cast<std::uint64_t>(i));
                co_await w.async_write(record, asio::use_awaitable);
                ring_record got = co_await r.async_read(asio::use_awaitable);
                CHECK(std::ranges::equal(got.bytes(), record));
            }
            co_await w.async_finish(asio::use_awaitable);
        };
        meeting<ring_writer, ring_reader, ring_options, ring_options> a{io};
        co_await meet(io, a, options, options);
        REQUIRE_FALSE(a.client_got);
        REQUIRE_FALSE(a.server_got);
        CHECK(a.server.peer_identity() == "alice");
        co_await transfer(a.client, a.server);
        meeting<ring_reader, ring_writer, ring_options, ring_options> b{io};
        co_await meet(io, b, options, options);
        REQUIRE_FALSE(b.client_got);
        REQUIRE_FALSE(b.server_got);
        CHECK(b.server.peer_identity() == "alice");
        co_await transfer(b.server, b.client);
    });
}

TEST_CASE("authentication: requests, and who asks", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (bool const encrypts : {false, true}) {
            request_server_options served;
            served.channel.messages.authentication.keys = keys("alice", {1});
            served.channel.messages.authentication.keys.add("bob", key_of(2));
            served.channel.messages.authentication.encrypts_messages = encrypts;
            request_server server{io, {device_address(), 0}, served};
            std::vector<std::string> seen;
            auto const serve = [&]() -> asio::awaitable<void> {
                for (int i = 0; i < 4; ++i) {
                    request asked = co_await server.async_next(asio::use_awaitable);
                    seen.push_back(asked.peer_identity());
                    auto const [ec] =
                        co_await asked.async_answer(0, pattern(asked.operation(), 3), awaiting);
                    // Nothing is written to memory, and nothing large is sent.
                    bool const is_refused = encrypts && asked.operation() > 4160;
                    CHECK(ec == (is_refused ? error_code{errc::message_too_large} : error_code{}));
                }
            };
            auto const ask = [&]() -> asio::awaitable<void> {
                for (std::string const who : {"alice", "bob"}) {
                    request_client_options asking;
                    auto& how = asking.channel.messages.authentication;
                    how.keys = keys(who, {who == "alice" ? 1 : 2});
                    how.encrypts_messages = encrypts;
                    request_client client{io, server.local_endpoint(), asking};
                    reply small =
                        co_await client.async_request(rcverbs::ask{100}, asio::use_awaitable);
                    CHECK(std::ranges::equal(small.bytes(), pattern(100, 3)));
                    registered_buffer into{
                        client.domain(),
                        100000,
                        access_flags::local_write | access_flags::remote_write};
                    auto const [ec, r] =
                        co_await client.async_request(rcverbs::ask{50000}.into(into), awaiting);
                    CHECK(
                        ec == (encrypts ? error_code{channel_errc::request_dropped} : error_code{})
                    );
                    if (!encrypts) {
                        CHECK(r.is_written());
                        CHECK(std::ranges::equal(r.bytes(), pattern(50000, 3)));
                    }
                }
            };
            co_await (serve() && ask());
            CHECK(seen == std::vector<std::string>{"alice", "alice", "bob", "bob"});
        }
    });
}

TEST_CASE("authentication: sides that do not fit say why", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        struct row {
            char const* what;
            authentication_options client, server;
            error_code client_gets, server_gets;
        };
        authentication_options const none;
        authentication_options encrypting = with_keys();
        encrypting.encrypts_messages = true;
        authentication_options bob;
        bob.keys = keys("bob", {1});
        authentication_options both = with_keys();
        both.keys.add("bob", key_of(1));
        authentication_options as_bob = both;
        as_bob.keys = both.keys.as("bob");
        authentication_options as_carol = both;
        as_carol.keys = both.keys.as("carol");
        authentication_options nobody = with_keys();
        nobody.admits = [](std::string_view who) { return who != "alice"; };
        authentication_options alice = with_keys();
        alice.admits = [](std::string_view who) { return who == "alice"; };
        error_code const mismatch = errc::security_mismatch;
        error_code const failed = errc::authentication_failed;
        error_code const unknown = errc::unknown_identity;
        error_code const refused = errc::identity_refused;
        row const rows[] = {
            {"the client has no keys", none, with_keys(), mismatch, mismatch},
            {"the server has no keys", with_keys(), none, mismatch, mismatch},
            {"the server encrypts", with_keys(), encrypting, mismatch, mismatch},
            {"the client encrypts", encrypting, with_keys(), mismatch, mismatch},
            // The client finds out, and leaves.
            {"another key", with_keys({2}), with_keys({1}), failed, errc::peer_disconnected},
            {"an old key", with_keys({1}), with_keys({2, 1}), {}, {}},
            {"a new key", with_keys({2}), with_keys({2, 1}), {}, {}},
            {"two keys, one known", with_keys({3, 1}), with_keys({2, 1}), {}, {}},
            {"a stranger", bob, with_keys(), unknown, unknown},
            {"one of two", as_bob, both, {}, {}},
            {"which of two is not said", both, both, unknown, errc::timed_out},
            {"one who has no key", as_carol, both, unknown, errc::timed_out},
            {"not admitted", with_keys(), nobody, refused, refused},
            {"admitted", with_keys(), alice, {}, {}},
        };
        for (row const& r : rows) {
            INFO(r.what);
            if (r.server_gets == errc::timed_out) {
                // The client does not even ask.
                message_channel c{io, options_of<message_channel_options>(r.client)};
                acceptor const door{io, {device_address(), 0}};
                auto const [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
                CHECK(ec == r.client_gets);
                continue;
            }
            outcome const got = co_await outcome_of(io, r.client, r.server);
            CHECK(got.client == r.client_gets);
            CHECK(got.server == r.server_gets);
            if (got.client) CHECK(got.client == condition::refused);
        }
    });
}

TEST_CASE("authentication: a client that leaves is known by its address", "[device]") {
    asio::io_context io;
    auto const client = options_of<message_channel_options>(with_keys({2}));
    auto const server = options_of<message_channel_options>(with_keys({1}));
    run(io, [&]() -> asio::awaitable<void> {
        channels m{io};
        co_await meet(io, m, client, server);
        failure const why = m.server.last_failure();
        CHECK(why.where == step::handshake);
        CHECK(why.address.address().to_string() == device_address());
        CHECK(why.reason == close_reason::peer_disconnected);
    });
}

TEST_CASE("authentication: what the protocols say is judged behind it", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto ours = options_of<message_channel_options>(with_keys());
        auto theirs = ours;
        theirs.mode = 5;
        channels m{io};
        co_await meet(io, m, ours, theirs);
        CHECK(m.client_got == channel_errc::mode_mismatch);
        CHECK(m.server_got == channel_errc::mode_mismatch);
        CHECK(m.server.peer_identity() == "alice");
        session_options s = options_of<session_options>(with_keys());
        session_options other = s;
        other.mode = 1;
        sessions n{io};
        co_await meet(io, n, s, other);
        CHECK(n.client_got == session_errc::mode_mismatch);
        CHECK(n.server_got == session_errc::mode_mismatch);
        // The greeting is as long as without keys, and nobody without a key reads it.
        message_channel c{io, ours};
        acceptor door{io, {device_address(), 0}};
        auto const greeting = pattern(32, 1);
        auto const serve = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            auto const seen = asked.private_data();
            auto const begin = greeting.begin();
            CHECK(std::search(seen.begin(), seen.end(), begin, begin + 4) == seen.end());
            message_channel server{io, std::move(asked), ours};
            CHECK(server.greeting().empty());
            co_await server.async_accept(greeting, asio::use_awaitable);
            CHECK(server.greeting() == greeting);
        };
        co_await (serve() && c.async_connect(door.local_endpoint(), greeting, asio::use_awaitable));
        CHECK(c.greeting() == greeting);
    });
}

TEST_CASE("authentication: options that make no sense are refused", "[device]") {
    asio::io_context io;
    authentication_options encrypting;
    encrypting.encrypts_messages = true;
    CHECK_THROWS_WITH(
        (message_channel{io, options_of<message_channel_options>(encrypting)}),
        ContainsSubstring("authentication_options::encrypts_messages needs keys")
    );
    CHECK_THROWS((session{io, options_of<session_options>(encrypting)}));
    encrypting.keys = keys("alice", {1});
    CHECK_THROWS_WITH(
        (ring_writer{io, options_of<ring_options>(encrypting)}),
        ContainsSubstring("is not for rings")
    );
    authentication_options hasty = with_keys();
    hasty.timeout = 0ms;
    CHECK_THROWS((message_channel{io, options_of<message_channel_options>(hasty)}));
    CHECK_THROWS(hasty.keys.as(""));
    CHECK_THROWS(hasty.keys.as(std::string(33, 'x')));
}

// --- peers without a key -------------------------------------------------------------------------

namespace authentication_tests {

// A request of alice's with this random number.
std::vector<std::byte> request_of(std::byte nonce = std::byte{5}) {
    std::vector<std::byte> r = bytes_of(std::string{"\xCA\x5E\x01\x00", 4});
    r.insert(r.end(), 16, nonce);
    r.push_back(std::byte{5});
    auto const who = bytes_of("alice");
    r.insert(r.end(), who.begin(), who.end());
    return r;
}

// A server with a key, and one memory region that everybody knows.
struct guarded_server {
    asio::io_context& io;
    acceptor door;
    message_channel_options options = options_of<message_channel_options>(with_keys());
    message_channel server;

    explicit guarded_server(asio::io_context& context, acceptor_options const& limits = {})
        : io{context},
          door{io, {device_address(), 0}, limits} {
        options.authentication.timeout = 60s;
        options.connection = sharing();
    }
    asio::awaitable<error_code> serve() {
        connection_request asked = co_await door.async_get_request(asio::use_awaitable);
        server = message_channel{io, std::move(asked), options};
        auto const [ec] = co_await server.async_accept(awaiting);
        co_return ec;
    }
};

asio::awaitable<error_code> establish(
    connection& c, endpoint const& to, std::vector<std::byte> const& with
) {
    co_await c.async_resolve(to, asio::use_awaitable);
    auto const [ec] = co_await c.async_establish(with, awaiting);
    co_return ec;
}

}  // namespace authentication_tests

TEST_CASE("authentication: proofs of those without a key", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        guarded_server s{io};
        struct row {
            char const* what;
            std::size_t bytes;
            bool is_write;
        };
        row const rows[] = {
            {"nothing", 0, false},
            {"one byte", 1, false},
            {"no hello", 34, false},
            {"a hello that is not there", 33, false},
            {"as much as there is room for", 232, false},
            {"immediate data", 0, true},
        };
        for (row const& r : rows) {
            INFO(r.what);
            connection c{io};
            auto const attack = [&]() -> asio::awaitable<void> {
                error_code const ec = co_await establish(c, s.door.local_endpoint(), request_of());
                REQUIRE_FALSE(ec);
                registered_buffer lie{c, 256};
                std::ranges::fill(lie.bytes(), std::byte{0});
                if (r.is_write) {
                    static_cast<void>(
                        co_await c.async_send_with_immediate(lie.slice().first(0), 1, awaiting)
                    );
                } else {
                    static_cast<void>(co_await c.async_send(lie.slice().first(r.bytes), awaiting));
                }
                co_await c.async_wait_disconnected(asio::use_awaitable);
            };
            error_code const got = co_await (s.serve() && attack());
            CHECK(got == errc::authentication_failed);
            CHECK(s.server.last_failure().reason == close_reason::protocol_error);
            CHECK(s.server.last_failure().where == step::handshake);
        }
    });
}

TEST_CASE("authentication: requests of those without a key", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        guarded_server s{io};
        struct row {
            std::vector<std::byte> request;
            errc server_gets;
        };
        auto const changed = [](std::size_t at, int to) {
            auto r = request_of();
            r[at] = std::byte(to);
            return r;
        };
        row const rows[] = {
            {{}, errc::security_mismatch},
            {bytes_of("RCVC"), errc::security_mismatch},
            {std::vector<std::byte>(56), errc::security_mismatch},
            {changed(2, 2), errc::security_mismatch},
            {changed(3, 1), errc::security_mismatch},
            {changed(3, 2), errc::security_mismatch},
            {changed(20, 0), errc::security_mismatch},
            {changed(20, 33), errc::security_mismatch},
            {changed(20, 255), errc::security_mismatch},
            {changed(20, 4), errc::unknown_identity},
            {changed(21, 'b'), errc::unknown_identity},
        };
        for (row const& r : rows) {
            connection c{io};
            auto const attack = [&]() -> asio::awaitable<void> {
                error_code const ec = co_await establish(c, s.door.local_endpoint(), r.request);
                CHECK(ec == cm_errc::rejected_by_peer);
                // Four bytes say why.
                auto const why = c.private_data();
                CHECK(why[0] == std::byte{0xCA});
                CHECK(std::to_integer<int>(why[3]) > 0);
                CHECK(std::ranges::all_of(why.begin() + 4, why.end(), [](std::byte b) {
                    return b == std::byte{0};
                }));
            };
            error_code const got = co_await (s.serve() && attack());
            CHECK(got == r.server_gets);
        }
    });
}

TEST_CASE("authentication: before it the peer may not use memory", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        guarded_server s{io};
        // A region of the domain that the server's connections share, whose key the peer has guessed.
        connection other{io, sharing()};
        co_await other.async_resolve(s.door.local_endpoint(), asio::use_awaitable);
        registered_buffer secret{
            other,
            4096,
            access_flags::local_write | access_flags::remote_read | access_flags::remote_write |
                access_flags::remote_atomic};
        std::ranges::fill(secret.bytes(), std::byte{7});
        for (int what = 0; what < 3; ++what) {
            connection c{io};
            auto const attack = [&]() -> asio::awaitable<void> {
                error_code const ec = co_await establish(c, s.door.local_endpoint(), request_of());
                REQUIRE_FALSE(ec);
                registered_buffer own{c, 64};
                remote_region const target = secret.remote();
                error_code got;
                if (what == 0) {
                    auto const [e, n] = co_await c.async_read(target.slice(0, 64), own, awaiting);
                    got = e;
                } else if (what == 1) {
                    auto const [e, n] = co_await c.async_write(own, target.slice(0, 64), awaiting);
                    got = e;
                } else {
                    auto const [e, v] = co_await c.async_fetch_add(target.word(0), 1, awaiting);
                    got = e;
                }
                bool const is_refused =
                    got == wc_errc::remote_access || got == wc_errc::remote_invalid_request;
                CHECK(is_refused);
                CHECK(std::ranges::all_of(own.bytes(), [](std::byte b) {
                    return b == std::byte{0};
                }));
            };
            error_code const got = co_await (s.serve() && attack());
            CHECK(got.failed());
            CHECK(std::ranges::all_of(secret.bytes(), [](std::byte b) { return b == std::byte{7}; })
            );
        }
    });
}

TEST_CASE("authentication: 40 silent peers cost their own time only", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        guarded_server s{io};
        std::vector<connection> silent;
        std::vector<message_channel> asked;
        int ended = 0;
        int opened = 0;
        auto const accept = [&](message_channel& by) -> asio::awaitable<void> {
            auto const [ec] = co_await by.async_accept(awaiting);
            if (ec == errc::timed_out) ++ended;
            if (!ec) ++opened;
        };
        asked.reserve(41);
        auto const serve = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 41; ++i) {
                connection_request r = co_await s.door.async_get_request(asio::use_awaitable);
                s.options.authentication.timeout = i < 40 ? 100ms : 60s;
                asked.emplace_back(io, std::move(r), s.options);
                asio::co_spawn(io, accept(asked.back()), asio::detached);
            }
        };
        auto const attack = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 40; ++i) {
                silent.emplace_back(io);
                error_code const ec = co_await establish(
                    silent.back(), s.door.local_endpoint(), request_of(std::byte(i))
                );
                CHECK_FALSE(ec);
            }
            // Somebody with a key comes in meanwhile.
            message_channel c{io, options_of<message_channel_options>(with_keys())};
            auto const [failed] = co_await c.async_connect(s.door.local_endpoint(), awaiting);
            CHECK(failed.message() == error_code{}.message());
            co_await until(io, [&] { return ended == 40; });
        };
        co_await (serve() && attack());
        CHECK(opened == 1);
        for (connection& c : silent) co_await c.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("authentication: an address that fails has to wait", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options limits;
        limits.violation_delay = 60s;
        guarded_server s{io, limits};
        auto const attack = [&]() -> asio::awaitable<error_code> {
            connection c{io};
            error_code const ec = co_await establish(c, s.door.local_endpoint(), request_of());
            if (ec) co_return ec;
            registered_buffer lie{c, 64};
            co_await c.async_send(lie.slice(), awaiting);
            co_await c.async_wait_disconnected(awaiting);
            co_return error_code{};
        };
        auto const [got, first] = co_await (s.serve() && attack());
        CHECK(got == errc::authentication_failed);
        CHECK_FALSE(first);
        co_await until(io, [&] { return s.server.last_failure().code.failed(); });
        s.server = {};
        error_code const second = co_await attack();
        CHECK(second == cm_errc::rejected_by_peer);
    });
}

TEST_CASE("authentication: servers that do not have the key", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        auto acceptance = bytes_of(std::string{"\xCA\x5E\x01\x00", 4});
        acceptance.resize(84);
        struct row {
            char const* what;
            std::vector<std::byte> acceptance;
            std::size_t message;  // what it sends at once
            errc client_gets;
        };
        auto const flags = [&] {
            auto a = acceptance;
            a[3] = std::byte{1};
            return a;
        };
        row const rows[] = {
            {"no authentication", {}, 0, errc::security_mismatch},
            {"the hello of a channel", bytes_of("RCVC"), 0, errc::security_mismatch},
            {"proofs of zeros", acceptance, 0, errc::authentication_failed},
            {"encryption that nobody wanted", flags(), 0, errc::security_mismatch},
            {"a result before it was asked for", acceptance, 55, errc::authentication_failed},
        };
        for (row const& r : rows) {
            INFO(r.what);
            message_channel c{io, options_of<message_channel_options>(with_keys())};
            connection fake;
            auto const serve = [&]() -> asio::awaitable<void> {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                fake = connection{io, std::move(asked)};
                auto const [ec] = co_await fake.async_accept(r.acceptance, awaiting);
                CHECK_FALSE(ec);
                if (r.message > 0) {
                    registered_buffer lie{fake, 256};
                    static_cast<void>(
                        co_await fake.async_send(lie.slice().first(r.message), awaiting)
                    );
                }
            };
            auto const ask = [&]() -> asio::awaitable<error_code> {
                auto const [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
                co_return ec;
            };
            error_code const got = co_await (ask() && serve());
            CHECK(got == r.client_gets);
            CHECK(c.last_failure().reason == close_reason::protocol_error);
        }
    });
}

TEST_CASE("authentication: a server that falls silent behind its proof", "[device]") {
    // Only one with the key gets there, so this is a server whose program hangs.
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        auto options = options_of<message_channel_options>(with_keys());
        options.authentication.timeout = 50ms;
        message_channel c{io, options};
        connection quiet;
        auto const serve = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await door.async_get_request(asio::use_awaitable);
            quiet = connection{io, std::move(asked)};
            co_await pause(io, 300ms);
            quiet.close();
        };
        auto const ask = [&]() -> asio::awaitable<error_code> {
            auto const [ec] = co_await c.async_connect(door.local_endpoint(), awaiting);
            co_return ec;
        };
        // Until the establishment the connection's own limits hold.
        error_code const got = co_await (ask() && serve());
        CHECK(got.failed());
    });
}

TEST_CASE("authentication: one who passes everything on gets nothing", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        guarded_server s{io};
        acceptor between{io, {device_address(), 0}};
        connection to_client, to_server{io};
        auto const relay = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await between.async_get_request(asio::use_awaitable);
            auto const seen = asked.private_data();
            std::vector<std::byte> const request(seen.begin(), seen.end());
            error_code const ec = co_await establish(to_server, s.door.local_endpoint(), request);
            REQUIRE_FALSE(ec);
            auto acceptance = to_server.private_data();
            acceptance.resize(84);
            to_client = connection{io, std::move(asked)};
            co_await to_client.async_accept(acceptance, asio::use_awaitable);
            co_await to_client.async_wait_disconnected(asio::use_awaitable);
            to_server.close();
        };
        message_channel c{io, options_of<message_channel_options>(with_keys())};
        auto const ask = [&]() -> asio::awaitable<error_code> {
            auto const [ec] = co_await c.async_connect(between.local_endpoint(), awaiting);
            co_return ec;
        };
        auto const [client_got, server_got] = co_await (ask() && (s.serve() && relay()));
        CHECK(client_got == errc::authentication_failed);
        CHECK(server_got == errc::peer_disconnected);
    });
}

// --- drivers -------------------------------------------------------------------------------------

namespace authentication_tests {

// A protocol of a program's: a hello of one byte.
class guarded final : public protocol::handshake {
public:
    guarded(connection over, authentication_options const& how, int version = 1)
        : handshake{std::move(over)},
          version_{version} {
        authenticate(how);
    }
    void release(error_code refused) {
        enter([this, refused] { go_on(refused); });
    }

    bool waits = false;
    bool has_waited = false;
    error_code prepared_with, established_with;
    int prepared = 0;
    int established = 0;
    std::string order;

private:
    error_code prepare() override {
        ++prepared;
        order += 'p';
        return prepared_with;
    }
    std::vector<std::byte> hello(error_code refused) const override {
        std::vector<std::byte> mine{std::byte(version_)};
        if (refused) mine.push_back(std::byte{0xff});
        return mine;
    }
    error_code judge(std::span<std::byte const> theirs) override {
        order += 'j';
        if (theirs.size() != 1) return channel_errc::foreign_peer;
        return theirs[0] == std::byte(version_) ? error_code{}
                                                : error_code{channel_errc::version_mismatch};
    }
    error_code reason(std::span<std::byte const> theirs) const override {
        if (theirs.size() != 2 || theirs[1] != std::byte{0xff}) return {};
        return theirs[0] == std::byte(version_) ? channel_errc::peer_busy
                                                : channel_errc::version_mismatch;
    }
    bool holds_back() override { return has_waited = waits; }
    error_code on_established() override {
        ++established;
        order += 'e';
        return established_with;
    }
    void on_end(failure const& why) override { end_accept(why.code); }

    int const version_;
};

struct guarded_pair {
    asio::io_context& io;
    acceptor door{io, {device_address(), 0}};
    std::shared_ptr<guarded> client{};
    std::shared_ptr<guarded> server{};
    std::function<void(guarded&)> with_server = [](guarded&) {};

    asio::awaitable<outcome> meet(int ours = 1, int theirs = 1) {
        client = protocol::make<guarded>(connection{io}, with_keys(), ours);
        auto const serve = [&]() -> asio::awaitable<error_code> {
            auto [failed, asked] = co_await door.async_get_request(awaiting);
            if (failed) co_return failed;
            server = protocol::make<guarded>(connection{io, std::move(asked)}, with_keys(), theirs);
            with_server(*server);
            auto const [ec] = co_await protocol::initiate<error_code>(
                server, [](guarded& g, auto who) { g.accept(std::move(who)); }, awaiting
            );
            co_return ec;
        };
        auto const ask = [&]() -> asio::awaitable<error_code> {
            auto const [ec] = co_await protocol::initiate<error_code>(
                client,
                [to = door.local_endpoint()](guarded& g, auto who) {
                    g.connect(to, std::move(who));
                },
                awaiting
            );
            // Nobody comes any more.
            if (ec && server == nullptr) door.close();
            co_return ec;
        };
        auto const [c, s] = co_await (ask() && serve());
        co_return outcome{c, s};
    }
    ~guarded_pair() {
        if (client != nullptr) client->close();
        if (server != nullptr) server->close();
    }
};

}  // namespace authentication_tests

TEST_CASE("authentication: a protocol of a program's", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        {
            guarded_pair p{io};
            outcome const got = co_await p.meet();
            CHECK_FALSE(got.client);
            CHECK_FALSE(got.server);
            CHECK(p.client->order == "pje");
            CHECK(p.server->order == "jpe");
            CHECK(p.server->peer_identity() == "alice");
        }
        {
            guarded_pair p{io};
            outcome const got = co_await p.meet(1, 2);
            CHECK(got.client == channel_errc::version_mismatch);
            CHECK(got.server == channel_errc::version_mismatch);
            CHECK(p.server->prepared == 0);
        }
        {
            guarded_pair p{io};
            p.with_server = [](guarded& g) {
                g.established_with = channel_errc::malformed_message;
            };
            outcome const got = co_await p.meet();
            CHECK(got.server == channel_errc::malformed_message);
        }
        {
            guarded_pair p{io};
            p.with_server = [](guarded& g) { g.prepared_with = errc::queue_full; };
            outcome const got = co_await p.meet();
            CHECK(got.server == errc::queue_full);
            CHECK(got.client == errc::peer_disconnected);
        }
        for (bool const refuses : {false, true}) {
            guarded_pair p{io};
            p.with_server = [](guarded& g) { g.waits = true; };
            auto const release = [&]() -> asio::awaitable<void> {
                co_await until(io, [&] { return p.server != nullptr && p.server->has_waited; });
                co_await pause(io, 20ms);
                CHECK(p.server->prepared == 0);
                p.server->release(refuses ? error_code{channel_errc::peer_busy} : error_code{});
            };
            outcome const got = co_await (p.meet() && release());
            error_code const expected = refuses ? channel_errc::peer_busy : error_code{};
            CHECK(got.client == expected);
            CHECK(got.server == expected);
        }
        // It leaves while the other makes up its mind.
        {
            guarded_pair p{io};
            p.with_server = [](guarded& g) { g.waits = true; };
            auto const leave = [&]() -> asio::awaitable<void> {
                co_await until(io, [&] { return p.server != nullptr && p.server->has_waited; });
                p.client->close();
            };
            outcome const got = co_await (p.meet() && leave());
            CHECK(got.client == asio::error::operation_aborted);
            CHECK(got.server == errc::peer_disconnected);
        }
    });
}

TEST_CASE("authentication: closed at each moment", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        int opened = 0;
        for (int after = 0; after < 80; ++after) {
            guarded_pair p{io};
            auto const close = [&]() -> asio::awaitable<void> {
                co_await until(io, [&] { return p.client != nullptr; });
                for (int i = 0; i < after * 4; ++i) co_await asio::post(io, asio::use_awaitable);
                (after % 2 == 0 || p.server == nullptr ? p.client : p.server)->close();
            };
            // Each handler is called, whatever the result, and not after the deadline.
            outcome const got = co_await (p.meet() && close());
            CHECK(got.client != errc::timed_out);
            CHECK(got.server != errc::timed_out);
            if (!got.client && !got.server) ++opened;
        }
        CHECK(opened < 80);
    });
}
