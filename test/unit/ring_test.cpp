// The two sides of a ring, and their messages.
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "machines/ring_machine.hpp"
#include "support/bytes.hpp"
#include "wire/ring_message.hpp"

using namespace rcverbs;
using machines::ring_counts;
using machines::ring_notice;
using machines::ring_reader_machine;
using machines::ring_size;
using machines::ring_writer_machine;
using event = ring_reader_machine::event;

namespace {

constexpr ring_size small{4096, 16};

}  // namespace

TEST_CASE("a notice is a record, a request for room, or the end") {
    struct row {
        std::uint32_t immediate;
        ring_notice::kind what;
        std::uint64_t bytes;
    };
    for (row const& r :
         {row{1, ring_notice::kind::record, 8},
          row{0x7fffffff, ring_notice::kind::record, 0x3fffffff8},
          row{0x80000000, ring_notice::kind::end, 0},
          row{0x80000001, ring_notice::kind::wait, 8}}) {
        INFO(r.immediate);
        ring_notice const n = ring_notice::of(r.immediate);
        CHECK(n.what == r.what);
        CHECK(n.bytes == r.bytes);
        CHECK(n.immediate() == r.immediate);
    }
}

TEST_CASE("sizes of rings that cannot be are refused") {
    CHECK(small.is_valid());
    CHECK(ring_size{1U << 30, 65536}.is_valid());
    for (ring_size const& s :
         {ring_size{2048, 16},
          ring_size{4097, 16},
          ring_size{6144, 16},
          ring_size{0, 16},
          ring_size{1U << 31, 16},
          ring_size{4096, 15},
          ring_size{4096, 65537},
          ring_size{}})
        CHECK_FALSE(s.is_valid());
}

TEST_CASE("records lie one behind the other, and never across the end") {
    ring_writer_machine w{{4096, 64}};
    CHECK(w.size().record_bytes_max() == 2040);
    auto const first = w.add(2040);
    REQUIRE(first);
    CHECK(first->offset == 0);
    CHECK(first->sequence == 0);
    auto const second = w.add(1001);
    REQUIRE(second);
    CHECK(second->offset == 2048);
    CHECK(w.used_bytes() == 2048 + 1016);
    // 1032 bytes are left at the end.
    CHECK_FALSE(w.add(1025));
    REQUIRE(w.hear({2048, 65, 0, false}));
    auto const third = w.add(1025);
    REQUIRE(third);
    CHECK(third->offset == 0);
    CHECK(w.used_bytes() == 1016 + 1032 + 1040);
    CHECK(w.records() == 3);
    // Nothing in a record is a record, too.
    auto const empty = w.add(0);
    REQUIRE(empty);
    CHECK(empty->offset == 1040);
}

TEST_CASE("two receives are left for a request for room and the end") {
    ring_writer_machine w{small};
    for (int i = 0; i < 14; ++i) CHECK(w.add(1));
    CHECK_FALSE(w.add(1));
    auto const wait = w.ask(1);
    REQUIRE(wait);
    CHECK(wait->bytes == 1024);
    CHECK_FALSE(w.ask(1));
    CHECK(w.hear({0, 17, 0, false}));
    // That was no answer.
    CHECK_FALSE(w.ask(1));
    CHECK(w.hear({16, 18, 1, false}));
    CHECK(w.add(1));
    CHECK_FALSE(w.add(1));
    CHECK(w.ask(3000)->bytes == 3008);
    CHECK(w.end().what == ring_notice::kind::end);
}

TEST_CASE("counts that cannot be true are against the rules") {
    auto const after_two_records = [] {
        ring_writer_machine w{small};
        static_cast<void>(w.add(8));
        static_cast<void>(w.add(8));
        return w;
    };
    for (ring_counts const& wrong :
         {ring_counts{33, 16, 0, false},
          ring_counts{40, 16, 0, false},
          ring_counts{7, 16, 0, false},
          ring_counts{16, 19, 0, false},
          ring_counts{16, 15, 0, false},
          ring_counts{16, 16, 1, false},
          ring_counts{32, 18, 0, true}}) {
        auto w = after_two_records();
        CHECK_FALSE(w.hear(wrong));
    }
    auto w = after_two_records();
    CHECK(w.hear({16, 17, 0, false}));
    CHECK_FALSE(w.hear({0, 17, 0, false}));
    CHECK_FALSE(w.hear({16, 16, 0, false}));
    static_cast<void>(w.end());
    CHECK_FALSE(w.hear({16, 17, 0, true}));
    CHECK(w.hear({32, 18, 0, true}));
    CHECK(w.is_finished());
    CHECK_FALSE(w.hear({32, 18, 0, true}));
}

TEST_CASE("a notice that cannot be true is against the rules") {
    auto const reader = [] { return ring_reader_machine{small}; };
    std::uint32_t const wait = ring_notice{ring_notice::kind::wait, 1024}.immediate();
    struct row {
        std::uint32_t immediate;
        std::size_t bytes;
    };
    for (row const& r :
         {row{0, 0},
          row{1, 7},
          row{2, 8},
          row{2, 17},
          row{257, 2056},  // longer than a record may be
          row{0x7fffffff, 8},
          row{1, std::size_t{1} << 40},
          row{wait, 8},
          row{0x80000000 | 513, 0},  // more than the ring has
          row{0x80000000, 8}}) {
        INFO(r.immediate);
        CHECK(reader().on_notice(r.immediate, r.bytes).what == event::violation);
    }
    auto twice = reader();
    static_cast<void>(twice.on_notice(256, 2048));
    static_cast<void>(twice.on_notice(128, 1024));
    CHECK(twice.on_notice(0x80000000 | 256, 0).what == event::wait);
    CHECK(twice.on_notice(0x80000000 | 256, 0).what == event::violation);
    // More than was released.
    auto full = reader();
    CHECK(full.on_notice(256, 2048).what == event::record);
    CHECK(full.on_notice(256, 2048).what == event::record);
    CHECK(full.on_notice(1, 8).what == event::violation);
    auto ended = reader();
    CHECK(ended.on_notice(0x80000000, 0).what == event::end);
    CHECK(ended.on_notice(1, 8).what == event::violation);
}

TEST_CASE("a reader gives room back by quarters, and at once if the writer waits") {
    ring_reader_machine r{{4096, 64}};
    auto const record = [&](std::uint32_t bytes) {
        auto const a = r.on_notice(ring_size::padded(bytes) / 8, bytes + 8);
        REQUIRE(a.what == event::record);
        return a.end;
    };
    auto const first = record(504);
    auto const second = record(504);
    r.release(first);
    CHECK_FALSE(r.due());
    r.release(second);
    CHECK(r.due() == ring_counts{1024, 66, 0, false});
    CHECK_FALSE(r.due());
    auto const third = record(1000);
    auto const fourth = record(8);
    r.release(third);
    CHECK_FALSE(r.due());
    CHECK(r.on_notice(0x80000000 | 512, 0).what == event::wait);
    // All of the ring: not before the last one is released.
    CHECK_FALSE(r.due());
    r.release(fourth);
    CHECK(r.due() == ring_counts{2048, 69, 1, false});
    CHECK(r.on_notice(0x80000000, 0).what == event::end);
    CHECK(r.due() == ring_counts{2048, 69, 1, true});
    CHECK_FALSE(r.due());
}

TEST_CASE("two sides with any delays: no record is lost, and no receive is missing") {
    struct record {
        std::uint32_t bytes;
        std::uint32_t offset;
    };
    constexpr std::byte is_free{0};
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
        std::mt19937_64 random{seed};
        ring_size const size{
            4096U << (random() % 3), 16 + static_cast<std::uint32_t>(random() % 50)};
        ring_writer_machine w{size};
        ring_reader_machine r{size};
        struct notice {
            std::uint32_t immediate;
            std::uint32_t bytes;
        };
        std::deque<notice> to_reader;
        std::deque<ring_counts> to_writer;
        std::deque<record> expected;
        std::deque<std::uint64_t> unreleased;
        std::uint64_t receives = size.receives;  // that are posted
        std::vector<std::byte> ring(size.bytes);
        int left = 3000;
        std::uint32_t next = static_cast<std::uint32_t>(random() % size.record_bytes_max());
        bool has_ended = false;
        std::size_t counts_most = 0;
        bool is_right = true;
        std::uint64_t steps = 0;
        std::uint64_t const hurry = 1 + random() % 8;
        while (!w.is_finished() && is_right && ++steps < 1'000'000) {
            switch (random() % 4) {
            case 0: {  // the writer
                if (has_ended) break;
                if (left == 0) {
                    to_reader.push_back({w.end().immediate(), 0});
                    has_ended = true;
                    break;
                }
                auto const where = w.add(next);
                if (!where) {
                    if (auto const n = w.ask(next)) to_reader.push_back({n->immediate(), 0});
                    break;
                }
                std::uint32_t const padded = ring_size::padded(next);
                auto const place = std::span{ring}.subspan(where->offset, padded);
                is_right &= test::all_are(place, is_free);
                std::memset(place.data(), 1, place.size());
                to_reader.push_back({padded / 8, next + 8});
                expected.push_back({next, where->offset});
                --left;
                std::uint32_t const most = random() % 2 == 0 ? 64 : size.record_bytes_max() + 1;
                next = static_cast<std::uint32_t>(random() % most);
                break;
            }
            case 1: {  // the reader's device
                if (to_reader.empty()) break;
                is_right &= receives-- > 0;
                auto const a = r.on_notice(to_reader.front().immediate, to_reader.front().bytes);
                to_reader.pop_front();
                if (a.what == event::record) {
                    record const& e = expected[unreleased.size()];
                    is_right &= a.record_bytes == e.bytes && a.offset == e.offset;
                    unreleased.push_back(a.end);
                }
                if (a.what == event::wait) ++receives;
                is_right &= a.what != event::violation;
                break;
            }
            case 2: {  // the reader's program
                if (unreleased.empty() || random() % hurry != 0) break;
                r.release(unreleased.front());
                ++receives;
                unreleased.pop_front();
                std::uint32_t const padded = ring_size::padded(expected.front().bytes);
                std::memset(ring.data() + expected.front().offset, 0, padded);
                expected.pop_front();
                break;
            }
            case 3: {
                if (to_writer.empty()) break;
                is_right &= w.hear(to_writer.front());
                to_writer.pop_front();
                break;
            }
            }
            if (auto const c = r.due()) to_writer.push_back(*c);
            counts_most = std::max(counts_most, to_writer.size());
        }
        INFO(seed);
        CHECK(is_right);
        CHECK(w.is_finished());
        CHECK(left == 0);
        CHECK(expected.empty());
        CHECK(counts_most <= 10);
    }
}

TEST_CASE("messages of a ring are what was encoded, and nothing else") {
    error_code ec;
    wire::ring_hello h;
    h.role = wire::ring_role::reader;
    h.ring_bytes = 4096;
    h.receives = 16;
    h.address = 0x123456789a;
    h.key.value = 7;
    auto bytes = wire::encode(h);
    CHECK(wire::decode_ring_hello(bytes, ec) == h);
    CHECK_FALSE(ec);
    // Private data are padded.
    std::vector<std::byte> padded{bytes.begin(), bytes.end()};
    padded.resize(56);
    CHECK(wire::decode_ring_hello(padded, ec) == h);
    CHECK_FALSE(ec);
    for (std::size_t const at : {std::size_t{0}, std::size_t{6}, std::size_t{7}, std::size_t{31}}) {
        auto wrong = bytes;
        wrong[at] ^= std::byte{0x40};
        static_cast<void>(wire::decode_ring_hello(wrong, ec));
        CHECK(ec == channel_errc::foreign_peer);
    }
    static_cast<void>(wire::decode_ring_hello(std::span{bytes}.first(31), ec));
    CHECK(ec == channel_errc::foreign_peer);
    bytes[5] = std::byte{2};
    bytes[6] = std::byte{9};
    CHECK(wire::decode_ring_hello(bytes, ec).version == 2);
    CHECK_FALSE(ec);

    wire::ring_counts_message const c{1, 2, 3, true};
    auto const counts = wire::encode(c);
    CHECK(wire::decode_ring_counts(counts, ec) == c);
    CHECK_FALSE(ec);
    auto flags = counts;
    flags[23] = std::byte{2};
    static_cast<void>(wire::decode_ring_counts(flags, ec));
    CHECK(ec == channel_errc::malformed_message);
    static_cast<void>(wire::decode_ring_counts(std::span{counts}.first(23), ec));
    CHECK(ec == channel_errc::malformed_message);
    std::vector<std::byte> longer{counts.begin(), counts.end()};
    longer.push_back({});
    static_cast<void>(wire::decode_ring_counts(longer, ec));
    CHECK(ec == channel_errc::malformed_message);
    wire::ring_header const head{5, 6};
    CHECK(wire::decode_ring_header(wire::encode(head)) == head);
}
