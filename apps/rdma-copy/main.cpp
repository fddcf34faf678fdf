// rdma-copy — copies files and directories to and from a server.
#include <CLI/CLI.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>

#include <rcverbs/acceptor.hpp>

#include "common/arguments.hpp"
#include "common/awaiting.hpp"
#include "common/print.hpp"
#include "rdma-copy/session.hpp"

namespace {

namespace asio = boost::asio;
using copy::result;

enum status : int { all_copied = 0, some_failed = 1, no_connection = 2, wrong_usage = 64 };

struct settings {
    copy::link_options link;
    std::uint16_t port = 7474;
    std::string bind;
    std::size_t clients_max = 16;
    bool replaces = false;
    bool is_quiet = false;
    std::vector<std::string> paths;
    std::string directory;
};

// Half of what may be locked, for the slots of one side; the rest is for messages and queues.
std::size_t usual_memory() {
    constexpr std::size_t most = std::size_t{8} << 20;
    rlimit limit{};
    if (::geteuid() == 0 || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
        return most;
    return std::min<std::size_t>(most, limit.rlim_cur / 2);
}

std::string in_mebibytes(std::uint64_t bytes) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
    return text.data();
}

std::string summary(result const& r) {
    std::string text = std::to_string(r.entries) + (r.entries == 1 ? " entry, " : " entries, ") +
                       in_mebibytes(r.bytes);
    if (r.failed > 0) text += ", " + std::to_string(r.failed) + " failed";
    return text;
}

void report_failure(std::string const& path, std::string const& why) {
    demo::print_error(path + ": " + why);
}

// --- the client ----------------------------------------------------------------------------------

int run_client(settings const& s) {
    auto const target = copy::parse_place(s.paths.back());
    auto const source = copy::parse_place(s.paths.front());
    bool const is_push = target && !source;
    if (!is_push && (s.paths.size() != 2 || !source || target)) {
        demo::print_error(
            "one side must be remote: rdma-copy SOURCE… HOST:TARGET, or rdma-copy HOST:SOURCE "
            "TARGET"
        );
        return wrong_usage;
    }
    copy::remote_place const& place = is_push ? *target : *source;
    auto const peer = demo::resolve(place.host, s.port);
    if (!peer) return no_connection;
    asio::io_context io;
    copy::disk files{io};
    copy::link server{io, s.link};
    asio::signal_set signals{io, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code ec, int) {
        if (!ec) server.close();
    });
    auto const begin = std::chrono::steady_clock::now();
    result done;
    std::string failed;
    bool is_refused = false;
    asio::co_spawn(
        io,
        [&]() -> asio::awaitable<void> {
            co_await server.connect(*peer);
            if (is_push) {
                std::vector<std::string> const sources{s.paths.begin(), s.paths.end() - 1};
                done = co_await copy::push(
                    server, files, sources, place.path, s.replaces, report_failure
                );
            } else {
                done = co_await copy::pull(
                    server, files, place.path, s.paths.back(), s.replaces, report_failure
                );
            }
        },
        [&](std::exception_ptr e) {
            signals.cancel();
            try {
                if (e) std::rethrow_exception(e);
            } catch (copy::refused const& error) {
                is_refused = true;
                failed = error.what();
            } catch (boost::system::system_error const&) {
                failed = server.failure_text();
            } catch (std::exception const& error) {
                failed = error.what();
            }
            server.close();
        }
    );
    io.run();
    if (!failed.empty()) {
        demo::print_error(failed);
        return is_refused ? some_failed : no_connection;
    }
    if (!s.is_quiet) {
        std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
        demo::print(summary(done) + " in " + std::to_string(took.count()) + " s");
    }
    return done.failed > 0 ? some_failed : all_copied;
}

// --- the server ----------------------------------------------------------------------------------

class server {
public:
    server(asio::io_context& io, settings const& s, copy::tree root, std::string name)
        : io_{io},
          settings_{s},
          root_{std::move(root)},
          name_{std::move(name)},
          files_{io} {
        rcverbs::acceptor_options options;
        options.connections_max = s.clients_max;
        acceptor_ = demo::listen_at(s.bind, s.port, [&](rcverbs::endpoint const& here) {
            return rcverbs::acceptor{io_, here, options};
        });
        demo::print("listening on port " + std::to_string(acceptor_.local_endpoint().port()) + ".");
        asio::co_spawn(io_, accept_clients(), asio::detached);
    }

    void stop() {
        acceptor_.close();
        for (copy::link* const l : clients_) l->close();
    }

private:
    asio::awaitable<void> accept_clients() {
        for (;;) {
            auto [ec, request] = co_await acceptor_.async_get_request(demo::awaiting);
            if (ec) co_return;
            asio::co_spawn(io_, serve(std::move(request)), asio::detached);
        }
    }

    asio::awaitable<void> serve(rcverbs::connection_request request) {
        std::string const peer = request.remote_endpoint().to_string();
        std::string failed;
        try {
            copy::link client{io_, std::move(request), settings_.link};
            clients_.insert(&client);
            try {
                co_await client.accept();
                result const done = co_await copy::serve(
                    client,
                    files_,
                    root_,
                    name_,
                    [&](auto const& path, auto const& why) {
                        demo::print_error(peer + ": " + path + ": " + why);
                    }
                );
                if (!settings_.is_quiet) demo::print(peer + ": " + summary(done));
            } catch (boost::system::system_error const&) {
                failed = client.failure_text();
            }
            clients_.erase(&client);
        } catch (std::exception const& e) {
            failed = e.what();
        }
        if (!failed.empty()) demo::print_error(peer + ": " + failed);
    }

    asio::io_context& io_;
    settings const& settings_;
    copy::tree const root_;
    std::string const name_;
    copy::disk files_;
    rcverbs::acceptor acceptor_;
    std::set<copy::link*> clients_;
};

int run_server(settings const& s) {
    int error = 0;
    copy::tree root = copy::tree::open(s.directory, error);
    if (error != 0) {
        demo::print_error(s.directory + ": " + copy::why(error));
        return some_failed;
    }
    std::error_code ec;
    std::string name = std::filesystem::canonical(s.directory, ec).filename().string();
    if (name.empty()) name = "root";
    asio::io_context io;
    server files{io, s, std::move(root), std::move(name)};
    asio::signal_set signals{io, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code, int) { files.stop(); });
    io.run();
    return all_copied;
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered: a script reads the port from it
    settings s;
    s.link.memory_bytes = usual_memory();
    CLI::App app{
        "Copies files and directories over RDMA. A file appears under its name when all of it is "
        "on the "
        "disk of the target, and has the hash of its source.\n"
        "  rdma-copy SOURCE… HOST:TARGET\n"
        "  rdma-copy HOST:SOURCE TARGET\n"
        "  rdma-copy serve DIRECTORY"};
    app.footer(
        "Exit codes: 0 all was copied; 1 something was not, with a line for each; 2 the connection "
        "failed; "
        "64 wrong usage."
    );
    auto const add_shared = [&](CLI::App& to) {
        to.add_option("--port", s.port, "the server's port; for the server, 0 picks a free one")
            ->check(CLI::Range(0, 65535))
            ->option_text("N [7474]");
        to.add_option(
              "--memory", s.link.memory_bytes, "locked memory for the files' bytes, of each copy"
        )
            ->transform(CLI::AsSizeValue(false))
            ->check(CLI::Range(std::size_t{4096}, std::size_t{1} << 30))
            ->option_text("BYTES [8M, or half of ulimit -l]");
        demo::add_duration(
            to, "--timeout", s.link.timeout, "how long the other side may say nothing", "30s"
        );
        to.add_flag("--quiet", s.is_quiet, "print errors only");
    };
    add_shared(app);
    app.add_flag("--force", s.replaces, "replace files and links that exist");
    app.add_option("paths", s.paths, "what to copy, and where to");
    CLI::App& serve = *app.add_subcommand("serve", "lets clients copy to and from a directory");
    serve.add_option("directory", s.directory, "nothing outside of it is read or written")
        ->required();
    add_shared(serve);
    demo::add_address(
        serve, "--bind", s.bind, "the local address to listen on; without it, all addresses"
    );
    serve.add_option("--max-clients", s.clients_max, "clients at a time")
        ->check(CLI::Range(1, 1024))
        ->option_text("N [16]");
    demo::exit_code code = demo::exit_code::other;
    if (!demo::parse(app, argc, argv, code))
        return code == demo::exit_code::done ? all_copied : wrong_usage;
    if (!serve.parsed() && s.paths.size() < 2) {
        demo::print_error("name what to copy, and where to: see --help");
        return wrong_usage;
    }
    demo::background_printing const printing;
    try {
        return serve.parsed() ? run_server(s) : run_client(s);
    } catch (std::exception const& e) {
        demo::print_error(e.what());
        return no_connection;
    }
}
