// Test cases that end in every possible way: apart_test.sh checks the report of --apart.
#include <cstdlib>
#include <iostream>
#include <thread>

#include "support/catch.hpp"
#include "support/child_process.hpp"

TEST_CASE("it passes, with a comma and [brackets] in its name", "[good]") { CHECK(true); }

TEST_CASE("it says why it was left out", "[good]") { std::cout << "skipped: no such device\n"; }

TEST_CASE("it fails", "[bad]") {
    std::cout << "one is not two\n";
    CHECK(1 == 2);
    test::child_process child{{"sh", "-c", "echo two is two; exit 3"}};
    CHECK(child.wait() == 0);
}

TEST_CASE("it crashes", "[bad]") { std::abort(); }

TEST_CASE("it hangs", "[bad]") { std::this_thread::sleep_for(std::chrono::hours{1}); }
