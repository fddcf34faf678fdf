// Memory that peers allocate, on devices that check the range of a memory window, and others.
#include <boost/asio/thread_pool.hpp>

#include <cstring>

#include <rcverbs/registration_limit.hpp>
#include <rcverbs/experimental/window.hpp>

#include "device/pool_fixture.hpp"
#include "fabric/fixture.hpp"
#include "support/live_blocks.hpp"

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
                without_retries(io.get_executor(), std::move(asked), domain), {.offers = e.offers}};
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

TEST_CASE("fabric: allocating and freeing takes few blocks of the heap", "[fabric]") {
    bool const has_windows = GENERATE(true, false);
    CAPTURE(has_windows);
    fabric::world w{one_device(true)};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        protection_domain const domain = open_domain(io, "fab0");
        pool_ends e{io, {.domain = domain}};
        if (has_windows) e.domain = domain;
        co_await meet_regions(io, e);
        remote_allocator const heap{e.client};
        constexpr int rounds = 100;
        long before = 0;
        for (int i = 0; i < 2 * rounds; ++i) {
            if (i == rounds) before = test::allocations().value_or(0);
            auto const a = co_await heap.async_allocate(4096, asio::use_awaitable);
            co_await heap.async_free(a.memory, asio::use_awaitable);
        }
        // Of both sides; none is counted under a sanitizer.
        auto const each = (test::allocations().value_or(0) - before) / rounds;
        INFO(each);
        CHECK(each <= 10);
        co_await part_regions(e);
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

TEST_CASE(
    "fabric: memory beyond a device's limits names the limit, and the rest is usable", "[fabric]"
) {
    bool const has_helpers = GENERATE(false, true);
    CAPTURE(has_helpers);
    constexpr std::size_t chunk = 65536;
    auto limited = one_device(true);
    limited.devices[0].region_bytes_max = chunk;
    fabric::world w{limited};
    asio::io_context io;
    asio::thread_pool helpers{2};
    run(io, [&]() -> asio::awaitable<void> {
        region_offers_options options;  // pieces as large as the device allows
        if (has_helpers) options.register_on = helpers.get_executor();
        region_ends e{io, options};
        auto whole = pattern(chunk * 64, 3);
        auto small = pattern(4096, 4);
        e.offers.offer("large", std::span{whole}, all_rights);
        e.offers.offer("small", std::span{small}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const good = co_await e.client.async_find("small", asio::use_awaitable);
        co_await good.async_prepare(0, good.size(), asio::use_awaitable);
        CHECK_FALSE(e.client.peer_refusal());
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        co_await large.async_prepare(0, large.size(), asio::use_awaitable);
        CHECK(e.server.statistics().registrations == 65);
        registered_buffer const mine = e.local(chunk);
        auto const across =
            co_await large.async_read(3 * chunk - 5, mine.slice(), asio::use_awaitable);
        CHECK(across == chunk);
        CHECK(std::equal(mine.bytes().begin(), mine.bytes().end(), whole.begin() + 3 * chunk - 5));
        co_await part_regions(e);
    });
    helpers.join();
}

TEST_CASE(
    "fabric: a device with few regions refuses the next, and says how many it has", "[fabric]"
) {
    bool const has_helpers = GENERATE(false, true);
    CAPTURE(has_helpers);
    constexpr std::size_t chunk = 4096;
    auto limited = one_device(true);
    limited.devices[0].regions_max = 40;
    // Regions are counted by name, and earlier tests have leaked some.
    limited.devices[0].name = "few0";
    fabric::world w{limited};
    asio::io_context io;
    asio::thread_pool helpers{2};
    run(io, [&]() -> asio::awaitable<void> {
        region_offers_options options{.piece_bytes = chunk};
        if (has_helpers) options.register_on = helpers.get_executor();
        region_ends e{io, options};
        auto whole = pattern(chunk * 64, 3);
        e.offers.offer("large", std::span{whole}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        auto const [refused] = co_await large.async_prepare(0, large.size(), awaiting);
        CHECK(refused == boost::system::errc::not_enough_memory);
        for (auto const& why : {e.client.peer_refusal(), e.server.own_refusal()}) {
            REQUIRE(why);
            CHECK(why->code == refused);
            CHECK(why->limit == registration_limit{registration_limit::kind::regions, 41, 40});
            INFO(why->message());
            CHECK(
                why->message().find("region 41 of the process, and the device has 40") !=
                std::string::npos
            );
        }
        std::uint64_t const ready = large.ready_bytes();
        CHECK(ready > 0);
        CHECK(ready < large.size());
        CHECK(ready == e.server.statistics().registered_bytes);
        // Nothing is tried again, and what is ready can be used.
        auto const [beyond, none] = co_await large.async_fetch_add(large.size() - 8, 1, awaiting);
        CHECK(beyond == boost::system::errc::not_enough_memory);
        std::uint64_t expected = 0;
        std::memcpy(&expected, whole.data(), sizeof expected);
        auto const before = co_await large.async_fetch_add(0, 1, asio::use_awaitable);
        CHECK(before == expected);
        co_await e.offers.async_withdraw("large", asio::use_awaitable);
        co_await part_regions(e);
    });
    helpers.join();
}

TEST_CASE("fabric: a registration that fails names the limit", "[fabric]") {
    auto limited = one_device(true);
    limited.devices[0].region_bytes_max = 8192;
    limited.devices[0].regions_max = 2;
    limited.devices[0].name = "few1";  // as above
    fabric::world w{limited};
    asio::io_context io;
    protection_domain const domain = open_domain(io, "few1");
    std::vector<std::byte> memory(16384);
    auto const text = [&](std::size_t bytes) {
        try {
            memory_region const region{
                domain, std::span{memory}.first(bytes), access_flags::local_write};
        } catch (boost::system::system_error const& failed) {
            return std::string{failed.what()};
        }
        return std::string{};
    };
    CHECK(text(8192).empty());
    CHECK(
        text(8193).find("have 9 KiB, and the device registers at most 8 KiB") != std::string::npos
    );
    memory_region const one{domain, std::span{memory}.first(8), access_flags::local_write};
    memory_region const two{domain, std::span{memory}.first(8), access_flags::local_write};
    CHECK(text(8).find("region 3 of the process, and the device has 2") != std::string::npos);
    CHECK(limit_met(domain, 8, {}) == registration_limit{});
}
