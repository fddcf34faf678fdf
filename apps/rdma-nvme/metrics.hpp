// metrics.hpp — the counters of a target as JSON and as Prometheus text, and over HTTP.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <rcverbs/nvme/target.hpp>

namespace demo {

/// One JSON object in one line.
std::string to_json(rcverbs::nvme::target_statistics const& s);
/// Prometheus' text exposition format 0.0.4.
std::string to_prometheus(rcverbs::nvme::target_statistics const& s);

/// Serves GET /metrics (Prometheus) and GET /statistics (JSON) over HTTP.
class metrics_server {
public:
    /// @param at  A port of 127.0.0.1, or the path of a Unix socket, which is replaced.
    /// @throws boost::system::system_error: errno of bind(2).
    metrics_server(
        boost::asio::io_context& io,
        std::string const& at,
        std::function<rcverbs::nvme::target_statistics()> sample
    );
    ~metrics_server();
    /// Ends all waits.
    void close();

private:
    void accept();

    std::string path_;  // of the Unix socket
    std::function<rcverbs::nvme::target_statistics()> sample_;
    boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol> acceptor_;
    std::shared_ptr<std::size_t> const open_ = std::make_shared<std::size_t>(0);  // exchanges
    boost::asio::steady_timer pause_;
};

}  // namespace demo
