// rdma-doctor on a machine where RDMA works: it reports so, and leaves no resources.
#include <nlohmann/json.hpp>

#include <filesystem>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace test;

namespace {

std::string const doctor =
    (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rdma-doctor").string();

}  // namespace

TEST_CASE("the doctor reports that RDMA works, by a connection of its own", "[demo]") {
    child_process p{{doctor}};
    CHECK(p.wait() == 0);
    INFO(p.output() << p.error());
    CHECK_THAT(p.output(), EndsWith("RDMA works on this machine.\n"));
    CHECK_THAT(p.output(), ContainsSubstring("connect, write, read"));
}

TEST_CASE("the doctor's JSON has the device that was used, and its addresses by rank", "[demo]") {
    child_process p{{doctor, "--json", "--address", device_address()}};
    CHECK(p.wait() == 0);
    INFO(p.output() << p.error());
    auto const said = nlohmann::json::parse(p.output());
    CHECK(said["works"] == true);
    REQUIRE_FALSE(said["devices"].empty());
    CHECK_FALSE(said["devices"][0]["limits"].is_null());
    CHECK(said["devices"][0]["file"]["may_be_opened"] == true);
    CHECK(said["devices"][0]["ports"][0]["mtu"] >= 256);
    REQUIRE(said["self_tests"].size() == 1);
    CHECK(said["self_tests"][0]["address"] == device_address());
    CHECK(said["self_tests"][0]["failure"] == "");
}

TEST_CASE("the doctor prints nothing but the address for scripts that ask for it", "[demo]") {
    child_process p{{doctor, "--quiet", "--address", device_address()}};
    CHECK(p.wait() == 0);
    CHECK(p.output() == device_address() + "\n");
}

TEST_CASE("at an address without RDMA the doctor fails, with the reason", "[demo]") {
    child_process p{{doctor, "--address", "127.0.0.1", "--timeout", "2s"}};
    CHECK(p.wait() == 1);
    INFO(p.output() << p.error());
    CHECK_THAT(p.output(), ContainsSubstring("self-test at 127.0.0.1: nothing succeeded; then: "));
    CHECK_THAT(p.output(), EndsWith("RDMA does not work on this machine.\n"));
}
