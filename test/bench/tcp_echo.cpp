// tcp_echo — messages and their echoes over a TCP socket with Boost.Asio: the program that users of
// channels have had before.
//
//     tcp_echo server ADDRESS
//     tcp_echo client ADDRESS PORT --size 64 --count 10000 --depth 16
//
// The options and the output are raw_echo's. One read for each message; the client reads while it
// writes.
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "bench/echo_options.hpp"

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

void check(error_code ec) {
    if (ec) throw boost::system::system_error{ec};
}

// Echoes from the memory that it has read into.
class echo_server {
public:
    echo_server(tcp::socket s, bench::echo_options const& o)
        : socket_{std::move(s)},
          bytes_(o.size) {
        socket_.set_option(tcp::no_delay{true});
    }
    void serve() {
        asio::async_read(socket_, asio::buffer(bytes_), [this](error_code ec, std::size_t) {
            if (ec == asio::error::eof) return;
            check(ec);
            asio::async_write(
                socket_,
                asio::buffer(bytes_),
                [this](error_code failed, std::size_t) {
                    check(failed);
                    serve();
                }
            );
        });
    }

private:
    tcp::socket socket_;
    std::vector<std::byte> bytes_;
};

class echo_client {
public:
    echo_client(asio::io_context& io, bench::echo_options const& o)
        : options_{o},
          socket_{io},
          out_(o.size),
          in_(o.size) {}

    void run() {
        socket_.connect({asio::ip::make_address(options_.address), options_.port});
        socket_.set_option(tcp::no_delay{true});
        began_ = std::chrono::steady_clock::now();
        read();
        write();
    }

private:
    void write() {
        bool const is_full = asked_ - answered_ == options_.depth;
        if (is_writing_ || is_full || asked_ == options_.count) return;
        is_writing_ = true;
        ++asked_;
        asio::async_write(socket_, asio::buffer(out_), [this](error_code ec, std::size_t) {
            check(ec);
            is_writing_ = false;
            write();
        });
    }
    void read() {
        asio::async_read(socket_, asio::buffer(in_), [this](error_code ec, std::size_t) {
            check(ec);
            if (++answered_ == options_.count) {
                bench::print_rate(options_, began_);
                return socket_.close();
            }
            write();
            read();
        });
    }

    bench::echo_options const& options_;
    tcp::socket socket_;
    std::vector<std::byte> out_;
    std::vector<std::byte> in_;
    std::chrono::steady_clock::time_point began_;
    std::uint64_t asked_ = 0;
    std::uint64_t answered_ = 0;
    bool is_writing_ = false;
};

void serve(bench::echo_options const& o) {
    asio::io_context io{1};
    tcp::acceptor door{io, {asio::ip::make_address(o.address), o.port}};
    std::printf("listens on %u\n", unsigned{door.local_endpoint().port()});
    echo_server one{door.accept(), o};
    one.serve();
    io.run();
}

void ask(bench::echo_options const& o) {
    asio::io_context io{1};
    echo_client one{io, o};
    one.run();
    io.run();
}

}  // namespace

int main(int argc, char** argv) {
    return bench::run_echo(argc, argv, "Measures messages and their echoes over TCP.", serve, ask);
}
