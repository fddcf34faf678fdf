// retry(): which error it reports, and when, in virtual time.
#include <chrono>
#include <cstdint>

#include <rcverbs/connector.hpp>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

struct outcome {
    error_code code;
    std::chrono::milliseconds after{0};
};

// Repeats an operation that fails with `failing`, for 60 seconds of virtual time at most. At
// 10.0.0.1:7471 a server accepts plain connections.
template <class Protocol = connection>
outcome retry_against(
    endpoint const& peer, std::uint32_t attempts_max, error_code const& failing = {}
) {
    world w;
    asio::io_context io;
    outcome result;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {"10.0.0.1", 7471}};
        std::vector<connection> accepted;
        auto const serve = [&]() -> asio::awaitable<void> {
            for (;;) {
                auto [ec, c] = co_await door.async_accept(awaiting);
                if (ec) co_return;
                accepted.push_back(std::move(c));
            }
        };
        auto const work = [&]() -> asio::awaitable<void> {
            connector_options<Protocol> o;
            o.backoff.attempts_max = attempts_max;
            basic_connector<Protocol> to{io, peer, o};
            Protocol current;
            auto const begin = std::chrono::steady_clock::now();
            auto const fail = [&](Protocol&) -> asio::awaitable<void> {
                if (failing) throw boost::system::system_error{failing};
                co_return;
            };
            try {
                co_await retry(to, current, begin + 60s, fail);
            } catch (boost::system::system_error const& e) {
                result.code = e.code();
            }
            result.after = std::chrono::duration_cast<std::chrono::milliseconds>(
                std::chrono::steady_clock::now() - begin
            );
            current.close();
            door.close();
        };
        co_await (serve() && work());
    });
    return result;
}

}  // namespace

TEST_CASE("fabric: retry reports a permanent error of connecting at once", "[fabric]") {
    // A plain connection's server knows no sessions.
    outcome const o = retry_against<session>({"10.0.0.1", 7471}, 1);
    CHECK(o.code == errc::foreign_peer);
    CHECK(o.after < 1s);
}

TEST_CASE("fabric: retry goes on after a transient error, and reports it at the deadline") {
    outcome const o = retry_against({"10.0.0.1", 9999}, 1);
    CHECK(o.code == cm_errc::rejected_no_listener);
    CHECK(o.after >= 59s);
    CHECK(o.after < 62s);
    // The connector itself goes on, and has told no error yet.
    outcome const endless = retry_against({"10.0.0.1", 9999}, 0);
    CHECK(endless.code == errc::timed_out);
    CHECK(endless.after >= 60s);
}

TEST_CASE("fabric: retry reports errors of the operation: transient ones at the deadline") {
    outcome const wrong = retry_against({"10.0.0.1", 7471}, 1, errc::out_of_range);
    CHECK(wrong.code == errc::out_of_range);
    CHECK(wrong.after < 1s);
    outcome const gone = retry_against({"10.0.0.1", 7471}, 1, errc::stalled);
    CHECK(gone.code == errc::stalled);
    CHECK(gone.after >= 59s);
    CHECK(retry_against({"10.0.0.1", 7471}, 1).code == error_code{});
}
