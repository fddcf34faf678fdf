// How operations become work requests, seen from the device's side.
#include "fabric/fixture.hpp"

using namespace rcverbs;
using namespace test;

TEST_CASE("small sends and writes go inline, others quietly do not", "[fabric]") {
    struct row {
        std::uint32_t asked;
        std::uint32_t granted;
    };
    // The default device takes 256 bytes; what it refuses is halved until it does not.
    row const r = GENERATE(row{0, 0}, row{64, 64}, row{256, 256}, row{300, 150}, row{4096, 256});
    world w;
    asio::io_context io;
    run(w, io, [&]() -> asio::awaitable<void> {
        connection_options options = stepped();
        options.inline_bytes_max = r.asked;
        test::pair p = co_await meet(io, options);
        CHECK(p.client.limits().inline_bytes_max == r.granted);
        buffer ours{p.client.domain(), 4096, access_flags::local_write};
        buffer theirs{p.server.domain(), 4096, access_flags::remote_write | access_flags::remote_read};
        for (std::size_t i = 0; i < ours.size(); ++i) ours.bytes()[i] = static_cast<std::byte>(i * 7 + 1);
        auto const inlined = [&] { return w.counters("fab1").inline_requests; };
        for (std::size_t const size : {std::size_t{1}, std::size_t{r.granted}, std::size_t{r.granted} + 1, std::size_t{4096}}) {
            if (size == 0) continue;
            std::uint64_t const before = inlined();
            co_await p.client.async_write(ours.slice(0, size), theirs.remote().slice(0, size), asio::use_awaitable);
            CHECK(inlined() - before == (size <= r.granted ? 1U : 0U));
            CHECK(std::ranges::equal(ours.bytes().first(size), theirs.bytes().first(size)));
        }
        std::uint64_t const before = inlined();
        co_await p.client.async_write({}, {}, awaiting);
        co_await p.client.async_read(theirs.remote().slice(0, 1), ours.slice(0, 1), asio::use_awaitable);
        CHECK(inlined() == before);
        p.client.close();
        p.server.close();
    });
}
