// A store on real NBD servers, nbdkit and qemu-nbd: what they serve, refuse and lose, and servers that are killed, stopped and
// come back.
#include <rcverbs/nvme/nbd_store.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <libnbd.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nbd_connection.hpp"
#include "nvme/served_store.hpp"
#include "nvme/store_request.hpp"
#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/child_process.hpp"
#include "support/folder.hpp"

using namespace rcverbs;
using namespace std::chrono_literals;
namespace asio = boost::asio;
namespace nvme = rcverbs::nvme;
using op = nvme::store_operation;
using request = test::store_request;

namespace {

constexpr std::size_t block = request::block;

/// A server on a Unix socket, which can be killed and started again.
class nbd_server {
public:
    /// Its command line, in which SOCKET and FOLDER are replaced.
    explicit nbd_server(std::vector<std::string> command) : command_{std::move(command)} {}

    void start() {
        std::filesystem::remove(here_ / "socket");
        auto words = command_;
        for (std::string& each : words) {
            for (auto const& [name, value] :
                 {std::pair{std::string{"SOCKET"}, (here_ / "socket").string()},
                  {"FOLDER", here_.string()}}) {
                if (auto const at = each.find(name); at != each.npos)
                    each.replace(at, name.size(), value);
            }
        }
        process_.emplace(words);
        auto const until = std::chrono::steady_clock::now() + 60s;
        // A socket that is bound does not listen yet.
        while (!listens()) {
            REQUIRE(std::chrono::steady_clock::now() < until);
            REQUIRE(!process_->wait(10ms));
        }
    }
    void kill() {
        process_->signal(SIGKILL);
        REQUIRE(process_->wait());
        process_.reset();
    }
    /// Returns when all of its threads have stopped.
    void stop() {
        process_->signal(SIGSTOP);
        siginfo_t info{};
        REQUIRE(
            ::waitid(P_PID, static_cast<id_t>(process_->pid()), &info, WSTOPPED | WNOWAIT) == 0
        );
    }
    void go_on() { process_->signal(SIGCONT); }
    /// Waits until it has so many connections.
    void await_connections(std::ptrdiff_t wanted) const {
        auto const until = std::chrono::steady_clock::now() + 60s;
        std::string const end = ' ' + (here_ / "socket").string();
        std::ptrdiff_t count = 0;
        while (count < wanted) {
            REQUIRE(std::chrono::steady_clock::now() < until);
            std::ifstream all{"/proc/net/unix"};
            count = -1;  // the one that listens
            for (std::string line; std::getline(all, line);) count += line.ends_with(end);
        }
    }
    std::string uri(std::string const& parameters = "") const {
        return "nbd+unix:///?socket=" + (here_ / "socket").string() + parameters;
    }
    std::filesystem::path operator/(std::string const& name) const { return here_ / name; }

private:
    bool listens() const {
        boost::asio::io_context io;
        asio::local::stream_protocol::socket probe{io};
        error_code ec;
        probe.connect((here_ / "socket").string(), ec);
        return !ec;
    }

    test::folder here_;
    std::vector<std::string> command_;
    std::optional<test::child_process> process_;
};

std::vector<std::string> nbdkit(std::vector<std::string> rest) {
    std::vector<std::string> all{"nbdkit", "--foreground", "--unix", "SOCKET"};
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
}

using served = test::served_store<nvme::nbd_store, nvme::nbd_store_options>;
using test::is_zero;
using test::pattern;

std::string why_refused(std::string const& uri, nvme::nbd_store_options const& o = {}) {
    asio::io_context io;
    try {
        nvme::nbd_store const s{io.get_executor(), uri, o};
        return "not refused";
    } catch (boost::system::system_error const& e) {
        return e.what();
    }
}

nvme::nbd_store_options patient_for(std::chrono::milliseconds time) {
    nvme::nbd_store_options o;
    o.patience = time;
    return o;
}

nvme::nbd_store_options writing_through() {
    nvme::nbd_store_options o;
    o.writes_through = true;
    return o;
}

}  // namespace

TEST_CASE("nbd store: every operation does what it says, whatever the server can", "[nbd]") {
    nbd_server server{GENERATE(
        nbdkit({"memory", "16M"}),
        nbdkit({"--filter=nozero", "memory", "16M", "zeromode=none"}),
        nbdkit({"--filter=fua", "memory", "16M"}),
        nbdkit(
            {"--filter=blocksize-policy",
             "memory",
             "16M",
             "blocksize-maximum=64K",
             "blocksize-minimum=4096",
             "blocksize-preferred=4096"}
        )
    )};
    server.start();
    served s{server.uri()};
    nvme::store_geometry const shape = s.store().geometry();
    CHECK(shape.size_bytes == 16U << 20);
    CHECK(shape.has_volatile_cache);
    CHECK(!shape.is_read_only);

    test::check_every_operation(s);
    CHECK(s.store().statistics().connections_lost == 0);
}

TEST_CASE("nbd store: a disk of qcow2 has several connections and many requests", "[nbd]") {
    nbd_server server{{"qemu-nbd", "--socket=SOCKET", "--persistent", "--shared=8", "FOLDER/disk"}};
    test::output_of({"qemu-img", "create", "-q", "-f", "qcow2", (server / "disk").string(), "64M"});
    server.start();
    served s{server.uri()};
    CHECK(s.store().geometry().size_bytes == 64U << 20);
    std::vector<std::vector<std::byte>> all;
    std::deque<request> under_way;
    for (unsigned i = 0; i < 400; ++i) {
        all.push_back(pattern(4, i));
        under_way.emplace_back(op::write, std::size_t{i} * 4, std::size_t{4}, all.back())
            .of_host(i % 3);
        s.store().start(under_way.back());
    }
    for (request& each : under_way) CHECK(!each.wait().failure);
    for (unsigned i = 0; i < 400; ++i) CHECK(s.read(std::size_t{i} * 4, 4) == all[i]);
    CHECK(!s.run({op::flush, 0, 0}).failure);
}

TEST_CASE("nbd store: nothing that was said to be written is lost with a killed server", "[nbd]") {
    nbd_server server{nbdkit({"file", "FOLDER/disk"})};
    std::ofstream{server / "disk"}.close();
    std::filesystem::resize_file(server / "disk", 64 * block);
    server.start();
    served s{server.uri(), writing_through()};
    CHECK(!s.store().geometry().has_volatile_cache);
    std::atomic<bool> ends{false};
    std::vector<unsigned> last(64);
    std::atomic<unsigned> count{0};
    std::thread writer{[&] {
        for (; !ends; ++count) {
            std::size_t const at = count % 64;
            auto data = pattern(1, count);
            if (s.run({op::write, at, 1, data}).failure) break;
            last[at] = count;
        }
    }};
    auto const await_writes = [&, until = std::chrono::steady_clock::now() + 60s](unsigned more) {
        for (unsigned const now = count;
             count < now + more && std::chrono::steady_clock::now() < until;)
            std::this_thread::sleep_for(1ms);
    };
    for (int i = 0; i < 6; ++i) {
        await_writes(11);
        server.kill();
        server.start();
    }
    await_writes(11);
    ends = true;
    writer.join();
    CHECK(count > 64);
    for (std::size_t at = 0; at < 64; ++at) CHECK(s.read(at, 1) == pattern(1, last[at]));
    CHECK(!s.run({op::flush, 0, 0}).failure);
    CHECK(s.store().statistics().connections_lost >= 6);
    CHECK(s.has_event("is away"));
    CHECK(s.has_event("is back"));
}

TEST_CASE(
    "nbd store: a flush does not succeed on a server that came after what it should keep", "[nbd]"
) {
    nbd_server server{nbdkit({"memory", "1M"})};
    server.start();
    served s{server.uri()};
    auto data = pattern(1, 7);
    CHECK(!s.run({op::write, 1, 1, data}).failure);
    bool const is_flushed = GENERATE(false, true);
    if (is_flushed) CHECK(!s.run({op::flush, 0, 0}).failure);
    server.kill();
    server.start();
    CHECK(is_zero(s.read(1, 1)));
    for (int i = 0; i < 2; ++i) {
        CHECK((s.run({op::flush, 0, 0}).failure.value() == EIO) == !is_flushed);
        bool const is_durable_refused =
            s.run(std::move(request{op::write, 2, 1, data}.durable())).failure.value() == EIO;
        CHECK(is_durable_refused == !is_flushed);
    }
    CHECK(s.has_event("may be lost") == !is_flushed);
    CHECK(!s.run({op::write, 3, 1, data}).failure);
}

TEST_CASE(
    "nbd store: a server that is away, or silent, costs a bounded time and a path error", "[nbd]"
) {
    nbd_server server{nbdkit({"memory", "1M"})};
    server.start();
    served s{server.uri(), patient_for(300ms)};
    bool const is_stopped = GENERATE(false, true);
    // One request finds all of them silent.
    server.await_connections(4);
    if (is_stopped) server.stop();
    else server.kill();
    std::vector<std::byte> bytes(block);
    test::ending const e = s.run({op::read, 0, 1, bytes});
    CHECK(e.is_path_error);
    CHECK(!s.store().is_reached());
    CHECK(s.run({op::read, 0, 1, bytes}).is_path_error);
    CHECK(s.store().statistics().given_up == 2);
    if (is_stopped) server.go_on();
    else server.start();
    auto const until = std::chrono::steady_clock::now() + 60s;
    while (s.run({op::read, 0, 1, bytes}).is_path_error)
        REQUIRE(std::chrono::steady_clock::now() < until);
    CHECK(s.has_event("is back"));
    CHECK(s.store().is_reached());
    // Once for each time.
    CHECK(s.events() == 2);
}

TEST_CASE("nbd store: an error of the server is that of the request", "[nbd]") {
    std::string const name = GENERATE("EIO", "ENOSPC", "EPERM");
    nbd_server server{
        nbdkit({"--filter=error", "memory", "1M", "error=" + name, "error-pwrite-rate=1"})};
    server.start();
    served s{server.uri()};
    auto data = pattern(1, 1);
    int const number = s.run({op::write, 0, 1, data}).failure.value();
    CHECK(number == (name == "EIO" ? EIO : name == "ENOSPC" ? ENOSPC : EPERM));
    CHECK(is_zero(s.read(0, 1)));
    CHECK(s.store().statistics().connections_lost == 0);
}

TEST_CASE("nbd store: what nobody waits for is not begun", "[nbd]") {
    nbd_server server{nbdkit({"memory", "1M"})};
    server.start();
    served s{server.uri()};
    auto data = pattern(1, 1);
    CHECK(
        s.run(std::move(request{op::write, 0, 1, data}.abandoned())).failure ==
        asio::error::operation_aborted
    );
    CHECK(is_zero(s.read(0, 1)));
}

TEST_CASE("nbd store: a server that only reads makes a disk that only reads", "[nbd]") {
    nbd_server server{nbdkit({"--readonly", "memory", "1M"})};
    server.start();
    served s{server.uri()};
    CHECK(s.store().geometry().is_read_only);
    auto data = pattern(1, 1);
    CHECK(s.run({op::write, 0, 1, data}).failure.value() == EROFS);
    CHECK(s.run({op::discard, 0, 1}).failure.value() == EROFS);
    CHECK(is_zero(s.read(0, 1)));
}

TEST_CASE("nbd store: a server that comes back with another size says so", "[nbd]") {
    nbd_server server{nbdkit({"file", "FOLDER/disk"})};
    std::ofstream{server / "disk"}.close();
    std::filesystem::resize_file(server / "disk", 64 * block);
    server.start();
    served s{server.uri()};
    server.kill();
    std::filesystem::resize_file(server / "disk", 128 * block + 512);
    server.start();
    CHECK(is_zero(s.read(0, 1)));
    CHECK(s.resized() == 1);
    CHECK(s.store().geometry().size_bytes == 128 * block + 512);
}

TEST_CASE("nbd store: what cannot be served is refused with a reason", "[nbd]") {
    test::folder here;
    CHECK_THAT(
        why_refused("nbd+unix:///?socket=" + (here / "none").string()),
        test::ContainsSubstring("No such file")
    );
    CHECK_THAT(why_refused("http://somewhere"), test::ContainsSubstring("URI"));
    nvme::nbd_store_options wrong;
    wrong.connections = 17;
    CHECK_THAT(why_refused("nbd://localhost", wrong), test::ContainsSubstring("connections"));

    nbd_server small{nbdkit({"memory", "100"})};
    small.start();
    CHECK_THAT(why_refused(small.uri()), test::ContainsSubstring("smaller than a block"));
    nbd_server coarse{nbdkit(
        {"--filter=blocksize-policy",
         "memory",
         "1M",
         "blocksize-minimum=8192",
         "blocksize-preferred=8192",
         "blocksize-maximum=1M"}
    )};
    coarse.start();
    CHECK_THAT(why_refused(coarse.uri()), test::ContainsSubstring("8192"));
    nbd_server cached{nbdkit({"--filter=fua", "memory", "1M"})};
    cached.start();
    CHECK_THAT(why_refused(cached.uri(), writing_through()), test::ContainsSubstring("FUA"));
}

TEST_CASE(
    "nbd store: a server that demands TLS gets it, and one that does not answer is given up",
    "[nbd]"
) {
    nbd_server server{nbdkit({"--tls=require", "--tls-psk=FOLDER/keys", "memory", "1M"})};
    std::ofstream{server / "keys"} << "alice:00112233445566778899aabbccddeeff\n";
    std::filesystem::permissions(server / "keys", std::filesystem::perms::owner_read);
    server.start();
    std::string const plain = server.uri("&tls-psk-file=" + (server / "keys").string());
    {
        served s{"nbds+unix://alice@/" + plain.substr(plain.find('?'))};
        CHECK(is_zero(s.read(0, 1)));
    }
    CHECK(why_refused(server.uri()) != "not refused");
    server.stop();
    CHECK_THAT(
        why_refused(server.uri(), patient_for(200ms)), test::ContainsSubstring("does not answer")
    );
    server.go_on();
}

TEST_CASE("nbd store: one server has one UUID, for all who name it alike") {
    using nvme::detail::is_on_this_machine;
    using nvme::detail::plain_nbd_uri;
    CHECK(plain_nbd_uri("nbd://server/disk") == "server/disk");
    CHECK(plain_nbd_uri("nbds://alice@server:10809/disk?tls-psk-file=/k") == "server:10809/disk");
    CHECK(plain_nbd_uri("nbd+unix:///disk?socket=/run/s") == "unix:/run/s/disk");
    CHECK(
        plain_nbd_uri("nbds+unix://bob@/disk?tls-psk-file=/k&socket=/run/s") == "unix:/run/s/disk"
    );
    CHECK(plain_nbd_uri("nbd://server") == "server");
    for (auto const* const here :
         {"unix:/run/s", "localhost:10809/a", "localhost/a", "127.0.0.2/a", "[::1]/a"})
        CHECK(is_on_this_machine(here));
    for (auto const* const there : {"localhost.example/a", "server/a", "10.0.0.1/a", "[fd00::1]/a"})
        CHECK(!is_on_this_machine(there));
}
