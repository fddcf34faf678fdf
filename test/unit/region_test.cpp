// Regions in pieces, and the messages about them.
#include <catch2/catch.hpp>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "machines/piece_map.hpp"
#include "wire/region_message.hpp"

using namespace rcverbs;
using machines::piece_map;

namespace {

using sizes = std::vector<std::uint64_t>;

piece_map map_of(std::uint64_t piece_bytes, sizes const& ranges) {
    return piece_map{piece_bytes, ranges};
}

}  // namespace

TEST_CASE("ranges are divided into pieces, each range for itself") {
    piece_map const m = map_of(4096, {10'000, 4096, 1});
    REQUIRE(m.is_valid());
    CHECK(m.size() == 14'097);
    CHECK(m.pieces() == 5);
    CHECK(m.ranges() == 3);
    struct row {
        std::uint32_t piece;
        piece_map::part in_range;  // with the number of the range
    };
    for (row const& r :
         {row{0, {0, 0, 4096}},
          row{1, {0, 4096, 4096}},
          row{2, {0, 8192, 1808}},
          row{3, {1, 0, 4096}},
          row{4, {2, 0, 1}}}) {
        INFO(r.piece);
        CHECK(m.in_range(r.piece) == r.in_range);
    }
    struct part_row {
        std::uint64_t offset;
        std::uint64_t size;
        piece_map::part first;
    };
    for (part_row const& r :
         {part_row{0, 1, {0, 0, 1}},
          part_row{4095, 2, {0, 4095, 1}},
          part_row{9'999, 5000, {2, 1807, 1}},
          part_row{10'000, 5000, {3, 0, 4096}},
          part_row{14'096, 1, {4, 0, 1}}}) {
        INFO(r.offset);
        CHECK(m.first_part(r.offset, r.size) == r.first);
    }
    CHECK(m.contains(0, 14'097));
    CHECK(m.contains(14'097, 0));
    CHECK_FALSE(m.contains(14'097, 1));
    CHECK_FALSE(m.contains(1, UINT64_MAX));
    CHECK_FALSE(m.contains(UINT64_MAX, 0));
}

TEST_CASE("a map that no region can have is not valid") {
    constexpr std::uint64_t huge = std::uint64_t{1} << 63;
    CHECK_FALSE(map_of(4096, {}).is_valid());
    CHECK_FALSE(map_of(4096, {4096, 0}).is_valid());
    CHECK_FALSE(map_of(4096, sizes(17, 1)).is_valid());
    CHECK_FALSE(map_of(0, {1}).is_valid());
    CHECK_FALSE(map_of(1, {65'537}).is_valid());
    CHECK_FALSE(map_of(huge, {huge, 1}).is_valid());
    CHECK_FALSE(map_of(UINT64_MAX, {UINT64_MAX, UINT64_MAX}).is_valid());
    CHECK(map_of(1, {65'536}).is_valid());
    CHECK(map_of(huge, {huge}).is_valid());
    CHECK(map_of(UINT64_MAX, {1}).is_valid());
    CHECK_FALSE(piece_map{}.is_valid());
}

TEST_CASE("parts of a range are each byte once, as a table of all bytes says") {
    std::mt19937_64 random{1};
    auto const up_to = [&](std::uint64_t most) { return 1 + random() % most; };
    for (int round = 0; round < 200; ++round) {
        sizes ranges(up_to(16));
        for (auto& r : ranges) r = up_to(300);
        piece_map const m = map_of(up_to(64), ranges);
        REQUIRE(m.is_valid());
        // Byte by byte: its piece, and its place there.
        std::vector<std::pair<std::uint32_t, std::uint64_t>> bytes;
        std::uint32_t piece = 0;
        for (std::uint64_t const r : ranges) {
            for (std::uint64_t i = 0; i < r; ++i)
                bytes.emplace_back(piece + i / m.piece_bytes(), i % m.piece_bytes());
            piece += static_cast<std::uint32_t>((r - 1) / m.piece_bytes() + 1);
        }
        REQUIRE(m.size() == bytes.size());
        REQUIRE(m.pieces() == piece);
        std::uint64_t const from = random() % bytes.size();
        std::uint64_t const size = random() % (bytes.size() - from + 1);
        std::uint64_t at = from;
        bool is_right = true;
        m.cut(from, size, [&](piece_map::part const& p) {
            for (std::uint64_t i = 0; i < p.size; ++i, ++at)
                is_right &= bytes[at] == std::pair{p.piece, p.offset + i};
        });
        CHECK(is_right);
        CHECK(at == from + size);
    }
}

TEST_CASE("messages about regions are what was encoded, and nothing shorter or longer") {
    error_code ec;
    auto const check = [&](auto const& encoded, auto decode) {
        std::vector<std::byte> bytes(encoded.begin(), encoded.end());
        decode(bytes);
        CHECK_FALSE(ec);
        bytes.push_back({});
        decode(bytes);
        CHECK(ec == channel_errc::malformed_message);
        bytes.resize(bytes.size() - 2);
        decode(bytes);
        CHECK(ec == channel_errc::malformed_message);
    };
    wire::region_found found{
        7,
        access_flags::remote_read | access_flags::remote_atomic,
        4096,
        {10'000, 1},
        {{1, remote_key{2}}, {3, remote_key{4}}}};
    check(wire::encode(found), [&](auto const& in) {
        auto const f = wire::decode_found(in, ec);
        if (ec) return;
        CHECK(f.number == found.number);
        CHECK(f.rights == found.rights);
        CHECK(f.piece_bytes == found.piece_bytes);
        CHECK(f.range_bytes == found.range_bytes);
        CHECK(f.keys == found.keys);
    });
    CHECK(wire::encode(found).size() == wire::found_bytes(2, 2));
    check(wire::encode(wire::region_keys{7, 1, 64}), [&](auto const& in) {
        auto const k = wire::decode_keys(in, ec);
        if (!ec) CHECK((k.number == 7 && k.first == 1 && k.count == 64));
    });
    check(wire::encode(wire::region_dropped{7, 3}), [&](auto const& in) {
        auto const d = wire::decode_dropped(in, ec);
        if (!ec) CHECK((d.number == 7 && d.founds == 3));
    });
    check(wire::encode_number(7), [&](auto const& in) {
        auto const number = wire::decode_number(in, ec);
        if (!ec) CHECK(number == 7);
    });
    registration_limit const limit{registration_limit::kind::locked_bytes, 70000, 65536};
    check(wire::encode(wire::region_refused{12, limit}), [&](auto const& in) {
        auto const refused = wire::decode_refused(in, ec);
        if (!ec) CHECK((refused.why == 12 && refused.limit == limit));
    });
    for (int const none : {0, 4096}) {
        static_cast<void>(wire::decode_refused(wire::encode(wire::region_refused{none, {}}), ec));
        CHECK(ec == channel_errc::malformed_message);
    }
    wire::region_refused unknown{12, {}};
    unknown.limit.what = static_cast<registration_limit::kind>(5);
    static_cast<void>(wire::decode_refused(wire::encode(unknown), ec));
    CHECK(ec == channel_errc::malformed_message);
    check(wire::encode(wire::region_allocate{1, true, 10, 64}), [&](auto const& in) {
        auto const a = wire::decode_allocate(in, ec);
        if (!ec) CHECK((a.version == 1 && a.is_kept && a.bytes == 10 && a.alignment == 64));
    });
    wire::region_token token{};
    token[3] = std::byte{7};
    check(wire::encode(wire::region_resume{1, token}), [&](auto const& in) {
        auto const r = wire::decode_resume(in, ec);
        if (!ec) CHECK(r.token == token);
    });
    check(wire::encode(wire::region_allocated{5, token, found}), [&](auto const& in) {
        auto const a = wire::decode_allocated(in, ec);
        if (!ec) CHECK((a.bytes_left == 5 && a.token == token && a.memory.keys == found.keys));
    });
    check(wire::encode(wire::region_left{5, 6}), [&](auto const& in) {
        auto const l = wire::decode_left(in, ec);
        if (!ec) CHECK((l.bytes_left == 5 && l.largest_bytes == 6));
    });
    CHECK(wire::decode_share(wire::encode(wire::region_share{7, "n"}), ec).name == "n");
    CHECK_FALSE(ec);
    static_cast<void>(wire::decode_share(wire::encode(wire::region_share{7, ""}), ec));
    CHECK(ec == channel_errc::malformed_message);
    for (wire::region_allocate const& wrong :
         {wire::region_allocate{1, false, 0, 8},
          wire::region_allocate{1, false, 1, 0},
          wire::region_allocate{1, false, 1, 12}}) {
        static_cast<void>(wire::decode_allocate(wire::encode(wrong), ec));
        CHECK(ec == channel_errc::malformed_message);
    }
    CHECK(
        wire::decode_allocate(wire::encode(wire::region_allocate{2, false, 0, 0}), ec).version == 2
    );
    CHECK_FALSE(ec);
    auto const name = wire::encode_find(std::string(255, 'n'));
    CHECK(wire::decode_find(name, ec).name == std::string(255, 'n'));
    CHECK_FALSE(ec);
    static_cast<void>(wire::decode_find(wire::encode_find(std::string(256, 'n')), ec));
    CHECK(ec == channel_errc::malformed_message);
    // Of another version only the version is read.
    std::array<std::byte, 4> const newer{{{}, std::byte{2}, std::byte{1}, {}}};
    CHECK(wire::decode_find(newer, ec).version == 2);
    CHECK_FALSE(ec);
    found.rights = access_flags::local_write;
    static_cast<void>(wire::decode_found(wire::encode(found), ec));
    CHECK(ec == channel_errc::malformed_message);
}
