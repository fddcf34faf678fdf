// run_tests.hpp — runs Catch2's session for the main functions of the test programs: in version 2
// only one file can name the session.
#pragma once

namespace test {

/// Runs the tests that the command line selects, with the options of Catch2 or of apart.hpp;
/// returns main()'s result.
int run_tests(int argc, char** argv);

}  // namespace test
