// metrics_server.hpp — counters of a program as JSON and as Prometheus text, over HTTP.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace demo {

struct metric {
    std::string name;
    /// Or it can fall.
    bool is_counter = true;
    std::string help;
    std::uint64_t value = 0;
    /// Names and values that tell metrics of one name apart; those of a name are listed one after the other.
    std::vector<std::pair<std::string, std::string>> labels = {};
    /// The value is in nanoseconds, and shown in seconds.
    bool is_time = false;
};

/// One JSON object in one line. Metrics of one label are an object in it, by the label's values; those of several
/// labels are left out.
std::string to_json(std::vector<metric> const& all);
/// Prometheus' text exposition format 0.0.4. Names begin with `program` and an underscore. Includes the
/// version of the program (`_build_info`), and when it was started (`process_start_time_seconds`).
std::string to_prometheus(std::string const& program, std::vector<metric> const& all);

/// Why a text is no place for a metrics_server; empty if it is one.
std::string fault_of_metrics_place(std::string const& at);

/// Serves GET /metrics (Prometheus) and GET /statistics (JSON) over HTTP.
class metrics_server {
public:
    /// @param at       A port of 127.0.0.1, 0 for one that is free, or the path of a Unix socket, which is
    ///                 replaced if no program listens there.
    /// @param program  Before the names of Prometheus' metrics.
    /// @throws std::runtime_error: what is at fault, in words.
    metrics_server(
        boost::asio::io_context& io,
        std::string const& at,
        std::string program,
        std::function<std::vector<metric>()> sample
    );
    ~metrics_server();
    /// The port; 0 for a Unix socket.
    std::uint16_t port() const;
    /// Ends all waits.
    void close();

private:
    void accept();

    std::string path_;  // of the Unix socket
    std::string const program_;
    std::function<std::vector<metric>()> sample_;
    boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol> acceptor_;
    std::shared_ptr<std::size_t> const open_ = std::make_shared<std::size_t>(0);  // exchanges
    boost::asio::steady_timer pause_;
};

}  // namespace demo
