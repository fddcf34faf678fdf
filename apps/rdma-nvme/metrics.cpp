#include "rdma-nvme/metrics.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include <memory>
#include <utility>

namespace demo {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using rcverbs::nvme::target_statistics;

namespace {

struct metric {
    char const* name;
    char const* type;
    char const* help;
    std::uint64_t target_statistics::*value;
};

constexpr metric metrics[] = {
    {"controllers", "gauge", "Controllers at this moment", &target_statistics::controllers},
    {"queues", "gauge", "Queues at this moment", &target_statistics::queues},
    {"commands", "gauge", "Commands at this moment", &target_statistics::commands},
    {"controllers_made", "counter", "Controllers made", &target_statistics::controllers_made},
    {"refused", "counter", "Connections refused", &target_statistics::refused},
    {"keep_alive_expired", "counter", "Hosts lost", &target_statistics::keep_alive_expired},
    {"reads", "counter", "Reads", &target_statistics::reads},
    {"read_bytes", "counter", "Bytes read", &target_statistics::read_bytes},
    {"writes", "counter", "Writes", &target_statistics::writes},
    {"written_bytes", "counter", "Bytes written", &target_statistics::written_bytes},
    {"other_commands", "counter", "Other I/O commands", &target_statistics::other_commands},
    {"failed_commands", "counter", "Commands with an error", &target_statistics::failed_commands},
    {"transfers_stalled",
     "counter",
     "Queues that took no transfer",
     &target_statistics::transfers_stalled},
    {"store_failures",
     "counter",
     "Requests that a store failed",
     &target_statistics::store_failures},
};

using stream = beast::basic_stream<asio::generic::stream_protocol>;
constexpr std::chrono::seconds patience{5};
// Descriptors that scrapers may hold.
constexpr std::size_t exchanges_max = 16;
constexpr std::size_t request_bytes_max = 4096;

// One request on one connection.
struct exchange : std::enable_shared_from_this<exchange> {
    exchange(stream s, target_statistics now, std::shared_ptr<std::size_t> open)
        : peer{std::move(s)},
          sample{now},
          open_{std::move(open)} {
        ++*open_;
        parser.header_limit(request_bytes_max);
        parser.body_limit(0);
    }

    ~exchange() { --*open_; }

    void start() {
        peer.expires_after(patience);
        http::async_read(
            peer,
            buffer,
            parser,
            [self = shared_from_this()](error_code const& ec, std::size_t) {
                if (!ec) self->answer();
            }
        );
    }
    void answer() {
        bool const is_text = parser.get().target() == "/metrics";
        bool const is_json = parser.get().target() == "/statistics";
        bool const is_get = parser.get().method() == http::verb::get;
        response.version(11);
        response.keep_alive(false);
        response.result(
            !is_get              ? http::status::method_not_allowed
            : is_text || is_json ? http::status::ok
                                 : http::status::not_found
        );
        response.set(
            http::field::content_type, is_json ? "application/json" : "text/plain; version=0.0.4"
        );
        if (is_get && is_text) response.body() = to_prometheus(sample);
        if (is_get && is_json) response.body() = to_json(sample) + '\n';
        response.prepare_payload();
        http::async_write(
            peer, response, [self = shared_from_this()](error_code const&, std::size_t) {}
        );
    }

    using error_code = boost::system::error_code;
    stream peer;
    target_statistics const sample;
    std::shared_ptr<std::size_t> const open_;
    beast::flat_buffer buffer{request_bytes_max};
    http::request_parser<http::empty_body> parser;
    http::response<http::string_body> response;
};

bool is_port(std::string const& at) {
    return !at.empty() && at.find_first_not_of("0123456789") == std::string::npos;
}

asio::generic::stream_protocol::endpoint endpoint_of(std::string const& at) {
    if (!is_port(at)) {
        // The socket of an earlier run; nothing else is removed.
        struct stat there {};
        if (::stat(at.c_str(), &there) == 0 && S_ISSOCK(there.st_mode)) ::unlink(at.c_str());
        return asio::local::stream_protocol::endpoint{at};
    }
    return asio::ip::tcp::endpoint{
        asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::stoul(at))};
}

}  // namespace

std::string to_json(target_statistics const& s) {
    nlohmann::ordered_json out;
    for (metric const& m : metrics) out[m.name] = s.*m.value;
    return out.dump();
}

std::string to_prometheus(target_statistics const& s) {
    std::string out;
    for (metric const& m : metrics) {
        bool const is_counter = std::string{m.type} == "counter";
        std::string const name = std::string{"rdma_nvme_"} + m.name + (is_counter ? "_total" : "");
        out += "# HELP " + name + ' ' + m.help + ".\n# TYPE " + name + ' ' + m.type + '\n' + name +
               ' ' + std::to_string(s.*m.value) + '\n';
    }
    return out;
}

metrics_server::metrics_server(
    asio::io_context& io, std::string const& at, std::function<target_statistics()> sample
)
    : path_{is_port(at) ? std::string{} : at},
      sample_{std::move(sample)},
      acceptor_{io, endpoint_of(at)},
      pause_{io} {
    accept();
}

metrics_server::~metrics_server() {
    if (!path_.empty()) ::unlink(path_.c_str());
}

void metrics_server::close() {
    acceptor_.close();
    pause_.cancel();
}

void metrics_server::accept() {
    acceptor_.async_accept([this](boost::system::error_code const& ec, auto peer) {
        // Also if a peer had been accepted before close().
        if (!acceptor_.is_open()) return;
        if (ec) {
            // Out of descriptors: later there may be some.
            pause_.expires_after(std::chrono::milliseconds{100});
            return pause_.async_wait([this](boost::system::error_code const&) {
                if (acceptor_.is_open()) accept();
            });
        }
        // One too many is closed at once.
        if (*open_ < exchanges_max)
            std::make_shared<exchange>(stream{std::move(peer)}, sample_(), open_)->start();
        accept();
    });
}

}  // namespace demo
