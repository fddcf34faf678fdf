// The parts of a message channel without a connection: its bytes, and its credits.
#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <vector>

#include "machines/credit_window.hpp"
#include "support/catch.hpp"
#include "wire/channel_hello.hpp"
#include "wire/channel_message.hpp"
#include "wire/request_tag.hpp"

using namespace rcverbs;
using namespace rcverbs::wire;
using window = machines::credit_window;
using kind = window::kind;

namespace {

std::vector<std::byte> bytes(std::initializer_list<int> values) {
    std::vector<std::byte> all;
    for (int const v : values) all.push_back(static_cast<std::byte>(v));
    return all;
}

channel_hello some_hello() {
    channel_hello h;
    h.mode = 0x01020304;
    h.slot_bytes = 4096;
    h.receives = 32;
    h.greeting = bytes({7, 8});
    return h;
}

/// A head and `more` bytes behind it.
std::vector<std::byte> framed(channel_head const& h, std::size_t more) {
    std::vector<std::byte> all(channel_head_bytes + more);
    encode(h, all);
    return all;
}

bool is_malformed(std::vector<std::byte> const& in) {
    error_code ec;
    static_cast<void>(decode_channel_head(in, ec));
    return ec == channel_errc::malformed_message;
}

}  // namespace

TEST_CASE("a channel's hello has the documented bytes", "[wire]") {
    auto const encoded = encode(some_hello());
    CHECK(encoded == bytes({'R', 'C', 'V', 'C', 0,  2, 0, 0, 1, 2, 3, 4, 0,
                            0,   16,  0,   0,   32, 2, 0, 0, 0, 0, 0, 7, 8}));
    auto padded = encoded;
    padded.resize(56);
    error_code ec;
    CHECK(decode_channel_hello(padded, ec) == some_hello());
    CHECK_FALSE(ec);
}

TEST_CASE("the hello of a client that may connect again has its identity", "[wire]") {
    channel_hello h = some_hello();
    h.requests = 1;
    h.identity.emplace().fill(std::byte{9});
    auto const encoded = encode(h);
    REQUIRE(encoded.size() == 24 + 2 + 16);
    CHECK(encoded[19] == std::byte{16});
    CHECK(encoded[26] == std::byte{9});
    CHECK(encoded[41] == std::byte{9});
    error_code ec;
    CHECK(decode_channel_hello(encoded, ec) == h);
    auto const is_refused = [&](auto change) {
        auto changed = encoded;
        change(changed);
        error_code failed;
        return judge_request(h, decode_channel_hello(changed, failed)) == verdict::malformed;
    };
    CHECK_FALSE(is_refused([](auto&) {}));
    CHECK(is_refused([](auto& b) { b[19] = std::byte{15}; }));
    CHECK(is_refused([](auto& b) { b[19] = std::byte{17}; }));
    // Together more than the connection manager carries, bytes that are missing, a channel without
    // requests.
    CHECK(is_refused([](auto& b) { b[18] = std::byte{17}; }));
    CHECK(is_refused([](auto& b) { b.pop_back(); }));
    CHECK(is_refused([](auto& b) { b[21] = std::byte{0}; }));
}

TEST_CASE("a channel's hello that is no hello, or breaks the format, is refused", "[wire]") {
    error_code ec;
    decode_channel_hello(bytes({1, 2, 3}), ec);
    CHECK(ec == channel_errc::foreign_peer);
    decode_channel_hello(encode(hello{}), ec);
    CHECK(ec == channel_errc::foreign_peer);
    auto const judged = [](auto change) {
        auto encoded = encode(some_hello());
        change(encoded);
        error_code failed;
        auto const theirs = decode_channel_hello(encoded, failed);
        CHECK_FALSE(failed);
        return judge_request(some_hello(), theirs);
    };
    CHECK(judged([](auto&) {}) == verdict::welcome);
    CHECK(judged([](auto& b) { b[5] = std::byte{3}; }) == verdict::version_mismatch);
    CHECK(judged([](auto& b) { b[11] = std::byte{5}; }) == verdict::mode_mismatch);
    CHECK(judged([](auto& b) { b[7] = std::byte{3}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[17] = std::byte{5}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[16] = std::byte{0x80}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[14] = std::byte{1}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[18] = std::byte{33}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[18] = std::byte{5}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[19] = std::byte{1}; }) == verdict::malformed);
    CHECK(judged([](auto& b) { b[23] = std::byte{1}; }) == verdict::malformed);
    // A request channel, and one of messages.
    CHECK(judged([](auto& b) { b[21] = std::byte{1}; }) == verdict::mode_mismatch);
    channel_hello busy = some_hello();
    busy.answer = verdict::busy;
    CHECK(check_acceptance(some_hello(), busy) == channel_errc::malformed_message);
}

TEST_CASE("the messages of a channel have the documented bytes", "[wire]") {
    channel_head const h{channel_type::eager, 0x55, 0x0102, 3, 0x0a0b0c0d0e0f1011};
    auto const all = framed(h, 3);
    CHECK(
        std::vector(all.begin(), all.begin() + 16) ==
        bytes({1, 0x55, 1, 2, 0, 0, 0, 3, 10, 11, 12, 13, 14, 15, 16, 17})
    );
    error_code ec;
    CHECK(decode_channel_head(all, ec) == h);
    CHECK_FALSE(ec);
    CHECK(is_malformed(framed(h, 2)));
    CHECK(is_malformed(framed(h, 4)));
    CHECK(is_malformed(bytes({1, 0, 0})));
    CHECK(is_malformed({}));
    for (int const type : {0, 7, 255})
        CHECK(is_malformed(framed({static_cast<channel_type>(type), 0, 0, 0, 0}, 0)));
    CHECK_FALSE(is_malformed(framed({channel_type::credit, 0, 5, 0, 0}, 0)));
    CHECK(is_malformed(framed({channel_type::credit, 0, 5, 0, 1}, 0)));
    CHECK(is_malformed(framed({channel_type::close, 0, 5, 1, 0}, 0)));
    CHECK(is_malformed(framed({channel_type::close, 0, 5, 0, 0}, 1)));
    CHECK_FALSE(is_malformed(framed({channel_type::large_done, 0, 0, 1, 9}, 0)));
    CHECK(is_malformed(framed({channel_type::large_done, 0, 0, 2, 9}, 0)));
    CHECK_FALSE(is_malformed(framed({channel_type::withdraw, 0, 0, 0, 9}, 0)));
    CHECK(is_malformed(framed({channel_type::withdraw, 0, 0, 1, 9}, 0)));
    CHECK(is_malformed(framed({channel_type::large, 0, 0, 0, 9}, 0)));
    CHECK(is_malformed(framed({channel_type::large, 0, 0, 17, 9}, 17 * 24)));
    CHECK(is_malformed(framed({channel_type::large, 0, 0, 2, 9}, 24)));
    CHECK_FALSE(is_malformed(framed({channel_type::large, 0, 0, 1, 9}, 24 + 88)));
}

TEST_CASE("the tags of a request channel have the documented bytes", "[wire]") {
    request_tag const t{request_kind::notice, 0x1234, 0x56789abc};
    CHECK(encode(t) == 0x0200'1234'5678'9abcU);
    error_code ec;
    CHECK(decode_request_tag(encode(t), {100}, ec) == t);
    CHECK_FALSE(ec);
    auto const is_refused = [&](std::uint64_t tag, std::uint64_t size) {
        static_cast<void>(decode_request_tag(tag, {size}, ec));
        return ec == channel_errc::malformed_message;
    };
    for (std::uint64_t code = 0; code < 256; ++code) {
        INFO(code);
        CHECK(is_refused(code << 56, 0) == (code < 1 || code > 7));
    }
    // What the tag says of the prefix, the message must have.
    for (unsigned bit = 48; bit < 56; ++bit) CHECK(is_refused(encode(t) | 1ULL << bit, 0));
    for (auto const bodiless :
         {request_kind::dropped, request_kind::cancel, request_kind::released}) {
        CHECK_FALSE(is_refused(encode({bodiless, 5, 0}), 0));
        CHECK(is_refused(encode({bodiless, 5, 0}), 1));
        CHECK(is_refused(encode({bodiless, 5, 1}), 0));
    }
    CHECK_FALSE(is_refused(encode({request_kind::end, 0, 0}), 0));
    CHECK(is_refused(encode({request_kind::end, 1, 0}), 0));
    CHECK(is_refused(encode({request_kind::end, 0, 1}), 0));
    CHECK(is_refused(encode({request_kind::end, 0, 0}), 1));
}

TEST_CASE("the prefix of a request has the documented bytes", "[wire]") {
    request_tag t{request_kind::request, 1, 2, 64, true};
    CHECK(encode(t) == 0x01c0'0001'0000'0002U);
    CHECK(t.prefix_bytes() == 88);
    error_code ec;
    auto const is_right = [&](request_tag const& what, request_sizes const& sizes) {
        bool const is_same = decode_request_tag(encode(what), sizes, ec) == what;
        CHECK((is_same || ec));
        return !ec;
    };
    CHECK(is_right(t, {88}));
    CHECK(is_right(t, {89}));
    CHECK_FALSE(is_right(t, {87}));
    CHECK(is_right(t, {1U << 20, true, 88}));
    CHECK_FALSE(is_right(t, {1U << 20, true, 87}));
    CHECK_FALSE(is_right(t, {1U << 20, true, 89}));
    t.head_bytes = 65;
    CHECK_FALSE(is_right(t, {1000}));
    // A notice has no answer, and an answer that was written no body.
    CHECK(is_right({request_kind::notice, 1, 2, 3, false}, {3}));
    CHECK_FALSE(is_right({request_kind::notice, 1, 2, 3, true}, {100}));
    request_tag const written{request_kind::answer, 1, 2, 3, true};
    CHECK(written.prefix_bytes() == 11);
    CHECK(is_right(written, {11}));
    CHECK_FALSE(is_right(written, {12}));
    CHECK_FALSE(is_right(written, {1000, true, 11}));
    for (auto const bodiless :
         {request_kind::dropped, request_kind::cancel, request_kind::released, request_kind::end}) {
        CHECK_FALSE(is_right({bodiless, 0, 0, 1, false}, {1}));
        CHECK_FALSE(is_right({bodiless, 0, 0, 0, true}, {24}));
    }

    request_prefix before;
    remote_region const page{0x1122334455667788, 4096, remote_key{9}, access_flags::remote_write};
    before.append(page.encode());
    before.append(bytes({1, 2, 3}));
    REQUIRE(before.bytes().size() == 27);
    CHECK(decode_target(before.bytes(), ec) == page);
    CHECK_FALSE(ec);
    CHECK(before.bytes()[24] == std::byte{1});
    auto const is_target = [&](remote_region const& r) {
        static_cast<void>(decode_target(r.encode(), ec));
        return !ec;
    };
    CHECK_FALSE(is_target({0x1000, 0, remote_key{9}, access_flags::remote_write}));
    CHECK_FALSE(is_target({0x1000, 1, remote_key{9}, access_flags::remote_read}));
    CHECK_FALSE(is_target({~std::uint64_t{0}, 2, remote_key{9}, access_flags::remote_write}));
    request_prefix size;
    size.append(std::uint64_t{0x0102030405060708});
    CHECK(size.bytes().front() == std::byte{1});
    CHECK(decode_written(size.bytes()) == 0x0102030405060708);
}

TEST_CASE("the segments of a large message must be readable, and may not wrap around", "[wire]") {
    constexpr auto readable = access_flags::remote_read;
    std::array<remote_region, 2> list{
        remote_region{0x1000, 10, remote_key{7}, readable},
        remote_region{0x9000, 20, remote_key{8}, readable}};
    auto all = framed({channel_type::large, 0, 0, 2, 0}, 48);
    encode_segments(list, all);
    error_code ec;
    channel_segments const found = decode_segments(all, ec);
    REQUIRE_FALSE(ec);
    CHECK(found.count == 2);
    CHECK(found.size_bytes == 30);
    CHECK(found.list[1].address() == 0x9000);
    CHECK(found.list[1].key() == remote_key{8});
    auto const refused = [&](remote_region const& second) {
        list[1] = second;
        encode_segments(list, all);
        static_cast<void>(decode_segments(all, ec));
        return ec == channel_errc::malformed_message;
    };
    CHECK(refused({0x9000, 20, remote_key{8}, access_flags::remote_write}));
    CHECK(refused({0x9000, 0, remote_key{8}, readable}));
    // Together more than 64 bits can count, each by itself not.
    CHECK(refused({0x9000, ~std::uint64_t{0} - 0x9000, remote_key{8}, readable}) == false);
    list[0] = {0, std::uint64_t{1} << 63, remote_key{7}, readable};
    CHECK(refused({0, std::uint64_t{1} << 63, remote_key{8}, readable}));
}

TEST_CASE("a window keeps places for an answer, CREDIT and CLOSE", "[credits]") {
    window w{6, 8};
    for (int i = 0; i < 4; ++i) {
        REQUIRE(w.may_send(kind::data));
        w.on_send(kind::data);
    }
    CHECK_FALSE(w.may_send(kind::data));
    REQUIRE(w.may_send(kind::answer));
    w.on_send(kind::answer);
    CHECK_FALSE(w.may_send(kind::answer));
    for (int i = 0; i < 2; ++i) {
        REQUIRE(w.may_send(kind::credit));
        w.on_send(kind::credit);
    }
    CHECK_FALSE(w.may_send(kind::credit));
    REQUIRE(w.may_send(kind::close));
    w.on_send(kind::close);
    CHECK_FALSE(w.may_send(kind::close));
    CHECK(w.outstanding() == 5);
    CHECK(w.on_arrival(kind::credit, {4, 0}) == window::verdict::right);
    CHECK(w.outstanding() == 1);
    CHECK(w.may_send(kind::data));
    CHECK_FALSE(w.may_send(kind::credit));
    CHECK(w.on_arrival(kind::data, {4, 1}) == window::verdict::right);
    CHECK(w.may_send(kind::credit));
    // What has not been sent cannot be given back or taken, nor twice.
    CHECK(w.on_arrival(kind::data, {6, 1}) == window::verdict::wrong_counts);
    CHECK(w.on_arrival(kind::data, {3, 1}) == window::verdict::wrong_counts);
    CHECK(w.on_arrival(kind::data, {4, 3}) == window::verdict::wrong_counts);
    CHECK(w.on_arrival(kind::data, {4, 0}) == window::verdict::wrong_counts);
}

TEST_CASE("a message without a credit is seen as one, whatever its counts", "[credits]") {
    using verdict = window::verdict;
    window w{8, 8};
    for (int i = 0; i < 4; ++i) REQUIRE(w.on_arrival(kind::data, {}) == verdict::right);
    CHECK(w.on_arrival(kind::data, {}) == verdict::no_credit);
    // An answer has a place more, two CREDITs and CLOSE have theirs: eight receives in all.
    CHECK(w.on_arrival(kind::answer, {}) == verdict::right);
    CHECK(w.on_arrival(kind::answer, {}) == verdict::no_credit);
    for (int i = 0; i < 2; ++i) CHECK(w.on_arrival(kind::credit, {}) == verdict::right);
    CHECK(w.on_arrival(kind::credit, {}) == verdict::no_credit);
    CHECK(w.on_arrival(kind::close, {}) == verdict::right);
    CHECK(w.on_arrival(kind::close, {}) == verdict::no_credit);
    // What was given back counts when the peer could know it.
    for (int i = 0; i < 5; ++i) w.give_back(kind::data);
    for (int i = 0; i < 2; ++i) w.give_back(kind::credit);
    CHECK(w.on_arrival(kind::data, {}) == verdict::no_credit);
    CHECK(w.on_arrival(kind::credit, {}) == verdict::no_credit);
    w.on_send(kind::data);
    CHECK(w.on_arrival(kind::data, {}) == verdict::right);
    CHECK(w.on_arrival(kind::credit, {}) == verdict::right);
}

TEST_CASE(
    "a CREDIT is due for half of the receives, or for one if the peer can send none", "[credits]"
) {
    window w{16, 16};
    for (int i = 0; i < 8; ++i) REQUIRE(w.on_arrival(kind::data, {}) == window::verdict::right);
    for (int i = 0; i < 7; ++i) {
        w.give_back(kind::data);
        CHECK_FALSE(w.owes_credit());
    }
    w.give_back(kind::data);
    CHECK(w.owes_credit());
    CHECK(w.owes_much());
    CHECK(w.on_send(kind::credit) == window::counts{8, 0});
    CHECK_FALSE(w.owes_credit());
    for (int i = 0; i < 12; ++i)
        REQUIRE(w.on_arrival(kind::data, {0, 1}) == window::verdict::right);
    CHECK_FALSE(w.owes_credit());
    w.give_back(kind::data);
    CHECK(w.owes_credit());
    CHECK_FALSE(w.owes_much());
    CHECK(w.on_send(kind::credit) == window::counts{9, 0});
    // CREDITs do not answer each other.
    for (int i = 0; i < 13; ++i) w.give_back(kind::credit);
    CHECK_FALSE(w.owes_credit());
    CHECK(w.on_send(kind::close) == window::counts{9, 13});
}

namespace {

// Not REQUIRE, which would be called millions of times.
void must(bool holds) {
    if (!holds) FAIL("the model is broken");
}

/// One side of a channel in a model: what it sends, holds and gives back, in any order.
struct model_side {
    window credits;
    std::uint16_t receives;
    int to_send;
    int posted = receives;
    int held = 0;
    int answers = 0;  // owed to the peer, one for each message that has been released
    std::uint64_t credits_sent = 0;
    bool replies = false;  // a message for each that was released, not an answer
    std::deque<std::pair<kind, window::counts>> wire{};  // to the peer

    void send(kind what) { wire.emplace_back(what, credits.on_send(what)); }
    bool send_one() {
        if (to_send == 0 || !credits.may_send(kind::data)) return false;
        --to_send;
        send(kind::data);
        return true;
    }
    bool send_answer() {
        if (answers == 0 || !credits.may_send(kind::answer)) return false;
        --answers;
        send(kind::answer);
        return true;
    }
    bool send_credit() {
        if (!credits.owes_credit() || !credits.may_send(kind::credit)) return false;
        ++credits_sent;
        send(kind::credit);
        return true;
    }
    bool take_from(model_side& peer) {
        if (peer.wire.empty()) return false;
        auto const [what, counts] = peer.wire.front();
        peer.wire.pop_front();
        must(posted > 0);  // else: receiver not ready
        --posted;
        must(credits.on_arrival(what, counts) == window::verdict::right);
        if (what == kind::data) {
            ++held;
        } else {
            ++posted;
            credits.give_back(what);
        }
        return true;
    }
    bool release_one() {
        if (held == 0) return false;
        --held;
        ++(replies ? to_send : answers);
        ++posted;
        credits.give_back(kind::data);
        return true;
    }
    bool step(model_side& peer, int which) {
        if (which == 0) return send_one();
        if (which == 1) return take_from(peer);
        if (which == 2) return release_one();
        return which == 3 ? send_credit() : send_answer();
    }
};

}  // namespace

TEST_CASE("in any order of events every message finds a receive, and arrives", "[credits]") {
    std::mt19937 random{GENERATE(1U, 2U, 3U, 4U, 5U, 6U)};
    for (int run = 0; run < 1000; ++run) {
        auto const receives = [&] { return static_cast<std::uint16_t>(6 + random() % 11); };
        std::uint16_t const a_receives = receives();
        std::uint16_t const b_receives = receives();
        // More than the counters' 16 bits now and then.
        int const count = run == 0 ? 70'000 : static_cast<int>(random() % 60);
        model_side a{window{a_receives, b_receives}, a_receives, count};
        model_side b{window{b_receives, a_receives}, b_receives, run % 2 == 0 ? count : 0};
        // A server: it sends for each message that it has released.
        b.replies = run % 4 == 1;
        for (int i = 0; i < 20 * count; ++i) {
            model_side& one = random() % 2 == 0 ? a : b;
            static_cast<void>(one.step(&one == &a ? b : a, static_cast<int>(random() % 5)));
            must(a.credits.may_send(kind::close));
            must(b.credits.may_send(kind::close));
        }
        bool is_moving = true;
        while (is_moving) {
            is_moving = false;
            for (int which = 0; which < 5; ++which) {
                while (a.step(b, which)) is_moving = true;
                while (b.step(a, which)) is_moving = true;
            }
        }
        CHECK(a.to_send == 0);
        CHECK(b.to_send == 0);
        CHECK(a.answers + b.answers == 0);
        CHECK(a.posted == a_receives);
        CHECK(b.posted == b_receives);
        CHECK(a.credits.outstanding() <= b_receives - 3);
        CHECK(a.credits_sent <= 2 * static_cast<std::uint64_t>(count) + 1);
    }
}
