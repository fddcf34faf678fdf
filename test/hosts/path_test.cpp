// Two devices with a real packet path between them, on which packets are lost, links go down, and nobody answers.
//
// Runs in the virtual machine with --topology pair: 10.0.0.1 on link v0, 10.0.1.1 on v1.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace rcverbs;
using namespace test;

namespace {

void must(std::string const& command) {
    INFO(command);
    REQUIRE(std::system(command.c_str()) == 0);
}

/// What netem does to the packets that leave through the servers' link, as long as this lives.
class disturbance {
public:
    explicit disturbance(std::string const& what) { must("tc qdisc add dev v1 root netem " + what); }
    ~disturbance() { static_cast<void>(std::system("tc qdisc del dev v1 root")); }
    disturbance(disturbance const&) = delete;
    disturbance& operator=(disturbance const&) = delete;
};

asio::awaitable<test::pair> meet(asio::io_context& io, connection_options const& options) {
    acceptor_options accepting;
    accepting.connection = options;
    acceptor a{io, {"10.0.1.1", 0}, accepting};
    connection client{io, options};
    connection server =
        co_await (a.async_accept(asio::use_awaitable) && client.async_connect(a.local(), asio::use_awaitable));
    co_return test::pair{std::move(client), std::move(server)};
}

connection_options hasty() {
    connection_options o;
    o.ack_timeout = 67ms;  // 2^14 x 4.096 us
    o.retry_count = 3;
    return o;
}

}  // namespace

TEST_CASE("a black hole is noticed as fast as the options say", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io, hasty());
        buffer ours{p.client.domain(), 4096, access_flags::local_write};
        buffer theirs{p.server.domain(), 4096, access_flags::remote_write};
        disturbance const hole{"loss 100%"};
        auto const began = std::chrono::steady_clock::now();
        auto [ec, n] = co_await p.client.async_write(ours.slice(), theirs.remote(), awaiting);
        CHECK(ec == wc_errc::retry_exceeded);
        CHECK(n == 0);
        // Four tries of 67 ms.
        CHECK(std::chrono::steady_clock::now() - began < 1s * slowness);
        CHECK(p.client.reason() == close_reason::transport_error);
        p.server.close();
    });
}

TEST_CASE("connecting into a black hole ends with the deadline", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {"10.0.1.1", 0}};
        connection_options options;
        options.connect_deadline = 500ms;
        connection c{io, options};
        disturbance const hole{"loss 100%"};
        auto const began = std::chrono::steady_clock::now();
        auto [ec] = co_await c.async_connect(a.local(), awaiting);
        CHECK(ec == errc::timed_out);
        CHECK(c.last_failure().where == step::connect);
        CHECK(std::chrono::steady_clock::now() - began < 1500ms * slowness);
    });
}

TEST_CASE("a path that loses packets carries everything all the same", "[hosts]") {
    asio::io_context io;
    connection_options options;
    options.ack_timeout = 17ms;
    options.retry_count = 6;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io, options);
        constexpr std::size_t size = 65536;
        buffer ours{p.client.domain(), size, access_flags::local_write};
        buffer theirs{p.server.domain(), size, access_flags::remote_write | access_flags::remote_read};
        disturbance const lossy{"loss 1%"};
        for (int round = 0; round < 10; ++round) {
            for (std::size_t i = 0; i < size; ++i) ours.bytes()[i] = static_cast<std::byte>(i * 13 + static_cast<std::size_t>(round));
            std::vector<std::byte> const sent{ours.bytes().begin(), ours.bytes().end()};
            co_await p.client.async_write(ours.slice(), theirs.remote(), asio::use_awaitable);
            CHECK(std::ranges::equal(theirs.bytes(), sent));
            std::ranges::fill(ours.bytes(), std::byte{0});
            co_await p.client.async_read(theirs.remote(), ours.slice(), asio::use_awaitable);
            CHECK(std::ranges::equal(ours.bytes(), sent));
        }
        p.client.close();
        p.server.close();
    });
}

TEST_CASE("a client whose server falls into a black hole ends with its code", "[hosts]") {
    auto const beside = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    child_process server{{beside / "rdma-server", "write", "--bind", "10.0.1.1", "--hold-at", "connected"}};
    REQUIRE(server.wait_for_output(".\n"));
    std::string const before = "listening on port ";
    std::string const port = server.output().substr(before.size(), server.output().find('.') - before.size());
    child_process client{{beside / "rdma-client", "write", "10.0.1.1", port, "--timeout", "2s"}};
    REQUIRE(client.wait_for_output("send completed successfully."));
    disturbance const hole{"loss 100%"};
    CHECK(client.wait(20s) == 4);  // a deadline passed
    CHECK(client.error().find("deadline") != std::string::npos);
}

TEST_CASE("a link that goes down breaks what is posted", "[hosts]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await meet(io, hasty());
        buffer ours{p.client.domain(), 4096, access_flags::local_write};
        buffer theirs{p.server.domain(), 4096, access_flags::remote_write};
        must("ip link set v1 down");
        auto [ec, n] = co_await p.client.async_write(ours.slice(), theirs.remote(), awaiting);
        must("ip link set v1 up");
        CHECK(ec.category() == work_completion_category());
        CHECK(n == 0);
        p.client.close();
        p.server.close();
    });
}
