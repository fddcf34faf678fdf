// Sessions and channels send, and take, the bytes of docs/reference/wire-format.md and
// channel-format.md: a peer that knows nothing but what was recorded from commit 9c504a5 meets them. Programs of different versions depend on it.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <rcverbs/message_channel.hpp>
#include <rcverbs/request_channel.hpp>
#include <rcverbs/session.hpp>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

using bytes = std::vector<std::byte>;

bytes from_hex(std::string_view text) {
    bytes out;
    std::string digits;
    for (char const c : text) {
        if (c != ' ') digits += c;
        if (digits.size() < 2) continue;
        out.push_back(static_cast<std::byte>(std::stoi(digits, nullptr, 16)));
        digits.clear();
    }
    return out;
}

// In groups of four bytes.
std::string to_hex(std::span<std::byte const> from) {
    std::string text;
    for (std::size_t i = 0; i < from.size(); ++i) {
        if (i > 0 && i % 4 == 0) text += ' ';
        for (unsigned const half :
             {std::to_integer<unsigned>(from[i]) >> 4, std::to_integer<unsigned>(from[i]) & 15})
            text += "0123456789abcdef"[half];
    }
    return text;
}

/// A connection whose program knows no protocol: it has its messages as they came, and sends bytes.
struct plain_peer {
    explicit plain_peer(connection over) : c{std::move(over)} {}

    void prepare() {
        incoming = registered_buffer{c.domain(), count * size, access_flags::local_write};
        outgoing = registered_buffer{c.domain(), size, access_flags::local_write};
        for (std::size_t i = 0; i < count; ++i) {
            c.async_receive(
                incoming.slice(i * size, size),
                [this, i](error_code ec, receive_result r) {
                    if (!ec)
                        arrived.push_back(to_hex(incoming.bytes().subspan(i * size, r.size_bytes)));
                }
            );
        }
    }
    asio::awaitable<void> send(std::string_view hex) {
        bytes const b = from_hex(hex);
        std::ranges::copy(b, outgoing.bytes().begin());
        co_await c.async_send(outgoing.slice(0, b.size()), asio::use_awaitable);
    }

    static constexpr std::size_t count = 32;
    static constexpr std::size_t size = 4096;
    connection c;
    registered_buffer incoming;
    registered_buffer outgoing;
    std::vector<std::string> arrived;
};

/// Its beginning; a hello is followed by the connection manager's padding.
std::string beginning(std::span<std::byte const> of, std::size_t size) {
    return to_hex(of.first(std::min(of.size(), size)));
}

remote_region const page{
    0x1122334455667788, 0x1000, remote_key{0x01020304}, access_flags::remote_read};

constexpr std::string_view session_hello = "52435653 00010000 00000007 00000c10 00020000 00000000";
constexpr std::string_view session_regions =
    "5243564d 01010001 00000040 00000000 11223344 55667788 00000000 00001000 01020304 00000004 "
    "70616765 00000000 00000000 00000000 00000000 00000000";
constexpr std::string_view session_done = "5243564d 01020000 00000010 00000000";

session_options mode_7() {
    session_options o;
    o.mode = 7;
    return o;
}

// What both roles do when they are connected; the peer is plain.
asio::awaitable<void> exchange(session& s, plain_peer& peer) {
    std::vector<named_region> const mine{{"page", page}};
    co_await s.async_publish(mine, asio::use_awaitable);
    co_await peer.send(session_regions);
    peer_regions const theirs = co_await s.async_wait_regions(asio::use_awaitable);
    REQUIRE(theirs.size() == 1);
    CHECK(theirs.find("page")->address() == page.address());
    CHECK(theirs[0].size() == page.size());
    CHECK(theirs[0].key() == page.key());
    CHECK(theirs[0].rights() == page.rights());
    co_await s.async_send_done(asio::use_awaitable);
    co_await peer.send(session_done);
    co_await s.async_wait_done(asio::use_awaitable);
}

connection_options roomy() {
    connection_options o;
    o.queue_pair.receive_queue_depth = plain_peer::count;
    return o;
}

}  // namespace

TEST_CASE("a session that connects sends and takes the recorded bytes", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        session s{connection{stepped(io)}, mode_7()};
        std::optional<plain_peer> peer;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await a.async_get_request(asio::use_awaitable);
            CHECK(beginning(asked.private_data(), 24) == session_hello);
            peer.emplace(connection{stepped(io), std::move(asked), roomy()});
            peer->prepare();
            co_await peer->c.async_accept(from_hex(session_hello), asio::use_awaitable);
        };
        co_await (answer() && s.async_connect(a.local_endpoint(), asio::use_awaitable));
        co_await exchange(s, *peer);
        co_await s.async_disconnect(asio::use_awaitable);
        CHECK(s.last_failure().reason == close_reason::completed);
        REQUIRE(peer->arrived.size() == 2);
        CHECK(peer->arrived[0] == session_regions);
        CHECK(peer->arrived[1] == session_done);
        a.close();
    });
}

TEST_CASE("a session that accepts sends and takes the recorded bytes", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        plain_peer peer{connection{stepped(io), roomy()}};
        session s;
        auto const enter = [&]() -> asio::awaitable<void> {
            s = session{co_await requested(a), mode_7()};
            co_await s.async_accept(asio::use_awaitable);
        };
        auto const visit = [&]() -> asio::awaitable<void> {
            co_await peer.c.async_resolve(a.local_endpoint(), asio::use_awaitable);
            peer.prepare();
            co_await peer.c.async_establish(from_hex(session_hello), asio::use_awaitable);
        };
        co_await (enter() && visit());
        CHECK(beginning(peer.c.private_data(), 24) == session_hello);
        co_await exchange(s, peer);
        co_await (
            s.async_disconnect(asio::use_awaitable) && peer.c.async_disconnect(asio::use_awaitable)
        );
        CHECK(s.last_failure().reason == close_reason::completed);
        REQUIRE(peer.arrived.size() == 2);
        CHECK(peer.arrived[0] == session_regions);
        CHECK(peer.arrived[1] == session_done);
        a.close();
    });
}

namespace {

constexpr std::string_view channel_hello = "52435643 00020000 00000003 00000200 00080000 00000000";
// "hello" with the tag 7, two pages as a large message with the tag 8, the end.
constexpr std::string_view eager = "01000000 00000005 00000000 00000007 68656c6c 6f";
constexpr std::string_view large_head = "02000001 00000002 00000000 00000008 ";
constexpr std::string_view large_sizes = " 00000000 00000400 ";
constexpr std::string_view fetched = "03000001 00000000 00000000 00000000";
constexpr std::string_view close_after_two = "05000002 00000000 00000000 00000000";
constexpr std::string_view close_after_one = "05000001 00000000 00000000 00000000";

message_channel_options of_mode_3() {
    message_channel_options o;
    o.mode = 3;
    o.receives = 8;
    o.sends = 8;
    o.slot_bytes = 512;
    return o;
}

}  // namespace

TEST_CASE("a channel that connects sends and takes the recorded bytes", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        message_channel s{
            connection{stepped(io), message_channel::needed(of_mode_3())}, of_mode_3()};
        std::optional<plain_peer> peer;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await a.async_get_request(asio::use_awaitable);
            CHECK(beginning(asked.private_data(), 24) == channel_hello);
            peer.emplace(connection{stepped(io), std::move(asked), roomy()});
            peer->prepare();
            co_await peer->c.async_accept(from_hex(channel_hello), asio::use_awaitable);
        };
        co_await (answer() && s.async_connect(a.local_endpoint(), asio::use_awaitable));

        // One message each way.
        std::string_view const hello = "hello";
        co_await s.async_send(std::as_bytes(std::span{hello}), 7, asio::use_awaitable);
        co_await peer->send(eager);
        {
            message const m = co_await s.async_receive(asio::use_awaitable);
            CHECK(m.tag() == 7);
            CHECK(std::ranges::equal(m.bytes(), std::as_bytes(std::span{hello})));
        }
        // A large one: two segments, which the peer answers.
        registered_buffer pages{s.next_layer().domain(), 2048, access_flags::remote_read};
        std::vector<mutable_slice> const parts{pages.slice(0, 1024), pages.slice(1024, 1024)};
        auto const send = [&]() -> asio::awaitable<void> {
            co_await s.async_send(parts, 8, asio::use_awaitable);
        };
        auto const fetch = [&]() -> asio::awaitable<void> {
            while (peer->arrived.size() < 2) co_await sleep(io, 10us);
            co_await peer->send(fetched);
        };
        co_await (send() && fetch());
        auto const finish = [&]() -> asio::awaitable<void> {
            while (peer->arrived.size() < 3) co_await sleep(io, 10us);
            co_await peer->send(close_after_two);
        };
        co_await (s.async_finish(asio::use_awaitable) && finish());
        CHECK(s.last_failure().reason == close_reason::completed);
        REQUIRE(peer->arrived.size() == 3);
        CHECK(peer->arrived[0] == eager);
        // The addresses and the key are of this run.
        CHECK(peer->arrived[1].size() == 8 * 16 + 15);
        CHECK(peer->arrived[1].starts_with(large_head));
        CHECK(peer->arrived[1].substr(53, 19) == large_sizes);
        CHECK(peer->arrived[1].ends_with(" 00000004"));
        CHECK(peer->arrived[2] == close_after_two);
        a.close();
    });
}

TEST_CASE("a channel that accepts sends and takes the recorded bytes", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor_options accepting;
        accepting.connection = message_channel::needed(of_mode_3());
        acceptor a{stepped(io), {"10.0.0.1", 0}, accepting};
        plain_peer peer{connection{stepped(io), roomy()}};
        message_channel s;
        auto const enter = [&]() -> asio::awaitable<void> {
            s = message_channel{co_await requested(a, accepting.connection), of_mode_3()};
            co_await s.async_accept(asio::use_awaitable);
        };
        auto const visit = [&]() -> asio::awaitable<void> {
            co_await peer.c.async_resolve(a.local_endpoint(), asio::use_awaitable);
            peer.prepare();
            co_await peer.c.async_establish(from_hex(channel_hello), asio::use_awaitable);
        };
        co_await (enter() && visit());
        CHECK(beginning(peer.c.private_data(), 24) == channel_hello);
        co_await peer.send(eager);
        {
            message const m = co_await s.async_receive(asio::use_awaitable);
            CHECK(m.tag() == 7);
            co_await s.async_send(m.slice(), 7, asio::use_awaitable);
        }
        auto const finish = [&]() -> asio::awaitable<void> {
            while (peer.arrived.size() < 2) co_await sleep(io, 10us);
            co_await peer.send(close_after_one);
            co_await peer.c.async_disconnect(asio::use_awaitable);
        };
        co_await (s.async_finish(asio::use_awaitable) && finish());
        CHECK(s.last_failure().reason == close_reason::completed);
        REQUIRE(peer.arrived.size() == 2);
        CHECK(peer.arrived[0] == eager);
        CHECK(peer.arrived[1] == close_after_one);
        a.close();
    });
}

TEST_CASE("a request channel sends and takes the recorded bytes", "[fabric]") {
    // With room for 4 requests. The request has the number 0 and the operation 9, the answer the status
    // 2; then both sides say END and CLOSE.
    constexpr std::string_view hello = "52435643 00020000 00000003 00000200 00080000 00040000";
    constexpr std::string_view request = "01000000 00000005 01000000 00000009 68656c6c 6f";
    constexpr std::string_view answer = "01000001 00000005 03000000 00000002 68656c6c 6f";
    constexpr std::string_view end = "01000001 00000000 06000000 00000000";
    constexpr std::string_view end_of_peer = "01000002 00000000 06000000 00000000";
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        request_channel_options options;
        options.messages = of_mode_3();
        options.requests = 4;
        acceptor a{stepped(io), {"10.0.0.1", 0}};
        request_channel s{connection{stepped(io), request_channel::needed(options)}, options};
        std::optional<plain_peer> peer;
        auto const enter = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await a.async_get_request(asio::use_awaitable);
            CHECK(beginning(asked.private_data(), 24) == hello);
            peer.emplace(connection{stepped(io), std::move(asked), roomy()});
            peer->prepare();
            co_await peer->c.async_accept(from_hex(hello), asio::use_awaitable);
        };
        co_await (enter() && s.async_connect(a.local_endpoint(), asio::use_awaitable));
        std::string_view const body = "hello";
        auto const ask = [&]() -> asio::awaitable<void> {
            reply const r =
                co_await s.async_request(9, std::as_bytes(std::span{body}), asio::use_awaitable);
            CHECK(r.status() == 2);
            CHECK(std::ranges::equal(r.bytes(), std::as_bytes(std::span{body})));
        };
        auto const reply_to_it = [&]() -> asio::awaitable<void> {
            while (peer->arrived.empty()) co_await sleep(io, 10us);
            co_await peer->send(answer);
        };
        co_await (ask() && reply_to_it());
        auto const finish = [&]() -> asio::awaitable<void> {
            while (peer->arrived.size() < 2) co_await sleep(io, 10us);
            co_await peer->send(end_of_peer);
            while (peer->arrived.size() < 3) co_await sleep(io, 10us);
            co_await peer->send(close_after_two);
        };
        co_await (s.async_finish(asio::use_awaitable) && finish());
        CHECK(s.last_failure().reason == close_reason::completed);
        REQUIRE(peer->arrived.size() == 3);
        CHECK(peer->arrived[0] == request);
        CHECK(peer->arrived[1] == end);
        CHECK(peer->arrived[2] == close_after_two);
        a.close();
    });
}
