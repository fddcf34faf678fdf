// A target whose I/O queues run on several threads: the same behaviour, and no race. The other tests of
// targets run with one such thread, too: with RCVERBS_TEST_IO_POLLER.
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <rcverbs/nvme/memory_store.hpp>

#include "nvme/host.hpp"
#include "support/bytes.hpp"
#include "support/hardware_counter.hpp"

using namespace rcverbs;
using namespace test;
namespace nvme = rcverbs::nvme;

namespace {

/// A store of 512-byte blocks in memory that a target does not access directly. Knows its callers.
class watched_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override { return memory_.geometry(); }
    void start(nvme::store_request& r) override {
        {
            std::lock_guard const lock{mutex_};
            threads_.insert(std::this_thread::get_id());
            if (fails_) return r.complete({EIO, boost::system::system_category()});
        }
        memory_.start(r);
    }
    std::set<std::thread::id> threads() const {
        std::lock_guard const lock{mutex_};
        return threads_;
    }
    void fail() {
        std::lock_guard const lock{mutex_};
        fails_ = true;
    }

private:
    nvme::memory_store memory_{1U << 20, 512};
    mutable std::mutex mutex_;
    std::set<std::thread::id> threads_;
    bool fails_ = false;
};

struct pollers_target {
    pollers_target(
        asio::io_context& io,
        std::size_t pollers,
        std::shared_ptr<nvme::block_store> store,
        nvme::target_options options = {}
    )
        : target{
              io,
              {device_address(), 0},
              serving(std::move(store)),
              with(pollers, std::move(options))} {}

    static std::vector<nvme::subsystem_options> serving(std::shared_ptr<nvme::block_store> store) {
        nvme::subsystem_options o;
        o.nqn = disk_nqn;
        o.namespaces = {{.id = 1, .store = std::move(store)}};
        return {o};
    }
    static nvme::target_options with(std::size_t pollers, nvme::target_options o) {
        for (std::size_t i = 0; i < pollers; ++i) o.io_pollers.push_back(poller::start());
        return o;
    }

    nvme::target target;
};

/// A host with several I/O queues.
struct wide_host {
    std::unique_ptr<host_queue> admin;
    std::vector<std::unique_ptr<host_queue>> queues;
    std::vector<registered_buffer> data;
    std::uint16_t id = 0;
};

constexpr std::size_t transfer_bytes = 65536;

asio::awaitable<void> add_queue(asio::io_context& io, wide_host& h, endpoint to) {
    auto const number = static_cast<std::uint16_t>(h.queues.size() + 1);
    h.queues.push_back(std::make_unique<host_queue>(io));
    error_code const ec = co_await h.queues.back()->open(to, number);
    REQUIRE_FALSE(ec);
    co_await must(*h.queues.back(), h.queues.back()->connect_command(number, h.id), 0);
    h.data.emplace_back(
        h.queues.back()->connection().domain(),
        transfer_bytes,
        access_flags::remote_read | access_flags::remote_write
    );
}

asio::awaitable<wide_host> connect_wide(asio::io_context& io, endpoint to, std::size_t queues) {
    wide_host h;
    h.admin = std::make_unique<host_queue>(io);
    error_code const ec = co_await h.admin->open(to, 0);
    REQUIRE_FALSE(ec);
    response const made = co_await h.admin->run(h.admin->connect_command(0, 0xffff));
    REQUIRE(made.status == 0);
    h.id = static_cast<std::uint16_t>(made.result);
    co_await must(*h.admin, enable(), 0);
    for (std::size_t i = 0; i < queues; ++i) co_await add_queue(io, h, to);
    co_return h;
}

/// Writes, reads back and compares `count` bytes from `first_byte` on, `times` times.
asio::awaitable<void> exercise(
    host_queue& q, registered_buffer& data, std::uint64_t first_byte, std::uint32_t count, int times
) {
    for (int i = 0; i < times; ++i) {
        fill(
            data.bytes().first(count), static_cast<unsigned>(first_byte) + static_cast<unsigned>(i)
        );
        std::vector<std::byte> const sent{data.bytes().begin(), data.bytes().begin() + count};
        auto const where = data.remote().slice(0, count);
        co_await must(q, capsule{0x01, 1}.blocks(first_byte / 512, count / 512).keyed(where), 0);
        std::ranges::fill(data.bytes().first(count), std::byte{0});
        co_await must(q, capsule{0x02, 1}.blocks(first_byte / 512, count / 512).keyed(where), 0);
        bool const is_same = test::same(data.bytes().first(count), sent);
        REQUIRE(is_same);
    }
}

asio::awaitable<void> pause(asio::io_context& io) {
    asio::steady_timer timer{io, 10ms};
    co_await timer.async_wait(asio::use_awaitable);
}

/// Holds requests until there are `count`, and completes them on a thread, the last one first.
class reversing_store final : public nvme::block_store {
public:
    explicit reversing_store(std::size_t count) : count_{count} {}
    nvme::store_geometry geometry() const override { return {4U << 20, 512, false, false}; }
    void start(nvme::store_request& r) override {
        bool is_complete = false;
        {
            std::lock_guard const lock{mutex_};
            held_.push_back(&r);
            is_complete = held_.size() == count_;
        }
        if (is_complete) release();
    }
    std::size_t held() const {
        std::lock_guard const lock{mutex_};
        return held_.size();
    }
    void release() {
        std::lock_guard const lock{mutex_};
        last_ = std::jthread{[held = std::exchange(held_, {})] {
            for (std::size_t i = held.size(); i-- > 0;) held[i]->complete({});
        }};
    }

private:
    std::size_t const count_;
    mutable std::mutex mutex_;
    std::vector<nvme::store_request*> held_;
    std::jthread last_;
};

/// Keeps its caller for a while, once.
class blocking_store final : public nvme::block_store {
public:
    explicit blocking_store(std::chrono::milliseconds time) : time_{time} {}
    nvme::store_geometry geometry() const override { return memory_.geometry(); }
    void start(nvme::store_request& r) override {
        std::this_thread::sleep_for(std::exchange(time_, {}));
        memory_.start(r);
    }

private:
    std::chrono::milliseconds time_;
    nvme::memory_store memory_{1U << 20, 512};
};

}  // namespace

TEST_CASE(
    "nvme: I/O queues are spread over the pollers, and each stays on its own",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const store = std::make_shared<watched_store>();
        pollers_target s{io, 2, store};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 1);
        co_await exercise(*h.queues[0], h.data[0], 0, 4096, 5);
        CHECK(store->threads().size() == 1);
        co_await add_queue(io, h, s.target.local_endpoint());
        co_await exercise(*h.queues[1], h.data[1], 0, 4096, 5);
        CHECK(store->threads().size() == 2);
        CHECK_FALSE(store->threads().contains(std::this_thread::get_id()));
        // The place of one that has ended is the next one's.
        h.queues[0]->connection().close();
        co_await wait_until(io, [&] { return s.target.statistics().queues == 2; });
        h.queues.erase(h.queues.begin());
        h.data.erase(h.data.begin());
        h.queues.insert(h.queues.begin(), nullptr);
        h.data.insert(h.data.begin(), registered_buffer{});
        co_await add_queue(io, h, s.target.local_endpoint());
        co_await exercise(*h.queues[2], h.data[2], 0, 4096, 5);
        CHECK(store->threads().size() == 2);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: queues of all pollers share the staging memory, and all transfers end", "[device][nvme]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options narrow;
        narrow.transfer_bytes_max = transfer_bytes;
        narrow.connections_max = 16;
        narrow.staging_bytes_max = (2 + 16) * transfer_bytes;
        pollers_target s{io, 3, std::make_shared<watched_store>(), narrow};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 6);
        std::size_t done = 0;
        for (std::size_t i = 0; i < h.queues.size(); ++i) {
            asio::co_spawn(
                io,
                [&, i]() -> asio::awaitable<void> {
                    co_await exercise(
                        *h.queues[i], h.data[i], i * transfer_bytes, transfer_bytes, 3
                    );
                    ++done;
                },
                asio::detached
            );
        }
        co_await wait_until(io, [&] { return done == h.queues.size(); });
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a host that resets and leaves while its queues are busy leaves nothing",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pollers_target s{io, 2, std::make_shared<nvme::memory_store>(1U << 20, 512)};
        wide_host other = co_await connect_wide(io, s.target.local_endpoint(), 1);
        for (int round = 0; round < 10; ++round) {
            wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 4);
            for (std::size_t i = 0; i < h.queues.size(); ++i) {
                capsule const write =
                    capsule{0x01, 1}.blocks(128 * i, 8).keyed(h.data[i].remote().slice(0, 4096));
                h.queues[i]->send_only({8, write});
            }
            // A controller that is disabled has no I/O queue; or the admin queue just goes.
            if (round % 2 == 0) co_await must(*h.admin, enable(false), 0);
            else h.admin->connection().close();
            co_await wait_until(io, [&] { return s.target.statistics().queues <= 3; });
            h.admin->connection().close();
            co_await wait_until(io, [&] { return s.target.statistics().queues == 2; });
            co_await exercise(*other.queues[0], other.data[0], 0, 4096, 1);
        }
        CHECK(s.target.statistics().controllers == 1);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: failures of a store on several threads are reported once, on the target's",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto const store = std::make_shared<watched_store>();
        std::vector<std::thread::id> reported;
        nvme::target_options options;
        options.on_fault = [&](std::string const&) {
            reported.push_back(std::this_thread::get_id());
        };
        pollers_target s{io, 2, store, options};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 2);
        store->fail();
        for (std::size_t i = 0; i < 2; ++i) {
            auto const where = h.data[i].remote().slice(0, 512);
            co_await must(*h.queues[i], capsule{0x02, 1}.blocks(0, 1).keyed(where), 0x281);
        }
        co_await wait_until(io, [&] { return !reported.empty(); });
        co_await pause(io);
        CHECK(reported == std::vector{std::this_thread::get_id()});
        CHECK(s.target.statistics().store_failures == 2);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a Connect command on an I/O queue that is carried out twice is refused",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pollers_target s{io, 2, std::make_shared<nvme::memory_store>(1U << 20, 512)};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 0);
        host_queue q{io};
        error_code const ec = co_await q.open(s.target.local_endpoint(), 1);
        REQUIRE_FALSE(ec);
        std::vector<int> statuses = co_await q.run_together(q.connect_command(1, h.id), 8);
        std::ranges::sort(statuses);
        CHECK(statuses.front() == 0);
        CHECK(std::ranges::count(statuses, 0) == 1);
        CHECK(std::ranges::count(statuses, 0x0c) == 7);
        co_await must(q, capsule{0x00, 1}, 0);
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: a target with an empty poller is refused", "[device][nvme][any-device]") {
    asio::io_context io;
    nvme::target_options options;
    options.io_pollers.emplace_back();
    CHECK_THROWS_WITH(
        (nvme::target{io, {device_address(), 0}, {}, options}),
        ContainsSubstring("io_pollers has an empty one")
    );
}

TEST_CASE(
    "nvme: a long log page that finds no memory is to be asked for again",
    "[device][nvme][any-device]"
) {
    auto const pollers = GENERATE(std::size_t{0}, std::size_t{2});
    constexpr std::uint32_t long_bytes = 1U << 20;
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options narrow;
        narrow.connections_max = 16;
        narrow.staging_bytes_max = 2 * long_bytes + 16 * 65536;
        auto const store = std::make_shared<reversing_store>(99);
        pollers_target s{io, pollers, store, narrow};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 1);
        auto const rights = access_flags::remote_read | access_flags::remote_write;
        registered_buffer disk{h.queues[0]->connection().domain(), long_bytes, rights};
        registered_buffer log{h.admin->connection().domain(), long_bytes, rights};
        // A read that takes the host's share, and is at the store.
        bool is_read = false;
        asio::co_spawn(
            io,
            [&]() -> asio::awaitable<void> {
                co_await must(
                    *h.queues[0],
                    capsule{0x02, 1}.blocks(0, long_bytes / 512).keyed(disk.remote()),
                    0
                );
                is_read = true;
            },
            asio::detached
        );
        co_await wait_until(io, [&] { return store->held() == 1; });
        capsule const get_log = capsule{0x02, 0xffffffff}
                                    .dword(10, 0x01U | (long_bytes / 4 - 1) << 16)
                                    .dword(11, (long_bytes / 4 - 1) >> 16)
                                    .keyed(log.remote());
        response const refused = co_await h.admin->run(get_log);
        CHECK(refused.status == 0x06);
        CHECK_FALSE(refused.is_final);
        co_await must(*h.admin, capsule{0x18}, 0);  // keep alive
        store->release();
        co_await wait_until(io, [&] { return is_read; });
        co_await wait_until(io, [&] { return s.target.statistics().commands == 0; });
        co_await must(*h.admin, get_log, 0);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: the heads in completions never go back, however stores complete",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        constexpr std::size_t count = 12;
        pollers_target s{io, 1, std::make_shared<reversing_store>(count)};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 1);
        std::vector<capsule> all;
        for (std::size_t i = 0; i < count; ++i)
            all.push_back(capsule{0x02, 1}.blocks(i, 1).keyed(h.data[0].remote().slice(512 * i, 512)
            ));
        std::vector<int> const statuses = co_await h.queues[0]->run_all(all);
        CHECK(statuses == std::vector<int>(count, 0));
        CHECK(std::ranges::is_sorted(h.queues[0]->heads(count)));
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a poller that was busy ends no queue for a transfer that was taken",
    "[device][nvme][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        nvme::target_options soon;
        soon.transfer_timeout = 200ms;
        pollers_target s{io, 1, std::make_shared<blocking_store>(500ms), soon};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 1);
        capsule const read = capsule{0x02, 1}.blocks(0, 1).keyed(h.data[0].remote().slice(0, 512));
        std::vector<int> const statuses = co_await h.queues[0]->run_together(read, 8);
        CHECK(statuses == std::vector<int>(8, 0));
        CHECK(s.target.statistics().transfers_stalled == 0);
        co_await end(io, s.target);
    });
}

TEST_CASE(
    "nvme: a host that sends more commands than it may ends its own queue",
    "[device][nvme][any-device]"
) {
    auto const pollers = GENERATE(std::size_t{0}, std::size_t{1});
    asio::io_context io;
    constexpr std::size_t depth = 8;
    constexpr std::size_t commands = 10 * depth;
    // Holds all that it gets.
    auto const store = std::make_shared<reversing_store>(commands + 1);
    run(io, [&]() -> asio::awaitable<void> {
        pollers_target s{io, pollers, store};
        wide_host greedy = co_await connect_wide(io, s.target.local_endpoint(), 0);
        wide_host honest = co_await connect_wide(io, s.target.local_endpoint(), 1);
        host_queue narrow{io};
        error_code const ec = co_await narrow.open(s.target.local_endpoint(), 1, depth);
        REQUIRE_FALSE(ec);
        co_await must(narrow, narrow.connect_command(1, greedy.id).dword(11, depth - 1), 0);
        std::vector<capsule> all;
        for (std::size_t i = 0; i < commands; ++i) {
            std::vector<std::byte> const block(512);
            all.push_back(capsule{0x01, 1}.blocks(i, 1).in_capsule(block, 512));
        }
        // As many as it may have are carried out. It finds no receive for the next one, and its device
        // gives up.
        co_await narrow.run_all(all);
        CHECK_FALSE(narrow.connection().is_open());
        CHECK(store->held() == depth);
        auto& other = *honest.queues[0];
        for (int i = 0; i < 20; ++i)
            co_await must(other, capsule{0x02, 1}.blocks(1U << 20, 1), 0x80);
        store->release();
        co_await wait_until(io, [&] { return s.target.statistics().commands == 0; });
        co_await end(io, s.target);
    });
}

TEST_CASE("nvme: a host that uses its whole depth always finds a receive", "[device][nvme]") {
    auto const pollers = GENERATE(std::size_t{0}, std::size_t{1});
    asio::io_context io;
    constexpr std::size_t depth = 8;
    auto const store = std::make_shared<watched_store>();
    run(io, [&]() -> asio::awaitable<void> {
        pollers_target s{io, pollers, store};
        wide_host h = co_await connect_wide(io, s.target.local_endpoint(), 0);
        host_queue narrow{io};
        error_code const ec = co_await narrow.open(s.target.local_endpoint(), 1, depth);
        REQUIRE_FALSE(ec);
        co_await must(narrow, narrow.connect_command(1, h.id).dword(11, depth - 1), 0);
        connection& c = narrow.connection();
        registered_buffer data{c.domain(), 512, access_flags::remote_read};
        registered_buffer memory{c.domain(), depth * 1024, access_flags::local_write};
        std::optional<std::uint64_t> const before = hardware_counter("send_rnr_err");
        std::vector<repeater> all;
        for (std::size_t i = 0; i < depth; ++i) {
            // Some have their data in the capsule, which is needed longer then.
            capsule what = capsule{0x01, 1}.blocks(1, 1);
            if (i % 2 == 0) what.in_capsule(data.bytes(), 512);
            else what.keyed(data.remote());
            std::ranges::copy(
                what.bytes, memory.bytes().begin() + static_cast<std::ptrdiff_t>(i * 1024)
            );
            auto const sent = memory.slice(i * 1024, what.bytes.size());
            all.push_back({c, sent, memory.slice(i * 1024 + 1000, 16), 200});
        }
        for (repeater& one : all) one.start();
        // One may be started by the completion of another's command.
        co_await wait_until(io, [&] {
            return std::ranges::all_of(all, [](repeater const& r) { return r.left <= 0; });
        });
        for (repeater const& one : all) CHECK(one.failed == 0);
        CHECK(c.is_open());
        if (before) CHECK(*hardware_counter("send_rnr_err") == *before);
        co_await end(io, s.target);
    });
}
