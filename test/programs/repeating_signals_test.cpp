// The signals of the programs.
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <csignal>
#include <vector>

#include "common/repeating_signals.hpp"
#include "support/catch.hpp"

namespace asio = boost::asio;
using namespace std::chrono_literals;

TEST_CASE("signals call until their function stops them", "[programs]") {
    asio::io_context io;
    demo::repeating_signals signals{io.get_executor()};
    std::vector<int> numbers;
    signals.start({SIGUSR1, SIGUSR2}, [&](int number) {
        numbers.push_back(number);
        if (number == SIGUSR2) signals.stop();
    });
    for (int const number : {SIGUSR1, SIGUSR1, SIGUSR2}) std::raise(number);
    io.run();
    CHECK(numbers == std::vector{SIGUSR1, SIGUSR1, SIGUSR2});
}

TEST_CASE("signals that are stopped when one has arrived do not go on", "[programs]") {
    asio::io_context io;
    demo::repeating_signals signals{io.get_executor()};
    int calls = 0;
    signals.start({SIGUSR1}, [&](int) { ++calls; });
    std::raise(SIGUSR1);
    // run() first queues the handler of the signal, and then calls this one.
    asio::post(io, [&] { signals.stop(); });
    io.run_for(2s);
    CHECK(io.stopped());
    CHECK(calls == 0);
}

TEST_CASE("signals that were stopped are ignored", "[programs]") {
    asio::io_context io;
    demo::repeating_signals signals{io.get_executor()};
    int calls = 0;
    signals.start({SIGUSR1}, [&](int) { ++calls; });
    signals.stop();
    std::raise(SIGUSR1);  // would end the process
    io.run();
    CHECK(calls == 0);
}
