// The wire formats, byte for byte; decoders accept arbitrary bytes without harm.
#include <cstring>
#include <algorithm>
#include <random>

#include "support/catch.hpp"
#include <rcverbs/queue_pair_address.hpp>

#include "wire/hello.hpp"
#include "wire/message.hpp"

using namespace rcverbs;
using namespace rcverbs::wire;

namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
    std::vector<std::byte> out;
    for (int const v : values) out.push_back(static_cast<std::byte>(v));
    return out;
}

std::vector<std::byte> encoded(wire::message const& m) {
    std::vector<std::byte> out(message_bytes_max);
    error_code ec;
    out.resize(encode(m, out, ec));
    REQUIRE_FALSE(ec);
    return out;
}

regions_message sample() {
    return {
        {{"blocks",
          remote_region{
              0x0102030405060708,
              0x1000,
              remote_key{0xA0B0C0D0},
              access_flags::remote_read | access_flags::remote_write}}}};
}

}  // namespace

TEST_CASE("a hello has the documented bytes", "[wire]") {
    hello h;
    h.mode = 0x11223344;
    h.message_bytes_max = 3088;
    h.receives = 2;
    auto const out = encode(h);
    CHECK(std::vector<std::byte>(out.begin(), out.end()) == bytes({'R', 'C', 'V',  'S',  0,    1,
                                                                   0,   0,   0x11, 0x22, 0x33, 0x44,
                                                                   0,   0,   0x0C, 0x10, 0,    2,
                                                                   0,   0,   0,    0,    0,    0}));
}

TEST_CASE("a hello survives the connection manager's padding", "[wire]") {
    hello h;
    h.mode = 7;
    h.answer = verdict::mode_mismatch;
    auto const out = encode(h);
    std::vector<std::byte> padded(out.begin(), out.end());
    padded.resize(196);
    error_code ec;
    CHECK(decode_hello(padded, ec) == h);
    CHECK_FALSE(ec);
}

TEST_CASE("a hello of another kind, or none, is a foreign peer", "[wire]") {
    error_code ec;
    decode_hello(bytes({1, 2, 3}), ec);
    CHECK(ec == session_errc::foreign_peer);
    decode_hello(std::vector<std::byte>(56), ec);
    CHECK(ec == session_errc::foreign_peer);
}

namespace {

hello session_hello() {
    hello h;
    h.message_bytes_max = 3088;
    h.receives = 2;
    return h;
}

}  // namespace

TEST_CASE("a request is checked by version, then by format, then by mode", "[wire]") {
    hello const ours = session_hello();
    CHECK(judge_request(ours, ours) == verdict::welcome);
    hello theirs = ours;
    theirs.mode = 1;
    CHECK(judge_request(ours, theirs) == verdict::mode_mismatch);
    theirs.receives = 1;
    CHECK(judge_request(ours, theirs) == verdict::malformed);
    theirs.version = 2;
    CHECK(judge_request(ours, theirs) == verdict::version_mismatch);
    CHECK(to_error<session_errc>(verdict::mode_mismatch) == session_errc::mode_mismatch);
    CHECK(to_error<session_errc>(static_cast<verdict>(999)) == session_errc::foreign_peer);
}

TEST_CASE(
    "a request with a verdict, set reserved bytes, or too few or short receives is malformed",
    "[wire]"
) {
    hello const ours = session_hello();
    hello theirs = ours;
    SECTION("verdict") { theirs.answer = verdict::busy; }
    SECTION("no message received") { theirs.message_bytes_max = 0; }
    SECTION("MSG_DONE not received") { theirs.message_bytes_max = 15; }
    SECTION("one receive") { theirs.receives = 1; }
    SECTION("reserved bytes") {
        auto bytes = encode(ours);
        std::size_t const at = GENERATE(range(std::size_t{18}, std::size_t{24}));
        bytes[at] = std::byte{1};
        error_code ec;
        theirs = decode_hello(bytes, ec);
        CHECK_FALSE(ec);
    }
    CHECK(judge_request(ours, theirs) == verdict::malformed);
    CHECK(check_acceptance(ours, theirs).failed());
}

TEST_CASE("an acceptance must say welcome, and a refusal must not", "[wire]") {
    hello const ours = session_hello();
    CHECK_FALSE(check_acceptance(ours, ours));
    hello theirs = ours;
    theirs.answer = verdict::busy;
    CHECK(check_acceptance(ours, theirs) == session_errc::malformed_message);
    CHECK(check_refusal(theirs) == session_errc::peer_busy);
    theirs.answer = verdict::welcome;
    CHECK(check_refusal(theirs) == session_errc::malformed_message);
    theirs.mode = 1;
    CHECK(check_acceptance(ours, theirs) == session_errc::mode_mismatch);
}

TEST_CASE("MSG_MR has the documented bytes", "[wire]") {
    auto expected = bytes({'R',  'C',  'V',  'M',  1, 1, 0, 1, 0,   0,   0,   64,  0,   0,  0,    0,
                           1,    2,    3,    4,    5, 6, 7, 8, 0,   0,   0,   0,   0,   0,  0x10, 0,
                           0xA0, 0xB0, 0xC0, 0xD0, 0, 0, 0, 6, 'b', 'l', 'o', 'c', 'k', 's'});
    expected.resize(64);
    CHECK(encoded(sample()) == expected);
}

TEST_CASE("MSG_DONE has the documented bytes", "[wire]") {
    CHECK(
        encoded(done_message{}) == bytes({'R', 'C', 'V', 'M', 1, 2, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0})
    );
}

TEST_CASE("decoding undoes encoding, from no region to as many as there may be", "[wire]") {
    for (std::size_t const count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, regions_max}) {
        regions_message m;
        for (std::size_t i = 0; i < count; ++i) {
            m.regions.push_back(
                {std::string(i % (region_name_bytes_max + 1), 'x'),
                 remote_region{
                     i * 4096,
                     i,
                     remote_key{static_cast<std::uint32_t>(i)},
                     access_flags::remote_atomic | access_flags::local_write}}
            );
        }
        error_code ec;
        CHECK(std::get<regions_message>(decode(encoded(m), ec)) == m);
        CHECK_FALSE(ec);
    }
}

TEST_CASE("encoding refuses too many regions, long names and short buffers", "[wire]") {
    std::vector<std::byte> out(message_bytes_max);
    error_code ec;
    regions_message too_many;
    too_many.regions.resize(regions_max + 1);
    CHECK(encode(too_many, out, ec) == 0);
    CHECK(ec == errc::message_too_large);
    regions_message long_name;
    long_name.regions.push_back({std::string(25, 'x'), {}});
    CHECK(encode(long_name, out, ec) == 0);
    CHECK(ec == errc::message_too_large);
    CHECK(encode(sample(), std::span{out}.first(63), ec) == 0);
    CHECK(ec == errc::message_too_large);
}

TEST_CASE("every byte of a message that may not differ is checked", "[wire]") {
    auto const good = encoded(sample());
    error_code ec;
    for (std::size_t i = 0; i < 16; ++i) {
        auto bad = good;
        bad[i] ^= std::byte{0x40};
        static_cast<void>(decode(bad, ec));
        INFO("byte " << i);
        CHECK(ec == (i == 4 ? session_errc::version_mismatch : session_errc::malformed_message));
    }
    for (std::size_t size = 0; size < good.size(); ++size) {
        static_cast<void>(decode(std::span{good}.first(size), ec));
        CHECK(ec == session_errc::malformed_message);
    }
}

TEST_CASE(
    "a region that wraps around the address space, unknown rights and a dirty name are refused",
    "[wire]"
) {
    error_code ec;
    static_cast<void>(decode(
        encoded(regions_message{
            {{"x", remote_region{UINT64_MAX - 5, 6, remote_key{}, access_flags::remote_read}}}}),
        ec
    ));
    CHECK(ec == session_errc::malformed_message);
    auto const with = [](access_flags rights) {
        return encoded(regions_message{{{"x", remote_region{0, 1, remote_key{}, rights}}}});
    };
    auto unknown = with(access_flags::local_write);
    auto const other = with(access_flags::remote_write);
    *std::ranges::mismatch(unknown, other).in1 = std::byte{0x10};
    static_cast<void>(decode(unknown, ec));
    CHECK(ec == session_errc::malformed_message);
    // Those that concern this side only are not sent.
    CHECK(
        with(
            access_flags::remote_read | access_flags::bind_windows |
            access_flags::relaxed_ordering | access_flags::on_demand
        ) == with(access_flags::remote_read)
    );
    auto dirty = encoded(sample());
    dirty.back() = std::byte{'x'};
    static_cast<void>(decode(dirty, ec));
    CHECK(ec == session_errc::malformed_message);
}

TEST_CASE("decoders take random and mutated bytes", "[wire]") {
    std::mt19937_64 random{20240229};
    auto const good = encoded(sample());
    std::size_t accepted = 0;
    for (int i = 0; i < 100000; ++i) {
        std::vector<std::byte> in;
        if (i % 2 == 0) {
            in.resize(random() % 200);
            for (std::byte& b : in) b = static_cast<std::byte>(random());
            if (i % 4 == 0 && in.size() >= 6) std::memcpy(in.data(), good.data(), 6);
        } else {
            in = good;
            for (auto n = random() % 4; n > 0; --n)
                in[random() % in.size()] = static_cast<std::byte>(random());
            in.resize(random() % (in.size() + 1));
            if (random() % 2 == 0) in.resize(good.size());
        }
        error_code ec;
        static_cast<void>(decode_hello(in, ec));
        wire::message const m = decode(in, ec);
        if (ec) continue;
        ++accepted;
        // An accepted message encodes to the same bytes.
        REQUIRE(encoded(m) == in);
    }
    CHECK(accepted > 100);
}

TEST_CASE(
    "a queue pair's address has the bytes that are documented, and random bytes are none", "[wire]"
) {
    queue_pair_address a;
    a.queue_pair_number = 0x123456;
    a.starting_psn = 0xABCDEF;
    for (std::size_t i = 0; i < 16; ++i) a.gid[i] = static_cast<std::uint8_t>(i + 1);
    a.lid = 0x0203;
    a.mtu = 3;
    a.initiator_depth = 16;
    a.responder_resources = 8;
    a.rnr_retry_count = 6;
    a.ece_vendor = 0x01020304;
    a.ece_options = 0x05060708;
    auto const bytes = a.encode();
    unsigned char const golden[48] = {'R', 'C',  'V',  'Q',  0,  2,  0,  0,  0, 0x12, 0x34, 0x56,
                                      0,   0xAB, 0xCD, 0xEF, 1,  2,  3,  4,  5, 6,    7,    8,
                                      9,   10,   11,   12,   13, 14, 15, 16, 2, 3,    3,    16,
                                      8,   6,    0,    0,    1,  2,  3,  4,  5, 6,    7,    8};
    CHECK(std::memcmp(bytes.data(), golden, sizeof golden) == 0);
    error_code ec;
    CHECK(queue_pair_address::decode(bytes, ec) == a);
    CHECK_FALSE(ec);
    for (std::size_t size = 0; size < 48; ++size) {
        static_cast<void>(queue_pair_address::decode(std::span{bytes}.first(size), ec));
        CHECK(ec);
    }
    auto const with = [&](std::size_t at, unsigned char value) {
        auto changed = bytes;
        changed[at] = std::byte{value};
        static_cast<void>(queue_pair_address::decode(changed, ec));
        return ec;
    };
    CHECK(with(0, 'X') == errc::malformed_message);
    CHECK(with(5, 1) == errc::version_mismatch);
    CHECK(with(8, 1) == errc::malformed_message);  // more than 24 bits
    CHECK(with(34, 6) == errc::malformed_message);  // no such MTU
    CHECK(with(37, 8) == errc::malformed_message);
}
