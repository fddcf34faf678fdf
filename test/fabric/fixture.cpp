#include "fabric/fixture.hpp"

namespace test {

void run(world& w, asio::io_context& io, test_body test) {
    INFO("RCVERBS_FABRIC_SEED=" << w.seed());
    std::exception_ptr failed;
    bool has_ended = false;
    asio::co_spawn(io, std::move(test), [&](std::exception_ptr e) {
        failed = e;
        has_ended = true;
        if (e) io.stop();
    });
    bool const is_finished = w.run(io);
    if (failed) std::rethrow_exception(failed);
    CHECK(is_finished);
    REQUIRE(has_ended);
}

asio::awaitable<void> sleep(asio::io_context& io, std::chrono::nanoseconds time) {
    asio::steady_timer timer{io, time};
    co_await timer.async_wait(asio::use_awaitable);
}

}  // namespace test
