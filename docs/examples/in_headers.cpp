// The examples at the top of the public headers, one function each. Compiled, so that they are right; never called.
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <rcverbs/experimental/calls.hpp>
#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/rcverbs.hpp>
#include <rcverbs/experimental/loop_descriptor.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/experimental/retry.hpp>
#include <rcverbs/experimental/window.hpp>

#include <array>
#include <iostream>
#include <unordered_set>
#include <vector>

using namespace rcverbs;
using namespace std::chrono_literals;
using boost::asio::as_tuple;
using boost::asio::awaitable;
using boost::asio::use_awaitable;
using boost::asio::experimental::awaitable_operators::operator||;

void handle(connection) {}
void use(std::span<std::byte const>) {}
awaitable<void> work(session&) { co_return; }

// --- acceptor.hpp
awaitable<void> in_acceptor(boost::asio::io_context& io) {
    acceptor a{io, {"192.168.0.1", 7471}};
    for (;;) {
        connection c = co_await a.async_accept(use_awaitable);
        handle(std::move(c));
    }
}

// --- access_flags.hpp
void in_access_flags(protection_domain const& domain) {
    registered_buffer page{domain, 4096, access_flags::remote_read | access_flags::remote_write};
}

// --- backoff_options.hpp, connector.hpp
awaitable<void> in_connector(boost::asio::io_context& io) {
    connector_options options;
    options.backoff.delay_first = 50ms;
    options.backoff.delay_max = 5s;
    connector to_server{io, {"192.168.0.1", 7471}, options};
    for (;;) {
        session s = co_await to_server.async_connect(use_awaitable);
        co_await work(s);  // until it is done, or fails
    }
}

// --- blocking.hpp
void in_blocking(registered_buffer const& mine, remote_region const& theirs, message_channel& channel) {
    connection c{own_thread};
    c.async_connect({"192.168.0.1", 7471}, blocking);
    c.async_write(mine.slice(), theirs, blocking);
    error_code ec;
    std::size_t const read = c.async_read(theirs, mine.slice(), blocking(ec));
    message const m = channel.async_receive(blocking.within(std::chrono::seconds{5}));
    use(m.bytes().first(read));
}

// --- experimental/calls.hpp
void in_calls(std::string const& key) {
    constexpr std::uint32_t get = 1;
    calls::client c{{"192.168.0.1", 7471}};
    calls::reply const r = c.request(ask{get}.body(key).within(1s));
    use(r.bytes);

    calls::session s{{"192.168.0.1", 7471}};
    registered_buffer page{s.domain(), 4096, access_flags::local_write};
    s.read(s.exchange({}).front().memory, page.slice());
}

// --- batch.hpp
awaitable<void> in_batch(connection& c, std::vector<mutable_slice> const& from, std::vector<remote_region> const& to) {
    batch b{c};
    for (std::size_t i = 0; i < from.size(); ++i) b.add(op::write(from[i], to[i]));
    co_await b.async_submit(use_awaitable);
}

// --- registered_buffer.hpp
awaitable<void> in_buffer(connection& c, remote_region theirs) {
    registered_buffer page{c.domain(), 4096, access_flags::local_write};
    page.bytes()[0] = std::byte{42};
    co_await c.async_write(page.slice(0, 64), theirs.slice(0, 64), use_awaitable);
}

// --- registration_limit.hpp
void in_registration_limit(protection_domain const& domain, std::span<std::byte> large) {
    error_code ec;
    memory_region region{domain, large, access_flags::remote_read, ec};
    if (ec) std::cerr << ec.message() << ". " << limit_met(domain, large.size(), ec).message() << '\n';
}

// --- channel_error.hpp
awaitable<void> in_channel_error(request_channel& c, std::span<std::byte const> body) {
    auto [ec, answer] = co_await c.async_request(7, body, as_tuple(use_awaitable));
    if (ec == channel_errc::request_dropped) std::cerr << "the server did not answer\n";
    else if (ec == condition::operation_only) std::cerr << "the channel goes on\n";
}

// --- close_reason.hpp
void in_close_reason(connection const& c) {
    failure const f = c.last_failure();
    if (f.reason == close_reason::peer_disconnected) std::cout << "the peer left\n";
    else std::cout << f.message() << '\n';
}

// --- connection.hpp
awaitable<void> in_connection(boost::asio::io_context& io, registered_buffer const& mine, remote_region theirs) {
    connection c{io};
    co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
    co_await c.async_write(mine.slice(), theirs, use_awaitable);
    co_await c.async_read(theirs, mine.slice(), use_awaitable);
    co_await c.async_disconnect(use_awaitable);
}

// --- connection_base.hpp
void in_connection_base(connection& c) {
    if (!c.is_open()) std::cerr << c.last_failure().message() << '\n';
    std::cout << c.statistics().bytes_sent << " bytes sent\n";
    c.close();
}

// --- device.hpp
void in_device() {
    for (device_info const& d : devices())
        std::cout << d.name << ": queues of " << d.limits.queue_depth_max << '\n';
}

// --- endpoint.hpp
void in_endpoint() {
    endpoint const server{"192.168.0.1", 7471};
    std::cout << server << '\n';
    std::unordered_set<endpoint> known{server};
}

// --- error.hpp
awaitable<void> in_error(connection& c, registered_buffer const& mine, remote_region theirs) {
    auto [ec, n] = co_await c.async_write(mine.slice(), theirs, as_tuple(use_awaitable));
    if (ec == errc::out_of_range) std::cerr << "the peer's region is smaller\n";
    else if (ec == condition::transient) std::cerr << "connect again: " << ec.message() << '\n';
}

// --- failure.hpp
void in_failure(connection const& c) {
    failure const f = c.last_failure();
    if (f.code) std::cerr << f.message() << '\n';
}

// --- keys.hpp
void in_keys(registered_buffer const& pages) {
    local_key mine = pages.slice().key();       // stays on this host
    remote_key shared = pages.remote().key();   // is sent to the peer, within a remote_region
    static_cast<void>(mine);
    static_cast<void>(shared);
}

// --- slice.hpp
awaitable<void> in_slice(
    connection& c, boost::asio::ip::tcp::socket& socket, registered_buffer& pages, registered_buffer& head, remote_region theirs
) {
    mutable_slice const page = pages.slice(0, 4096);
    co_await boost::asio::async_read(socket, page, use_awaitable);
    co_await c.async_write(page, theirs.slice(0, 4096), use_awaitable);
    co_await c.async_send(std::array{head.slice(), page.first(100)}, use_awaitable);
}

// --- loop_descriptor.hpp
void in_loop_descriptor() {
    boost::asio::io_context io;
    rcverbs::loop_descriptor rdma{io};
    // add rdma.native_handle() to the loop, for reading; when it is readable: rdma.dispatch();
}

// --- memory_lease.hpp
awaitable<void> in_memory_lease(connection& c, slot_pool& slots, boost::asio::steady_timer& timer) {
    slot_lease slot = co_await slots.async_acquire(use_awaitable);
    auto const first = co_await (c.async_receive(std::move(slot), as_tuple(use_awaitable)) ||
                                 timer.async_wait(as_tuple(use_awaitable)));
    if (first.index() == 1) std::cout << "no message yet; the connection goes on\n";
}

// --- memory_pool.hpp
awaitable<void> in_memory_pool(connection& c) {
    memory_pool pool{c.domain(), {.bytes_max = std::size_t{1} << 30}};
    std::pmr::vector<std::byte> message{4096, &pool};
    mutable_slice const bytes = pool.slice_of(message.data(), message.size());
    co_await c.async_send(bytes, use_awaitable);
}

// --- memory_region.hpp
void in_memory_region(connection& c) {
    std::vector<double> values(1000);
    memory_region region{c.domain(), std::span{values}, access_flags::local_write};
    mutable_slice some = region.slice(std::span{values}.subspan(10, 5));
    static_cast<void>(some);
}

// --- message.hpp
awaitable<void> in_message(message_channel& channel) {
    message m = co_await channel.async_receive(use_awaitable);
    std::cout << m.tag() << ": " << m.bytes().size() << " bytes in place\n";
    m.release();  // gives the place back: the peer may send one more
}

// --- authentication.hpp
awaitable<void> in_authentication(boost::asio::io_context& io, endpoint const& peer) {
    message_channel_options options;
    options.authentication.keys = pre_shared_keys::load("/etc/rcverbs/keys");
    message_channel c{io, options};
    co_await c.async_connect(peer, use_awaitable);
}

// --- message_channel.hpp
awaitable<void> in_message_channel(boost::asio::io_context& io, std::string const& text) {
    auto const use = [](std::uint64_t, std::span<std::byte const>) {};
    message_channel c{io};
    co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
    co_await c.async_send(text, 7, use_awaitable);
    message answer = co_await c.async_receive(use_awaitable);
    use(answer.tag(), answer.bytes());
    co_await c.async_finish(use_awaitable);
}

// --- op.hpp
awaitable<void> in_op(connection& c, batch& list, registered_buffer const& mine, remote_region theirs) {
    co_await c.async_start(op::write(mine.slice(), theirs).fenced(), use_awaitable);
    error_code const ec = c.try_start(op::send(mine.slice()), [](error_code, std::size_t) {});
    if (ec == errc::would_block) std::cout << "the queue is full\n";
    list.add(op::write(mine.slice(), theirs)).add(op::send(mine.slice()));
}

// --- open_domain.hpp
void in_open_domain(boost::asio::io_context& io) {
    protection_domain const domain = open_domain(io, "rxe0");
    registered_buffer blocks{domain, std::size_t{1} << 30, access_flags::remote_read};
    acceptor_options options;
    options.connection.placement.domain = domain;
}

awaitable<void> in_async_open_domain(boost::asio::io_context& io, endpoint server) {
    protection_domain const domain = co_await async_open_domain(io, server, use_awaitable);
    registered_buffer const blocks{domain, 4096, access_flags::remote_read};
}

// --- bytes_view.hpp
awaitable<void> in_bytes_view(message_channel& channel, request_channel& requests) {
    std::string const text = "hello";
    co_await channel.async_send(text, 0, use_awaitable);
    std::vector<int> const numbers{1, 2, 3};
    reply const r = co_await requests.async_request(1, numbers, use_awaitable);
}

// --- options.hpp
connection in_options(boost::asio::io_context& io) {
    connection_options o;
    o.queue_pair.send_queue_depth = 128;
    o.timeouts.connect = 2s;
    o.liveness.keepalive_interval = 10s;
    return connection{io, o};
}

// --- poller.hpp
void in_poller(boost::asio::io_context& io) {
    poller const shared = poller::start();
    connection a{shared};
    connection b{shared};
    connection c{poller::on(io, {.polling = {.mode = poll_mode::event}})};
    connection alone{own_thread};
}

// --- protection_domain.hpp
void in_protection_domain(connection& c) {
    protection_domain const domain = c.domain();
    registered_buffer page{domain, 4096, access_flags::local_write};
}

// --- protocol.hpp
awaitable<void> in_protocol(boost::asio::io_context& io) {
    class echo final : public protocol::driver {
    public:
        explicit echo(connection over) : driver{std::move(over)} {}
        void ask(protocol::waiter<error_code, std::uint64_t> who) { waiting_.add(std::move(who)); }
    private:
        void on_end(failure const& why) override { waiting_.fail_all(why.code); }
        protocol::wait_list<error_code, std::uint64_t> waiting_{*this};
    };
    auto core = protocol::make<echo>(connection{io});
    std::uint64_t answer = co_await protocol::initiate<error_code, std::uint64_t>(
        core, [](echo& e, auto who) { e.ask(std::move(who)); }, use_awaitable);
    std::cout << answer;
}

// --- queue_pair_address.hpp
void in_queue_pair_address(connection& c, queue_pair_address (*swap_over_tcp)(queue_pair_address)) {
    queue_pair_address const ours = c.prepare("rxe0");
    queue_pair_address const theirs = swap_over_tcp(ours);
    c.establish(theirs);
}

// --- rcverbs.hpp
void in_rcverbs() {
    boost::asio::io_context io;
    rcverbs::connection c{io};
    c.async_connect({"192.168.0.1", 7471}, [](rcverbs::error_code ec) {
        std::cout << (ec ? ec.message() : "connected") << '\n';
    });
    io.run();
}

// --- receive_result.hpp
awaitable<void> in_receive_result(connection& c, registered_buffer& inbox) {
    auto const use = [](std::span<std::byte>) {};
    receive_result got = co_await c.async_receive(inbox.slice(), use_awaitable);
    if (got.immediate) std::cout << "number " << *got.immediate << '\n';
    if (!got.is_write) use(inbox.bytes().first(got.size_bytes));
}

// --- request_channel.hpp
awaitable<void> in_request_channel(boost::asio::io_context& io, std::string const& key) {
    constexpr std::uint32_t get = 1;
    auto const use = [](std::uint32_t, std::span<std::byte const>) {};
    request_channel c{io};
    co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
    reply r = co_await c.async_request(get, key, use_awaitable);
    use(r.status(), r.bytes());
    co_await c.async_finish(use_awaitable);
}
awaitable<void> in_request_channel_too(request_channel& c) {
    auto const find = [](std::uint32_t, std::span<std::byte const> key) { return key; };
    for (;;) {
        request r = co_await c.async_next(use_awaitable);
        auto const value = find(r.operation(), r.bytes());
        co_await r.async_answer(0, value, use_awaitable);
    }
}

// --- ask.hpp
awaitable<void> in_ask(request_channel& c, request& asked, registered_buffer& block, std::string const& key, std::string const& value) {
    constexpr std::uint32_t get = 1, changed = 2, ok = 0;
    {
        reply r = co_await c.async_request(ask{get}.head(key).into(block).within(1s), use_awaitable);
    }
    request& r = asked;
    co_await c.async_notify(ask{changed}.body(key), use_awaitable);
    co_await r.async_answer(answer{ok}.body(value), use_awaitable);
}

// --- client_sessions.hpp
awaitable<void> in_client_sessions(boost::asio::io_context& io, acceptor& acceptor) {
    request_channel_options options;
    options.sessions.emplace();  // one for all channels that the server accepts
    request_channel c{io, co_await acceptor.async_get_request(use_awaitable), options};
    co_await c.async_accept(use_awaitable);
}

// --- request_client.hpp
awaitable<void> in_request_client(boost::asio::io_context& io, std::span<std::byte const> key) {
    constexpr std::uint32_t get = 1;
    request_client c{io, {"192.168.0.1", 7471}};
    reply r = co_await c.async_request(ask{get}.body(key).may_repeat(), use_awaitable);
}

// --- request_server.hpp
awaitable<void> in_request_server(boost::asio::io_context& io) {
    auto const find = [](std::uint32_t, std::span<std::byte const> key) { return key; };
    request_server server{io, {"0.0.0.0", 7471}};
    for (;;) {
        request r = co_await server.async_next(use_awaitable);
        auto const value = find(r.operation(), r.bytes());
        co_await r.async_answer(0, value, use_awaitable);
    }
}

awaitable<void> stop_request_server(request_server& server) {
    co_await server.async_finish(use_awaitable);  // answers what was asked, then async_next() ends
}

// --- remote_region.hpp
void in_remote_region(registered_buffer const& page, std::span<std::byte> message, std::span<std::byte const> received) {
    auto const bytes = page.remote().encode();
    std::copy(bytes.begin(), bytes.end(), message.begin());
    error_code ec;
    remote_region const theirs = remote_region::decode(received, ec);
    static_cast<void>(theirs);
}

// --- connection_request.hpp
awaitable<void> in_request(boost::asio::io_context& io, acceptor& a, connection_options options) {
    connection_request r = co_await a.async_get_request(use_awaitable);
    std::cout << r.remote_endpoint() << " asks\n";
    connection c{io, std::move(r), options};
    co_await c.async_accept({}, use_awaitable);
}

// --- runs_on.hpp
void in_runs_on(boost::asio::io_context& io, boost::asio::thread_pool& pool, poller const& shared) {
    connection a{io};
    connection b{boost::asio::make_strand(pool)};
    connection c{shared};  // a poller
    connection d{own_thread};
}

// --- session.hpp
awaitable<void> in_session(boost::asio::io_context& io) {
    session s{io};
    co_await s.async_connect({"192.168.0.1", 7471}, use_awaitable);
    peer_regions theirs = co_await s.async_exchange(use_awaitable);
    registered_buffer page{s, 4096};
    co_await s.async_read(theirs.at("page"), page, use_awaitable);
    co_await s.async_finish(use_awaitable);
}

// --- session_error.hpp
awaitable<void> in_session_error(session& s, endpoint peer) {
    auto [ec] = co_await s.async_connect(peer, as_tuple(use_awaitable));
    if (ec == session_errc::mode_mismatch) std::cerr << "the server runs in another mode\n";
    else if (ec == condition::transient) std::cerr << "connect again: " << ec.message() << '\n';
}

// --- shared_receive_queue.hpp
void in_shared_receive_queue(boost::asio::io_context& io) {
    shared_receive_queue receives{io};
    acceptor_options options;
    options.connection.placement.shared_receives = receives;
    acceptor a{io, {"192.168.0.1", 7471}, options};
}

// --- slot_pool.hpp
awaitable<void> in_slot_pool(boost::asio::io_context& io, connection& c, void (*handle)(std::span<std::byte>)) {
    slot_pool slots{io, c.domain(), {.slots = 64, .slot_bytes = 4096}};
    slot_lease lease = co_await slots.async_acquire(use_awaitable);
    auto const [ec, got] = co_await c.async_receive(std::move(lease), as_tuple(use_awaitable));
    if (!ec) handle(got.bytes());
}

// --- statistics.hpp
void in_statistics(connection const& c) {
    connection_statistics const s = c.statistics();
    std::cout << s.bytes_received << " bytes, " << s.slot_waits << " waits\n";
}

// --- window.hpp
awaitable<void> ask_peer_to_read(connection&, remote_region) { co_return; }
awaitable<void> in_window(connection& c, std::span<std::byte> pages) {
    memory_region all{c.domain(), pages, access_flags::local_write | access_flags::bind_windows};
    window w{c};
    remote_region const page = co_await w.async_bind(
        all.slice(0, 4096), access_flags::remote_read, use_awaitable);
    co_await ask_peer_to_read(c, page);
    co_await w.async_invalidate(use_awaitable);
}

// --- experimental/region_channel.hpp
awaitable<void> in_region_channel(boost::asio::io_context& io, connection_request asked, std::vector<std::uint64_t>& table) {
    region_offers mine{io};
    mine.offer("table", std::span{table}, access_flags::remote_read);
    region_channel server{io, std::move(asked), {.offers = mine}};
    co_await server.async_accept(use_awaitable);
    co_await mine.async_withdraw("table", use_awaitable);  // now nobody can access it
}

awaitable<void> in_region_channel_of_peer(boost::asio::io_context& io, registered_buffer& page) {
    region_channel c{io};
    co_await c.async_connect({"192.168.0.1", 7471}, use_awaitable);
    remote_memory const theirs = co_await c.async_find("table", 5s, use_awaitable);
    co_await theirs.async_read(0, page.slice(), use_awaitable);
}

// --- experimental/remote_memory.hpp
// --- experimental/remote_allocator.hpp
awaitable<void> in_remote_pool(boost::asio::io_context& io, connection_request asked, std::span<std::byte> memory) {
    // The side with the memory:
    region_offers mine{io};
    remote_pool pool{mine, memory, {.peer_bytes_max = 64 << 20}};
    region_channel server{io, std::move(asked), {.offers = mine}};
    co_await server.async_accept(use_awaitable);
}
awaitable<void> in_remote_allocator(region_channel& c, registered_buffer& page) {
    // The side that uses it:
    remote_allocator heap{c};  // a region_channel
    remote_allocation const a = co_await heap.async_allocate(1 << 20, use_awaitable);
    co_await a.memory.async_write(0, page.slice(), use_awaitable);
    co_await heap.async_share(a.memory, "log", use_awaitable);  // others find "shared/log"
    co_await heap.async_free(a.memory, use_awaitable);
}

// --- experimental/ring.hpp
awaitable<void> in_ring(boost::asio::io_context& io, std::span<std::byte const> record) {
    ring_writer w{io};
    co_await w.async_connect({"192.168.0.1", 7471}, use_awaitable);
    co_await w.async_write(record, use_awaitable);
    co_await w.async_finish(use_awaitable);  // the reader has released everything
}
awaitable<void> in_ring_reader(boost::asio::io_context& io, acceptor& door) {
    ring_reader r{io, co_await door.async_get_request(use_awaitable), {.ring_bytes = 1 << 20}};
    co_await r.async_accept(use_awaitable);
    for (;;) {
        auto [ec, record] = co_await r.async_read(as_tuple(use_awaitable));
        if (ec) break;  // asio::error::eof: the writer has finished
        use(record.bytes());
    }
}

awaitable<void> in_remote_memory(region_channel& c, registered_buffer& page) {
    remote_memory table = co_await c.async_find("table", use_awaitable);  // region_channel.hpp
    co_await table.async_read(4096, page.slice(), use_awaitable);
    remote_array<std::uint64_t> counters{table};
    std::uint64_t const before = co_await counters.async_fetch_add(7, 1, use_awaitable);
    std::cout << before << '\n';
}

int main() {}
