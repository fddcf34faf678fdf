// scale.cpp [COUNT…]: what one process and one poller spend on so many connections, on the fabric, with
// both sides in the process. Processor time contains the fabric's. Prints a table, and one of NODES nodes that all
// connect to each other.
//
//     scale_bench [COUNT…] [--nodes NODES]
#include <malloc.h>
#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
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
    // The writes of the connection that got the fewest, beside the most.
    double fairness = 0;
    double close_us = 0;
};

// One write in flight on each, started again by its handler, until there were 64 for each on average.
asio::awaitable<double> fairness(
    asio::io_context& io, std::vector<connection>& all, const_slice from, remote_region to
) {
    std::size_t const wanted = 64 * all.size();
    std::vector<std::size_t> served(all.size());
    std::size_t done = 0;
    std::size_t under_way = all.size();
    std::function<void(std::size_t)> const write = [&](std::size_t i) {
        all[i].async_write(from, to, [&, i](error_code ec, std::size_t) {
            if (ec) throw boost::system::system_error{ec};
            if (done == wanted) {
                --under_way;
                return;
            }
            ++done;
            ++served[i];
            write(i);
        });
    };
    for (std::size_t i = 0; i < all.size(); ++i) write(i);
    while (under_way > 0) co_await asio::post(io, asio::use_awaitable);
    auto const [least, most] = std::minmax_element(served.begin(), served.end());
    co_return static_cast<double>(*least) / static_cast<double>(*most);
}

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
    all.fairness = co_await fairness(io, clients, from.slice(), to.remote());
    time = processor_us();
    for (connection& c : clients) co_await c.async_disconnect(asio::use_awaitable);
    clients.clear();
    servers.clear();
    all.close_us = since(time);
}

struct node {
    poller where;
    acceptor listener;
    std::vector<connection> incoming;
    std::vector<connection> outgoing;

    node(poller p, acceptor_options const& limits)
        : where{std::move(p)},
          listener{where, {"10.0.1.1", 0}, limits} {}
};

// Each node has a poller, and a connection to each other node.
asio::awaitable<void> measure_nodes(asio::io_context& io, std::size_t count, row& all) {
    acceptor_options limits;
    limits.connections_max = limits.connections_per_address_max = count + 1;
    limits.connection = options();
    double time = processor_us();
    double const heap = heap_bytes();
    long const before = descriptors();
    std::vector<std::unique_ptr<node>> nodes;
    for (std::size_t i = 0; i < count; ++i) {
        nodes.push_back(
            std::make_unique<node>(poller::on(io, {.polling = {.mode = poll_mode::event}}), limits)
        );
    }
    for (auto const& from : nodes) {
        for (auto const& to : nodes) {
            if (from == to) break;
            to->listener.async_accept([&to](error_code ec, connection c) {
                if (!ec) to->incoming.push_back(std::move(c));
            });
            from->outgoing.emplace_back(from->where, options());
            co_await from->outgoing.back().async_connect(
                to->listener.local_endpoint(), asio::use_awaitable
            );
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        while (nodes[i]->incoming.size() < count - 1 - i)
            co_await asio::post(io, asio::use_awaitable);
    }
    auto const connections = static_cast<double>(count * (count - 1) / 2);
    auto const since = [&](double& last) {
        double const now = processor_us();
        return (now - std::exchange(last, now)) / connections;
    };
    all.open_us = since(time);
    all.heap_bytes = (heap_bytes() - heap) / (2 * connections);
    all.descriptors = static_cast<double>(descriptors() - before) / (2 * connections);
    registered_buffer from{nodes[1]->outgoing[0].domain(), block_bytes, access_flags::local_write};
    registered_buffer to{nodes[0]->incoming[0].domain(), block_bytes, access_flags::remote_write};
    time = processor_us();
    for (auto const& n : nodes) {
        for (connection& c : n->outgoing)
            co_await c.async_write(from.slice(), to.remote(), asio::use_awaitable);
    }
    all.write_us = since(time);
    for (auto const& n : nodes) {
        for (connection& c : n->outgoing) co_await c.async_disconnect(asio::use_awaitable);
    }
    nodes.clear();
    all.close_us = since(time);
}

template <class Measure>
row measured(std::size_t count, Measure const& measure) {
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
    std::size_t nodes = 100;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--nodes") == 0 && i + 1 < argc) {
            nodes = std::strtoul(argv[++i], nullptr, 10);
        } else {
            counts.push_back(std::strtoul(argv[i], nullptr, 10));
        }
    }
    if (counts.empty()) counts = {1, 10, 100, 1000, 10000};
    rlimit descriptors_max{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors_max);
    descriptors_max.rlim_cur = descriptors_max.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors_max);
    std::printf(
        "| connections | open, us each | heap of a side, kB | descriptors of a side | one write on "
        "each, us | least / most served | close, us each |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    try {
        for (std::size_t const count : counts) {
            row const r = measured(count, measure);
            std::printf(
                "| %zu | %.0f | %.1f | %.4f | %.1f | %.2f | %.0f |\n",
                count,
                r.open_us,
                r.heap_bytes / 1000,
                r.descriptors,
                r.write_us,
                r.fairness,
                r.close_us
            );
        }
        if (nodes > 1) {
            row const r = measured(nodes, measure_nodes);
            std::printf(
                "| %zu nodes, each with each: %zu | %.0f | %.1f | %.4f | %.1f | | %.0f |\n",
                nodes,
                nodes * (nodes - 1) / 2,
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
