// Counters of a program over HTTP.
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

#include "common/metrics_server.hpp"
#include "support/catch.hpp"
#include "support/folder.hpp"

namespace asio = boost::asio;
using namespace std::chrono_literals;

TEST_CASE("a metrics server holds a bounded number of connections", "[programs]") {
    asio::io_context io;
    std::string const path =
        std::filesystem::temp_directory_path() / ("metrics-many-" + std::to_string(::getpid()));
    demo::metrics_server server{io, path, "sample", [] { return std::vector<demo::metric>{}; }};
    asio::io_context of_peers;
    std::vector<asio::local::stream_protocol::socket> peers;
    for (int i = 0; i < 40; ++i) {
        peers.emplace_back(of_peers).connect(asio::local::stream_protocol::endpoint{path});
        io.run_for(5ms);
    }
    // Those beyond the limit have been closed.
    int closed = 0;
    for (auto& each : peers) {
        each.non_blocking(true);
        char byte = 0;
        boost::system::error_code ec;
        each.read_some(asio::buffer(&byte, 1), ec);
        closed += ec == asio::error::eof;
    }
    CHECK(closed == 40 - 16);
    // There is room again when one has left.
    peers.front().close();
    io.run_for(20ms);
    auto& next = peers.emplace_back(of_peers);
    next.connect(asio::local::stream_protocol::endpoint{path});
    asio::write(next, asio::buffer(std::string{"GET /statistics HTTP/1.1\r\nHost: x\r\n\r\n"}));
    io.run_for(50ms);
    std::array<char, 16> answer{};
    CHECK(next.read_some(asio::buffer(answer)) == answer.size());
    CHECK(std::string{answer.data(), 15} == "HTTP/1.1 200 OK");
    server.close();
}

TEST_CASE(
    "a metrics server replaces the socket of a program that has ended, and no other", "[programs]"
) {
    asio::io_context io;
    test::folder here;
    std::string const path = here / "socket";
    auto const none = [] { return std::vector<demo::metric>{}; };
    {
        // It leaves its name, as a program that is killed does.
        asio::local::stream_protocol::acceptor ended{
            io, asio::local::stream_protocol::endpoint{path}};
    }
    REQUIRE(std::filesystem::exists(path));
    demo::metrics_server first{io, path, "sample", none};
    CHECK(first.port() == 0);
    CHECK_THROWS_WITH(
        (demo::metrics_server{io, path, "sample", none}),
        "no statistics at " + path + ": Address already in use"
    );
    asio::local::stream_protocol::socket peer{io};
    peer.connect(asio::local::stream_protocol::endpoint{path});
    first.close();
}

TEST_CASE("a metrics server with port 0 picks one and says which", "[programs]") {
    asio::io_context io;
    auto const none = [] { return std::vector<demo::metric>{}; };
    demo::metrics_server server{io, "0", "sample", none};
    REQUIRE(server.port() != 0);
    asio::ip::tcp::socket peer{io};
    peer.connect({asio::ip::address_v4::loopback(), server.port()});
    CHECK_THROWS_WITH(
        (demo::metrics_server{io, std::to_string(server.port()), "sample", none}),
        "no statistics at " + std::to_string(server.port()) + ": Address already in use"
    );
    server.close();
}

TEST_CASE(
    "a metrics server that is closed when a peer has connected does not go on", "[programs]"
) {
    asio::io_context io;
    std::string const path =
        std::filesystem::temp_directory_path() / ("metrics-" + std::to_string(::getpid()));
    demo::metrics_server server{io, path, "sample", [] { return std::vector<demo::metric>{}; }};
    asio::io_context of_peers;
    asio::local::stream_protocol::socket first{of_peers};
    asio::local::stream_protocol::socket second{of_peers};
    first.connect(asio::local::stream_protocol::endpoint{path});
    second.connect(asio::local::stream_protocol::endpoint{path});
    // run() calls: this function; the handler of the first peer, which queues that of the second;
    // the inner function; the handler of the second peer.
    asio::post(io, [&] {
        asio::post(io, [&] {
            server.close();
            first.close();
            second.close();
        });
    });
    io.run_for(2s);
    CHECK(io.stopped());
}

TEST_CASE("metrics have escaped labels, one head for each name, and the build", "[programs]") {
    using test::ContainsSubstring;
    std::vector<demo::metric> const all{
        {"queues", false, "Queues", 3},
        {"reads", true, "Reads", 1, {{"host", "a\"b\\c\nd"}, {"namespace", "1"}}},
        {"reads", true, "Reads", 2, {{"host", "e"}, {"namespace", "1"}}},
        {"store_seconds", true, "Time", 1'000'000'007, {{"host", "e"}, {"namespace", "1"}}, true},
        {"old", false, "Old", 4, {{"state", "a"}}},
        {"old", false, "Old", 5, {{"state", "b"}}}};
    std::string const text = demo::to_prometheus("sample", all);
    std::string const expected = R"(# HELP sample_queues Queues.
# TYPE sample_queues gauge
sample_queues 3
# HELP sample_reads_total Reads.
# TYPE sample_reads_total counter
sample_reads_total{host="a\"b\\c\nd",namespace="1"} 1
sample_reads_total{host="e",namespace="1"} 2
# HELP sample_store_seconds_total Time.
# TYPE sample_store_seconds_total counter
sample_store_seconds_total{host="e",namespace="1"} 1.000000007
# HELP sample_old Old.
# TYPE sample_old gauge
sample_old{state="a"} 4
sample_old{state="b"} 5
# HELP sample_build_info The version of the program.
# TYPE sample_build_info gauge
sample_build_info{version=")";
    CHECK(text.substr(0, expected.size()) == expected);
    std::string const started = "\nprocess_start_time_seconds ";
    std::size_t const at = text.find(started);
    REQUIRE(at != text.npos);
    // In this process' time, which began after 2020.
    CHECK(std::stod(text.substr(at + started.size())) > 1.5e9);
    CHECK(demo::to_json(all) == R"({"queues":3,"old":{"a":4,"b":5}})");
}
