// The keep-alive time of a host, to the microsecond.
#include <memory>

#include <rcverbs/nvme/memory_store.hpp>

#include "fabric/fixture.hpp"
#include "nvme/host.hpp"

using namespace rcverbs;
using namespace test;
namespace nvme = rcverbs::nvme;

namespace {

constexpr std::uint32_t first_time_ms = 100;
constexpr std::uint32_t next_time_ms = 60'000;

/// The ends of a host that sets another keep-alive time at a moment close to the end of the first.
enum class outcome { was_late, lives, ended };

outcome set_keep_alive_after(std::chrono::nanoseconds time, std::uint64_t seed) {
    fabric::world_options options;
    options.seed = seed;
    world w{options};
    asio::io_context io;
    outcome result = outcome::was_late;
    run(w, io, [&]() -> asio::awaitable<void> {
        nvme::namespace_options n;
        n.store = std::make_shared<nvme::memory_store>(1U << 20);
        nvme::subsystem_options o;
        o.nqn = disk_nqn;
        o.namespaces = {n};
        nvme::target t{io, {"10.0.0.1", 0}, {o}};
        host_queue admin{io};
        error_code const ec = co_await admin.open(t.local_endpoint(), 0);
        REQUIRE_FALSE(ec);
        response const joined =
            co_await admin.run(admin.connect_command(0, 0xffff, disk_nqn, host_nqn, first_time_ms));
        REQUIRE(joined.status == 0);
        response const enabled =
            co_await admin.run(capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460001));
        REQUIRE(enabled.status == 0);
        co_await sleep(io, time);
        response const set =
            co_await admin.run(capsule{0x09}.dword(10, 0x0f).dword(11, next_time_ms));
        if (set.is_alive) {
            REQUIRE(set.status == 0);
            co_await sleep(io, 1s);
            response const still = co_await admin.run(capsule{0x18});
            result = still.is_alive ? outcome::lives : outcome::ended;
        }
        t.close();
        admin.connection().close();
    });
    return result;
}

}  // namespace

TEST_CASE("fabric: nvme: a host that sets its keep-alive time as it ends is kept", "[fabric]") {
    // The first time ends three times: after the commands of the beginning, after none, and after the
    // period of grace.
    auto const ends = std::chrono::milliseconds{3 * first_time_ms};
    int lived = 0;
    int late = 0;
    std::chrono::nanoseconds at = ends - 40us;
    std::chrono::nanoseconds const step = are_seeds_fixed() ? 500ns : 100ns;
    for (std::uint64_t const seed : seeds(static_cast<std::size_t>(50us / step))) {
        INFO("RCVERBS_FABRIC_SEED=" << seed << ", " << at.count() << " ns after the beginning");
        outcome const o = set_keep_alive_after(at, seed);
        CHECK(o != outcome::ended);
        ++(o == outcome::lives ? lived : late);
        at += step;
    }
    CHECK(lived > 0);
    CHECK(late > 0);
}
