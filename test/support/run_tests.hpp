// run_tests.hpp — Catch2's session, for the main functions of the test programs: with version 2 only the one file that has its
// code can name it.
#pragma once

namespace test {

/// Runs what the command line asks for; what main() is to return.
int run_tests(int argc, char** argv);

}  // namespace test
