// Runs the programs in apps/examples as a user does, and checks exit codes and output.
#include <filesystem>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace test;

TEST_CASE("every example runs and prints its documented output", "[examples]") {
    struct row {
        std::string name;
        std::string says;
    };
    row const r = GENERATE(
        row{"atomic_counter", "the counter was 50, then 1000"},
        row{"batch", "21 work requests, 1 doorbell, 1 completion"},
        row{"callback", "1000 writes, one after the other"},
        row{"chat", "3 members heard 10 lines each"},
        row{"coroutine", "read 8 bytes back"},
        row{"errors", "remote access error"},
        row{"fork", "parent and child: 1 MiB each"},
        row{"future", "wrote 4096 bytes"},
        row{"key_value", "101 puts by request, 111 gets by RDMA read"},
        row{"own_loop", "on 1 thread"},
        row{"own_context", "one thread"},
        row{"shared_poller", "8 connections on one polling thread"},
        row{"timeout_and_cancel", "stalled: "},
        row{"own_protocol", "1000 values published"},
        row{"registration_cache", "100 uses, 1 registration"},
        row{"window_pool", "10 requests, each with a key of its own"},
        row{"remote_heap", "100 values went through the stack, and as many through the queue"},
        row{"two_threads", "1000 writes from two threads"}
    );
    INFO(r.name);
    std::filesystem::path const here =
        std::filesystem::read_symlink("/proc/self/exe").parent_path();
    child_process p{{here / ("example-" + r.name), device_address()}};
    auto const status = p.wait();
    INFO(p.output() << p.error());
    CHECK(status == 0);
    CHECK(p.output().find(r.says) != std::string::npos);
    CHECK(p.error().empty());
}

TEST_CASE("eight processes on one device each meet every other", "[examples]") {
    constexpr int count = 8;
    std::filesystem::path const here =
        std::filesystem::read_symlink("/proc/self/exe").parent_path();
    std::vector<std::unique_ptr<child_process>> all;
    // The processes that start first must retry: their peers do not listen yet.
    for (int rank = count - 1; rank >= 0; --rank) {
        all.push_back(std::make_unique<child_process>(std::vector<std::string>{
            here / "example-all_to_all",
            device_address(),
            std::to_string(rank),
            std::to_string(count),
            "18500"}));
    }
    for (int i = 0; i < count; ++i) {
        child_process& p = *all[static_cast<std::size_t>(i)];
        auto const status = p.wait();
        INFO(p.output() << p.error());
        CHECK(status == 0);
        CHECK(p.output() == "rank " + std::to_string(count - 1 - i) + " met 7 others\n");
    }
}
