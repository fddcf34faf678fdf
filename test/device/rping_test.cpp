// A plain connection with a peer that uses another library: rping of librdmacm's utilities,
// unmodified.
//
// rping's protocol, from its manual page and its messages: the client sends address, key and size
// of a buffer in a 16-byte message; the server reads the buffer and sends an empty message of that
// size as go-ahead; the client sends another buffer; the server writes the data back there and
// sends the go-ahead.
#include <boost/endian/conversion.hpp>

#include <cstring>

#include "device/fixture.hpp"
#include "support/child_process.hpp"

using namespace rcverbs;
using namespace test;

namespace {

constexpr std::size_t info_bytes = 16;
constexpr std::size_t ping_bytes = 64;  // rping's default

void put_info(registered_buffer const& into, remote_region const& r) {
    std::uint64_t const address = boost::endian::native_to_big(r.address());
    std::uint32_t const key = boost::endian::native_to_big(r.key().value);
    std::uint32_t const size = boost::endian::native_to_big(static_cast<std::uint32_t>(r.size()));
    std::memcpy(into.bytes().data(), &address, 8);
    std::memcpy(into.bytes().data() + 8, &key, 4);
    std::memcpy(into.bytes().data() + 12, &size, 4);
}

remote_region get_info(registered_buffer const& from, access_flags rights) {
    std::uint64_t address = 0;
    std::uint32_t key = 0;
    std::uint32_t size = 0;
    std::memcpy(&address, from.bytes().data(), 8);
    std::memcpy(&key, from.bytes().data() + 8, 4);
    std::memcpy(&size, from.bytes().data() + 12, 4);
    return {
        boost::endian::big_to_native(address),
        boost::endian::big_to_native(size),
        remote_key{boost::endian::big_to_native(key)},
        rights};
}

std::string text(registered_buffer const& b) {
    return {reinterpret_cast<char const*>(b.bytes().data())};
}  // bytes as text

}  // namespace

TEST_CASE("a plain connection pings an unmodified rping -s", "[device]") {
    asio::io_context io;
    child_process rping{{"rping", "-s", "-a", device_address(), "-p", "17471", "-C", "3", "-V"}};
    run(io, [&]() -> asio::awaitable<void> {
        std::optional<connection> c;
        // rping does not report when it listens, so this side retries.
        for (int attempt = 0; attempt < 100; ++attempt) {
            c.emplace(io);
            auto [ec] = co_await c->async_resolve({device_address(), 17471}, awaiting);
            REQUIRE_FALSE(ec);
            auto [establish_error] = co_await c->async_establish({}, awaiting);
            if (establish_error != cm_errc::rejected_no_listener) break;
        }
        REQUIRE(c->is_open());
        registered_buffer source{
            c->domain(), ping_bytes, access_flags::remote_read | access_flags::remote_write};
        registered_buffer sink{c->domain(), ping_bytes, access_flags::remote_write};
        registered_buffer out{c->domain(), info_bytes, access_flags::local_read};
        registered_buffer in{c->domain(), info_bytes, access_flags::local_write};
        for (int i = 0; i < 3; ++i) {
            // rping -V checks exactly this pattern.
            std::string ping = "rdma-ping-" + std::to_string(i) + ": ";
            for (std::size_t j = ping.size(), start = 65 + static_cast<std::size_t>(i);
                 j < ping_bytes - 1;
                 ++j) {
                ping += static_cast<char>(start++);
            }
            std::memcpy(source.bytes().data(), ping.data(), ping.size());
            for (registered_buffer const* const shown : {&source, &sink}) {
                put_info(out, shown->remote());
                auto [answer, sent] = co_await (
                    c->async_receive(in.slice(), awaiting) && c->async_send(out.slice(), awaiting)
                );
                REQUIRE_FALSE(std::get<0>(answer));
                REQUIRE_FALSE(std::get<0>(sent));
                CHECK(std::get<1>(answer).size_bytes == info_bytes);
            }
            CHECK(text(sink) == ping);
        }
        co_await c->async_disconnect(asio::use_awaitable);
    });
    rping.wait();
    INFO(rping.error());
    CHECK(rping.output().find("error") == std::string::npos);
}

TEST_CASE("a plain connection serves an unmodified rping -c", "[device]") {
    asio::io_context io;
    run(io, [&]() -> asio::awaitable<void> {
        acceptor a{io, {device_address(), 0}};
        child_process rping{
            {"rping",
             "-c",
             "-a",
             device_address(),
             "-p",
             std::to_string(a.local_endpoint().port()),
             "-C",
             "3",
             "-V",
             "-v"}};
        connection c = co_await requested(a);
        registered_buffer data{c.domain(), ping_bytes, access_flags::local_write};
        registered_buffer out{c.domain(), info_bytes, access_flags::local_read};
        registered_buffer in{c.domain(), info_bytes, access_flags::local_write};
        // Posted before the peer can send, so no RNR NAK is sent.
        auto first = c.async_receive(in.slice(), asio::use_awaitable);
        auto serve = [&]() -> asio::awaitable<int> {
            int pings = 0;
            co_await std::move(first);
            for (;;) {
                co_await c.async_read(
                    get_info(in, access_flags::remote_read), data.slice(), asio::use_awaitable
                );
                auto [sink, sent] = co_await (
                    c.async_receive(in.slice(), awaiting) && c.async_send(out.slice(), awaiting)
                );
                REQUIRE_FALSE(std::get<0>(sink));
                REQUIRE_FALSE(std::get<0>(sent));
                co_await c.async_write(
                    data.slice(), get_info(in, access_flags::remote_write), asio::use_awaitable
                );
                CHECK(text(data).substr(0, 10) == "rdma-ping-");
                ++pings;
                auto [next, going] = co_await (
                    c.async_receive(in.slice(), awaiting) && c.async_send(out.slice(), awaiting)
                );
                static_cast<void>(going);
                if (std::get<0>(next)) co_return pings;
            }
        };
        auto [pings, accepted] = co_await (serve() && c.async_accept({}, awaiting));
        CHECK_FALSE(std::get<0>(accepted));
        CHECK(pings == 3);
        CHECK(c.last_failure().reason == close_reason::peer_disconnected);
        CHECK(rping.wait() == 0);
        INFO(rping.error());
        CHECK(rping.output().find("rdma-ping-2: CDEF") != std::string::npos);
    });
}
