// rdma-copy with many clients, few descriptors and little lockable memory.
#include <csignal>
#include <memory>
#include <optional>

#include <boost/asio/detached.hpp>

#include "device/copy_programs.hpp"
#include "device/limited.hpp"

using namespace test;

namespace {

std::uint16_t number_of(std::string const& port) {
    return static_cast<std::uint16_t>(std::stoi(port));
}

std::string served_port(child_process& server) {
    REQUIRE(server.wait_for_output(".\n"));
    std::string const before = "listening on port ";
    return server.output().substr(before.size(), server.output().find('.') - before.size());
}

/// A client of a server with these limits.
child_process copy_from(std::string const& limit, std::vector<std::string> arguments) {
    return limited(limit, "rdma-copy", std::move(arguments), true);
}

}  // namespace

TEST_CASE("rdma-copy: 300 clients at once, of which none says anything, are left", "[hostile]") {
    folder here;
    folder there;
    write_large(here / "file", 1'000'000, 1);
    copy_server s{
        there / "", {"--timeout", "2s", "--statistics", (here / "socket").string(), "--quiet"}};
    constexpr std::size_t clients = 300;
    std::size_t connected = 0;
    std::size_t refused = 0;
    {
        asio::io_context io;
        std::vector<std::unique_ptr<copy::link>> all;
        for (std::size_t i = 0; i < clients; ++i)
            all.push_back(std::make_unique<copy::link>(io, copy::link_options{4096, 60s}));
        auto const come = [&](copy::link& l) -> asio::awaitable<void> {
            try {
                co_await l.connect({device_address(), number_of(s.port)});
                ++connected;
                for (;;) co_await l.receive();
            } catch (boost::system::system_error const&) {
                ++refused;
            }
            l.close();
        };
        for (auto const& l : all) asio::co_spawn(io, come(*l), asio::detached);
        io.run();
    }
    // Each has ended: it was refused, or left after two seconds.
    CHECK(refused == clients);
    CHECK(connected > 0);
    CHECK(connected < clients);
    child_process c = s.client({(here / "file").string(), s.place("")});
    CHECK(c.wait() == 0);
    CHECK((content(here / "file") == content(there / "file")));
    std::string const metrics = answer_to_get((here / "socket").string(), "/metrics");
    CHECK(has_text(metrics, "rdma_copy_clients 0\n"));
    CHECK_FALSE(has_text(metrics, "rdma_copy_refused_clients_total 0\n"));
}

TEST_CASE(
    "rdma-copy: clients that hold all files they may leave descriptors for another", "[hostile]"
) {
    folder here;
    folder there;
    for (int i = 0; i < 30; ++i)
        write_large(here / std::to_string(i), 10'000, static_cast<unsigned>(i));
    std::vector<std::string> const arguments{
        "serve", there.string(), "--port", "0", "--timeout", "60s", "--max-per-address", "16"};
    child_process server = limited("-n 1024", "rdma-copy", arguments);
    std::string const port = served_port(server);
    asio::io_context io;
    constexpr std::size_t hoarders = 15;
    std::vector<std::unique_ptr<copy::link>> all;
    for (std::size_t i = 0; i < hoarders; ++i)
        all.push_back(std::make_unique<copy::link>(io, copy::link_options{4096, 60s}));
    std::size_t held = 0;
    auto const hold = [&](copy::link& l, std::size_t number) -> asio::awaitable<void> {
        co_await l.connect({device_address(), number_of(port)});
        l.send(copy::hello{});
        for (std::uint64_t i = 0; i < copy::receiver::files_max; ++i) {
            copy::entry e;
            e.file = i;
            e.name = std::to_string(number) + '.' + std::to_string(i);
            e.size = copy::resume_bytes_min;
            e.is_sparse = true;
            l.send(e);
        }
        for (std::size_t begun = 0; begun < copy::receiver::files_max;) {
            copy::copy_message const m = co_await l.receive();
            CHECK_FALSE(std::holds_alternative<copy::abort_file>(m));
            if (std::holds_alternative<copy::begin>(m)) ++begun;
        }
        ++held;
    };
    for (std::size_t i = 0; i < hoarders; ++i) asio::co_spawn(io, hold(*all[i], i), asio::detached);
    while (held < hoarders && io.run_one() > 0) {}
    REQUIRE(held == hoarders);
    child_process c{
        command("rdma-copy", {here.string(), device_address() + ":other", "--port", port})};
    CHECK(c.wait() == 0);
    INFO(c.error());
    CHECK(listing(here / "") == listing(there / "other"));
    for (auto const& l : all) l->close();
    io.run();
    server.signal(SIGTERM);
    CHECK(server.wait() == 0);
}

TEST_CASE("rdma-copy: sources of one directory need no descriptor each", "[hostile]") {
    folder here;
    folder there;
    copy_server s{there / "", {"--quiet"}};
    std::vector<std::string> arguments;
    for (int i = 0; i < 300; ++i) {
        std::string const name = std::to_string(i);
        write_large(here / name, 10, static_cast<unsigned>(i));
        arguments.push_back((here / name).string());
    }
    for (std::string const& word : {s.place(""), std::string{"--port"}, s.port})
        arguments.push_back(word);
    child_process c = limited("-n 128", "rdma-copy", arguments);
    CHECK(c.wait() == 0);
    INFO(c.error());
    CHECK(listing(here / "") == listing(there / ""));
}

TEST_CASE("rdma-copy: a limit for the size of files is an error of those above it", "[hostile]") {
    folder here;
    folder there;
    write_large(here / "large", 5'000'000, 1);
    write_large(here / "small", 10'000, 1);
    std::vector<std::string> const arguments{"serve", there.string(), "--port", "0"};
    child_process server = limited("-f 1024", "rdma-copy", arguments);
    std::string const port = served_port(server);
    child_process c{command(
        "rdma-copy",
        {(here / "large").string(),
         (here / "small").string(),
         device_address() + ":",
         "--port",
         port}
    )};
    CHECK(c.wait() == 1);
    CHECK(has_text(c.error(), "large: at the target: File too large"));
    CHECK(listing(there / "").size() == 1);
    CHECK((content(here / "small") == content(there / "small")));
    server.signal(SIGTERM);
    CHECK(server.wait() == 0);
}

TEST_CASE(
    "rdma-copy: a directory that cannot be searched is not taken for an empty one", "[hostile]"
) {
    if (::geteuid() != 0) {
        WARN("skipped: only root runs programs as somebody else");
        return;
    }
    folder here;
    folder there;
    fs::permissions(here / "", fs::perms{0755});
    fs::create_directories(here / "tree/closed");
    write_file(here / "tree/closed/file", pattern(10, 1));
    fs::permissions(here / "tree/closed", fs::perms{0644});
    copy_server s{there / ""};
    child_process c =
        copy_from("-l 8192", {(here / "tree").string(), s.place(""), "--port", s.port});
    CHECK(c.wait() == 1);
    CHECK(has_text(c.error(), "tree/closed/file: Permission denied"));
    CHECK(s.process.wait_for_error("tree/closed/file: at the source: Permission denied"));
}

TEST_CASE("rdma-copy: a client with any number of errors gets a thousand lines", "[hostile]") {
    constexpr std::size_t errors = 3000;
    folder there;
    copy_server s{there / ""};
    asio::io_context io;
    copy::link l{io, copy::link_options{4096, 60s}};
    test::run(io, [&]() -> asio::awaitable<void> {
        co_await l.connect({device_address(), number_of(s.port)});
        l.send(copy::hello{});
        for (std::size_t i = 0; i < errors; ++i) {
            co_await l.wait_for_room();
            l.send(copy::skipped{EIO, std::to_string(i)});
        }
        l.send(copy::finished{});
        for (bool is_over = false; !is_over;) {
            copy::copy_message const m = co_await l.receive();
            is_over = std::holds_alternative<copy::finished>(m);
        }
        co_await l.finish();
    });
    l.close();
    CHECK(s.process.wait_for_error(": 2000 more entries failed\n"));
    CHECK(std::ranges::count(s.process.error(), '\n') == 1001);
}

TEST_CASE("rdma-copy: who may lock little memory copies, or is told the limit", "[hostile]") {
    if (::geteuid() != 0) {
        WARN("skipped: only root runs programs as somebody else");
        return;
    }
    folder here;
    folder there;
    fs::permissions(here / "", fs::perms{0755});
    write_large(here / "file", 3'000'000, 1);
    copy_server const s{there / ""};
    for (std::string const kib : {"0", "16", "64", "128", "256", "512", "1024", "8192"}) {
        CAPTURE(kib);
        child_process c = copy_from(
            "-l " + kib, {(here / "file").string(), s.place("copy"), "--force", "--port", s.port}
        );
        auto const status = c.wait();
        INFO(c.error());
        if (std::stoi(kib) >= 256) {
            CHECK(status == 0);
            CHECK((content(here / "file") == content(there / "copy")));
            fs::remove(there / "copy");
        } else {
            CHECK(status == 2);
            CHECK(has_text(c.error(), "ulimit -l"));
        }
    }
}
