// The programs with few descriptors, little lockable memory and no threads: they report the failure
// once, in plain words, and continue to serve existing clients.
#include <csignal>

#include <memory>

#include "device/limited.hpp"
#include "hostile/peer.hpp"

using namespace test;

namespace {

std::string port_of(child_process& process) {
    REQUIRE(process.wait_for_output(".\n"));
    std::string const before = "listening on port ";
    std::string const& out = process.output();
    return out.substr(before.size(), out.find('.') - before.size());
}

std::optional<int> exchange(std::string const& port) {
    child_process c{command("rdma-client", {"write", device_address(), port, "--timeout", "10s"})};
    return c.wait();
}

/// Clients that request a connection and then send nothing more.
std::vector<std::unique_ptr<hostile::peer>> half_open(std::string const& port, int count) {
    std::vector<std::unique_ptr<hostile::peer>> all;
    hostile::hello h;
    h.mode = 1;
    for (int i = 0; i < count; ++i) {
        all.push_back(std::make_unique<hostile::peer>());
        all.back()->approach(device_address(), static_cast<std::uint16_t>(std::stoi(port)));
        all.back()->ask(h.encoded());
    }
    return all;
}

}  // namespace

TEST_CASE(
    "a server with few descriptors outlives more half-open clients than it has descriptors for",
    "[hostile]"
) {
    std::string const limit = GENERATE(std::string{"-n 64"}, std::string{"-n 28"});
    child_process s = limited(limit, "rdma-server", {"write", "--timeout", "2s"});
    std::string const port = port_of(s);
    {
        auto const silent = half_open(port, 30);
        CHECK(s.wait_for_error("busy: refused"));
        CHECK_FALSE(s.wait(2500ms));
    }
    std::string const said = s.error();
    CHECK(said.find("busy: refused") == said.rfind("busy: refused"));
    CHECK(said.find("ulimit -n") != std::string::npos);
    CHECK(exchange(port) == exit_done);
    s.signal(SIGTERM);
    CHECK(s.wait().has_value());
}

TEST_CASE("a server with a limit of clients above its descriptors keeps running", "[hostile]") {
    child_process s =
        limited("-n 40", "rdma-server", {"write", "--timeout", "2s", "--max-clients", "0"});
    std::string const port = port_of(s);
    {
        auto const silent = half_open(port, 30);
        CHECK_FALSE(s.wait(3s));
    }
    for (int i = 0; i < 200 && exchange(port) != exit_done; ++i) std::this_thread::sleep_for(200ms);
    CHECK(exchange(port) == exit_done);
    INFO(s.error());
    CHECK(s.error().find("ulimit -n") != std::string::npos);
    s.signal(SIGTERM);
    CHECK(s.wait().has_value());
}

TEST_CASE("a client with too few descriptors prints the limit", "[hostile]") {
    server s{{"write"}};
    for (std::string const count : {"6", "7", "8", "9", "10", "11", "12"}) {
        child_process c =
            limited("-n " + count, "rdma-client", {"write", device_address(), s.port});
        auto const status = c.wait();
        INFO(count << " descriptors: " << c.error());
        REQUIRE(status.has_value());
        CHECK(*status < 128);
        if (*status != exit_done) {
            CHECK(c.error().find("ulimit -n") != std::string::npos);
            CHECK(c.error().find("modprobe") == std::string::npos);
        }
    }
    s.must_serve("write");
}

TEST_CASE(
    "a server with too few descriptors prints that instead of refusing all clients silently",
    "[hostile]"
) {
    for (std::string const count : {"8", "9", "10", "11", "12", "13", "14", "16", "20"}) {
        child_process s =
            limited("-n " + count, "rdma-server", {"write", "--count", "1", "--timeout", "5s"});
        INFO(count << " descriptors");
        if (!s.wait_for_output(".\n")) {
            CHECK(s.wait() == exit_could_not_connect);
            INFO(s.error());
            CHECK(s.error().find("ulimit -n") != std::string::npos);
            continue;
        }
        auto const status = exchange(port_of(s));
        if (status != exit_done) {
            INFO(s.error());
            CHECK(s.wait_for_error("ulimit -n"));
            // A server that has served its client ends by itself.
            s.signal(SIGTERM);
        }
        auto const ended = s.wait();
        REQUIRE(ended.has_value());
        CHECK(*ended < 128);
    }
}

TEST_CASE(
    "too little lockable memory is named, and what there is serves as many as it can", "[hostile]"
) {
    for (std::string const kib : {"0", "16", "64"}) {
        child_process s = limited("-l " + kib, "rdma-server", {"write", "--timeout", "2s"}, true);
        INFO(kib << " KiB");
        std::string const port = port_of(s);
        {
            auto const silent = half_open(port, 6);
            CHECK_FALSE(s.wait(2500ms));
        }
        auto const status = exchange(port);
        if (status != exit_done) {
            INFO(s.error());
            CHECK(s.error().find("ulimit -l") != std::string::npos);
        }
        s.signal(SIGTERM);
        auto const ended = s.wait();
        REQUIRE(ended.has_value());
        CHECK(*ended < 128);
    }
    server s{{"write"}};
    child_process c = limited("-l 0", "rdma-client", {"write", device_address(), s.port}, true);
    CHECK(c.wait() != exit_done);
    CHECK(c.error().find("ulimit -l") != std::string::npos);
    s.must_serve("write");
}

TEST_CASE("a server that may start no thread prints the limit", "[hostile]") {
    child_process s = limited("-u 1", "rdma-server", {"write", "--timeout", "2s"}, true);
    std::string const port = port_of(s);
    CHECK(exchange(port) != exit_done);
    CHECK(s.wait_for_error("ulimit -u"));
    s.signal(SIGTERM);
    auto const ended = s.wait();
    REQUIRE(ended.has_value());
    CHECK(*ended < 128);
}
