// Owners of memory whose peers are killed, whatever they do, and that may lock little memory.
#include <csignal>
#include <cstdlib>
#include <iostream>

#include <array>
#include <atomic>
#include <filesystem>
#include <thread>

#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/ring.hpp>
#include <rcverbs/registration_limit.hpp>

#include "device/pool_fixture.hpp"
#include "device/programs.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr std::size_t region_bytes = std::size_t{4} << 20;

/// What the peer does when it is killed. Each has a name that is its argument.
constexpr std::array deaths{
    "is connected",
    "has found a region",
    "writes to a region",
    "reads pieces that are being registered",
    "has memory",
    "allocates and frees",
    "has shared memory",
    "has memory that is kept",
    "resumes kept memory again and again",
};

/// A program of its own: the same binary with the name of a hidden test.
child_process start_peer(
    std::string const& test_case, std::uint16_t port, std::string const& step
) {
    ::setenv("RCVERBS_PEER_PORT", std::to_string(port).c_str(), 1);
    ::setenv("RCVERBS_PEER_STEP", step.c_str(), 1);
    return child_process{
        {std::filesystem::read_symlink("/proc/self/exe").string(), test_case, "--durations", "no"}};
}

endpoint owner() {
    return {
        device_address(), static_cast<std::uint16_t>(std::stoi(std::getenv("RCVERBS_PEER_PORT")))};
}

void say_ready() { std::cout << "ready.\n" << std::flush; }

/// Until the program is killed, or the owner has ended.
asio::awaitable<void> stay(region_channel& c) {
    say_ready();
    static_cast<void>(co_await c.async_next(awaiting));
}

asio::awaitable<void> use_for_ever(region_channel& c, std::string const& step) {
    registered_buffer const mine{
        c.next_layer().next_layer().domain(), region_bytes / 4, access_flags::local_write};
    remote_memory region;
    if (step.find("region") != std::string::npos || step.find("pieces") != std::string::npos)
        region = co_await c.async_find("region", asio::use_awaitable);
    if (step == "writes to a region") {
        say_ready();
        for (;;) co_await region.async_write(0, mine.slice(), asio::use_awaitable);
    }
    if (step == "reads pieces that are being registered") {
        say_ready();
        for (std::uint64_t at = 0;; at = (at + mine.size()) % region_bytes)
            co_await region.async_read(at, mine.slice(), asio::use_awaitable);
    }
    remote_allocator heap{c};
    if (step == "allocates and frees") {
        for (int i = 0;; ++i) {
            auto const a = co_await heap.async_allocate(4096U << (i % 3), asio::use_awaitable);
            auto const b = co_await heap.async_allocate(100, asio::use_awaitable);
            co_await heap.async_free(a.memory, asio::use_awaitable);
            co_await b.memory.async_write(0, mine.slice(0, 8), asio::use_awaitable);
            co_await heap.async_free(b.memory, asio::use_awaitable);
            if (i == 3) say_ready();
        }
    }
    if (step.find("memory") != std::string::npos) {
        bool const is_kept = step.find("kept") != std::string::npos;
        auto a = co_await heap.async_allocate(
            8192, allocate_options{.is_kept = is_kept}, asio::use_awaitable
        );
        co_await a.memory.async_write(0, mine.slice(0, 8192), asio::use_awaitable);
        if (step == "has shared memory")
            co_await heap.async_share(a.memory, "numbers", asio::use_awaitable);
        if (step == "resumes kept memory again and again") {
            for (int i = 0;; ++i) {
                region_channel next{co_await asio::this_coro::executor};
                co_await next.async_connect(owner(), asio::use_awaitable);
                remote_allocator again{next};
                a = co_await again.async_resume(a.token, asio::use_awaitable);
                next.close();
                if (i == 1) say_ready();
            }
        }
    }
    co_await stay(c);
}

}  // namespace

TEST_CASE("peer of an owner that watches it die", "[.peer]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_channel c{io};
        co_await c.async_connect(owner(), asio::use_awaitable);
        co_await use_for_ever(c, std::getenv("RCVERBS_PEER_STEP"));
    });
}

TEST_CASE("an owner gets its memory back from a peer that is killed at any step", "[device]") {
    std::string const step = GENERATE(from_range(deaths));
    CAPTURE(step);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        std::vector<std::byte> region(region_bytes);
        pages const memory{pool_ends::size};
        acceptor door{io, {device_address(), 0}};
        region_offers mine{io, {.piece_bytes = 65536, .withdraw_timeout = 60s}};
        mine.offer("region", std::span{region}, all_rights);
        remote_pool pool{mine, memory.bytes(), {.keep_time = 500ms, .kept_bytes_max = 65536}};
        std::vector<std::shared_ptr<region_channel>> peers;
        bool is_over = false;
        auto const serve = [&]() -> asio::awaitable<void> {
            while (!is_over) {
                auto [ec, asked] = co_await door.async_get_request(awaiting);
                if (ec) break;
                peers.push_back(std::make_shared<region_channel>(
                    io, std::move(asked), region_channel_options{.offers = mine}
                ));
                auto const peer = peers.back();
                // A killed peer may be gone already.
                asio::co_spawn(
                    io,
                    [peer]() -> asio::awaitable<void> {
                        static_cast<void>(co_await peer->async_accept(awaiting));
                        static_cast<void>(co_await peer->async_next(awaiting));
                    },
                    [](std::exception_ptr) {}
                );
            }
        };
        asio::co_spawn(io, serve(), [](std::exception_ptr) {});
        child_process peer =
            start_peer("peer of an owner that watches it die", door.local_endpoint().port(), step);
        // The io_context runs on a thread of its own while this one waits for the program.
        std::atomic<bool> is_ready{false};
        std::thread waits{[&] {
            is_ready = peer.wait_for_output("ready.\n");
            peer.signal(SIGKILL);
            peer.wait();
        }};
        co_await until(io, [&] { return is_ready.load(); });
        co_await until(io, [&] {
            return std::ranges::none_of(peers, [](auto const& p) { return p->is_open(); });
        });
        waits.join();
        CHECK_FALSE(peers.empty());
        for (auto const& p : peers) {
            co_await until(io, [&] {
                return p->statistics().granted == 0 && p->statistics().registrations == 0;
            });
        }
        // Kept memory lives as long as was said.
        co_await until(io, [&] { return pool.statistics().allocations == 0; });
        CHECK(pool.statistics().free_bytes == pool_ends::size);
        CHECK(pool.statistics().largest_free_bytes == pool_ends::size);
        CHECK(is_zero(memory.bytes()));
        co_await mine.async_withdraw("region", asio::use_awaitable);
        co_await pool.async_close(asio::use_awaitable);
        is_over = true;
        door.close();
    });
}

TEST_CASE(
    "a writer that is killed ends its ring, and nothing that was not written is read", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        child_process peer =
            start_peer("writer that is killed", door.local_endpoint().port(), "writes");
        ring_reader ring{io, co_await door.async_get_request(asio::use_awaitable)};
        co_await ring.async_accept(asio::use_awaitable);
        std::uint64_t records = 0;
        error_code end;
        while (!end) {
            auto [ec, record] = co_await ring.async_read(awaiting);
            end = ec;
            if (ec) break;
            std::vector<std::byte> expected(1 + records % 5000);
            fill(expected, static_cast<std::uint32_t>(records));
            bool const same = test::same(record.bytes(), expected);
            if (!same) FAIL_CHECK("record " << records);
            if (++records == 300) peer.signal(SIGKILL);
        }
        CHECK(records >= 300);
        CHECK(end != asio::error::eof);
        CHECK(peer.wait() == 128 + SIGKILL);
    });
}

TEST_CASE("writer that is killed", "[.peer]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        ring_writer ring{io};
        co_await ring.async_connect(owner(), asio::use_awaitable);
        for (std::uint64_t i = 0;; ++i) {
            std::vector<std::byte> record(1 + i % 5000);
            fill(record, static_cast<std::uint32_t>(i));
            co_await ring.async_write(record, asio::use_awaitable);
        }
    });
}

TEST_CASE("owner that may lock two megabytes", "[.peer]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        constexpr std::size_t chunk = 65536;
        region_ends e{io, {.piece_bytes = chunk}};
        std::vector<std::byte> whole(chunk * 64);
        fill(whole, 3);
        e.offers.offer("large", std::span{whole}, all_rights);
        co_await meet_regions(io, e);
        registered_buffer const mine = e.local(chunk);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        auto const [prepare_error] = co_await large.async_prepare(0, large.size(), awaiting);
        CHECK(prepare_error == boost::system::errc::not_enough_memory);
        constexpr std::uint64_t lockable = 2048 * 1024;
        for (auto const& why : {e.client.peer_refusal(), e.server.own_refusal()}) {
            REQUIRE(why);
            INFO(why->message());
            CHECK(why->limit.what == registration_limit::kind::locked_bytes);
            CHECK(why->limit.allowed == lockable);
            CHECK(why->limit.needed > lockable);
            CHECK(why->limit.needed <= lockable + chunk + 4096);
            CHECK(why->message().find("may lock 2048 KiB (RLIMIT_MEMLOCK)") != std::string::npos);
        }
        CHECK(large.ready_bytes() >= 16 * chunk);
        auto const bytes = co_await large.async_read(100, mine.slice(), asio::use_awaitable);
        CHECK(bytes == chunk);
        CHECK(std::equal(mine.bytes().begin(), mine.bytes().end(), whole.begin() + 100));
        std::string text;
        try {
            memory_region const region{
                e.client.next_layer().next_layer().domain(),
                std::span{whole},
                access_flags::local_write};
        } catch (boost::system::system_error const& failed) {
            text = failed.what();
        }
        INFO(text);
        CHECK(text.find("may lock 2048 KiB (RLIMIT_MEMLOCK)") != std::string::npos);
        co_await e.offers.async_withdraw("large", asio::use_awaitable);
        co_await part_regions(e);
    });
}

TEST_CASE(
    "what cannot be locked names the limit with both numbers, and the rest is usable", "[device]"
) {
    // Without CAP_IPC_LOCK from the beginning: the kernel refuses a device that was opened with
    // other capabilities. Source: ib_safe_file_access() in include/rdma/ib.h.
    child_process owner{
        {"bash",
         "-c",
         "ulimit -l 2048 && exec setpriv --bounding-set=-ipc_lock \"$0\" \"$@\"",
         std::filesystem::read_symlink("/proc/self/exe").string(),
         "owner that may lock two megabytes"}};
    CHECK(owner.wait() == 0);
}
