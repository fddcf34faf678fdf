#include "rdma-doctor/peer.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <infiniband/verbs.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <stdexcept>
#include <vector>

#include <rcverbs/rcverbs.hpp>

#include "common/arguments.hpp"
#include "common/awaiting.hpp"
#include "common/print.hpp"
#include "rdma-doctor/self_test.hpp"

namespace rdma_doctor {

namespace {

namespace asio = boost::asio;
using asio::use_awaitable;
using rcverbs::access_flags;

// "doct": no other program's sessions fit.
constexpr std::uint32_t mode = 0x646f6374;
constexpr std::size_t region_bytes = 65536;
constexpr std::size_t clients_max = 16;
constexpr char const* region_name = "doctor";

rcverbs::session_options session_options(std::chrono::milliseconds deadline) {
    rcverbs::session_options o;
    o.mode = mode;
    o.exchange_timeout = deadline;
    o.finish_timeout = deadline;
    return o;
}

// The values 1 to 5 stand for 256 to 4096. Source: enum ibv_mtu.
unsigned path_mtu(rcverbs::connection const& c) {
    ibv_qp* const queue_pair = c.native_handle();
    ibv_qp_attr about{};
    ibv_qp_init_attr ignored{};
    if (queue_pair == nullptr || ::ibv_query_qp(queue_pair, &about, IBV_QP_PATH_MTU, &ignored) != 0)
        return 0;
    return 128U << about.path_mtu;
}

class peer_test {
public:
    peer_test(rcverbs::endpoint const& peer, std::chrono::milliseconds deadline)
        : peer_{peer},
          deadline_{deadline} {
        result_.address = peer.address().to_string();
        result_.port = peer.port();
    }

    peer_result run() {
        try {
            asio::io_context io;
            std::exception_ptr failed;
            asio::co_spawn(io, work(io), [&](std::exception_ptr e) { failed = e; });
            io.run();
            if (failed) std::rethrow_exception(failed);
        } catch (std::exception const& e) {
            if (result_.failure.empty()) result_.failure = e.what();
        }
        return result_;
    }

private:
    asio::awaitable<void> work(asio::io_context& io) {
        rcverbs::session s{
            rcverbs::connection{io, options_with(deadline_)}, session_options(deadline_)};
        try {
            co_await s.async_connect(peer_, use_awaitable);
            result_.local_address = s.next_layer().local_endpoint().address().to_string();
            result_.path_mtu = path_mtu(s.next_layer());
            std::vector<rcverbs::named_region> const none;
            auto const theirs = co_await s.async_exchange(none, use_awaitable);
            auto const* const region = theirs.find(region_name);
            if (region == nullptr || region->size() < region_bytes)
                throw std::runtime_error{"the peer is no rdma-doctor"};
            co_await move_packets(s, *region);
            co_await s.async_finish(use_awaitable);
        } catch (std::exception const&) {
            if (rcverbs::failure const f = s.last_failure(); f.code) {
                result_.where = f.where;
                result_.code = f.code;
                result_.failure = f.message();
            }
            throw;
        }
    }

    // A message that is not longer than the path MTU is one packet.
    asio::awaitable<void> move_packets(rcverbs::session& s, rcverbs::remote_region const& theirs) {
        rcverbs::connection& c = s.next_layer();
        rcverbs::registered_buffer ours{c.domain(), region_bytes, access_flags::local_write};
        for (std::size_t size = 64; size <= result_.path_mtu; size *= size == 64 ? 4 : 2) {
            auto const bytes = ours.bytes().first(size);
            for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 37 % 251);
            std::vector<std::byte> const sent(bytes.begin(), bytes.end());
            result_.size_bytes = size;
            result_.is_reading = false;
            co_await c.async_write(ours.slice(0, size), theirs.slice(0, size), use_awaitable);
            result_.written_bytes = size;
            std::ranges::fill(bytes, std::byte{0});
            result_.is_reading = true;
            co_await c.async_read(theirs.slice(0, size), ours.slice(0, size), use_awaitable);
            if (!std::ranges::equal(bytes, sent))
                throw std::runtime_error{"what was read is not what was written"};
            result_.read_bytes = size;
        }
    }

    rcverbs::endpoint peer_;
    std::chrono::milliseconds deadline_;
    peer_result result_;
};

asio::awaitable<void> serve_client(std::shared_ptr<rcverbs::session> client, std::string name) {
    try {
        co_await client->async_accept(use_awaitable);
        rcverbs::registered_buffer const ours{
            client->domain(), region_bytes, access_flags::remote_write | access_flags::remote_read};
        std::vector<rcverbs::named_region> const regions{{region_name, ours}};
        co_await client->async_exchange(regions, use_awaitable);
        co_await client->async_finish(use_awaitable);
        demo::print(name + ": packets of all sizes arrived both ways.");
    } catch (std::exception const& e) {
        rcverbs::failure const f = client->last_failure();
        demo::print(name + ": " + (f.code ? f.message() : e.what()));
    }
}

asio::awaitable<void> accept_clients(
    asio::io_context& io, rcverbs::acceptor& acceptor, std::chrono::milliseconds deadline
) {
    for (;;) {
        auto [ec, request] = co_await acceptor.async_get_request(demo::awaiting);
        if (ec) co_return;
        std::string const name = request.remote_endpoint().to_string();
        try {
            // The peer's test has a deadline for each of its steps.
            rcverbs::session_options own = session_options(deadline);
            own.finish_timeout = 20 * deadline;
            auto client = std::make_shared<rcverbs::session>(
                rcverbs::connection{io, std::move(request), options_with(deadline)}, own
            );
            asio::co_spawn(io, serve_client(std::move(client), name), asio::detached);
        } catch (boost::system::system_error const& e) {
            demo::print(name + ": " + e.what());
        }
    }
}

}  // namespace

peer_result test_peer(rcverbs::endpoint const& peer, std::chrono::milliseconds deadline) {
    return peer_test{peer, deadline}.run();
}

void serve(std::string const& address, std::uint16_t port, std::chrono::milliseconds deadline) {
    asio::io_context io;
    rcverbs::acceptor_options options;
    options.connections_max = clients_max;
    options.busy_private_data = rcverbs::session::busy_private_data();
    rcverbs::acceptor acceptor = demo::listen_at(address, port, [&](rcverbs::endpoint const& here) {
        return rcverbs::acceptor{io, here, options};
    });
    demo::print("listening on port " + std::to_string(acceptor.local_endpoint().port()) + ".");
    asio::signal_set signals{io, SIGINT, SIGTERM};
    signals.async_wait([&](rcverbs::error_code ec, int) {
        if (!ec) io.stop();
    });
    asio::co_spawn(io, accept_clients(io, acceptor, deadline), asio::detached);
    io.run();
}

}  // namespace rdma_doctor
