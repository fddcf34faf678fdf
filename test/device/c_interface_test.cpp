// The C interface: each function, its errors, and what a language that calls C relies on.
#include <rcverbs/rcverbs.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <rcverbs/error.hpp>

#include "support/catch.hpp"
#include "support/device_address.hpp"
#include "support/folder.hpp"

using test::device_address;

// block_client.py has these layouts.
static_assert(sizeof(rcverbs_error) == 512 && offsetof(rcverbs_error, message) == 48);
static_assert(sizeof(rcverbs_request) == 48 && offsetof(rcverbs_request, timeout_ms) == 40);
static_assert(sizeof(rcverbs_reply) == 96 && offsetof(rcverbs_reply, body) == 72);
static_assert(sizeof(rcverbs_region) == 56);
static_assert(sizeof(rcverbs_options) == 16);

namespace c_interface_test {

namespace {

// The text of the error of a call that must fail.
template <class Call>
rcverbs_error failed(Call call) {
    rcverbs_error error;
    std::memset(&error, 0xff, sizeof error);
    CHECK(call(&error) == -1);
    CHECK(call(nullptr) == -1);
    CHECK(std::strlen(error.message) > 0);
    return error;
}

// The text of the error of a call that should succeed; empty if it does.
template <class Call>
std::string problem_of(Call call) {
    rcverbs_error error;
    return call(&error) == 0 ? std::string{} : error.message;
}

}  // namespace

TEST_CASE("C: requests and answers", "[device][any-device]") {
    rcverbs_error why;
    rcverbs_server* server = nullptr;
    REQUIRE(rcverbs_server_open(device_address().c_str(), 0, nullptr, &server, &why) == 0);
    std::uint16_t const port = rcverbs_server_port(server);
    CHECK(port != 0);
    std::vector<std::string> seen;
    std::thread serving{[&] {
        rcverbs_incoming* r = nullptr;
        while (rcverbs_server_next(server, -1, &r, nullptr) == 0 && r != nullptr) {
            void const* head = nullptr;
            void const* body = nullptr;
            std::size_t head_bytes = 0;
            std::size_t body_bytes = 0;
            rcverbs_incoming_head(r, &head, &head_bytes, nullptr);
            rcverbs_incoming_body(r, &body, &body_bytes, nullptr);
            seen.emplace_back(static_cast<char const*>(head), head_bytes);
            std::uint32_t const operation = rcverbs_incoming_operation(r);
            if (operation != 99)
                rcverbs_incoming_answer(
                    r, operation + 1, head, head_bytes, body, body_bytes, nullptr
                );
            rcverbs_incoming_free(r);
        }
    }};
    rcverbs_client* client = nullptr;
    REQUIRE(rcverbs_client_open(device_address().c_str(), port, nullptr, &client, &why) == 0);
    std::string const body(200'000, 'b');
    rcverbs_request ask{};
    ask.operation = 7;
    ask.head = "head";
    ask.head_bytes = 4;
    ask.body = body.data();
    ask.body_bytes = body.size();
    rcverbs_reply reply;
    REQUIRE(rcverbs_client_request(client, &ask, &reply, &why) == 0);
    CHECK(reply.status == 8);
    CHECK(reply.connection_number == 1);
    CHECK(std::string(reinterpret_cast<char const*>(reply.head), reply.head_bytes) == "head");
    CHECK(std::string(static_cast<char const*>(reply.body), reply.body_bytes) == body);
    rcverbs_reply_free(&reply);
    rcverbs_reply_free(&reply);
    // Not answered.
    ask = {};
    ask.operation = 99;
    rcverbs_error const dropped =
        failed([&](rcverbs_error* e) { return rcverbs_client_request(client, &ask, &reply, e); });
    CHECK(dropped.conditions == RCVERBS_OPERATION_ONLY);
    CHECK(std::string{dropped.category} == "rcverbs.channel");
    // A head that is too long, a timeout that is none.
    ask.head = body.data();
    ask.head_bytes = 65;
    failed([&](rcverbs_error* e) { return rcverbs_client_request(client, &ask, &reply, e); });
    ask = {};
    ask.timeout_ms = -1;
    failed([&](rcverbs_error* e) { return rcverbs_client_request(client, &ask, &reply, e); });
    rcverbs_client_stop(client);
    ask = {};
    failed([&](rcverbs_error* e) { return rcverbs_client_request(client, &ask, &reply, e); });
    rcverbs_client_free(client);
    rcverbs_client_free(nullptr);
    rcverbs_server_stop(server);
    serving.join();
    rcverbs_server_free(server);
    CHECK(seen == std::vector<std::string>{"head", "", ""});
}

TEST_CASE("C: who may connect", "[device][any-device]") {
    test::folder const here;
    std::string const path = here / "keys";
    auto const write = [&](std::string const& text) {
        std::ofstream{path} << text;
        std::filesystem::permissions(path, std::filesystem::perms{0600});
    };
    std::string const alice = "alice " + std::string(64, '1') + '\n';
    std::string const bob = "bob " + std::string(64, '2') + '\n';
    rcverbs_keys* keys = nullptr;
    write("alice 1\n");
    rcverbs_error const bad = failed([&](rcverbs_error* e) {
        return rcverbs_keys_load(path.c_str(), nullptr, &keys, e);
    });
    CHECK_THAT(bad.message, test::ContainsSubstring("line 1: not an identity and a key"));
    failed([&](rcverbs_error* e) { return rcverbs_keys_load(nullptr, nullptr, &keys, e); });
    CHECK(keys == nullptr);
    write(alice);
    REQUIRE(rcverbs_keys_load(path.c_str(), nullptr, &keys, nullptr) == 0);

    // A message of 8 KiB is small, and so may be sent encrypted.
    rcverbs_options options{keys, 1, 16384};
    std::string const address = device_address();
    rcverbs_server* server = nullptr;
    REQUIRE(problem_of([&](rcverbs_error* e) {
                return rcverbs_server_open(address.c_str(), 0, &options, &server, e);
            }) == "");
    std::uint16_t const port = rcverbs_server_port(server);
    std::vector<std::string> seen;
    int cancelled = 0;
    int unanswered = 0;
    std::thread serving{[&] {
        rcverbs_incoming* r = nullptr;
        while (rcverbs_server_next(server, -1, &r, nullptr) == 0 && r != nullptr) {
            cancelled += rcverbs_incoming_is_cancelled(r);
            seen.emplace_back(rcverbs_incoming_peer_identity(r));
            unanswered += rcverbs_incoming_answer(r, 1, nullptr, 0, nullptr, 0, nullptr) != 0;
            rcverbs_incoming_free(r);
        }
    }};
    std::string const body(8192, 'b');
    rcverbs_request ask{};
    ask.body = body.data();
    ask.body_bytes = body.size();
    auto const request_with = [&](rcverbs_options const* with, rcverbs_error* error) {
        rcverbs_client* client = nullptr;
        REQUIRE(problem_of([&](rcverbs_error* e) {
                    return rcverbs_client_open(address.c_str(), port, with, &client, e);
                }) == "");
        rcverbs_reply reply;
        int const result = rcverbs_client_request(client, &ask, &reply, error);
        rcverbs_reply_free(&reply);
        rcverbs_client_free(client);
        return result;
    };
    CHECK(request_with(&options, nullptr) == 0);
    rcverbs_error const stranger =
        failed([&](rcverbs_error* e) { return request_with(nullptr, e); });
    CHECK(stranger.value == static_cast<int>(rcverbs::errc::security_mismatch));
    // Another client is added to the file, and is known by name.
    write(alice + bob);
    rcverbs_keys* as_bob = nullptr;
    REQUIRE(rcverbs_keys_load(path.c_str(), "bob", &as_bob, nullptr) == 0);
    rcverbs_options const of_bob{as_bob, 1, 16384};
    rcverbs_error const unknown =
        failed([&](rcverbs_error* e) { return request_with(&of_bob, e); });
    CHECK(unknown.value == static_cast<int>(rcverbs::errc::unknown_identity));
    CHECK(rcverbs_keys_reload(keys, nullptr) == 0);
    CHECK(request_with(&of_bob, nullptr) == 0);
    write("");
    failed([&](rcverbs_error* e) { return rcverbs_keys_reload(keys, e); });
    CHECK(request_with(&of_bob, nullptr) == 0);
    rcverbs_server_stop(server);
    serving.join();
    rcverbs_server_free(server);
    CHECK(cancelled == 0);
    CHECK(unanswered == 0);
    CHECK(seen == std::vector<std::string>{"alice", "bob", "bob"});

    rcverbs_listener* door = nullptr;
    REQUIRE(rcverbs_listener_open(address.c_str(), 0, &door, nullptr) == 0);
    std::uint16_t const at = rcverbs_listener_port(door);
    rcverbs_channel* taken = nullptr;
    rcverbs_channel* channel = nullptr;
    auto first = std::async(std::launch::async, [&] {
        return rcverbs_listener_accept_channel(door, &options, 60'000, &taken, nullptr);
    });
    REQUIRE(problem_of([&](rcverbs_error* e) {
                return rcverbs_channel_connect(address.c_str(), at, &of_bob, 60'000, &channel, e);
            }) == "");
    CHECK(first.get() == 0);
    CHECK(std::string{rcverbs_channel_peer_identity(taken)} == "bob");
    CHECK(std::string{rcverbs_channel_peer_identity(channel)}.empty());
    CHECK(rcverbs_channel_send(channel, body.data(), body.size(), 0, 60'000, nullptr) == 0);
    rcverbs_session* other = nullptr;
    rcverbs_session* session = nullptr;
    auto second = std::async(std::launch::async, [&] {
        return rcverbs_listener_accept_session(door, &options, 60'000, &other, nullptr);
    });
    REQUIRE(problem_of([&](rcverbs_error* e) {
                return rcverbs_session_connect(address.c_str(), at, &of_bob, 60'000, &session, e);
            }) == "");
    CHECK(second.get() == 0);
    CHECK(std::string{rcverbs_session_peer_identity(other)} == "bob");
    CHECK(std::string{rcverbs_session_peer_identity(session)}.empty());
    rcverbs_channel_free(taken);
    rcverbs_channel_free(channel);
    rcverbs_session_free(other);
    rcverbs_session_free(session);
    rcverbs_listener_free(door);
    rcverbs_keys_free(as_bob);
    rcverbs_keys_free(keys);
    rcverbs_keys_free(nullptr);
}

TEST_CASE("C: messages and memory", "[device][any-device]") {
    rcverbs_listener* door = nullptr;
    REQUIRE(rcverbs_listener_open(device_address().c_str(), 0, &door, nullptr) == 0);
    std::string const address = device_address();
    std::uint16_t const port = rcverbs_listener_port(door);
    rcverbs_channel* none = nullptr;
    rcverbs_error const late = failed([&](rcverbs_error* e) {
        return rcverbs_listener_accept_channel(door, nullptr, 10, &none, e);
    });
    CHECK((late.conditions & RCVERBS_TIMED_OUT) != 0);
    {
        rcverbs_channel* server = nullptr;
        rcverbs_channel* client = nullptr;
        auto other = std::async(std::launch::async, [&] {
            return rcverbs_listener_accept_channel(door, nullptr, -1, &server, nullptr);
        });
        REQUIRE(
            rcverbs_channel_connect(address.c_str(), port, nullptr, 60'000, &client, nullptr) == 0
        );
        CHECK(other.get() == 0);
        CHECK(rcverbs_channel_send(client, "hello", 5, 3, -1, nullptr) == 0);
        rcverbs_message m;
        REQUIRE(rcverbs_channel_receive(server, 60'000, &m, nullptr) == 0);
        CHECK(m.tag == 3);
        CHECK(std::string(static_cast<char const*>(m.bytes), m.size) == "hello");
        rcverbs_message_free(&m);
        failed([&](rcverbs_error* e) { return rcverbs_channel_receive(server, 5, &m, e); });
        auto finishes = std::async(std::launch::async, [&] {
            return rcverbs_channel_finish(server, -1, nullptr);
        });
        CHECK(rcverbs_channel_finish(client, 60'000, nullptr) == 0);
        CHECK(finishes.get() == 0);
        rcverbs_channel_free(client);
        rcverbs_channel_free(server);
    }
    rcverbs_session* server = nullptr;
    rcverbs_session* client = nullptr;
    auto other = std::async(std::launch::async, [&] {
        return rcverbs_listener_accept_session(door, nullptr, -1, &server, nullptr);
    });
    REQUIRE(problem_of([&](rcverbs_error* e) {
                return rcverbs_session_connect(address.c_str(), port, nullptr, -1, &client, e);
            }) == "");
    CHECK(other.get() == 0);
    rcverbs_buffer* theirs = nullptr;
    rcverbs_buffer* mine = nullptr;
    std::uint32_t const all = RCVERBS_REMOTE_WRITE | RCVERBS_REMOTE_READ | RCVERBS_REMOTE_ATOMIC;
    REQUIRE(rcverbs_buffer_allocate(server, 8192, all, &theirs, nullptr) == 0);
    REQUIRE(rcverbs_buffer_allocate(client, 4096, RCVERBS_LOCAL_WRITE, &mine, nullptr) == 0);
    rcverbs_region given;
    rcverbs_buffer_describe(theirs, "a name of more than 24 bytes", &given);
    CHECK(std::strlen(given.name) == 24);
    rcverbs_buffer_describe(theirs, "page", &given);
    std::size_t taken = 0;
    auto gives = std::async(std::launch::async, [&] {
        return rcverbs_session_exchange(server, &given, 1, nullptr, &taken, -1, nullptr);
    });
    std::array<rcverbs_region, 2> regions{};
    std::size_t count = regions.size();
    REQUIRE(rcverbs_session_exchange(client, nullptr, 0, regions.data(), &count, -1, nullptr) == 0);
    CHECK(gives.get() == 0);
    CHECK(taken == 0);
    REQUIRE(count == 1);
    rcverbs_region const& page = regions[0];
    CHECK(std::string{page.name} == "page");
    std::memset(rcverbs_buffer_bytes(mine), 'x', 4096);
    CHECK(rcverbs_session_write(client, mine, 0, &page, 4096, 4096, -1, nullptr) == 0);
    CHECK(static_cast<char const*>(rcverbs_buffer_bytes(theirs))[8191] == 'x');
    std::uint64_t before = 1;
    CHECK(rcverbs_session_fetch_add(client, &page, 16, 4, &before, -1, nullptr) == 0);
    CHECK(before == 0);
    CHECK(rcverbs_session_compare_swap(client, &page, 16, 4, 6, &before, -1, nullptr) == 0);
    CHECK(before == 4);
    CHECK(rcverbs_session_read(client, &page, 16, mine, 8, 8, 60'000, nullptr) == 0);
    CHECK(static_cast<char const*>(rcverbs_buffer_bytes(mine))[8] == 6);
    rcverbs_error const far = failed([&](rcverbs_error* e) {
        return rcverbs_session_read(client, &page, 8192, mine, 0, 1, -1, e);
    });
    CHECK(far.conditions == RCVERBS_OPERATION_ONLY);
    failed([&](rcverbs_error* e) {
        return rcverbs_session_write(client, mine, 4090, &page, 0, 8, -1, e);
    });
    rcverbs_session_stop(server);
    failed([&](rcverbs_error* e) { return rcverbs_session_finish(client, 60'000, e); });
    rcverbs_session_free(client);
    rcverbs_session_free(server);
    rcverbs_buffer_free(mine);
    rcverbs_buffer_free(theirs);
    rcverbs_listener_stop(door);
    rcverbs_listener_free(door);
}

TEST_CASE("C: what fails to open says why", "[device][any-device]") {
    rcverbs_client* client = nullptr;
    rcverbs_error const wrong = failed([&](rcverbs_error* e) {
        return rcverbs_client_open("nowhere", 1, nullptr, &client, e);
    });
    CHECK(client == nullptr);
    CHECK(wrong.value != 0);
    failed([&](rcverbs_error* e) { return rcverbs_client_open(nullptr, 1, nullptr, &client, e); });
    rcverbs_session* session = nullptr;
    rcverbs_error const refused = failed([&](rcverbs_error* e) {
        return rcverbs_session_connect(device_address().c_str(), 1, nullptr, 60'000, &session, e);
    });
    CHECK((refused.conditions & RCVERBS_REFUSED) != 0);
    CHECK(std::string{refused.message}.find(device_address() + ":1") != std::string::npos);
    CHECK(std::string{rcverbs_version()}.starts_with("0."));
}

}  // namespace c_interface_test
