// The test programs' usual main function.
#include "support/run_tests.hpp"

int main(int argc, char** argv) { return test::run_tests(argc, argv); }
