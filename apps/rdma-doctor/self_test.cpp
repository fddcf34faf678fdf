#include "rdma-doctor/self_test.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include <rcverbs/rcverbs.hpp>

namespace rdma_doctor {

namespace {

namespace asio = boost::asio;
using asio::use_awaitable;

constexpr std::size_t moved_bytes = 65536;

class self_test {
public:
    self_test(std::string const& address, std::chrono::milliseconds deadline)
        : options_{options_with(deadline)} {
        result_.address = address;
    }

    self_test_result run() {
        try {
            asio::io_context io;
            std::exception_ptr failed;
            asio::co_spawn(io, work(io), [&](std::exception_ptr e) { failed = e; });
            io.run();
            if (failed) std::rethrow_exception(failed);
        } catch (std::exception const& e) {
            result_.failure = why_.empty() ? e.what() : why_;
        }
        return result_;
    }

private:
    asio::awaitable<void> work(asio::io_context& io) {
        using namespace asio::experimental::awaitable_operators;
        rcverbs::acceptor_options listening;
        listening.connection = options_;
        rcverbs::acceptor acceptor{io, {asio::ip::make_address(result_.address), 0}, listening};
        rcverbs::connection client{io, options_};
        rcverbs::connection server;
        try {
            server = co_await (
                acceptor.async_accept(use_awaitable) &&
                client.async_connect(acceptor.local_endpoint(), use_awaitable)
            );
            result_.done.push_back("connect");
            co_await move_data(client, server);
            co_await client.async_disconnect(use_awaitable);
            result_.done.push_back("disconnect");
        } catch (std::exception const&) {
            if (rcverbs::failure const f = client.last_failure(); f.code) why_ = f.message();
            throw;
        }
    }

    asio::awaitable<void> move_data(rcverbs::connection& client, rcverbs::connection& server) {
        using rcverbs::access_flags;
        rcverbs::registered_buffer ours{client.domain(), moved_bytes, access_flags::local_write};
        bool const has_atomics = client.domain().limits().has_atomics;
        access_flags open_to = access_flags::remote_write | access_flags::remote_read;
        if (has_atomics) open_to = open_to | access_flags::remote_atomic;
        rcverbs::registered_buffer theirs{server.domain(), moved_bytes, open_to};
        for (std::size_t i = 0; i < moved_bytes; ++i)
            ours.bytes()[i] = static_cast<std::byte>(i * 37 % 251);
        co_await client.async_write(ours.slice(), theirs.remote(), use_awaitable);
        if (!std::ranges::equal(ours.bytes(), theirs.bytes()))
            throw std::runtime_error{"a write arrived with wrong bytes"};
        result_.done.push_back("write");

        std::ranges::fill(ours.bytes(), std::byte{0});
        co_await client.async_read(theirs.remote(), ours.slice(), use_awaitable);
        if (!std::ranges::equal(ours.bytes(), theirs.bytes()))
            throw std::runtime_error{"a read brought wrong bytes"};
        result_.done.push_back("read");

        if (!has_atomics) {
            result_.left_out.push_back("fetch-and-add");
            co_return;
        }
        std::uint64_t counter = 40;
        std::memcpy(theirs.bytes().data(), &counter, sizeof counter);
        std::uint64_t const before =
            co_await client.async_fetch_add(theirs.remote().word(0), 2, use_awaitable);
        std::memcpy(&counter, theirs.bytes().data(), sizeof counter);
        if (before != 40 || counter != 42)
            throw std::runtime_error{"a fetch-and-add came to a wrong sum"};
        result_.done.push_back("fetch-and-add");
    }

    rcverbs::connection_options options_;
    self_test_result result_;
    std::string why_;
};

}  // namespace

rcverbs::connection_options options_with(std::chrono::milliseconds deadline) {
    rcverbs::connection_options o;
    o.timeouts.resolve_address = deadline;
    o.timeouts.resolve_route = deadline;
    o.timeouts.connect = deadline;
    o.liveness.stall_timeout = deadline;
    o.timeouts.disconnect = deadline;
    o.timeouts.drain = deadline;
    return o;
}

self_test_result test_address(std::string const& address, std::chrono::milliseconds deadline) {
    return self_test{address, deadline}.run();
}

}  // namespace rdma_doctor
