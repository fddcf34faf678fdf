// A store in a real Ceph cluster of one monitor and one OSD: what it serves and refuses, an OSD that is killed and comes back, a
// pool that is full, an image that is resized, and gateways that take an image over from each other.
#include <rcverbs/nvme/rbd_store.hpp>

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nvme/served_store.hpp"
#include "nvme/store_request.hpp"
#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/child_process.hpp"
#include "support/folder.hpp"

using namespace rcverbs;
using namespace std::chrono_literals;
namespace nvme = rcverbs::nvme;
using op = nvme::store_operation;
using request = test::store_request;
using test::is_zero;
using test::pattern;
using served = test::served_store<nvme::rbd_store, nvme::rbd_store_options>;

namespace {

constexpr std::size_t block = request::block;

void run(std::vector<std::string> const& words) {
    test::child_process program{words};
    REQUIRE(program.wait(120s) == 0);
}

/// One for all test cases, which use images of their own; by the script that RCVERBS_TEST_CEPH names, or that of the current
/// folder.
class ceph_cluster {
public:
    ceph_cluster() { script("start"); }
    ceph_cluster(ceph_cluster const&) = delete;
    ceph_cluster& operator=(ceph_cluster const&) = delete;
    // After the test cases, where nothing can be required any more.
    ~ceph_cluster() {
        std::string const stop = program() + " stop " + here_.string();
        static_cast<void>(std::system(stop.c_str()) == 0);
    }

    std::string configuration() const { return (here_ / "ceph.conf").string(); }
    std::string file(std::string const& name) const { return (here_ / name).string(); }
    void call(std::vector<std::string> words) const {
        words.insert(words.begin() + 1, {"-c", configuration(), "--id", "admin"});
        ::run(words);
    }
    void kill_osd() const {
        std::ifstream from{here_ / "osd.0.pid"};
        pid_t osd = 0;
        REQUIRE(from >> osd);
        REQUIRE(::kill(osd, SIGKILL) == 0);
        while (::kill(osd, 0) == 0) std::this_thread::sleep_for(10ms);
    }
    void start_osd() const { script("osd"); }

private:
    void script(std::string const& what) const { ::run({program(), what, here_.string()}); }
    static std::string program() {
        char const* const given = std::getenv("RCVERBS_TEST_CEPH");
        return given != nullptr ? given : "test/nvme/ceph.sh";
    }
    test::folder here_;
};

ceph_cluster const& cluster() {
    static ceph_cluster const one;
    return one;
}

/// An image with a name of its own.
std::string new_image(std::string const& megabytes, std::vector<std::string> more = {}) {
    static int count = 0;
    std::string const name = "rbd/disk" + std::to_string(++count);
    std::vector<std::string> words{"rbd", "create", "--size", megabytes, name};
    words.insert(words.end(), more.begin(), more.end());
    cluster().call(words);
    return name;
}

nvme::rbd_store_options in_cluster(std::chrono::seconds patience = 20s) {
    nvme::rbd_store_options o;
    o.configuration = cluster().configuration();
    o.patience = patience;
    return o;
}

std::string why_refused(std::string const& image, nvme::rbd_store_options const& o) {
    boost::asio::io_context io;
    try {
        nvme::rbd_store const s{io.get_executor(), image, o};
        return "not refused";
    } catch (boost::system::system_error const& e) {
        return e.what();
    }
}

template <class Condition>
bool within(std::chrono::seconds time, Condition const& is_so) {
    auto const until = std::chrono::steady_clock::now() + time;
    while (!is_so()) {
        if (std::chrono::steady_clock::now() > until) return false;
        std::this_thread::sleep_for(20ms);
    }
    return true;
}

}  // namespace

TEST_CASE("rbd store: every operation does what it says") {
    served s{new_image("64"), in_cluster()};
    nvme::store_geometry const shape = s.store().geometry();
    CHECK(shape.size_bytes == 64U << 20);
    CHECK(shape.block_bytes == 4096);
    CHECK(shape.optimal_io_bytes == 4U << 20);
    CHECK(!shape.has_volatile_cache);
    CHECK(!shape.is_read_only);
    test::check_every_operation(s);

    // More requests than librbd has at a time, of three hosts, across objects.
    std::vector<std::vector<std::byte>> all;
    std::deque<request> under_way;
    for (unsigned i = 0; i < 400; ++i) {
        all.push_back(pattern(4, i));
        under_way.emplace_back(op::write, std::size_t{i} * 4 + 2, std::size_t{4}, all.back())
            .of_host(i % 3);
        s.store().start(under_way.back());
    }
    for (request& each : under_way) CHECK(!each.wait().failure);
    for (unsigned i = 0; i < 400; ++i) CHECK(s.read(std::size_t{i} * 4 + 2, 4) == all[i]);
    CHECK(s.store().statistics().given_up == 0);
    CHECK(s.events() == 0);
}

TEST_CASE("rbd store: striping and odd sizes show in the geometry") {
    served const striped{
        new_image("64", {"--stripe-unit", "65536", "--stripe-count", "4"}), in_cluster()};
    CHECK(const_cast<served&>(striped).store().geometry().optimal_io_bytes == 65536);
    std::string const odd = new_image("1", {"--object-size", "8M"});
    cluster().call({"rbd", "resize", "--size", "1047552B", "--allow-shrink", odd});
    served s{odd, in_cluster()};
    CHECK(s.store().geometry().block_bytes == 512);
    CHECK(s.store().geometry().size_bytes == 1047552);
    CHECK(s.store().geometry().optimal_io_bytes == 8U << 20);
}

TEST_CASE("rbd store: a snapshot is read-only, keeps its bytes, and is another disk") {
    std::string const image = new_image("16");
    served now{image, in_cluster()};
    auto old = pattern(8, 1);
    REQUIRE(!now.run({op::write, 3, 8, old}).failure);
    cluster().call({"rbd", "snap", "create", image + "@before"});
    auto fresh = pattern(8, 2);
    REQUIRE(!now.run({op::write, 3, 8, fresh}).failure);

    served before{image + "@before", in_cluster()};
    CHECK(before.store().geometry().is_read_only);
    CHECK(before.read(3, 8) == old);
    CHECK(now.read(3, 8) == fresh);
    CHECK(
        before.run({op::write, 3, 8, fresh}).failure == boost::system::errc::read_only_file_system
    );
    CHECK(!before.run({op::flush, 0, 0}).failure);
    served const again{"admin@" + image, in_cluster()};
    CHECK(const_cast<served&>(again).store().uuid() == now.store().uuid());
    CHECK(before.store().uuid() != now.store().uuid());
}

TEST_CASE("rbd store: what cannot be opened says why") {
    std::string const image = new_image("16");
    auto const o = in_cluster(3s);
    CHECK(why_refused("nowhere/disk", o) == "nowhere/disk: the cluster has no pool nowhere");
    CHECK(why_refused("rbd/none", o) == "rbd/none: pool rbd has no image none");
    CHECK(
        why_refused(image + "@none", o) ==
        image + "@none: pool rbd has no image " + image.substr(4) + " with a snapshot none"
    );
    CHECK(
        why_refused("else@" + image, o) ==
        "else@" + image + ": the cluster refuses client.else, or has no key for it"
    );

    auto wrong = o;
    wrong.keyring = cluster().file("wrong");
    run({"ceph-authtool", "--create-keyring", wrong.keyring, "--gen-key", "-n", "client.admin"});
    CHECK(
        why_refused(image, wrong) ==
        image + ": the cluster refuses client.admin, or has no key for it"
    );
    wrong = o;
    wrong.configuration = "/nonexistent/ceph.conf";
    CHECK(
        why_refused(image, wrong) ==
        image + ": Ceph's configuration /nonexistent/ceph.conf: No such file or directory"
    );
    wrong.configuration = cluster().file("away.conf");
    std::ofstream{wrong.configuration}
        << "[global]\nmon host = 127.0.0.1:1\nkeyring = " << cluster().file("keyring") << '\n';
    CHECK(why_refused(image, wrong) == image + ": no monitor of the cluster answers");
}

TEST_CASE("rbd store: a resize is heard") {
    std::string const image = new_image("16");
    served s{image, in_cluster()};
    cluster().call({"rbd", "resize", "--size", "32", image});
    CHECK(within(30s, [&] { return s.resized() == 1; }));
    CHECK(s.store().geometry().size_bytes == 32U << 20);
    auto data = pattern(4, 3);
    CHECK(!s.run({op::write, 8000, 4, data}).failure);
}

TEST_CASE("rbd store: an OSD that is killed and comes back loses nothing that was acknowledged") {
    served s{new_image("64"), in_cluster(30s)};
    auto data = pattern(256, 7);
    for (int round = 0; round < 3; ++round) {
        std::deque<request> under_way;
        for (std::size_t i = 0; i < 256; ++i) {
            under_way.emplace_back(
                op::write, i * 32, std::size_t{1}, std::span{data}.subspan(i * block, block)
            );
            s.store().start(under_way.back());
            if (i == 128) cluster().kill_osd();
        }
        cluster().start_osd();
        for (request& each : under_way) {
            test::ending const e = each.wait();
            CHECK(!e.failure);
            CHECK(!e.is_path_error);
        }
        for (std::size_t i = 0; i < 256; ++i)
            CHECK(test::same(s.read(i * 32, 1), std::span{data}.subspan(i * block, block)));
        std::ranges::rotate(data, data.begin() + block);
    }
    CHECK(s.events() == 0);
}

TEST_CASE("rbd store: a cluster that does not answer is said once, and requests are path errors") {
    served s{new_image("64"), in_cluster(3s)};
    auto data = pattern(1, 1);
    REQUIRE(!s.run({op::write, 7, 1, data}).failure);
    cluster().kill_osd();
    // What was never written is known to be zero without the cluster.
    CHECK(is_zero(s.read(8000, 1)));
    auto read = std::vector<std::byte>(block);
    request one{op::write, 7, 1, data};
    request two{op::read, 7, 1, read};
    s.store().start(one);
    s.store().start(two);
    CHECK(one.wait().is_path_error);
    CHECK(two.wait().is_path_error);
    CHECK(within(10s, [&] { return s.has_event("the Ceph cluster does not answer"); }));
    CHECK(!s.store().is_reached());
    CHECK(s.run({op::read, 7, 1, read}).is_path_error);
    CHECK(s.events() == 1);
    CHECK(s.reached() == 1);
    CHECK(s.store().statistics().given_up == 3);

    cluster().start_osd();
    CHECK(within(60s, [&] { return s.store().is_reached(); }));
    CHECK(within(10s, [&] { return s.has_event("answers again"); }));
    CHECK(s.events() == 2);
    CHECK(s.read(7, 1) == pattern(1, 1));
}

TEST_CASE("rbd store: a pool that is full refuses writes and serves reads") {
    served s{new_image("64"), in_cluster()};
    auto data = pattern(256, 5);
    REQUIRE(!s.run({op::write, 0, 256, data}).failure);
    auto const set_ratios = [](std::vector<std::pair<std::string, std::string>> const& all) {
        for (auto const& [name, value] : all)
            cluster().call({"ceph", "osd", "set-" + name + "-ratio", value});
    };
    // A block that is new to the image: others may be replaced also then.
    std::size_t next = 4096;
    auto const write_one = [&] {
        return s.run({op::write, next++, 1, std::span{data}.first(block)}).failure;
    };
    set_ratios({{"nearfull", "0.0001"}, {"backfillfull", "0.0002"}, {"full", "0.0003"}});
    // It takes a while until OSD and monitor have counted.
    CHECK(within(60s, [&] { return write_one() == boost::system::errc::no_space_on_device; }));
    CHECK(s.read(0, 256) == data);
    CHECK(!s.run({op::write, 0, 256, data}).failure);
    set_ratios({{"full", "0.95"}, {"backfillfull", "0.9"}, {"nearfull", "0.85"}});
    CHECK(within(60s, [&] { return !write_one(); }));
    CHECK(s.events() == 0);
}

TEST_CASE("rbd store: requests whose host has gone are not carried out") {
    served s{new_image("16"), in_cluster()};
    auto data = pattern(1, 1);
    CHECK(
        s.run(std::move(request{op::write, 0, 1, data}.abandoned())).failure ==
        boost::asio::error::operation_aborted
    );
    CHECK(is_zero(s.read(0, 1)));
}

TEST_CASE("rbd store: gateways write an image in turn") {
    std::string const image = new_image("16");
    served a{image, in_cluster()};
    served b{image, in_cluster()};
    for (unsigned i = 0; i < 6; ++i) {
        auto data = pattern(4, i);
        served& one = i % 2 == 0 ? a : b;
        served& other = i % 2 == 0 ? b : a;
        REQUIRE(!one.run({op::write, 4, 4, data}).failure);
        CHECK(other.read(4, 4) == data);
    }
    CHECK(a.events() + b.events() == 0);
}

TEST_CASE("rbd process that ends with an open store", "[.peer]") {
    nvme::rbd_store_options o;
    o.configuration = std::getenv("RBD_CONFIGURATION");
    // Neither is destroyed; a thread of the context may still run, and requests are under way.
    static auto* const left = new served{std::getenv("RBD_IMAGE"), o};
    static std::vector<std::byte> data(block);
    for (int i = 0; i < 16; ++i) left->store().start(*new request{op::write, 0, 1, data});
    CHECK(left->store().is_reached());
}

TEST_CASE("rbd store: a process may end with a store that is open") {
    std::string const image = new_image("16");
    ::setenv("RBD_CONFIGURATION", cluster().configuration().c_str(), 1);
    ::setenv("RBD_IMAGE", image.c_str(), 1);
    // Many at a time, so that they do not end at the same point.
    std::list<test::child_process> programs;
    for (int i = 0; i < 8; ++i)
        programs.emplace_back(std::vector<std::string>{
            "/proc/self/exe", "rbd process that ends with an open store"});
    for (test::child_process& p : programs) CHECK(p.wait(60s) == 0);
}

// A gateway in a process of its own: writes 1, 2, 3 … into a block as fast as it can, until a write fails.
TEST_CASE("rbd gateway that writes", "[.peer]") {
    nvme::rbd_store_options o;
    o.configuration = std::getenv("RBD_CONFIGURATION");
    served s{std::getenv("RBD_IMAGE"), o};
    std::vector<std::byte> data(block);
    std::puts("ready");
    std::fflush(stdout);
    for (unsigned i = 1;; ++i) {
        std::fill(data.begin(), data.end(), std::byte{static_cast<unsigned char>(1 + i % 100)});
        test::ending const e = s.run({op::write, 0, 1, data});
        if (!e.failure && !e.is_path_error) continue;
        std::puts(e.is_path_error ? "path error" : e.failure.message().c_str());
        for (int late = 0; late < 20; ++late) {
            if (!s.run({op::write, 0, 1, data}).is_path_error) std::puts("written late");
        }
        std::puts(s.has_event("has shut this gateway out") ? "shut out" : "not told");
        std::fflush(stdout);
        // Then it serves again.
        REQUIRE(within(60s, [&] { return s.store().is_reached(); }));
        std::puts("again");
        std::fflush(stdout);
        return;
    }
}

TEST_CASE("rbd store: a gateway that was stopped and replaced writes nothing late") {
    std::string const image = new_image("16");
    ::setenv("RBD_CONFIGURATION", cluster().configuration().c_str(), 1);
    ::setenv("RBD_IMAGE", image.c_str(), 1);
    test::child_process stopped{{"/proc/self/exe", "rbd gateway that writes"}};
    REQUIRE(stopped.wait_for_output("ready", 60s));
    served s{image, in_cluster(60s)};
    std::vector<std::byte> found;
    REQUIRE(within(60s, [&] { return !is_zero(found = s.read(0, 1)); }));
    stopped.signal(SIGSTOP);

    auto mine = std::vector<std::byte>(block, std::byte{200});
    auto const begin = std::chrono::steady_clock::now();
    REQUIRE(!s.run({op::write, 0, 1, mine}).failure);
    auto const taken = std::chrono::steady_clock::now() - begin;
    std::printf("taken over after %.1f s\n", std::chrono::duration<double>(taken).count());
    CHECK(s.has_event("had the lock of the image, did not answer, and is shut out"));
    stopped.signal(SIGCONT);
    CHECK(stopped.wait_for_output("shut out", 60s));
    CHECK(s.read(0, 1) == mine);
    CHECK(stopped.wait_for_output("again", 60s));
    CHECK(stopped.wait(60s) == 0);
    CHECK(stopped.output().find("late") == std::string::npos);
    CHECK(stopped.output().find("path error") != std::string::npos);
    CHECK(s.read(0, 1) == mine);
}
