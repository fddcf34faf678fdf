// Memory that peers allocate, on devices that check the range of a memory window, and others.
#include "device/pool_fixture.hpp"
#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

/// One device, whose packets a thread delivers.
fabric::world_options one_device(bool checks_window_ranges) {
    fabric::world_options o;
    o.mode = fabric::scheduling::real;
    o.devices.resize(1);
    o.devices[0].name = "fab0";
    o.devices[0].addresses = {device_address()};
    o.devices[0].checks_window_ranges = checks_window_ranges;
    return o;
}

}  // namespace

TEST_CASE("fabric: whether a device checks the range of a window is tried", "[fabric]") {
    bool const checks = GENERATE(true, false);
    fabric::world w{one_device(checks)};
    asio::io_context io;
    protection_domain const domain = open_domain(io, "fab0");
    CHECK(checks_window_range(domain) == checks);
}

TEST_CASE("fabric: a device without windows does not check their range", "[fabric]") {
    auto options = one_device(true);
    options.devices[0].has_memory_windows = false;
    fabric::world w{options};
    asio::io_context io;
    CHECK_FALSE(checks_window_range(open_domain(io, "fab0")));
}

TEST_CASE("fabric: a key opens one allocation, in a domain that clients share, too", "[fabric]") {
    bool const checks = GENERATE(true, false);
    fabric::world w{one_device(checks)};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        protection_domain const domain = open_domain(io, "fab0");
        pool_ends e{io, {.domain = domain}};
        e.domain = domain;
        CHECK(e.pool.statistics().has_window_keys == checks);
        co_await meet_regions(io, e);
        // Its neighbour's memory is allocated first, and lies before its own.
        auto const theirs =
            co_await remote_allocator{e.client}.async_allocate(4096, asio::use_awaitable);
        CHECK(e.server.statistics().windows == (checks ? 1 : 0));
        CHECK(e.server.statistics().registrations == (checks ? 0 : 1));
        request_channel attacker = without_retries(io.get_executor());
        region_channel served;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            served = region_channel{
                without_retries(io.get_executor(), std::move(asked), domain), e.offers};
            co_await served.async_accept(asio::use_awaitable);
        };
        co_await (answer() && attacker.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        auto const body = allocate_message(4096);
        reply const own = co_await attacker.async_request(op_allocate, body, asio::use_awaitable);
        REQUIRE(own.status() == 0);
        std::uint64_t const address = number_in(own, address_at, 8);
        remote_key const key{static_cast<std::uint32_t>(number_in(own, key_at, 4))};
        registered_buffer const mine{
            attacker.next_layer().domain(), 4096, access_flags::local_write};
        std::ranges::fill(mine.bytes(), std::byte{0xee});
        // All of its own memory, and then one byte more.
        co_await attacker.next_layer().async_write(
            mine.slice(), remote_region{address, 4096, key, all_rights}, asio::use_awaitable
        );
        auto const [ec, none] = co_await attacker.next_layer().async_write(
            mine.slice(0, 8), remote_region{address - 8, 8, key, all_rights}, awaiting
        );
        CHECK(ec == wc_errc::remote_access);
        auto const [ended, nothing] = co_await served.async_next(awaiting);
        CHECK(ended);
        CHECK(e.client.is_open());
        auto const zero = co_await theirs.memory.async_fetch_add(4088, 1, asio::use_awaitable);
        CHECK(zero == 0);
        co_await until(io, [&] { return e.pool.statistics().allocations == 1; });
        co_await part_regions(e);
        co_await until_whole(io, e);
    });
}

TEST_CASE("fabric: connections of another domain get regions for keys", "[fabric]") {
    fabric::world w{one_device(true)};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        pool_ends e{io, {.domain = open_domain(io, "fab0")}};
        CHECK(e.pool.statistics().has_window_keys);
        co_await meet_regions(io, e);
        auto const a =
            co_await remote_allocator{e.client}.async_allocate(4096, asio::use_awaitable);
        CHECK(e.server.statistics().windows == 0);
        CHECK(e.server.statistics().registrations == 1);
        co_await a.memory.async_fetch_add(0, 1, asio::use_awaitable);
        co_await part_regions(e);
    });
}

TEST_CASE("fabric: eight peers allocate at random, with keys of both kinds", "[fabric]") {
    fabric::world w{one_device(GENERATE(true, false))};
    asio::io_context io;
    allocate_at_random(100, open_domain(io, "fab0"));
}

// By ctest only: four minutes.
TEST_CASE("fabric: eight peers allocate a million times", "[.million]") {
    fabric::world w{one_device(GENERATE(true, false))};
    asio::io_context io;
    allocate_at_random(125'000, open_domain(io, "fab0"));
}
