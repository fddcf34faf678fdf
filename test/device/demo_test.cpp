// rdma-server and rdma-client as a user runs them: separate processes, their output and exit codes,
// and their reaction to a misbehaving peer.
#include <csignal>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "device/programs.hpp"

using namespace test;

namespace {

/// The sum of a hardware counter over all devices.
long counter(std::string const& name) {
    long sum = 0;
    for (auto const& device : std::filesystem::directory_iterator{"/sys/class/infiniband"}) {
        long value = 0;
        std::ifstream{device.path() / "ports/1/hw_counters" / name} >> value;
        sum += value;
    }
    return sum;
}

std::string resources() { return output_of({"rdma", "resource", "show"}); }

/// The same, as soon as it is as before, or after a minute: resources are freed asynchronously.
std::string resources_after(std::string const& before) {
    std::string now = resources();
    for (int i = 0; now != before && i < 600; ++i) {
        std::this_thread::sleep_for(100ms);
        now = resources();
    }
    return now;
}

/// Those of a server that has had a client, and keeps what it made for it: when they have been the
/// same for a while.
std::string resources_of_warm(server const& s, std::string const& mode) {
    s.must_serve(mode);
    std::string last = resources();
    for (int same = 0; same < 10;) {
        std::this_thread::sleep_for(100ms);
        std::string const next = resources();
        same = next == last ? same + 1 : 0;
        last = next;
    }
    return last;
}

/// The kernel frees a killed process's memory before it disconnects. A peer that uses a key or sends
/// a message in between cannot distinguish that from an invalid key, or from a receive without
/// memory, and reports that.
void check_names_killed_peer(std::optional<int> status, std::string const& error) {
    bool const found_only_memory_gone =
        status == exit_refused && (error.find("grants no such access") != std::string::npos ||
                                   error.find("IBV_WC_REM_OP_ERR") != std::string::npos);
    CHECK((status == exit_peer_gone || found_only_memory_gone));
    CHECK(error.find("the peer") != std::string::npos);
}

std::string pid_of(child_process const& c) { return std::to_string(c.pid()); }

}  // namespace

TEST_CASE("server and client print the output of the blog post line for line", "[demo]") {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"});
    auto const host = GENERATE(device_address(), device_address_v6());
    if (host.empty()) {
        WARN("skipped: the device has no IPv6 address");
        return;
    }
    server s{{mode, "--count", "1"}};
    child_process c = s.client(mode, {}, host);
    CHECK(c.wait() == exit_done);
    CHECK(s.process.wait() == exit_done);
    std::string const doing = mode == "write" ? "writing message to" : "reading message from";
    CHECK(
        c.output_lines() ==
        std::vector<std::string>{
            "address resolved.",
            "route resolved.",
            "send completed successfully.",
            "received MSG_MR. " + doing + " remote memory...",
            "send completed successfully.",
            "send completed successfully.",
            "remote buffer: message from passive/server side with pid " + pid_of(s.process),
            "disconnected."}
    );
    CHECK(
        s.process.output_lines() ==
        std::vector<std::string>{
            "listening on port " + s.port + ".",
            "received connection request.",
            "send completed successfully.",
            "received MSG_MR. " + doing + " remote memory...",
            "send completed successfully.",
            "send completed successfully.",
            "remote buffer: message from active/client side with pid " + pid_of(c),
            "peer disconnected."}
    );
    CHECK(c.error().empty());
    CHECK(s.process.error().empty());
}

TEST_CASE("a hundred clients in turn get their messages, and none meets RNR", "[demo][long]") {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"});
    server s{{mode}};
    std::string const before = resources_of_warm(s, mode);
    long const not_ready = counter("send_rnr_err") + counter("rcvd_rnr_err");
    {
        for (int i = 0; i < 100; ++i) {
            child_process c = s.client(mode);
            REQUIRE(c.wait() == exit_done);
            REQUIRE(
                c.output().find(
                    "remote buffer: message from passive/server side with pid " +
                    pid_of(s.process) + "\n"
                ) != std::string::npos
            );
            REQUIRE(s.process.wait_for_output(
                "remote buffer: message from active/client side with pid " + pid_of(c) + "\n"
            ));
        }
    }
    CHECK(counter("send_rnr_err") + counter("rcvd_rnr_err") == not_ready);
    // Checked while the server runs, to find resources that it did not free.
    CHECK(resources_after(before) == before);
    CHECK_FALSE(s.process.wait(0ms));
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("thirty clients at once get their messages, and nothing is left behind", "[demo][long]") {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"});
    server s{{mode, "--timeout", "60s"}};
    std::string const before = resources_of_warm(s, mode);
    {
        std::vector<child_process> clients;
        for (int i = 0; i < 30; ++i) clients.push_back(s.client(mode, {"--timeout", "60s"}));
        for (child_process& c : clients) {
            auto const status = c.wait();
            INFO(c.error());
            CHECK(status == exit_done);
            CHECK(
                c.output().find("passive/server side with pid " + pid_of(s.process) + "\n") !=
                std::string::npos
            );
        }
        for (child_process& c : clients)
            CHECK(s.process.wait_for_output("with pid " + pid_of(c) + "\n"));
    }
    CHECK(resources_after(before) == before);
    CHECK_FALSE(s.process.wait(0ms));
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == exit_done);
    INFO(s.process.error());
    CHECK(s.process.error().empty());
}

TEST_CASE("the programs obey their options for address, port, count and polling", "[demo]") {
    auto const poll = GENERATE(std::string{"busy"}, std::string{"adaptive"}, std::string{"event"});
    std::string port;
    {
        server any{{"write", "--bind", device_address()}};
        port = any.port;
        any.process.signal(SIGTERM);
        CHECK(any.process.wait() == exit_done);
    }
    server s{{"read", "--bind", device_address(), "--port", port, "--count", "2", "--poll", poll}};
    CHECK(s.port == port);
    child_process c =
        s.client("read", {"--from", device_address(), "--count", "2", "--poll", poll});
    CHECK(c.wait() == exit_done);
    INFO(c.error());
    auto const lines = c.output_lines();
    CHECK(std::count(lines.begin(), lines.end(), "disconnected.") == 2);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("a large region goes over whole", "[demo]") {
    server s{{"write", "--count", "1", "--size", "1048577"}};
    child_process c = s.client("write", {"--size", "1048577"});
    CHECK(c.wait() == exit_done);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("a client that cannot connect prints the reason and the remedy", "[demo]") {
    struct expectation {
        std::string host;
        std::string port;
        std::string text;
    };
    std::vector<expectation> const cases{
        {device_address(), "1", "no program listens there. Start the server"},
        {"127.0.0.1", "1", "not the loopback address"},
        {"10.0.0.99", "1", "ping it"},
        {"203.0.113.1", "1", "No route leads there: check the address"},
    };
    for (expectation const& e : cases) {
        if (e.host != device_address() && e.host != "127.0.0.1" && !has_known_network()) {
            WARN("skipped: " << e.host << " means something in the virtual machine's network only");
            continue;
        }
        child_process c{command("rdma-client", {"write", e.host, e.port})};
        CHECK(c.wait() == exit_could_not_connect);
        INFO(c.error());
        CHECK(c.error().find(e.text) != std::string::npos);
        CHECK(c.error().find(e.host + ":" + e.port) != std::string::npos);
    }
}

TEST_CASE("a client tries the addresses of a name in turn, and a name again", "[demo]") {
    if (!has_known_network()) {
        WARN("skipped: names are made in the virtual machine's network only");
        return;
    }
    // The machine's file is gone with it; this is for the tests that follow.
    std::ifstream present{"/etc/hosts"};
    std::string const before{std::istreambuf_iterator<char>{present}, {}};
    auto const add = [](std::string const& line) {
        std::ofstream{"/etc/hosts", std::ios::app} << line << std::endl;
    };
    // The resolver puts the loopback address first, which RDMA has no route to.
    add("127.0.0.1 several.test");
    add(device_address() + " several.test");
    server s{{"write", "--count", "2"}};
    child_process c{command("rdma-client", {"write", "several.test", s.port})};
    CHECK(c.wait() == exit_done);
    INFO(c.error());
    CHECK(c.error().find("not the loopback address") != std::string::npos);
    child_process late{command("rdma-client", {"write", "late.test", s.port, "--reconnect", "60"})};
    CHECK(late.wait_for_error("unknown host late.test"));
    add("127.0.0.1 late.test");
    add(device_address() + " late.test");
    CHECK(late.wait() == exit_done);
    CHECK(s.process.wait() == exit_done);
    std::ofstream{"/etc/hosts"} << before;
}

TEST_CASE("a client in another mode is refused with the reason, and the server goes on", "[demo]") {
    server s{{"write", "--count", "1"}};
    child_process c = s.client("read");
    CHECK(c.wait() == exit_refused);
    CHECK(c.error().find("another mode") != std::string::npos);
    // The refused client frees its place a moment later.
    s.must_serve("write", {"--reconnect", "20"});
    CHECK(s.process.wait() == exit_done);
    CHECK(s.process.error().find("another mode") != std::string::npos);
}

TEST_CASE("a foreign client is refused, and the server goes on", "[demo]") {
    server s{{"write", "--count", "1"}};
    child_process rping{{"rping", "-c", "-a", device_address(), "-p", s.port, "-C", "1"}};
    rping.wait();
    CHECK(s.process.wait_for_error("speaks another protocol"));
    s.must_serve("write", {"--reconnect", "20"});
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE(
    "a server reports a client that was killed at any step, and serves the next", "[demo][long]"
) {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"});
    for (std::string const at :
         {"connected", "regions-sent", "regions-received", "transferred", "done-sent"}) {
        INFO("killed when " << at);
        server s{{mode, "--count", "2", "--timeout", "5s"}};
        child_process c = s.client(mode, {"--hold-at", at});
        REQUIRE(c.wait_for_error("holding at " + at));
        c.signal(SIGKILL);
        c.wait();
        s.must_serve(mode);
        auto const status = s.process.wait();
        INFO(s.process.error());
        // After its MSG_DONE the client only has to disconnect: the result depends on whether the
        // server's MSG_DONE arrived before the kill.
        if (at == "done-sent" && status == exit_done) continue;
        check_names_killed_peer(status, s.process.error());
    }
}

TEST_CASE("a server killed before it answers leaves a client that could not connect", "[demo]") {
    server s{{"write"}};
    s.process.signal(SIGSTOP);
    child_process c = s.client("write");
    REQUIRE(c.wait_for_output("route resolved."));
    static_cast<void>(c.wait_for_output("never said", 300ms)
    );  // the request is in flight or has arrived
    s.process.signal(SIGKILL);
    CHECK(c.wait() == exit_could_not_connect);
    CHECK(c.error().find("ended before it answered") != std::string::npos);
}

TEST_CASE("a client reports a server that was killed at any step", "[demo][long]") {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"});
    for (std::string const at :
         {"connected", "regions-sent", "regions-received", "transferred", "done-sent"}) {
        INFO("killed when " << at);
        server s{{mode, "--hold-at", at}};
        // The reason is the killed peer, not the deadline.
        child_process c = s.client(mode, {"--timeout", "60s"});
        REQUIRE(s.process.wait_for_error("holding at " + at));
        s.process.signal(SIGKILL);
        auto const status = c.wait();
        INFO(c.error());
        if (at == "done-sent" && status == exit_done) continue;  // as above
        check_names_killed_peer(status, c.error());
    }
}

TEST_CASE("a silent peer ends the wait at the deadline", "[demo]") {
    SECTION("a server stopped before it accepts") {
        server s{{"write"}};
        s.process.signal(SIGSTOP);
        child_process c = s.client("write", {"--timeout", "1s"});
        CHECK(c.wait() == exit_deadline_passed);
        CHECK(c.error().find("connect") != std::string::npos);
    }
    SECTION("a server that holds in the middle") {
        server s{{"write", "--hold-at", "connected"}};
        child_process c = s.client("write", {"--timeout", "1s"});
        CHECK(c.wait() == exit_deadline_passed);
    }
    SECTION("a client that holds in the middle") {
        server s{{"write", "--count", "1", "--timeout", "1s"}};
        child_process c = s.client("write", {"--hold-at", "regions-sent"});
        CHECK(s.process.wait() == exit_deadline_passed);
        CHECK(c.wait() == exit_peer_gone);
    }
}

TEST_CASE("clients killed while they connect do the server no harm", "[demo]") {
    server s{{"write"}};
    std::mt19937 random{7};
    for (int i = 0; i < 20; ++i) {
        child_process c = s.client("write");
        static_cast<void>(c.wait_for_output("never said", std::chrono::milliseconds{random() % 120})
        );
        c.signal(SIGKILL);
        c.wait();
    }
    s.must_serve("write");
    CHECK_FALSE(s.process.wait(0ms));
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("a message that was damaged does not verify", "[demo]") {
    server s{{"write", "--count", "1"}};
    child_process c = s.client("write", {"--corrupt"});
    CHECK(c.wait() == exit_done);
    CHECK(s.process.wait() == exit_not_verified);
    CHECK(s.process.error().find("checksum") != std::string::npos);
}

TEST_CASE(
    "eight clients add a thousand times each, and the server counts eight thousand", "[demo]"
) {
    server s{{"atomic", "--count", "8", "--timeout", "60s"}};
    std::vector<child_process> clients;
    for (int i = 0; i < 8; ++i)
        clients.push_back(
            s.client("atomic", {"--count", "1000", "--updates", "10", "--timeout", "60s"})
        );
    for (child_process& c : clients) {
        auto const status = c.wait();
        INFO(c.output() << c.error());
        CHECK(status == exit_done);
        CHECK(c.output().find("added 1 x 1000; the counter was ") != std::string::npos);
        CHECK(c.output().find("changed the record x 10 under the lock") != std::string::npos);
    }
    CHECK(s.process.wait() == exit_done);
    std::vector<std::string> const lines = s.process.output_lines();
    REQUIRE(lines.size() > 2);
    CHECK(lines[lines.size() - 2] == "counter: 8000");
    CHECK(lines.back() == "record: changed 80 times.");
}

TEST_CASE("a client prints the values of the counter, and adds the given number", "[demo]") {
    server s{{"atomic", "--count", "2"}};
    child_process first = s.client("atomic", {"--count", "3", "--add", "5", "--updates", "0"});
    CHECK(first.wait() == exit_done);
    CHECK(
        first.output_lines() ==
        std::vector<std::string>{
            "address resolved.",
            "route resolved.",
            "received MSG_MR. adding to the remote counter...",
            "added 5 x 3; the counter was 0 before the first and 10 before the last.",
            "disconnected."}
    );
    child_process second = s.client("atomic", {});
    CHECK(second.wait() == exit_done);
    CHECK(
        second.output().find("added 1 x 1; the counter was 15 before the first") !=
        std::string::npos
    );
    CHECK(
        second.output().find(
            "changed the record x 1 under the lock, taken in 1 attempts; it was at 0"
        ) != std::string::npos
    );
    CHECK(s.process.wait() == exit_done);
    CHECK(s.process.output().find("counter: 16\n") != std::string::npos);
}

TEST_CASE("the lock of a client that was killed is given back", "[demo]") {
    server s{{"atomic"}};
    child_process holder = s.client("atomic", {"--hold-at", "locked"});
    REQUIRE(holder.wait_for_error("holding at locked."));
    // While it is held, no other client gets it.
    child_process impatient = s.client("atomic", {"--timeout", "300ms"});
    CHECK(impatient.wait() == exit_deadline_passed);
    holder.signal(SIGKILL);
    holder.wait();
    child_process next = s.client("atomic");
    auto const status = next.wait();
    INFO(next.error());
    CHECK(status == exit_done);
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == exit_done);
    CHECK(s.process.output().find("record: changed 1 times.") != std::string::npos);
}

TEST_CASE("a full server rejects a client as busy, and serves the next", "[demo]") {
    auto const option = GENERATE(std::string{"--max-clients"}, std::string{"--max-per-address"});
    server s{{"write", option, "2"}};
    child_process first = s.client("write", {"--hold-at", "connected"});
    child_process second = s.client("write", {"--hold-at", "connected"});
    REQUIRE(first.wait_for_error("holding"));
    REQUIRE(second.wait_for_error("holding"));
    child_process third = s.client("write");
    CHECK(third.wait() == exit_refused);
    CHECK(third.error().find("as many connections as it allows") != std::string::npos);
    first.signal(SIGKILL);
    first.wait();
    REQUIRE(s.process.wait_for_error("peer left before"));
    s.must_serve("write");
}

TEST_CASE(
    "fifty silent clients are dropped at the deadline, and nothing of them is left in the server",
    "[demo]"
) {
    // A process with a sanitizer needs much memory.
    constexpr int count = slowness > 1 ? 10 : 50;
    server s{{"write", "--timeout", "3s"}};
    std::string const before = resources_of_warm(s, "write");
    {
        std::vector<std::unique_ptr<child_process>> silent;
        for (int i = 0; i < count; ++i) {
            silent.push_back(std::make_unique<child_process>(
                s.client("write", {"--hold-at", "connected", "--timeout", "60s"})
            ));
            if (i % 10 == 9) REQUIRE(silent.back()->wait_for_error("holding"));
        }
        for (auto const& c : silent) {
            auto const status = c->wait();
            REQUIRE(status.has_value());
        }
    }
    CHECK(resources_after(before) == before);
    s.must_serve("write");
}

TEST_CASE(
    "a client that reconnects goes on across a server that was killed and started again", "[demo]"
) {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"});
    std::optional<server> s;
    s.emplace(std::vector<std::string>{mode});
    std::string const port = s->port;
    child_process c = s->client(mode, {"--count", "12", "--reconnect", "50", "--timeout", "5s"});
    auto const exchanges = [&] {
        auto const lines = c.output_lines();
        return std::ranges::count(lines, std::string{"disconnected."});
    };
    for (int i = 0; i < 2000 && exchanges() < 3; ++i) static_cast<void>(c.wait(10ms));
    REQUIRE(exchanges() >= 3);
    s->process.signal(SIGKILL);
    s->process.wait();
    s.reset();
    s.emplace(std::vector<std::string>{mode, "--port", port});
    auto const status = c.wait();
    INFO(c.error());
    CHECK(status == exit_done);
    CHECK(exchanges() == 12);
}

TEST_CASE("a client that reconnects gives up after as many attempts as it was told", "[demo]") {
    server s{{"write", "--count", "1"}};
    child_process c = s.client("write", {"--count", "2", "--reconnect", "3"});
    auto const status = c.wait();
    INFO(c.error());
    // The server refuses the second exchange until it has ended.
    CHECK((status == exit_could_not_connect || status == exit_refused));
    CHECK(std::ranges::count(c.output_lines(), std::string{"disconnected."}) == 1);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("a server serves as many clients as --count says and refuses all others", "[demo]") {
    auto const mode = GENERATE(std::string{"write"}, std::string{"read"}, std::string{"atomic"});
    INFO(mode);
    server s{{mode, "--count", "2"}};
    {
        // A client that is refused as it is admitted frees its place, a moment later.
        child_process stranger = s.client(mode == "write" ? "read" : "write");
        CHECK(stranger.wait() == exit_refused);
    }
    child_process first = s.client(mode, {"--hold-at", "connected"});
    REQUIRE(first.wait_for_error("holding at connected"));
    std::vector<std::unique_ptr<child_process>> clients;
    for (int i = 0; i < 4; ++i)
        clients.push_back(std::make_unique<child_process>(s.client(mode, {"--reconnect", "3"})));
    int served = 0;
    for (auto const& c : clients) {
        auto const status = c->wait();
        INFO(c->error());
        if (status == exit_done) ++served;
        else {
            CHECK(status == exit_refused);
            CHECK(c->error().find("as many connections as it allows") != std::string::npos);
        }
    }
    CHECK(served == 1);
    CHECK(s.process.wait_for_error("2 were to be served (--count)"));
    first.signal(SIGKILL);
    first.wait();
    s.process.wait();
    auto const lines = s.process.output_lines();
    CHECK(std::ranges::count(lines, std::string{"received connection request."}) == 3);
}
