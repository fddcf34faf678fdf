// waits.cpp — what a thread pays that waits for each write of 8 bytes: by the token `blocking`, by
// boost::asio::use_future, and by a promise that a callback sets. In turn, on one connection of the fabric that
// a thread of its own polls. Prints the times as ratios to the promise, the least and the greatest of the rounds.
//
//     waits_bench [ROUNDS]
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include <rcverbs/fabric.hpp>
#include <rcverbs/rcverbs.hpp>

#include "bench/optimised.hpp"

namespace asio = boost::asio;
using namespace rcverbs;

namespace {

constexpr int writes = 4000;

double seconds_of(std::function<void()> const& write) {
    auto const began = std::chrono::steady_clock::now();
    for (int i = 0; i < writes; ++i) write();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

int main(int argc, char** argv) {
    if (!bench::may_run(argc, argv)) return 1;
    int const rounds = argc > 1 ? std::atoi(argv[1]) : 20;
    fabric::world const world{{.mode = fabric::scheduling::real}};
    acceptor door{own_thread, {"10.0.0.1", 0}};
    auto arriving = door.async_get_request(asio::use_future);
    connection client{poller::start({.polling = {.mode = poll_mode::busy}})};
    auto connecting = client.async_connect(door.local_endpoint(), asio::use_future);
    connection server{own_thread, arriving.get()};
    server.async_accept({}, blocking);
    connecting.get();
    registered_buffer from{client.domain(), 8};
    registered_buffer to{
        server.domain(), 8, access_flags::local_write | access_flags::remote_write};
    remote_region const target = to.remote();
    std::array<std::function<void()>, 3> const ways{
        [&] {
            std::promise<error_code> done;
            client.async_write(from.slice(), target, [&](error_code ec, std::size_t) {
                done.set_value(ec);
            });
            if (error_code const ec = done.get_future().get()) std::abort();
        },
        [&] { client.async_write(from.slice(), target, asio::use_future).get(); },
        [&] { client.async_write(from.slice(), target, blocking); },
    };
    std::array<std::vector<double>, 3> took;
    for (auto const& way : ways) seconds_of(way);
    for (int r = 0; r < rounds; ++r) {
        for (std::size_t i = 0; i < ways.size(); ++i) took[i].push_back(seconds_of(ways[i]));
    }
    std::printf("a callback and a promise: %.1f us\n", 1e6 * took[0].back() / writes);
    for (std::size_t i = 1; i < ways.size(); ++i) {
        std::vector<double> ratios;
        for (int r = 0; r < rounds; ++r)
            ratios.push_back(
                took[i][static_cast<std::size_t>(r)] / took[0][static_cast<std::size_t>(r)]
            );
        std::ranges::sort(ratios);
        std::printf(
            "%s: %.2f (%.2f to %.2f) times that\n",
            i == 1 ? "use_future" : "blocking",
            ratios[ratios.size() / 2],
            ratios.front(),
            ratios.back()
        );
    }
    client.close();
    server.close();
}
