// Named regions: found, used and withdrawn. No receiver may ever be not ready: rnr_retry_count is 0.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_future.hpp>

#include <rcverbs/experimental/region_channel.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/region_fixture.hpp"

using namespace rcverbs;
using namespace test;

TEST_CASE("a peer finds a region by its name, and uses it as its owner allows", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto table = pattern(8192, 1);
        auto input = pattern(4096, 2);
        e.offers.offer("table", std::span{table}, access_flags::remote_read);
        e.offers.offer("input", std::span{input}, access_flags::remote_write);
        co_await meet_regions(io, e);
        remote_memory const theirs = co_await e.client.async_find("table", asio::use_awaitable);
        remote_memory const inbox = co_await e.client.async_find("input", asio::use_awaitable);
        CHECK(theirs.size() == 8192);
        CHECK(theirs.rights() == access_flags::remote_read);
        CHECK(inbox.rights() == access_flags::remote_write);
        CHECK(e.client.statistics().held == 2);
        CHECK(e.server.statistics().granted == 2);
        CHECK(e.server.statistics().registrations == 2);
        CHECK(e.server.statistics().registered_bytes == 8192 + 4096);
        registered_buffer const mine = e.local(8192);
        auto const got = co_await theirs.async_read(0, mine.slice(), asio::use_awaitable);
        CHECK(got == 8192);
        CHECK(test::same(mine.bytes(), table));
        auto const put = co_await inbox.async_write(96, mine.slice(0, 4000), asio::use_awaitable);
        CHECK(put == 4000);
        // The memory is read only after a message that follows the write.
        reply const answered = co_await [&]() -> asio::awaitable<reply> {
            auto const serve = [&]() -> asio::awaitable<void> {
                request r = co_await e.server.async_next(asio::use_awaitable);
                CHECK(r.operation() == 7);
                CHECK(text_of(r.bytes()) == "look");
                bool const is_there = std::equal(
                    input.begin() + 96, input.end(), table.begin(), table.begin() + 4000
                );
                co_await r.async_answer(is_there, {}, asio::use_awaitable);
            };
            auto const ask = [&]() -> asio::awaitable<reply> {
                auto const look = bytes_of("look");
                co_return co_await e.client.next_layer().async_request(
                    7, look, asio::use_awaitable
                );
            };
            co_return co_await (ask() && serve());
        }();
        CHECK(answered.status() == 1);

        auto const [range, none] = co_await theirs.async_read(4097, mine.slice(0, 4096), awaiting);
        CHECK(range == errc::out_of_range);
        CHECK(none == 0);
        auto const [denied, nothing] = co_await theirs.async_write(0, mine.slice(), awaiting);
        CHECK(denied == errc::access_denied);
        CHECK(nothing == 0);
        auto const [cell, before] = co_await theirs.async_fetch_add(0, 1, awaiting);
        CHECK(cell == errc::access_denied);
        auto const [empty, zero] = co_await theirs.async_read(8192, mutable_slice{}, awaiting);
        CHECK_FALSE(empty);
        auto const [unknown, no] = co_await e.client.async_find("tables", awaiting);
        CHECK(unknown == channel_errc::no_such_region);
        CHECK_FALSE(no.is_valid());
        auto const [nameless, invalid] = co_await e.client.async_find("", awaiting);
        CHECK(nameless == errc::invalid_option);
        // The other side may look, too.
        auto const [not_offered, nil] = co_await e.server.async_find("table", awaiting);
        CHECK(not_offered == channel_errc::no_such_region);
        co_await part_regions(e);
        auto const [ended, left] = co_await theirs.async_read(0, mine.slice(), awaiting);
        CHECK(ended);
        CHECK(theirs.is_withdrawn());
        CHECK(e.server.statistics().granted == 0);
        CHECK(e.server.statistics().registrations == 0);
    });
}

TEST_CASE("a region of several ranges and pieces is one to the peer", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io, {.piece_bytes = 4096}};
        auto whole = pattern(300'001, 3);
        std::vector<std::byte> first{whole.begin(), whole.begin() + 10'000};
        std::vector<std::byte> second{whole.begin() + 10'000, whole.begin() + 299'999};
        std::vector<std::byte> third{whole.begin() + 299'999, whole.end()};
        e.offers.offer("all", {first, second, third}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const all = co_await e.client.async_find("all", asio::use_awaitable);
        CHECK(all.size() == whole.size());
        // As many keys come with the answer as fit; the others when they are needed.
        std::size_t const at_first = e.server.statistics().registrations;
        CHECK(at_first > 0);
        CHECK(at_first < 3 + 71 + 1);
        registered_buffer const mine = e.local(400'000);
        auto const read = [&](std::uint64_t offset, std::size_t bytes) -> asio::awaitable<bool> {
            std::ranges::fill(mine.bytes(), std::byte{0});
            // Into slices whose borders are others than those of the pieces.
            std::size_t const one = bytes / 3;
            std::array const into{
                mine.slice(0, one), mine.slice(one, 1), mine.slice(one + 1, bytes - one - 1)};
            auto const got = co_await all.async_read(offset, into, asio::use_awaitable);
            co_return got == bytes&& std::equal(
                                 mine.bytes().begin(),
                                 mine.bytes().begin() + static_cast<std::ptrdiff_t>(bytes),
                                 whole.begin() + static_cast<std::ptrdiff_t>(offset)
                             );
        };
        bool const across_one = co_await read(9'000, 2'000);
        CHECK(across_one);
        bool const tiny = co_await read(4'095, 3);
        CHECK(tiny);
        bool const to_the_end = co_await read(299'990, 11);
        CHECK(to_the_end);
        bool const everything = co_await read(0, whole.size());
        CHECK(everything);
        CHECK(e.server.statistics().registrations == 3 + 71 + 1);
        CHECK(e.server.statistics().registered_bytes == whole.size());
        fill(mine.bytes(), 9);
        auto const put =
            co_await all.async_write(1'000, mine.slice(0, 250'000), asio::use_awaitable);
        CHECK(put == 250'000);
        std::copy_n(mine.bytes().begin(), 250'000, whole.begin() + 1'000);
        bool const everything_again = co_await read(0, whole.size());
        CHECK(everything_again);
        co_await part_regions(e);
    });
}

TEST_CASE("atomics on cells of the peer, through a typed array", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io, {.piece_bytes = 4096}};
        std::vector<std::uint64_t> cells(1024);
        for (std::size_t i = 0; i < cells.size(); ++i) cells[i] = i;
        e.offers.offer("cells", std::span{cells}, all_rights);
        co_await meet_regions(io, e);
        remote_array<std::uint64_t> const theirs{
            co_await e.client.async_find("cells", asio::use_awaitable)};
        CHECK(theirs.size() == 1024);
        auto const before = co_await theirs.async_fetch_add(1023, 5, asio::use_awaitable);
        CHECK(before == 1023);
        auto const before_second = co_await theirs.async_fetch_add(1023, 1, asio::use_awaitable);
        CHECK(before_second == 1028);
        auto const swapped = co_await theirs.async_compare_swap(600, 600, 7, asio::use_awaitable);
        CHECK(swapped == 600);
        auto const not_swapped =
            co_await theirs.async_compare_swap(600, 600, 8, asio::use_awaitable);
        CHECK(not_swapped == 7);
        auto const [beyond, none] = co_await theirs.async_fetch_add(1024, 1, awaiting);
        CHECK(beyond == errc::out_of_range);
        auto const [wraps, no] =
            co_await theirs.async_fetch_add(std::uint64_t{1} << 62, 1, awaiting);
        CHECK(wraps == errc::out_of_range);
        auto const [odd, nothing] = co_await theirs.memory().async_fetch_add(4, 1, awaiting);
        CHECK(odd == errc::misaligned);
        registered_buffer const mine = e.local(16);
        auto const read_bytes = co_await theirs.async_read(600, mine.slice(), asio::use_awaitable);
        CHECK(read_bytes == 16);
        std::array<std::uint64_t, 2> values{};
        std::memcpy(values.data(), mine.bytes().data(), 16);
        CHECK(values == std::array<std::uint64_t, 2>{7, 601});
        co_await part_regions(e);
    });
}

TEST_CASE("a cell whose key has not come yet, and one across the border of pieces", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io, {.piece_bytes = 4096}};
        std::vector<std::uint64_t> cells(65'536, 3);
        e.offers.offer("cells", std::span{cells}, all_rights);
        co_await meet_regions(io, e);
        remote_memory const theirs = co_await e.client.async_find("cells", asio::use_awaitable);
        std::size_t const at_first = e.server.statistics().registrations;
        auto const before = co_await theirs.async_fetch_add(524'280, 5, asio::use_awaitable);
        CHECK(before == 3);
        CHECK(e.server.statistics().registrations > at_first);
        auto const swapped = co_await theirs.async_compare_swap(400'000, 3, 4, asio::use_awaitable);
        CHECK(swapped == 3);
        auto const [across, none] = co_await theirs.async_fetch_add(4092, 1, awaiting);
        CHECK(across == errc::misaligned);
        co_await part_regions(e);
    });
}

TEST_CASE("a find waits until its region is offered, and no longer than it should", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        co_await meet_regions(io, e);
        auto const [early, none] = co_await e.client.async_find("later", 1ms, awaiting);
        CHECK(early == channel_errc::no_such_region);
        asio::cancellation_signal stop;
        std::optional<error_code> cancelled;
        e.client.async_find(
            "never",
            1h,
            asio::bind_cancellation_slot(
                stop.slot(), [&](error_code ec, remote_memory const&) { cancelled = ec; }
            )
        );
        auto const offer = [&]() -> asio::awaitable<void> {
            co_await pause(io, 5ms);
            stop.emit(asio::cancellation_type::total);
            e.offers.offer("later", std::span{bytes}, access_flags::remote_read);
        };
        std::optional<remote_memory> first;
        std::optional<remote_memory> second;
        auto const find = [&](std::optional<remote_memory>& into) -> asio::awaitable<void> {
            into = co_await e.client.async_find("later", 1h, asio::use_awaitable);
        };
        co_await (find(first) && find(second) && offer());
        CHECK(first->size() == 4096);
        CHECK(*first == *second);
        co_await until(io, [&] { return cancelled.has_value(); });
        CHECK(cancelled == asio::error::operation_aborted);
        CHECK(e.server.statistics().granted == 1);
        co_await part_regions(e);
    });
}

TEST_CASE("a find that was cancelled asks for nothing any more", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        co_await meet_regions(io, e);
        constexpr int finds = 30;
        int cancelled = 0;
        std::vector<asio::cancellation_signal> stop(finds);
        for (auto& signal : stop)
            e.client.async_find(
                "later",
                1h,
                asio::bind_cancellation_slot(
                    signal.slot(), [&](error_code, remote_memory const&) { ++cancelled; }
                )
            );
        auto const asked = [&] { return e.server.next_layer().statistics().arrived; };
        co_await until(io, [&] { return e.client.next_layer().statistics().answered == finds; });
        for (auto& signal : stop) signal.emit(asio::cancellation_type::total);
        co_await until(io, [&] { return cancelled == finds; });
        e.offers.offer("later", std::span{bytes}, access_flags::remote_read);
        auto const change = co_await e.client.async_next_change(asio::use_awaitable);
        CHECK(change.name == "later");
        auto const found = co_await e.client.async_find("later", asio::use_awaitable);
        CHECK(found.is_valid());
        CHECK(asked() == finds + 1);
        co_await part_regions(e);
    });
}

TEST_CASE("the last handle gives the memory back, and a find may cross that", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
        co_await meet_regions(io, e);
        registered_buffer const mine = e.local(4096);
        {
            remote_memory one = co_await e.client.async_find("table", asio::use_awaitable);
            remote_memory const two = one;
            one = {};
            CHECK(e.server.statistics().granted == 1);
        }
        co_await until(io, [&] { return e.server.statistics().granted == 0; });
        CHECK(e.server.statistics().registrations == 0);
        // A find is under way while the last handle of an earlier one goes.
        for (int i = 0; i < 50; ++i) {
            remote_memory held = co_await e.client.async_find("table", asio::use_awaitable);
            auto const again = [&]() -> asio::awaitable<void> {
                remote_memory const other =
                    co_await e.client.async_find("table", asio::use_awaitable);
                auto const got = co_await other.async_read(0, mine.slice(), asio::use_awaitable);
                CHECK(got == 4096);
            };
            auto const drop = [&]() -> asio::awaitable<void> {
                if (i % 2 == 0) co_await pause(io, 0ms);
                held = {};
            };
            co_await (again() && drop());
        }
        co_await until(io, [&] { return e.server.statistics().granted == 0; });
        co_await part_regions(e);
    });
}

TEST_CASE("withdrawing waits for what is under way, and refuses what comes later", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto const content = pattern(1 << 20, 1);
        auto bytes = content;
        e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
        co_await meet_regions(io, e);
        remote_memory const theirs = co_await e.client.async_find("table", asio::use_awaitable);
        registered_buffer const mine = e.local(16 << 20);
        std::size_t complete = 0;
        for (std::size_t i = 0; i < 16; ++i) {
            theirs.async_read(0, mine.slice(i << 20, 1 << 20), [&, i](error_code ec, std::size_t) {
                bool const is_equal = test::same(mine.bytes().subspan(i << 20, 1 << 20), content);
                complete += !ec && is_equal;
            });
        }
        CHECK(e.offers.size() == 1);
        auto const [withdrawn] = co_await e.offers.async_withdraw("table", awaiting);
        CHECK_FALSE(withdrawn);
        // Now it may be anything.
        std::ranges::fill(bytes, std::byte{0});
        CHECK(e.offers.size() == 0);
        CHECK(e.server.statistics().granted == 0);
        CHECK(e.server.statistics().registrations == 0);
        co_await until(io, [&] { return complete == 16; });
        CHECK(theirs.is_withdrawn());
        auto const [late, none] = co_await theirs.async_read(0, mine.slice(0, 4096), awaiting);
        CHECK(late == channel_errc::region_withdrawn);
        CHECK(late == condition::operation_only);
        auto const [gone, no] = co_await e.client.async_find("table", awaiting);
        CHECK(gone == channel_errc::no_such_region);
        auto const [twice] = co_await e.offers.async_withdraw("table", awaiting);
        CHECK(twice == channel_errc::no_such_region);
        // Another region of that name is another one.
        bytes = content;
        e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
        remote_memory const other = co_await e.client.async_find("table", asio::use_awaitable);
        CHECK_FALSE(other == theirs);
        auto const read_bytes =
            co_await other.async_read(0, mine.slice(0, 4096), asio::use_awaitable);
        CHECK(read_bytes == 4096);
        CHECK(e.client.is_open());
        co_await part_regions(e);
    });
}

TEST_CASE("a peer that finishes still confirms a withdrawal", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
        co_await meet_regions(io, e);
        remote_memory const theirs = co_await e.client.async_find("table", asio::use_awaitable);
        std::optional<error_code> finished;
        e.client.async_finish([&](error_code ec) { finished = ec; });
        auto const [ended, none] = co_await e.server.async_next(awaiting);
        CHECK(ended == asio::error::eof);
        co_await e.offers.async_withdraw("table", asio::use_awaitable);
        CHECK(theirs.is_withdrawn());
        CHECK_FALSE(finished);
        CHECK(e.server.is_open());
        co_await e.server.async_finish(asio::use_awaitable);
        co_await until(io, [&] { return finished.has_value(); });
        CHECK_FALSE(*finished);
    });
}

TEST_CASE("finds and withdrawals that cross harm nobody", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        co_await meet_regions(io, e);
        registered_buffer const mine = e.local(4 * 4096);
        bool is_over = false;
        int used = 0;
        auto const use = [&](std::size_t which) -> asio::awaitable<void> {
            while (!is_over) {
                auto const [ec, theirs] = co_await e.client.async_find("table", awaiting);
                if (ec == channel_errc::no_such_region) continue;
                CHECK_FALSE(ec);
                auto const [failed, size] =
                    co_await theirs.async_read(0, mine.slice(which * 4096, 4096), awaiting);
                if (failed != channel_errc::region_withdrawn) CHECK_FALSE(failed);
                used += !failed;
            }
        };
        auto const come_and_go = [&]() -> asio::awaitable<void> {
            for (int i = 0; i < 100; ++i) {
                e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
                if (i % 3 > 0) co_await pause(io, std::chrono::milliseconds{i % 3});
                co_await e.offers.async_withdraw("table", asio::use_awaitable);
            }
            is_over = true;
        };
        co_await (use(0) && use(1) && use(2) && use(3) && come_and_go());
        CHECK(used > 0);
        CHECK(e.server.statistics().granted == 0);
        co_await part_regions(e);
    });
}

TEST_CASE("changes of the peer's offers arrive in order, and those that are lost are told") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        using kind = region_change::kind;
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        region_channel_options few;
        few.changes_max = 3;
        co_await meet_regions(io, e, few);
        e.offers.offer("a", std::span{bytes}, access_flags::remote_read);
        co_await e.offers.async_withdraw("a", asio::use_awaitable);
        region_change change = co_await e.client.async_next_change(asio::use_awaitable);
        CHECK((change.what == kind::offered && change.name == "a"));
        change = co_await e.client.async_next_change(asio::use_awaitable);
        CHECK((change.what == kind::withdrawn && change.name == "a"));
        for (char const* name : {"b", "c", "d", "e", "f"})
            e.offers.offer(name, std::span{bytes}, access_flags::remote_read);
        // A notice of the program's, which arrives behind those of the channel.
        co_await e.offers.async_withdraw("f", asio::use_awaitable);
        co_await e.server.next_layer().async_notify(1, {}, asio::use_awaitable);
        static_cast<void>(co_await e.client.async_next(asio::use_awaitable));
        for (char const* name : {"b", "c", "d"}) {
            change = co_await e.client.async_next_change(asio::use_awaitable);
            CHECK((change.what == kind::offered && change.name == name));
        }
        change = co_await e.client.async_next_change(asio::use_awaitable);
        CHECK(change.what == kind::missed);
        e.offers.offer("g", std::span{bytes}, access_flags::remote_read);
        change = co_await e.client.async_next_change(asio::use_awaitable);
        CHECK((change.what == kind::offered && change.name == "g"));
        auto const end = [&]() -> asio::awaitable<void> {
            auto const [ec, none] = co_await e.client.async_next_change(awaiting);
            CHECK(ec == asio::error::eof);
        };
        co_await (end() && part_regions(e));
    });
}

TEST_CASE("a region of too many pieces is refused, and harms no other", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io, {.piece_bytes = 4096}};
        constexpr std::size_t size = std::size_t{1} << 30;
        void* const mapped =
            ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        REQUIRE(mapped != MAP_FAILED);
        auto bytes = pattern(4096, 1);
        std::span const large{static_cast<std::byte*>(mapped), size};
        e.offers.offer("large", large, access_flags::remote_read);
        e.offers.offer("good", std::span{bytes}, access_flags::remote_read);
        co_await meet_regions(io, e);
        auto const [refused, none] = co_await e.client.async_find("large", awaiting);
        CHECK(refused == boost::system::errc::argument_list_too_long);
        CHECK(e.server.statistics().granted == 0);
        remote_memory const good = co_await e.client.async_find("good", asio::use_awaitable);
        CHECK(good.size() == 4096);
        co_await part_regions(e);
        ::munmap(mapped, size);
    });
}

TEST_CASE("offers are checked, and a name is offered once", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        std::span<std::byte> const some{bytes};
        auto const code_of = [&](auto const& name, auto const& memory, access_flags rights) {
            try {
                e.offers.offer(name, memory, rights);
            } catch (boost::system::system_error const& failed) {
                return failed.code();
            }
            return error_code{};
        };
        std::vector<std::span<std::byte>> const many(17, some);
        std::vector<std::span<std::byte>> const none;
        constexpr access_flags read = access_flags::remote_read;
        CHECK(code_of("", some, read) == errc::invalid_option);
        CHECK(code_of(std::string(256, 'n'), some, read) == errc::invalid_option);
        CHECK(code_of("a", some.first(0), read) == errc::invalid_option);
        CHECK(code_of("a", some, access_flags::local_write) == errc::invalid_option);
        CHECK(code_of("a", some, read | access_flags::local_write) == errc::invalid_option);
        CHECK(code_of("a", many, read) == errc::invalid_option);
        CHECK(code_of("a", none, read) == errc::invalid_option);
        CHECK_FALSE(code_of(std::string(255, 'n'), some, read));
        CHECK_FALSE(code_of("a", some, read));
        CHECK(code_of("a", some, read) == boost::system::errc::file_exists);
        CHECK(e.offers.size() == 2);
        co_await meet_regions(io, e);
        remote_memory const found =
            co_await e.client.async_find(std::string(255, 'n'), asio::use_awaitable);
        CHECK(found.size() == 4096);
        co_await part_regions(e);
    });
}

TEST_CASE("many peers have a region, and all give it back", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        region_offers const offers{io, {.withdraw_timeout = 60s}};
        auto bytes = pattern(65'536, 1);
        region_offers mine = offers;
        mine.offer("table", std::span{bytes}, all_rights);
        constexpr std::size_t peers = 12;
        constexpr std::size_t leaves = 5;
        std::vector<region_channel> servers(peers);
        std::vector<region_channel> clients(peers);
        std::size_t found = 0;
        std::size_t stopped = 0;
        for (std::size_t i = 0; i < peers; ++i) {
            clients[i] = region_channel{without_retries(io.get_executor())};
            auto const answer = [&]() -> asio::awaitable<void> {
                connection_request asked = co_await door.async_get_request(asio::use_awaitable);
                servers[i] = region_channel{
                    without_retries(io.get_executor(), std::move(asked)), {.offers = mine}};
                co_await servers[i].async_accept(asio::use_awaitable);
            };
            co_await (
                answer() && clients[i].async_connect(door.local_endpoint(), asio::use_awaitable)
            );
        }
        auto const work = [&](std::size_t i) -> asio::awaitable<void> {
            remote_memory const theirs =
                co_await clients[i].async_find("table", asio::use_awaitable);
            ++found;
            registered_buffer const local{
                clients[i].next_layer().next_layer().domain(), 4096, access_flags::local_write};
            for (;;) {
                auto const [ec, size] =
                    co_await theirs.async_read(i * 4096, local.slice(), awaiting);
                if (ec == channel_errc::region_withdrawn || (ec && i == leaves)) break;
                CHECK_FALSE(ec);
                auto const [bad, before] = co_await theirs.async_fetch_add(0, 1, awaiting);
                if (bad == channel_errc::region_withdrawn || (bad && i == leaves)) break;
                CHECK_FALSE(bad);
            }
            ++stopped;
        };
        for (std::size_t i = 0; i < peers; ++i) asio::co_spawn(io, work(i), asio::detached);
        co_await until(io, [&] { return found == peers; });
        for (region_channel const& c : servers) CHECK(c.statistics().granted == 1);
        // One leaves without a word.
        clients[leaves].close();
        co_await mine.async_withdraw("table", asio::use_awaitable);
        std::ranges::fill(bytes, std::byte{0});
        for (region_channel const& s : servers) CHECK(s.statistics().granted == 0);
        co_await until(io, [&] { return stopped == peers; });
    });
}

TEST_CASE("a region channel takes a request channel that is open", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        region_ends e{io};
        auto bytes = pattern(4096, 1);
        e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
        request_channel client = without_retries(io.get_executor());
        request_channel server;
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            server = without_retries(io.get_executor(), std::move(asked));
            co_await server.async_accept(asio::use_awaitable);
        };
        co_await (answer() && client.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        e.client = region_channel{std::move(client)};
        e.server = region_channel{std::move(server), {.offers = e.offers}};
        remote_memory const table = co_await e.client.async_find("table", asio::use_awaitable);
        CHECK(table.size() == 4096);
        co_await part_regions(e);
        CHECK_THROWS_AS(region_channel{request_channel{}}, boost::system::system_error);
        region_channel_options none;
        none.changes_max = 0;
        CHECK_THROWS_AS((region_channel{io, none}), boost::system::system_error);
        CHECK_THROWS_AS((region_offers{io, {.piece_bytes = 4095}}), boost::system::system_error);
    });
}

TEST_CASE("regions are found, used and withdrawn from many threads", "[device]") {
    asio::thread_pool pool{4};
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor door{io, {device_address(), 0}};
        region_offers offers{pool.get_executor(), {.withdraw_timeout = 60s}};
        std::vector<std::uint64_t> cells(512);
        region_channel client{without_retries(pool.get_executor())};
        region_channel server;
        auto connected = client.async_connect(door.local_endpoint(), asio::use_future);
        connection_request asked = co_await door.async_get_request(asio::use_awaitable);
        server = region_channel{
            without_retries(pool.get_executor(), std::move(asked)), {.offers = offers}};
        server.async_accept(asio::use_future).get();
        connected.get();
        std::atomic<std::uint64_t> added{0};
        // Until the channel has ended. No exception crosses the threads.
        auto const add = [&](std::uint64_t which) {
            for (;;) {
                auto const [none, theirs] = blocked<remote_memory>([&](auto handler) {
                    client.async_find("cells", 1h, std::move(handler));
                });
                if (none) return;
                remote_array<std::uint64_t> const found{theirs};
                for (;;) {
                    auto const [ec, before] = blocked<std::uint64_t>([&](auto handler) {
                        found.async_fetch_add(which, 1, std::move(handler));
                    });
                    if (ec) break;
                    ++added;
                }
            }
        };
        std::vector<std::jthread> threads;
        for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back(add, i);
        std::uint64_t counted = 0;
        for (int i = 0; i < 20; ++i) {
            offers.offer("cells", std::span{cells}, access_flags::remote_atomic);
            co_await pause(io, 3ms);
            co_await offers.async_withdraw("cells", asio::use_awaitable);
            for (std::uint64_t& c : cells) counted += std::exchange(c, 0);
        }
        client.close();
        threads.clear();
        CHECK(counted == added);
        CHECK(added > 0);
        server.close();
    });
    pool.join();
}

TEST_CASE("a context that is destroyed takes finds, changes and withdrawals with it", "[device]") {
    std::optional<asio::io_context> io{std::in_place};
    auto e = std::make_unique<region_ends>(*io);
    auto bytes = pattern(1 << 20, 1);
    // Handlers may run until the context stops, but not while it is destroyed.
    bool is_stopped = false;
    std::string called;
    auto const call = [&](char const* what) {
        return [&, what](auto&&...) {
            if (is_stopped) called += what;
        };
    };
    remote_memory found;
    registered_buffer mine;
    asio::co_spawn(
        *io,
        [&]() -> asio::awaitable<void> {
            e->offers.offer("table", std::span{bytes}, access_flags::remote_read);
            co_await meet_regions(*io, *e);
            found = co_await e->client.async_find("table", asio::use_awaitable);
            mine = e->local(1 << 20);
            e->client.async_find("never", 1h, call("find "));
            e->client.async_next_change(call("change "));
            e->client.async_next(call("next "));
            found.async_read(0, mine.slice(), call("read "));
            e->offers.async_withdraw("table", call("withdraw "));
            io->stop();
        },
        asio::detached
    );
    io->run();
    is_stopped = true;
    auto client = std::move(e->client);
    auto server = std::move(e->server);
    auto offers = std::move(e->offers);
    mine = {};
    e.reset();
    io.reset();
    CHECK(called.empty());
    CHECK(found.is_withdrawn());
}

// --- hostile peers -------------------------------------------------------------------------------

TEST_CASE("a peer whose messages about regions lie loses its own connection", "[device][hostile]") {
    struct forged_message {
        char const* what;
        bool is_notice;
        std::uint32_t operation;
        std::vector<std::byte> body;
    };
    auto const numbers = [](std::uint64_t first, std::uint64_t second, std::uint64_t third) {
        std::vector<std::byte> b;
        put(b, first, 8);
        put(b, second, 4);
        put(b, third, 4);
        return b;
    };
    auto const cut = [](std::vector<std::byte> b, std::size_t size) {
        b.resize(size);
        return b;
    };
    // 1 stands for the number of the offer that the peer has found.
    std::vector<forged_message> const all{
        {"an operation of none", false, 0xffffff7f, {}},
        {"the last operation", true, 0xffffffff, {}},
        {"a find without a name", false, op_find, find_message("")},
        {"a find with a name that is too long",
         false,
         op_find,
         find_message(std::string(256, 'n'))},
        {"half a find", false, op_find, cut(find_message("table"), 3)},
        {"a find as a notice", true, op_find, find_message("table")},
        {"a large find", false, op_find, find_message(std::string(5000, 'n'))},
        {"keys of none", false, op_keys, numbers(1, 0, 0)},
        {"keys beyond the end", false, op_keys, numbers(1, 4, 1)},
        {"keys across the end", false, op_keys, numbers(1, 3, 2)},
        {"keys that wrap", false, op_keys, numbers(1, 0xffffffff, 2)},
        {"too many keys", false, op_keys, numbers(1, 0, 65)},
        {"half a question for keys", false, op_keys, cut(numbers(1, 0, 1), 15)},
        {"a long question for keys", false, op_keys, cut(numbers(1, 0, 1), 17)},
        {"a withdrawal as a notice", true, op_withdraw, cut(numbers(1, 0, 0), 8)},
        {"half a withdrawal", false, op_withdraw, cut(numbers(1, 0, 0), 7)},
        {"an offer as a request", false, op_offered, bytes_of("table")},
        {"an offer without a name", true, op_offered, {}},
        {"a large offer", true, op_offered, cut({}, 5000)},
        {"more given back than was found", true, op_dropped, numbers(1, 2, 0)},
        {"nothing given back", true, op_dropped, numbers(1, 0, 0)},
        {"given back with more", true, op_dropped, numbers(1, 1, 1)},
        {"given back as a request", false, op_dropped, numbers(1, 1, 0)},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        auto bytes = pattern(4 * 4096, 1);
        for (forged_message f : all) {
            INFO(f.what);
            hostile_region_ends e{io, {.piece_bytes = 4096}};
            e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
            co_await meet_forger(io, e);
            auto const find = find_message("table");
            reply const found = co_await e.peer.async_request(op_find, find, asio::use_awaitable);
            CHECK(found.status() == 0);
            if (f.operation == op_keys || f.operation == op_dropped)
                std::copy_n(found.bytes().begin(), 8, f.body.begin());
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
            co_await until(io, [&] { return e.server.statistics().granted == 0; });
            co_await e.offers.async_withdraw("table", asio::use_awaitable);
        }
    });
}

TEST_CASE(
    "numbers that a peer makes up have a status, and the connection goes on", "[device][hostile]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_region_ends e{io};
        auto bytes = pattern(4096, 1);
        e.offers.offer("table", std::span{bytes}, access_flags::remote_read);
        co_await meet_forger(io, e);
        std::vector<std::byte> made_up;
        put(made_up, 0x1234567890, 8);
        put(made_up, 0, 4);
        put(made_up, 1, 4);
        auto const status_of = [&](std::uint32_t operation,
                                   std::vector<std::byte> body) -> asio::awaitable<std::uint32_t> {
            reply const r = co_await e.peer.async_request(operation, body, asio::use_awaitable);
            co_return r.status();
        };
        auto const unknown_keys = co_await status_of(op_keys, made_up);
        CHECK(unknown_keys == 1);
        auto const value12 =
            co_await status_of(op_withdraw, {made_up.begin(), made_up.begin() + 8});
        CHECK(value12 == 0);
        auto const unknown_name = co_await status_of(op_find, find_message("other"));
        CHECK(unknown_name == 1);
        auto const other_version = co_await status_of(op_find, find_message("table", 2));
        CHECK(other_version == 3);
        std::vector<std::byte> dropped{made_up.begin(), made_up.begin() + 8};
        put(dropped, 1, 4);
        put(dropped, 0, 4);
        co_await e.peer.async_notify(op_dropped, dropped, asio::use_awaitable);
        // A thousand finds are one registration.
        for (int i = 0; i < 1000; ++i) {
            auto const status = co_await status_of(op_find, find_message("table"));
            CHECK(status == 0);
        }
        CHECK(e.server.statistics().registrations == 1);
        CHECK(e.server.is_open());
    });
}

TEST_CASE(
    "a peer that does not confirm loses its connection, not the owner its memory",
    "[device][hostile]"
) {
    bool const answers_wrongly = GENERATE(false, true);
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_region_ends e{io, {.withdraw_timeout = 50ms}};
        auto bytes = pattern(4096, 1);
        e.offers.offer("table", std::span{bytes}, access_flags::remote_write);
        co_await meet_forger(io, e);
        auto const find = find_message("table");
        reply const found = co_await e.peer.async_request(op_find, find, asio::use_awaitable);
        auto const answer_wrongly = [&]() -> asio::awaitable<void> {
            for (;;) {
                auto [ec, r] = co_await e.peer.async_next(awaiting);
                if (ec) break;
                if (r.wants_answer()) co_await r.async_answer(9, {}, awaiting);
            }
        };
        // Otherwise nobody takes what arrives.
        if (answers_wrongly) {
            co_await (answer_wrongly() && e.offers.async_withdraw("table", asio::use_awaitable));
        } else {
            co_await e.offers.async_withdraw("table", asio::use_awaitable);
        }
        CHECK_FALSE(e.server.is_open());
        CHECK(e.server.statistics().registrations == 0);
        CHECK(
            e.server.last_failure().code == (answers_wrongly
                                                 ? make_error_code(channel_errc::malformed_message)
                                                 : make_error_code(errc::timed_out))
        );
        CHECK(
            e.server.last_failure().reason ==
            (answers_wrongly ? close_reason::protocol_error : close_reason::timed_out)
        );
        // The key is dead, and so is the connection.
        registered_buffer const mine{e.peer.next_layer().domain(), 4096, access_flags::local_write};
        remote_region const stale{
            number_in(found, 32, 8),
            4096,
            remote_key{static_cast<std::uint32_t>(number_in(found, 40, 4))},
            access_flags::remote_write};
        auto const [ec, size] =
            co_await e.peer.next_layer().async_write(mine.slice(), stale, awaiting);
        CHECK(ec);
        CHECK(test::same(bytes, pattern(4096, 1)));
    });
}

TEST_CASE(
    "a peer that takes no notices does not lose its connection by those of others", "[device]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_region_ends e{io};
        auto bytes = pattern(4096, 1);
        co_await meet_forger(io, e);
        // As a third peer would with the names of its own.
        for (int i = 0; i < 5000; ++i) {
            std::string const name = "name" + std::to_string(i);
            e.offers.offer(name, std::span{bytes}, access_flags::remote_read);
            co_await e.offers.async_withdraw(name, asio::use_awaitable);
        }
        e.offers.offer("last", std::span{bytes}, access_flags::remote_read);
        CHECK(e.server.is_open());
        // What it takes in the end is what there is.
        std::set<std::string> offered;
        int notices = 0;
        while (!offered.contains("last")) {
            request const r = co_await e.peer.async_next(asio::use_awaitable);
            std::string const name{
                reinterpret_cast<char const*>(r.bytes().data()), r.bytes().size()};
            if (r.operation() == op_offered) offered.insert(name);
            else offered.erase(name);
            ++notices;
        }
        CHECK(notices < 64);
        CHECK(offered == std::set<std::string>{"last"});
    });
}

TEST_CASE("a peer that leaves a notice until its deadline loses its connection", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_region_ends e{io};
        auto bytes = pattern(4096, 1);
        co_await meet_forger(io, e, 300ms);
        // More than it has places for: the rest waits.
        for (int i = 0; i < 64; ++i) {
            std::string const name = "name" + std::to_string(i);
            e.offers.offer(name, std::span{bytes}, access_flags::remote_read);
        }
        auto [ec, none] = co_await e.server.async_next(awaiting);
        CHECK(ec);
        CHECK(e.server.last_failure().code == channel_errc::request_timed_out);
        CHECK(e.server.last_failure().reason == close_reason::timed_out);
        CHECK_FALSE(e.server.is_open());
    });
}

TEST_CASE(
    "an access with a withdrawn key ends the offender's connection and no other",
    "[device][hostile]"
) {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        hostile_region_ends e{io};
        auto bytes = pattern(4096, 1);
        auto more = pattern(4096, 2);
        e.offers.offer("table", std::span{bytes}, access_flags::remote_write);
        e.offers.offer("other", std::span{more}, access_flags::remote_read);
        co_await meet_forger(io, e);
        // An honest peer of the same server.
        region_channel honest_server;
        region_channel honest{without_retries(io.get_executor())};
        auto const answer = [&]() -> asio::awaitable<void> {
            connection_request asked = co_await e.door.async_get_request(asio::use_awaitable);
            honest_server = region_channel{
                without_retries(io.get_executor(), std::move(asked)), {.offers = e.offers}};
            co_await honest_server.async_accept(asio::use_awaitable);
        };
        co_await (answer() && honest.async_connect(e.door.local_endpoint(), asio::use_awaitable));
        remote_memory const other = co_await honest.async_find("other", asio::use_awaitable);
        auto const find = find_message("table");
        reply const found = co_await e.peer.async_request(op_find, find, asio::use_awaitable);
        auto const confirm = [&]() -> asio::awaitable<void> {
            for (;;) {
                request r = co_await e.peer.async_next(asio::use_awaitable);
                if (!r.wants_answer()) continue;
                co_await r.async_answer(0, {}, asio::use_awaitable);
                co_return;
            }
        };
        co_await (confirm() && e.offers.async_withdraw("table", asio::use_awaitable));
        CHECK(e.server.is_open());
        registered_buffer const mine{e.peer.next_layer().domain(), 4096, access_flags::local_write};
        remote_region const stale{
            number_in(found, 32, 8),
            4096,
            remote_key{static_cast<std::uint32_t>(number_in(found, 40, 4))},
            access_flags::remote_write};
        auto const [ec, size] =
            co_await e.peer.next_layer().async_write(mine.slice(), stale, awaiting);
        CHECK(ec == wc_errc::remote_access);
        CHECK(test::same(bytes, pattern(4096, 1)));
        registered_buffer const local{
            honest.next_layer().next_layer().domain(), 4096, access_flags::local_write};
        auto const read_bytes = co_await other.async_read(0, local.slice(), asio::use_awaitable);
        CHECK(read_bytes == 4096);
        CHECK(test::same(local.bytes(), more));
    });
}

TEST_CASE("an owner whose answers lie loses its connection, or harms nobody", "[device][hostile]") {
    struct forged_answer {
        char const* what;
        std::uint32_t status;
        std::vector<std::byte> body;
        bool is_violation;
    };
    auto const found = [](std::uint32_t rights,
                          std::vector<std::uint64_t> const& ranges,
                          std::uint64_t piece,
                          std::size_t keys) {
        std::vector<std::byte> b;
        put(b, 77, 8);
        put(b, rights, 4);
        put(b, ranges.size(), 2);
        put(b, keys, 2);
        put(b, piece, 8);
        for (std::uint64_t const r : ranges) put(b, r, 8);
        b.resize(b.size() + keys * 12);
        return b;
    };
    std::vector<std::byte> longer = found(4, {4096}, 4096, 1);
    longer.push_back({});
    std::vector<std::byte> number;
    put(number, 5000, 4);
    std::vector<forged_answer> const all{
        {"a status of none", 4, {}, true},
        {"nothing", 0, {}, true},
        {"no ranges", 0, found(4, {}, 4096, 0), true},
        {"an empty range", 0, found(4, {4096, 0}, 4096, 0), true},
        {"too many ranges", 0, found(4, std::vector<std::uint64_t>(17, 4096), 4096, 0), true},
        {"pieces of nothing", 0, found(4, {4096}, 0, 0), true},
        {"too many pieces", 0, found(4, {std::uint64_t{1} << 40}, 1, 0), true},
        {"sizes that wrap",
         0,
         found(4, {std::uint64_t{1} << 63, std::uint64_t{1} << 63}, std::uint64_t{1} << 62, 0),
         true},
        {"unknown rights", 0, found(64, {4096}, 4096, 1), true},
        {"more keys than pieces", 0, found(4, {4096}, 4096, 2), true},
        {"more than it says", 0, longer, true},
        {"a large answer", 0, std::vector<std::byte>(5000), true},
        {"a refusal without a reason", 2, {}, true},
        {"a refusal with a reason of none", 2, number, true},
        {"keys that it never gives", 0, found(4, {4096}, 4096, 0), false},
        {"keys of nothing", 0, found(4, {4096}, 4096, 1), false},
    };
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        for (forged_answer const& f : all) {
            INFO(f.what);
            hostile_region_ends e{io};
            co_await meet_forger(io, e);
            auto const lie = [&]() -> asio::awaitable<void> {
                for (bool is_first = true;; is_first = false) {
                    auto [ec, r] = co_await e.peer.async_next(awaiting);
                    if (ec) break;
                    if (!r.wants_answer()) continue;
                    std::vector<std::byte> const body =
                        is_first ? f.body : std::vector<std::byte>{};
                    co_await r.async_answer(is_first ? f.status : 1, body, awaiting);
                }
            };
            auto const find = [&]() -> asio::awaitable<void> {
                auto const [ec, memory] = co_await e.server.async_find("table", awaiting);
                if (f.is_violation) {
                    CHECK(ec);
                    CHECK(e.server.last_failure().code == channel_errc::malformed_message);
                } else {
                    CHECK_FALSE(ec);
                    registered_buffer const mine{
                        e.server.next_layer().next_layer().domain(),
                        4096,
                        access_flags::local_write};
                    auto const [failed, size] =
                        co_await memory.async_read(0, mine.slice(), awaiting);
                    CHECK(failed);
                }
                e.server.close();
            };
            co_await (lie() && find());
        }
    });
}
