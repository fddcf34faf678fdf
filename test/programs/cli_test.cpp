// The programs' command lines: errors are reported with exit code 2 before any device is used.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <rcverbs/session_error.hpp>

#include "common/exit_code.hpp"
#include "common/version.hpp"
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
    arguments[0] =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / arguments[0]).string();
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
        {{"rdma-client", "write", "10.0.0.1", "1", "--size", "5"}, "--size"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--timeout", "5"}, "500ms"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--timeout", "0s"}, "500ms"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--timeout", "99999999999999s"}, "500ms"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--from", "nowhere"}, "--from"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--identity", "alice"}, "--key-file"},
        {{"rdma-client", "write", "10.0.0.1", "1", "--key-file", "/nonexistent"}, "/nonexistent"},
        {{"rdma-server", "write", "--port", "65536"}, "--port"},
        {{"rdma-server", "write", "--port", "-1"}, "--port"},
        {{"rdma-server", "write", "--bind", "nowhere"}, "--bind"},
        {{"rdma-server", "write", "--poll", "sometimes"}, "--poll"},
        {{"rdma-server", "write", "--hold-at", "nowhere"}, "--hold-at"},
        {{"rdma-server", "write", "--what"}, "--what"},
        {{"rdma-doctor", "--what"}, "--what"},
        {{"rdma-doctor", "--timeout", "0s"}, "500ms"},
        {{"rdma-doctor", "--address", "nowhere"}, "nowhere is not an IP address"},
        {{"rdma-bench"}, "subcommand"},
        {{"rdma-bench", "client", "10.0.0.1"}, "port"},
        {{"rdma-bench", "client", "10.0.0.1", "1", "erase"}, "erase"},
        {{"rdma-bench", "client", "10.0.0.1", "1", "write", "--from", "nowhere"}, "--from"},
        {{"rdma-bench", "loopback", "write", "--sizes", "0"}, "--sizes"},
        {{"rdma-bench", "loopback", "write", "--repeat", "0"}, "--repeat"},
        {{"rdma-bench", "loopback", "write", "--sizes", "1..8M", "--repeat", "3"}, "64 sizes"},
        {{"rdma-bench", "compare", "a.json"}, "B"},
        {{"rdma-bench", "compare", "a.json", "b.json", "--require", "rate"}, "--require"},
        {{"rdma-bench", "loopback", "write", "--depth", "0"}, "--depth"},
        {{"rdma-bench", "loopback", "write", "--batch", "200"}, "batch"},
        {{"rdma-bench", "loopback", "write", "--latency", "--depth", "2"}, "latency"},
        {{"rdma-bench", "loopback", "fetch-add", "--sizes", "16"}, "8 bytes"},
        {{"rdma-bench", "loopback", "send", "--registration", "per-operation"}, "write and read"},
        {{"rdma-bench", "loopback", "write", "--corrupt"}, "--corrupt needs --verify"},
        {{"rdma-bench", "loopback", "write", "--histogram", "x"}, "--latency"},
        {{"rdma-bench", "loopback", "write", "--address", "nowhere"}, "--address"},
        {{"rdma-bench", "server", "--bind", "nowhere"}, "--bind"},
        {{"rdma-bench", "server", "--memory", "0"}, "--memory"},
        {{"rdma-bench", "server", "--memory", "1T"}, "--memory"},
        {{"rdma-bench", "loopback", "write", "-c", "1025"}, "at most 1024 polling threads"},
        {{"rdma-nvme", "serve", "/tmp"}, "/tmp is no file or block device of a block or more"},
        {{"rdma-nvme", "serve", "--memory", "1M", "--controller-ids", "5"}, "controller numbers"},
        {{"rdma-nvme", "serve", "--memory", "1M", "--write-through"},
         "--write-through requires --nbd"},
        {{"rdma-nvme", "serve", "--nbd", "nbd://a", "--direct"}, "--nbd excludes --direct"},
        {{"rdma-nvme", "serve", "--memory", "1M", "--poll", "sometimes"}, "--poll: Check"},
        {{"rdma-nvme", "serve", "--config", "x", "--allow-host", "nqn.y:z"}, "--config excludes"},
        {{"rdma-nvme", "serve", "--config", "x", "--read-only"}, "--config excludes"},
        {{"rdma-bench", "server", "--port", "65536"}, "--port"},
    };
    for (expectation const& e : cases) {
        outcome const o = run(e.arguments);
        INFO(e.arguments[0] << ": " << o.error << o.output);
        CHECK(o.status == 2);
        CHECK(o.error.find(e.reason) != std::string::npos);
    }
}

TEST_CASE("a file that cannot be written is an error before anything is measured", "[cli]") {
    for (std::string const option : {"--json", "--histogram", "--report"}) {
        outcome const o = run(
            {"rdma-bench",
             "client",
             "127.0.0.1",
             "1",
             "write",
             "--latency",
             option,
             "/no/such/folder/file"}
        );
        INFO(option << ": " << o.error << o.output);
        CHECK(o.status == 1);
        CHECK(o.error.find("cannot write /no/such/folder/file") != std::string::npos);
    }
}

TEST_CASE("a host that is not known, or not given, cannot be connected to", "[cli]") {
    for (auto const& [host, reason] :
         {std::pair{"no.such.host.invalid", "unknown host no.such.host.invalid"},
          {"", "no host given"}}) {
        for (outcome const& o :
             {run({"rdma-client", "write", host, "1"}),
              run({"rdma-bench", "client", host, "1", "write"})}) {
            INFO(o.error << o.output);
            CHECK(o.status == 3);
            CHECK_THAT(o.error, ContainsSubstring(reason));
        }
    }
}

TEST_CASE("help exits with 0 and documents the exit codes", "[cli]") {
    for (std::vector<std::string> const& command :
         {std::vector<std::string>{"rdma-bench", "client"},
          {"rdma-bench", "loopback"},
          {"rdma-client"},
          {"rdma-server"}}) {
        std::vector<std::string> asking = command;
        asking.emplace_back("--help");
        outcome const o = run(asking);
        CHECK(o.status == 0);
        CHECK(o.output.find("7  the data did not verify") != std::string::npos);
        CHECK(o.output.find("write|read") != std::string::npos);
    }
}

#ifdef RCVERBS_HAS_NVME
TEST_CASE("options that only the library checks are reported with their place", "[cli]") {
    auto const file = std::filesystem::temp_directory_path() /
                      ("rcverbs-places-" + std::to_string(::getpid()) + ".json");
    struct expectation {
        std::string fields;
        std::string reason;
    };
    std::string const disk = R"("namespaces": [{"memory": "1M"}])";
    for (expectation const& e :
         {expectation{R"("nqn": "disk", )" + disk, "disk: NQN is not \"nqn.\" and"},
          {R"("nqn": "nqn.x:y", "serial": "0123456789012345678901", )" + disk,
           "nqn.x:y: \"serial\" is not at most 20"},
          {R"("nqn": "nqn.x:y", "secrets": [{"host": "nqn.h", "secret": "x"}], )" + disk,
           "nqn.x:y: \"secret\" is not of the form"},
          {R"("nqn": "nqn.x:y", "namespaces": [{"memory": "1M"}, {"id": 2000, "memory": "1M"}])",
           "nqn.x:y, namespace 2000: namespace \"id\" is 2000, not 1 to 1024"},
          {R"("nqn": "nqn.x:y", "namespaces": [{"memory": "1M"}, {"memory": "4097"}])",
           "nqn.x:y, namespace 2: size is not a multiple"}}) {
        std::ofstream{file} << R"({"subsystems": [{)" + e.fields + "}]}";
        outcome const o = run({"rdma-nvme", "serve", "--config", file.string()});
        INFO(o.error);
        CHECK(o.status == 2);
        CHECK_THAT(
            o.error, ContainsSubstring("rdma-nvme: " + file.string() + ": subsystem " + e.reason)
        );
    }
    std::filesystem::remove(file);
}
#endif

TEST_CASE("each program prints its name and one version with --version", "[cli]") {
    for (std::string const program :
         {"rdma-bench",
          "rdma-client",
          "rdma-copy",
          "rdma-doctor",
#ifdef RCVERBS_HAS_NVME
          "rdma-nvme",
#endif
          "rdma-server"}) {
        outcome const o = run({program, "--version"});
        INFO(program << ": " << o.error);
        CHECK(o.status == 0);
        CHECK(o.output == program + ' ' + demo::version() + '\n');
    }
}

TEST_CASE("every error has the exit code that the help documents", "[cli]") {
    using demo::exit_code;
    using rcverbs::cm_errc;
    using rcverbs::errc;
    using rcverbs::step;
    using rcverbs::wc_errc;
    struct row {
        rcverbs::error_code ec;
        step where;
        exit_code code;
    };
    rcverbs::error_code const no_memory{ENOMEM, boost::system::system_category()};
    for (row const& r : std::vector<row>{
             {{}, step::transfer, exit_code::done},
             {cm_errc::rejected_no_listener, step::connect, exit_code::could_not_connect},
             {cm_errc::address_error, step::resolve_address, exit_code::could_not_connect},
             {errc::no_rdma_device, step::resolve_address, exit_code::could_not_connect},
             {errc::timed_out, step::connect, exit_code::deadline_passed},
             {errc::stalled, step::transfer, exit_code::deadline_passed},
             {errc::idle, step::transfer, exit_code::deadline_passed},
             {errc::peer_disconnected, step::exchange, exit_code::peer_gone},
             {rcverbs::session_errc::peer_closed_early, step::finish, exit_code::peer_gone},
             {errc::port_down, step::transfer, exit_code::peer_gone},
             {errc::device_removed, step::transfer, exit_code::peer_gone},
             {wc_errc::retry_exceeded, step::transfer, exit_code::peer_gone},
             {wc_errc::flushed, step::transfer, exit_code::peer_gone},
             {wc_errc::remote_access, step::transfer, exit_code::refused},
             {wc_errc::remote_invalid_request, step::transfer, exit_code::refused},
             {wc_errc::local_length, step::exchange, exit_code::refused},
             {wc_errc::local_qp_operation, step::exchange, exit_code::refused},
             {errc::read_depth_zero, step::transfer, exit_code::refused},
             {errc::misaligned, step::transfer, exit_code::refused},
             {rcverbs::session_errc::mode_mismatch, step::handshake, exit_code::refused},
             {rcverbs::session_errc::peer_busy, step::handshake, exit_code::refused},
             {rcverbs::session_errc::malformed_message, step::exchange, exit_code::refused},
             {errc::peer_violation, step::transfer, exit_code::refused},
             {no_memory, step::exchange, exit_code::other},
             {no_memory, step::create_queue_pair, exit_code::could_not_connect},
         }) {
        INFO(r.ec.message() << " at " << to_string(r.where));
        CHECK(demo::exit_code_for(r.ec, r.where) == r.code);
    }
}

TEST_CASE("the doctor fails if no RDMA connection worked, and prints the reason", "[cli]") {
    // An address reserved for documentation, which no machine has.
    outcome const o = run({"rdma-doctor", "--address", "198.51.100.7", "--timeout", "500ms"});
    CHECK(o.status == 1);
    CHECK_THAT(
        o.output,
        ContainsSubstring("self-test at 198.51.100.7: nothing succeeded; then: ") &&
            EndsWith("RDMA does not work on this machine.\n")
    );
}
