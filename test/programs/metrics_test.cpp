// The counters of rdma-nvme over HTTP.
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>

#include <filesystem>
#include <string>

#include <unistd.h>

#include "rdma-nvme/metrics.hpp"
#include "support/catch.hpp"

namespace asio = boost::asio;
using namespace std::chrono_literals;

TEST_CASE(
    "a metrics server that is closed when a peer has connected does not go on", "[programs]"
) {
    asio::io_context io;
    std::string const path =
        std::filesystem::temp_directory_path() / ("metrics-" + std::to_string(::getpid()));
    demo::metrics_server server{io, path, [] { return rcverbs::nvme::target_statistics{}; }};
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
