// all_to_all ADDRESS RANK COUNT PORT: one of COUNT processes, each of which has a session with every other. Each exposes a row of
// cells, one for each rank, and writes its own rank into its cell of everybody's row.
//
// Of two processes the one of the higher rank connects, so that no pair meets twice; it tries again until the other one listens, so
// that they can be started in any order. Listening and connecting share one io_context, and nobody waits for anybody in between.
#include <map>

#include "examples/both_ends.hpp"

using namespace example;

namespace {

struct member {
    asio::io_context& io;
    std::string address;
    std::uint32_t rank;
    std::uint32_t count;
    std::uint16_t base_port;
    std::map<std::uint32_t, std::uint64_t> seen;  // by rank: what they wrote
};

rcverbs::connection_options terms() {
    rcverbs::connection_options o;
    o.progress = rcverbs::progress_on::context;  // one thread for all of them
    return o;
}

/// What both sides of a pair do, once they have met.
asio::awaitable<void> meet(member& m, rcverbs::session& s) {
    rcverbs::connection& c = s.next_layer();
    rcverbs::buffer row{c.domain(), m.count * sizeof(std::uint64_t), rcverbs::access_flags::remote_write};
    rcverbs::buffer own{c.domain(), sizeof(std::uint64_t), rcverbs::access_flags::local_read};
    std::uint64_t const mark = m.rank + 1;
    std::memcpy(own.bytes().data(), &mark, sizeof mark);
    std::vector<rcverbs::named_region> const exposed{{"row", row}};
    rcverbs::peer_regions const theirs = co_await s.async_exchange(exposed, use_awaitable);
    rcverbs::remote_region const* const cell = theirs.find("row");
    expect(cell != nullptr, "the other side has a row");
    co_await c.async_write(own.slice(), cell->slice(m.rank * sizeof mark, sizeof mark), use_awaitable);
    co_await s.async_finish(use_awaitable);
    for (std::uint32_t r = 0; r < m.count; ++r) {
        std::uint64_t value = 0;
        std::memcpy(&value, &row.bytes()[r * sizeof value], sizeof value);
        if (value != 0) m.seen[r] = value;
    }
}

asio::awaitable<void> serve(member& m, rcverbs::session s) {
    co_await s.async_accept(use_awaitable);
    co_await meet(m, s);
}

asio::awaitable<void> call(member& m, std::uint32_t rank) {
    rcverbs::connector_options options;
    options.connection = terms();
    options.backoff.delay_max = std::chrono::milliseconds{1000};
    options.backoff.attempts_max = 100;
    rcverbs::connector to{m.io, {m.address, static_cast<std::uint16_t>(m.base_port + rank)}, options};
    rcverbs::session s = co_await to.async_connect(use_awaitable);
    co_await meet(m, s);
}

asio::awaitable<void> work(member& m) {
    rcverbs::acceptor_options options;
    options.connection = terms();
    rcverbs::acceptor acceptor{m.io, {m.address, static_cast<std::uint16_t>(m.base_port + m.rank)}, options};
    std::exception_ptr failed;
    auto const ended = [&](std::exception_ptr e) {
        if (e) failed = e;
    };
    for (std::uint32_t r = 0; r < m.rank; ++r) asio::co_spawn(m.io, call(m, r), ended);
    for (std::uint32_t r = m.rank + 1; r < m.count; ++r) {
        rcverbs::session s{co_await acceptor.async_get_request(use_awaitable)};
        asio::co_spawn(m.io, serve(m, std::move(s)), ended);
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
