// The programs' command lines: what is wrong is said, with exit code 2, before any device is touched.
#include <filesystem>

#include "support/catch.hpp"
#include "support/child_process.hpp"

using namespace test;

namespace {

struct outcome {
    std::optional<int> status;
    std::string output;
    std::string error;
};

outcome run(std::vector<std::string> arguments) {
    arguments[0] = (std::filesystem::read_symlink("/proc/self/exe").parent_path() / arguments[0]).string();
    child_process c{std::move(arguments)};
    auto const status = c.wait();
    return {status, c.output(), c.error()};
}

}  // namespace

TEST_CASE("wrong command lines are usage errors with their reason", "[cli]") {
    struct expectation {
        std::vector<std::string> arguments;
        std::string reason;
    };
    std::vector<expectation> const cases{
        {{"rdma-client"}, "mode"},
        {{"rdma-client", "erase", "10.0.0.1", "1"}, "erase"},
        {{"rdma-client", "write", "10.0.0.1", "0"}, "65535"},
        {{"rdma-client", "write", "10.0.0.1", "99999"}, "99999"},
        {{"rdma-client", "write", "10.0.0.1", "http"}, "http"},
        {{"rdma-client", "write", "no.such.host.invalid", "1"}, "unknown host no.such.host.invalid"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--size", "5"}, "--size"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--timeout", "5"}, "500ms"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--timeout", "0s"}, "500ms"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--timeout", "99999999999999s"}, "500ms"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--from", "nowhere"}, "--from"},
        {{"rdma-server", "write", "--port", "65536"}, "--port"},
        {{"rdma-server", "write", "--port", "-1"}, "--port"},
        {{"rdma-server", "write", "--bind", "nowhere"}, "--bind"},
        {{"rdma-server", "write", "--poll", "sometimes"}, "--poll"},
        {{"rdma-server", "write", "--hold-at", "nowhere"}, "--hold-at"},
        {{"rdma-server", "write", "--what"}, "--what"},
    };
    for (expectation const& e : cases) {
        outcome const o = run(e.arguments);
        INFO(e.arguments[0] << ": " << o.error << o.output);
        CHECK(o.status == 2);
        CHECK(o.error.find(e.reason) != std::string::npos);
    }
}

TEST_CASE("help exits with 0 and documents the exit codes", "[cli]") {
    for (std::string const program : {"rdma-client", "rdma-server"}) {
        outcome const o = run({program, "--help"});
        CHECK(o.status == 0);
        CHECK(o.output.find("7  the data did not verify") != std::string::npos);
        CHECK(o.output.find("write|read") != std::string::npos);
    }
}
