// Regions of many pieces: prepared ahead, registered by other threads, and more than the owner can
// register.
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <sys/mman.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <fstream>

#include <rcverbs/registration_limit.hpp>

#include "device/region_fixture.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr std::size_t chunk = 65536;
constexpr std::size_t chunks = 64;

asio::awaitable<bool> reads_back(
    region_ends& e,
    remote_memory const& from,
    std::uint64_t offset,
    std::span<std::byte const> expected
) {
    registered_buffer const mine = e.local(expected.size());
    auto const bytes = co_await from.async_read(offset, mine.slice(), asio::use_awaitable);
    co_return bytes == expected.size() && test::same(mine.bytes(), expected);
}

}  // namespace

TEST_CASE(
    "sixty-four chunks behind one name are read and written across their borders", "[device]"
) {
    bool const has_helpers = GENERATE(false, true);
    CAPTURE(has_helpers);
    asio::io_context io;
    asio::thread_pool helpers{2};
    run(io, [&]() -> asio::awaitable<void> {
        region_offers_options options{.piece_bytes = chunk};
        if (has_helpers) options.register_on = helpers.get_executor();
        region_ends e{io, options};
        auto whole = pattern(chunk * chunks - 100, 3);
        e.offers.offer("large", std::span{whole}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        CHECK(large.size() == whole.size());
        // A write that begins and ends inside of chunks, and touches five; what is read touches six.
        registered_buffer const mine = e.local(4 * chunk);
        fill(mine.bytes(), 9);
        std::uint64_t const at = 20 * chunk + 77;
        auto const put = co_await large.async_write(at, mine.slice(), asio::use_awaitable);
        CHECK(put == mine.size());
        CHECK(std::equal(
            mine.bytes().begin(),
            mine.bytes().end(),
            whole.begin() + static_cast<std::ptrdiff_t>(at)
        ));
        bool const some = co_await reads_back(
            e, large, at - 1000, std::span{whole}.subspan(at - 1000, mine.size() + 2000)
        );
        CHECK(some);
        // No chunk that nobody has asked for was registered by the helpers.
        if (has_helpers) CHECK(e.server.statistics().registrations == 6);
        CHECK(large.ready_bytes() < large.size());
        co_await large.async_prepare(0, large.size(), asio::use_awaitable);
        CHECK(large.ready_bytes() == large.size());
        CHECK(e.server.statistics().registrations == chunks);
        CHECK(e.server.statistics().registered_bytes == whole.size());
        bool const all = co_await reads_back(e, large, 0, whole);
        CHECK(all);
        co_await e.offers.async_withdraw("large", asio::use_awaitable);
        CHECK(e.server.statistics().registrations == 0);
        co_await part_regions(e);
    });
    helpers.join();
}

TEST_CASE("as many chunks are registered at a time as the owner allows", "[device]") {
    asio::io_context io;
    asio::thread_pool helpers{4};
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{
            io,
            {.piece_bytes = 4096, .register_on = helpers.get_executor(), .registrations_max = 3}};
        auto whole = pattern(4096 * 200, 3);
        e.offers.offer("large", std::span{whole}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        CHECK(large.ready_bytes() == 0);
        // Several at once, of parts that overlap, and operations that need the same chunks.
        std::vector<std::uint64_t> seen;
        std::size_t over = 0;
        auto const done = [&](error_code ec) {
            CHECK_FALSE(ec);
            seen.push_back(large.ready_bytes());
            ++over;
        };
        large.async_prepare(0, 4096 * 100, done);
        large.async_prepare(4096 * 50, 4096 * 150, done);
        large.async_prepare(4096 * 60 + 5, 1, done);
        large.async_prepare(0, 0, done);
        bool const first =
            co_await reads_back(e, large, 4000, std::span{whole}.subspan(4000, 9000));
        CHECK(first);
        while (over < 4) co_await asio::post(io, asio::use_awaitable);
        CHECK(std::ranges::is_sorted(seen));
        CHECK(seen.back() == whole.size());
        auto const [beyond] = co_await large.async_prepare(1, whole.size(), awaiting);
        CHECK(beyond == errc::out_of_range);
        co_await part_regions(e);
        CHECK(large.ready_bytes() == 0);
        auto const [gone] = co_await large.async_prepare(0, 1, awaiting);
        CHECK(gone == errc::not_connected);
    });
    helpers.join();
}

TEST_CASE(
    "preparing can be cancelled, and ends with a withdrawal and with the connection", "[device]"
) {
    asio::io_context io;
    asio::thread_pool helpers{1};
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{
            io,
            {.piece_bytes = 4096, .register_on = helpers.get_executor(), .registrations_max = 1}};
        auto whole = pattern(4096 * 64, 3);
        auto other = pattern(4096 * 64, 4);
        e.offers.offer("large", std::span{whole}, all_rights);
        e.offers.offer("other", std::span{other}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        remote_memory const second = co_await e.client.async_find("other", asio::use_awaitable);
        // The helper waits until it may go on.
        std::promise<void> go;
        asio::post(helpers, [wait = go.get_future().share()] { wait.wait(); });
        asio::cancellation_signal stop;
        std::vector<error_code> results;
        auto const note = [&](error_code ec) { results.push_back(ec); };
        large.async_prepare(0, whole.size(), asio::bind_cancellation_slot(stop.slot(), note));
        second.async_prepare(0, other.size(), note);
        co_await pause(io, 10ms);
        CHECK(results.empty());
        stop.emit(asio::cancellation_type::total);
        while (results.empty()) co_await asio::post(io, asio::use_awaitable);
        CHECK(results.front() == asio::error::operation_aborted);
        bool is_withdrawn = false;
        e.offers.async_withdraw("other", [&](error_code ec) {
            CHECK_FALSE(ec);
            is_withdrawn = true;
        });
        while (results.size() < 2) co_await asio::post(io, asio::use_awaitable);
        CHECK(results.back() == channel_errc::region_withdrawn);
        go.set_value();
        while (!is_withdrawn) co_await asio::post(io, asio::use_awaitable);
        CHECK(e.server.statistics().granted == 1);
        large.async_prepare(0, whole.size(), note);
        e.server.close();
        while (results.size() < 3) co_await asio::post(io, asio::use_awaitable);
        CHECK(results.back());
        e.client.close();
    });
    helpers.join();
}

TEST_CASE("constant memory is offered for reading", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        // Not even the processor may write it.
        std::size_t const size = 8192;
        void* const mapped =
            ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(mapped != MAP_FAILED);
        std::span<std::byte> const bytes{static_cast<std::byte*>(mapped), size};
        fill(bytes, 5);
        ::mprotect(mapped, size, PROT_READ);
        std::span<std::byte const> const constant = bytes;
        static constexpr std::array<std::uint32_t, 3> numbers{1, 2, 3};
        e.offers.offer("bytes", constant);
        e.offers.offer("numbers", std::span{numbers});
        std::vector<std::uint16_t> others(3);
        e.offers.offer("others", std::span{others});
        co_await meet_regions(io, e);
        remote_memory const theirs = co_await e.client.async_find("bytes", asio::use_awaitable);
        CHECK(theirs.rights() == access_flags::remote_read);
        bool const same = co_await reads_back(e, theirs, 0, constant);
        CHECK(same);
        registered_buffer const mine = e.local(8);
        auto const [refused, none] = co_await theirs.async_write(0, mine.slice(), awaiting);
        CHECK(refused == errc::access_denied);
        remote_array<std::uint32_t> const three{
            co_await e.client.async_find("numbers", asio::use_awaitable)};
        CHECK(three.size() == 3);
        co_await part_regions(e);
        ::munmap(mapped, size);
    });
}

TEST_CASE("registrations that are late keep nothing of a channel that has ended", "[device]") {
    asio::thread_pool helpers{1};
    std::promise<void> go;
    asio::post(helpers, [wait = go.get_future().share()] { wait.wait(); });
    {
        // The context goes first, with a strand that the channels run on, while the helper is busy.
        asio::io_context io;
        auto const order = asio::make_strand(io);
        run(io, [&]() -> asio::awaitable<void> {
            region_ends e{io, {.piece_bytes = 4096, .register_on = helpers.get_executor()}};
            auto whole = pattern(4096 * 8, 3);
            e.offers.offer("large", std::span{whole}, all_rights);
            e.client = region_channel{without_retries(order)};
            auto const answer = [&]() -> asio::awaitable<void> {
                connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
                e.server =
                    region_channel{without_retries(order, std::move(asked)), {.offers = e.offers}};
                co_await e.server.async_accept(asio::use_awaitable);
            };
            co_await (
                answer() && e.client.async_connect(e.door.local_endpoint(), asio::use_awaitable)
            );
            remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
            large.async_prepare(0, whole.size(), [](error_code ec) { CHECK(ec); });
            co_await pause(io, 20ms);
            e.client.close();
            co_await until(io, [&] { return e.server.statistics().granted == 0; });
        });
    }
    go.set_value();
    helpers.join();
}

TEST_CASE("a withdrawal ends operations that wait for a key, and no connection", "[device]") {
    asio::io_context io;
    asio::thread_pool helpers{1};
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io, {.piece_bytes = 4096, .register_on = helpers.get_executor()}};
        auto whole = pattern(4096 * 8, 3);
        e.offers.offer("large", std::span{whole}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        std::promise<void> go;
        asio::post(helpers, [wait = go.get_future().share()] { wait.wait(); });
        registered_buffer const mine = e.local(4096 * 8);
        std::optional<error_code> read;
        large.async_read(0, mine.slice(), [&](error_code ec, std::size_t) { read = ec; });
        co_await pause(io, 10ms);
        CHECK_FALSE(read);
        // The helper is busy until long after that.
        co_await e.offers.async_withdraw("large", asio::use_awaitable);
        co_await until(io, [&] { return read.has_value(); });
        CHECK(*read == channel_errc::region_withdrawn);
        CHECK(e.client.is_open());
        go.set_value();
        co_await part_regions(e);
    });
    helpers.join();
}

TEST_CASE("regions of one channel are registered in turn", "[device]") {
    asio::io_context io;
    asio::thread_pool helpers{1};
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{
            io,
            {.piece_bytes = 4096, .register_on = helpers.get_executor(), .registrations_max = 2}};
        auto whole = pattern(4096 * 400, 3);
        auto other = pattern(4096 * 3, 4);
        e.offers.offer("large", std::span{whole}, all_rights);
        e.offers.offer("small", std::span{other}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const large = co_await e.client.async_find("large", asio::use_awaitable);
        remote_memory const small = co_await e.client.async_find("small", asio::use_awaitable);
        std::promise<void> go;
        asio::post(helpers, [wait = go.get_future().share()] { wait.wait(); });
        int over = 0;
        for (int i = 0; i < 3; ++i)
            large.async_prepare(0, large.size(), [&](error_code) { ++over; });
        co_await pause(io, 10ms);
        small.async_prepare(0, small.size(), [&](error_code ec) {
            CHECK_FALSE(ec);
            // It has waited for a few pieces of the other, not for all.
            CHECK(large.ready_bytes() < 4096 * 40);
            ++over;
        });
        co_await pause(io, 10ms);
        go.set_value();
        co_await until(io, [&] { return over == 4; });
        co_await part_regions(e);
    });
    helpers.join();
}
