// How rdma-nvme fits a target into the memory that it may lock.
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <rcverbs/nvme/memory_store.hpp>

#include "rdma-nvme/memory_plan.hpp"
#include "support/catch.hpp"

using namespace demo;
using namespace test;
namespace nvme = rcverbs::nvme;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// A subsystem with one store in memory; without one for 0.
std::vector<nvme::subsystem_options> subsystems(std::uint64_t memory_bytes) {
    nvme::subsystem_options s{"nqn.test:disk"};
    if (memory_bytes > 0) s.namespaces = {{1, std::make_shared<nvme::memory_store>(memory_bytes)}};
    return {s};
}

}  // namespace

TEST_CASE(
    "a target that may lock everything has the queues and memory of its defaults", "[programs]"
) {
    nvme::target_options limits;
    CHECK(fit_into_memory(limits, subsystems(mib), UINT64_MAX, queue_wish::at_most).empty());
    CHECK(limits.connections_max == 256);
    CHECK(limits.staging_bytes_max == 64 * mib);
}

TEST_CASE("the need counts queues, staging memory and stores, for each thread", "[programs]") {
    nvme::target_options limits;
    auto const need = [&](std::uint64_t memory) {
        return nvme::registered_bytes_max(subsystems(memory), limits);
    };
    // Of a queue: 128 commands of 64 and 4096 bytes with two completions, its part of the staging memory,
    // and a page.
    constexpr std::uint64_t queue = 128 * (64 + 4096 + 32) + 65536 + 4096;
    CHECK(need(0) == 48 * mib + 256 * queue);
    CHECK(need(mib) - need(0) == mib + 4096);
    limits.io_pollers = {rcverbs::poller::start(), rcverbs::poller::start()};
    CHECK(need(0) == 3 * 48 * mib + 256 * queue);
    CHECK(need(mib) - need(0) == 2 * (mib + 4096));
}

TEST_CASE(
    "queues that would not fit into the lockable memory are left out, in a sentence", "[programs]"
) {
    for (std::uint64_t const lockable : {4 * mib, 8 * mib, 64 * mib, 150 * mib}) {
        nvme::target_options limits;
        std::string const said =
            fit_into_memory(limits, subsystems(0), lockable, queue_wish::at_most);
        CAPTURE(lockable, limits.connections_max);
        CHECK(limits.connections_max >= 2);
        CHECK(limits.connections_max < 256);
        CHECK(nvme::registered_bytes_max(subsystems(0), limits) <= lockable);
        CHECK_THAT(
            said,
            ContainsSubstring(std::to_string(limits.connections_max) + " queues instead of 256") &&
                ContainsSubstring(std::to_string(lockable / 1024) + " KiB (RLIMIT_MEMLOCK)")
        );
        // One more would not fit.
        auto more = limits;
        ++more.connections_max;
        more.staging_bytes_max += 65536;
        CHECK(nvme::registered_bytes_max(subsystems(0), more) > lockable);
    }
    nvme::target_options limits;
    fit_into_memory(limits, subsystems(0), 8 * mib, queue_wish::at_most);
    CHECK(limits.connections_max == 8);
}

TEST_CASE("what was asked for and does not fit is refused with both numbers", "[programs]") {
    using fitting = std::string(nvme::target_options&);
    auto const refusal = [](std::size_t queues, std::function<fitting> const& fit) {
        nvme::target_options limits;
        limits.connections_max = queues;
        try {
            fit(limits);
        } catch (std::runtime_error const& e) {
            return std::string{e.what()};
        }
        return std::string{"fits"};
    };
    std::string const store = refusal(256, [](nvme::target_options& limits) {
        return fit_into_memory(limits, subsystems(16 * mib), 8 * mib, queue_wish::at_most);
    });
    std::string const queues = refusal(256, [](nvme::target_options& limits) {
        return fit_into_memory(limits, subsystems(0), 8 * mib, queue_wish::exactly);
    });
    std::string const reload = refusal(9, [](nvme::target_options& limits) {
        // So many fit, with less common memory than usual; and then another store does not.
        CHECK(fit_into_memory(limits, subsystems(0), 8 * mib, queue_wish::exactly).empty());
        CHECK(limits.connections_max == 9);
        CHECK(nvme::registered_bytes_max(subsystems(0), limits) <= 8 * mib);
        check_memory(limits, subsystems(0), 8 * mib);
        check_memory(limits, subsystems(4 * mib), 8 * mib);
        return std::string{};
    });
    for (std::string const& each : {store, queues, reload}) {
        CHECK_THAT(each, ContainsSubstring("may lock 8192 KiB (RLIMIT_MEMLOCK)"));
        CHECK_THAT(each, ContainsSubstring("LimitMEMLOCK="));
    }
    // 16 MiB and a page, two pieces of common memory, two queues.
    CHECK_THAT(store, ContainsSubstring("would have locked 19620 KiB"));
    CHECK_THAT(queues, ContainsSubstring("or lower --max-queues"));
}
