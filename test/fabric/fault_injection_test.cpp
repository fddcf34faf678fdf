// The whole life of a connection, repeated with each C call failing in turn: nothing hangs, nothing
// leaks, every operation completes once, and the failure is reported to a waiting operation.
#include <boost/asio/detached.hpp>

#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

struct outcome {
    bool is_finished = false;
    bool is_balanced = false;
    bool has_failure = false;
    bool saw_code = false;
    // The call failed while the connections were in use; later failures have no waiting operation
    // to report them.
    bool failed_while_open = false;
    std::string report;
};

/// Connects, runs every kind of operation and disconnects, with both ends in this program. Records
/// failures and continues.
asio::awaitable<void> life(world& w, asio::io_context& io, ledger& book, outcome& out) {
    std::string& report = out.report;
    auto const note = [&](char const* what, auto operation) -> asio::awaitable<bool> {
        auto done = book.entry(what);
        error_code ec;
        try {
            co_await std::move(operation);
        } catch (boost::system::system_error const& e) {
            ec = e.code();
        }
        if (ec) report += std::string{what} + ": " + ec.message() + "\n";
        done(ec);
        co_return !ec;
    };
    std::optional<acceptor> listening;
    std::optional<connection> client;
    connection server;
    try {
        listening.emplace(stepped(io), endpoint{"10.0.0.1", 0});
        client.emplace(stepped(io));
    } catch (boost::system::system_error const& e) {
        report += std::string{"opening: "} + e.code().message() + "\n";
        book.entry("opening")(e.code());
        out.failed_while_open = true;
        co_return;
    }
    auto const accept = [&]() -> asio::awaitable<void> {
        server = co_await listening->async_accept(asio::use_awaitable);
    };
    bool accepted = false;
    bool connected = false;
    auto const serve = [&]() -> asio::awaitable<void> {
        accepted = co_await note("accept", accept());
    };
    auto const reach = [&]() -> asio::awaitable<void> {
        connected = co_await note(
            "connect", client->async_connect(listening->local_endpoint(), asio::use_awaitable)
        );
        if (!connected) {
            // Otherwise the other side's accept would wait for ever.
            listening->close();
        }
    };
    co_await (serve() && reach());
    listening->close();
    out.failed_while_open = w.has_failed_call();
    if (accepted && connected) {
        try {
            registered_buffer ours{client->domain(), 4096, access_flags::local_write};
            registered_buffer theirs{
                server.domain(),
                4096,
                access_flags::remote_read | access_flags::remote_write |
                    access_flags::remote_atomic};
            co_await note(
                "write", client->async_write(ours.slice(), theirs.remote(), asio::use_awaitable)
            );
            co_await note(
                "read", client->async_read(theirs.remote(), ours.slice(), asio::use_awaitable)
            );
            co_await note(
                "add", client->async_fetch_add(theirs.remote().word(0), 1, asio::use_awaitable)
            );
            auto const receive = [&]() -> asio::awaitable<void> {
                co_await note(
                    "receive", server.async_receive(theirs.slice(0, 64), asio::use_awaitable)
                );
            };
            auto const send = [&]() -> asio::awaitable<void> {
                bool const sent = co_await note(
                    "send", client->async_send(ours.slice(0, 64), asio::use_awaitable)
                );
                if (!sent) server.close();
            };
            co_await (receive() && send());
            out.failed_while_open = w.has_failed_call();
            auto const leave = [&](connection& c, char const* what) {
                return note(what, c.async_disconnect(asio::use_awaitable));
            };
            co_await (
                leave(*client, "client's disconnect") && leave(server, "server's disconnect")
            );
        } catch (boost::system::system_error const& e) {
            report += std::string{"registering: "} + e.code().message() + "\n";
            book.entry("registering")(e.code());
        }
    }
    client->close();
    if (accepted) server.close();
}

outcome live_through(world& w) {
    ledger book;
    outcome o;
    {
        asio::io_context io;
        asio::co_spawn(io, life(w, io, book, o), asio::detached);
        o.is_finished = w.run(io);
    }
    o.is_balanced = book.is_balanced();
    o.has_failure = book.has_failure();
    for (ledger::line const& l : book.lines())
        o.saw_code = o.saw_code || l.code == boost::system::errc::no_buffer_space;
    return o;
}

fabric::world_options seeded() {
    fabric::world_options o;
    o.seed = 20;
    return o;
}

// A failed destruction cannot be reported; the object is leaked.
bool destroys(std::string const& function) {
    return function.find("destroy") != std::string::npos ||
           function.find("dealloc") != std::string::npos ||
           function.find("dereg") != std::string::npos || function == "ibv_close_device";
}

// These are called again after a failure, or the connection works without them.
bool is_survived(std::string const& function) {
    static std::set<std::string> const survived{
        "rdma_get_cm_event",  // the event stays queued; the next poll finds it
        "ibv_get_cq_event",  // likewise
        "ibv_get_async_event",  // likewise, or the device says nothing any more
        "rdma_disconnect",  // the queue pair is stopped; destroying the id notifies the peer
        "rdma_reject",
        "rdma_init_qp_attr",  // called before the queue pair is created, which reports the failure
    };
    return survived.contains(function);
}

}  // namespace

TEST_CASE("without a failed call the scenario reports no failure and leaks nothing", "[fabric]") {
    world w{seeded()};
    outcome const o = live_through(w);
    INFO(o.report);
    CHECK(o.is_finished);
    CHECK(o.is_balanced);
    CHECK_FALSE(o.has_failure);
    CHECK(w.live() == fabric::object_counts{});
}

TEST_CASE(
    "whichever C call fails, the scenario ends, leaks nothing and reports the failure", "[fabric]"
) {
    std::map<std::string, std::size_t> counts;
    {
        world w{seeded()};
        static_cast<void>(live_through(w));
        for (std::string const& name : w.calls()) ++counts[name];
        counts["ibv_poll_cq"] = w.call_count("ibv_poll_cq");
    }
    REQUIRE(counts.size() > 20);
    int lives = 0;
    for (auto const& [function, count] : counts) {
        // These cannot fail.
        static std::set<std::string> const certain{
            "rdma_ack_cm_event", "ibv_ack_cq_events", "rdma_free_devices"};
        if (certain.contains(function)) continue;
        for (std::size_t nth = 1; nth <= count; ++nth) {
            world w{seeded()};
            // An error code that no other call in this test returns.
            w.fail_call(function, nth, ENOBUFS);
            outcome const o = live_through(w);
            ++lives;
            INFO("the " << nth << "th " << function << " of " << count << " fails\n" << o.report);
            CHECK(w.has_failed_call());
            CHECK(o.is_finished);
            CHECK(o.is_balanced);
            if (o.failed_while_open && !is_survived(function) && !destroys(function)) {
                CHECK(o.has_failure);
                // A failed poll has no error code. Source: ibv_poll_cq(3).
                if (function != "ibv_poll_cq") CHECK(o.saw_code);
            }
            if (!destroys(function)) CHECK(w.live() == fabric::object_counts{});
        }
    }
    CHECK(lives > 60);
}

TEST_CASE("queues and regions are made without the connection's lock", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor door{stepped(io), endpoint{"10.0.0.1", 0}};
        shared_receive_queue shared{io};
        connection_options options;
        options.placement.shared_receives = shared;
        connection client{stepped(io), options};
        std::map<std::string, int, std::less<>> seen;
        w.on_call([&](std::string_view function) {
            bool const makes = function == "ibv_create_cq" || function == "rdma_create_qp" ||
                               function == "ibv_create_srq" || function == "ibv_reg_mr";
            if (!makes) return;
            ++seen[std::string{function}];
            static_cast<void>(client.statistics());
            static_cast<void>(shared.credits());
        });
        auto const accept = [&]() -> asio::awaitable<connection> {
            co_return co_await door.async_accept(asio::use_awaitable);
        };
        connection server =
            co_await (accept() && client.async_connect(door.local_endpoint(), asio::use_awaitable));
        w.on_call(nullptr);
        CHECK(seen["ibv_create_cq"] == 2);
        CHECK(seen["rdma_create_qp"] == 2);
        CHECK(seen["ibv_create_srq"] == 1);
        CHECK(seen["ibv_reg_mr"] == 2);
        client.close();
        co_await server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE(
    "a connection that is closed while its queues are made leaves nothing behind", "[fabric]"
) {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        acceptor door{stepped(io), endpoint{"10.0.0.1", 0}};
        auto const before = w.live();
        for (std::string_view const at : {"ibv_create_cq", "rdma_create_qp", "ibv_reg_mr"}) {
            CAPTURE(at);
            connection client{stepped(io)};
            w.on_call([&](std::string_view function) {
                if (function == at) client.close();
            });
            auto [ec] = co_await client.async_connect(door.local_endpoint(), awaiting);
            w.on_call(nullptr);
            CHECK(ec == asio::error::operation_aborted);
            co_await client.async_wait_disconnected(awaiting);
            CHECK(client.last_failure().reason == close_reason::closed_locally);
        }
        CHECK(w.live().queue_pairs == before.queue_pairs);
        CHECK(w.live().completion_queues == before.completion_queues);
        CHECK(w.live().memory_regions == before.memory_regions);
    });
}
