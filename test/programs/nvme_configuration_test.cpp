// The words and names of rdma-nvme's command line and configuration.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "rdma-nvme/configuration.hpp"
#include "support/catch.hpp"

using namespace demo;

TEST_CASE("a range of controller numbers is read, and other words are refused", "[programs]") {
    CHECK(parse_controller_ids("1-1000") == std::pair<std::uint16_t, std::uint16_t>{1, 1000});
    CHECK(parse_controller_ids("7-7") == std::pair<std::uint16_t, std::uint16_t>{7, 7});
    CHECK(parse_controller_ids("1-65519").second == 65519);
    for (char const* const wrong :
         {"", "-", "5", "5-", "-5", "0-5", "6-5", "1-65520", "1-99999999999", "a-b", "1-2-3"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(parse_controller_ids(wrong), configuration_error);
    }
}

TEST_CASE("texts of the library name this program's options", "[programs]") {
    CHECK(
        plain_names(
            "an option is out of its range. Correct the option.: namespace_options::id is in use "
            "[rcverbs:13]"
        ) == "namespace \"id\" is in use."
    );
    CHECK(
        plain_names("target_options::queue_depth_max is above 128 [rcverbs:13]") ==
        "\"queue_depth_max\" is above 128."
    );
    CHECK(plain_names("disk: No such file or directory") == "disk: No such file or directory");
}

TEST_CASE("namespaces without a number get that of their place", "[programs]") {
    auto const path = std::filesystem::temp_directory_path() /
                      ("rcverbs-configuration-" + std::to_string(::getpid()));
    std::ofstream{path} << R"({"subsystems": [{"nqn": "nqn.test:disk", "namespaces": [
        {"memory": "1M"}, {"id": 7, "memory": "1M"}, {"memory": "1M"}]}]})";
    auto const read = read_configuration(path);
    std::filesystem::remove(path);
    REQUIRE(read.size() == 1);
    REQUIRE(read[0].disks.size() == 3);
    CHECK(read[0].disks[0].id == 1);
    CHECK(read[0].disks[1].id == 7);
    CHECK(read[0].disks[2].id == 3);
}

TEST_CASE("a number of the configuration that is none, or too large, is refused", "[programs]") {
    auto const path = std::filesystem::temp_directory_path() /
                      ("rcverbs-configuration-" + std::to_string(::getpid()));
    for (char const* const wrong : {"1e300", "1.5", "-1", "4294967296", "\"1\"", "null"}) {
        CAPTURE(wrong);
        for (char const* const name : {"id", "block_size"}) {
            std::ofstream{path} << R"({"subsystems": [{"nqn": "nqn.test:disk", "namespaces": [
                {"memory": "1M", ")"
                                << name << "\": " << wrong << "}]}]}";
            CHECK_THROWS_WITH(
                read_configuration(path),
                test::ContainsSubstring(name) &&
                    test::ContainsSubstring("is not an integer from 0 to 4294967295")
            );
        }
    }
    std::filesystem::remove(path);
}
