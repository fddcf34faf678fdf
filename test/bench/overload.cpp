// overload_bench — loads rdma-server write with many clients, and counts the completed exchanges.
//
// Each client repeats visits to the server: it connects, exchanges keys, writes its message, and
// finishes. A visit that fails, because of a deadline or a busy server, counts as failed and is
// repeated after a pause. All clients share one thread, which leaves the other processors to the
// server.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include <rcverbs/rcverbs.hpp>

#include "common/message_frame.hpp"
#include "bench/optimised.hpp"

namespace {

namespace asio = boost::asio;
using clock_type = std::chrono::steady_clock;
using asio::use_awaitable;

constexpr std::uint32_t write_mode = 1;
constexpr std::size_t region_bytes = 1024;

struct load {
    rcverbs::endpoint server;
    std::chrono::milliseconds patience;
    clock_type::time_point ends;
    std::uint64_t completed = 0;
    std::uint64_t failed = 0;
};

asio::awaitable<void> exchange(asio::io_context& io, load const& l) {
    rcverbs::poller const where =
        rcverbs::poller::on(io, {.polling = {.mode = rcverbs::poll_mode::event}});
    rcverbs::connection_options options;
    options.timeouts.connect = l.patience;
    rcverbs::session_options terms{write_mode, l.patience, l.patience};
    rcverbs::session s{rcverbs::connection{where, options}, terms};
    co_await s.async_connect(l.server, use_awaitable);
    rcverbs::connection& c = s.next_layer();
    rcverbs::registered_buffer outbox{c.domain(), region_bytes, rcverbs::access_flags::local_read};
    rcverbs::registered_buffer inbox{c.domain(), region_bytes, rcverbs::access_flags::remote_write};
    demo::write_frame(outbox.bytes(), "message from the benchmark");
    std::vector<rcverbs::named_region> const own{{"message", inbox}};
    rcverbs::peer_regions const theirs = co_await s.async_exchange(own, use_awaitable);
    co_await c.async_write(outbox.slice(), theirs[0].slice(0, region_bytes), use_awaitable);
    co_await s.async_finish(use_awaitable);
}

asio::awaitable<void> visit(asio::io_context& io, load& l) {
    while (clock_type::now() < l.ends) {
        bool is_done = false;
        try {
            co_await exchange(io, l);
            is_done = true;
        } catch (std::exception const&) {}
        if (clock_type::now() >= l.ends) co_return;
        ++(is_done ? l.completed : l.failed);
        if (is_done) continue;
        asio::steady_timer pause{io, std::chrono::milliseconds{50}};
        co_await pause.async_wait(use_awaitable);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    std::string host;
    std::uint16_t port = 0;
    std::size_t clients = 1;
    unsigned seconds = 5;
    unsigned patience_ms = 2000;
    CLI::App app{
        "Visits rdma-server write with many clients at once, and counts the exchanges that it "
        "completes."};
    app.add_option("host", host, "the server's address")->required();
    app.add_option("port", port, "the server's port")->required();
    app.add_option("--clients", clients, "clients at once");
    app.add_option("--seconds", seconds, "how long");
    app.add_option(
        "--patience", patience_ms, "how long a client waits for each answer, in milliseconds"
    );
    CLI11_PARSE(app, argc, argv);
    asio::io_context io;
    load l{
        {host, port},
        std::chrono::milliseconds{patience_ms},
        clock_type::now() + std::chrono::seconds{seconds}};
    for (std::size_t i = 0; i < clients; ++i) asio::co_spawn(io, visit(io, l), asio::detached);
    io.run();
    std::printf(
        "%zu %llu %llu\n",
        clients,
        static_cast<unsigned long long>(l.completed),
        static_cast<unsigned long long>(l.failed)
    );
    return l.completed > 0 ? 0 : 1;
}
