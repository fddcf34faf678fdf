// rdma-copy — copies files and directories to and from a server.
#include <CLI/CLI.hpp>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/signal_set.hpp>

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <rcverbs/acceptor.hpp>

#include "common/arguments.hpp"
#include "common/awaiting.hpp"
#include "common/metrics_server.hpp"
#include "common/print.hpp"
#include "common/printable.hpp"
#include "common/service_manager.hpp"
#include "common/repeating_timer.hpp"
#include "rdma-copy/address_range.hpp"
#include "rdma-copy/progress.hpp"
#include "rdma-copy/session.hpp"

namespace {

namespace asio = boost::asio;

enum status : int { all_copied = 0, some_failed = 1, no_connection = 2, wrong_usage = 64 };

struct settings {
    copy::link_options link;
    copy::copy_options copy;
    std::uint16_t port = 7474;
    std::string bind;
    std::size_t clients_max = 16;
    std::optional<std::size_t> clients_per_address_max;
    std::vector<std::string> allowed;
    std::string metrics;
    bool is_quiet = false;
    bool is_json = false;
    std::vector<std::string> paths;
    std::vector<std::string> excluded;
    std::string directory;
};

// --- the client ----------------------------------------------------------------------------------

// Columns of the terminal that standard error is; 0 if it is none.
std::size_t terminal_width() {
    if (::isatty(STDERR_FILENO) == 0) return 0;
    winsize size{};
    constexpr std::size_t usual = 80;
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual;
}

class client {
public:
    client(settings const& s, rcverbs::endpoint peer, std::string path, bool is_push)
        : settings_{s},
          peer_{std::move(peer)},
          path_{std::move(path)},
          is_push_{is_push},
          files_{io_},
          server_{io_, s.link},
          signals_{io_, SIGINT, SIGTERM},
          tick_{io_.get_executor()},
          width_{s.is_json || s.is_quiet ? 0 : terminal_width()} {}

    int run() {
        signals_.async_wait([&](boost::system::error_code ec, int) {
            if (ec) return;
            is_stopped_ = true;
            server_.stop();
            signals_.clear();  // the second one ends the program, whatever its disk does
        });
        using namespace std::chrono_literals;
        if (shows_progress()) tick_.start(width_ > 0 ? 200ms : 1000ms, [this] { show(); });
        asio::co_spawn(io_, copy_all(), [&](std::exception_ptr e) { end(e); });
        io_.run();
        return conclude();
    }

private:
    using clock = std::chrono::steady_clock;

    asio::awaitable<void> copy_all() {
        co_await server_.connect(peer_);
        copy::failure_report const report = [this](auto const& path, auto const& why) {
            on_failure(path, why);
        };
        copy::copy_options options = settings_.copy;
        options.wants_total = shows_progress();
        if (options.lists)
            options.listed_deletion = [this](std::string const& path) {
                on_listed("delete", path);
            };
        options.listed = [this](std::string const& path) { on_listed("copy", path); };
        if (is_push_) {
            std::vector<std::string> const sources{
                settings_.paths.begin(), settings_.paths.end() - 1};
            co_await copy::push(server_, files_, sources, path_, options, report, done_);
        } else {
            co_await copy::pull(
                server_, files_, path_, settings_.paths.back(), options, report, done_
            );
        }
    }

    void end(std::exception_ptr e) {
        signals_.cancel();
        signals_.clear();
        tick_.stop();
        try {
            if (e) std::rethrow_exception(e);
        } catch (copy::refused const& error) {
            is_refused_ = true;
            failed_ = error.what();
        } catch (boost::system::system_error const& error) {
            failed_ = server_.failure_text(error);
        } catch (std::exception const& error) {
            failed_ = error.what();
        }
        if (e && is_stopped_) failed_ = "stopped by a signal";
        server_.close();
    }

    void on_failure(std::string const& path, std::string const& why) {
        if (has_room()) clear_line();
        demo::print_error(demo::one_line(path) + ": " + why);
        // The others are counted only.
        constexpr std::size_t kept_most = 10000;
        if (settings_.is_json && failures_.size() < kept_most) failures_.push_back({path, why});
    }

    // Printed at the end: a reader that is slow does not hold up the copy.
    void on_listed(char const* what, std::string const& path) {
        if (settings_.is_json) list_ += copy::listed_json(what, path);
        else list_ += std::string{what} + ": " + demo::one_line(path);
        list_ += '\n';
    }
    // Not by the thread that prints, which leaves out what is too much.
    int print_list() const {
        bool const is_printed =
            std::fwrite(list_.data(), 1, list_.size(), stdout) == list_.size() &&
            std::fflush(stdout) == 0;
        return is_printed ? 0 : errno;
    }

    // In a log file the summary is enough.
    bool shows_progress() const { return !settings_.is_quiet && (settings_.is_json || width_ > 0); }
    // A terminal that takes nothing must not stop the copy.
    static bool has_room() {
        pollfd terminal{STDERR_FILENO, POLLOUT, 0};
        return ::poll(&terminal, 1, 0) == 1 && (terminal.revents & POLLOUT) != 0;
    }
    void show() {
        pace_.sample(clock::now(), done_);
        double const rate = pace_.rate();
        if (settings_.is_json) return demo::print(copy::progress_json(done_, rate));
        std::string const line = copy::progress_line(done_, rate, width_);
        if (!has_room()) return;
        clear_line();
        std::fputs(line.c_str(), stderr);
        std::fflush(stderr);
        has_line_ = true;
    }
    void clear_line() {
        if (std::exchange(has_line_, false)) std::fputs("\r\033[K", stderr);
    }

    int conclude() {
        clear_line();
        auto const took = clock::now() - begin_;
        int const error = print_list();
        if (settings_.is_json) demo::print(copy::result_json(done_, failures_, failed_, took));
        if (!failed_.empty()) {
            demo::print_error(failed_);
            if (!is_refused_ && done_.moved > 0)
                demo::print_error("run the same command with --continue to resume");
            return is_refused_ ? some_failed : no_connection;
        }
        if (!settings_.is_quiet && !settings_.is_json) {
            std::string const begin = settings_.copy.lists ? "dry run: " : "";
            demo::print(begin + copy::summary(done_, took));
            if (std::string const lost = copy::text_of(done_.lost); !lost.empty())
                demo::print(lost);
        }
        if (error != 0) demo::print_error("standard output: " + copy::why(error));
        return done_.failed > 0 || error != 0 ? some_failed : all_copied;
    }

    settings const& settings_;
    rcverbs::endpoint const peer_;
    std::string const path_;
    bool const is_push_;
    asio::io_context io_;
    copy::disk files_;
    copy::link server_;
    asio::signal_set signals_;
    demo::repeating_timer tick_;
    std::size_t const width_;
    clock::time_point const begin_ = clock::now();
    copy::pace pace_;
    copy::result done_;
    std::vector<copy::failed_entry> failures_;
    std::string list_;
    std::string failed_;
    bool is_refused_ = false;
    bool is_stopped_ = false;
    bool has_line_ = false;
};

// A client may have many sources, a server many clients; the limit for programs that use select(2) is not
// meant for this one.
void open_as_many_files_as_allowed() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

// True for `.` and `SOURCE/.`.
bool is_content_of(std::string const& path) {
    auto const place = copy::parse_place(path);
    std::string text = place ? place->path : path;
    text.erase(text.find_last_not_of('/') + 1);
    return text == "." || text.ends_with("/.");
}

int run_client(settings s) {
    open_as_many_files_as_allowed();
    auto const target = copy::parse_place(s.paths.back());
    auto const source = copy::parse_place(s.paths.front());
    bool const is_push = target && !source;
    for (std::string const& path : s.paths) {
        if (!path.empty()) continue;
        demo::print_error("a path is empty; for the current directory use .");
        return wrong_usage;
    }
    // What is in the source goes into the target, as with cp and rsync.
    bool const is_content = std::any_of(s.paths.begin(), s.paths.end() - 1, &is_content_of);
    s.copy.is_onto = s.copy.is_onto || is_content;
    if (s.copy.is_onto && s.paths.size() > 2) {
        demo::print_error("--no-target-directory, and SOURCE/., are for one source");
        return wrong_usage;
    }
    if (is_push && s.copy.is_onto && copy::is_served_root(target->path)) {
        demo::print_error(
            "--no-target-directory, and SOURCE/., need the name of a target: the server's "
            "directory itself gets no mode and time"
        );
        return wrong_usage;
    }
    if (source && !target && s.paths.size() > 2) {
        demo::print_error("only one source at a server can be copied at a time");
        return wrong_usage;
    }
    if (!is_push && (!source || target)) {
        demo::print_error(
            "one side must be remote: rdma-copy SOURCE… HOST:TARGET, or rdma-copy HOST:SOURCE "
            "TARGET"
        );
        return wrong_usage;
    }
    for (std::string const& pattern : s.excluded) {
        if (s.copy.excluded.add(pattern)) continue;
        demo::print_error(
            "--exclude " + pattern + ": it is no pattern, or there are more than " +
            std::to_string(copy::exclusions::patterns_max) + ", or they are longer than " +
            std::to_string(copy::exclusions::bytes_max) + " bytes together"
        );
        return wrong_usage;
    }
    copy::remote_place const& place = is_push ? *target : *source;
    if (std::size_t const at = place.host.find('@'); at != std::string::npos) {
        demo::print_error(
            place.host + ": servers have no users; write " + place.host.substr(at + 1) + ':'
        );
        return wrong_usage;
    }
    auto const peer = demo::resolve_with_route(place.host, s.port);
    if (!peer) return no_connection;
    return client{s, *peer, place.path, is_push}.run();
}

// --- the server ----------------------------------------------------------------------------------

class server {
public:
    server(asio::io_context& io, settings const& s, copy::served_directory directory)
        : io_{io},
          settings_{s},
          directory_{std::move(directory)} {
        rcverbs::acceptor_options options;
        options.connections_max = s.clients_max;
        // A quarter is left for others.
        per_address_max_ =
            s.clients_per_address_max.value_or(std::max<std::size_t>(s.clients_max * 3 / 4, 1));
        options.connections_per_address_max = per_address_max_;
        options.on_refused = [this](rcverbs::endpoint const& peer, rcverbs::refusal why) {
            report_refusal(peer, reason(why));
        };
        for (std::string const& text : s.allowed)
            allowed_.push_back(*copy::address_range::parse(text));
        acceptor_ = demo::listen_at(s.bind, s.port, [&](rcverbs::endpoint const& here) {
            return rcverbs::acceptor{io_, here, options};
        });
        if (!s.metrics.empty())
            metrics_.emplace(io_, s.metrics, "rdma_copy", [this] { return metrics(); });
        demo::print("listening on port " + std::to_string(acceptor_.local_endpoint().port()) + ".");
        if (metrics_ && metrics_->port() != 0)
            demo::print("statistics on port " + std::to_string(metrics_->port()) + '.');
        demo::notify_ready();
        asio::co_spawn(io_, accept_clients(), asio::detached);
    }

    void stop() {
        demo::notify_stopping();
        is_stopped_ = true;
        acceptor_.close();
        if (metrics_) metrics_->close();
        for (auto const& [client, counters] : clients_) client->stop();
    }

    /// Called if it ends by itself.
    std::function<void()> on_failure;

private:
    // Of errors of one client.
    static constexpr std::size_t lines_most = 1000;

    void fail(std::string const& why) {
        demo::print_error(why);
        stop();
        on_failure();
    }

    asio::awaitable<void> accept_clients() {
        for (;;) {
            auto [ec, request] = co_await acceptor_.async_get_request(demo::awaiting);
            if (ec) {
                if (!is_stopped_) fail("no more clients can connect: " + ec.message());
                co_return;
            }
            if (is_allowed(request.remote_endpoint())) {
                asio::co_spawn(io_, serve(std::move(request)), asio::detached);
                continue;
            }
            ++not_allowed_;
            report_refusal(request.remote_endpoint(), "its address is not allowed (--allow)");
            rcverbs::error_code ignored;
            request.reject({}, ignored);
        }
    }

    bool is_allowed(rcverbs::endpoint const& peer) const {
        return allowed_.empty() || std::ranges::any_of(allowed_, [&](auto const& range) {
                   return range.has(peer.address());
               });
    }

    std::string reason(rcverbs::refusal why) const {
        switch (why) {
        case rcverbs::refusal::connections:
            return "--max-clients is " + std::to_string(settings_.clients_max);
        case rcverbs::refusal::connections_per_address:
            return "--max-per-address is " + std::to_string(per_address_max_);
        case rcverbs::refusal::backlog:
        case rcverbs::refusal::violation: break;
        }
        return "too many requests at once";
    }

    // A flood of clients does not flood the log.
    void report_refusal(rcverbs::endpoint const& peer, std::string const& why) {
        constexpr std::chrono::seconds pause{10};
        auto const now = std::chrono::steady_clock::now();
        if (refusal_reported_ && now - *refusal_reported_ < pause) {
            ++refusals_left_out_;
            return;
        }
        refusal_reported_ = now;
        std::size_t const others = std::exchange(refusals_left_out_, 0);
        demo::print_error(
            peer.to_string() + ": refused: " + why +
            (others > 0 ? "; " + std::to_string(others) + " others before" : "")
        );
    }

    asio::awaitable<void> serve(rcverbs::connection_request request) {
        if (is_stopped_) co_return;
        std::string peer = request.remote_endpoint().to_string();
        std::string failed;
        bool is_stopped_by_client = false;
        copy::result counters;
        std::size_t lines = 0;
        ++connections_;
        demo::reload(settings_.link.authentication);
        try {
            copy::link client{io_, std::move(request), settings_.link};
            // Threads of its own: a client with a slow file holds up nobody else.
            copy::disk files{io_};
            clients_.emplace(&client, &counters);
            try {
                co_await client.accept();
                if (std::string const who = client.peer_identity(); !who.empty())
                    peer = demo::printable(who) + " at " + peer;
                auto const report = [&](auto const& path, auto const& why) {
                    if (++lines > lines_most) return;
                    demo::print_error(peer + ": " + demo::printable(path) + ": " + why);
                };
                co_await copy::serve(client, files, directory_, report, counters);
            } catch (std::exception const& error) {
                failed = client.failure_text(error);
                is_stopped_by_client = client.has_peer_stopped();
            }
            clients_.erase(&client);
        } catch (std::exception const& e) {
            failed = e.what();
        }
        add(ended_, counters);
        if (lines > lines_most)
            demo::print_error(
                peer + ": " + std::to_string(lines - lines_most) + " more entries failed"
            );
        std::string const what = counters.asked ? copy::served(counters) : "";
        if (is_stopped_by_client || failed.empty()) {
            if (settings_.is_quiet || what.empty()) co_return;
            demo::print(
                peer + ": " + (is_stopped_by_client ? "stopped by the client; " : "") + what
            );
            if (std::string const lost = copy::text_of(counters.lost); !lost.empty())
                demo::print(peer + ": " + lost);
            co_return;
        }
        ++failed_;
        demo::print_error(peer + ": " + failed + (what.empty() ? "" : "; " + what));
    }

    static void add(copy::result& to, copy::result const& more) {
        copy::add_to(to.entries, more.entries);
        copy::add_to(to.bytes, more.bytes);
        copy::add_to(to.failed, more.failed);
        copy::add_to(to.deleted, more.deleted);
        copy::add_to(to.moved, more.moved);
        copy::add_to(to.continued, more.continued);
    }
    std::vector<demo::metric> metrics() const {
        copy::result all = ended_;
        for (auto const& [client, counters] : clients_) add(all, *counters);
        return {
            {"clients", false, "Clients at this moment", clients_.size()},
            {"connections", true, "Connections", connections_},
            {"refused_clients",
             true,
             "Clients above a limit, and of addresses that are not allowed",
             acceptor_.statistics().refused_busy + not_allowed_},
            {"failed_connections", true, "Connections that ended before their copy", failed_},
            {"entries", true, "Files, directories and links that are finished", all.entries},
            {"failed_entries", true, "Entries that were not copied", all.failed},
            {"deleted_names", true, "Names that clients have deleted", all.deleted},
            {"bytes", true, "Bytes of finished files", all.bytes},
            {"moved_bytes", true, "Bytes sent or received, and continued", all.moved},
            {"continued_bytes", true, "Bytes that earlier copies had left", all.continued}};
    }

    asio::io_context& io_;
    settings const& settings_;
    copy::served_directory const directory_;
    rcverbs::acceptor acceptor_;
    std::optional<demo::metrics_server> metrics_;
    std::map<copy::link*, copy::result const*> clients_;
    copy::result ended_;  // of the clients that have left
    std::uint64_t connections_ = 0;
    std::uint64_t failed_ = 0;
    std::size_t per_address_max_ = 0;
    std::vector<copy::address_range> allowed_;
    std::uint64_t not_allowed_ = 0;
    std::optional<std::chrono::steady_clock::time_point> refusal_reported_;
    std::size_t refusals_left_out_ = 0;
    bool is_stopped_ = false;
};

int run_server(settings const& s) {
    int error = 0;
    copy::tree root = copy::tree::open(s.directory, error);
    if (error != 0) {
        demo::print_error(s.directory + ": " + copy::why(error));
        return some_failed;
    }
    open_as_many_files_as_allowed();
    std::error_code ec;
    std::string name = std::filesystem::canonical(s.directory, ec).filename().string();
    if (name.empty()) name = "root";
    asio::io_context io;
    copy::served_directory directory{
        std::move(root), std::move(name), s.copy.keeps_owners, s.copy.deletes, s.copy.keeps};
    server files{io, s, std::move(directory)};
    asio::signal_set signals{io, SIGINT, SIGTERM};
    signals.async_wait([&](boost::system::error_code cancelled, int) {
        if (cancelled) return;
        files.stop();
        signals.clear();  // the second one ends the program, whatever its disk does
    });
    bool has_failed = false;
    files.on_failure = [&] {
        has_failed = true;
        signals.cancel();
    };
    io.run();
    return has_failed ? no_connection : all_copied;
}

}  // namespace

int main(int argc, char** argv) {
    // A file above the limit of its user (ulimit -f) is an error of that file.
    std::signal(SIGXFSZ, SIG_IGN);
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered: a script reads the port from it
    settings s;
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
            ->option_text("BYTES [8M, or half of what may still be locked]");
        demo::add_duration(
            to,
            "--timeout",
            s.link.timeout,
            "end the copy when the peer does not respond for this long",
            "30s"
        );
        to.add_flag("--quiet", s.is_quiet, "print errors only");
        demo::add_keys(to, s.link.authentication, &to == &app);
    };
    add_shared(app);
    app.add_flag("--force", s.copy.replaces, "replace files and links that exist");
    app.add_flag(
        "--continue",
        s.copy.continues,
        "resume an interrupted copy: skip files that exist with the size and time of their source, "
        "and links that are the same"
    );
    app.add_flag(
        "--no-target-directory",
        s.copy.is_onto,
        "the source gets the name of the target, also if that is a directory"
    );
    app.add_flag(
        "--delete",
        s.copy.deletes,
        "delete what the source does not have from the directories that are copied, as long as "
        "nothing fails; excluded names stay"
    );
    app.add_flag(
        "-n,--dry-run", s.copy.lists, "write nothing, and print what would be copied and deleted"
    );
    app.add_flag("--verify", s.copy.verifies, "read each file back from the disk of the target");
    app.add_flag(
        "--owners",
        s.copy.keeps_owners,
        "give files the user and group of their sources, and set-user-ID, set-group-ID and sticky "
        "bits"
    );
    app.add_flag(
        "--xattrs",
        s.copy.keeps.attributes,
        "give files the extended attributes of their sources: user.*, and as root trusted.* and "
        "capabilities"
    );
    app.add_flag("--acls", s.copy.keeps.acl, "give files the POSIX ACLs of their sources");
    app.add_option(
           "--exclude",
           s.excluded,
           "what is not copied, such as '*.o', 'cache/' or '/build'; can be given several times"
    )
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->option_text("PATTERN ...");
    app.add_option(
           "--bwlimit",
           s.copy.bytes_per_second,
           "bytes that are sent in a second, at most; 64K or more"
    )
        ->transform(CLI::AsSizeValue(false))
        ->check(CLI::Range(copy::rate_min, std::uint64_t{1} << 50))
        ->option_text("BYTES");
    app.add_flag(
        "--json", s.is_json, "print one JSON object a second, and one at the end, each in a line"
    );
    app.add_option("paths", s.paths, "what to copy, and where to");
    CLI::App& serve = *app.add_subcommand("serve", "lets clients copy to and from a directory");
    serve.add_option("directory", s.directory, "nothing outside of it is read or written")
        ->required();
    add_shared(serve);
    demo::add_address(
        serve, "--bind", s.bind, "the local address to listen on; without it, all addresses"
    );
    serve.add_flag(
        "--owners",
        s.copy.keeps_owners,
        "clients may give files to any user and group, as root, and set-user-ID bits"
    );
    serve.add_flag(
        "--xattrs",
        s.copy.keeps.attributes,
        "clients may set extended attributes, as root also capabilities of programs"
    );
    serve.add_flag("--acls", s.copy.keeps.acl, "clients may set ACLs");
    serve.add_flag("--delete", s.copy.deletes, "clients may delete what is in the directory");
    serve
        .add_option(
            "--statistics",
            s.metrics,
            "serve counters over HTTP: at a port of 127.0.0.1, or at the path of a Unix socket; "
            "/metrics for Prometheus, /statistics in JSON"
        )
        ->check(demo::fault_of_metrics_place)
        ->option_text("PORT|PATH");
    serve.add_option("--max-clients", s.clients_max, "clients at a time")
        ->check(CLI::Range(1, 1024))
        ->option_text("N [16]");
    serve
        .add_option(
            "--max-per-address",
            s.clients_per_address_max,
            "the same for the clients of one address"
        )
        ->check(CLI::Range(1, 1024))
        ->option_text("N [three quarters of --max-clients]");
    serve
        .add_option(
            "--allow",
            s.allowed,
            "only clients of this address, or of these, may connect; can be given several times"
        )
        ->check([](std::string const& text) {
            return copy::address_range::parse(text) ? ""
                                                    : text + " is no ADDRESS or ADDRESS/PREFIX";
        })
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->option_text("ADDRESS[/PREFIX] ...");
    demo::exit_code code = demo::exit_code::other;
    if (!demo::parse(app, argc, argv, code))
        return code == demo::exit_code::done ? all_copied : wrong_usage;
    if (!serve.parsed() && s.paths.size() < 2) {
        demo::print_error("name what to copy, and where to: see --help");
        return wrong_usage;
    }
    int result = no_connection;
    {
        demo::background_printing const printing;
        try {
            result = serve.parsed() ? run_server(s) : run_client(s);
        } catch (std::exception const& e) {
            demo::print_error(e.what());
        }
    }
    int const error = demo::output_error();
    if (error == 0) return result;
    demo::print_error("standard output: " + copy::why(error));
    return result == all_copied ? some_failed : result;
}
