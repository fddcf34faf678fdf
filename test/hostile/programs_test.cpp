// rdma-server, rdma-client and rdma-bench against peers that send false data, stay silent, or
// leave: the process continues, the next peer is served, and output and exit code name the peer.
#include <csignal>

#include <algorithm>
#include <array>
#include <memory>

#include "common/message_frame.hpp"
#include "device/programs.hpp"
#include "hostile/peer.hpp"

using namespace test;

namespace {

constexpr std::uint32_t write_mode = 1;
constexpr std::uint32_t atomic_mode = 3;

std::uint16_t number(std::string const& port) {
    return static_cast<std::uint16_t>(std::stoi(port));
}

/// The first regions of a MSG_MR.
struct region {
    std::string name;
    std::uint64_t address = 0;
    std::uint64_t size = 0;
    std::uint32_t key = 0;
};

std::uint64_t get(hostile::bytes const& from, std::size_t at, std::size_t size) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i)
        value = value << 8 | std::to_integer<std::uint64_t>(from.at(at + i));
    return value;
}

std::vector<region> regions_of(hostile::bytes const& message) {
    std::vector<region> all;
    std::size_t const count = get(message, 6, 2);
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t const at = 16 + 48 * i;
        region r{
            {},
            get(message, at, 8),
            get(message, at + 8, 8),
            static_cast<std::uint32_t>(get(message, at + 16, 4))};
        for (std::size_t n = 0; n < 24 && message.at(at + 24 + n) != std::byte{0}; ++n)
            r.name += static_cast<char>(message[at + 24 + n]);
        all.push_back(r);
    }
    return all;
}

/// A client of rdma-server with an established session.
std::unique_ptr<hostile::peer> visit(
    server const& s, std::uint32_t mode, bool posts_receives = true
) {
    auto peer = std::make_unique<hostile::peer>();
    peer->approach(device_address(), number(s.port), posts_receives);
    hostile::hello h;
    h.mode = mode;
    peer->ask(h.encoded());
    peer->await_event(RDMA_CM_EVENT_ESTABLISHED);
    return peer;
}

}  // namespace

TEST_CASE("a peer's text is printed in one line of printable characters", "[hostile]") {
    server s{{"write"}};
    {
        auto const peer = visit(s, write_mode);
        region const theirs = regions_of(peer->await_message()).at(0);
        std::string const text =
            "\x1b[2J\x1b]0;owned\x07\nlistening on port 1.\n" + std::string(900, 'x') + "\xff\\";
        // The server reads the text from its own region, so the peer writes it there.
        std::vector<std::byte> frame(theirs.size);
        demo::write_frame(frame, text);
        CHECK(peer->deliver(hostile::regions_message(
            "message", peer->exposed_address(), hostile::peer::memory_bytes, peer->exposed_key(), 2
        )));
        CHECK(peer->write_bytes(theirs.address, theirs.key, frame) == IBV_WC_SUCCESS);
        CHECK(peer->deliver(hostile::done_message()));
        REQUIRE(s.process.wait_for_output("remote buffer: "));
        peer->disconnect();
    }
    s.must_serve("write");
    for (std::string const& line : s.process.output_lines()) {
        CHECK(line != "listening on port 1.");
        for (char const c : line) CHECK((c >= ' ' && c <= '~'));
    }
    CHECK(
        s.process.output().find(
            "remote buffer: \\x1b[2J\\x1b]0;owned\\x07\\x0alistening on port 1.\\x0axx"
        ) != std::string::npos
    );
    CHECK(s.process.output().find("bytes more)") != std::string::npos);
}

TEST_CASE(
    "a client that overwrites the free lock and leaves locks out no other client", "[hostile]"
) {
    server s{{"atomic"}};
    bool const stays = GENERATE(false, true);
    std::unique_ptr<hostile::peer> peer = visit(s, atomic_mode);
    for (region const& r : regions_of(peer->await_message())) {
        if (r.name == "counter") CHECK(peer->add(r.address + 8, r.key, 1) == IBV_WC_SUCCESS);
    }
    if (!stays) {
        peer->disconnect();
        peer.reset();
    }
    s.must_serve("atomic");
    s.must_serve("atomic");
}

TEST_CASE(
    "a client that holds the lock for longer than the timeout is disconnected, and the lock is "
    "free",
    "[hostile]"
) {
    server s{{"atomic", "--timeout", "1s"}};
    child_process holder = s.client("atomic", {"--hold-at", "locked", "--timeout", "60s"});
    REQUIRE(holder.wait_for_error("holding at locked."));
    CHECK(holder.wait() != exit_done);
    s.must_serve("atomic");
}

TEST_CASE("a server that posts no receives is given up within the timeout", "[hostile]") {
    hostile::peer fake;
    std::uint16_t const port = fake.listen();
    child_process client{command(
        "rdma-client", {"write", device_address(), std::to_string(port), "--timeout", "500ms"}
    )};
    fake.take_request(false);
    hostile::hello h;
    h.mode = write_mode;
    fake.accept(h.encoded());
    CHECK(client.wait() == exit_deadline_passed);
}

TEST_CASE("a client that posts no receives is dropped within the timeout", "[hostile]") {
    server s{{"write", "--timeout", "500ms", "--count", "1"}};
    auto const peer = visit(s, write_mode, false);
    CHECK(s.process.wait() == exit_deadline_passed);
}

TEST_CASE("a client of a hostile server exits with the code of a broken protocol", "[hostile]") {
    hostile::peer fake;
    std::uint16_t const port = fake.listen();
    child_process client{command(
        "rdma-client", {"write", device_address(), std::to_string(port), "--timeout", "2s"}
    )};
    fake.take_request();
    hostile::hello h;
    h.mode = write_mode;
    SECTION("a wrong key") {
        fake.accept(h.encoded());
        fake.await_event(RDMA_CM_EVENT_ESTABLISHED);
        CHECK(fake.deliver(hostile::regions_message(
            "message", fake.exposed_address(), 1024, fake.exposed_key() ^ 0x5a, 2
        )));
    }
    SECTION("a message longer than the receive") {
        fake.accept(h.encoded());
        fake.await_event(RDMA_CM_EVENT_ESTABLISHED);
        static_cast<void>(fake.deliver(hostile::bytes(8000)));
    }
    SECTION("a refusal that says welcome") { fake.reject(h.encoded()); }
    SECTION("an acceptance that says busy") {
        h.verdict = 3;
        fake.accept(h.encoded());
    }
    SECTION("memory of the wrong kind") {
        fake.accept(h.encoded());
        fake.await_event(RDMA_CM_EVENT_ESTABLISHED);
        CHECK(fake.deliver(
            hostile::regions_message("message", fake.exposed_address(), 1024, fake.exposed_key(), 4)
        ));
    }
    SECTION("rights that do not exist") {
        fake.accept(h.encoded());
        fake.await_event(RDMA_CM_EVENT_ESTABLISHED);
        CHECK(fake.deliver(hostile::regions_message(
            "message", fake.exposed_address(), 1024, fake.exposed_key(), 64
        )));
    }
    auto const status = client.wait();
    INFO(client.error());
    CHECK(status == exit_refused);
}

// --- rdma-bench ----------------------------------------------------------------------------------

namespace {

struct bench_server {
    explicit bench_server(std::string const& memory = "1G")
        : process{command(
              "rdma-bench",
              {"server",
               "--port",
               "0",
               "--bind",
               device_address(),
               "--timeout",
               "2s",
               "--memory",
               memory}
          )} {
        REQUIRE(process.wait_for_output(".\n"));
        std::string const before = "listening on port ";
        std::string const& out = process.output();
        port = out.substr(before.size(), out.find('.') - before.size());
    }

    std::unique_ptr<hostile::peer> visit(bool posts_receives = true) const {
        auto peer = std::make_unique<hostile::peer>();
        peer->approach(device_address(), number(port), posts_receives);
        peer->ask({});
        peer->await_event(RDMA_CM_EVENT_ESTABLISHED);
        return peer;
    }

    child_process client(std::vector<std::string> const& test = {"write", "--sizes", "64"}) const {
        std::vector<std::string> all{"client", device_address(), port, "--iterations", "10"};
        all.insert(all.end(), test.begin(), test.end());
        return child_process{command("rdma-bench", std::move(all))};
    }

    /// A well-behaved client is served once the server is free.
    void must_serve() {
        CHECK_FALSE(process.wait(0ms));
        for (int i = 0; i < 100; ++i) {
            child_process c = client();
            auto const status = c.wait();
            if (status == exit_refused && c.error().find("another client") != std::string::npos) {
                std::this_thread::sleep_for(100ms);
                continue;
            }
            INFO(c.error());
            CHECK(status == exit_done);
            return;
        }
        FAIL("never served");
    }

    child_process process;
    std::string port;
};

/// Sends rdma-bench's keepalive text until the server disconnects: well before 20 s, since its
/// timeout is 2 s.
void keep_alive_until_dropped(hostile::peer& p) {
    for (int i = 0; i < 100; ++i) {
        // A queue has room again only when its completions are taken.
        static_cast<void>(p.deliver(hostile::text(R"({"order":"alive"})")));
        if (auto const event = p.next_event(200)) {
            CHECK(event->type == RDMA_CM_EVENT_DISCONNECTED);
            return;
        }
    }
    FAIL("never disconnected");
}

std::string plan(std::string const& test, std::string const& measure, std::string const& size) {
    return R"({"version":3,"plan":{"test":")" + test + R"(","measure":")" + measure +
           R"(","sizes_bytes":[)" + size +
           R"(],"depth":1,"batch":1,"receives":4,"inline_bytes":0,"poll":"event","spin_us":50,"connections":1,"threads":0,)"
           R"("own_threads":true,"warm_up":0,"iterations":10,"duration_ms":100,"bidirectional":false,"verify":false,"corrupt":false,)"
           R"("pages":"small","alignment_bytes":4096,"registration":"once"}})";
}

/// The port number in the bench server's answer.
std::uint16_t port_of(hostile::bytes const& ready) {
    std::string text(reinterpret_cast<char const*>(ready.data()), ready.size());
    return static_cast<std::uint16_t>(std::stoi(text.substr(text.find("port\":") + 6)));
}

/// The token that measured connections name.
std::uint64_t token_of(hostile::bytes const& ready) {
    std::string text(reinterpret_cast<char const*>(ready.data()), ready.size());
    return std::stoull(text.substr(text.find("token\":") + 7));
}

hostile::bytes greeting(
    std::uint64_t address,
    std::uint64_t size,
    std::uint32_t key,
    std::uint32_t rights,
    std::uint64_t token
) {
    hostile::bytes out = hostile::text("rvb1");
    hostile::put(out, rights, 4);
    hostile::put(out, address, 8);
    hostile::put(out, size, 8);
    hostile::put(out, key, 4);
    hostile::put(out, 0, 4);
    hostile::put(out, token, 8);
    return out;
}

}  // namespace

TEST_CASE("a client that spoils the record does not spoil it for the next", "[hostile]") {
    server s{{"atomic"}};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        rcverbs::session_options o;
        o.mode = atomic_mode;
        rcverbs::session visitor{rcverbs::connection{io}, o};
        co_await visitor.async_connect({device_address(), number(s.port)}, asio::use_awaitable);
        auto const regions = co_await visitor.async_wait_regions(asio::use_awaitable);
        rcverbs::remote_region const* const record = regions.find("record");
        REQUIRE(record != nullptr);
        // Two words of eight, without the lock.
        rcverbs::registered_buffer from{
            visitor.next_layer().domain(), 16, rcverbs::access_flags::local_write};
        std::ranges::fill(from.bytes(), std::byte{0x55});
        co_await visitor.next_layer().async_write(
            from.slice(), record->slice(8, 16), asio::use_awaitable
        );
        visitor.close();
    });
    CHECK(s.process.wait_for_error("left the record spoiled"));
    child_process next = s.client("atomic", {"--updates", "3"});
    auto const status = next.wait();
    INFO(next.error());
    CHECK(status == exit_done);
    CHECK(next.output().find("changed the record x 3") != std::string::npos);
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("rdma-bench's server outlives a client whose orders do not fit its plan", "[hostile]") {
    bench_server s;
    auto const [measure, order] = GENERATE(table<std::string, std::string>({
        {"bandwidth", R"({"order":"begin","size_bytes":1048577,"seed":1})"},
        {"latency", R"({"order":"begin","size_bytes":0,"seed":1})"},
        {"bandwidth", R"({"order":"begin"})"},
        {"bandwidth", R"([])"},
        {"bandwidth", R"({"order":"end","operations":[1,2,3]})"},
        {"bandwidth", "\xff"},
    }));
    {
        auto const control = s.visit();
        CHECK(control->deliver(hostile::text(plan("write", measure, "4096"))));
        hostile::bytes const ready = control->await_message();
        REQUIRE(ready.size() > 8);
        hostile::peer data_peer;
        data_peer.approach(device_address(), port_of(ready));
        data_peer.ask(greeting(
            data_peer.exposed_address(),
            hostile::peer::memory_bytes,
            data_peer.exposed_key(),
            2,
            token_of(ready)
        ));
        data_peer.await_event(RDMA_CM_EVENT_ESTABLISHED);
        CHECK(control->deliver(hostile::text(order)));
        s.must_serve();
    }
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE(
    "rdma-bench's server outlives a client that exposes no memory, or too little", "[hostile]"
) {
    bench_server s;
    std::uint64_t const size = GENERATE(0U, 64U);
    auto const control = s.visit();
    CHECK(control->deliver(hostile::text(plan("write", "latency", "4096"))));
    hostile::bytes const ready = control->await_message();
    REQUIRE(ready.size() > 8);
    hostile::peer data_peer;
    data_peer.approach(device_address(), port_of(ready));
    data_peer.ask(
        greeting(data_peer.exposed_address(), size, data_peer.exposed_key(), 2, token_of(ready))
    );
    static_cast<void>(data_peer.next_event());
    CHECK(control->deliver(hostile::text(R"({"order":"begin","size_bytes":4096,"seed":1})")));
    s.must_serve();
}

TEST_CASE(
    "rdma-bench's server drops a silent client, and rejects others as busy meanwhile", "[hostile]"
) {
    bench_server s;
    std::unique_ptr<hostile::peer> silent = s.visit();
    SECTION("after connecting") {}
    SECTION("after its plan") {
        CHECK(silent->deliver(hostile::text(plan("write", "bandwidth", "4096"))));
    }
    SECTION("with keepalive texts, and without a plan") { keep_alive_until_dropped(*silent); }
    SECTION("after a refusal") {
        CHECK(silent->deliver(hostile::text(plan("write", "bandwidth", "0"))));
    }
    child_process impatient = s.client();
    auto const status = impatient.wait();
    if (status != exit_done) {
        CHECK(status == exit_refused);
        CHECK(impatient.error().find("it serves another client") != std::string::npos);
    }
    s.must_serve();
}

TEST_CASE("rdma-bench's server drops a client that does not receive the answer", "[hostile]") {
    bench_server s;
    auto const deaf = s.visit(false);
    CHECK(deaf->deliver(hostile::text(plan("write", "bandwidth", "4096"))));
    keep_alive_until_dropped(*deaf);
    s.must_serve();
}

TEST_CASE("rdma-bench's server refuses a plan that needs more memory than it allows", "[hostile]") {
    bench_server s{"64M"};
    for (std::vector<std::string> const& test : {
             std::vector<std::string>{"write", "--sizes", "1G"},
             {"write", "--sizes", "16M", "--connections", "3"},
             {"fetch-add", "--depth", "16384", "--connections", "2", "--threads", "1"},
             {"send", "--sizes", "64", "--receives", "16384", "--connections", "3"},
             {"connect", "--connections", "16384", "--threads", "1"},
         }) {
        child_process greedy = s.client(test);
        auto const status = greedy.wait();
        INFO(test[0] << ": " << greedy.error());
        CHECK(status == exit_refused);
        CHECK(
            greedy.error().find("the server allows 64 MiB: see its --memory") != std::string::npos
        );
    }
    s.must_serve();
}

TEST_CASE("rdma-bench's client outlives a server that answers with nonsense", "[hostile]") {
    hostile::peer fake;
    std::uint16_t const port = fake.listen();
    child_process client{command(
        "rdma-bench",
        {"client",
         device_address(),
         std::to_string(port),
         "write",
         "--iterations",
         "10",
         "--timeout",
         "2s"}
    )};
    fake.take_request();
    fake.accept({});
    fake.await_event(RDMA_CM_EVENT_ESTABLISHED);
    REQUIRE_FALSE(fake.await_message().empty());
    std::string expected;
    std::string answer;
    SECTION("no port") {
        answer = R"({"port":0,"patience_ms":1000})";
        expected = "malformed answer";
    }
    SECTION("an array") {
        answer = "[]";
        expected = "not a JSON object";
    }
    SECTION("a port of the wrong kind") {
        answer = R"({"port":{"a":1}})";
        expected = "malformed answer";
    }
    SECTION("a refusal with control characters") {
        answer = "{\"refused\":\"\\u001b[2J\\nlistening on port 1.\"}";
        expected = "refused: \\x1b[2J\\x0alistening";
    }
    SECTION("a refusal that is no text") {
        answer = R"({"refused":{}})";
        expected = "no reason given";
    }
    CHECK(fake.deliver(hostile::text(answer)));
    auto const status = client.wait();
    INFO(client.error());
    CHECK(status == exit_refused);
    CHECK(client.error().find(expected) != std::string::npos);
    CHECK(client.error().find("json.exception") == std::string::npos);
}
