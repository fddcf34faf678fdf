// How rdma-nvme waits for completions by default.
#include <sched.h>

#include "rdma-nvme/server.hpp"
#include "support/catch.hpp"

namespace {

// Limits this thread to the first `count` of the processors that it may use.
class processor_limit {
public:
    explicit processor_limit(int count) {
        REQUIRE(::sched_getaffinity(0, sizeof before_, &before_) == 0);
        cpu_set_t few;
        CPU_ZERO(&few);
        for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&few) < count; ++i) {
            if (CPU_ISSET(i, &before_)) CPU_SET(i, &few);
        }
        count_ = CPU_COUNT(&few);
        REQUIRE(::sched_setaffinity(0, sizeof few, &few) == 0);
    }
    ~processor_limit() { ::sched_setaffinity(0, sizeof before_, &before_); }
    int count() const { return count_; }

private:
    cpu_set_t before_;
    int count_ = 0;
};

}  // namespace

TEST_CASE("a target that may use one processor only sleeps instead of polling", "[programs]") {
    processor_limit const one{1};
    CHECK(demo::default_poll_mode() == rcverbs::poll_mode::event);
    CHECK(demo::nvme_arguments{}.poll == rcverbs::poll_mode::event);
}

TEST_CASE("a target that may use two processors polls before it sleeps", "[programs]") {
    processor_limit const two{2};
    if (two.count() < 2) {
        WARN("skipped: this process may use one processor only");
        return;
    }
    CHECK(demo::default_poll_mode() == rcverbs::poll_mode::adaptive);
}
