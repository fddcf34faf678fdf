// Blocking calls without Asio: requests, messages and memory, from many threads, across a restart and a fork.
#include <rcverbs/experimental/calls.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/message_channel.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/session.hpp>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/device_address.hpp"

using namespace rcverbs;
using namespace test;
using namespace std::chrono_literals;

namespace calls_test {

namespace {

std::vector<std::byte> filled(std::size_t size, std::uint32_t seed) {
    std::vector<std::byte> bytes(size);
    fill(bytes, seed);
    return bytes;
}

// Answers each request with its head and body, until the server ends.
void echo(calls::server& server) {
    for (;;) {
        calls::request r = server.next();
        if (!r.is_valid()) return;
        std::vector<std::byte> const body{r.bytes().begin(), r.bytes().end()};
        std::vector<std::byte> const head{r.head().begin(), r.head().end()};
        if (r.wants_answer()) r.answer(answer{r.operation() + 1}.head(head).body(body));
    }
}

template <class Function>
error_code thrown_by(Function&& f) {
    try {
        f();
    } catch (boost::system::system_error const& e) {
        return e.code();
    }
    return {};
}

}  // namespace

TEST_CASE("calls: requests of any size, from many threads", "[device][any-device]") {
    calls::server server{{device_address(), 0}};
    std::vector<std::thread> serving;
    for (int i = 0; i < 3; ++i) serving.emplace_back([&] { echo(server); });
    calls::client client{server.local_endpoint()};
    std::atomic<int> wrong = 0;
    std::vector<std::thread> callers;
    for (std::uint32_t thread = 0; thread < 6; ++thread)
        callers.emplace_back([&, thread] {
            for (std::uint32_t i = 0; i < 30; ++i) {
                std::size_t const size = i % 3 == 0 ? 100'000 : i % 3 == 1 ? 0 : 100;
                auto const body = filled(size, thread * 100 + i);
                auto const head = filled(8, i);
                calls::reply const r = client.request(ask{i}.head(head).body(body).within(60s));
                bool const is_right = r.status == i + 1 && r.head == head && r.bytes == body &&
                                      r.size == size && r.connection_number == 1;
                if (!is_right) ++wrong;
            }
        });
    for (std::thread& t : callers) t.join();
    CHECK(wrong == 0);
    // Into memory of the program's.
    registered_buffer const page{client.domain(), 4096, access_flags::remote_write};
    auto const body = filled(4096, 9);
    calls::reply const r = client.request(ask{1}.body(body).into(page.slice()));
    CHECK(r.bytes.empty());
    CHECK(r.size == 4096);
    CHECK(std::ranges::equal(page.bytes(), body));
    client.notify(ask{5}.body(body));
    client.finish();
    CHECK(thrown_by([&] { client.request(ask{1}); }) != error_code{});
    server.finish(60s);
    for (std::thread& t : serving) t.join();
    CHECK_FALSE(server.next().is_valid());
}

TEST_CASE("calls: a request waits for the next server", "[device][any-device]") {
    std::optional<calls::server> server{std::in_place, endpoint{device_address(), 0}};
    endpoint const at = server->local_endpoint();
    std::thread first{[&] { echo(*server); }};
    calls::client client{at};
    CHECK(client.request(ask{1}).connection_number == 1);
    server->close();
    first.join();
    server.reset();
    std::optional<calls::reply> r;
    std::thread caller{[&] { r = client.request(ask{2}.may_repeat().within(60s)); }};
    std::this_thread::sleep_for(100ms);
    server.emplace(at);
    std::thread second{[&] { echo(*server); }};
    caller.join();
    CHECK(r->status == 3);
    CHECK(r->connection_number == 2);
    // Who waits is woken.
    calls::client nobody{endpoint{device_address(), 1}};
    error_code why_woken;
    std::thread waits{[&] { why_woken = thrown_by([&] { nobody.request(ask{1}.within(60s)); }); }};
    std::this_thread::sleep_for(50ms);
    nobody.close();
    waits.join();
    CHECK(why_woken != error_code{});
    server->close();
    second.join();
}

TEST_CASE("calls: messages, and sessions with memory", "[device][any-device]") {
    calls::listener door{{device_address(), 0}};
    CHECK(thrown_by([&] { door.accept_channel(20ms); }) == errc::timed_out);
    {
        calls::channel server;
        std::thread other{[&] { server = door.accept_channel(60s); }};
        calls::channel client{door.local_endpoint(), 60s};
        other.join();
        CHECK(thrown_by([&] { client.receive(20ms); }) == errc::timed_out);
        auto const small = filled(100, 1);
        auto const large = filled(300'000, 2);
        client.send(small, 7);
        std::thread sender{[&] { client.send(large, 8); }};
        calls::message const first = server.receive();
        CHECK(first.tag == 7);
        CHECK(first.bytes == small);
        CHECK(server.receive().bytes == large);
        sender.join();
        std::thread finishes{[&] { server.finish(); }};
        client.finish();
        finishes.join();
    }
    calls::session server;
    std::thread other{[&] { server = door.accept_session(60s); }};
    calls::session client{door.local_endpoint()};
    other.join();
    registered_buffer const theirs{
        server.domain(),
        8192,
        access_flags::remote_write | access_flags::remote_read | access_flags::remote_atomic};
    registered_buffer const mine{client.domain(), 4096, access_flags::local_write};
    std::thread gives{[&] { server.exchange({{"page", theirs.remote()}}); }};
    std::vector<calls::region> const regions = client.exchange({});
    gives.join();
    REQUIRE(regions.size() == 1);
    CHECK(regions.front().name == "page");
    remote_region const page = regions.front().memory;
    fill(mine.bytes(), 3);
    client.write(mine.slice(), page.slice(4096, 4096), 60s);
    CHECK(std::ranges::equal(mine.bytes(), theirs.bytes().subspan(4096)));
    CHECK(client.fetch_add(page.word(8), 5) == 0);
    CHECK(client.compare_swap(page.word(8), 5, 9) == 5);
    client.read(page.slice(0, 16), mine.slice(0, 16));
    CHECK(mine.bytes()[8] == std::byte{9});
    // The call alone has failed.
    auto const too_far = [&] { client.write(mine.slice(0, 8), page, 60s); };
    CHECK(thrown_by(too_far) == errc::out_of_range);
    std::thread finishes{[&] { server.finish(); }};
    client.finish();
    finishes.join();
    CHECK(client.last_failure().code == error_code{});
}

TEST_CASE("calls: who may connect, and who it was", "[device][any-device]") {
    pre_shared_keys keys;
    keys.add("alice", filled(32, 1));
    request_server_options serves;
    serves.channel.messages.authentication.keys = keys;
    calls::server server{{device_address(), 0}, serves};
    request_client_options asks;
    asks.channel = serves.channel;
    calls::client client{server.local_endpoint(), asks};
    bool is_cancelled = true;
    std::string before;
    std::string after;
    std::thread serving{[&] {
        calls::request r = server.next();
        is_cancelled = r.is_cancelled();
        before = r.peer_identity();
        r.answer(answer{1}.body(std::string{"a"}));
        after = r.peer_identity();
    }};
    CHECK(client.request(ask{1}).status == 1);
    serving.join();
    CHECK_FALSE(is_cancelled);
    CHECK(before == "alice");
    CHECK(after == "alice");
    calls::client stranger{server.local_endpoint()};
    CHECK(thrown_by([&] {
              stranger.request(ask{1}.within(60s));
          }) == error_code{errc::security_mismatch});

    calls::listener door{{device_address(), 0}};
    message_channel_options const channels = asks.channel.messages;
    session_options sessions;
    sessions.authentication = channels.authentication;
    calls::channel taken;
    std::thread first{[&] { taken = door.accept_channel(channels, 60s); }};
    calls::channel const c{door.local_endpoint(), channels, 60s};
    first.join();
    CHECK(taken.peer_identity() == "alice");
    CHECK(c.peer_identity().empty());
    calls::session s;
    std::thread second{[&] { s = door.accept_session(sessions, 60s); }};
    calls::session const mine{door.local_endpoint(), sessions, 60s};
    second.join();
    CHECK(s.peer_identity() == "alice");
    CHECK(mine.peer_identity().empty());
}

TEST_CASE("calls: what is empty, or nobody's, fails", "[device][any-device]") {
    CHECK(calls::channel{}.last_failure().code == error_code{});
    calls::client none;
    CHECK(thrown_by([&] { none.request(ask{1}); }) == errc::not_connected);
    none.close();
    CHECK(thrown_by([&] { calls::session{endpoint{device_address(), 1}}; }) == condition::refused);
    CHECK(thrown_by([&] { calls::channel{endpoint{device_address(), 1}}; }) == condition::refused);
    calls::client moved{endpoint{device_address(), 1}};
    calls::client taken = std::move(moved);
    CHECK(thrown_by([&] { moved.request(ask{1}); }) == errc::not_connected);
    CHECK(thrown_by([&] { taken.request(ask{1}.within(30ms)); }) == condition::timed_out);
}

TEST_CASE(
    "calls: the child of a fork is refused, and takes nothing from its parent",
    "[device][any-device]"
) {
    calls::server server{{device_address(), 0}};
    std::thread serving{[&] { echo(server); }};
    auto client = std::make_unique<calls::client>(server.local_endpoint());
    CHECK(client->request(ask{1}).status == 2);
    pid_t const child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        bool const is_refused =
            thrown_by([&] { client->request(ask{1}); }) == errc::would_deadlock &&
            thrown_by([&] { server.next(); }) == errc::would_deadlock;
        client->close();
        client.reset();
        ::_exit(is_refused ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(client->request(ask{2}).status == 3);
    client->finish();
    server.close();
    serving.join();
}

}  // namespace calls_test
