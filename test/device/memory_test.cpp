// Pools of registered memory. Slots are lent one at a time, in order, to coroutines, handlers and
// threads. A memory pool allocates for std::pmr, within its bound.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "device/fixture.hpp"
#include "examples/registration_cache.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

namespace {

protection_domain domain_of(asio::io_context& io) { return open_domain(io, {device_address(), 0}); }

}  // namespace

TEST_CASE("slots of a pool are apart, aligned, and lent one at a time", "[device]") {
    asio::io_context io;
    slot_pool slots{io, domain_of(io), {.slots = 5, .slot_bytes = 100, .alignment_bytes = 256}};
    CHECK(slots.region().size() == 5 * 256);
    std::vector<slot_lease> leases;
    std::vector<std::uint32_t> numbers;
    for (int i = 0; i < 5; ++i) {
        leases.push_back(slots.try_acquire());
        REQUIRE(leases.back().is_valid());
        slot_lease const& l = leases.back();
        CHECK(l.size() == 100);
        CHECK(reinterpret_cast<std::uintptr_t>(l.bytes().data()) % 256 == 0);
        CHECK(l.bytes().data() == slots.region().bytes().data() + l.index() * 256);
        CHECK(l.remote().address() == reinterpret_cast<std::uintptr_t>(l.bytes().data()));
        CHECK(l.remote().size() == 100);
        CHECK_THROWS_AS(l.slice(60, 41), boost::system::system_error);
        CHECK(l.slice(60, 40).size() == 40);
        numbers.push_back(l.index());
    }
    std::sort(numbers.begin(), numbers.end());
    CHECK(numbers == std::vector<std::uint32_t>{0, 1, 2, 3, 4});
    CHECK(slots.free_count() == 0);
    CHECK_FALSE(slots.try_acquire().is_valid());

    std::uint32_t const third = leases[2].index();
    leases[2].release();
    CHECK_FALSE(leases[2].is_valid());
    CHECK(slots.free_count() == 1);
    leases[2].release();
    CHECK(slots.free_count() == 1);
    slot_lease again = slots.try_acquire();
    CHECK(again.index() == third);
    // An assigned lease returns its own slot.
    again = std::move(leases[0]);
    CHECK(slots.free_count() == 1);
    leases.clear();
    CHECK(slots.free_count() == 4);
}

TEST_CASE("waits for a slot are served in the order of the calls", "[device]") {
    asio::io_context io;
    slot_pool slots{io, domain_of(io), {.slots = 1}};
    slot_lease held = slots.try_acquire();
    std::vector<int> order;
    for (int i = 0; i < 3; ++i) {
        slots.async_acquire([&order, i](error_code ec, slot_lease lease) {
            CHECK_FALSE(ec);
            CHECK(lease.is_valid());
            order.push_back(i);
        });
    }
    // A free slot goes to those who wait, not to who tries just then.
    io.poll();
    CHECK(order.empty());
    held.release();
    CHECK_FALSE(slots.try_acquire().is_valid());
    io.run();
    CHECK(order == std::vector<int>{0, 1, 2});
    CHECK(slots.free_count() == 1);
}

TEST_CASE(
    "a handler that waits for a slot never runs inside the call that returns one", "[device]"
) {
    asio::io_context io;
    slot_pool slots{io, domain_of(io), {.slots = 1}};
    bool has_run = false;
    asio::post(io, [&] {
        slots.async_acquire([&](error_code, slot_lease) { has_run = true; });
        CHECK_FALSE(has_run);
        slots.cancel();
        CHECK_FALSE(has_run);
    });
    io.run();
    CHECK(has_run);
}

TEST_CASE("waiting for a slot can be cancelled, one wait or all of them", "[device]") {
    asio::io_context io;
    slot_pool slots{io, domain_of(io), {.slots = 1}};
    slot_lease held = slots.try_acquire();
    asio::cancellation_signal signal;
    std::vector<error_code> first;
    std::vector<error_code> others;
    slots.async_acquire(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec, slot_lease) {
        first.push_back(ec);
    }));
    for (int i = 0; i < 2; ++i)
        slots.async_acquire([&](error_code ec, slot_lease) { others.push_back(ec); });
    signal.emit(asio::cancellation_type::total);
    io.poll();
    CHECK(first == std::vector<error_code>{asio::error::operation_aborted});
    CHECK(others.empty());
    SECTION("cancelled") { slots.cancel(); }
    SECTION("closed") {
        slots.close();
        CHECK_THROWS_AS(slots.acquire(), boost::system::system_error);
    }
    SECTION("destroyed") { slot_pool const gone = std::move(slots); }
    io.restart();
    io.poll();
    CHECK(others == std::vector<error_code>(2, asio::error::operation_aborted));
    // The memory lives as long as its last lease.
    std::memset(held.bytes().data(), 1, held.size());
}

TEST_CASE("a thread that waits for a slot blocks until one is returned", "[device]") {
    asio::io_context io;
    slot_pool slots{io, domain_of(io), {.slots = 1}};
    slot_lease held = slots.try_acquire();
    std::atomic<bool> has_one{false};
    std::thread waiting{[&] {
        slot_lease const mine = slots.acquire();
        has_one = true;
    }};
    // Not before it waits: it takes its turn then, before this later wait.
    bool is_next = false;
    while (slots.waiting_count() == 0) std::this_thread::yield();
    slots.async_acquire([&](error_code ec, slot_lease) { is_next = !ec && has_one; });
    CHECK_FALSE(has_one);
    held.release();
    waiting.join();
    CHECK(has_one);
    io.run();
    CHECK(is_next);
}

TEST_CASE(
    "an io_context that is destroyed takes waits for slots along, and wakes threads", "[device]"
) {
    auto io = std::make_unique<asio::io_context>();
    auto const witness = std::make_shared<int>(0);
    asio::io_context other;
    std::optional<slot_pool> slots{
        std::in_place, *io, domain_of(other), slot_pool_options{.slots = 1}};
    slot_lease held = slots->try_acquire();
    slots->async_acquire([witness](error_code, slot_lease) {});
    bool is_refused = false;
    std::thread waiting{[&] {
        try {
            slots->acquire();
        } catch (boost::system::system_error const& e) {
            is_refused = e.code() == asio::error::operation_aborted;
        }
    }};
    while (slots->waiting_count() < 2) std::this_thread::yield();
    CHECK(witness.use_count() == 2);
    io.reset();
    CHECK(witness.use_count() == 1);
    waiting.join();
    CHECK(is_refused);
    held.release();
    slots.reset();
}

TEST_CASE("slots are lent to many threads, and never to two at a time", "[device]") {
    asio::io_context io;
    constexpr std::uint32_t count = 3;
    slot_pool slots{io, domain_of(io), {.slots = count, .slot_bytes = 64}};
    std::atomic<int> owners[count] = {};
    std::atomic<int> mistakes{0};
    constexpr int rounds = 500;
    auto const use = [&](slot_lease const& lease) {
        if (owners[lease.index()].fetch_add(1) != 0) ++mistakes;
        lease.bytes()[0] = std::byte{1};
        owners[lease.index()].fetch_sub(1);
    };
    int by_handler = 0;
    std::function<void()> next = [&] {
        slots.async_acquire([&](error_code ec, slot_lease lease) {
            if (ec) return;
            use(lease);
            lease.release();
            if (++by_handler < rounds) next();
        });
    };
    next();
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&, blocks = i != 0] {
            for (int done = 0; done < rounds;) {
                slot_lease const lease = blocks ? slots.acquire() : slots.try_acquire();
                if (!lease.is_valid()) {
                    std::this_thread::yield();
                    continue;
                }
                use(lease);
                ++done;
            }
        });
    }
    io.run();
    for (std::thread& t : threads) t.join();
    CHECK(mistakes == 0);
    CHECK(by_handler == rounds);
    CHECK(slots.free_count() == count);
}

TEST_CASE("slots receive messages and are written by peers", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        slot_pool slots{
            io,
            p.server.domain(),
            {.slots = 2, .slot_bytes = 64, .rights = access_flags::remote_write}};
        slot_lease inbox = co_await slots.async_acquire(asio::use_awaitable);
        slot_lease block = co_await slots.async_acquire(asio::use_awaitable);
        registered_buffer ours{p.client.domain(), 64, access_flags::local_write};
        test::fill(ours.bytes(), 7);
        auto [received, sent] = co_await (
            p.server.async_receive(inbox.slice(), awaiting) &&
            p.client.async_send(ours.slice(), awaiting)
        );
        CHECK_FALSE(std::get<0>(received));
        CHECK_FALSE(std::get<0>(sent));
        CHECK(test::same(inbox.bytes(), ours.bytes()));
        co_await p.client.async_write(ours.slice(), block.remote(), asio::use_awaitable);
        CHECK(test::same(block.bytes(), ours.bytes()));
        // Not the neighbour's slot.
        remote_region beyond = block.remote();
        CHECK_THROWS_AS(beyond.slice(0, 65), boost::system::system_error);
        co_await disconnect(p);
    });
}

TEST_CASE("a slot pool refuses options that are out of range", "[device]") {
    asio::io_context io;
    protection_domain const domain = domain_of(io);
    slot_pool_options wrong;
    SECTION("none") { wrong.slots = 0; }
    SECTION("empty") { wrong.slot_bytes = 0; }
    SECTION("crooked") { wrong.alignment_bytes = 48; }
    SECTION("wide") { wrong.alignment_bytes = 8192; }
    try {
        slot_pool const slots{io, domain, wrong};
        FAIL("made");
    } catch (boost::system::system_error const& e) {
        CHECK(e.code() == errc::invalid_option);
    }
}

TEST_CASE("a container of std::pmr holds memory that can be sent and written", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        memory_pool ours{p.client.domain()};
        memory_pool theirs{p.server.domain(), {.rights = access_flags::remote_write}};
        {
            std::pmr::vector<std::byte> message{5000, &ours};
            test::fill(message, 3);
            std::pmr::vector<std::byte> place{5000, &theirs};
            std::size_t const n = co_await p.client.async_write(
                ours.slice_of(message.data(), message.size()),
                theirs.remote_of(place.data(), place.size()),
                asio::use_awaitable
            );
            CHECK(n == 5000);
            CHECK(test::same(place, message));
            CHECK(ours.statistics().used_bytes == 5000);
        }
        CHECK(ours.statistics().used_bytes == 0);
        CHECK(ours.statistics().used_bytes_max == 5000);
        co_await disconnect(p);
    });
}

TEST_CASE("a pool gives slices of its own memory only, for each of its domains", "[device]") {
    asio::io_context io;
    protection_domain const first = domain_of(io);
    asio::io_context other_io;
    protection_domain const second = domain_of(other_io);
    protection_domain const both_domains[] = {first, second};
    memory_pool pool{both_domains};
    void* const memory = pool.allocate(100, 64);
    mutable_slice const a = pool.slice_of(memory, 100);
    CHECK(a.data() == memory);
    CHECK(a.size() == 100);
    CHECK(pool.slice_of(memory, 100, first).key().value == a.key().value);
    mutable_slice const b = pool.slice_of(memory, 100, second);
    CHECK(b.data() == memory);
    std::byte foreign{};
    CHECK_THROWS_AS(pool.slice_of(&foreign, 1), boost::system::system_error);
    CHECK_THROWS_AS(pool.slice_of(memory, std::size_t{1} << 40), boost::system::system_error);
    CHECK_THROWS_AS(pool.slice_of(memory, 8, protection_domain{}), boost::system::system_error);
    pool.deallocate(memory, 100, 64);
}

TEST_CASE(
    "a pool never registers more than its bound, and reports when it is reached", "[device]"
) {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{64} << 10;
    memory_pool pool{domain_of(io), {.bytes_max = 3 * chunk, .chunk_bytes = chunk}};
    CHECK(pool.statistics().registered_bytes == 0);
    std::vector<void*> blocks;
    try {
        for (;;) blocks.push_back(pool.allocate(40000, 64));
    } catch (memory_pool_exhausted const& e) {
        CHECK(e.code() == errc::pool_exhausted);
        CHECK(std::string{e.what()}.find("bytes_max") != std::string::npos);
    }
    CHECK(blocks.size() == 3);
    auto const full = pool.statistics();
    CHECK(full.registered_bytes == 3 * chunk);
    CHECK(full.chunks == 3);
    CHECK(full.used_bytes == 3 * 40000);
    CHECK_THROWS_AS(pool.allocate(4 * chunk, 64), std::bad_alloc);
    // What caches hold serves larger requests, too.
    std::vector<void*> small;
    for (int i = 0; i < 3 * 20; ++i) small.push_back(pool.allocate(1024, 64));
    for (void* const b : small) pool.deallocate(b, 1024, 64);
    CHECK(pool.statistics().cached_bytes > 0);
    pool.deallocate(blocks.back(), 40000, 64);
    blocks.pop_back();
    blocks.push_back(pool.allocate(chunk, 64));
    for (std::size_t i = 0; i < blocks.size(); ++i)
        pool.deallocate(blocks[i], i + 1 < blocks.size() ? 40000 : chunk, 64);
    CHECK(pool.release_unused() == 3 * chunk);
    CHECK(pool.statistics().registered_bytes == 0);
}

TEST_CASE("a chunk that cannot be registered is reported with its error", "[device]") {
    asio::io_context io;
    // Peers may not be given rights to memory of a domain that is not open.
    CHECK_THROWS_AS(
        (memory_pool{protection_domain{}, {.reserve_bytes = std::size_t{1} << 20}}),
        boost::system::system_error
    );
    memory_pool pool{protection_domain{}};
    try {
        static_cast<void>(pool.allocate(1, 1));
        FAIL("allocated");
    } catch (memory_pool_exhausted const& e) {
        CHECK(e.code() == errc::not_connected);
    }
}

TEST_CASE("waits for memory are served in order, and can be cancelled", "[device]") {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{64} << 10;
    memory_pool pool{domain_of(io), {.bytes_max = chunk, .chunk_bytes = chunk}};
    void* const all = pool.allocate(chunk, 64);
    std::vector<int> order;
    std::vector<std::pair<void*, std::size_t>> got;
    auto const wait = [&](int number, std::size_t size) {
        pool.async_allocate(
            size,
            64,
            asio::bind_executor(
                io,
                [&, number, size](error_code ec, void* block) {
                    CHECK_FALSE(ec);
                    order.push_back(number);
                    got.emplace_back(block, size);
                }
            )
        );
    };
    wait(1, 40000);
    wait(2, 100);
    asio::cancellation_signal signal;
    error_code cancelled;
    pool.async_allocate(
        64,
        64,
        asio::bind_cancellation_slot(
            signal.slot(), asio::bind_executor(io, [&](error_code ec, void*) { cancelled = ec; })
        )
    );
    error_code too_large;
    pool.async_allocate(2 * chunk, 64, asio::bind_executor(io, [&](error_code ec, void*) {
                            too_large = ec;
                        }));
    io.poll();
    CHECK(too_large == errc::pool_exhausted);
    CHECK(pool.statistics().waiting == 3);
    signal.emit(asio::cancellation_type::total);
    io.poll();
    CHECK(cancelled == asio::error::operation_aborted);
    CHECK(order.empty());
    pool.deallocate(all, chunk, 64);
    CHECK(order.empty());  // never inside the call that frees
    io.run();
    CHECK(order == std::vector<int>{1, 2});
    for (auto const& [block, size] : got) pool.deallocate(block, size, 64);
    CHECK(pool.statistics().used_bytes == 0);
}

TEST_CASE("a handler that got memory or a slot may destroy the pool", "[device]") {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{64} << 10;
    auto pool = std::make_unique<memory_pool>(
        domain_of(io), memory_pool_options{.bytes_max = chunk, .chunk_bytes = chunk}
    );
    void* const all = pool->allocate(chunk, 64);
    std::vector<error_code> ends;
    pool->async_allocate(64, 64, asio::bind_executor(io, [&](error_code ec, void* block) {
                             ends.push_back(ec);
                             pool->deallocate(block, 64, 64);
                             pool.reset();
                         }));
    pool->deallocate(all, chunk, 64);
    io.poll();
    CHECK(pool == nullptr);
    CHECK(ends == std::vector<error_code>{error_code{}});

    auto slots = std::make_unique<slot_pool>(io, domain_of(io), slot_pool_options{.slots = 1});
    slot_lease held = slots->try_acquire();
    ends.clear();
    slots->async_acquire([&](error_code ec, slot_lease lease) {
        ends.push_back(ec);
        slots.reset();
        CHECK(lease.is_valid());
    });
    slots->async_acquire([&](error_code ec, slot_lease) { ends.push_back(ec); });
    held.release();
    io.restart();
    io.poll();
    REQUIRE(ends.size() == 2);
    CHECK_FALSE(ends[0]);
    CHECK(ends[1] == asio::error::operation_aborted);
}

TEST_CASE("what a pool can never serve is refused, and holds up no other", "[device]") {
    asio::io_context io;
    // Not a whole number of pages: the last bytes are never registered.
    memory_pool pool{domain_of(io), {.bytes_max = 100000, .chunk_bytes = 65536}};
    std::optional<error_code> refused;
    void* block = nullptr;
    pool.async_allocate(99000, 64, asio::bind_executor(io, [&](error_code ec, void*) {
                            refused = ec;
                        }));
    pool.async_allocate(64, 64, asio::bind_executor(io, [&](error_code, void* b) { block = b; }));
    io.run();
    CHECK(refused == errc::pool_exhausted);
    REQUIRE(block != nullptr);
    pool.deallocate(block, 64, 64);
}

TEST_CASE("memory that waits for a context that is destroyed goes back to the pool", "[device]") {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{64} << 10;
    memory_pool pool{domain_of(io), {.bytes_max = chunk, .chunk_bytes = chunk}};
    auto other = std::make_unique<asio::io_context>();
    auto const witness = std::make_shared<int>(0);
    void* const all = pool.allocate(chunk, 64);
    for (int i = 0; i < 2; ++i) {
        pool.async_allocate(30000, 64, asio::bind_executor(*other, [witness](error_code, void*) {
                            }));
    }
    SECTION("before there was memory") {
        other.reset();
        pool.deallocate(all, chunk, 64);
    }
    SECTION("after it was given") {
        pool.deallocate(all, chunk, 64);
        other.reset();
    }
    CHECK(witness.use_count() == 1);
    CHECK(pool.statistics().used_bytes == 0);
    CHECK(pool.release_unused() == chunk);
}

TEST_CASE(
    "a pool reserves in parallel, zeroes if told to, and shows what pages it got", "[device]"
) {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{256} << 10;
    memory_pool pool{
        domain_of(io),
        {.bytes_max = 16 * chunk,
         .chunk_bytes = chunk,
         .reserve_bytes = 6 * chunk - 1000,
         .registration_threads_max = 3,
         .numa_node = 0,
         .is_zeroed = true}};
    CHECK(pool.statistics().registered_bytes >= 6 * chunk - 1000);
    CHECK(pool.statistics().registered_bytes <= 6 * chunk);
    CHECK(pool.statistics().huge_bytes == 0);
    auto* const block = static_cast<std::byte*>(pool.allocate(2000, 64));
    std::memset(block, 1, 2000);
    pool.deallocate(block, 2000, 64);
    auto* const again = static_cast<std::byte*>(pool.allocate(2000, 64));
    CHECK(again == block);
    CHECK(std::all_of(again, again + 2000, [](std::byte b) { return b == std::byte{0}; }));
    pool.deallocate(again, 2000, 64);
    pool.reserve(8 * chunk);
    CHECK(pool.statistics().registered_bytes >= 8 * chunk);
    // Where there are none, standard pages do.
    memory_pool huge{
        domain_of(io),
        {.bytes_max = std::size_t{4} << 20,
         .chunk_bytes = std::size_t{2} << 20,
         .pages = page_size::huge_2m}};
    void* const large = huge.allocate(100000, 64);
    auto const s = huge.statistics();
    CHECK(s.registered_bytes == std::size_t{2} << 20);
    CHECK((s.huge_bytes == 0 || s.huge_bytes == s.registered_bytes));
    huge.deallocate(large, 100000, 64);
}

TEST_CASE("many threads allocate and free, and no block has two owners", "[device]") {
    asio::io_context io;
    memory_pool pool{
        domain_of(io), {.bytes_max = std::size_t{8} << 20, .chunk_bytes = std::size_t{1} << 20}};
    std::atomic<int> mistakes{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::minstd_rand random{t + 1};
            std::vector<std::pair<unsigned char*, std::size_t>> mine;
            auto const mark = static_cast<unsigned char>(t + 1);
            for (int step = 0; step < 3000; ++step) {
                if (mine.size() > 30 || (!mine.empty() && random() % 2 == 0)) {
                    auto const [block, size] = mine[random() % mine.size()];
                    if (block[0] != mark || block[size - 1] != mark) ++mistakes;
                    std::erase_if(mine, [&, b = block](auto const& m) { return m.first == b; });
                    pool.deallocate(block, size, 64);
                } else {
                    std::size_t const size = 1 + random() % (random() % 8 == 0 ? 50000 : 3000);
                    auto* const block = static_cast<unsigned char*>(pool.allocate(size, 64));
                    block[0] = block[size - 1] = mark;
                    if (pool.slice_of(block, size).size() != size) ++mistakes;
                    mine.emplace_back(block, size);
                }
            }
            for (auto const& [block, size] : mine) pool.deallocate(block, size, 64);
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(mistakes == 0);
    auto const s = pool.statistics();
    CHECK(s.used_bytes == 0);
    CHECK(s.free_bytes + s.cached_bytes == s.registered_bytes);
    CHECK(pool.release_unused() == s.registered_bytes);
}

TEST_CASE("a memory pool refuses options that are out of range", "[device]") {
    asio::io_context io;
    protection_domain const domain = domain_of(io);
    memory_pool_options wrong;
    SECTION("small chunks") { wrong.chunk_bytes = 1000; }
    SECTION("no room for a chunk") { wrong.bytes_max = std::size_t{1} << 20; }
    SECTION("a larger reserve") { wrong.reserve_bytes = wrong.bytes_max + 1; }
    SECTION("no thread") { wrong.registration_threads_max = 0; }
    try {
        memory_pool const pool{domain, wrong};
        FAIL("made");
    } catch (boost::system::system_error const& e) {
        CHECK(e.code() == errc::invalid_option);
    }
    CHECK_THROWS_AS(
        (memory_pool{std::span<protection_domain const>{}, {}}), boost::system::system_error
    );
}

namespace {

/// Pages of the test's own, so that rounding to pages concerns nobody else.
struct pages {
    explicit pages(std::size_t count) : all{domainless(count)} {}
    std::span<std::byte> operator()(std::size_t first, std::size_t count) {
        return std::span{all.get() + first * 4096, count * 4096};
    }

private:
    struct unaligned {
        void operator()(std::byte* p) const noexcept { std::free(p); }
    };
    static std::unique_ptr<std::byte, unaligned> domainless(std::size_t count) {
        return std::unique_ptr<std::byte, unaligned>{
            static_cast<std::byte*>(std::aligned_alloc(4096, count * 4096))};
    }
    std::unique_ptr<std::byte, unaligned> all;
};

}  // namespace

TEST_CASE("a range is registered once, and found again until it is forgotten", "[device]") {
    asio::io_context io;
    pages memory{8};
    example::registration_cache cache{domain_of(io)};
    local_key first;
    {
        example::region_lease const lease = cache.get(memory(1, 2));
        CHECK(lease.slice().data() == memory(1, 2).data());
        CHECK(lease.slice().size() == 2 * 4096);
        CHECK(lease.remote().size() == 2 * 4096);
        first = lease.slice().key();
    }
    CHECK(cache.get(memory(1, 2)).slice().key().value == first.value);
    // A part of it, of any size.
    CHECK(cache.get(memory(2, 1).subspan(100, 7)).slice().key().value == first.value);
    auto s = cache.statistics();
    CHECK(s.hits == 2);
    CHECK(s.misses == 1);
    CHECK(s.regions == 1);
    CHECK(s.bytes == 2 * 4096);
    // What overlaps becomes one registration.
    CHECK(cache.get(memory(2, 3)).slice().size() == 3 * 4096);
    CHECK(cache.statistics().regions == 1);
    CHECK(cache.statistics().bytes == 4 * 4096);
    CHECK(cache.get(memory(1, 4)).is_valid());
    CHECK(cache.statistics().misses == 2);
    cache.forget(memory(3, 1).subspan(1, 1));
    CHECK(cache.statistics().regions == 0);
    CHECK(cache.statistics().bytes == 0);
    CHECK(cache.get(memory(1, 1)).is_valid());
    CHECK(cache.statistics().misses == 3);
    error_code ec;
    CHECK_FALSE(cache.get(std::span<std::byte>{}, ec).is_valid());
    CHECK(ec);
}

TEST_CASE(
    "the cache gives up what was not used for longest, but nothing with a lease", "[device]"
) {
    asio::io_context io;
    pages memory{16};
    bool const counts_bytes = GENERATE(true, false);
    example::registration_cache_options options;
    if (counts_bytes) options.bytes_max = 3 * 4096;
    else options.regions_max = 3;
    example::registration_cache cache{domain_of(io), options};
    for (std::size_t i : {0U, 2U, 4U}) cache.get(memory(i, 1));
    cache.get(memory(0, 1));  // used last
    CHECK(cache.statistics().hits == 1);
    cache.get(memory(6, 1));  // instead of 2
    CHECK(cache.statistics().evictions == 1);
    cache.get(memory(0, 1));
    CHECK(cache.statistics().hits == 2);
    cache.get(memory(2, 1));  // instead of 4
    CHECK(cache.statistics().hits == 2);
    CHECK(cache.statistics().evictions == 2);

    std::vector<example::region_lease> leases;
    for (std::size_t i : {0U, 2U, 6U}) leases.push_back(cache.get(memory(i, 1)));
    CHECK(cache.statistics().hits == 5);
    // No room is left: this one is registered for its lease alone.
    {
        example::region_lease const transient = cache.get(memory(8, 1));
        CHECK(transient.is_valid());
        CHECK(cache.statistics().regions == 3);
        CHECK(cache.statistics().evictions == 2);
    }
    // A forgotten registration lives as long as its lease.
    cache.forget(memory(0, 16));
    CHECK(cache.statistics().regions == 0);
    CHECK(leases[0].slice().size() == 4096);
}

TEST_CASE("a lease of the cache carries data, and may outlive the cache", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        test::pair p = co_await connect(io);
        std::vector<std::byte> message(10000);
        test::fill(message, 9);
        std::vector<std::byte> place(10000);
        example::region_lease from;
        example::region_lease to;
        {
            example::registration_cache ours{p.client.domain()};
            example::registration_cache theirs{
                p.server.domain(), {.rights = access_flags::remote_write}};
            from = ours.get(message);
            to = theirs.get(place);
        }
        co_await p.client.async_write(from.slice(), to.remote(), asio::use_awaitable);
        CHECK(place == message);
        co_await disconnect(p);
    });
}

TEST_CASE("threads share a cache", "[device]") {
    asio::io_context io;
    pages memory{64};
    example::registration_cache cache{domain_of(io), {.regions_max = 8}};
    std::atomic<int> mistakes{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            std::minstd_rand random{t + 1};
            for (int i = 0; i < 300; ++i) {
                std::size_t const first = random() % 60;
                auto const range = memory(first, 1 + random() % 4);
                example::region_lease const lease = cache.get(range);
                if (lease.slice().data() != range.data() || lease.slice().size() != range.size())
                    ++mistakes;
                if (i % 50 == 0) cache.forget(range);
            }
        });
    }
    for (std::thread& t : threads) t.join();
    CHECK(mistakes == 0);
    CHECK(cache.statistics().regions <= 8);
    CHECK(cache.statistics().hits + cache.statistics().misses == 4 * 300);
}

TEST_CASE("chunks of a pool that are free make room for a larger one", "[device]") {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{64} << 10;
    memory_pool pool{
        domain_of(io), {.bytes_max = 4 * chunk, .chunk_bytes = chunk, .reserve_bytes = 4 * chunk}};
    CHECK(pool.statistics().chunks == 4);
    void* const large = pool.allocate(3 * chunk, 64);
    CHECK(pool.statistics().registered_bytes <= 4 * chunk);
    pool.deallocate(large, 3 * chunk, 64);
}

TEST_CASE("an allocation that waits is woken when chunks are released", "[device]") {
    asio::io_context io;
    constexpr std::size_t chunk = std::size_t{64} << 10;
    memory_pool pool{domain_of(io), {.bytes_max = 2 * chunk, .chunk_bytes = chunk}};
    void* const held = pool.allocate(chunk, 64);
    void* got = nullptr;
    pool.async_allocate(2 * chunk, 64, asio::bind_executor(io, [&](error_code ec, void* memory) {
                            CHECK_FALSE(ec);
                            got = memory;
                        }));
    io.poll();
    CHECK(got == nullptr);
    pool.deallocate(held, chunk, 64);
    pool.release_unused();
    io.restart();
    io.poll();
    REQUIRE(got != nullptr);
    pool.deallocate(got, 2 * chunk, 64);
}
