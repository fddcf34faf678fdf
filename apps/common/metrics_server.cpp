#include "common/metrics_server.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "common/version.hpp"

namespace demo {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

using stream = beast::basic_stream<asio::generic::stream_protocol>;
constexpr std::chrono::seconds patience{5};
// Descriptors that scrapers may hold.
constexpr std::size_t exchanges_max = 16;
constexpr std::size_t request_bytes_max = 4096;

// One request on one connection.
struct exchange : std::enable_shared_from_this<exchange> {
    exchange(
        stream s,
        std::string const& name,
        std::vector<metric> now,
        std::shared_ptr<std::size_t> open
    )
        : peer{std::move(s)},
          program{name},
          sample{std::move(now)},
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
        if (is_get && is_text) response.body() = to_prometheus(program, sample);
        if (is_get && is_json) response.body() = to_json(sample) + '\n';
        response.prepare_payload();
        http::async_write(
            peer, response, [self = shared_from_this()](error_code const&, std::size_t) {}
        );
    }

    using error_code = boost::system::error_code;
    stream peer;
    std::string const program;
    std::vector<metric> const sample;
    std::shared_ptr<std::size_t> const open_;
    beast::flat_buffer buffer{request_bytes_max};
    http::request_parser<http::empty_body> parser;
    http::response<http::string_body> response;
};

auto const started = std::chrono::system_clock::now();

std::string head(std::string const& name, std::string const& help, std::string const& type) {
    return "# HELP " + name + ' ' + help + ".\n# TYPE " + name + ' ' + type + '\n';
}

std::string seconds(std::uint64_t nanoseconds) {
    constexpr std::uint64_t second = 1'000'000'000;
    std::string const part = std::to_string(nanoseconds % second);
    return std::to_string(nanoseconds / second) + '.' + std::string(9 - part.size(), '0') + part;
}

// {name="value",…}; the values may be of a peer's choice.
std::string text_of(std::vector<std::pair<std::string, std::string>> const& labels) {
    std::string out;
    for (auto const& [name, value] : labels) {
        out += (out.empty() ? '{' : ',') + name + "=\"";
        for (char const c : value) {
            if (c == '\n') out += "\\n";
            else if (c == '"' || c == '\\') out += {'\\', c};
            else out += c;
        }
        out += '"';
    }
    return out.empty() ? out : out + '}';
}

bool is_port(std::string const& at) {
    return !at.empty() && at.find_first_not_of("0123456789") == std::string::npos;
}

// A program that runs listens there.
bool is_served(asio::local::stream_protocol::endpoint const& place) {
    asio::io_context io;
    asio::local::stream_protocol::socket s{io};
    boost::system::error_code ec;
    s.connect(place, ec);
    return ec != asio::error::connection_refused;
}

asio::generic::stream_protocol::endpoint endpoint_of(std::string const& at) {
    if (!is_port(at)) {
        // The socket of an earlier run; nothing else is removed.
        struct stat there {};
        asio::local::stream_protocol::endpoint const place{at};
        if (::stat(at.c_str(), &there) == 0 && S_ISSOCK(there.st_mode) && !is_served(place))
            ::unlink(at.c_str());
        return place;
    }
    return asio::ip::tcp::endpoint{
        asio::ip::address_v4::loopback(), static_cast<std::uint16_t>(std::stoul(at))};
}

}  // namespace

std::string to_json(std::vector<metric> const& all) {
    nlohmann::ordered_json out;
    for (metric const& m : all) {
        if (m.labels.empty()) out[m.name] = m.value;
        else if (m.labels.size() == 1) out[m.name][m.labels.front().second] = m.value;
    }
    return out.dump();
}

std::string to_prometheus(std::string const& program, std::vector<metric> const& all) {
    std::string out;
    std::string last;
    for (metric const& m : all) {
        std::string const name = program + '_' + m.name + (m.is_counter ? "_total" : "");
        if (name != last) out += head(name, m.help, m.is_counter ? "counter" : "gauge");
        last = name;
        out += name + text_of(m.labels) + ' ' +
               (m.is_time ? seconds(m.value) : std::to_string(m.value)) + '\n';
    }
    std::string const build = program + "_build_info";
    out += head(build, "The version of the program", "gauge") + build +
           text_of({{"version", version()}}) + " 1\n";
    // The name that all programs have for it.
    std::string const start = "process_start_time_seconds";
    std::chrono::nanoseconds const since_epoch = started.time_since_epoch();
    out += head(start, "When the program was started, in seconds since 1970", "gauge") + start +
           ' ' + seconds(static_cast<std::uint64_t>(since_epoch.count())) + '\n';
    return out;
}

std::string fault_of_metrics_place(std::string const& at) {
    bool const is_number = at.find_first_not_of("0123456789") == std::string::npos;
    if (at.empty()) return std::string{"a port or a path is missing"};
    bool const is_right = !is_number || (at.size() <= 5 && std::stoul(at) <= 65535);
    return is_right ? std::string{} : at + " is not a port";
}

asio::basic_socket_acceptor<asio::generic::stream_protocol> listen_at(
    asio::io_context& io, std::string const& at
) {
    boost::system::error_code ec;
    asio::basic_socket_acceptor<asio::generic::stream_protocol> a{io};
    auto const place = endpoint_of(at);
    a.open(place.protocol(), ec);
    if (!ec) a.set_option(asio::socket_base::reuse_address{is_port(at)}, ec);
    if (!ec) a.bind(place, ec);
    if (!ec) a.listen(asio::socket_base::max_listen_connections, ec);
    if (ec) throw std::runtime_error{"no statistics at " + at + ": " + ec.message()};
    return a;
}

metrics_server::metrics_server(
    asio::io_context& io,
    std::string const& at,
    std::string program,
    std::function<std::vector<metric>()> sample
)
    : path_{is_port(at) ? std::string{} : at},
      program_{std::move(program)},
      sample_{std::move(sample)},
      acceptor_{listen_at(io, at)},
      pause_{io} {
    accept();
}

metrics_server::~metrics_server() {
    if (!path_.empty()) ::unlink(path_.c_str());
}

std::uint16_t metrics_server::port() const {
    if (!path_.empty()) return 0;
    asio::generic::stream_protocol::endpoint const here = acceptor_.local_endpoint();
    asio::ip::tcp::endpoint tcp;
    std::memcpy(tcp.data(), here.data(), std::min(here.size(), tcp.capacity()));
    return tcp.port();
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
            std::make_shared<exchange>(stream{std::move(peer)}, program_, sample_(), open_)
                ->start();
        accept();
    });
}

}  // namespace demo
