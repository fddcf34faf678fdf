// Memory windows open a range to one peer until they are invalidated, by this side or by the peer.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "device/fixture.hpp"
#include "examples/window_pool.hpp"
#include "support/bytes.hpp"

using namespace rcverbs;
using namespace test;

namespace {

// A server that exposes parts of its memory by windows, and a client that writes from `ours`.
struct exposing {
    explicit exposing(test::pair p)
        : ends{std::move(p)},
          pages{ends.server.domain(), 8192, access_flags::local_write | access_flags::bind_windows},
          ours{ends.client.domain(), 4096, access_flags::local_write} {}

    asio::awaitable<error_code> write(remote_region to) {
        auto [ec, n] = co_await ends.client.async_write(ours.slice(0, to.size()), to, awaiting);
        co_return ec;
    }
    asio::awaitable<error_code> read(remote_region from) {
        auto [ec, n] = co_await ends.client.async_read(from, ours.slice(0, from.size()), awaiting);
        co_return ec;
    }

    test::pair ends;
    registered_buffer pages;
    registered_buffer ours;
};

// Not in a CHECK, which g++ evaluates twice.
asio::awaitable<void> gives(asio::awaitable<error_code> operation, error_code expected) {
    error_code const ec = co_await std::move(operation);
    CHECK(ec == expected);
}

asio::awaitable<exposing> make(asio::io_context& io) { co_return exposing{co_await connect(io)}; }

}  // namespace

TEST_CASE("a window gives the peer access to a range until its key is invalidated", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        window w{e.ends.server};
        CHECK(w.is_valid());
        CHECK_FALSE(w.is_bound());
        access_flags const rights = access_flags::remote_write | access_flags::remote_read;
        remote_region const key =
            co_await w.async_bind(e.pages.slice(4096, 4096), rights, asio::use_awaitable);
        CHECK(w.is_bound());
        CHECK(key.address() == reinterpret_cast<std::uintptr_t>(e.pages.bytes().data()) + 4096);
        CHECK(key.size() == 4096);
        CHECK(key.rights() == rights);
        CHECK(w.remote().key().value == key.key().value);

        fill(e.ours.bytes(), 7);
        co_await gives(e.write(key), {});
        CHECK(same(e.pages.bytes().subspan(4096), e.ours.bytes()));
        fill(e.pages.bytes(), 8);
        co_await gives(e.read(key), {});
        CHECK(same(e.pages.bytes().subspan(4096), e.ours.bytes()));

        co_await w.async_invalidate(asio::use_awaitable);
        CHECK_FALSE(w.is_bound());
        std::vector<std::byte> const before(e.pages.bytes().begin(), e.pages.bytes().end());
        fill(e.ours.bytes(), 9);
        co_await gives(e.write(key), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
        CHECK(same(e.pages.bytes(), before));
        CHECK(e.ends.server.last_failure().reason != close_reason::open);
    });
}

TEST_CASE("a window grants no more rights than it was bound with", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        window w{e.ends.server};
        remote_region const key = co_await w.async_bind(
            e.pages.slice(0, 64), access_flags::remote_read, asio::use_awaitable
        );
        co_await gives(e.read(key), {});
        // The peer's own library would refuse this; a hostile one does not.
        remote_region const forged{
            key.address(), key.size(), key.key(), access_flags::remote_write};
        co_await gives(e.write(forged), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("each binding of a window has a key of its own, and old keys are invalid", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        window w{e.ends.server};
        std::vector<remote_region> keys;
        for (int i = 0; i < 100; ++i) {
            keys.push_back(co_await w.async_bind(
                e.pages.slice(0, 64), access_flags::remote_write, asio::use_awaitable
            ));
            co_await gives(e.write(keys.back()), {});
            if (i == 99) break;
            co_await w.async_invalidate(asio::use_awaitable);
        }
        for (std::size_t i = 1; i < keys.size(); ++i)
            CHECK(keys[i].key().value != keys[i - 1].key().value);
        // The window is bound, but not with this key.
        co_await gives(e.write(keys[42]), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("the peer's send with invalidate ends a binding", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        registered_buffer inbox{e.ends.server.domain(), 64, access_flags::local_write};
        window w{e.ends.server};
        remote_region const key = co_await w.async_bind(
            e.pages.slice(0, 64), access_flags::remote_write, asio::use_awaitable
        );
        std::optional<receive_result> got;
        e.ends.server.async_receive(inbox.slice(), [&](error_code ec, receive_result r) {
            CHECK_FALSE(ec);
            got = r;
        });
        co_await gives(e.write(key), {});
        auto [ec, n] = co_await e.ends.client.async_send_with_invalidate(
            e.ours.slice(0, 8), key.key(), awaiting
        );
        CHECK_FALSE(ec);
        asio::steady_timer timer{io};
        while (!got) {
            timer.expires_after(1ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
        // SoftRoCE invalidates, and does not say so.
        if (got->invalidated) CHECK(got->invalidated->value == key.key().value);
        w.mark_invalidated();
        remote_region const again = co_await w.async_bind(
            e.pages.slice(0, 64), access_flags::remote_write, asio::use_awaitable
        );
        co_await gives(e.write(again), {});
        co_await gives(e.write(key), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a key may be sent without waiting for its binding", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        registered_buffer inbox{e.ends.client.domain(), 64, access_flags::local_write};
        registered_buffer outbox{e.ends.server.domain(), 64, access_flags::local_write};
        window w{e.ends.server};
        int done = 0;
        e.ends.client.async_receive(inbox.slice(), [&](error_code ec, receive_result) {
            CHECK_FALSE(ec);
            ++done;
        });
        w.async_bind(
            e.pages.slice(0, 64),
            access_flags::remote_write,
            [&](error_code ec, remote_region const& key) {
                CHECK_FALSE(ec);
                CHECK(key.size() == 64);
                ++done;
            }
        );
        remote_region const key = w.remote();
        std::uint32_t const value = key.key().value;
        std::memcpy(outbox.bytes().data(), &value, sizeof value);
        co_await e.ends.server.async_send(outbox.slice(0, sizeof value), asio::use_awaitable);
        asio::steady_timer timer{io};
        while (done < 2) {
            timer.expires_after(1ms);
            co_await timer.async_wait(asio::use_awaitable);
        }
        std::uint32_t received = 0;
        std::memcpy(&received, inbox.bytes().data(), sizeof received);
        CHECK_FALSE(co_await e.write(remote_region{
            key.address(), 64, remote_key{received}, access_flags::remote_write}));
        co_await disconnect(e.ends);
    });
}

TEST_CASE("an invalid binding is refused before posting, and harms nothing", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        registered_buffer plain{e.ends.server.domain(), 64, access_flags::local_write};
        registered_buffer read_only{e.ends.server.domain(), 64, access_flags::bind_windows};
        window w{e.ends.server};
        auto const bind = [&](mutable_slice range,
                              access_flags rights) -> asio::awaitable<error_code> {
            auto [ec, key] = co_await w.async_bind(range, rights, awaiting);
            CHECK(key.size() == 0);
            co_return ec;
        };
        mutable_slice const page = e.pages.slice(0, 64);
        co_await gives(bind(page, access_flags::local_read), errc::access_denied);
        co_await gives(bind(page, access_flags::local_write), errc::access_denied);
        co_await gives(bind(plain.slice(), access_flags::remote_read), errc::access_denied);
        co_await gives(bind(read_only.slice(), access_flags::remote_write), errc::access_denied);
        co_await gives(bind({}, access_flags::remote_read), errc::out_of_range);
        mutable_slice gone;
        {
            registered_buffer const short_lived{
                e.ends.server.domain(), 64, access_flags::bind_windows};
            gone = short_lived.slice();
        }
        co_await gives(bind(gone, access_flags::remote_read), errc::region_gone);
        asio::io_context other;
        protection_domain const elsewhere = open_domain(other, {device_address(), 0});
        registered_buffer const foreign{elsewhere, 64, access_flags::bind_windows};
        co_await gives(bind(foreign.slice(), access_flags::remote_read), errc::foreign_domain);
        auto [unbound] = co_await w.async_invalidate(awaiting);
        CHECK(unbound == errc::window_unbound);
        co_await w.async_bind(page, access_flags::remote_read, asio::use_awaitable);
        auto [bound, key] = co_await w.async_bind(page, access_flags::remote_read, awaiting);
        CHECK(bound == errc::window_bound);
        CHECK_FALSE(is_fatal(bound));
        co_await gives(e.read(w.remote()), {});
        co_await w.async_invalidate(asio::use_awaitable);
        co_await disconnect(e.ends);
        auto [late, none] = co_await w.async_bind(page, access_flags::remote_read, awaiting);
        CHECK(late == errc::peer_disconnected);
        CHECK_THROWS_AS(window{e.ends.server}, boost::system::system_error);
        connection const idle{io};
        CHECK_THROWS_AS(window{idle}, boost::system::system_error);
        error_code why;
        window const missing{idle, why};
        CHECK(why == errc::not_connected);
        CHECK_FALSE(missing.is_valid());
    });
}

TEST_CASE("windows are bound and invalidated by batches", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        window first{e.ends.server};
        window second{e.ends.server};
        access_flags const rights = access_flags::remote_read | access_flags::remote_write;
        registered_buffer theirs{e.ends.client.domain(), 64, access_flags::remote_write};
        batch opening{e.ends.server};
        opening.add(op::bind(first, e.pages.slice(0, 64), rights))
            .add(op::write(e.pages.slice(0, 8), theirs.remote().slice(0, 8)))
            .add(op::bind(second, e.pages.slice(64, 64), rights));
        std::size_t const moved = co_await opening.async_submit(asio::use_awaitable);
        CHECK(moved == 8);
        CHECK(first.is_bound());
        CHECK(second.is_bound());
        CHECK(first.remote().size() == 64);
        CHECK(second.remote().address() == first.remote().address() + 64);
        remote_region const old = second.remote();
        co_await gives(e.write(first.remote()), {});
        co_await gives(e.write(old), {});

        // One window twice: refused as a whole.
        batch twice{e.ends.server};
        twice.add(op::invalidate(first)).add(op::bind(first, e.pages.slice(0, 64), rights));
        auto [refused, none] = co_await twice.async_submit(awaiting);
        CHECK(refused == errc::operation_in_progress);
        CHECK(first.is_bound());

        batch closing{e.ends.server};
        closing.add(op::invalidate(first)).add(op::invalidate(second));
        std::size_t const nothing = co_await closing.async_submit(asio::use_awaitable);
        CHECK(nothing == 0);
        CHECK_FALSE(first.is_bound());
        CHECK_FALSE(second.is_bound());
        // All that a refusal, or a binding, had taken is free again.
        remote_region const again =
            co_await first.async_bind(e.pages.slice(128, 64), rights, asio::use_awaitable);
        co_await gives(e.write(again), {});
        co_await gives(e.write(old), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("operations of windows are values for the window's connection", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        connection_options small;
        small.queue_pair.send_queue_depth = 1;
        // The client's, so that nothing but the window is foreign to it.
        small.placement.domain = domain_sharing::shared;
        exposing e{co_await connect(io, {}, small)};
        window w{e.ends.server};
        auto const binding = op::bind(w, e.pages.slice(0, 64), access_flags::remote_write);

        // Another connection refuses it.
        auto [foreign, none] = co_await e.ends.client.async_start(binding, awaiting);
        CHECK(foreign == errc::foreign_window);

        // One that cannot be posted at once leaves the window as it was.
        registered_buffer theirs{e.ends.client.domain(), 64, access_flags::remote_write};
        bool is_written = false;
        e.ends.server.async_write(
            e.pages.slice(0, 8),
            theirs.remote().slice(0, 8),
            [&](error_code ec, std::size_t) {
                CHECK_FALSE(ec);
                is_written = true;
            }
        );
        error_code const full =
            e.ends.server.try_start(binding, [](error_code, remote_region) { FAIL("called"); });
        CHECK(full == errc::would_block);
        while (!is_written) co_await asio::post(io, asio::use_awaitable);

        // A value can be started again.
        for (int i = 0; i < 3; ++i) {
            remote_region const key =
                co_await e.ends.server.async_start(binding, asio::use_awaitable);
            co_await gives(e.write(key), {});
            co_await e.ends.server.async_start(op::invalidate(w), asio::use_awaitable);
        }
        auto [unbound] = co_await e.ends.server.async_start(op::invalidate(w), awaiting);
        CHECK(unbound == errc::window_unbound);
        co_await disconnect(e.ends);
    });
}

TEST_CASE("a window that is destroyed or assigned to invalidates its key", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        std::optional<window> w{e.ends.server};
        remote_region const key = co_await w->async_bind(
            e.pages.slice(0, 64), access_flags::remote_write, asio::use_awaitable
        );
        co_await gives(e.write(key), {});
        window moved = std::move(*w);
        co_await gives(e.write(key), {});
        moved = window{e.ends.server};
        co_await gives(e.write(key), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
    });
}

TEST_CASE("a connection ends at once although a window of it is bound", "[device]") {
    // A SoftRoCE queue pair with a bound window takes 50 s to be destroyed.
    asio::io_context io;
    std::optional<window> survivor;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        survivor.emplace(e.ends.server);
        co_await survivor->async_bind(
            e.pages.slice(0, 64), access_flags::remote_write, asio::use_awaitable
        );
        auto const began = std::chrono::steady_clock::now();
        e.ends.server.close();
        co_await e.ends.client.async_wait_disconnected(awaiting);
        co_await e.ends.server.async_wait_disconnected(awaiting);
        CHECK(std::chrono::steady_clock::now() - began < 20s);
        auto [ec] = co_await survivor->async_invalidate(awaiting);
        CHECK(ec == errc::not_connected);
    });
}

TEST_CASE("windows of a pool are lent in turn, and one that is dropped is closed", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        auto const pool = example::window_pool::make(e.ends.server, 2);
        auto first = co_await pool->borrow();
        auto second = co_await pool->borrow();
        remote_region const a = co_await first->async_bind(
            e.pages.slice(0, 64), access_flags::remote_write, asio::use_awaitable
        );
        remote_region const b = co_await second->async_bind(
            e.pages.slice(64, 64), access_flags::remote_write, asio::use_awaitable
        );
        co_await gives(e.write(a), {});
        co_await gives(e.write(b), {});
        // Dropped while it is bound: the next one gets it when its key is invalid.
        asio::post(io, [lease = std::move(first)]() mutable { lease.reset(); });
        auto const third = co_await pool->borrow();
        CHECK_FALSE(third->is_bound());
        co_await gives(e.write(b), {});
        co_await gives(e.write(a), wc_errc::remote_access);
        co_await e.ends.server.async_wait_disconnected(awaiting);
        second.reset();
        auto const late = co_await pool->borrow();
        auto [ec, key] =
            co_await late->async_bind(e.pages.slice(0, 64), access_flags::remote_read, awaiting);
        CHECK(ec.failed());
    });
}

TEST_CASE("an invalidation that overtakes the binding's completion is not lost", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        exposing e = co_await make(io);
        window w{e.ends.server};
        bool is_done = false;
        w.async_bind(
            e.pages.slice(0, 64),
            access_flags::remote_write,
            [&](error_code ec, remote_region const&) {
                CHECK_FALSE(ec);
                is_done = true;
            }
        );
        w.mark_invalidated();
        while (!is_done) co_await asio::post(io, asio::use_awaitable);
        CHECK_FALSE(w.is_bound());
        co_await disconnect(e.ends);
    });
}
