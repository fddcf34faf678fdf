// What the guides choose, one function each. Compiled, so that it is right; called by nobody.
#include <boost/asio.hpp>
#include <rcverbs/rcverbs.hpp>

#include <iostream>
#include <map>
#include <vector>

using namespace rcverbs;
using namespace std::chrono_literals;
using boost::asio::awaitable;
using boost::asio::use_awaitable;

// --- tuning -----------------------------------------------------------------------------------------------------------

connection_options for_latency() {
    connection_options o;
    o.polling.mode = poll_mode::busy;  // one processor for this connection alone
    o.inline_bytes_max = 128;          // small writes and sends travel in their work request
    return o;
}

connection_options for_throughput() {
    connection_options o;
    o.send_queue_depth = 128;
    o.initiator_depth = 16;             // reads in flight
    o.polling.mode = poll_mode::event;  // the device is busy anyway
    return o;
}

connection_options for_many_connections(boost::asio::io_context& io) {
    connection_options o;
    o.shared_poller = poller{io};  // one thread for all that are made with these options
    o.send_queue_depth = 16;
    return o;
}

awaitable<void> write_many(connection& c, std::vector<local_slice> const& from, std::vector<remote_region> const& to) {
    batch b{c};
    for (std::size_t i = 0; i < from.size(); ++i) b.write(from[i], to[i]);
    co_await b.async_submit(use_awaitable);  // one doorbell, one completion
}

awaitable<void> on_the_polling_thread(boost::asio::io_context& io, connection& c, buffer const& mine, remote_region theirs) {
    // Spawned here, the coroutine goes on where the completion was found: no hop to another thread.
    co_await boost::asio::co_spawn(
        c.get_executor(),
        [&]() -> awaitable<void> {
            for (int i = 0; i < 1000; ++i) co_await c.async_write(mine.slice(), theirs, use_awaitable);
        },
        use_awaitable
    );
    co_await boost::asio::post(io, use_awaitable);  // and back
}

// --- memory -----------------------------------------------------------------------------------------------------------

void register_memory(connection& c) {
    // The library's: page-aligned, zeroed, freed when it is deregistered.
    buffer pages{c.domain(), std::size_t{1} << 20, access_flags::remote_read};

    // Your own: stays yours, must outlive the region.
    std::vector<double> values(1000);
    memory_region region{c.domain(), std::span{values}, access_flags::local_write};
    local_slice some = region.slice(std::span{values}.subspan(10, 5));

    // What a peer needs to know; a value, to be sent to it.
    remote_region offered = pages.remote();
    remote_region first_page = offered.slice(0, 4096);  // checked: throws errc::out_of_range

    static_cast<void>(some);
    static_cast<void>(first_page);
}

class slots {
public:
    slots(protection_domain const& domain, std::size_t count, std::size_t slot_bytes)
        : memory_{domain, count * slot_bytes, access_flags::local_write}, slot_bytes_{slot_bytes} {
        for (std::size_t i = 0; i < count; ++i) free_.push_back(i);
    }

    bool is_empty() const { return free_.empty(); }
    std::size_t take() {
        std::size_t const slot = free_.back();
        free_.pop_back();
        return slot;
    }
    // Only when the operation's handler has run: until then the device may touch it.
    void give_back(std::size_t slot) { free_.push_back(slot); }
    local_slice slice(std::size_t slot) const { return memory_.slice(slot * slot_bytes_, slot_bytes_); }

private:
    buffer memory_;
    std::size_t slot_bytes_;
    std::vector<std::size_t> free_;
};

// --- security ---------------------------------------------------------------------------------------------------------

acceptor_options guarded() {
    acceptor_options o;
    o.connections_max = 200;
    o.connections_per_address_max = 10;
    o.busy_answer = session::busy_answer();   // who is refused hears errc::peer_busy
    o.connection.private_domain = true;       // a key opens nothing on another client's connection
    o.connection.keepalive_interval = 10s;
    return o;
}

void end_of_lease(connection& c) {
    // From now on this peer can neither read nor write, whatever keys it has.
    c.set_remote_access(access_flags::local_read);
}

// --- errors -----------------------------------------------------------------------------------------------------------

awaitable<void> careful_write(connection& c, buffer const& mine, remote_region theirs) {
    auto [ec, bytes] = co_await c.async_write(mine.slice(), theirs, boost::asio::as_tuple(use_awaitable));
    if (!ec) co_return;
    if (!is_fatal(ec)) {
        std::cerr << "not posted, nothing happened: " << ec.message() << '\n';
        co_return;
    }
    // The connection is gone. The write may have been done, in part or not at all.
    std::cerr << c.last_failure().message() << '\n';
}

int main() {}
