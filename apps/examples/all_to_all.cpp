// all_to_all ADDRESS RANK COUNT PORT: one of COUNT processes, each of which has a message channel to every other. Each sends its mark
// and where its row of cells is, one cell for each rank, and writes the mark into its cell of every other process's row.
//
// Of two processes the one of the higher rank connects, so that each pair has one channel. It retries until the other one listens,
// so the processes can be started in any order. Listening and connecting share one io_context and do not block each other.
#include <map>

#include "examples/both_ends.hpp"

#include <boost/asio/steady_timer.hpp>

using namespace example;

namespace {

struct member {
    asio::io_context& io;
    std::string address;
    std::uint32_t rank;
    std::uint32_t count;
    std::uint16_t base_port;
    std::map<std::uint32_t, std::uint64_t> seen;  // the value that each peer wrote, by rank
};

using rcverbs::message_channel;

/// The exchange of a pair, run on both sides.
asio::awaitable<void> meet(member& m, message_channel& c) {
    rcverbs::connection& over = c.next_layer();
    rcverbs::registered_buffer row{over.domain(), m.count * sizeof(std::uint64_t), rcverbs::access_flags::remote_write};
    rcverbs::registered_buffer own{over.domain(), sizeof(std::uint64_t), rcverbs::access_flags::local_read};
    std::uint64_t const mark = m.rank + 1;
    std::memcpy(own.bytes().data(), &mark, sizeof mark);
    auto const place = row.remote().encode();
    co_await c.async_send(place, mark, use_awaitable);
    rcverbs::message const theirs = co_await c.async_receive(use_awaitable);
    auto const there = rcverbs::remote_region::decode(theirs.bytes());
    co_await over.async_write(own.slice(), there.slice(m.rank * sizeof mark, sizeof mark), use_awaitable);
    // The peer finishes when it has written as well.
    co_await c.async_finish(use_awaitable);
    std::uint64_t value = 0;
    std::memcpy(&value, &row.bytes()[(theirs.tag() - 1) * sizeof value], sizeof value);
    expect(value == theirs.tag(), "the peer has written its mark");
    m.seen[static_cast<std::uint32_t>(theirs.tag() - 1)] = value;
}

asio::awaitable<void> serve(member& m, message_channel c) {
    co_await c.async_accept(use_awaitable);
    co_await meet(m, c);
}

asio::awaitable<void> call(member& m, std::uint32_t rank) {
    rcverbs::connector_options<message_channel> options;
    options.backoff.delay_max = std::chrono::milliseconds{1000};
    options.backoff.attempts_max = 100;
    rcverbs::endpoint const peer{m.address, static_cast<std::uint16_t>(m.base_port + rank)};
    rcverbs::basic_connector<message_channel> to{m.io, peer, options};
    message_channel c = co_await to.async_connect(use_awaitable);
    co_await meet(m, c);
}

asio::awaitable<void> work(member& m) {
    rcverbs::acceptor acceptor{m.io, {m.address, static_cast<std::uint16_t>(m.base_port + m.rank)}};
    std::exception_ptr failed;
    auto const ended = [&](std::exception_ptr e) {
        if (e) failed = e;
    };
    for (std::uint32_t r = 0; r < m.rank; ++r) asio::co_spawn(m.io, call(m, r), ended);
    for (std::uint32_t r = m.rank + 1; r < m.count; ++r) {
        rcverbs::connection_request asked = co_await acceptor.async_get_request(use_awaitable);
        message_channel c{m.io, std::move(asked)};
        asio::co_spawn(m.io, serve(m, std::move(c)), ended);
    }
    asio::steady_timer timer{m.io};
    while (m.seen.size() + 1 < m.count && !failed) {
        timer.expires_after(std::chrono::milliseconds{10});
        co_await timer.async_wait(use_awaitable);
    }
    if (failed) std::rethrow_exception(failed);
    for (auto const& [r, value] : m.seen) expect(value == r + 1, "each wrote its own mark");
    std::cout << "rank " << m.rank << " met " << m.seen.size() << " others\n";
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::cerr << "usage: " << argv[0] << " ADDRESS RANK COUNT PORT\n";
        return 2;
    }
    asio::io_context io;
    member m{io, argv[1], static_cast<std::uint32_t>(std::stoul(argv[2])), static_cast<std::uint32_t>(std::stoul(argv[3])),
             static_cast<std::uint16_t>(std::stoul(argv[4])), {}};
    return run(io, work(m));
}
