// The session protocol on a real device, both ends in one process.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>

#include <fstream>
#include <optional>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace rcverbs;
using namespace test;

namespace {

struct session_pair {
    session client;
    session server;
};

asio::awaitable<session_pair> meet(
    asio::io_context& io, session_options options = {}, drive how = drive::context
) {
    places at{io, how};
    acceptor a{io, {device_address(), 0}};
    session client{connection{at()}, options};
    session server = co_await (
        accept_session(a, options, at()) &&
        client.async_connect(a.local_endpoint(), asio::use_awaitable)
    );
    co_return session_pair{std::move(client), std::move(server)};
}

}  // namespace

TEST_CASE("two sessions exchange regions, use them, and finish in order", "[device]") {
    asio::io_context io;
    auto const how = GENERATE(drive::own_thread, drive::poller, drive::context);
    run(io, [&]() -> asio::awaitable<void> {
        session_pair p = co_await meet(io, {}, how);
        registered_buffer ours{p.client.next_layer().domain(), 4096, access_flags::remote_read};
        registered_buffer theirs{p.server.next_layer().domain(), 4096, access_flags::remote_write};
        std::vector<named_region> const from_client{
            {"ours", ours}, {"part", ours.remote().slice(8, 8)}};
        std::vector<named_region> const from_server{{"blocks", theirs}};
        auto [to_client, to_server] = co_await (
            p.client.async_exchange(from_client, asio::use_awaitable) &&
            p.server.async_exchange(from_server, asio::use_awaitable)
        );
        REQUIRE(to_client.size() == 1);
        REQUIRE(to_client.find("blocks") != nullptr);
        CHECK(*to_client.find("blocks") == theirs.remote());
        REQUIRE(to_server.size() == 2);
        CHECK(to_server[0] == ours.remote());
        CHECK(to_server.find("part")->size() == 8);
        CHECK(to_server.find("none") == nullptr);
        std::ranges::fill(ours.bytes(), std::byte{42});
        co_await p.client.next_layer().async_write(ours.slice(), to_client[0], asio::use_awaitable);
        co_await (
            p.client.async_finish(asio::use_awaitable) && p.server.async_finish(asio::use_awaitable)
        );
        CHECK(theirs.bytes()[4095] == std::byte{42});
        CHECK(p.client.last_failure().reason == close_reason::completed);
        CHECK(p.server.last_failure().reason == close_reason::completed);
        CHECK_FALSE(p.client.last_failure().code);
        CHECK_FALSE(p.server.last_failure().code);
    });
}

TEST_CASE("either side may publish nothing", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        session_pair p = co_await meet(io);
        registered_buffer theirs{p.server.next_layer().domain(), 64, access_flags::remote_read};
        std::vector<named_region> const from_server{{"b", theirs}};
        auto const client = [&]() -> asio::awaitable<void> {
            peer_regions const regions = co_await p.client.async_wait_regions(asio::use_awaitable);
            CHECK(regions.size() == 1);
            co_await p.client.async_finish(asio::use_awaitable);
        };
        auto const server = [&]() -> asio::awaitable<void> {
            co_await p.server.async_publish(from_server, asio::use_awaitable);
            co_await p.server.async_finish(asio::use_awaitable);
        };
        co_await (client() && server());
        CHECK(p.server.last_failure().reason == close_reason::completed);
    });
}

TEST_CASE("waiting for regions that the peer will not send ends with its MSG_DONE", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        session_pair p = co_await meet(io);
        co_await p.server.async_send_done(asio::use_awaitable);
        auto [ec, regions] = co_await p.client.async_wait_regions(awaiting);
        CHECK(ec == session_errc::unexpected_message);
        CHECK(regions.size() == 0);
    });
}

TEST_CASE(
    "a mode or a peer that does not fit is refused with its reason on both sides", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        session_options ours;
        ours.mode = 1;
        session_options theirs;
        theirs.mode = 2;
        session client{connection{io}, ours};
        auto const serve = [&]() -> asio::awaitable<error_code> {
            session s{co_await requested(a), theirs};
            auto [ec] = co_await s.async_accept(awaiting);
            CHECK(s.last_failure().reason == close_reason::refused);
            CHECK(s.last_failure().where == step::handshake);
            co_return ec;
        };
        auto [served, connected] =
            co_await (serve() && client.async_connect(a.local_endpoint(), awaiting));
        CHECK(served == session_errc::mode_mismatch);
        CHECK(std::get<0>(connected) == session_errc::mode_mismatch);
        CHECK(client.last_failure().message().find("same one") != std::string::npos);

        connection foreign{io};
        auto [refused, foreign_result] =
            co_await (serve() && foreign.async_connect(a.local_endpoint(), awaiting));
        CHECK(refused == session_errc::foreign_peer);
        CHECK(std::get<0>(foreign_result) == cm_errc::rejected_by_peer);

        // The reverse: a session connects to a peer without the session protocol.
        session lost{connection{io}, ours};
        auto [plain, lost_result] = co_await (
            a.async_accept(asio::use_awaitable) && lost.async_connect(a.local_endpoint(), awaiting)
        );
        CHECK(std::get<0>(lost_result) == session_errc::foreign_peer);
        CHECK(lost.last_failure().reason == close_reason::protocol_error);
        co_await plain.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a peer that sends rubbish, or a message out of turn, is a protocol error", "[device]") {
    asio::io_context io;
    auto const rubbish = GENERATE(true, false);
    run(io, [&]() -> asio::awaitable<void> {
        session_pair p = co_await meet(io);
        connection& raw = p.client.next_layer();
        registered_buffer out{raw.domain(), 16, access_flags::local_read};
        unsigned char const done[16] = {'R', 'C', 'V', 'M', 1, 2, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0};
        if (!rubbish) std::memcpy(out.bytes().data(), done, sizeof done);
        co_await raw.async_send(out.slice(), asio::use_awaitable);
        if (!rubbish) co_await raw.async_send(out.slice(), asio::use_awaitable);
        auto [ec] = co_await p.server.next_layer().async_wait_disconnected(awaiting);
        CHECK(ec == (rubbish ? session_errc::malformed_message : session_errc::unexpected_message));
        CHECK(p.server.last_failure().reason == close_reason::protocol_error);
    });
}

TEST_CASE("a peer that leaves early is not mistaken for one that finished", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        session_pair p = co_await meet(io);
        p.client.close();
        auto [ec] = co_await p.server.async_wait_done(awaiting);
        CHECK(ec == session_errc::peer_closed_early);
        CHECK(p.server.last_failure().reason == close_reason::peer_closed_early);
    });
}

TEST_CASE("a silent peer ends each step at its deadline", "[device]") {
    asio::io_context io;
    auto const what = GENERATE(0, 1, 2);
    run(io, [&]() -> asio::awaitable<void> {
        session_options options;
        options.exchange_timeout = 200ms;
        options.finish_timeout = 200ms;
        session_pair p = co_await meet(io, options);
        auto const start = std::chrono::steady_clock::now();
        error_code ec;
        if (what == 0) {
            std::tie(ec, std::ignore) = co_await p.server.async_wait_regions(awaiting);
        } else if (what == 1) {
            std::tie(ec) = co_await p.server.async_wait_done(awaiting);
        } else {
            // The client sends MSG_DONE, and then does not disconnect.
            co_await (
                p.client.async_send_done(asio::use_awaitable) &&
                p.server.async_send_done(asio::use_awaitable)
            );
            co_await p.server.async_wait_done(asio::use_awaitable);
            std::tie(ec) = co_await p.server.async_disconnect(awaiting);
        }
        CHECK(ec == errc::timed_out);
        CHECK(std::chrono::steady_clock::now() - start >= 200ms);
        CHECK(p.server.last_failure().reason == close_reason::timed_out);
    });
}

TEST_CASE("a session sends each of its messages once", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        session_pair p = co_await meet(io);
        std::vector<named_region> const none;
        co_await p.client.async_publish(none, asio::use_awaitable);
        auto [again] = co_await p.client.async_publish(none, awaiting);
        CHECK(again == errc::operation_in_progress);
        std::vector<named_region> const too_many(65, named_region{"x", remote_region{}});
        auto [refused] = co_await p.server.async_publish(too_many, awaiting);
        CHECK(refused == errc::message_too_large);
        co_await p.server.async_publish(none, asio::use_awaitable);
        co_await p.client.async_send_done(asio::use_awaitable);
        auto [late] = co_await p.client.async_send_done(awaiting);
        CHECK(late == errc::operation_in_progress);
    });
}

TEST_CASE("a timeout of any length does not end at once", "[device]") {
    asio::io_context io;
    constexpr auto never = std::chrono::milliseconds::max();
    run(io, [&]() -> asio::awaitable<void> {
        acceptor_options accepting;
        accepting.answer_timeout = never;
        accepting.request_timeout = never;
        accepting.violation_delay = never;
        connection_options patient;
        patient.timeouts = {never, never, never, never, never};
        patient.liveness.stall_timeout = never;
        patient.liveness.keepalive_interval = never;
        patient.liveness.idle_timeout = never;
        session_options options;
        options.mode = 3;
        options.exchange_timeout = never;
        options.finish_timeout = never;
        acceptor a{io, {device_address(), 0}, accepting};
        session client{connection{io, patient}, options};
        session server;
        auto const serve = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await a.async_get_request(asio::use_awaitable);
            co_await asio::steady_timer{io, 20ms}.async_wait(asio::use_awaitable);
            REQUIRE(asked.is_valid());
            server = session{connection{io, std::move(asked), patient}, options};
            co_await server.async_accept(asio::use_awaitable);
        };
        auto const connect_late = [&]() -> asio::awaitable<void> {
            co_await asio::steady_timer{io, 20ms}.async_wait(asio::use_awaitable);
            co_await client.async_connect(a.local_endpoint(), asio::use_awaitable);
        };
        co_await (serve() && connect_late());
        registered_buffer memory{server.next_layer().domain(), 64, access_flags::remote_write};
        std::vector<named_region> const list{{"memory", memory}};
        auto const exchange_late = [&]() -> asio::awaitable<void> {
            co_await asio::steady_timer{io, 20ms}.async_wait(asio::use_awaitable);
            co_await server.async_exchange(list, asio::use_awaitable);
        };
        co_await (client.async_exchange({}, asio::use_awaitable) && exchange_late());
        auto const finish_late = [&]() -> asio::awaitable<void> {
            co_await asio::steady_timer{io, 20ms}.async_wait(asio::use_awaitable);
            co_await server.async_finish(asio::use_awaitable);
        };
        co_await (client.async_finish(asio::use_awaitable) && finish_late());
        CHECK(client.last_failure().reason == close_reason::completed);
        CHECK(server.last_failure().reason == close_reason::completed);
    });
}

TEST_CASE("a session that is cancelled before it has begun to connect says so", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        session s{io};
        auto [early] = co_await s.async_publish({}, awaiting);
        CHECK(early == errc::not_connected);
        asio::cancellation_signal signal;
        std::optional<error_code> end;
        s.async_connect(
            {device_address(), 1},
            asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { end = ec; })
        );
        signal.emit(asio::cancellation_type::terminal);
        while (!end) co_await asio::post(io, asio::use_awaitable);
        CHECK(*end == asio::error::operation_aborted);
        auto [again] = co_await s.async_connect({device_address(), 1}, awaiting);
        CHECK(again == errc::already_connected);
    });
}
