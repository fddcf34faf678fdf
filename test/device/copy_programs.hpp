// copy_programs.hpp — rdma-copy as processes.
#pragma once

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device/copy_fixture.hpp"
#include "device/programs.hpp"

namespace test {

/// `rdma-copy serve`, and clients of it.
struct copy_server {
    explicit copy_server(
        fs::path const& at,
        std::vector<std::string> options = {},
        std::string address = device_address()
    )
        : process{command("rdma-copy", with("serve", at, std::move(options)))},
          host{std::move(address)} {
        std::string const before = "listening on port ";
        REQUIRE(process.wait_for_output(".\n"));
        std::string const& out = process.output();
        port = out.substr(before.size(), out.find('.') - before.size());
    }
    static std::vector<std::string> with(
        std::string first, fs::path const& at, std::vector<std::string> options
    ) {
        std::vector<std::string> all{std::move(first), at.string(), "--port", "0"};
        all.insert(all.end(), options.begin(), options.end());
        return all;
    }

    std::string place(std::string const& path) const { return host + ':' + path; }
    child_process client(std::vector<std::string> arguments) const {
        arguments.insert(arguments.end(), {"--port", port});
        return child_process{command("rdma-copy", std::move(arguments))};
    }

    child_process process;
    std::string host;
    std::string port;
};

inline bool has_text(std::string const& text, std::string const& part) {
    INFO(text);
    return text.find(part) != std::string::npos;
}

template <class Condition>
void wait_until(Condition is_true) {
    for (int i = 0; i < 20000 && !is_true(); ++i) std::this_thread::sleep_for(1ms);
    REQUIRE(is_true());
}

inline std::string answer_to_get(std::string const& socket, std::string const& target) {
    asio::io_context io;
    asio::local::stream_protocol::socket s{io};
    s.connect(asio::local::stream_protocol::endpoint{socket});
    asio::write(s, asio::buffer("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n"));
    std::string text;
    boost::system::error_code end;
    asio::read(s, asio::dynamic_buffer(text), end);
    return text;
}

}  // namespace test
