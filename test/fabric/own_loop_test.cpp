// The descriptor for event loops that are not Asio's.
#include <poll.h>

#include <boost/asio/detached.hpp>

#include <rcverbs/experimental/loop_descriptor.hpp>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

bool is_readable(loop_descriptor const& loop) {
    pollfd one{loop.native_handle(), POLLIN, 0};
    return ::poll(&one, 1, 0) == 1;
}

/// True if the descriptor is not readable right after a dispatch. A tick may come between the two,
/// but not three times in a row.
bool is_quiet(loop_descriptor& loop) {
    for (int i = 0; i < 3; ++i) {
        loop.dispatch();
        if (!is_readable(loop)) return true;
    }
    return false;
}

}  // namespace

TEST_CASE("an own loop is quiet when a device has an event and no connection is left", "[fabric]") {
    world w;
    asio::io_context io;
    loop_descriptor loop{io, 1s};
    for (int round = 0; round < 2; ++round) {
        run(w, io, [&]() -> asio::awaitable<void> {
            test::pair p = co_await meet(io);
            p.client.close();
            p.server.close();
        });
        CHECK(is_quiet(loop));
        w.port_down("fab0");
        CHECK(is_quiet(loop));
        w.port_up("fab0");
        CHECK(is_quiet(loop));
    }
    // It is readable for an event of a device that a connection uses, also after such a pause.
    test::pair p;
    bool has_ended = false;
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            p = co_await meet(io);
            co_await p.server.async_wait_disconnected(awaiting);
            has_ended = true;
        },
        asio::detached
    );
    REQUIRE(w.run_until(io, [&] { return p.server.is_open() && p.client.is_open(); }));
    w.run_for(io, 10ms);
    CHECK(is_quiet(loop));
    w.port_down("fab0");
    CHECK(is_readable(loop));
    loop.dispatch();
    CHECK(w.run_until(io, [&] { return has_ended; }));
    p.client.close();
    CHECK(w.run(io));
}
