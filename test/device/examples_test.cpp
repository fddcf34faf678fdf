// The programs in apps/examples, as a user runs them: they end well and say what they show.
#include <filesystem>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace test;

TEST_CASE("every example runs and shows what it says", "[examples]") {
    struct row {
        std::string name;
        std::string says;
    };
    row const r = GENERATE(
        row{"atomic_counter", "the counter was 50, then 1000"}, row{"batch", "21 work requests, 1 doorbell, 1 completion"},
        row{"callback", "1000 writes, one after the other"}, row{"coroutine", "read 8 bytes back"},
        row{"errors", "remote access error"}, row{"future", "wrote 4096 bytes"}, row{"own_context", "one thread"},
        row{"shared_poller", "8 connections on one polling thread"}, row{"timeout_and_cancel", "stalled: "},
        row{"two_threads", "1000 writes from two threads"}
    );
    INFO(r.name);
    std::filesystem::path const here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    child_process p{{here / ("example-" + r.name), device_address()}};
    auto const status = p.wait();
    INFO(p.output() << p.error());
    CHECK(status == 0);
    CHECK(p.output().find(r.says) != std::string::npos);
    CHECK(p.error().empty());
}
