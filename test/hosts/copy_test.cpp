// rdma-copy over a wire that loses packets, and one that is cut.
#include <csignal>

#include <nlohmann/json.hpp>

#include "device/copy_programs.hpp"
#include "hosts/fixture.hpp"

using namespace test;

namespace {

copy_server server_across(fs::path const& at, std::vector<std::string> options) {
    options.insert(options.end(), {"--bind", "10.0.1.1"});
    return copy_server{at, std::move(options), "10.0.1.1"};
}

}  // namespace

TEST_CASE("rdma-copy: all arrives over a wire that loses one packet in a hundred", "[hosts]") {
    folder here;
    folder there;
    make_tree(here / "tree");
    copy_server s = server_across(there / "", {});
    {
        disturbance const wire{"loss 1%", both_ways};
        child_process c = s.client({(here / "tree").string(), s.place("")});
        CHECK(c.wait(600s) == 0);
        INFO(c.error());
    }
    CHECK(listing(here / "tree") == listing(there / "tree"));
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == 0);
}

TEST_CASE(
    "rdma-copy: a cut wire ends the copy on both sides, and the next one goes on", "[hosts]"
) {
    folder here;
    folder there;
    constexpr std::uint64_t size = 24 * mebibyte;
    write_large(here / "file", size, 1);
    std::string const socket = (here / "socket").string();
    copy_server s = server_across(there / "", {"--timeout", "5s", "--statistics", socket});
    child_process c = s.client({(here / "file").string(), s.place(""), "--timeout", "5s"});
    auto const moved = [&] {
        std::string const answer = answer_to_get(socket, "/statistics");
        return nlohmann::json::parse(answer.substr(answer.find("\r\n\r\n")))["moved_bytes"]
            .get<std::uint64_t>();
    };
    wait_until([&] { return moved() >= 4 * mebibyte; });
    {
        disturbance const cut{"loss 100%", both_ways};
        CHECK(c.wait() == 2);
        CHECK(s.process.wait_for_error("\n"));
    }
    CHECK_FALSE(fs::exists(there / "file"));
    child_process again = s.client({(here / "file").string(), s.place(""), "--json"});
    CHECK(again.wait() == 0);
    auto const result = nlohmann::json::parse(again.output_lines().back());
    CHECK(result["continued_bytes"] > 0);
    CHECK((content(here / "file") == content(there / "file")));
    CHECK(leftovers(there / "").empty());
    s.process.signal(SIGTERM);
    CHECK(s.process.wait() == 0);
}
