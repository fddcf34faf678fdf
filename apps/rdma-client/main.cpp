// rdma-client — connects to rdma-server, exchanges a message or adds to the server's counter, and
// disconnects.
#include <CLI/CLI.hpp>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdio>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <rcverbs/rcverbs.hpp>

#include "common/arguments.hpp"

namespace {

namespace asio = boost::asio;
using demo::exit_code;

struct client_arguments : demo::arguments {
    std::string host;
    std::uint16_t port = 0;
    std::string from;
    std::uint32_t count = 1;
    // With --reconnect: the number of attempts before giving up; 0 without it.
    std::uint32_t attempts = 0;
};

asio::awaitable<exit_code> work_with(rcverbs::session& session, client_arguments const& a) {
    return a.exchange.mode == demo::transfer_mode::atomic
               ? demo::add_to_counter(session, a.exchange, a.counter)
               : demo::exchange(session, a.exchange);
}

exit_code run_once(client_arguments const& a, rcverbs::endpoint const& server) {
    asio::io_context io;
    rcverbs::connection_options options = a.connection;
    options.on_step = [](rcverbs::step s) {
        if (s == rcverbs::step::resolve_address) demo::print("address resolved.");
        if (s == rcverbs::step::resolve_route) demo::print("route resolved.");
    };
    rcverbs::session session{
        rcverbs::connection{rcverbs::poller::start({.polling = a.polling}), options}, a.session()};
    exit_code code = exit_code::other;
    auto const work = [&]() -> asio::awaitable<void> {
        auto [ec] = co_await session.async_connect(server, asio::as_tuple(asio::use_awaitable));
        if (ec) {
            rcverbs::failure const f = session.last_failure();
            demo::print_error(f.message());
            code = demo::exit_code_for(ec, f.where);
        } else {
            code = co_await work_with(session, a);
        }
    };
    // The coroutine runs on the polling thread; its completion handler runs on this thread.
    asio::co_spawn(
        session.get_executor(),
        work,
        asio::bind_executor(
            io,
            [&](std::exception_ptr failed) {
                try {
                    if (failed) std::rethrow_exception(failed);
                } catch (std::exception const& e) {
                    demo::print_error(e.what());
                }
                session.close();
            }
        )
    );
    io.run();
    return code;
}

// Reconnects whenever the connection is lost, and repeats the exchange that was interrupted.
class persistent_client {
public:
    persistent_client(client_arguments const& a, std::vector<rcverbs::endpoint> servers)
        : arguments_{a},
          to_server_{
              rcverbs::poller::on(io_, {.polling = a.polling}), std::move(servers), terms(a)} {}

    exit_code run() {
        asio::co_spawn(io_, exchange_all(), [this](std::exception_ptr failed) {
            try {
                if (failed) std::rethrow_exception(failed);
            } catch (std::exception const& e) {
                demo::print_error(e.what());
                code_ = exit_code::other;
            }
        });
        io_.run();
        return code_;
    }

private:
    static rcverbs::connector_options<> terms(client_arguments const& a) {
        rcverbs::connector_options<> o;
        o.protocol = a.session();
        o.protocol.connection = a.connection;
        o.backoff.delay_max = std::chrono::seconds{2};
        o.backoff.attempts_max = a.attempts;
        return o;
    }

    bool is_worth_another(rcverbs::session const& session) const {
        // Interrupted additions may already have been executed; repeating them could count twice.
        if (arguments_.exchange.mode == demo::transfer_mode::atomic) return false;
        return rcverbs::is_transient(session.last_failure().code);
    }

    asio::awaitable<void> exchange_all() {
        for (std::uint32_t done = 0; done < arguments_.count;) {
            auto [ec, session] =
                co_await to_server_.async_connect(asio::as_tuple(asio::use_awaitable));
            if (ec) {
                rcverbs::failure const f = to_server_.last_failure();
                demo::print_error(f.code ? f.message() : ec.message());
                code_ = demo::exit_code_for(ec, f.where);
                co_return;
            }
            code_ = co_await work_with(session, arguments_);
            if (code_ == exit_code::done) {
                ++done;
            } else if (is_worth_another(session)) {
                demo::print_error("connecting again");
            } else {
                co_return;
            }
        }
    }

    asio::io_context io_;
    client_arguments const& arguments_;
    rcverbs::connector to_server_;
    exit_code code_ = exit_code::other;
};

// With --reconnect, a name that does not resolve yet is looked up again.
std::vector<rcverbs::endpoint> resolve(client_arguments const& a) {
    for (std::uint32_t attempt = 1;; ++attempt) {
        auto found = demo::resolve(a.host, a.port);
        if (!found.empty() || a.host.empty() || attempt >= a.attempts) return found;
        std::this_thread::sleep_for(std::chrono::seconds{1});
    }
}

// The addresses of a name are tried in turn.
exit_code run_once(client_arguments const& a, std::vector<rcverbs::endpoint> const& servers) {
    exit_code code = exit_code::could_not_connect;
    for (rcverbs::endpoint const& each : servers) {
        code = run_once(a, each);
        if (code != exit_code::could_not_connect) break;
    }
    return code;
}

exit_code run(client_arguments& a) {
    auto const servers = resolve(a);
    if (servers.empty()) return exit_code::could_not_connect;
    if (!a.from.empty()) a.connection.placement.bind_address = asio::ip::make_address(a.from);
    a.apply_timeout();
    // All additions go over one connection.
    if (a.exchange.mode == demo::transfer_mode::atomic)
        a.counter.additions = std::exchange(a.count, 1);
    if (a.attempts > 0) return persistent_client{a, servers}.run();
    for (std::uint32_t i = 0; i < a.count; ++i) {
        exit_code const code = run_once(a, servers);
        if (code != exit_code::done) return code;
    }
    return exit_code::done;
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered: a script reads it line by line
    client_arguments a;
    a.exchange.side = "active/client";
    a.exchange.farewell = "disconnected.";
    CLI::App app{
        "Exchanges a message with rdma-server by RDMA write or read, or adds to its counter by "
        "RDMA atomics."};
    demo::add_shared(app, a);
    demo::add_keys(app, a.authentication, true);
    app.add_option("host", a.host, "the server's address or name")
        ->required()
        ->option_text("HOST REQUIRED");
    app.add_option("port", a.port, "the server's port")
        ->required()
        ->check(CLI::Range(1, 65535))
        ->option_text("PORT REQUIRED");
    demo::add_address(app, "--from", a.from, "the local address to connect from");
    app.add_option(
           "--count",
           a.count,
           "how many exchanges to run, one after another; with atomic: how many additions"
    )
        ->check(CLI::Range(1, 1000000))
        ->option_text("N [1]");
    app.add_option(
           "--reconnect",
           a.attempts,
           "make at most N attempts to connect, with backoff, when the server is not reachable or "
           "has ended, and repeat the interrupted exchange; with atomic only until there is a "
           "connection"
    )
        ->check(CLI::Range(1, 1000000))
        ->option_text("ATTEMPTS");
    app.add_option("--add", a.counter.addend, "with atomic: the number that each addition adds")
        ->option_text("N [1]");
    app.add_option(
           "--updates",
           a.counter.updates,
           "with atomic: the number of changes of the record under the lock"
    )
        ->check(CLI::Range(0, 1000000))
        ->option_text("N [1]");
    exit_code code = exit_code::other;
    if (!demo::parse(app, argc, argv, code)) return static_cast<int>(code);
    try {
        code = run(a);
    } catch (std::exception const& e) {
        code = demo::report_start_failure(e);
    }
    return static_cast<int>(code);
}
