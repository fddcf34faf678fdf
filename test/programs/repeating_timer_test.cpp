// The timer of the programs.
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <thread>

#include "common/repeating_timer.hpp"
#include "support/catch.hpp"

namespace asio = boost::asio;
using namespace std::chrono_literals;

TEST_CASE("a repeating timer calls until its function stops it", "[programs]") {
    asio::io_context io;
    demo::repeating_timer timer{io.get_executor()};
    int calls = 0;
    timer.start(1ms, [&] {
        if (++calls == 3) timer.stop();
    });
    io.run();
    CHECK(calls == 3);
}

TEST_CASE("a repeating timer that is stopped when its time has come does not go on", "[programs]") {
    asio::io_context io;
    demo::repeating_timer timer{io.get_executor()};
    int calls = 0;
    timer.start(1ms, [&] { ++calls; });
    std::this_thread::sleep_for(5ms);
    // run() first queues the handler of the timer, which has expired, and then calls this one.
    asio::post(io, [&] { timer.stop(); });
    io.run_for(2s);
    CHECK(io.stopped());
    CHECK(calls == 0);
}

TEST_CASE("a repeating timer may be destroyed while it runs", "[programs]") {
    asio::io_context io;
    int calls = 0;
    {
        demo::repeating_timer timer{io.get_executor()};
        timer.start(1ms, [&] { ++calls; });
    }
    io.run();
    CHECK(calls == 0);
}
