// A target of NVMe over Fabrics with hosts that send any bytes: what works, and what a host that lies
// can break.
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include <rcverbs/nvme/file_store.hpp>
#include <rcverbs/nvme/memory_store.hpp>

#include "nvme/host.hpp"
#include "support/bytes.hpp"
#include "support/folder.hpp"
#include "support/seeds.hpp"

using namespace rcverbs;
using namespace test;
namespace nvme = rcverbs::nvme;

namespace {

constexpr std::uint32_t disk_bytes = 1U << 20;
constexpr std::uint32_t block_bytes = 512;

std::vector<nvme::subsystem_options> serving(std::shared_ptr<nvme::block_store> store) {
    nvme::subsystem_options o;
    o.nqn = disk_nqn;
    nvme::namespace_options n;
    n.store = std::move(store);
    o.namespaces = {n};
    return {o};
}

std::shared_ptr<nvme::block_store> memory() {
    return std::make_shared<nvme::memory_store>(disk_bytes, block_bytes);
}

struct serving_target {
    explicit serving_target(
        asio::io_context& io,
        std::shared_ptr<nvme::block_store> store = memory(),
        nvme::target_options options = {}
    )
        : target{
              io,
              {device_address(), 0},
              serving(std::move(store)),
              reporting(std::move(options))} {}

    // A failed test prints what the target reported.
    static nvme::target_options reporting(nvme::target_options o) {
        o.on_event = [](std::string const& message) { UNSCOPED_INFO(message); };
        return with_io_poller(std::move(o));
    }

    endpoint at() const { return target.local_endpoint(); }
    nvme::target target;
};

/// A host with an admin queue and an I/O queue.
struct connected_host {
    host_queue admin;
    host_queue io;
    registered_buffer data;
    std::uint16_t id = 0;
};

asio::awaitable<connected_host> connect_host(
    asio::io_context& io, endpoint to, std::uint32_t keep_alive_ms = 0, std::string nqn = host_nqn
) {
    connected_host h{host_queue{io}, host_queue{io}, {}, 0};
    co_await must_open(h.admin, to, 0);
    response const made =
        co_await h.admin.run(h.admin.connect_command(0, 0xffff, disk_nqn, nqn, keep_alive_ms));
    REQUIRE(made.is_alive);
    REQUIRE(made.status == 0);
    h.id = static_cast<std::uint16_t>(made.result);
    co_await must(h.admin, enable(), 0);
    co_await must_open(h.io, to, 1);
    response const joined = co_await h.io.run(h.io.connect_command(1, h.id, disk_nqn, nqn));
    REQUIRE(joined.is_alive);
    REQUIRE(joined.status == 0);
    h.data = registered_buffer{
        h.io.connection().domain(), 65536, access_flags::remote_read | access_flags::remote_write};
    co_return h;
}

capsule write(std::uint64_t first, std::uint32_t count, registered_buffer const& from) {
    return capsule{0x01, 1}
        .blocks(first, count)
        .keyed(from.remote().slice(0, std::uint64_t{count} * block_bytes));
}

capsule read(std::uint64_t first, std::uint32_t count, registered_buffer const& into) {
    return capsule{0x02, 1}
        .blocks(first, count)
        .keyed(into.remote().slice(0, std::uint64_t{count} * block_bytes));
}

/// Writes, reads back and compares, so the host is served.
asio::awaitable<void> must_serve(connected_host& h, std::uint64_t first, std::uint32_t count) {
    std::size_t const size = std::size_t{count} * block_bytes;
    fill(h.data.bytes().first(size), 7);
    std::vector<std::byte> const sent{
        h.data.bytes().begin(), h.data.bytes().begin() + static_cast<std::ptrdiff_t>(size)};
    response const written = co_await h.io.run(write(first, count, h.data));
    REQUIRE(written.is_alive);
    REQUIRE(written.status == 0);
    std::ranges::fill(h.data.bytes(), std::byte{0});
    response const there = co_await h.io.run(read(first, count, h.data));
    REQUIRE(there.is_alive);
    REQUIRE(there.status == 0);
    REQUIRE(test::same(h.data.bytes().first(size), sent));
}

struct temporary_file {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("rcverbs-nvme-" + std::to_string(::getpid()));
    temporary_file() {
        std::ofstream{path};
        std::filesystem::resize_file(path, disk_bytes);
    }
    ~temporary_file() { std::filesystem::remove(path); }
};

/// A store that a program writes itself: keeps every byte inverted.
class inverting_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {disk_bytes, block_bytes, true, false};
    }
    void start(nvme::store_request& r) override {
        auto const range = std::span{bytes_}.subspan(r.offset_bytes(), r.size_bytes());
        for (std::size_t i = 0; i < r.data().size(); ++i) {
            if (r.operation() == nvme::store_operation::read) r.data()[i] = ~range[i];
            if (r.operation() == nvme::store_operation::write) range[i] = ~r.data()[i];
        }
        flushes += r.operation() == nvme::store_operation::flush;
        durable += r.is_durable();
        sizes.push_back(r.size_bytes());
        if (ends) return ends(r);
        if (fails)
            return r.complete(boost::system::errc::make_error_code(boost::system::errc::io_error));
        r.complete({});
    }
    int flushes = 0;
    int durable = 0;
    std::vector<std::uint64_t> sizes;  // of all requests
    std::function<void(nvme::store_request&)> ends;  // instead of success
    bool fails = false;

private:
    std::vector<std::byte> bytes_ = std::vector<std::byte>(disk_bytes);
};

}  // namespace

// For test/fabric/processes.sh: RCVERBS_TEST_TARGET is the address of an rdma-nvme whose subsystem is
// disk_nqn, with blocks of 512 bytes.
TEST_CASE("the target of another program serves", "[.][peer][elsewhere]") {
    char const* const address = std::getenv("RCVERBS_TEST_TARGET");
    REQUIRE(address != nullptr);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connected_host h = co_await connect_host(io, {address, 4420});
        co_await must_serve(h, 0, 1);
        co_await must_serve(h, 100, 128);
        co_await must(h.io, capsule{0x00, 1}, 0);  // flush
        co_await must(h.io, read(disk_bytes / block_bytes, 1, h.data), 0x80);  // behind the end
        // The controller says its subsystem's name.
        registered_buffer const about{
            h.admin.connection().domain(), 4096, access_flags::remote_write};
        co_await must(h.admin, capsule{0x06}.dword(10, 1).keyed(about.remote()), 0);
        CHECK(reinterpret_cast<char const*>(about.bytes().data()) + 768 == std::string{disk_nqn});
    });
}

TEST_CASE("nvme: a host reads what it wrote, from memory and from a file", "[device][nvme]") {
    asio::io_context io;
    temporary_file file;
    nvme::file_store_options small;
    small.block_bytes = block_bytes;
    small.method = GENERATE(nvme::file_method::automatic, nvme::file_method::threads);
    std::shared_ptr<nvme::block_store> const store =
        GENERATE(false, true) ? std::make_shared<nvme::file_store>(file.path, small) : memory();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        co_await must_serve(h, 0, 1);
        co_await must_serve(h, 100, 128);
        co_await must_serve(h, disk_bytes / block_bytes - 8, 8);
        // Inside the capsule.
        std::vector<std::byte> small_data(8 * block_bytes);
        fill(small_data, 3);
        capsule in = capsule{0x01, 1}.blocks(40, 8).in_capsule(small_data, 8 * block_bytes);
        co_await must(h.io, in, 0);
        co_await must(h.io, read(40, 8, h.data), 0);
        CHECK(test::same(h.data.bytes().first(small_data.size()), small_data));
        // Compare, write zeroes, discard, flush.
        capsule same = capsule{0x05, 1}.blocks(40, 8).in_capsule(small_data, 8 * block_bytes);
        co_await must(h.io, same, 0);
        capsule other = capsule{0x05, 1}.blocks(41, 8).in_capsule(small_data, 8 * block_bytes);
        co_await must(h.io, other, 0x285);
        co_await must(h.io, capsule{0x08, 1}.blocks(40, 4), 0);
        std::array<std::byte, 16> range{};
        put(std::span{range}, 4, std::uint32_t{2});
        put(std::span{range}, 8, std::uint64_t{44});
        co_await must(h.io, capsule{0x09, 1}.dword(11, 4).in_capsule(range, 16), 0);
        co_await must(h.io, read(40, 8, h.data), 0);
        auto const zeroed = h.data.bytes().first(6 * block_bytes);
        CHECK(std::ranges::all_of(zeroed, [](std::byte b) { return b == std::byte{0}; }));
        CHECK(test::same(
            h.data.bytes().subspan(6 * block_bytes, 2 * block_bytes),
            std::span{small_data}.subspan(6 * block_bytes)
        ));
        co_await must(h.io, capsule{0x00, 1}, 0);
        co_await must(h.io, capsule{0x00, 0xffffffff}, 0);
        CHECK(s.target.statistics().controllers == 1);
        CHECK(s.target.statistics().queues == 2);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a store of a program's own gets requests, and its errors reach hosts",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        co_await must_serve(h, 5, 20);
        co_await must(h.io, capsule{0x00, 1}, 0);
        CHECK(store->flushes == 1);
        capsule durable = write(0, 1, h.data);
        durable.dword(12, 1U << 30);
        co_await must(h.io, durable, 0);
        CHECK(store->durable == 1);
        store->fails = true;
        co_await must(h.io, write(0, 1, h.data), 0x280);
        co_await must(h.io, read(0, 1, h.data), 0x281);
        store->fails = false;
        co_await must_serve(h, 5, 20);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: invalid commands get an error status, and the queue goes on",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        connected_host h = co_await connect_host(io, s.at());
        std::uint64_t const blocks = disk_bytes / block_bytes;
        std::vector<std::byte> const two(2 * block_bytes);
        co_await must(h.io, read(blocks, 1, h.data), 0x80);
        co_await must(h.io, read(blocks - 1, 2, h.data), 0x80);
        co_await must(h.io, read(~std::uint64_t{0}, 2, h.data), 0x80);
        co_await must(h.io, read(0, 1, h.data).dword(1, 2), 0x0b);
        co_await must(h.io, capsule{0x77, 1}, 0x01);
        // SGLs that lie about sizes and places.
        co_await must(h.io, read(0, 2, h.data).keyed(h.data.remote().slice(0, 512)), 0x0f);
        co_await must(h.io, capsule{0x01, 1}.blocks(0, 2).in_capsule(two, 4096), 0x0f);
        co_await must(h.io, capsule{0x01, 1}.blocks(0, 2).in_capsule(two, 1024, 512), 0x0f);
        co_await must(h.io, capsule{0x01, 1}.blocks(0, 2).in_capsule(two, 1024, ~0UL), 0x16);
        co_await must(h.io, capsule{0x02, 1}.blocks(0, 2).in_capsule({}, 1024), 0x11);
        capsule unknown = read(0, 1, h.data);
        unknown.bytes[39] = std::byte{0x20};
        co_await must(h.io, unknown, 0x11);
        co_await must(h.io, write(0, 1, h.data).keyed(1, 0xffffff, 1), 0x02);
        // Discards of ranges that are not there.
        std::array<std::byte, 16> range{};
        put(std::span{range}, 4, std::uint32_t{2});
        put(std::span{range}, 8, blocks - 1);
        co_await must(h.io, capsule{0x09, 1}.dword(11, 4).in_capsule(range, 16), 0x80);
        co_await must(
            h.io, capsule{0x09, 1}.dword(10, 255).dword(11, 4).in_capsule(range, 16), 0x0f
        );
        // Codes of what the target has not: fused commands, PRPs, protection information, storage
        // tags, directives. A hint of Linux for read-ahead, and LR, are accepted.
        for (int const flags : {0x00, 0x41, 0x42, 0x43, 0x80, 0xc0}) {
            capsule c = write(0, 1, h.data);
            c.bytes[1] = static_cast<std::byte>(flags);
            co_await must(h.io, c, 0x02);
        }
        for (std::uint32_t const bit : {1U << 16, 1U << 20, 1U << 24, 1U << 26, 1U << 29}) {
            co_await must(h.io, read(0, 1, h.data).dword(12, bit), 0x02);
            co_await must(h.io, write(0, 1, h.data).dword(12, bit), 0x02);
            co_await must(h.io, capsule{0x08, 1}.blocks(0, 1).dword(12, bit), 0x02);
        }
        co_await must(h.io, read(0, 1, h.data).dword(12, 1U << 31).dword(13, 7), 0);
        co_await must(h.io, capsule{0x08, 1}.blocks(0, 1).dword(12, 1U << 25), 0);
        // A second Connect, and fabrics commands on an I/O queue.
        co_await must(h.io, h.io.connect_command(1, h.id), 0x0c);
        co_await must(h.io, capsule{0x7f, 4}, 0x01);
        co_await must_serve(h, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: Connect commands that point nowhere are refused with the field",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        connected_host h = co_await connect_host(io, s.at());
        host_queue q{io};
        co_await must_open(q, s.at(), 2);
        response before = co_await q.run(read(0, 1, h.data));
        CHECK(before.status == 0x0c);  // commands before Connect
        auto const refused = [&](capsule c, int status, std::uint64_t field
                             ) -> asio::awaitable<void> {
            response const r = co_await q.run(c);
            REQUIRE(r.is_alive);
            CHECK(r.status == status);
            CHECK(r.result == field);
        };
        co_await refused(q.connect_command(3, h.id), 0x182, 42);
        co_await refused(q.connect_command(2, h.id).dword(11, 32), 0x182, 44);
        co_await refused(q.connect_command(2, h.id).dword(10, 2U << 16 | 1), 0x180, 0);
        co_await refused(q.connect_command(2, 99), 0x182, 1U << 16 | 16);
        co_await refused(q.connect_command(2, h.id, "nqn.other"), 0x182, 1U << 16 | 256);
        co_await refused(q.connect_command(2, h.id, disk_nqn, "nqn.thief"), 0x182, 1U << 16 | 16);
        co_await refused(q.connect_command(2, h.id, disk_nqn, ""), 0x184, 0);
        // The right one still works; the same queue a second time does not.
        co_await must(q, q.connect_command(2, h.id), 0);
        host_queue duplicate{io};
        co_await must_open(duplicate, s.at(), 2);
        co_await must(duplicate, duplicate.connect_command(2, h.id), 0x182);
        CHECK(s.target.statistics().refused == 8);
        co_await must_serve(h, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: invalid connection requests are rejected with the reason", "[device][nvme]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        struct attempt {
            std::uint16_t format, queue, receives, sends, why;
        };
        attempt const all[] = {
            {1, 0, 32, 31, 2},
            {0, 17, 32, 31, 3},
            {0, 0, 32, 128, 4},
            {0, 0, 32, 0, 4},
            {0, 0, 0, 31, 5}};
        for (attempt const& one : all) {
            std::array<std::byte, 32> data{};
            put(std::span{data}, 0, one.format);
            put(std::span{data}, 2, one.queue);
            put(std::span{data}, 4, one.receives);
            put(std::span{data}, 6, one.sends);
            host_queue q{io};
            error_code const ec = co_await q.open(s.at(), data);
            CHECK(ec == cm_errc::rejected_by_peer);
            auto const said = q.connection().private_data();
            REQUIRE(said.size() >= 4);
            CHECK(get<std::uint16_t>(said, 2) == one.why);
        }
        CHECK(s.target.statistics().refused == std::size(all));
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: a host that breaks the rules ends its own queue only", "[device][nvme]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        connected_host good = co_await connect_host(io, s.at());
        auto const attack = [&](capsule c) -> asio::awaitable<void> {
            connected_host bad = co_await connect_host(io, s.at());
            response const r = co_await bad.io.run(c);
            CHECK_FALSE(r.is_alive);
            bad.admin.connection().close();
        };
        capsule shorter{0x02, 1};
        shorter.bytes.resize(63);
        co_await attack(shorter);
        // A key that grants nothing: a read and a write of the target fail.
        co_await attack(write(0, 1, good.data).keyed(4096, 512, 0x1234567));
        co_await attack(read(0, 1, good.data).keyed(4096, 512, 0x1234567));
        co_await attack(capsule{0x01, 1}.in_capsule(std::vector<std::byte>(60000), 60000));
        co_await must_serve(good, 0, 8);
        co_await wait_until(io, [&] { return s.target.statistics().queues == 2; });
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: arbitrary commands never harm the target or another host", "[device][nvme]") {
    asio::io_context io;
    std::uint64_t const seed = seeds(1).front();
    INFO("RCVERBS_FABRIC_SEED=" << seed);
    run(io, [&]() -> asio::awaitable<void> {
        std::mt19937_64 random{seed};
        serving_target s{io};
        connected_host good = co_await connect_host(io, s.at());
        connected_host bad = co_await connect_host(io, s.at());
        std::uint8_t const codes[] = {0x00, 0x01, 0x02, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x18, 0x7f};
        int ends = 0;
        for (int i = 0; i < 300; ++i) {
            capsule c{0, 1};
            for (std::size_t at = 40; at < 64; ++at)
                c.bytes[at] = random() % 4 == 0 ? static_cast<std::byte>(random()) : std::byte{0};
            c.bytes[0] = random() % 8 == 0
                             ? static_cast<std::byte>(random())
                             : static_cast<std::byte>(codes[random() % std::size(codes)]);
            // An asynchronous event request is answered only later.
            if (c.bytes[0] == std::byte{0x0c}) continue;
            switch (random() % 4) {
            case 0: break;
            case 1: c.keyed(bad.data.remote().slice(0, random() % 65536)); break;
            case 2: {
                std::vector<std::byte> const data(random() % 4096);
                c.in_capsule(
                    data,
                    static_cast<std::uint32_t>(random() % 2 == 0 ? random() : random() % 4096),
                    random() % 64
                );
                break;
            }
            default:
                for (std::size_t at = 24; at < 40; ++at)
                    c.bytes[at] = static_cast<std::byte>(random());
            }
            host_queue& q = random() % 2 == 0 ? bad.io : bad.admin;
            response const r = co_await q.run(c);
            if (r.is_alive) {
                // Disabled by chance: only a new controller continues.
                if (r.status != 0x0c) continue;
            }
            ++ends;
            bad.admin.connection().close();
            bad.io.connection().close();
            bad = co_await connect_host(io, s.at());
        }
        co_await must_serve(good, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a silent host is disconnected, and one that keeps alive is not", "[device][nvme]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        connected_host silent = co_await connect_host(io, s.at(), 300);
        connected_host alive = co_await connect_host(io, s.at(), 2000);
        asio::steady_timer timer{io};
        for (int i = 0; i < 30; ++i) {
            timer.expires_after(100ms);
            co_await timer.async_wait(asio::use_awaitable);
            co_await must(alive.admin, capsule{0x18}, 0);
        }
        co_await wait_until(io, [&] { return s.target.statistics().queues == 2; });
        CHECK(s.target.statistics().keep_alive_expired == 1);
        CHECK(s.target.statistics().controllers == 1);
        co_await must_serve(alive, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: transfers wait for staging memory, and all of them finish", "[device][nvme]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options narrow;
        narrow.transfer_bytes_max = 65536;
        narrow.connections_max = 16;
        narrow.staging_bytes_max = (2 + 16) * 65536;
        serving_target s{io, std::make_shared<inverting_store>(), narrow};
        std::vector<connected_host> hosts;
        for (int i = 0; i < 6; ++i) hosts.push_back(co_await connect_host(io, s.at()));
        int done = 0;
        for (int i = 0; i < 6; ++i) {
            asio::co_spawn(
                io,
                [&h = hosts[static_cast<std::size_t>(i)], i, &done]() -> asio::awaitable<void> {
                    for (int n = 0; n < 2; ++n)
                        co_await must_serve(h, static_cast<std::uint64_t>(i) * 128, 128);
                    ++done;
                },
                asio::detached
            );
        }
        co_await wait_until(io, [&] { return done == 6; });
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: many Connect commands at once make one controller, and leave nothing",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        host_queue q{io};
        co_await must_open(q, s.at(), 0);
        capsule const c = q.connect_command(0, 0xffff);
        auto const statuses = co_await q.run_together(c, 20);
        CHECK(std::ranges::count(statuses, 0) == 1);
        CHECK(std::ranges::count(statuses, 0x0c) == 19);
        CHECK(s.target.statistics().controllers == 1);
        q.connection().close();
        co_await wait_until(io, [&] { return s.target.statistics().queues == 0; });
        CHECK(s.target.statistics().controllers == 0);
        co_await end(io, s.target);
    });
}

namespace {

/// Keeps a request until it is told to complete it.
class late_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {disk_bytes, block_bytes, true, false};
    }
    void start(nvme::store_request& r) override { waiting = &r; }
    nvme::store_request* waiting = nullptr;
};

/// Keeps all requests until it is told to complete them.
class holding_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {disk_bytes, block_bytes, true, false};
    }
    void start(nvme::store_request& r) override {
        std::lock_guard const lock{mutex_};
        held_.push_back(&r);
    }
    void complete_all() {
        std::vector<nvme::store_request*> all;
        {
            std::lock_guard const lock{mutex_};
            all.swap(held_);
        }
        for (nvme::store_request* const r : all) r->complete({});
    }

private:
    std::mutex mutex_;
    std::vector<nvme::store_request*> held_;
};

/// Memory that the target accesses directly, and that needs a flush to be durable.
class cached_memory final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {disk_bytes, block_bytes, true, false};
    }
    std::span<std::byte> memory() noexcept override { return bytes_; }
    void start(nvme::store_request& r) override {
        flushes += r.operation() == nvme::store_operation::flush;
        r.complete({});
    }
    int flushes = 0;

private:
    std::vector<std::byte> bytes_ = std::vector<std::byte>(disk_bytes);
};

bool all_succeeded(std::vector<int> const& statuses) {
    return std::ranges::all_of(statuses, [](int status) { return status == 0; });
}

asio::awaitable<void> flush(connected_host& h) {
    response const r = co_await h.io.run(capsule{0x00, 1});
    CHECK_FALSE(r.is_alive);
}

}  // namespace

TEST_CASE(
    "nvme: a store may complete a request after the target is gone, on a thread of its own",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<late_store>();
    std::thread later;
    run(io, [&]() -> asio::awaitable<void> {
        {
            serving_target s{io, store};
            connected_host h = co_await connect_host(io, s.at());
            asio::co_spawn(io, flush(h), asio::detached);
            co_await wait_until(io, [&] { return store->waiting != nullptr; });
            co_await end(io, s.target);
            // The handler of the flush uses the host.
            co_await wait_until(io, [&] { return !h.io.connection().is_open(); });
            co_await asio::post(io, asio::use_awaitable);
        }
        later = std::thread{[&] {
            std::this_thread::sleep_for(100ms);
            store->waiting->complete({});
        }};
    });
    later.join();
    // The executor had work until then, and the target has let go of the store.
    CHECK(store.use_count() == 1);
}

// Its host may send a discard again, and write to the range, while the first one still runs.
TEST_CASE("nvme: a discard does not outlive the queue of its host", "[device][nvme][any-device]") {
    asio::io_context io;
    auto const store = std::make_shared<late_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        std::vector<std::byte> ranges(32);
        for (std::size_t const at : {0UL, 16UL}) {
            put(std::span{ranges}, at + 4, std::uint32_t{8});
            put(std::span{ranges}, at + 8, std::uint64_t{at});
        }
        capsule const twice = capsule{0x09, 1}.dword(10, 1).dword(11, 4).in_capsule(ranges, 32);
        auto const discard = [&]() -> asio::awaitable<void> { co_await h.io.run(twice); };
        asio::co_spawn(io, discard(), asio::detached);
        co_await wait_until(io, [&] { return store->waiting != nullptr; });
        nvme::store_request* const first = std::exchange(store->waiting, nullptr);
        CHECK_FALSE(first->is_abandoned());
        h.io.connection().close();
        co_await wait_until(io, [&] { return first->is_abandoned(); });
        first->complete({});
        co_await wait_until(io, [&] { return s.target.statistics().commands == 0; });
        // The second range was not begun.
        CHECK(store->waiting == nullptr);
        co_await end(io, s.target);
    });
}

namespace {

/// Keeps a flush, and does not begin what nobody waits for.
class careful_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {disk_bytes, block_bytes, true, false};
    }
    void start(nvme::store_request& r) override {
        if (r.operation() == nvme::store_operation::flush) waiting = &r;
        else if (r.is_abandoned()) r.complete(asio::error::operation_aborted);
        else r.complete({});
    }
    nvme::store_request* waiting = nullptr;
};

/// A gigabyte that is not there.
class counting_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override {
        return {std::uint64_t{1} << 30, block_bytes, false, false};
    }
    void start(nvme::store_request& r) override {
        if (r.operation() == nvme::store_operation::discard)
            discarded_bytes.push_back(r.size_bytes());
        r.complete({});
    }
    std::vector<std::uint64_t> discarded_bytes;
};

}  // namespace

// The flush holds the queue, and the read behind it ends inside start().
TEST_CASE(
    "nvme: a host that leaves during a read with FUA takes nothing with it",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<careful_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        capsule const durable = read(0, 1, h.data).dword(12, 1U << 30);
        auto const ask = [&]() -> asio::awaitable<void> { co_await h.io.run(durable); };
        asio::co_spawn(io, ask(), asio::detached);
        co_await wait_until(io, [&] { return store->waiting != nullptr; });
        h.io.connection().close();
        co_await wait_until(io, [&] { return store->waiting->is_abandoned(); });
        store->waiting->complete({});
        co_await wait_until(io, [&] { return s.target.statistics().commands == 0; });
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a controller that is disabled abandons what its I/O queues have begun",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<careful_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        asio::co_spawn(io, flush(h), asio::detached);
        co_await wait_until(io, [&] { return store->waiting != nullptr; });
        CHECK_FALSE(store->waiting->is_abandoned());
        co_await must(h.admin, capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460000), 0);
        // On the thread of the I/O queues, if they have one.
        co_await wait_until(io, [&] { return store->waiting->is_abandoned(); });
        store->waiting->complete({});
        co_await wait_until(io, [&] { return s.target.statistics().commands == 0; });
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a discard beyond the limits leaves the rest as it is", "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<counting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        std::vector<std::byte> ranges(32);
        for (std::size_t const at : {0UL, 16UL}) {
            put(std::span{ranges}, at + 4, std::uint32_t{10'000});
            put(std::span{ranges}, at + 8, std::uint64_t{at} * 100'000);
        }
        co_await must(h.io, capsule{0x09, 1}.dword(10, 1).dword(11, 4).in_capsule(ranges, 32), 0);
        CHECK(
            store->discarded_bytes ==
            std::vector<std::uint64_t>{10'000 * 512, (16'384 - 10'000) * 512}
        );
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: a read with FUA is preceded by a flush", "[device][nvme][any-device]") {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        co_await must_serve(h, 0, 8);
        CHECK(store->flushes == 0);
        co_await must(h.io, read(0, 1, h.data).dword(12, 1U << 30), 0);
        CHECK(store->flushes == 1);
        co_await must(h.io, read(0, 1, h.data), 0);
        CHECK(store->flushes == 1);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: transfers beyond a host's share go through its queue in pieces",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        // Common memory for two transfers, of which a host may use one at a time.
        nvme::target_options narrow;
        constexpr std::uint32_t size = 1U << 18;
        narrow.transfer_bytes_max = size;
        narrow.connections_max = 4;
        narrow.staging_bytes_max = 2 * size + 4 * 65536;
        serving_target s{io, store, narrow};
        connected_host h = co_await connect_host(io, s.at());
        registered_buffer all{
            h.io.connection().domain(),
            disk_bytes,
            access_flags::remote_read | access_flags::remote_write};
        fill(all.bytes(), 11);
        std::vector<std::byte> const sent{all.bytes().begin(), all.bytes().end()};
        auto const commands = [&](std::uint8_t code) {
            std::vector<capsule> list;
            for (std::uint64_t at = 0; at < disk_bytes; at += size)
                list.push_back(capsule{code, 1}
                                   .blocks(at / block_bytes, size / block_bytes)
                                   .keyed(all.remote().slice(at, size)));
            return list;
        };
        auto statuses = co_await h.io.run_all(commands(0x01));
        CHECK(all_succeeded(statuses));
        std::ranges::fill(all.bytes(), std::byte{0});
        statuses = co_await h.io.run_all(commands(0x02));
        CHECK(all_succeeded(statuses));
        CHECK(test::same(all.bytes(), sent));
        CHECK(std::ranges::count(store->sizes, 65536U) >= 4);
        CHECK(std::ranges::count(store->sizes, size) >= 2);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: hosts at one address share its part of the staging memory", "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    std::vector<nvme::store_request*> held;
    store->ends = [&](nvme::store_request& r) { held.push_back(&r); };
    run(io, [&]() -> asio::awaitable<void> {
        // Common memory for four transfers: two for a host, three for an address.
        nvme::target_options narrow;
        constexpr std::uint32_t size = 1U << 17;
        narrow.transfer_bytes_max = size;
        narrow.connections_max = 8;
        narrow.staging_bytes_max = 4 * size + 8 * 65536;
        serving_target s{io, store, narrow};
        connected_host one = co_await connect_host(io, s.at(), 0, "nqn.test:one");
        connected_host two = co_await connect_host(io, s.at(), 0, "nqn.test:two");
        registered_buffer into_one{one.io.connection().domain(), size, access_flags::remote_write};
        registered_buffer into_two{two.io.connection().domain(), size, access_flags::remote_write};
        auto const whole = [&](registered_buffer const& into) {
            return capsule{0x02, 1}.blocks(0, size / block_bytes).keyed(into.remote());
        };
        one.io.send_only(std::vector<capsule>(2, whole(into_one)));
        co_await wait_until(io, [&] { return held.size() == 2; });
        two.io.send_only(std::vector<capsule>(2, whole(into_two)));
        co_await wait_until(io, [&] { return held.size() == 4; });
        // The last one has none of the common part.
        CHECK(store->sizes == std::vector<std::uint64_t>{size, size, size, 65536});
        store->ends = nullptr;
        for (nvme::store_request* const each : held) each->complete({});
        one.io.connection().close();
        two.io.connection().close();
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: memory is compared in pieces, up to the last byte", "[device][nvme][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        // Common memory for two transfers, of which a host may use one at a time.
        nvme::target_options narrow;
        constexpr std::uint32_t size = 1U << 18;
        narrow.transfer_bytes_max = size;
        narrow.connections_max = 4;
        narrow.staging_bytes_max = 2 * size + 4 * 65536;
        serving_target s{io, memory(), narrow};
        connected_host h = co_await connect_host(io, s.at());
        registered_buffer all{
            h.io.connection().domain(),
            size,
            access_flags::remote_read | access_flags::remote_write};
        fill(all.bytes(), 5);
        auto const whole = [&](std::uint8_t code) {
            return capsule{code, 1}.blocks(0, size / block_bytes).keyed(all.remote());
        };
        co_await must(h.io, whole(0x01), 0);
        auto statuses = co_await h.io.run_all(std::vector<capsule>(3, whole(0x05)));
        CHECK(all_succeeded(statuses));
        all.bytes().back() ^= std::byte{1};
        statuses = co_await h.io.run_all(std::vector<capsule>(3, whole(0x05)));
        CHECK(statuses == std::vector<int>(3, 0x285));
        CHECK(s.target.statistics().queues == 2);
        co_await end(io, s.target);
    });
}

namespace {

// Posts a receive now and then, so that the target's device does not give up.
asio::awaitable<void> receive_slowly(asio::io_context& io, connected_host& h) {
    asio::steady_timer timer{io};
    while (h.io.connection().is_open()) {
        h.io.connection().async_receive(
            h.data.slice(0, 16), [](error_code const&, receive_result const&) {}
        );
        timer.expires_after(200ms);
        co_await timer.async_wait(asio::use_awaitable);
    }
}

}  // namespace

TEST_CASE(
    "nvme: a host that takes completions slowly delays no other host", "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        // Common memory for two transfers, of which the slow host uses one.
        nvme::target_options narrow;
        narrow.transfer_bytes_max = 65536;
        narrow.connections_max = 8;
        narrow.staging_bytes_max = (2 + 8) * 65536;
        serving_target s{io, store, narrow};
        connected_host slow = co_await connect_host(io, s.at());
        connected_host good = co_await connect_host(io, s.at());
        slow.io.send_only(std::vector<capsule>(25, read(0, 128, slow.data)));
        auto const serve = [&]() -> asio::awaitable<void> {
            std::uint64_t const before = s.target.statistics().reads;
            for (int i = 0; i < 4; ++i) co_await must_serve(good, 128, 128);
            // Four of these are the good host's: the slow one's are not over.
            CHECK(s.target.statistics().reads - before < 25);
            slow.io.connection().close();
        };
        co_await (receive_slowly(io, slow) && serve());
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: a transfer that a host does not take in time ends its queue", "[device][nvme]") {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options patient;
        patient.transfer_timeout = 1000ms;
        serving_target s{io, store, patient};
        connected_host slow = co_await connect_host(io, s.at());
        connected_host good = co_await connect_host(io, s.at());
        // All of them are posted at once, and would take five seconds.
        slow.io.send_only(std::vector<capsule>(25, read(0, 8, slow.data)));
        co_await receive_slowly(io, slow);
        CHECK(s.target.statistics().transfers_stalled == 1);
        co_await wait_until(io, [&] { return s.target.statistics().queues == 3; });
        co_await must_serve(good, 256, 128);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: queues beyond the limit are refused, counted and reported", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options few;
        few.io_queues_max = 2;
        few.connections_max = 8;
        std::vector<std::string> said;
        few.on_event = [&](std::string const& message) { said.push_back(message); };
        nvme::target target{io, {device_address(), 0}, serving(memory()), few};
        std::vector<connected_host> hosts;
        for (int i = 0; i < 2; ++i)
            hosts.push_back(co_await connect_host(io, target.local_endpoint()));
        // The third host gets an admin queue and one I/O queue, not two.
        hosts.push_back(connected_host{host_queue{io}, host_queue{io}, {}, 0});
        host_queue& last = hosts.back().admin;
        co_await must_open(last, target.local_endpoint(), 0);
        response const made = co_await last.run(last.connect_command(0, 0xffff));
        co_await must(last, enable(), 0);
        response const granted =
            co_await last.run(capsule{0x09, 0}.dword(10, 0x07).dword(11, 0x00010001));
        CHECK(granted.result == 0);
        host_queue& one = hosts.back().io;
        co_await must_open(one, target.local_endpoint(), 1);
        co_await must(one, one.connect_command(1, static_cast<std::uint16_t>(made.result)), 0);
        // Six of eight are this address's share. The next host gets none.
        host_queue more{io};
        error_code const ec = co_await more.open(target.local_endpoint(), 0);
        CHECK(ec == cm_errc::rejected_by_peer);
        CHECK(get<std::uint16_t>(more.connection().private_data(), 2) == 6);
        CHECK(target.statistics().refused == 1);
        CHECK(std::ranges::count_if(said, [](std::string const& line) {
                  return line.ends_with("too many queues of this address");
              }) == 1);
        co_await must_serve(hosts[0], 0, 8);
        target.close();
        co_await wait_until(io, [&] { return target.statistics().queues == 0; });
    });
}

TEST_CASE(
    "nvme: silent hosts of discovery make room for hosts with disks", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options few;
        few.connections_max = 4;
        few.io_queues_max = 1;
        few.controller_id_max = 3;
        std::vector<std::string> said;
        few.on_event = [&](std::string const& message) { said.push_back(message); };
        nvme::target target{io, {device_address(), 0}, serving(memory()), few};
        std::vector<std::unique_ptr<host_queue>> silent;
        for (int i = 0; i < 3; ++i) {
            silent.push_back(std::make_unique<host_queue>(io));
            co_await must_open(*silent.back(), target.local_endpoint(), 0);
            // As long as a host may ask for: 49 days.
            response const r = co_await silent.back()->run(silent.back()->connect_command(
                0, 0xffff, nvme::discovery_nqn, "nqn.silent", 0xffffffff
            ));
            REQUIRE(r.status == 0);
        }
        // Three of four are this address's share, and there are three numbers of controllers.
        connected_host host = co_await connect_host(io, target.local_endpoint());
        co_await must_serve(host, 0, 8);
        co_await silent[0]->connection().async_wait_disconnected(awaiting);
        co_await silent[1]->connection().async_wait_disconnected(awaiting);
        CHECK(silent[2]->connection().is_open());
        CHECK(target.statistics().refused == 2);
        CHECK(target.statistics().queues == 3);
        CHECK(std::ranges::count_if(said, [](std::string const& line) {
                  return line.find("discovery ends, for a queue of ") != std::string::npos;
              }) == 2);
        // A host that has proved itself does not make room.
        silent[2]->connection().close();
        co_await wait_until(io, [&] { return target.statistics().queues == 2; });
        host_queue more{io};
        co_await must_open(more, target.local_endpoint(), 0);
        co_await must(more, more.connect_command(0, 0xffff), 0);
        host_queue last{io};
        error_code const ec = co_await last.open(target.local_endpoint(), 0);
        CHECK(ec == cm_errc::rejected_by_peer);
        co_await must_serve(host, 0, 8);
        target.close();
        co_await wait_until(io, [&] { return target.statistics().queues == 0; });
    });
}

TEST_CASE(
    "nvme: a number that a controller of discovery has goes to one with disks",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options one;
        one.controller_id_max = 1;
        serving_target s{io, memory(), one};
        host_queue silent{io};
        co_await must_open(silent, s.at(), 0);
        co_await must(silent, silent.connect_command(0, 0xffff, nvme::discovery_nqn), 0);
        connected_host host = co_await connect_host(io, s.at());
        CHECK(host.id == 1);
        co_await silent.connection().async_wait_disconnected(awaiting);
        CHECK(s.target.statistics().refused == 1);
        co_await must_serve(host, 0, 8);
        // Its own is not taken away.
        host_queue second{io};
        co_await must_open(second, s.at(), 0);
        co_await must(second, second.connect_command(0, 0xffff, nvme::discovery_nqn), 0x181);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a refusal names the host, its address and the subsystem in one printable line",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::vector<std::string> said;
        nvme::target_options options;
        options.on_event = [&](std::string const& message) { said.push_back(message); };
        nvme::target target{io, {device_address(), 0}, serving(memory()), options};
        host_queue admin{io};
        co_await must_open(admin, target.local_endpoint(), 0);
        capsule const unknown = admin.connect_command(0, 0xffff, "nqn.x\ny", "nqn.\x1b[2J");
        co_await must(admin, unknown, 0x182);
        std::string const here = admin.connection().local_endpoint().to_string();
        REQUIRE(said.size() == 1);
        CHECK(
            said[0] == "refused host nqn.?[2J at " + here + ", subsystem nqn.x?y: unknown subsystem"
        );
        host_queue io_queue{io};
        co_await must_open(io_queue, target.local_endpoint(), 3);
        capsule const elsewhere = io_queue.connect_command(3, 99);
        co_await must(io_queue, elsewhere, 0x182);
        std::string const there = io_queue.connection().local_endpoint().to_string();
        REQUIRE(said.size() == 2);
        CHECK(
            said[1] == std::string{"refused queue 3 of host "} + host_nqn + " at " + there +
                           ", subsystem " + disk_nqn + ": wrong controller"
        );
        target.close();
        co_await wait_until(io, [&] { return target.statistics().queues == 0; });
    });
}

TEST_CASE(
    "nvme: commands are counted for each host and namespace, and errors by their kind",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        CHECK(s.target.statistics_by_host().empty());
        connected_host one = co_await connect_host(io, s.at(), 0, "nqn.test:one");
        connected_host two = co_await connect_host(io, s.at(), 0, "nqn.test:two");
        capsule const writing = write(0, 2, one.data);
        co_await must(one.io, writing, 0);
        capsule const reading = read(0, 4, one.data);
        co_await must(one.io, reading, 0);
        co_await must(one.io, reading, 0);
        capsule const flushing{0x00, 1};
        co_await must(one.io, flushing, 0);
        capsule const beyond = read(disk_bytes / block_bytes, 1, one.data);
        co_await must(one.io, beyond, 0x80);
        capsule const unknown{0x7e, 1};
        co_await must(two.io, unknown, 0x01);
        std::vector<nvme::host_statistics> const all = s.target.statistics_by_host();
        REQUIRE(all.size() == 2);
        nvme::host_statistics const& first = all[0];
        CHECK(first.subsystem == disk_nqn);
        CHECK(first.namespace_id == 1);
        CHECK(first.host == "nqn.test:one");
        CHECK(first.writes == 1);
        CHECK(first.written_bytes == 2 * block_bytes);
        CHECK(first.reads == 2);
        CHECK(first.read_bytes == 8 * block_bytes);
        CHECK(first.other_commands == 1);
        CHECK(first.read_time > 0ns);
        CHECK(first.write_time > 0ns);
        CHECK(first.other_time >= first.store_time);
        // Memory moves without its store, which flushes.
        CHECK(first.store_requests == 1);
        CHECK(first.out_of_range == 1);
        CHECK(first.invalid_commands == 0);
        CHECK(all[1].host == "nqn.test:two");
        CHECK(all[1].reads == 0);
        CHECK(all[1].invalid_commands == 1);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: two namespaces have one UUID only if the options say so", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const disk = memory();
        auto const named = [](std::string nqn, std::vector<nvme::namespace_options> disks) {
            nvme::subsystem_options o;
            o.nqn = std::move(nqn);
            o.namespaces = std::move(disks);
            return o;
        };
        auto const refuses = [](std::string const& text, auto f) {
            try {
                f();
                FAIL("not refused");
            } catch (boost::system::system_error const& e) {
                CHECK(e.code() == errc::invalid_option);
                CHECK_THAT(e.what(), ContainsSubstring(text));
            }
        };
        auto const listening = [&](std::vector<nvme::subsystem_options> all) {
            return nvme::target{io, {device_address(), 0}, std::move(all)};
        };
        std::string const refusal =
            "subsystem nqn.b, namespace 1: namespace_options::uuid, or that of the "
            "store, is also that of subsystem nqn.a, namespace 1";
        nvme::namespace_options const plain{1, disk};
        nvme::namespace_options const explicitly{1, disk, false, disk->uuid()};
        refuses("nqn.a, namespace 2: ", [&] {
            listening({named("nqn.a", {explicitly, {2, disk, false, disk->uuid()}})});
        });
        refuses(refusal, [&] { listening({named("nqn.a", {plain}), named("nqn.b", {plain})}); });
        refuses(refusal, [&] {
            listening({named("nqn.a", {explicitly}), named("nqn.b", {plain})});
        });
        nvme::target t = listening({named("nqn.a", {explicitly}), named("nqn.b", {explicitly})});
        // Later, too; and then nothing changes.
        refuses(refusal, [&] { t.serve({named("nqn.a", {plain}), named("nqn.b", {plain})}); });
        t.remove_namespace("nqn.b", 1);
        refuses(refusal, [&] { t.add_namespace("nqn.b", plain); });
        t.add_namespace("nqn.b", explicitly);
        t.remove_namespace("nqn.b", 1);
        t.add_namespace("nqn.b", {1, memory()});
        co_await end(io, t);
    });
}

TEST_CASE(
    "nvme: old commands are counted by what they wait for, and reported once",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<holding_store>();
    std::vector<std::string> faults;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options watchful;
        watchful.transfer_timeout = 1600ms;
        watchful.command_report_age = 1500ms;
        watchful.on_fault = [&](std::string const& text) { faults.push_back(text); };
        serving_target s{io, store, watchful};
        connected_host h = co_await connect_host(io, s.at());
        auto const old = [&] { return s.target.statistics().old_commands; };
        auto const old_of_host = [&] { return s.target.statistics_by_host().front().old_commands; };
        // Requests for events are never old.
        h.admin.send_only({capsule{0x0c, 0}});
        h.io.send_only({capsule{0x00, 1}});
        co_await wait_until(io, [&] { return old().in_store == 1; });
        CHECK(faults.empty());
        co_await wait_until(io, [&] { return !faults.empty(); });
        h.io.send_only({capsule{0x00, 1}});
        co_await wait_until(io, [&] { return old().in_store == 2; });
        CHECK(old_of_host().in_store == 2);
        REQUIRE(faults.size() == 1);
        std::string const expected = "subsystem " + std::string{disk_nqn} +
                                     ": a command is not answered after 1500 ms; state: in_store";
        CHECK_THAT(faults[0], StartsWith("host " + std::string{host_nqn} + " at "));
        CHECK_THAT(faults[0], EndsWith(expected));
        nvme::commands_by_state const now = old();
        CHECK(now.executing == 0);
        CHECK(now.waiting_for_memory == 0);
        CHECK(now.receiving_data == 0);
        CHECK(now.answering == 0);
        store->complete_all();
        co_await wait_until(io, [&] { return old().in_store == 0; });
        h.io.connection().close();
        co_await end(io, s.target);
        CHECK(old().in_store + old().answering == 0);
        CHECK(old_of_host().in_store + old_of_host().answering == 0);
    });
    CHECK(faults.size() == 1);
}

TEST_CASE(
    "nvme: commands whose host takes no completion are old while they transfer",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        // Common memory for one transfer of this host. The queue's own memory is half of a transfer.
        nvme::target_options narrow;
        narrow.transfer_bytes_max = 131072;
        narrow.connections_max = 8;
        narrow.staging_bytes_max = 2 * 131072 + 8 * 65536;
        serving_target s{io, store, narrow};
        connected_host h = co_await connect_host(io, s.at());
        registered_buffer const data{
            h.io.connection().domain(),
            131072,
            access_flags::remote_read | access_flags::remote_write};
        // The host has posted no receive for the first completion, so all transfers behind it wait: that of the
        // write, and the first half of a read. The other read waits for the memory of the first one.
        h.io.send_only(
            {capsule{0x00, 1}, write(0, 256, data), read(0, 256, data), read(0, 256, data)}
        );
        auto const is_each_1 = [](nvme::commands_by_state const& old) {
            return old.answering == 1 && old.receiving_data == 1 && old.sending_data == 1 &&
                   old.waiting_for_memory == 1 && old.in_store + old.executing == 0;
        };
        auto const of_host = [&] { return s.target.statistics_by_host().front().old_commands; };
        co_await wait_until(io, [&] { return is_each_1(s.target.statistics().old_commands); });
        CHECK(is_each_1(of_host()));
        for (int i = 0; i < 4; ++i) {
            h.io.connection().async_receive(
                h.data.slice(0, 16), [](error_code const&, receive_result const&) {}
            );
        }
        co_await wait_until(io, [&] { return s.target.statistics().reads == 2; });
        co_await wait_until(io, [&] { return s.target.statistics().commands == 0; });
        nvme::commands_by_state const old = of_host();
        CHECK(old.answering + old.receiving_data + old.sending_data + old.waiting_for_memory == 0);
        CHECK(s.target.statistics().writes == 1);
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: a connection without a Connect command ends", "[device][nvme][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options soon;
        soon.connect_timeout = 2s;
        std::vector<std::string> said;
        soon.on_event = [&](std::string const& message) { said.push_back(message); };
        nvme::target target{io, {device_address(), 0}, serving(memory()), soon};
        connected_host host = co_await connect_host(io, target.local_endpoint());
        host_queue silent{io};
        co_await must_open(silent, target.local_endpoint(), 0);
        co_await silent.connection().async_wait_disconnected(awaiting);
        co_await wait_until(io, [&] { return target.statistics().queues == 2; });
        CHECK(target.statistics().refused == 1);
        CHECK(said.back().ends_with("sent no Connect command within 2000 ms"));
        co_await must_serve(host, 0, 8);
        target.close();
        co_await wait_until(io, [&] { return target.statistics().queues == 0; });
    });
}

TEST_CASE("nvme: FUA flushes a store in memory that has a cache", "[device][nvme][any-device]") {
    asio::io_context io;
    auto const store = std::make_shared<cached_memory>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        co_await must_serve(h, 0, 8);
        CHECK(store->flushes == 0);
        co_await must(h.io, write(0, 1, h.data).dword(12, 1U << 30), 0);
        CHECK(store->flushes == 1);
        co_await must(h.io, capsule{0x08, 1}.blocks(0, 2048).dword(12, 1U << 30 | 2047), 0);
        CHECK(store->flushes == 2);
        // What is read with FUA is durable.
        co_await must(h.io, read(0, 1, h.data).dword(12, 1U << 30), 0);
        CHECK(store->flushes == 3);
        // More than the whole disk in one discard.
        std::vector<std::byte> ranges(32);
        for (std::size_t const at : {0UL, 16UL})
            put(std::span{ranges}, at + 4, std::uint32_t{2048});
        capsule const twice = capsule{0x09, 1}.dword(10, 1).dword(11, 4).in_capsule(ranges, 32);
        co_await must(h.io, twice, 0x02);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a shutdown flushes all stores, and a reset ends the I/O queues",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<cached_memory>();
    auto const other = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        s.target.add_namespace(disk_nqn, {.id = 2, .store = other});
        connected_host h = co_await connect_host(io, s.at());
        capsule const shut_down = capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00464001);
        capsule const state = capsule{0x7f, 4}.dword(11, 0x1c);
        // A store that fails does not keep the host, which hears of it twice.
        other->fails = true;
        co_await must(h.admin, shut_down, 0x06);
        CHECK(store->flushes == 1);
        CHECK(other->flushes == 1);
        response const done = co_await h.admin.run(state);
        CHECK(done.result == 11);
        // Asked once more, it has still failed.
        co_await must(h.admin, shut_down, 0);
        response const again_done = co_await h.admin.run(state);
        CHECK(again_done.result == 11);
        CHECK(store->flushes == 1);
        // After a reset the host asks for queues, and makes them, at once.
        co_await must(h.admin, capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460000), 0);
        co_await must(h.admin, enable(), 0);
        co_await must(h.admin, capsule{0x09, 0}.dword(10, 0x07).dword(11, 0x00010001), 0);
        host_queue again{io};
        co_await must_open(again, s.at(), 1);
        co_await must(again, again.connect_command(1, h.id), 0);
        co_await wait_until(io, [&] { return s.target.statistics().queues == 2; });
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: what is served changes as a whole, or not at all", "[device][nvme][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const store = memory();
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        // The second subsystem is wrong, so the first one is not served either.
        auto wrong = serving(memory());
        wrong.front().nqn = "nqn.test:other";
        wrong.push_back(wrong.front());
        CHECK_THROWS_AS(s.target.serve(wrong), boost::system::system_error);
        co_await must_serve(h, 0, 8);
        // The same disk, for this host only, and another subsystem.
        auto more = serving(store);
        more.front().allowed_hosts = {host_nqn};
        more.push_back(serving(memory()).front());
        more.back().nqn = "nqn.test:other";
        s.target.serve(more);
        co_await must_serve(h, 8, 8);
        host_queue other{io};
        co_await must_open(other, s.at(), 0);
        co_await must(other, other.connect_command(0, 0xffff, "nqn.test:other"), 0);
        CHECK(s.target.statistics().controllers == 2);
        // Without the other subsystem, and for another host.
        more.pop_back();
        more.front().allowed_hosts = {"nqn.test:another"};
        s.target.serve(more);
        co_await wait_until(io, [&] { return s.target.statistics().queues == 0; });
        CHECK(s.target.statistics().controllers == 0);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: another thread changes what is served while hosts use it", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const store = memory();
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        std::atomic<bool> is_over{false};
        std::jthread other{[&] {
            for (int i = 0; i < 100; ++i) {
                auto all = serving(store);
                if (i % 2 == 0) all.front().namespaces.push_back({.id = 2, .store = memory()});
                if (i % 3 == 0) {
                    all.push_back(serving(memory()).front());
                    all.back().nqn = "nqn.test:other";
                }
                s.target.serve(std::move(all));
                static_cast<void>(s.target.statistics());
            }
            is_over = true;
        }};
        do co_await must_serve(h, 0, 8);
        while (!is_over);
        other.join();
        CHECK(s.target.statistics().controllers == 1);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a disk that is not reached here has a status of the path, until it is",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, memory()};
        connected_host h = co_await connect_host(io, s.at());
        std::string const nqn = serving(memory()).front().nqn;
        using enum nvme::ana_state;
        for (auto const& [state, status] :
             {std::pair{inaccessible, 0x302},
              {persistent_loss, 0x301},
              {changing, 0x303},
              {non_optimized, 0},
              {optimized, 0}}) {
            s.target.set_ana_state(nqn, 1, state);
            response const r = co_await h.io.run(write(0, 1, h.data));
            CHECK(r.is_alive);
            CHECK(r.status == status);
            CHECK(!r.is_final);
        }
        CHECK_THROWS_AS(
            s.target.set_ana_state("nqn.test:none", 1, optimized), boost::system::system_error
        );
        co_await must_serve(h, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: what may pass is to be tried again, and other errors are not",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store};
        connected_host h = co_await connect_host(io, s.at());
        auto const ends_with = [&](auto how, int status, bool is_final) -> asio::awaitable<void> {
            store->ends = how;
            response const r = co_await h.io.run(write(0, 1, h.data));
            CHECK(r.is_alive);
            CHECK(r.status == status);
            CHECK(r.is_final == is_final);
        };
        auto const error = [](int number) {
            return [number](nvme::store_request& r) {
                r.complete({number, boost::system::system_category()});
            };
        };
        for (int const number : {EAGAIN, EBUSY, EINTR, ENOMEM, ENOBUFS})
            co_await ends_with(error(number), 0x06, false);
        co_await ends_with(error(EIO), 0x280, true);
        co_await ends_with(error(ENOSPC), 0x81, true);
        co_await ends_with(error(EROFS), 0x20, true);
        co_await ends_with([](nvme::store_request& r) { r.complete_retry(); }, 0x06, false);
        co_await ends_with([](nvme::store_request& r) { r.complete_path_error(); }, 0x300, false);
        store->ends = nullptr;
        co_await must_serve(h, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: controllers get numbers of the target's range, and no others",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options range;
        range.controller_id_min = 500;
        range.controller_id_max = 501;
        serving_target s{io, memory(), range};
        connected_host first = co_await connect_host(io, s.at());
        connected_host second = co_await connect_host(io, s.at());
        CHECK(first.id == 500);
        CHECK(second.id == 501);
        host_queue third{io};
        co_await must_open(third, s.at(), 0);
        co_await must(third, third.connect_command(0, 0xffff), 0x181);
        first.admin.connection().close();
        first.io.connection().close();
        co_await wait_until(io, [&] { return s.target.statistics().controllers == 1; });
        co_await must(third, third.connect_command(0, 0xffff), 0);
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: each failure of a store is reported once", "[device][nvme][any-device]") {
    asio::io_context io;
    auto const store = std::make_shared<inverting_store>();
    std::vector<std::string> reported;
    nvme::target_options options;
    options.on_fault = [&](std::string const& message) { reported.push_back(message); };
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io, store, options};
        connected_host h = co_await connect_host(io, s.at());
        store->fails = true;
        for (int i = 0; i < 3; ++i) {
            co_await must(h.io, write(0, 1, h.data), 0x280);
            co_await must(h.io, capsule{0x00, 1}, 0x280);
        }
        CHECK(s.target.statistics().store_failures == 6);
        co_await end(io, s.target);
    });
    CHECK(
        reported ==
        std::vector<std::string>{
            "namespace 1 of nqn.test:disk: a write failed: Input/output error",
            "namespace 1 of nqn.test:disk: a flush failed: Input/output error; what "
            "hosts have written since the last flush may be lost"}
    );
}

namespace {

nvme::target_options quiet() { return serving_target::reporting({}); }

/// A target whose disk can be reserved.
struct reservable_target {
    reservable_target(asio::io_context& io, std::shared_ptr<nvme::block_store> store)
        : target{io, {device_address(), 0}, described(std::move(store)), quiet()} {}

    std::vector<nvme::subsystem_options> described(std::shared_ptr<nvme::block_store> store) {
        auto all = serving(std::move(store));
        all.front().namespaces.front().reservation_file = (here / "reservations").string();
        return all;
    }
    endpoint at() const { return target.local_endpoint(); }

    test::folder here;
    nvme::target target;
};

/// Register, Acquire or Release, with two keys.
capsule reserve(
    connected_host& h,
    std::uint8_t code,
    std::uint32_t dword10,
    std::uint64_t first,
    std::uint64_t second = 0
) {
    put(h.data.bytes(), 0, first);
    put(h.data.bytes(), 8, second);
    return capsule{code, 1}.dword(10, dword10).keyed(h.data.remote().slice(0, 16));
}
constexpr std::uint8_t register_code = 0x0d;
constexpr std::uint8_t acquire_code = 0x11;
constexpr std::uint8_t release_code = 0x15;
constexpr std::uint32_t write_exclusive = 1 << 8;
constexpr int conflict = 0x83;

}  // namespace

TEST_CASE(
    "nvme: a host that has reserved a disk shuts the others out", "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = GENERATE(
        std::shared_ptr<nvme::block_store>{memory()},
        std::shared_ptr<nvme::block_store>{std::make_shared<inverting_store>()}
    );
    run(io, [&]() -> asio::awaitable<void> {
        reservable_target s{io, store};
        connected_host a = co_await connect_host(io, s.at(), 0, "nqn.test:a");
        connected_host b = co_await connect_host(io, s.at(), 0, "nqn.test:b");
        co_await must_serve(b, 0, 8);
        co_await must(a.io, reserve(a, acquire_code, write_exclusive, 11), conflict);
        co_await must(a.io, reserve(a, register_code, 0, 0, 11), 0);
        co_await must(a.io, reserve(a, acquire_code, write_exclusive, 11), 0);
        co_await must_serve(a, 0, 8);
        co_await must(b.io, write(0, 1, b.data), conflict);
        co_await must(b.io, read(0, 1, b.data), 0);
        // Flush, write zeroes, and a discard of one range.
        co_await must(b.io, capsule{0x00, 1}, conflict);
        co_await must(b.io, capsule{0x08, 1}.blocks(0, 1), conflict);
        co_await must(
            b.io, capsule{0x09, 1}.dword(11, 4).keyed(b.data.remote().slice(0, 16)), conflict
        );
        co_await must(b.io, reserve(b, release_code, 1, 11), conflict);

        // The report, in whole and cut; without identifiers of 16 bytes it is refused.
        auto const report = [&](std::uint32_t dwords, std::uint32_t size, std::uint32_t extended) {
            return capsule{0x0e, 1}
                .dword(10, dwords - 1)
                .dword(11, extended)
                .keyed(b.data.remote().slice(0, size));
        };
        std::ranges::fill(b.data.bytes(), std::byte{0xff});
        co_await must(b.io, report(32, 128, 1), 0);
        CHECK(b.data.bytes()[4] == std::byte{1});
        CHECK(get<std::uint16_t>(b.data.bytes(), 5) == 1);
        CHECK(b.data.bytes()[64 + 2] == std::byte{1});
        CHECK(get<std::uint64_t>(b.data.bytes(), 64 + 8) == 11);
        CHECK(b.data.bytes()[64 + 31] == std::byte{'a'});
        co_await must(b.io, report(2, 8, 1), 0);
        co_await must(b.io, report(32, 128, 0), 0x18);
        co_await must(b.io, report(33, 128, 1), 0x0f);
        co_await must(
            b.io, reserve(b, register_code, 0, 0).keyed(b.data.remote().slice(0, 15)), 0x0f
        );

        // The host connects again: it is still the one that holds it.
        a.admin.connection().close();
        a.io.connection().close();
        co_await must(b.io, write(0, 1, b.data), conflict);
        connected_host again = co_await connect_host(io, s.at(), 0, "nqn.test:a");
        co_await must_serve(again, 0, 8);
        co_await must(again.io, reserve(again, release_code, write_exclusive, 11), 0);
        co_await must_serve(b, 0, 8);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a preemption that aborts waits for what others have under way, who hear of it",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    auto const store = std::make_shared<holding_store>();
    run(io, [&]() -> asio::awaitable<void> {
        reservable_target s{io, store};
        connected_host a = co_await connect_host(io, s.at(), 0, "nqn.test:a");
        connected_host b = co_await connect_host(io, s.at(), 0, "nqn.test:b");
        co_await must(a.io, reserve(a, register_code, 0, 0, 11), 0);
        co_await must(b.io, reserve(b, register_code, 0, 0, 22), 0);
        co_await must(b.io, reserve(b, acquire_code, write_exclusive, 22), 0);
        // A write of b that the store keeps.
        bool is_written = false;
        bool is_taken = false;
        bool has_heard = false;
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                response const r = co_await b.io.run(write(0, 1, b.data));
                CHECK(r.status == 0);
                is_written = true;
            },
            asio::detached
        );
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                response const r = co_await b.admin.run(capsule{0x0c, 0});
                // Of the I/O command set: a reservation log page.
                CHECK(r.result == (6 | 0x80U << 16));
                has_heard = true;
            },
            asio::detached
        );
        co_await wait_until(io, [&] { return s.target.statistics_by_host().size() == 2; });
        asio::steady_timer pause{io, 20ms};
        co_await pause.async_wait(asio::use_awaitable);
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                co_await must(a.io, reserve(a, acquire_code, write_exclusive | 2, 11, 22), 0);
                is_taken = true;
            },
            asio::detached
        );
        co_await wait_until(io, [&] { return has_heard; });
        CHECK(has_heard);
        pause.expires_after(50ms);
        co_await pause.async_wait(asio::use_awaitable);
        CHECK(!is_taken);
        store->complete_all();
        co_await wait_until(io, [&] { return is_taken && is_written; });
        CHECK(is_taken);
        CHECK(is_written);
        co_await must(b.io, write(0, 1, b.data), conflict);

        // The log page: a registration was preempted, and there is no other one.
        capsule const log =
            capsule{0x02, 0}.dword(10, 15U << 16 | 0x80).keyed(b.data.remote().slice(0, 64));
        registered_buffer page{b.admin.connection().domain(), 64, access_flags::remote_write};
        co_await must(b.admin, capsule{log}.keyed(page.remote()), 0);
        CHECK(get<std::uint64_t>(page.bytes(), 0) == 1);
        CHECK(page.bytes()[8] == std::byte{1});
        CHECK(page.bytes()[9] == std::byte{0});
        CHECK(get<std::uint32_t>(page.bytes(), 12) == 1);
        co_await must(b.admin, capsule{log}.keyed(page.remote()), 0);
        CHECK(page.bytes()[8] == std::byte{0});
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: reservations outlive the target if a host wants it", "[device][nvme][any-device]"
) {
    asio::io_context io;
    test::folder const here;
    std::uint32_t const kept = GENERATE(0U, 3U << 30);
    auto const store = memory();
    run(io, [&]() -> asio::awaitable<void> {
        auto all = serving(store);
        all.front().namespaces.front().reservation_file = (here / "reservations").string();
        all.front().namespaces.front().uuid.emplace().fill(std::byte{5});
        {
            nvme::target first{io, {device_address(), 0}, all, quiet()};
            connected_host a = co_await connect_host(io, first.local_endpoint(), 0, "nqn.test:a");
            co_await must(a.io, reserve(a, register_code, kept, 0, 11), 0);
            co_await must(a.io, reserve(a, acquire_code, write_exclusive, 11), 0);
            co_await end(io, first);
        }
        // The first one's memory of them is gone with its last command.
        asio::steady_timer pause{io, 50ms};
        co_await pause.async_wait(asio::use_awaitable);
        nvme::target second{io, {device_address(), 0}, all, quiet()};
        connected_host b = co_await connect_host(io, second.local_endpoint(), 0, "nqn.test:b");
        co_await must(b.io, write(0, 1, b.data), kept != 0 ? conflict : 0);
        co_await end(io, second);
    });
}

TEST_CASE(
    "nvme: a disk without a file for them has no reservations", "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        serving_target s{io};
        connected_host h = co_await connect_host(io, s.at());
        co_await must(h.io, reserve(h, register_code, 0, 0, 11), 0x01);
        co_await must_serve(h, 0, 8);
        co_await end(io, s.target);
    });
}
