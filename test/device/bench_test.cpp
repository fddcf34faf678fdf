// rdma-bench as a user runs it: every test verifies its data, the figures are consistent, and
// errors are reported.
#include <boost/property_tree/json_parser.hpp>
#include <boost/property_tree/ptree.hpp>

#include <csignal>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace test;

namespace {

std::string const bench =
    (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rdma-bench").string();

struct outcome {
    std::optional<int> status;
    std::string output;
    std::string error;
    boost::property_tree::ptree json;
};

outcome finish(child_process& p, std::filesystem::path const& json) {
    outcome o{p.wait(), p.output(), p.error(), {}};
    if (std::filesystem::exists(json)) {
        read_json(json.string(), o.json);
        std::filesystem::remove(json);
    }
    return o;
}

std::filesystem::path json_file() {
    return std::filesystem::temp_directory_path() /
           ("bench-" + std::to_string(::getpid()) + ".json");
}

outcome loopback(std::vector<std::string> arguments) {
    std::vector<std::string> all{
        bench, "loopback", "--address", device_address(), "--json", json_file().string()};
    all.insert(all.end(), arguments.begin(), arguments.end());
    child_process p{std::move(all)};
    return finish(p, json_file());
}

boost::property_tree::ptree const& first_round(outcome const& o) {
    return o.json.get_child("rounds").front().second;
}

/// A client in the midst of its measurements: it has shown the first result of sixty.
child_process measuring_client(std::string const& port) {
    std::string sizes = "8";
    for (int i = 2; i <= 60; ++i) sizes += "," + std::to_string(8 * i);
    child_process client{
        {bench, "client", device_address(), port, "send", "--sizes", sizes, "--duration", "1s"}};
    REQUIRE(client.wait_for_output("\n        8 "));
    return client;
}

}  // namespace

TEST_CASE("every test of rdma-bench verifies what it moved", "[bench]") {
    for (std::string const test :
         {"write", "read", "send", "write-imm", "fetch-add", "compare-swap"}) {
        for (std::vector<std::string> more : {
                 std::vector<std::string>{"--iterations", "100"},
                 {"--iterations", "100", "--batch", "16"},
                 {"--iterations", "50", "--latency", "--warm-up", "10"},
                 {"--iterations", "50", "--bidirectional", "--warm-up", "10"},
                 {"--iterations", "50", "--connections", "3", "--threads", "2", "--warm-up", "10"},
                 {"--iterations", "50", "--connections", "2", "--threads", "0", "--warm-up", "0"},
             }) {
            bool const is_atomic = test == "fetch-add" || test == "compare-swap";
            more.insert(more.begin(), {test, "--verify", "--poll", "adaptive"});
            if (!is_atomic) more.insert(more.end(), {"--sizes", "8,5000"});
            std::string line;
            for (std::string const& word : more) line += word + " ";
            outcome const o = loopback(more);
            INFO(line << "\n" << o.output << o.error);
            REQUIRE(o.status == 0);
            REQUIRE(o.json.get_child("rounds").size() == (is_atomic ? 1 : 2));
            for (auto const& [name, round] : o.json.get_child("rounds")) {
                auto const operations = round.get<double>("operations");
                auto const seconds = round.get<double>("seconds");
                CHECK(round.get<int>("damaged") == 0);
                int const directions = o.json.get<bool>("plan.bidirectional") ? 2 : 1;
                CHECK(
                    operations ==
                    std::stod(more[5]) * directions * o.json.get<double>("plan.connections")
                );
                CHECK(
                    round.get<double>("MB_per_s") ==
                    Approx(operations / seconds * round.get<double>("size_bytes") / (1 << 20))
                );
                if (o.json.get<std::string>("plan.measure") == "latency") {
                    CHECK(round.get<double>("latency_us.count") == operations);
                    CHECK(round.get<double>("latency_us.min") > 0);
                    CHECK(
                        round.get<double>("latency_us.median") <=
                        round.get<double>("latency_us.p99")
                    );
                    CHECK(
                        round.get<double>("latency_us.p99") <= round.get<double>("latency_us.max")
                    );
                    // The operations run one at a time, so their sum cannot exceed the total time.
                    CHECK(round.get<double>("latency_us.mean") * operations <= seconds * 1e6);
                }
            }
        }
    }
}

TEST_CASE("a damaged byte is found by every test that moves bytes", "[bench]") {
    for (std::string const test : {"write", "read", "send", "write-imm"}) {
        for (std::string const batch : {"1", "8"}) {
            outcome const o = loopback(
                {test,
                 "--sizes",
                 "100",
                 "--iterations",
                 "64",
                 "--batch",
                 batch,
                 "--verify",
                 "--corrupt"}
            );
            INFO(test << o.output << o.error);
            CHECK(o.status == 7);
            CHECK(o.error.find("the received data differed") != std::string::npos);
            CHECK(first_round(o).get<int>("damaged") > 0);
        }
    }
}

TEST_CASE("batches ring one doorbell and take one completion for each list", "[bench]") {
    outcome const o =
        loopback({"write", "--sizes", "8", "--iterations", "1024", "--depth", "64", "--batch", "32"}
        );
    INFO(o.output << o.error);
    REQUIRE(o.status == 0);
    CHECK(first_round(o).get<int>("client.sends_posted") == 1024);
    CHECK(first_round(o).get<int>("client.completions") == 1024 / 32);
    CHECK(first_round(o).get<int>("client.doorbells") <= 1024 / 32);
}

TEST_CASE("a duration ends a measurement, and a file of each kind is written", "[bench]") {
    std::filesystem::path const folder =
        std::filesystem::temp_directory_path() / ("bench-files-" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder);
    outcome const o = loopback(
        {"send",
         "--latency",
         "--duration",
         "200ms",
         "--sizes",
         "8,4K",
         "--histogram",
         (folder / "h").string(),
         "--report",
         (folder / "r.html").string()}
    );
    INFO(o.output << o.error);
    CHECK(o.status == 0);
    CHECK(o.error.empty());  // no progress line: standard error is no terminal
    // Counted from the first operation on, a little after the start of --duration.
    CHECK(first_round(o).get<double>("seconds") >= 0.15);
    CHECK(std::filesystem::file_size(folder / "h") > 100);
    CHECK(std::filesystem::file_size(folder / "r.html") > 2000);
    std::filesystem::remove_all(folder);
}

TEST_CASE("a rate is kept, and every operation is timed from when it was due", "[bench]") {
    child_process p{
        {bench,
         "loopback",
         "write",
         "--address",
         device_address(),
         "--json",
         json_file().string(),
         "--sizes",
         "8",
         "--rate",
         "1000",
         "--warm-up",
         "1",
         "--iterations",
         "2000"}};
    REQUIRE(p.wait_for_output("bytes  operations"));
    // A pause of the whole program. In a closed loop one operation would have seen it.
    std::this_thread::sleep_for(300ms);
    p.signal(SIGSTOP);
    std::this_thread::sleep_for(400ms);
    p.signal(SIGCONT);
    outcome const o = finish(p, json_file());
    INFO(o.output << o.error);
    REQUIRE(o.status == 0);
    auto const& round = first_round(o);
    CHECK(round.get<int>("operations") == 2000);
    CHECK(round.get<double>("seconds") >= 1.99);
    CHECK(round.get<int>("latency_us.count") == 2000);
    // Those that were due in the first 200 ms of the pause: a tenth.
    CHECK(round.get<double>("latency_us.p99") >= 200'000);
    int over_time = 0;
    double longest = 0;
    for (auto const& [name, each] : round.get_child("latency_over_time")) {
        over_time += each.get<int>("operations");
        longest = std::max(longest, each.get<double>("max_us"));
    }
    CHECK(over_time == 2000);
    CHECK(longest >= 300'000);
}

TEST_CASE("how evenly connections are served is measured", "[bench]") {
    outcome const o = loopback(
        {"write", "--connections", "3", "--threads", "1", "--sizes", "8", "--iterations", "256"}
    );
    INFO(o.output << o.error);
    REQUIRE(o.status == 0);
    CHECK(first_round(o).get<int>("served.least") == 256);
    CHECK(first_round(o).get<int>("served.most") == 256);
    CHECK(o.output.find("least/most") != std::string::npos);
}

TEST_CASE("results name both machines, and one process counts its time once", "[bench]") {
    outcome const o = loopback({"write", "--sizes", "8", "--iterations", "256"});
    INFO(o.output << o.error);
    REQUIRE(o.status == 0);
    auto const& round = first_round(o);
    CHECK(round.get<std::string>("server_cpu_us_per_operation") == "null");
    for (char const* const side : {"machine", "server_machine"}) {
        INFO(side);
        auto const& machine = o.json.get_child(side);
        CHECK(machine.get<std::string>("address") == device_address());
        CHECK_FALSE(machine.get<std::string>("device").empty());
        CHECK_FALSE(machine.get<std::string>("kernel").empty());
        CHECK(machine.get<unsigned>("path_mtu") >= 256);
    }
}

TEST_CASE(
    "threads are pinned and memory is allocated as requested, or an error has the reason", "[bench]"
) {
    for (std::vector<std::string> more :
         {std::vector<std::string>{"--cpus", "0"},
          {"--alignment", "1"},
          {"--registration", "per-operation"},
          {"--inline", "64"}}) {
        more.insert(more.begin(), {"write", "--sizes", "24", "--iterations", "64", "--verify"});
        outcome const o = loopback(more);
        INFO(more[6] << o.output << o.error);
        CHECK(o.status == 0);
        CHECK(first_round(o).get<int>("operations") == 64);
    }
    outcome const nowhere = loopback({"write", "--iterations", "8", "--cpus", "5000"});
    CHECK(nowhere.status == 1);
    CHECK_FALSE(nowhere.error.empty());
}

TEST_CASE("many connections are opened and held", "[bench]") {
    outcome const o = loopback(
        {"connect",
         "--connections",
         "100",
         "--threads",
         "1",
         "--poll",
         "event",
         "--duration",
         "300ms"}
    );
    INFO(o.output << o.error);
    REQUIRE(o.status == 0);
    CHECK(o.json.get<int>("opening.connections") == 100);
    CHECK(o.json.get<double>("opening.seconds") > 0);
    CHECK(o.json.get<double>("opening.idle_seconds") >= 0.3);
}

TEST_CASE(
    "a server serves clients in turn, refuses invalid orders, and ends after a signal", "[bench]"
) {
    child_process server{{bench, "server", "--port", "0"}};
    REQUIRE(server.wait_for_output(".\n"));
    std::string const before = "listening on port ";
    std::string const port =
        server.output().substr(before.size(), server.output().find('.') - before.size());
    auto const measure = [&](std::vector<std::string> more) {
        more.insert(
            more.begin(), {bench, "client", device_address(), port, "write", "--sizes", "8"}
        );
        child_process p{std::move(more)};
        auto const status = p.wait();
        INFO(p.output() << p.error());
        return status;
    };
    CHECK(measure({"--iterations", "100"}) == 0);
    // A client that is killed in the middle does not affect the next.
    {
        child_process killed = measuring_client(port);
        killed.signal(SIGKILL);
        killed.wait();
    }
    CHECK(measure({"--iterations", "100", "--bidirectional"}) == 0);
    {
        child_process demo{
            {(std::filesystem::path{bench}.parent_path() / "rdma-client").string(),
             "write",
             device_address(),
             port}};
        CHECK(demo.wait() != 0);
    }
    CHECK(measure({"--iterations", "100"}) == 0);
    server.signal(SIGTERM);
    CHECK(server.wait() == 0);
}

TEST_CASE("a client whose server vanishes prints the reason", "[bench]") {
    child_process server{{bench, "server", "--port", "0"}};
    REQUIRE(server.wait_for_output(".\n"));
    std::string const before = "listening on port ";
    std::string const port =
        server.output().substr(before.size(), server.output().find('.') - before.size());
    child_process client = measuring_client(port);
    server.signal(SIGKILL);
    CHECK(client.wait() == 5);
    CHECK_FALSE(client.error().empty());

    child_process nobody{{bench, "client", device_address(), port, "write"}};
    CHECK(nobody.wait() == 3);
}
