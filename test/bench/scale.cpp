// scale.cpp [COUNT…]: what one process and one poller spend on so many connections, on the fabric, with
// both sides in the process. Processor time contains the fabric's. Prints a table.
#include <malloc.h>
#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include <rcverbs/fabric.hpp>
#include <rcverbs/rcverbs.hpp>

#include "bench/optimised.hpp"

namespace asio = boost::asio;
using namespace rcverbs;

namespace {

constexpr std::size_t block_bytes = 64;

double processor_us() {
    rusage u{};
    ::getrusage(RUSAGE_SELF, &u);
    auto const us = [](timeval t) {
        return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec);
    };
    return us(u.ru_utime) + us(u.ru_stime);
}

double heap_bytes() { return static_cast<double>(::mallinfo2().uordblks); }

long descriptors() {
    return std::distance(std::filesystem::directory_iterator{"/proc/self/fd"}, {});
}

connection_options options() {
    connection_options o;
    o.placement.domain = domain_sharing::shared;
    return o;
}

struct row {
    double open_us = 0;
    double heap_bytes = 0;
    double descriptors = 0;
    double write_us = 0;
    double close_us = 0;
};

asio::awaitable<void> measure(asio::io_context& io, std::size_t count, row& all) {
    poller const p = poller::on(io, {.polling = {.mode = poll_mode::event}});
    acceptor_options limits;
    limits.connections_max = limits.connections_per_address_max = count + 1;
    limits.connection = options();
    acceptor a{p, {"10.0.1.1", 0}, limits};
    std::vector<connection> clients;
    std::vector<connection> servers;
    clients.reserve(count);
    servers.reserve(count);
    double time = processor_us();
    double const heap = heap_bytes();
    long const before = descriptors();
    for (std::size_t i = 0; i < count; ++i) {
        clients.emplace_back(p, options());
        a.async_accept([&](error_code ec, connection c) {
            if (!ec) servers.push_back(std::move(c));
        });
        co_await clients.back().async_connect(a.local_endpoint(), asio::use_awaitable);
    }
    while (servers.size() < count) co_await asio::post(io, asio::use_awaitable);
    auto const sides = static_cast<double>(2 * count);
    auto const since = [&](double& last) {
        double const now = processor_us();
        double const us = now - std::exchange(last, now);
        return us / static_cast<double>(count);
    };
    all.open_us = since(time);
    all.heap_bytes = (heap_bytes() - heap) / sides;
    all.descriptors = static_cast<double>(descriptors() - before) / sides;
    registered_buffer from{clients[0].domain(), block_bytes, access_flags::local_write};
    registered_buffer to{servers[0].domain(), block_bytes, access_flags::remote_write};
    time = processor_us();
    for (connection& c : clients)
        co_await c.async_write(from.slice(), to.remote(), asio::use_awaitable);
    all.write_us = since(time);
    for (connection& c : clients) co_await c.async_disconnect(asio::use_awaitable);
    clients.clear();
    servers.clear();
    all.close_us = since(time);
}

row measured(std::size_t count) {
    fabric::world w;
    asio::io_context io;
    row all;
    std::exception_ptr failed;
    asio::co_spawn(io, measure(io, count, all), [&](std::exception_ptr e) {
        failed = e;
        if (e) io.stop();
    });
    w.run(io);
    if (failed) std::rethrow_exception(failed);
    return all;
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 2;
    std::vector<std::size_t> counts;
    for (int i = 1; i < argc; ++i) counts.push_back(std::strtoul(argv[i], nullptr, 10));
    if (counts.empty()) counts = {1, 10, 100, 1000, 9000};
    rlimit descriptors_max{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors_max);
    descriptors_max.rlim_cur = descriptors_max.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors_max);
    std::printf(
        "| connections | open, us each | heap of a side, kB | descriptors of a side | one write on "
        "each, us | close, us each |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    try {
        for (std::size_t const count : counts) {
            row const r = measured(count);
            std::printf(
                "| %zu | %.0f | %.1f | %.1f | %.1f | %.0f |\n",
                count,
                r.open_us,
                r.heap_bytes / 1000,
                r.descriptors,
                r.write_us,
                r.close_us
            );
        }
    } catch (std::exception const& e) {
        std::fprintf(stderr, "scale: %s\n", e.what());
        return 1;
    }
}
