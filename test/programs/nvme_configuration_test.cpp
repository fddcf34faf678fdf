// The words and names of rdma-nvme's command line and configuration.
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
