// rdma-server with a termination signal: the exchanges under way, its output and its exit code, for
// each step, both signals, once and twice.
#include <csignal>

#include <memory>

#include "device/programs.hpp"

using namespace test;

namespace {

/// The line that a server prints if one exchange was incomplete when it ended.
std::string const incomplete_one = "rdma-server: ended before 1 exchange was complete\n";

std::string const steps[] = {
    "connected", "regions-sent", "regions-received", "transferred", "done-sent"};

}  // namespace

TEST_CASE("after a signal a server lets running exchanges finish and exits with 0", "[demo]") {
    auto const signal = GENERATE(SIGTERM, SIGINT);
    {
        server idle{{"write"}};
        idle.process.signal(signal);
        CHECK(idle.process.wait() == exit_done);
    }
    server s{{"read", "--timeout", "20s"}};
    // Stopped during its exchange, and continued after the server received the signal.
    child_process c = s.client("read", {"--timeout", "20s"});
    REQUIRE(c.wait_for_output("route resolved."));
    // Lets the client run in small steps until the server has its request.
    for (int i = 0; i < 1000 && !s.process.wait_for_output("received connection request.", 2ms);
         ++i) {
        c.signal(SIGCONT);
        static_cast<void>(s.process.wait_for_output("received connection request.", 2ms));
        c.signal(SIGSTOP);
    }
    REQUIRE(s.process.wait_for_output("received connection request."));
    s.process.signal(signal);
    c.signal(SIGCONT);
    CHECK(c.wait() == exit_done);
    CHECK(s.process.wait() == exit_done);
}

TEST_CASE("after a signal a server waits for an exchange that hangs, and exits with 4", "[demo]") {
    auto const signal = GENERATE(SIGTERM, SIGINT);
    for (std::string const& step : steps) {
        INFO(step);
        server s{{"write", "--timeout", "1s"}};
        child_process c = s.client("write", {"--hold-at", step, "--timeout", "60s"});
        REQUIRE(c.wait_for_error("holding"));
        s.process.signal(signal);
        CHECK(s.process.wait() == exit_deadline_passed);
        INFO(s.process.error());
        CHECK(s.process.error().ends_with(incomplete_one));
        // A client that has sent MSG_DONE and received the server's has completed its exchange.
        auto const client_status = c.wait();
        CHECK((client_status == exit_done) == (step == "done-sent"));
    }
}

TEST_CASE(
    "after a second signal a server disconnects an exchange that hangs at once, and exits with 4",
    "[demo]"
) {
    auto const first = GENERATE(SIGTERM, SIGINT);
    auto const second = GENERATE(SIGTERM, SIGINT);
    for (std::string const& step : steps) {
        INFO(step);
        server s{{"write", "--timeout", "60s"}};
        child_process c = s.client("write", {"--hold-at", step, "--timeout", "60s"});
        REQUIRE(c.wait_for_error("holding"));
        s.process.signal(first);
        // A closed port shows that the server has handled the first signal; the second must not be
        // merged with it.
        child_process late = s.client("write");
        for (int i = 0; i < 100 && late.wait() == exit_done; ++i) late = s.client("write");
        s.process.signal(second);
        CHECK(s.process.wait() == exit_deadline_passed);
        INFO(s.process.error());
        CHECK(s.process.error() == incomplete_one);
        // A client that has sent MSG_DONE and received the server's has completed its exchange.
        auto const client_status = c.wait();
        CHECK((client_status == exit_done) == (step == "done-sent"));
    }
}

TEST_CASE("after a signal a server does not count killed clients as complete", "[demo]") {
    server s{{"write"}};
    std::vector<std::unique_ptr<child_process>> clients;
    for (int i = 0; i < 3; ++i) {
        clients.push_back(
            std::make_unique<child_process>(s.client("write", {"--hold-at", "connected"}))
        );
        REQUIRE(clients.back()->wait_for_error("holding"));
    }
    s.process.signal(SIGTERM);
    // The server has taken the signal once nothing listens any more.
    int late_status = exit_done;
    for (int i = 0; i < 600 && late_status == exit_done; ++i)
        late_status = s.client("write").wait().value_or(-1);
    CHECK(late_status == exit_could_not_connect);
    // The server waits for these clients; they are killed.
    for (auto const& c : clients) {
        c->signal(SIGKILL);
        c->wait();
    }
    CHECK(s.process.wait() == exit_deadline_passed);
    CHECK(s.process.error().ends_with("rdma-server: ended before 3 exchanges were complete\n"));
}
