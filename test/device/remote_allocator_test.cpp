// Memory that peers allocate. No receiver may ever be not ready: rnr_retry_count is 0.
#include <boost/asio/thread_pool.hpp>

#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/experimental/window.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/pool_fixture.hpp"

using namespace rcverbs;
using namespace test;

TEST_CASE("memory of the peer is allocated, used and freed, and is zero again", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        auto const a = co_await heap.async_allocate(10'000, asio::use_awaitable);
        CHECK(a.memory.size() == 10'000);
        CHECK(a.memory.rights() == all_rights);
        CHECK_FALSE(a.token.is_valid());
        CHECK(a.bytes_left == 128 * 1024 - 16384);
        CHECK(e.pool.statistics().free_bytes == pool_ends::size - 16384);
        CHECK(e.pool.statistics().allocations == 1);
        CHECK(e.server.statistics().registered_bytes == 10'000);

        registered_buffer const mine = e.local(10'000);
        co_await a.memory.async_read(0, mine.slice(), asio::use_awaitable);
        CHECK(is_zero(mine.bytes()));
        auto const bytes = pattern(10'000, 1);
        std::ranges::copy(bytes, mine.bytes().begin());
        co_await a.memory.async_write(0, mine.slice(), asio::use_awaitable);
        auto const before = co_await a.memory.async_fetch_add(0, 1, asio::use_awaitable);
        CHECK(std::memcmp(&before, bytes.data(), sizeof before) == 0);
        auto const [beyond, none] = co_await a.memory.async_write(1, mine.slice(), awaiting);
        CHECK(beyond == errc::out_of_range);

        co_await heap.async_free(a.memory, asio::use_awaitable);
        co_await until_whole(io, e);
        CHECK(e.server.statistics().registrations == 0);
        CHECK(a.memory.is_withdrawn());
        auto const [gone, zero] = co_await a.memory.async_read(0, mine.slice(), awaiting);
        CHECK(gone == channel_errc::region_withdrawn);
        // Twice is once too often.
        auto const [twice] = co_await heap.async_free(a.memory, awaiting);
        CHECK(twice == channel_errc::no_such_allocation);
        auto const [nothing] = co_await heap.async_free(remote_memory{}, awaiting);
        CHECK(nothing == channel_errc::no_such_allocation);

        auto const again = co_await heap.async_allocate(10'000, asio::use_awaitable);
        co_await again.memory.async_read(0, mine.slice(), asio::use_awaitable);
        CHECK(is_zero(mine.bytes()));
        // The end of the connection frees it.
        co_await part_regions(e);
        co_await until_whole(io, e);
        auto const [ended, nil] = co_await heap.async_allocate(1, awaiting);
        CHECK(ended);
    });
}

TEST_CASE("a pool may give its peers nothing", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.peer_bytes_max = 0}};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        auto const [none, left] = co_await heap.async_allocate(1, awaiting);
        CHECK(none == channel_errc::quota_exceeded);
        CHECK(left.bytes_left == 0);
        co_await part_regions(e);
    });
}

TEST_CASE("an allocation that is refused says what is left", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.peer_bytes_max = 192 * 1024, .peer_allocations_max = 3}};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        auto const [much, left] = co_await heap.async_allocate(192 * 1024, awaiting);
        CHECK(much == channel_errc::quota_exceeded);  // it would be a block of 256 KiB
        CHECK(left.bytes_left == 192 * 1024);
        CHECK(left.largest_free_bytes == pool_ends::size);
        auto const [huge, still] = co_await heap.async_allocate(UINT64_MAX, awaiting);
        CHECK(huge == channel_errc::quota_exceeded);

        region_channel other;
        region_channel served;
        co_await join_regions(io, e, other, served);
        remote_allocator const theirs{other};
        auto const half = co_await heap.async_allocate(128 * 1024, asio::use_awaitable);
        CHECK(half.bytes_left == 64 * 1024);
        auto const quarter = co_await theirs.async_allocate(64 * 1024, asio::use_awaitable);
        auto const [full, what] = co_await theirs.async_allocate(128 * 1024, awaiting);
        CHECK(full == channel_errc::pool_exhausted);
        CHECK(what.bytes_left == 128 * 1024);
        CHECK(what.largest_free_bytes == 64 * 1024);
        CHECK_FALSE(what.memory.is_valid());
        // The number of allocations is limited, too.
        auto const one = co_await theirs.async_allocate(1, asio::use_awaitable);
        auto const two = co_await theirs.async_allocate(1, asio::use_awaitable);
        auto const [many, no] = co_await theirs.async_allocate(1, awaiting);
        CHECK(many == channel_errc::quota_exceeded);
        co_await theirs.async_free(two.memory, asio::use_awaitable);
        auto const three = co_await theirs.async_allocate(1, asio::use_awaitable);
        CHECK(three.memory.size() == 1);

        for (auto const& [bytes, alignment] : {std::pair{0, 8}, {1, 0}, {1, 3}}) {
            auto const [invalid, nil] = co_await heap.async_allocate(
                static_cast<std::uint64_t>(bytes),
                {.alignment = static_cast<std::uint64_t>(alignment)},
                awaiting
            );
            CHECK(invalid == errc::invalid_option);
        }
        auto const [unaligned, nil] =
            co_await heap.async_allocate(1, {.alignment = std::uint64_t{1} << 60}, awaiting);
        CHECK(unaligned == error_code{EINVAL, boost::system::system_category()});
        // The client has no pool, and what it finds it must not free.
        auto const [none, nowhere] =
            co_await remote_allocator{e.server}.async_allocate(1, awaiting);
        CHECK(none == channel_errc::no_pool);
        std::vector<std::byte> table(64);
        e.offers.offer("table", std::span{table}, access_flags::remote_read);
        auto const found = co_await e.client.async_find("table", asio::use_awaitable);
        auto const [not_mine] = co_await heap.async_free(found, awaiting);
        CHECK(not_mine == channel_errc::no_such_allocation);
        CHECK_FALSE(found.is_withdrawn());
        auto const [on_another] = co_await theirs.async_free(half.memory, awaiting);
        CHECK(on_another == channel_errc::no_such_allocation);
        co_await part_regions(e);
        other.close();
        co_await until_whole(io, e);
    });
}

TEST_CASE("an alignment is that of the address", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        auto const small = co_await heap.async_allocate(1, asio::use_awaitable);
        auto const a = co_await heap.async_allocate(8, {.alignment = 65536}, asio::use_awaitable);
        CHECK(a.bytes_left == 128 * 1024 - 4096 - 65536);
        co_await a.memory.async_fetch_add(0, 1, asio::use_awaitable);
        co_await heap.async_free(small.memory, asio::use_awaitable);
        // The memory is looked at only after a message that follows the operation.
        int places = 0;
        for (std::size_t i = 0; i < pool_ends::size; i += 4096)
            places += is_zero(e.memory.bytes().subspan(i, 4096)) ? 0 : 1;
        CHECK(places == 1);
        for (std::size_t i = 0; i < pool_ends::size; i += 65536)
            places -= is_zero(e.memory.bytes().subspan(i, 8)) ? 0 : 1;
        CHECK(places == 0);
        co_await part_regions(e);
    });
}

TEST_CASE(
    "shared memory is found by others, and freeing it takes it from all", "[device][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io};
        co_await meet_regions(io, e);
        region_channel other;
        region_channel served;
        co_await join_regions(io, e, other, served);
        remote_allocator const heap{e.client};
        auto const a = co_await heap.async_allocate(4096, asio::use_awaitable);
        auto const [not_yet, nil] = co_await other.async_find("shared/cell", awaiting);
        CHECK(not_yet == channel_errc::no_such_region);
        auto const share = [&]() -> asio::awaitable<void> {
            co_await heap.async_share(a.memory, "cell", asio::use_awaitable);
        };
        // One waits for it.
        remote_memory const theirs =
            co_await (other.async_find("shared/cell", 60s, asio::use_awaitable) && share());
        auto const [twice] = co_await heap.async_share(a.memory, "cells", awaiting);
        CHECK(twice == boost::system::errc::file_exists);
        auto const b = co_await heap.async_allocate(4096, asio::use_awaitable);
        auto const [taken] = co_await heap.async_share(b.memory, "cell", awaiting);
        CHECK(taken == boost::system::errc::file_exists);
        auto const [nameless] = co_await heap.async_share(b.memory, "", awaiting);
        CHECK(nameless == errc::invalid_option);
        auto const [lengthy] = co_await heap.async_share(b.memory, std::string(249, 'n'), awaiting);
        CHECK(lengthy == errc::invalid_option);
        auto const [foreign] = co_await remote_allocator{other}.async_share(theirs, "x", awaiting);
        CHECK(foreign == channel_errc::no_such_allocation);
        auto const [not_its] = co_await remote_allocator{other}.async_free(theirs, awaiting);
        CHECK(not_its == channel_errc::no_such_allocation);
        // The names of peers are no names of the owner's.
        std::vector<std::byte> bytes(64);
        CHECK_THROWS_AS(
            e.offers.offer("shared/table", std::span{bytes}, access_flags::remote_read),
            boost::system::system_error
        );
        auto const [not_by_name] = co_await e.offers.async_withdraw("shared/cell", awaiting);
        CHECK(not_by_name == channel_errc::no_such_region);

        auto const zero = co_await a.memory.async_fetch_add(8, 5, asio::use_awaitable);
        CHECK(zero == 0);
        auto const five = co_await theirs.async_fetch_add(8, 6, asio::use_awaitable);
        CHECK(five == 5);
        auto const change = co_await other.async_next_change(asio::use_awaitable);
        CHECK(change.name == "shared/cell");

        co_await heap.async_free(a.memory, asio::use_awaitable);
        CHECK(theirs.is_withdrawn());
        auto const [gone, none] = co_await theirs.async_fetch_add(8, 1, awaiting);
        CHECK(gone == channel_errc::region_withdrawn);
        auto const withdrawn = co_await other.async_next_change(asio::use_awaitable);
        CHECK(withdrawn.what == region_change::kind::withdrawn);
        // Now the name is free.
        co_await heap.async_share(b.memory, "cell", asio::use_awaitable);
        auto const second = co_await other.async_find("shared/cell", asio::use_awaitable);
        CHECK(second != theirs);
        // The one who has allocated it leaves, without a word.
        e.client.close();
        co_await until_whole(io, e);
        CHECK(second.is_withdrawn());
        CHECK(other.is_open());
        auto const [not_any_more, no] = co_await other.async_find("shared/cell", awaiting);
        CHECK(not_any_more == channel_errc::no_such_region);
        other.close();
    });
}

TEST_CASE(
    "freeing waits for what is under way, and refuses what comes later", "[device][any-device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        registered_buffer const mine = e.local(65536);
        for (int round = 0; round < 5; ++round) {
            auto const a = co_await heap.async_allocate(65536, asio::use_awaitable);
            std::ranges::fill(mine.bytes(), std::byte{0xee});
            int written = 0;
            for (int i = 0; i < 4; ++i)
                a.memory.async_write(0, mine.slice(), [&](error_code ec, std::size_t) {
                    CHECK_FALSE(ec);
                    ++written;
                });
            co_await heap.async_free(a.memory, asio::use_awaitable);
            CHECK(written == 4);
            auto const [late, none] = co_await a.memory.async_write(0, mine.slice(), awaiting);
            CHECK(late == channel_errc::region_withdrawn);
            CHECK(is_zero(e.memory.bytes()));
        }
        co_await part_regions(e);
        co_await until_whole(io, e);
    });
}

TEST_CASE("kept memory waits for whoever knows its token", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.keep_time = 60s, .kept_bytes_max = 8192}};
        co_await meet_regions(io, e);
        remote_allocator const first{e.client};
        auto const kept =
            co_await first.async_allocate(4096, {.is_kept = true}, asio::use_awaitable);
        auto const lost = co_await first.async_allocate(4096, asio::use_awaitable);
        REQUIRE(kept.token.is_valid());
        auto const other =
            co_await first.async_allocate(4096, {.is_kept = true}, asio::use_awaitable);
        CHECK(kept.token != other.token);
        co_await kept.memory.async_fetch_add(16, 77, asio::use_awaitable);
        // The connection has it already: the same memory.
        auto const same = co_await first.async_resume(kept.token, asio::use_awaitable);
        CHECK(same.memory == kept.memory);
        e.client.close();
        co_await until(io, [&] { return e.pool.statistics().allocations == 2; });
        CHECK(e.pool.statistics().kept_bytes == 8192);

        region_channel again;
        region_channel served;
        co_await join_regions(io, e, again, served);
        remote_allocator const second{again};
        auto guess = kept.token;
        guess.bytes[15] ^= std::byte{1};
        auto const [wrong, nil] = co_await second.async_resume(guess, awaiting);
        CHECK(wrong == channel_errc::no_such_allocation);
        auto const [none, no] = co_await second.async_resume(resume_token{}, awaiting);
        CHECK(none == channel_errc::no_such_allocation);
        auto const back = co_await second.async_resume(kept.token, asio::use_awaitable);
        CHECK(back.memory.size() == 4096);
        CHECK(back.token == kept.token);
        auto const value = co_await back.memory.async_fetch_add(16, 1, asio::use_awaitable);
        CHECK(value == 77);
        CHECK(e.pool.statistics().kept_bytes == 4096);

        // A third one takes it from the second, whose connection goes on.
        region_channel third;
        region_channel served_third;
        co_await join_regions(io, e, third, served_third);
        auto const mine =
            co_await remote_allocator{third}.async_resume(kept.token, asio::use_awaitable);
        auto const seen = co_await mine.memory.async_fetch_add(16, 1, asio::use_awaitable);
        CHECK(seen == 78);
        co_await until(io, [&] { return back.memory.is_withdrawn(); });
        CHECK(again.is_open());
        auto const [not_mine] = co_await second.async_free(back.memory, awaiting);
        CHECK(not_mine == channel_errc::no_such_allocation);
        co_await remote_allocator{third}.async_free(mine.memory, asio::use_awaitable);
        auto const [over, gone] = co_await second.async_resume(kept.token, awaiting);
        CHECK(over == channel_errc::no_such_allocation);
        // What is kept goes with the pool.
        co_await e.pool.async_close(asio::use_awaitable);
        co_await until_whole(io, e);
        auto const [closed, nothing] = co_await second.async_allocate(1, awaiting);
        CHECK(closed == channel_errc::no_pool);
        again.close();
        third.close();
    });
}

TEST_CASE(
    "memory that is taken in several ways at once waits for what is under way",
    "[device][any-device]"
) {
    enum class how {
        close,
        free_by_another,
        close_after_free,
        find_after_free,
        resume_after_free,
        resume_back
    };
    auto const way = GENERATE(
        how::close,
        how::free_by_another,
        how::close_after_free,
        how::find_after_free,
        how::resume_after_free,
        how::resume_back
    );
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        INFO(static_cast<int>(way));
        pool_ends e{io, {.peer_bytes_max = 256 * 1024, .keep_time = 60s}};
        co_await meet_regions(io, e);
        region_channel other;
        region_channel served;
        co_await join_regions(io, e, other, served);
        remote_allocator const mine{e.client};
        remote_allocator const theirs{other};
        auto const a = co_await mine.async_allocate(65536, {.is_kept = true}, asio::use_awaitable);
        co_await mine.async_share(a.memory, "x", asio::use_awaitable);
        registered_buffer const local = e.local(65536);
        int under_way = 16;
        for (int i = 0; i < 16; ++i)
            a.memory.async_write(0, local.slice(), [&](error_code ec, std::size_t) {
                CHECK_FALSE(ec);
                --under_way;
            });
        std::optional<error_code> freed;
        auto const free = [&] {
            mine.async_free(a.memory, [&](error_code ec) {
                CHECK(under_way == 0);
                freed = ec;
            });
        };
        remote_memory again;
        error_code refused;
        if (way == how::close) {
            co_await theirs.async_resume(a.token, asio::use_awaitable);
            co_await e.pool.async_close(asio::use_awaitable);
            CHECK(under_way == 0);
        } else if (way == how::free_by_another) {
            auto const b = co_await theirs.async_resume(a.token, asio::use_awaitable);
            co_await theirs.async_free(b.memory, asio::use_awaitable);
            CHECK(under_way == 0);
        } else if (way == how::close_after_free) {
            free();
            co_await e.pool.async_close(asio::use_awaitable);
            CHECK(under_way == 0);
        } else if (way == how::find_after_free) {
            free();
            auto const [ec, found] = co_await e.client.async_find("shared/x", awaiting);
            again = found;
        } else if (way == how::resume_after_free) {
            free();
            auto const [ec, resumed] = co_await mine.async_resume(a.token, awaiting);
            again = resumed.memory;
            refused = ec;
        } else {
            auto const b = co_await theirs.async_resume(a.token, asio::use_awaitable);
            auto const [ec, resumed] = co_await mine.async_resume(a.token, awaiting);
            again = resumed.memory;
        }
        co_await until(io, [&] { return under_way == 0; });
        if (way == how::close_after_free || way == how::find_after_free ||
            way == how::resume_after_free)
            co_await until(io, [&] { return freed.has_value(); });
        // A handle that says that it can be used can be used.
        if (again.is_valid() && !again.is_withdrawn()) {
            auto const [ec, n] = co_await again.async_write(0, local.slice(), awaiting);
            CHECK((!ec || ec == channel_errc::region_withdrawn));
        }
        CHECK(e.client.is_open());
        CHECK(other.is_open());
        co_await e.pool.async_close(asio::use_awaitable);
        co_await until_whole(io, e);
        other.close();
        co_await part_regions(e);
    });
}

TEST_CASE("kept memory is free when its time is over", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.keep_time = 50ms}};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        auto const kept =
            co_await heap.async_allocate(4096, {.is_kept = true}, asio::use_awaitable);
        co_await heap.async_share(kept.memory, "cell", asio::use_awaitable);
        region_channel other;
        region_channel served;
        co_await join_regions(io, e, other, served);
        auto const found = co_await other.async_find("shared/cell", asio::use_awaitable);
        co_await part_regions(e);
        co_await until_whole(io, e);
        CHECK(found.is_withdrawn());
        auto const [late, none] =
            co_await remote_allocator{other}.async_resume(kept.token, awaiting);
        CHECK(late == channel_errc::no_such_allocation);
        other.close();
    });
}

TEST_CASE("a pool that closes takes all memory back", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io};
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        auto const a = co_await heap.async_allocate(4096, asio::use_awaitable);
        auto const b = co_await heap.async_allocate(4096, asio::use_awaitable);
        co_await heap.async_share(b.memory, "b", asio::use_awaitable);
        co_await e.pool.async_close(asio::use_awaitable);
        CHECK(a.memory.is_withdrawn());
        CHECK(b.memory.is_withdrawn());
        co_await until_whole(io, e);
        auto const [none, nil] = co_await heap.async_allocate(1, awaiting);
        CHECK(none == channel_errc::no_pool);
        auto const [freed] = co_await heap.async_free(a.memory, awaiting);
        CHECK(freed == channel_errc::no_such_allocation);
        // Again, at once.
        co_await e.pool.async_close(asio::use_awaitable);
        co_await part_regions(e);
    });
}

TEST_CASE("the options of a pool are checked", "[device]") {
    asio::io_context io;
    region_offers offers{io};
    pages const memory{8192};
    auto const is_refused = [&](region_offers const& list,
                                std::span<std::byte> bytes,
                                remote_pool_options const& o = {}) {
        try {
            remote_pool const p{list, bytes, o};
            return false;
        } catch (boost::system::system_error const& e) {
            return e.code() == errc::invalid_option;
        }
    };
    CHECK(is_refused(region_offers{}, memory.bytes()));
    CHECK(is_refused(offers, {}));
    CHECK(is_refused(offers, memory.bytes().subspan(8, 4096)));
    CHECK(is_refused(offers, memory.bytes().first(4097)));
    CHECK(is_refused(offers, memory.bytes(), {.peer_allocations_max = 0}));
    CHECK(is_refused(offers, memory.bytes(), {.keep_time = -1ms}));
    CHECK_FALSE(is_refused(offers, memory.bytes()));
    // A list has one pool.
    CHECK(is_refused(offers, memory.bytes()));
    CHECK_FALSE(remote_pool{}.is_valid());
}

TEST_CASE(
    "eight peers allocate at random, and their memory never overlaps", "[device][any-device]"
) {
    allocate_at_random(40);
}

TEST_CASE("a pool has keys by windows where the device checks their range", "[device]") {
    asio::io_context io;
    protection_domain const domain = open_domain(io, {device_address(), 0});
    bool const checks = checks_window_range(domain);
    INFO(domain.device_name());
    // SoftRoCE does not.
    if (domain.device_name().starts_with("rxe")) CHECK_FALSE(checks);
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.domain = domain}};
        e.domain = domain;
        CHECK(e.pool.statistics().has_window_keys == checks);
        co_await meet_regions(io, e);
        auto const a =
            co_await remote_allocator{e.client}.async_allocate(10'000, asio::use_awaitable);
        CHECK(e.server.statistics().windows + e.server.statistics().registrations == 1);
        CHECK((e.server.statistics().windows == 1) == checks);
        auto const zero = co_await a.memory.async_fetch_add(9992, 1, asio::use_awaitable);
        CHECK(zero == 0);
        co_await remote_allocator{e.client}.async_free(a.memory, asio::use_awaitable);
        CHECK(e.server.statistics().windows == 0);
        co_await part_regions(e);
        co_await until_whole(io, e);
    });
}

// Ten thousand times; fabric_tests has a million.
TEST_CASE("eight peers allocate ten thousand times at random", "[device][long]") {
#if defined(RCVERBS_ADDRESS_SANITIZER) || defined(RCVERBS_THREAD_SANITIZER)
    allocate_at_random(100);
#else
    allocate_at_random(1250);
#endif
}

TEST_CASE("a context that is destroyed takes allocations with it", "[device][any-device]") {
    // At every place: after so many steps of the context. What handlers hold goes with them.
    auto const held = std::make_shared<int>(0);
    int freed = 0;
    for (int steps = 0; steps < 400; steps += 7) {
        pages const memory{65536};
        {
            asio::io_context io;
            acceptor door{io, {device_address(), 0}};
            region_offers offers{io};
            remote_pool pool{offers, memory.bytes(), {.keep_time = 60s}};
            region_channel client{without_retries(io.get_executor())};
            region_channel server;
            auto const serve = [&, held]() -> asio::awaitable<void> {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                server = region_channel{
                    without_retries(io.get_executor(), std::move(asked)), {.offers = offers}};
                co_await server.async_accept(asio::use_awaitable);
            };
            auto const use = [&, held]() -> asio::awaitable<void> {
                co_await client.async_connect(door.local_endpoint(), asio::use_awaitable);
                remote_allocator const heap{client};
                for (;;) {
                    auto const a =
                        co_await heap.async_allocate(4096, {.is_kept = true}, asio::use_awaitable);
                    co_await heap.async_share(a.memory, "x", asio::use_awaitable);
                    co_await heap.async_free(a.memory, asio::use_awaitable);
                    ++freed;
                }
            };
            auto const ignore = [held](std::exception_ptr const&) {};
            asio::co_spawn(io, serve(), ignore);
            asio::co_spawn(io, use(), ignore);
            for (int i = 0; i < steps; ++i) io.run_one_for(10ms);
            pool.async_close([held](error_code) {});
        }
        CHECK(held.use_count() == 1);
    }
    CHECK(freed > 0);
}

TEST_CASE("allocations from many threads", "[device]") {
    asio::thread_pool threads{2};
    pages const memory{std::size_t{256} * 1024};
    {
        acceptor door{threads, {device_address(), 0}};
        region_offers offers{threads};
        remote_pool pool{offers, memory.bytes(), {.peer_bytes_max = 64 * 1024}};
        region_channel client{without_retries(threads.get_executor())};
        region_channel server;
        std::promise<error_code> accepted;
        door.async_get_request([&](error_code ec, connection_request asked) {
            if (ec) return accepted.set_value(ec);
            server = region_channel{
                without_retries(threads.get_executor(), std::move(asked)), {.offers = offers}};
            server.async_accept([&](error_code why) { accepted.set_value(why); });
        });
        std::promise<error_code> connected;
        client.async_connect(door.local_endpoint(), [&](error_code ec) {
            connected.set_value(ec);
        });
        REQUIRE_FALSE(connected.get_future().get());
        REQUIRE_FALSE(accepted.get_future().get());
        remote_allocator const heap{client};
        std::atomic<int> done{0};
        std::atomic<int> wrong{0};
        auto const worker = [&](int which) {
            for (int i = 0; i < 100; ++i) {
                std::pair<error_code, remote_allocation> const allocated =
                    blocked<remote_allocation>([&](auto handler) {
                        heap.async_allocate(4096, handler);
                    });
                remote_memory const mine = allocated.second.memory;
                if (error_code const ec = allocated.first) {
                    wrong += ec == channel_errc::quota_exceeded ? 0 : 1;
                    continue;
                }
                auto const [added, before] = blocked<std::uint64_t>([&](auto handler) {
                    mine.async_fetch_add(0, static_cast<std::uint64_t>(which), handler);
                });
                wrong += added || before != 0 ? 1 : 0;
                std::promise<error_code> freed;
                heap.async_free(mine, [&](error_code why) { freed.set_value(why); });
                wrong += freed.get_future().get() ? 1 : 0;
                ++done;
            }
        };
        {
            std::vector<std::jthread> all;
            for (int i = 1; i <= 4; ++i) all.emplace_back(worker, i);
        }
        CHECK(wrong == 0);
        CHECK(done > 0);
        std::promise<error_code> closed;
        pool.async_close([&](error_code ec) { closed.set_value(ec); });
        CHECK_FALSE(closed.get_future().get());
        CHECK(pool.statistics().free_bytes == memory.bytes().size());
        client.close();
        server.close();
    }
    threads.join();
}

// --- hostile peers -------------------------------------------------------------------------------

namespace {

/// A server with a pool, and a peer that sends requests of its own.
struct hostile_pool_ends : hostile_region_ends {
    explicit hostile_pool_ends(asio::io_context& io, region_offers_options const& options = {})
        : hostile_region_ends{io, options},
          pool{offers, memory.bytes(), {.peer_bytes_max = 64 * 1024, .keep_time = 60s}} {}

    // The status of an answer.
    asio::awaitable<std::uint32_t> status_of(std::uint32_t operation, std::vector<std::byte> body) {
        reply const r = co_await peer.async_request(operation, body, asio::use_awaitable);
        co_return r.status();
    }

    pages memory{std::size_t{256} * 1024};
    remote_pool pool;
};

}  // namespace

TEST_CASE("a peer whose allocations are malformed loses its own connection", "[device][hostile]") {
    struct forged_message {
        char const* what;
        bool is_notice;
        std::uint32_t operation;
        std::vector<std::byte> body;
    };
    auto const cut = [](std::vector<std::byte> b, std::size_t size) {
        b.resize(size);
        return b;
    };
    std::vector<forged_message> const all{
        {"nothing is allocated", false, op_allocate, allocate_message(0)},
        {"no alignment", false, op_allocate, allocate_message(1, 0)},
        {"an alignment of 3", false, op_allocate, allocate_message(1, 3)},
        {"an unknown flag", false, op_allocate, allocate_message(1, 8, 2)},
        {"not zero", false, op_allocate, allocate_message(1, 8, 0, 1, 1)},
        {"half an allocation", false, op_allocate, cut(allocate_message(1), 23)},
        {"a long allocation", false, op_allocate, cut(allocate_message(1), 25)},
        {"an empty allocation", false, op_allocate, {}},
        {"an allocation as a notice", true, op_allocate, allocate_message(1)},
        {"half a number to free", false, op_free, cut(number_message(1), 7)},
        {"more than a number to free", false, op_free, cut(number_message(1), 9)},
        {"freed by a notice", true, op_free, number_message(1)},
        {"shared without a name", false, op_share, share_message(1, "")},
        {"shared under a name that is too long",
         false,
         op_share,
         share_message(1, std::string(249, 'n'))},
        {"shared by a notice", true, op_share, share_message(1, "n")},
        {"half a number to share", false, op_share, cut(number_message(1), 4)},
        {"half a token", false, op_resume, cut(resume_message(1), 23)},
        {"more than a token", false, op_resume, cut(resume_message(1), 25)},
        {"a token with padding", false, op_resume, resume_message(1, 1)},
        {"resumed by a notice", true, op_resume, resume_message(1)},
        {"a large request", false, op_free, cut({}, 5000)},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (forged_message const& f : all) {
            INFO(f.what);
            hostile_pool_ends e{io};
            co_await meet_forger(io, e);
            auto const one = co_await e.status_of(op_allocate, allocate_message(4096));
            CHECK(one == 0);
            if (f.is_notice) {
                co_await e.peer.async_notify(f.operation, f.body, awaiting);
                auto const [ec, none] = co_await e.peer.async_next(awaiting);
                CHECK(ec);
            } else {
                auto const [ec, none] =
                    co_await e.peer.async_request(f.operation, f.body, awaiting);
                CHECK(ec);
            }
            auto const [ended, none] = co_await e.server.async_next(awaiting);
            CHECK(ended);
            CHECK(e.server.last_failure().code == channel_errc::malformed_message);
            CHECK(e.server.last_failure().reason == close_reason::protocol_error);
            co_await until(io, [&] { return e.pool.statistics().allocations == 0; });
        }
    });
}

TEST_CASE("numbers and tokens that a peer makes up free nothing", "[device][hostile]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_pool_ends e{io};
        std::vector<std::byte> table(4096);
        e.offers.offer("table", std::span{table}, access_flags::remote_read);
        co_await meet_forger(io, e);
        // An honest peer, whose memory the other one wants.
        region_channel honest{without_retries(io.get_executor())};
        region_channel served;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            served = region_channel{
                without_retries(io.get_executor(), std::move(asked)), {.offers = e.offers}};
            co_await served.async_accept(asio::use_awaitable);
        };
        co_await (answer() && honest.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        remote_allocator const heap{honest};
        auto const theirs =
            co_await heap.async_allocate(4096, {.is_kept = true}, asio::use_awaitable);
        co_await heap.async_share(theirs.memory, "cell", asio::use_awaitable);

        auto const body = allocate_message(4096);
        reply const own = co_await e.peer.async_request(op_allocate, body, asio::use_awaitable);
        REQUIRE(own.status() == 0);
        std::uint64_t const number = number_in(own, number_at, 8);
        // Every number that was ever given, its own excepted: of others, of offers, of nothing.
        for (std::uint64_t n = 0; n < number + 10; ++n) {
            if (n == number) continue;
            auto const freed = co_await e.status_of(op_free, number_message(n));
            auto const shared = co_await e.status_of(op_share, share_message(n, "mine"));
            CHECK(freed == 1);
            CHECK(shared == 1);
        }
        auto const found = co_await e.status_of(op_find, find_message("shared/cell"));
        CHECK(found == 0);
        auto const guessed = co_await e.status_of(op_resume, resume_message(0));
        CHECK(guessed == 1);
        auto const other_version = co_await e.status_of(op_allocate, allocate_message(1, 8, 0, 2));
        CHECK(other_version == 3);
        auto const much = co_await e.status_of(op_allocate, allocate_message(UINT64_MAX));
        CHECK(much == 4);
        auto const quota = co_await e.status_of(op_allocate, allocate_message(64 * 1024));
        CHECK(quota == 4);
        auto const unaligned =
            co_await e.status_of(op_allocate, allocate_message(1, std::uint64_t{1} << 63));
        CHECK(unaligned == 2);
        auto const first = co_await e.status_of(op_free, number_message(number));
        CHECK(first == 0);
        auto const second = co_await e.status_of(op_free, number_message(number));
        CHECK(second == 1);
        // As many as it may have, and no more, however often it asks.
        int given = 0;
        for (int i = 0; i < 100; ++i)
            given += (co_await e.status_of(op_allocate, allocate_message(4096))) == 0 ? 1 : 0;
        CHECK(given == 16);
        CHECK(e.pool.statistics().allocations == 17);
        CHECK(e.server.is_open());

        auto const zero = co_await theirs.memory.async_fetch_add(0, 1, asio::use_awaitable);
        CHECK(zero == 0);
        e.peer.close();
        co_await until(io, [&] { return e.pool.statistics().allocations == 1; });
        auto const one = co_await theirs.memory.async_fetch_add(0, 1, asio::use_awaitable);
        CHECK(one == 1);
        honest.close();
        co_await e.pool.async_close(asio::use_awaitable);
    });
}

TEST_CASE(
    "memory that was freed is beyond the reach of its old key, which ends the offender",
    "[device][hostile]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_pool_ends e{io};
        co_await meet_forger(io, e);
        auto const body = allocate_message(4096);
        reply const first = co_await e.peer.async_request(op_allocate, body, asio::use_awaitable);
        registered_buffer const mine{e.peer.next_layer().domain(), 8192, access_flags::local_write};
        remote_region const old{
            number_in(first, address_at, 8),
            4096,
            remote_key{static_cast<std::uint32_t>(number_in(first, key_at, 4))},
            all_rights};
        co_await e.peer.next_layer().async_write(mine.slice(0, 4096), old, asio::use_awaitable);
        auto const freed =
            co_await e.status_of(op_free, number_message(number_in(first, number_at, 8)));
        CHECK(freed == 0);
        // The next owner gets the same block.
        region_channel honest{without_retries(io.get_executor())};
        region_channel served;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            served = region_channel{
                without_retries(io.get_executor(), std::move(asked)), {.offers = e.offers}};
            co_await served.async_accept(asio::use_awaitable);
        };
        co_await (answer() && honest.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        auto const theirs =
            co_await remote_allocator{honest}.async_allocate(4096, asio::use_awaitable);
        auto const [ec, none] =
            co_await e.peer.next_layer().async_write(mine.slice(0, 4096), old, awaiting);
        CHECK(ec == wc_errc::remote_access);
        auto const [ended, nothing] = co_await e.server.async_next(awaiting);
        CHECK(ended);
        CHECK(honest.is_open());
        auto const zero = co_await theirs.memory.async_fetch_add(0, 1, asio::use_awaitable);
        CHECK(zero == 0);
        co_await (
            honest.async_finish(asio::use_awaitable) && served.async_finish(asio::use_awaitable)
        );
        co_await e.pool.async_close(asio::use_awaitable);
    });
}

TEST_CASE(
    "a peer with shared memory that is silent does not keep it from its pool", "[device][hostile]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_pool_ends e{io, {.withdraw_timeout = 50ms}};
        co_await meet_forger(io, e);
        region_channel honest{without_retries(io.get_executor())};
        region_channel served;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            served = region_channel{
                without_retries(io.get_executor(), std::move(asked)), {.offers = e.offers}};
            co_await served.async_accept(asio::use_awaitable);
        };
        co_await (answer() && honest.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        remote_allocator const heap{honest};
        auto const a = co_await heap.async_allocate(4096, asio::use_awaitable);
        co_await heap.async_share(a.memory, "cell", asio::use_awaitable);
        auto const found = co_await e.status_of(op_find, find_message("shared/cell"));
        CHECK(found == 0);
        // Nobody answers for the peer.
        co_await heap.async_free(a.memory, asio::use_awaitable);
        CHECK(e.pool.statistics().allocations == 0);
        CHECK_FALSE(e.server.is_open());
        CHECK(e.server.last_failure().code == errc::timed_out);
        CHECK(e.server.last_failure().reason == close_reason::timed_out);
        CHECK(honest.is_open());
        co_await (
            honest.async_finish(asio::use_awaitable) && served.async_finish(asio::use_awaitable)
        );
    });
}

TEST_CASE(
    "a peer that has not answered a withdrawal gets no key of that number", "[device][hostile]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_pool_ends e{io};
        co_await meet_forger(io, e);
        region_channel honest{without_retries(io.get_executor())};
        region_channel served;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            served = region_channel{
                without_retries(io.get_executor(), std::move(asked)), {.offers = e.offers}};
            co_await served.async_accept(asio::use_awaitable);
        };
        co_await (answer() && honest.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        constexpr std::uint16_t kept = 1;
        auto const body = allocate_message(4096, 8, kept);
        reply const first = co_await e.peer.async_request(op_allocate, body, asio::use_awaitable);
        REQUIRE(first.status() == 0);
        resume_token token;
        std::ranges::copy(first.bytes().subspan(8, token.bytes.size()), token.bytes.begin());
        std::uint64_t const number = number_in(first, number_at, 8);

        std::optional<remote_allocation> taken;
        remote_allocator{honest}.async_resume(token, [&](error_code ec, remote_allocation a) {
            CHECK_FALSE(ec);
            taken = std::move(a);
        });
        request withdrawal = co_await e.peer.async_next(asio::use_awaitable);
        REQUIRE(withdrawal.operation() == op_withdraw);
        // It drops the memory, and takes it again, before it answers.
        std::vector<std::byte> dropped = number_message(number);
        put(dropped, 1, 4);
        put(dropped, 0, 4);
        co_await e.peer.async_notify(op_dropped, dropped, asio::use_awaitable);
        co_await until(io, [&] { return taken.has_value(); });
        std::vector<std::byte> resume = resume_message(0);
        std::ranges::copy(token.bytes, resume.begin() + 8);
        auto const early = co_await e.status_of(op_resume, resume);
        CHECK(early == 2);
        co_await withdrawal.async_answer(0, {}, asio::use_awaitable);
        reply const again = co_await e.peer.async_request(op_resume, resume, asio::use_awaitable);
        REQUIRE(again.status() == 0);
        // Its key lasts.
        registered_buffer const mine{e.peer.next_layer().domain(), 4096, access_flags::local_write};
        remote_region const all{
            number_in(again, address_at, 8),
            4096,
            remote_key{static_cast<std::uint32_t>(number_in(again, key_at, 4))},
            all_rights};
        for (int i = 0; i < 3; ++i) {
            co_await e.peer.next_layer().async_write(mine.slice(), all, asio::use_awaitable);
            co_await pause(io, 5ms);
        }
        CHECK(e.server.is_open());
        taken.reset();
        co_await (
            honest.async_finish(asio::use_awaitable) && served.async_finish(asio::use_awaitable)
        );
    });
}

TEST_CASE(
    "a peer that drops memory and never answers its withdrawal loses its connection",
    "[device][hostile]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_pool_ends e{io, {.withdraw_timeout = 50ms}};
        std::vector<std::byte> table(4096);
        e.offers.offer("table", std::span{table}, access_flags::remote_read);
        co_await meet_forger(io, e);
        auto const find = find_message("table");
        reply const found = co_await e.peer.async_request(op_find, find, asio::use_awaitable);
        std::optional<error_code> withdrawn;
        e.offers.async_withdraw("table", [&](error_code ec) { withdrawn = ec; });
        request const withdrawal = co_await e.peer.async_next(asio::use_awaitable);
        std::vector<std::byte> dropped = number_message(number_in(found, 0, 8));
        put(dropped, 1, 4);
        put(dropped, 0, 4);
        co_await e.peer.async_notify(op_dropped, dropped, asio::use_awaitable);
        co_await until(io, [&] { return withdrawn.has_value(); });
        CHECK_FALSE(*withdrawn);
        co_await until(io, [&] { return !e.server.is_open(); });
        CHECK(e.server.last_failure().code == errc::timed_out);
    });
}

TEST_CASE("who resumes memory has it alone from then on", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.keep_time = 60s}};
        co_await meet_regions(io, e);
        region_channel second;
        region_channel second_served;
        co_await join_regions(io, e, second, second_served);
        region_channel third;
        region_channel third_served;
        co_await join_regions(io, e, third, third_served);
        remote_allocator const first{e.client};
        auto const a = co_await first.async_allocate(4096, {.is_kept = true}, asio::use_awaitable);
        CHECK(a.token.is_valid());
        // The first one never stops, as long as it may.
        int added = 0;
        error_code last;
        std::function<void()> add = [&] {
            a.memory.async_fetch_add(0, 1, [&](error_code ec, std::uint64_t) {
                last = ec;
                if (ec) return;
                ++added;
                add();
            });
        };
        for (int i = 0; i < 4; ++i) add();
        co_await pause(io, 5ms);
        // Two others want it. The second of them gets it, and the first one may have had it before.
        std::optional<error_code> result;
        remote_allocation lost;
        remote_allocator{second}.async_resume(a.token, [&](error_code ec, remote_allocation b) {
            if (!ec) CHECK(a.memory.is_withdrawn());
            lost = std::move(b);
            result = ec;
        });
        auto const c = co_await remote_allocator{third}.async_resume(a.token, asio::use_awaitable);
        CHECK(a.memory.is_withdrawn());
        CHECK((!lost.memory.is_valid() || lost.memory.is_withdrawn()));
        auto const before = co_await c.memory.async_fetch_add(0, 0, asio::use_awaitable);
        co_await until(io, [&] { return last.failed(); });
        CHECK(last == channel_errc::region_withdrawn);
        auto const after = co_await c.memory.async_fetch_add(0, 0, asio::use_awaitable);
        CHECK(before == after);
        CHECK(before == static_cast<std::uint64_t>(added));
        co_await until(io, [&] { return result.has_value(); });
        CHECK((!*result || *result == channel_errc::no_such_allocation));
        second.close();
        third.close();
        co_await part_regions(e);
    });
}

TEST_CASE("a pool that keeps nothing gives no token", "[device][any-device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io};
        co_await meet_regions(io, e);
        auto const a = co_await remote_allocator{e.client}.async_allocate(
            4096, {.is_kept = true}, asio::use_awaitable
        );
        CHECK_FALSE(a.token.is_valid());
        CHECK(e.pool.statistics().kept_bytes == 0);
        co_await part_regions(e);
        co_await until_whole(io, e);
    });
}
