// apart.hpp — runs each test case of a program in its own process, and reports as ctest does.
//
// ctest runs one process for each test case, too, but loads the program each time: in the virtual
// machine, and with a sanitizer, that takes longer than most test cases.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace test {

struct apart_options {
    /// The test cases to run, as a Catch2 specification; empty: all that are not hidden.
    std::string spec;
    /// The deadline of a test case, after which it is killed and counts as failed.
    std::chrono::seconds timeout{300};
    /// The number of test cases to run at a time.
    unsigned jobs = 1;
};

/// The options of `--apart [--timeout=SECONDS] [--jobs=N] [SPEC]`; nothing if the command line does
/// not begin with --apart. Exits with status 2 if an option is invalid.
std::optional<apart_options> asks_for_apart(int argc, char** argv);

/// In this process, returns when all test cases are done, with `exit_status`; in each forked
/// process, returns at once, with the `arguments` for Catch2.
struct apart_role {
    std::optional<int> exit_status;
    std::vector<std::string> arguments;
};
apart_role run_apart(
    apart_options const& options,
    std::string const& program,
    std::vector<std::string> const& arguments_to_list
);

}  // namespace test
