// Catch2 2's implementation, compiled once for all test programs; Catch2 3 is a library.
#include "support/run_tests.hpp"

#include <iostream>
#include <string>
#include <vector>

#include "support/apart.hpp"
#include "support/child_process.hpp"

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using event_listener = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using event_listener = Catch::TestEventListenerBase;
#endif

namespace {

/// A failed test case prints what its child processes printed.
class transcript_printer final : public event_listener {
public:
    using event_listener::event_listener;
    void testCaseStarting(Catch::TestCaseInfo const& about) override {
        event_listener::testCaseStarting(about);
        test::transcript().clear();
    }
    void testCaseEnded(Catch::TestCaseStats const& stats) override {
        event_listener::testCaseEnded(stats);
        if (stats.totals.assertions.failed > 0) std::cout << test::transcript();
    }
};

CATCH_REGISTER_LISTENER(transcript_printer)

}  // namespace

int test::run_tests(int argc, char** argv) {
    auto const apart = asks_for_apart(argc, argv);
    if (!apart) return Catch::Session().run(argc, argv);
#if __has_include(<catch2/catch_session.hpp>)
    std::vector<std::string> const list{"--list-tests", "--verbosity", "quiet"};
#else
    std::vector<std::string> const list{"--list-test-names-only"};
    // Catch2 keeps the sorted test cases: they are sorted here once, not in each forked process.
    Catch::getAllTestCasesSorted(Catch::Config{Catch::ConfigData{}});
#endif
    auto const role = run_apart(*apart, argv[0], list);
    if (role.exit_status) return *role.exit_status;
    std::vector<char const*> arguments;
    for (auto const& argument : role.arguments) arguments.push_back(argument.c_str());
    return Catch::Session().run(static_cast<int>(arguments.size()), arguments.data());
}
