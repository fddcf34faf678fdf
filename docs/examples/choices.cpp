// The guides' excerpts, one function each. They are compiled as a check, and never called.
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <rcverbs/experimental/calls.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/rcverbs.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/retry.hpp>
#include <rcverbs/experimental/window.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <iostream>
#include <map>
#include <numeric>
#include <vector>

using namespace rcverbs;
using namespace std::chrono_literals;
using boost::asio::awaitable;
using boost::asio::use_awaitable;
using namespace boost::asio::experimental::awaitable_operators;

// --- tuning -----------------------------------------------------------------------------------------------------------

connection for_latency() {
    connection_options o;
    o.queue_pair.inline_bytes_max = 128;  // small writes and sends travel in their work request
    // One processor for this connection alone.
    return connection{poller::start({.polling = {.mode = poll_mode::busy}}), o};
}

connection for_throughput(boost::asio::io_context& io) {
    connection_options o;
    o.queue_pair.send_queue_depth = 128;
    o.queue_pair.initiator_depth = 16;  // reads in flight
    // The device is busy anyway.
    return connection{poller::on(io, {.polling = {.mode = poll_mode::event}}), o};
}

connection for_many_connections(poller const& thread) {
    connection_options o;
    o.queue_pair.send_queue_depth = 16;
    return connection{thread, o};  // as many as you like, on one thread of the library's
}

connection on_socket_of_adapter() {
    connection_options o;
    o.placement.traffic_class = std::uint8_t{26 << 2};  // DSCP 26
    // The thread's processors, and the interrupt that wakes it.
    return connection{poller::start({.cpus = {2, 3}, .completion_vector = 2}), o};
}

awaitable<void> tell_peer(connection&, remote_region) { co_return; }

awaitable<void> expose_for_one_request(connection& c) {
    registered_buffer pages{c.domain(), std::size_t{1} << 20, access_flags::local_write | access_flags::bind_windows};
    window w{c};
    remote_region const page = co_await w.async_bind(pages.slice(0, 4096), access_flags::remote_read, use_awaitable);
    co_await tell_peer(c, page);  // it reads, and answers
    co_await w.async_invalidate(use_awaitable);  // from here on the page is ours alone
}

awaitable<void> write_many(connection& c, std::vector<mutable_slice> const& from, std::vector<remote_region> const& to) {
    batch b{c};
    for (std::size_t i = 0; i < from.size(); ++i) b.add(op::write(from[i], to[i]));
    co_await b.async_submit(use_awaitable);  // one doorbell, one completion
}

awaitable<void> on_the_polling_thread(connection& c, registered_buffer const& mine, remote_region theirs) {
    // `c` was made with own_thread. Spawned on its executor, the coroutine runs on the thread that polls completions; the caller
    // resumes on its own executor when it has ended.
    co_await boost::asio::co_spawn(
        c.get_executor(),
        [&]() -> awaitable<void> {
            for (int i = 0; i < 1000; ++i) co_await c.async_write(mine.slice(), theirs, use_awaitable);
        },
        use_awaitable
    );
}

// --- memory -----------------------------------------------------------------------------------------------------------

void register_before_listening(boost::asio::io_context& io) {
    protection_domain const domain = open_domain(io, {"192.168.0.1", 0});  // or by name: open_domain(io, "rxe0")
    registered_buffer blocks{domain, std::size_t{1} << 30, access_flags::remote_read};
    acceptor_options options;
    options.connection.placement.domain = domain;
    acceptor a{io, {"192.168.0.1", 7471}, options};
}

void register_memory(connection& c) {
    // The library's: page-aligned, zeroed, freed when it is deregistered.
    registered_buffer pages{c.domain(), std::size_t{1} << 20, access_flags::remote_read};

    // Your own: stays yours, must outlive the region.
    std::vector<double> values(1000);
    memory_region region{c.domain(), std::span{values}, access_flags::local_write};
    mutable_slice some = region.slice(std::span{values}.subspan(10, 5));

    // What a peer needs to know; a value, to be sent to it.
    remote_region offered = pages.remote();
    remote_region first_page = offered.slice(0, 4096);  // checked: throws errc::out_of_range

    static_cast<void>(some);
    static_cast<void>(first_page);
}

// --- security ---------------------------------------------------------------------------------------------------------

message_channel_options options() {
    message_channel_options o;
    o.authentication.keys = pre_shared_keys::load("keys");    // both sides; .as("alice") if the file has several
    o.authentication.admits = [](std::string_view who) { return who == "alice"; };    // the server, if it likes
    return o;
}

acceptor_options guarded() {
    acceptor_options o;
    o.connections_max = 200;
    o.connections_per_address_max = 10;
    o.busy_private_data = session::busy_private_data();   // rejected clients get session_errc::peer_busy
    o.violation_delay = 1s;                   // an address that sends wrong keys waits, twice as long each time
    o.connection.liveness.keepalive_interval = 10s;
    return o;
}

void end_of_lease(connection& c) {
    // From now on this peer can neither read nor write, whatever keys it has.
    error_code ec;
    c.set_remote_access(access_flags::local_read, ec);
    if (ec) c.close();
}

// --- errors -----------------------------------------------------------------------------------------------------------

awaitable<void> watch(connection& c) {
    // Success if the peer has disconnected gracefully.
    co_await c.async_wait_disconnected(boost::asio::as_tuple(use_awaitable));
    failure const why = c.last_failure();
    if (why.reason == close_reason::transport_error) std::cerr << "the path has failed: " << why.message() << '\n';
}

awaitable<void> careful_write(connection& c, registered_buffer const& mine, remote_region theirs) {
    auto [ec, bytes] = co_await c.async_write(mine.slice(), theirs, boost::asio::as_tuple(use_awaitable));
    if (!ec) co_return;
    if (!is_fatal(ec)) {
        std::cerr << "not posted, nothing happened: " << ec.message() << '\n';
        co_return;
    }
    // The connection has ended. The write may have been executed completely, in part or not at all.
    std::cerr << c.last_failure().message() << '\n';
}

// --- messages ---------------------------------------------------------------------------------------------------------

void use(std::uint64_t, std::span<std::byte const>) {}

awaitable<void> ask_for(boost::asio::io_context& io, endpoint server) {
    message_channel c{io};
    co_await c.async_connect(server, use_awaitable);
    std::string const question = "how are you?";
    co_await c.async_send(question, 1, use_awaitable);
    message const answer = co_await c.async_receive(use_awaitable);
    use(answer.tag(), answer.bytes());
    co_await c.async_finish(use_awaitable);
}

awaitable<void> echo(boost::asio::io_context& io, connection_request asked) {
    message_channel c{io, std::move(asked)};
    co_await c.async_accept(use_awaitable);
    for (;;) {
        auto [ec, m] = co_await c.async_receive(boost::asio::as_tuple(use_awaitable));
        if (ec) break;  // boost::asio::error::eof: the peer has finished
        if (!m.is_large()) co_await c.async_send(m.slice(), m.tag(), use_awaitable);
    }
    co_await c.async_finish(use_awaitable);
}

awaitable<void> store(message_channel& c, message m, registered_buffer& into) {
    if (!m.is_large() || m.size() > into.size()) co_return;  // a large message that is dropped is declined
    mutable_slice const place = into.slice(0, static_cast<std::size_t>(m.size()));
    co_await c.async_fetch(std::move(m), place, use_awaitable);
}

// --- requests ---------------------------------------------------------------------------------------------------------

constexpr std::uint32_t get = 1;
constexpr std::uint32_t found = 0;
constexpr std::uint32_t absent = 1;

std::string text_of(std::span<std::byte const> bytes) { return {reinterpret_cast<char const*>(bytes.data()), bytes.size()}; }

awaitable<void> ask_once(boost::asio::io_context& io, endpoint server) {
    request_channel c{io};
    co_await c.async_connect(server, use_awaitable);
    reply r = co_await c.async_request(1, std::string_view{"who are you?"}, use_awaitable);
    std::cout << text_of(r.bytes()) << '\n';
    co_await c.async_finish(use_awaitable);
}

awaitable<void> answer_all(boost::asio::io_context& io, acceptor& door) {
    request_channel c{io, co_await door.async_get_request(use_awaitable)};
    co_await c.async_accept(use_awaitable);
    for (;;) {
        auto [ec, r] = co_await c.async_next(boost::asio::as_tuple(use_awaitable));
        if (ec) break;  // asio::error::eof: the client has finished
        co_await r.async_answer(0, std::string_view{"a server"}, use_awaitable);
    }
    co_await c.async_finish(use_awaitable);
}

awaitable<std::string> look_up(request_channel& c, std::string const& key) {
    auto [ec, r] = co_await c.async_request(ask{get}.body(key).within(std::chrono::milliseconds{200}), boost::asio::as_tuple(use_awaitable));
    if (ec == channel_errc::request_timed_out) co_return "too late";
    if (ec) throw boost::system::system_error{ec};
    co_return r.status() == found ? text_of(r.bytes()) : "";
}

awaitable<void> answer_one(request r, std::map<std::string, std::string> const& values) {
    auto const value = values.find(text_of(r.bytes()));
    bool const is_there = value != values.end();
    std::string const text = is_there ? value->second : "";
    // Most errors concern this answer alone: is_fatal(ec) is false, and the channel goes on.
    co_await r.async_answer(is_there ? found : absent, text, boost::asio::as_tuple(use_awaitable));
}

awaitable<void> serve(request_channel& c, std::map<std::string, std::string> const& values) {
    for (;;) {
        auto [ec, r] = co_await c.async_next(boost::asio::as_tuple(use_awaitable));
        if (ec) break;  // boost::asio::error::eof: the peer asks no more
        boost::asio::co_spawn(c.get_executor(), answer_one(std::move(r), values), boost::asio::detached);
    }
    co_await c.async_finish(use_awaitable);
}

awaitable<void> serve_in_turn(request_channel& c, std::map<std::string, std::string> const& values) {
    for (;;) {
        auto [ec, r] = co_await c.async_next(boost::asio::as_tuple(use_awaitable));
        if (ec) break;
        co_await answer_one(std::move(r), values);  // the next request waits until the peer has this answer
    }
    co_await c.async_finish(use_awaitable);
}

awaitable<bool> receive_within(message_channel& c, std::chrono::milliseconds time) {
    boost::asio::steady_timer timer{c.get_executor(), time};
    auto const token = boost::asio::as_tuple(use_awaitable);  // || waits for the first that succeeds
    auto first = co_await (c.async_receive(token) || timer.async_wait(token));
    if (first.index() == 1) co_return false;  // nothing has come yet
    auto const& [ec, m] = std::get<0>(first);
    co_return !ec && m.is_valid();
}

// Calls that the reference names and that no other example makes.
awaitable<void> accept_on_pollers(acceptor& a, std::vector<poller>& pollers, boost::asio::io_context& io) {
    connection first = co_await a.async_accept(pollers.front(), use_awaitable);
    connection second = co_await a.async_accept(own_thread, use_awaitable);
    connection third = co_await a.async_accept(io, use_awaitable);
    connection fourth = co_await a.async_accept(boost::asio::make_strand(io), use_awaitable);
    // The default token is deferred, which can be awaited.
    std::size_t const i = 0;
    connection fifth = co_await a.async_accept(pollers[i]);
}

awaitable<void> write_with_the_default_token(connection& c, registered_buffer const& mine, remote_region theirs) {
    co_await c.async_write(mine.slice(), theirs);
}

constexpr std::uint32_t read_one = 2;
constexpr std::uint32_t flush = 3;

struct block_address {
    std::uint64_t offset;
};

awaitable<bool> read_block(request_channel& c, block_address at, mutable_slice into) {
    reply const r = co_await c.async_request(ask{read_one}.head(std::span{&at, 1}).into(into), use_awaitable);
    co_return r.status() == found && r.is_written() && r.size() == into.size();
}

awaitable<void> answer_block(request r, registered_buffer const& disk) {
    block_address at{};
    if (r.head().size() == sizeof at) std::memcpy(&at, r.head().data(), sizeof at);
    std::size_t const size = static_cast<std::size_t>(r.target_bytes());
    bool const is_there = at.offset <= disk.size() && size <= disk.size() - at.offset;
    const_slice const block = is_there ? disk.slice(at.offset, size) : const_slice{};
    co_await r.async_answer(is_there ? found : absent, block, boost::asio::as_tuple(use_awaitable));
}

awaitable<void> store_block(std::shared_ptr<request_channel> c, request r, registered_buffer const& disk) {
    block_address at{};
    if (r.head().size() == sizeof at) std::memcpy(&at, r.head().data(), sizeof at);  // before the fetch: the head goes with the body
    std::size_t const size = static_cast<std::size_t>(r.size());
    bool const is_there = at.offset <= disk.size() && size <= disk.size() - at.offset;
    // A large body is read from the client's memory, a small one copied. Without it the answer declines a large one.
    message& body = r;  // only the message moves; the request can still be answered
    auto const token = boost::asio::as_tuple(use_awaitable);
    if (is_there) {
        auto [ec] = co_await c->async_fetch(std::move(body), disk.slice(at.offset, size), token);
        if (ec) co_return;  // the peer gets request_dropped
    }
    co_await r.async_answer(is_there ? found : absent, {}, token);
}

awaitable<std::uint32_t> status_of(basic_connector<request_channel>& to, request_channel& last, std::span<std::byte const> question) {
    auto const deadline = std::chrono::steady_clock::now() + 30s;
    co_return co_await retry(to, last, deadline, [&](request_channel& c) -> awaitable<std::uint32_t> {
        reply const r = co_await c.async_request(1, question, use_awaitable);
        co_return r.status();
    });
}

awaitable<std::string> look_up_again(request_client& c, std::string const& key) {
    reply const r = co_await c.async_request(ask{get}.body(key).within(std::chrono::seconds{5}).may_repeat(), use_awaitable);
    co_return r.status() == found ? text_of(r.bytes()) : "";
}

request_channel_options ordered_server() {
    request_channel_options o;
    o.sessions.emplace();  // the same options for every channel that the server accepts
    return o;
}

awaitable<bool> flush_what_was_written(request_client& c, reply const& written) {
    auto const token = boost::asio::as_tuple(use_awaitable);
    auto [ec, r] = co_await c.async_request(ask{flush}.on_connection(written.connection_number()), token);
    co_return !ec && r.status() == found;
}

awaitable<void> stop(acceptor& a) {
    a.close();  // no further clients
    a.close_connections();
    co_await a.async_wait_idle(use_awaitable);  // no peer can access memory any more
}

awaitable<void> stop_in_order(acceptor& a, std::vector<std::shared_ptr<request_channel>> clients) {
    a.close();
    // The loops that serve them go on answering, and finish too, which is the same.
    for (auto const& c : clients) c->async_finish([c](error_code) {});  // keeps the channel until it has ended
    co_await a.async_wait_idle(use_awaitable);
}

awaitable<void> fetch_and_answer(request_channel& c, request r, mutable_slice into) {
    co_await c.async_fetch(std::move(r), into, use_awaitable);
    request next = co_await c.async_next(use_awaitable);
    co_await next.async_answer(0, std::span<std::byte const>{}, use_awaitable);
    request last = co_await c.async_next(use_awaitable);
    co_await last.async_answer(0, into, use_awaitable);
}

// --- blocking ---------------------------------------------------------------------------------------------------------

calls::client client_with_keys(endpoint const& server) {
    request_client_options o;
    o.channel.messages.authentication.keys = pre_shared_keys::load("alice.key");
    return calls::client{server, o};
}

int main() {}

// --- memory of the peer ------------------------------------------------------------------------------------------------

awaitable<void> wait_for_the_operator() { co_return; }

awaitable<void> publish(boost::asio::io_context& io, acceptor& door, std::vector<std::uint64_t>& table) {
    region_offers mine{io};
    mine.offer("table", std::span{table}, access_flags::remote_read);
    region_channel_options const options{.offers = mine};
    region_channel peer{io, co_await door.async_get_request(use_awaitable), options};
    co_await peer.async_accept(use_awaitable);
    co_await wait_for_the_operator();
    co_await mine.async_withdraw("table", use_awaitable);
    table.clear();  // no peer can read it any more
    co_await peer.async_finish(use_awaitable);
}

awaitable<void> write_log(boost::asio::io_context& io, endpoint reader, std::vector<std::vector<std::byte>> const& records) {
    ring_writer ring{io};
    co_await ring.async_connect(reader, use_awaitable);
    for (auto const& record : records) co_await ring.async_write(record, use_awaitable);
    co_await ring.async_finish(use_awaitable);  // the reader has released them all
}

awaitable<std::uint64_t> read_log(boost::asio::io_context& io, acceptor& door) {
    ring_reader ring{io, co_await door.async_get_request(use_awaitable), {.ring_bytes = 1 << 20, .records = 1024}};
    co_await ring.async_accept(use_awaitable);
    std::uint64_t bytes = 0;
    for (;;) {
        auto const [ec, record] = co_await ring.async_read(as_tuple(use_awaitable));
        if (ec == boost::asio::error::eof) co_return bytes;  // the writer has finished
        if (ec) throw boost::system::system_error{ec};
        bytes += record.bytes().size();
    }
}

awaitable<void> lend(region_offers mine, connection_request asked) {
    region_channel_options const options{.offers = mine};
    region_channel peer{co_await boost::asio::this_coro::executor, std::move(asked), options};
    co_await peer.async_accept(use_awaitable);
    auto const [ec, none] = co_await peer.async_next(as_tuple(use_awaitable));
    if (ec == boost::asio::error::eof) co_await peer.async_finish(use_awaitable);  // the client finishes
}

awaitable<void> lend_to_all(boost::asio::io_context& io, acceptor& door, std::span<std::byte> pages) {
    region_offers mine{io};
    remote_pool pool{mine, pages, {.peer_bytes_max = 64 << 20, .keep_time = std::chrono::seconds{30}}};
    for (int clients = 0; clients < 100; ++clients) {
        connection_request asked = co_await door.async_get_request(use_awaitable);
        co_spawn(io, lend(mine, std::move(asked)), boost::asio::detached);
    }
    co_await pool.async_close(use_awaitable);  // now the memory is the program's alone
}

awaitable<std::uint64_t> count_in_memory_of_the_peer(boost::asio::io_context& io, endpoint server) {
    region_channel c{io};
    co_await c.async_connect(server, use_awaitable);
    remote_allocator heap{c};
    remote_allocation const a = co_await heap.async_allocate(4096, use_awaitable);
    co_await heap.async_share(a.memory, "counters", use_awaitable);  // others find "shared/counters"
    remote_array<std::uint64_t> const counters{a.memory};
    std::uint64_t const before = co_await counters.async_fetch_add(7, 1, use_awaitable);
    co_await heap.async_free(a.memory, use_awaitable);
    co_await c.async_finish(use_awaitable);
    co_return before;
}

awaitable<void> prepare_all(region_channel& c, remote_memory table) {
    constexpr std::uint64_t step = 256 << 20;
    for (std::uint64_t at = 0; at < table.size(); at += step) {
        std::uint64_t const size = std::min(step, table.size() - at);
        auto const [ec] = co_await table.async_prepare(at, size, as_tuple(use_awaitable));
        std::cout << table.ready_bytes() << " bytes are ready\n";
        if (ec && c.peer_refusal()) std::cerr << c.peer_refusal()->message() << '\n';
        if (ec) co_return;
    }
}

awaitable<std::uint64_t> sum(boost::asio::io_context& io, endpoint server) {
    region_channel c{io};
    co_await c.async_connect(server, use_awaitable);
    remote_array<std::uint64_t> const table{co_await c.async_find("table", std::chrono::seconds{5}, use_awaitable)};
    registered_buffer const copy{c, 4096};
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < table.size();) {
        std::uint64_t const count = std::min<std::uint64_t>(512, table.size() - i);
        co_await table.async_read(i, copy.slice(0, count * sizeof(std::uint64_t)), use_awaitable);
        std::array<std::uint64_t, 512> values{};
        std::memcpy(values.data(), copy.bytes().data(), count * sizeof(std::uint64_t));
        total = std::accumulate(values.begin(), values.end(), total);
        i += count;
    }
    co_await c.async_finish(use_awaitable);
    co_return total;
}
