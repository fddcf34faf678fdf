// The main function of tests on the fabric: every test case has its own world, in which a thread
// carries the packets, and fails if an object is left in it.
#include <rcverbs/fabric.hpp>

#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

#include "support/allocations.hpp"
#include "support/fabric_world.hpp"
#include "support/run_tests.hpp"

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using listener = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
using listener = Catch::TestEventListenerBase;
#endif

namespace {

std::unique_ptr<rcverbs::fabric::world> present;
bool has_leaked = false;

class world_for_each_test : public listener {
public:
    using listener::listener;

    void testCaseStarting(Catch::TestCaseInfo const& info) override {
        listener::testCaseStarting(info);
        rcverbs::fabric::world_options options;
        options.mode = rcverbs::fabric::scheduling::real;
        // Like the virtual machine's one device.
        options.devices.resize(1);
        options.devices[0].name = "fab0";
        options.devices[0].addresses = {"10.0.0.1", "fd00::1"};
        options.devices[0].message_bytes_max = 8U << 20;
        present = std::make_unique<rcverbs::fabric::world>(options);
    }

    void testCaseEnded(Catch::TestCaseStats const& stats) override {
        // Objects on polling threads are destroyed asynchronously.
        auto const until = std::chrono::steady_clock::now() + std::chrono::seconds{20};
        auto left = present->live();
        while (left.total() > 0 && std::chrono::steady_clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
            left = present->live();
        }
        if (left.total() > 0) {
            has_leaked = true;
            std::cout << "left behind: " << left.queue_pairs << " queue pairs, "
                      << left.completion_queues << " completion queues, "
                      << left.completion_channels << " channels, " << left.memory_regions
                      << " regions, " << left.protection_domains << " domains, " << left.cm_ids
                      << " ids, " << left.event_channels << " event channels\n";
        }
        present.reset();
        listener::testCaseEnded(stats);
    }
};

CATCH_REGISTER_LISTENER(world_for_each_test)

}  // namespace

rcverbs::fabric::world& test::the_world() { return *present; }

int main(int argc, char** argv) {
    test::allocates_for_others = &rcverbs::fabric::world::is_inside;
    int const result = test::run_tests(argc, argv);
    return result != 0 ? result : has_leaked ? 1 : 0;
}
