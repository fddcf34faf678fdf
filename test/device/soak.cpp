// soak ADDRESS [--duration SECONDS] [--seed N]: a server whose clients connect, work, and leave in
// every possible way, for the given time.
//
// Each client is a process: it writes, reads back and compares, counts with atomics, and then
// finishes in order, closes, exits in the middle, or continues until this program stops or kills
// it. At the end the program prints counts, and checks that nothing is left: no connection, no
// leaked connection, no file descriptor, no thread, and no additional RDMA resource. Exits with 0
// if the checks succeed and no byte was wrong.
#include <boost/asio.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include <rcverbs/rcverbs.hpp>

#include "support/child_process.hpp"
#include "support/seeds.hpp"

namespace {

namespace asio = boost::asio;
using namespace rcverbs;
using namespace std::chrono_literals;
constexpr auto awaiting = asio::as_tuple(asio::use_awaitable);

constexpr std::size_t region_bytes = 65536;
constexpr int corrupted = 40;

// --- a client ------------------------------------------------------------------------------------

asio::awaitable<int> live(asio::io_context& io, endpoint to, std::uint64_t seed) {
    std::mt19937_64 random{seed};
    connection_options options;
    options.liveness.keepalive_interval = 500ms;
    bool const is_alone = random() % 2 == 0;
    using place = runs_on<asio::any_io_executor>;
    session s{connection{is_alone ? place{own_thread} : place{io}, options}};
    auto [ec] = co_await s.async_connect(to, awaiting);
    if (ec) co_return 1;
    std::vector<named_region> const nothing;
    auto [failed, there] = co_await s.async_exchange(nothing, awaiting);
    if (failed) co_return 1;
    connection& c = s.next_layer();
    registered_buffer mine{c.domain(), region_bytes, access_flags::local_write};
    std::uint64_t added = 0;
    std::size_t const steps = random() % 200;
    for (std::size_t i = 0; i < steps; ++i) {
        std::size_t const size = 1 + random() % (random() % 8 == 0 ? 32768 : 512);
        std::size_t const at = 8 + random() % (region_bytes - 8 - size);
        auto const mark = static_cast<std::byte>(random());
        std::fill_n(mine.bytes().begin() + static_cast<std::ptrdiff_t>(at), size, mark);
        auto [w, n] =
            co_await c.async_write(mine.slice(at, size), there[0].slice(at, size), awaiting);
        if (w) co_return 1;
        std::fill_n(mine.bytes().begin() + static_cast<std::ptrdiff_t>(at), size, std::byte{0});
        auto [r, m] =
            co_await c.async_read(there[0].slice(at, size), mine.slice(at, size), awaiting);
        if (r) co_return 1;
        auto const back = mine.bytes().subspan(at, size);
        if (n != size || m != size ||
            std::ranges::any_of(back, [&](std::byte b) { return b != mark; }))
            co_return corrupted;
        auto [a, before] = co_await c.async_fetch_add(there[0].word(0), 3, awaiting);
        if (a) co_return 1;
        if (before != added) co_return corrupted;
        added += 3;
    }
    switch (random() % 4) {
    case 0: ::_exit(0);
    case 1: s.close(); co_return 0;
    default: break;
    }
    auto [end] = co_await s.async_finish(awaiting);
    co_return end ? 1 : 0;
}

int be_client(char** argv) {
    asio::io_context io;
    int result = 1;
    asio::co_spawn(
        io,
        live(io, {argv[2], static_cast<std::uint16_t>(std::stoul(argv[3]))}, std::stoull(argv[4])),
        [&](std::exception_ptr e, int code) { result = e ? 2 : code; }
    );
    io.run();
    return result;
}

// --- the server ----------------------------------------------------------------------------------

struct counts {
    std::uint64_t started = 0;
    std::uint64_t killed = 0;
    std::uint64_t stopped = 0;
    std::uint64_t accepted = 0;
    std::uint64_t withdrawn = 0;
    std::map<std::string, std::uint64_t> ends;  // of sessions, by reason
    std::map<int, std::uint64_t> exits;  // of clients
};

std::size_t entries(char const* folder) {
    auto const all = std::filesystem::directory_iterator{folder};
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

class soak {
public:
    soak(asio::io_context& io, std::string program, std::string address, std::uint64_t seed)
        : io_{io},
          program_{std::move(program)},
          address_{std::move(address)},
          random_{seed},
          acceptor_{io, {address_, 0}, terms()} {}

    asio::awaitable<void> run(std::chrono::seconds duration) {
        asio::co_spawn(io_, accept(), fail_together());
        // A sanitizer starts a thread of its own with the first additional thread of the process,
        // which the clients of the warm-up may not need.
        std::jthread{[] {}}.join();
        // Warm-up, until the process has allocated all that it keeps.
        co_await herd(2s);
        co_await settle();
        threads_ = entries("/proc/self/task");
        std::size_t const descriptors = entries("/proc/self/fd");
        std::string const resources = test::output_of({"rdma", "resource", "show"});
        co_await herd(duration);
        co_await settle();
        is_clean_ = acceptor_.statistics().connections == 0 && connection::leaked_count() == 0 &&
                    serving_ == 0;
        if (entries("/proc/self/fd") != descriptors) is_clean_ = false;
        // Each connection's thread must have ended with it.
        if (entries("/proc/self/task") != threads_) is_clean_ = false;
        std::string const left = test::output_of({"rdma", "resource", "show"});
        if (left != resources) {
            is_clean_ = false;
            std::cout << "resources before:\n" << resources << "resources after:\n" << left;
        }
        std::cout << "file descriptors " << descriptors << ", then " << entries("/proc/self/fd")
                  << "; threads " << threads_ << ", then " << entries("/proc/self/task")
                  << "; leaked " << connection::leaked_count() << '\n';
        acceptor_.close();
    }

    /// The exception that ended a coroutine of the server, if any.
    std::exception_ptr failed() const { return failed_; }

    bool report() const {
        std::cout << counts_.started << " clients, " << counts_.killed << " killed, "
                  << counts_.stopped << " stopped for a while; " << counts_.accepted
                  << " accepted, " << counts_.withdrawn << " withdrawn\n";
        for (auto const& [reason, n] : counts_.ends)
            std::cout << "  session " << reason << ": " << n << '\n';
        for (auto const& [code, n] : counts_.exits)
            std::cout << "  client exit " << code << ": " << n << '\n';
        auto const of = [&](int code) {
            return counts_.exits.contains(code) ? counts_.exits.at(code) : 0;
        };
        bool const is_right = is_clean_ && of(corrupted) == 0 && of(2) == 0 && of(0) > 0 &&
                              counts_.ends.contains("completed");
        std::cout << (is_right ? "clean\n" : "NOT CLEAN\n");
        return is_right;
    }

private:
    static acceptor_options terms() {
        acceptor_options o;
        o.connections_max = 64;
        o.busy_private_data = session::busy_private_data();
        o.connection.liveness.keepalive_interval = 500ms;
        return o;
    }

    /// A polite server finishes in order with clients that do so; otherwise it waits until they
    /// have disconnected.
    asio::awaitable<void> serve(session s, bool is_polite) {
        ++serving_;
        try {
            co_await s.async_accept(asio::use_awaitable);
            ++counts_.accepted;
            registered_buffer memory{
                s.next_layer().domain(),
                region_bytes,
                access_flags::remote_read | access_flags::remote_write |
                    access_flags::remote_atomic};
            std::vector<named_region> const exposed{{"memory", memory}};
            co_await s.async_exchange(exposed, asio::use_awaitable);
            if (is_polite) {
                co_await s.async_finish(asio::use_awaitable);
            } else {
                co_await s.next_layer().async_wait_disconnected(awaiting);
            }
        } catch (boost::system::system_error const&) {}
        s.close();
        co_await s.next_layer().async_wait_disconnected(awaiting);
        ++counts_.ends[to_string(s.last_failure().reason)];
        --serving_;
    }

    /// The completion handler of the server's coroutines: an exception ends the whole soak.
    std::function<void(std::exception_ptr)> fail_together() {
        return [this](std::exception_ptr e) {
            if (!e) return;
            failed_ = e;
            io_.stop();
        };
    }

    runs_on<asio::any_io_executor> place() {
        if (random_() % 2 == 0) return io_;
        return own_thread;
    }

    asio::awaitable<void> accept() {
        for (;;) {
            auto [ec, request] = co_await acceptor_.async_get_request(awaiting);
            if (ec == asio::error::operation_aborted) co_return;
            if (ec) continue;
            connection made{place(), std::move(request), {}, ec};
            if (ec) {
                // The client was killed before its request was taken.
                ++counts_.withdrawn;
                continue;
            }
            session_options patient;
            patient.exchange_timeout = 20s;
            patient.finish_timeout = 20s;
            session s{std::move(made), patient};
            asio::co_spawn(io_, serve(std::move(s), random_() % 8 != 0), fail_together());
        }
    }

    asio::awaitable<void> herd(std::chrono::seconds duration) {
        asio::steady_timer timer{io_};
        auto const end = std::chrono::steady_clock::now() + duration;
        while (std::chrono::steady_clock::now() < end) {
            if (clients_.size() < 6) start_client();
            if (!clients_.empty() && random_() % 6 == 0)
                disturb(clients_[random_() % clients_.size()]);
            co_await reap();
            timer.expires_after(std::chrono::milliseconds{10 + random_() % 100});
            co_await timer.async_wait(asio::use_awaitable);
        }
        for (pid_t const pid : clients_) ::kill(pid, SIGCONT);
    }

    void start_client() {
        std::string const port = std::to_string(acceptor_.local_endpoint().port());
        std::string const seed = std::to_string(random_());
        pid_t const pid = ::fork();
        if (pid == 0) {
            ::execl(
                program_.c_str(),
                program_.c_str(),
                "client",
                address_.c_str(),
                port.c_str(),
                seed.c_str(),
                nullptr
            );
            ::_exit(127);
        }
        if (pid > 0) {
            clients_.push_back(pid);
            ++counts_.started;
        }
    }

    void disturb(pid_t pid) {
        if (random_() % 2 == 0) {
            ::kill(pid, SIGKILL);
            ++counts_.killed;
        } else {
            ::kill(pid, SIGSTOP);
            stopped_.push_back(pid);
            ++counts_.stopped;
        }
        // Continues a client that was stopped before.
        if (stopped_.size() > 1) {
            ::kill(stopped_.front(), SIGCONT);
            stopped_.erase(stopped_.begin());
        }
    }

    asio::awaitable<void> reap() {
        for (auto at = clients_.begin(); at != clients_.end();) {
            int status = 0;
            if (::waitpid(*at, &status, WNOHANG) == *at) {
                ++counts_.exits[WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)];
                at = clients_.erase(at);
            } else {
                ++at;
            }
        }
        co_return;
    }

    asio::awaitable<void> settle() {
        asio::steady_timer timer{io_};
        std::size_t last = 0;
        for (int quiet = 0; quiet < 5;) {
            co_await reap();
            for (pid_t const pid : stopped_) ::kill(pid, SIGCONT);
            stopped_.clear();
            std::size_t const threads = entries("/proc/self/task");
            quiet = clients_.empty() && serving_ == 0 && threads == last ? quiet + 1 : 0;
            last = threads;
            timer.expires_after(100ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
    }

    asio::io_context& io_;
    std::string const program_;
    std::string const address_;
    std::mt19937_64 random_;
    acceptor acceptor_;
    std::vector<pid_t> clients_;
    std::vector<pid_t> stopped_;
    counts counts_;
    int serving_ = 0;
    std::exception_ptr failed_;
    // Without connections: this thread, and a sanitizer's.
    std::size_t threads_ = 0;
    bool is_clean_ = false;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc == 5 && std::string{argv[1]} == "client") return be_client(argv);
    std::chrono::seconds duration{20};
    std::uint64_t seed = test::seeds(1).front();
    for (int i = 2; i + 1 < argc; i += 2) {
        if (std::string{argv[i]} == "--duration")
            duration = std::chrono::seconds{std::stoul(argv[i + 1])};
        if (std::string{argv[i]} == "--seed") seed = std::stoull(argv[i + 1]);
    }
    if (argc < 2 || argc % 2 != 0) {
        std::cerr << "usage: " << argv[0] << " ADDRESS [--duration SECONDS] [--seed N]\n";
        return 2;
    }
    std::cout << "soak: seed " << seed << ", " << duration.count() << " s\n";
    asio::io_context io;
    soak all{io, std::filesystem::read_symlink("/proc/self/exe").string(), argv[1], seed};
    std::exception_ptr failed;
    asio::co_spawn(io, all.run(duration), [&](std::exception_ptr e) {
        failed = e;
        if (e) io.stop();
    });
    io.run();
    if (all.failed()) failed = all.failed();
    try {
        if (failed) std::rethrow_exception(failed);
    } catch (std::exception const& e) {
        std::cerr << e.what() << '\n';
        return 1;
    }
    return all.report() ? 0 : 1;
}
