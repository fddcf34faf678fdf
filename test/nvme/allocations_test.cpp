// A command costs the target no allocation.
#include <memory>

#include <rcverbs/nvme/memory_store.hpp>

#include "fabric/fixture.hpp"
#include "nvme/host.hpp"
#include "support/live_blocks.hpp"

using namespace rcverbs;
using namespace test;
namespace nvme = rcverbs::nvme;

namespace {

/// A store in memory that the target does not access directly, so that data is staged.
class staged_store final : public nvme::block_store {
public:
    nvme::store_geometry geometry() const override { return memory_.geometry(); }
    void start(nvme::store_request& r) override { memory_.start(r); }

private:
    nvme::memory_store memory_{1U << 20};
};

}  // namespace

TEST_CASE(
    "fabric: nvme: a command allocates nothing, whether its data is staged or not", "[fabric]"
) {
    auto const is_staged = GENERATE(false, true);
    auto const code = GENERATE(std::uint8_t{0x01}, std::uint8_t{0x02});
    auto const is_in_capsule = GENERATE(false, true);
    if (is_in_capsule && code == 0x02) return;  // a read has no data in its capsule
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        nvme::namespace_options n;
        if (is_staged) n.store = std::make_shared<staged_store>();
        else n.store = std::make_shared<nvme::memory_store>(1U << 20);
        nvme::subsystem_options o;
        o.nqn = disk_nqn;
        o.namespaces = {n};
        nvme::target t{io, {"10.0.0.1", 0}, {o}};
        host_queue admin{io};
        host_queue queue{io};
        error_code ec = co_await admin.open(t.local_endpoint(), 0);
        REQUIRE_FALSE(ec);
        response r = co_await admin.run(admin.connect_command(0, 0xffff));
        REQUIRE(r.status == 0);
        auto const id = static_cast<std::uint16_t>(r.result);
        r = co_await admin.run(capsule{0x7f, 0}.dword(11, 0x14).dword(12, 0x00460001));
        REQUIRE(r.status == 0);
        ec = co_await queue.open(t.local_endpoint(), 1);
        REQUIRE_FALSE(ec);
        r = co_await queue.run(queue.connect_command(1, id));
        REQUIRE(r.status == 0);
        connection& c = queue.connection();
        registered_buffer data{
            c.domain(), 4096, access_flags::remote_read | access_flags::remote_write};
        registered_buffer memory{c.domain(), 8192, access_flags::local_write};
        capsule what = capsule{code, 1}.blocks(3, 1);
        if (is_in_capsule) what.in_capsule(data.bytes(), 4096);
        else what.keyed(data.remote());
        std::ranges::copy(what.bytes, memory.bytes().begin());
        repeater all{c, memory.slice(0, what.bytes.size()), memory.slice(8000, 16), 200};
        auto const finish = [&]() -> asio::awaitable<void> {
            while (all.left > 0) co_await sleep(io, 10us);
        };
        all.start();
        co_await finish();
        all.left = 1000;
        std::optional<long> const before = allocations();
        all.start();
        // Without a coroutine of this test's, which would be counted.
        while (all.left > 0) co_await asio::post(io, asio::use_awaitable);
        std::optional<long> const after = allocations();
        CHECK(all.failed == 0);
        if (before) CHECK(*after <= *before + 20);
        t.close();
        admin.connection().close();
        queue.connection().close();
    });
}

TEST_CASE("fabric: nvme: an idle queue takes little memory beside its receives", "[fabric]") {
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        nvme::namespace_options n;
        n.store = std::make_shared<nvme::memory_store>(1U << 20);
        nvme::subsystem_options o;
        o.nqn = disk_nqn;
        o.namespaces = {n};
        constexpr std::uint16_t depth = 128;
        nvme::target t{io, {"10.0.0.1", 0}, {o}};
        acceptor plain{io, {"10.0.0.1", 0}};
        host_queue admin{io};
        error_code ec = co_await admin.open(t.local_endpoint(), 0);
        REQUIRE_FALSE(ec);
        response const made = co_await admin.run(admin.connect_command(0, 0xffff));
        REQUIRE(made.status == 0);
        auto const id = static_cast<std::uint16_t>(made.result);
        response const enabled = co_await admin.run(enable());
        REQUIRE(enabled.status == 0);
        std::vector<std::unique_ptr<host_queue>> hosts;
        std::vector<connection> others;
        hosts.reserve(6);
        others.reserve(6);
        auto const add_queue = [&](std::uint16_t number) -> asio::awaitable<void> {
            hosts.push_back(std::make_unique<host_queue>(io));
            error_code const failed =
                co_await hosts.back()->open(t.local_endpoint(), number, depth);
            REQUIRE_FALSE(failed);
            response const joined =
                co_await hosts.back()->run(hosts.back()->connect_command(number, id));
            REQUIRE(joined.status == 0);
        };
        // The same host, beside a connection without receives.
        auto const add_other = [&]() -> asio::awaitable<void> {
            hosts.push_back(std::make_unique<host_queue>(io));
            auto [accepted, opened] = co_await (
                plain.async_accept(awaiting) && hosts.back()->open(plain.local_endpoint(), 1, depth)
            );
            REQUIRE_FALSE(opened);
            REQUIRE_FALSE(std::get<0>(accepted));
            others.push_back(std::move(std::get<1>(accepted)));
        };
        co_await add_queue(1);
        co_await add_other();
        std::optional<long> const first = live_bytes();
        co_await add_queue(2);
        co_await add_queue(3);
        std::optional<long> const second = live_bytes();
        co_await add_other();
        co_await add_other();
        std::optional<long> const third = live_bytes();
        if (first) {
            long const queue = ((*second - *first) - (*third - *second)) / 2;
            INFO("a queue: " << queue << " bytes more than a connection");
            // The operation of a posted receive has 576 bytes.
            CHECK(queue <= depth * 576 + 65'536);
        }
        t.close();
        admin.connection().close();
        for (auto const& q : hosts) q->connection().close();
    });
}
