// What processes of a network send each other: frames, and the files by which they find each other.
#include <catch2/catch.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "capture.hpp"
#include "directory.hpp"
#include "frame.hpp"
#include "settings.hpp"

namespace fabric = rcverbs::fabric::detail;
using fabric::cm_message;
using fabric::directory;
using fabric::packet;
using fabric::take_frame;

namespace {

using bytes = std::vector<std::byte>;

packet some_packet() {
    packet p;
    p.what = packet::kind::write;
    p.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    p.is_first = false;
    p.is_solicited = true;
    p.from.raw[3] = 7;
    p.to.raw[15] = 9;
    p.source = 0x010011;
    p.target = 0x020012;
    p.number = 0x1'0000'0001;
    p.number_end = 0x1'0000'0002;
    p.message_bytes = 5000;
    p.offset = 4096;
    p.remote_address = 0x7fff'0000'1234;
    p.rkey = 0x8010'0100;
    p.immediate = 0xdead'beef;
    p.compare_add = 3;
    p.swap = 4;
    std::ranges::fill(p.payload.make(904), std::byte{0x5a});
    return p;
}

cm_message some_message() {
    cm_message m;
    m.what = cm_message::kind::reply;
    auto& from = reinterpret_cast<sockaddr_in&>(m.from.raw);
    from.sin_family = AF_INET;
    from.sin_port = htons(7471);
    from.sin_addr.s_addr = htonl(0x0a4d0001);
    auto& to = reinterpret_cast<sockaddr_in6&>(m.to.raw);
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(40000);
    to.sin6_addr.s6_addr[0] = 0xfd;
    m.from_id = 0x1'0000'0002;
    m.to_id = 0x2'0000'0003;
    m.reason = 28;
    m.with.qp_num = 0x010011;
    m.with.responder_resources = 16;
    m.with.initiator_depth = 15;
    m.with.retry_count = 6;
    m.with.rnr_retry_count = 5;
    m.with.traffic_class = 96;
    m.with.path_mtu_bytes = 4096;
    m.with.private_data = bytes(56, std::byte{1});
    return m;
}

// A directory of its own, removed at the end.
struct folder {
    folder() {
        char name[] = "/tmp/rcverbs-test-XXXXXX";
        REQUIRE(::mkdtemp(name) != nullptr);
        path = name;
    }
    ~folder() { std::filesystem::remove_all(path); }

    std::string path;
};

}  // namespace

TEST_CASE("frames arrive as they were sent, several in one datagram", "[processes]") {
    bytes all;
    append(all, fabric::hello{3, 4});
    append(all, some_packet());
    append(all, some_message());
    bytes const words = fabric::control_frame("link down");
    all.insert(all.end(), words.begin(), words.end());

    std::span<std::byte const> left{all};
    auto const hello = take_frame(left);
    REQUIRE(hello);
    CHECK(std::get<fabric::hello>(*hello) == fabric::hello{3, 4});
    auto const second = take_frame(left);
    REQUIRE(second);
    auto const& p = std::get<packet>(*second);
    packet const sent = some_packet();
    CHECK(std::ranges::equal(p.payload, sent.payload));
    // Encoded again, it is the same.
    bytes again;
    append(again, p);
    bytes once;
    append(once, some_packet());
    CHECK(again == once);
    auto const third = take_frame(left);
    REQUIRE(third);
    again.clear();
    append(again, std::get<cm_message>(*third));
    once.clear();
    append(once, some_message());
    CHECK(again == once);
    CHECK(std::get<cm_message>(*third).with.path_mtu_bytes == 4096);
    auto const last = take_frame(left);
    REQUIRE(last);
    CHECK(std::get<fabric::control>(*last).text == "link down");
    CHECK(left.empty());
}

TEST_CASE("a frame that is cut off is malformed", "[processes]") {
    bool const is_packet = GENERATE(true, false);
    bytes whole;
    if (is_packet) {
        packet p = some_packet();
        p.payload = {};
        append(whole, p);
    } else {
        cm_message m = some_message();
        m.with.private_data.clear();
        append(whole, m);
    }
    for (std::size_t size = 0; size < whole.size(); ++size) {
        INFO(size);
        std::span<std::byte const> left{whole.data(), size};
        CHECK_FALSE(take_frame(left));
        // Also if its length agrees.
        if (size <= 5) continue;
        bytes shorter{whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)};
        shorter[0] = static_cast<std::byte>(size - 4);
        shorter[1] = shorter[2] = shorter[3] = std::byte{0};
        left = shorter;
        CHECK_FALSE(take_frame(left));
    }
}

TEST_CASE("a frame with an unknown value is malformed", "[processes]") {
    bytes frame;
    std::size_t at = 0;
    int value = 0;
    // Behind the length and the type.
    SECTION("a packet's kind") { append(frame, some_packet()), at = 5, value = 8; }
    SECTION("a packet's operation") { append(frame, some_packet()), at = 6, value = 4; }
    SECTION("the reason of a refusal") { append(frame, some_packet()), at = 8, value = 5; }
    SECTION("a message's kind") { append(frame, some_message()), at = 5, value = 6; }
    SECTION("an address's version") { append(frame, some_message()), at = 6, value = 5; }
    SECTION("a frame's type") { append(frame, some_message()), at = 4, value = 5; }
    SECTION("the version of the format") { append(frame, fabric::hello{1, 1}), at = 5, value = 50; }
    SECTION("a length of 0") { append(frame, fabric::hello{1, 1}), at = 0, value = 0; }
    std::span<std::byte const> left{frame};
    REQUIRE(take_frame(left));
    frame[at] = static_cast<std::byte>(value);
    left = frame;
    CHECK_FALSE(take_frame(left));
}

TEST_CASE("a captured packet has the operation code of RoCE", "[processes]") {
    struct row {
        packet::kind what;
        ibv_wr_opcode opcode;
        bool is_first;
        bool is_last;
        int code;
    };
    // InfiniBand specification, volume 1, table "OpCode field".
    auto const r = GENERATE(values<row>({
        {packet::kind::send, IBV_WR_SEND, true, true, 0x04},
        {packet::kind::send, IBV_WR_SEND, true, false, 0x00},
        {packet::kind::send, IBV_WR_SEND, false, false, 0x01},
        {packet::kind::send, IBV_WR_SEND, false, true, 0x02},
        {packet::kind::send, IBV_WR_SEND_WITH_IMM, false, true, 0x03},
        {packet::kind::send, IBV_WR_SEND_WITH_IMM, true, true, 0x05},
        {packet::kind::send, IBV_WR_SEND_WITH_INV, false, true, 0x16},
        {packet::kind::send, IBV_WR_SEND_WITH_INV, true, true, 0x17},
        {packet::kind::write, IBV_WR_RDMA_WRITE, true, false, 0x06},
        {packet::kind::write, IBV_WR_RDMA_WRITE, false, false, 0x07},
        {packet::kind::write, IBV_WR_RDMA_WRITE, false, true, 0x08},
        {packet::kind::write, IBV_WR_RDMA_WRITE_WITH_IMM, false, true, 0x09},
        {packet::kind::write, IBV_WR_RDMA_WRITE, true, true, 0x0a},
        {packet::kind::write, IBV_WR_RDMA_WRITE_WITH_IMM, true, true, 0x0b},
        {packet::kind::read_request, IBV_WR_RDMA_READ, true, true, 0x0c},
        {packet::kind::read_response, IBV_WR_SEND, true, false, 0x0d},
        {packet::kind::read_response, IBV_WR_SEND, false, false, 0x0e},
        {packet::kind::read_response, IBV_WR_SEND, false, true, 0x0f},
        {packet::kind::read_response, IBV_WR_SEND, true, true, 0x10},
        {packet::kind::acknowledge, IBV_WR_SEND, true, true, 0x11},
        {packet::kind::negative, IBV_WR_SEND, true, true, 0x11},
        {packet::kind::atomic_response, IBV_WR_SEND, true, true, 0x12},
        {packet::kind::atomic, IBV_WR_ATOMIC_CMP_AND_SWP, true, true, 0x13},
        {packet::kind::atomic, IBV_WR_ATOMIC_FETCH_AND_ADD, true, true, 0x14},
    }));
    packet p;
    p.what = r.what;
    p.opcode = r.opcode;
    p.is_first = r.is_first;
    p.is_last = r.is_last;
    std::ranges::fill(p.payload.make(5), std::byte{1});
    bool const is_v4 = GENERATE(true, false);
    if (is_v4) p.from.raw[10] = p.from.raw[11] = p.to.raw[10] = p.to.raw[11] = 0xff;
    bytes const frame = fabric::roce_frame(p);
    std::size_t const transport = is_v4 ? 42U : 62U;
    REQUIRE(frame.size() > transport);
    CHECK(std::to_integer<int>(frame[transport]) == r.code);
    // What follows the addresses is a multiple of four.
    CHECK((frame.size() - transport) % 4 == 0);
}

TEST_CASE(
    "a node, a slot and a port are taken once, and free when their locks are gone", "[processes]"
) {
    folder const f;
    directory const d{f.path};
    {
        directory::member const first = d.take_node();
        directory::member const second = d.take_node();
        CHECK(first.number == 1);
        CHECK(second.number == 2);
        CHECK(d.nodes() == std::vector<std::uint32_t>{1, 2});
        auto const joined = d.join_node(1);
        CHECK(joined);

        directory::member const slot = d.take_slot(1);
        directory::member const other = d.take_slot(1);
        CHECK(slot.number == 1);
        CHECK(other.number == 2);
        CHECK(d.process_of(1, 1) == ::getpid());
        CHECK(d.process_of(1, 3) == 0);

        auto const port = d.take_port(1, 2, 7471);
        CHECK(port);
        CHECK_FALSE(d.take_port(1, 1, 7471));
        CHECK(d.take_port(2, 1, 7471));
        CHECK(d.find_port(1, 7471) == 2);
        CHECK_FALSE(d.find_port(1, 7472));
        CHECK(d.ports(1).empty());
        d.show_port(port, 2);
        CHECK(d.ports(1) == std::vector<std::uint32_t>{7471});
        CHECK(d.find_port(1, 7471) == 2);
    }
    CHECK(d.nodes().empty());
    CHECK(d.slots(1).empty());
    CHECK_FALSE(d.find_port(1, 7471));
    CHECK(d.take_node().number == 1);
}

TEST_CASE("the locks of a killed process are free", "[processes]") {
    folder const f;
    directory const d{f.path};
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_t const child = ::fork();
    if (child == 0) {
        directory::member const node = d.take_node();
        directory::member const slot = d.take_slot(1);
        static_cast<void>(::write(ready[1], "x", 1));
        for (;;) ::pause();
    }
    char x = 0;
    REQUIRE(::read(ready[0], &x, 1) == 1);
    CHECK(d.process_of(1, 1) == child);
    CHECK(d.take_node().number == 2);
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    CHECK(d.process_of(1, 1) == 0);
    CHECK(d.take_node().number == 1);
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_CASE("a directory that others may read is refused", "[processes]") {
    folder const f;
    REQUIRE(::chmod(f.path.c_str(), 0750) == 0);
    CHECK_THROWS_AS(directory{f.path}, std::runtime_error);
    REQUIRE(::chmod(f.path.c_str(), 0700) == 0);
    CHECK_NOTHROW(directory{f.path});
    CHECK_THROWS_AS(directory::of_network("a/b"), std::runtime_error);
    CHECK_THROWS_AS(directory::of_network(".."), std::runtime_error);
    CHECK_THROWS_AS(directory::of_network(""), std::runtime_error);
}

TEST_CASE("an order to kill names a node and a packet", "[processes]") {
    CHECK(fabric::parse_kill("3@17").node == 3);
    CHECK(fabric::parse_kill("3@17").packet == 17);
    for (char const* const wrong : {"", "3", "@1", "3@", "3@0", "0@1", "255@1", "3@1x", "a@1"}) {
        INFO(wrong);
        CHECK_THROWS_AS(fabric::parse_kill(wrong), std::runtime_error);
    }
}
