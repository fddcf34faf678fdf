// The usual main function of the test programs.
#include "support/run_tests.hpp"

int main(int argc, char** argv) { return test::run_tests(argc, argv); }
