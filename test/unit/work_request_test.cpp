// Converting requests to work requests: the fields of every opcode, and the splitting of slice
// lists and long transfers.
#include "verbs/work_request.hpp"

#include <rcverbs/detail/start.hpp>

#include <arpa/inet.h>

#include <array>
#include <vector>

#include "support/catch.hpp"

using namespace rcverbs;
using detail::operation_kind;
using detail::progress_mark;
using detail::work_request;

namespace {

struct piece {
    ibv_send_wr wr{};
    std::vector<ibv_sge> segments;
};

/// All pieces of a request.
std::vector<piece> build_all(work_request const& what, verbs::piece_limits const& limits) {
    std::vector<piece> all;
    progress_mark at;
    for (bool is_last = false; !is_last;) {
        piece p;
        p.segments.resize(limits.segments_max);
        is_last = verbs::build(p.wr, p.segments.data(), what, at, limits);
        p.segments.resize(static_cast<std::size_t>(p.wr.num_sge));
        all.push_back(std::move(p));
    }
    CHECK(all.size() == verbs::count_pieces(what, limits));
    return all;
}

std::array<std::byte, 4096> memory;

mutable_slice slice(std::size_t at, std::size_t size, std::uint32_t key = 7) {
    return {std::span{memory}.subspan(at, size), local_key{key}};
}

work_request transfer(operation_kind kind, const_slices const& local) {
    return detail::transfer_request(
        kind,
        rcverbs::detail::access::list_of(local),
        remote_region{0x1000, local.size(), remote_key{42}, access_flags::remote_write},
        0x01020304
    );
}

std::uint64_t address(std::size_t at) {
    return reinterpret_cast<std::uintptr_t>(memory.data()) + at;
}

}  // namespace

TEST_CASE("each operation has its opcode", "[work_request]") {
    struct row {
        operation_kind kind;
        ibv_wr_opcode opcode;
    };
    row const r = GENERATE(
        row{operation_kind::send, IBV_WR_SEND},
        row{operation_kind::send_with_immediate, IBV_WR_SEND_WITH_IMM},
        row{operation_kind::send_with_invalidate, IBV_WR_SEND_WITH_INV},
        row{operation_kind::write, IBV_WR_RDMA_WRITE},
        row{operation_kind::write_with_immediate, IBV_WR_RDMA_WRITE_WITH_IMM},
        row{operation_kind::read, IBV_WR_RDMA_READ},
        row{operation_kind::fetch_add, IBV_WR_ATOMIC_FETCH_AND_ADD},
        row{operation_kind::compare_swap, IBV_WR_ATOMIC_CMP_AND_SWP}
    );
    std::vector<piece> const all = build_all(transfer(r.kind, slice(8, 8)), {1 << 20, 4});
    REQUIRE(all.size() == 1);
    CHECK(all[0].wr.opcode == r.opcode);
    CHECK(all[0].wr.send_flags == 0);
    CHECK(all[0].wr.next == nullptr);
    REQUIRE(all[0].segments.size() == 1);
    CHECK(all[0].segments[0].addr == address(8));
    CHECK(all[0].segments[0].length == 8);
    CHECK(all[0].segments[0].lkey == 7);
}

TEST_CASE("the fields of a work request are where its opcode looks for them", "[work_request]") {
    verbs::piece_limits const limits{1 << 20, 1};
    piece const write =
        build_all(transfer(operation_kind::write_with_immediate, slice(0, 16)), limits)[0];
    CHECK(write.wr.wr.rdma.remote_addr == 0x1000);
    CHECK(write.wr.wr.rdma.rkey == 42);
    CHECK(write.wr.imm_data == htonl(0x01020304));
    piece const invalidate =
        build_all(transfer(operation_kind::send_with_invalidate, slice(0, 16)), limits)[0];
    CHECK(invalidate.wr.invalidate_rkey == 42);
    work_request swap =
        detail::atomic_request(operation_kind::compare_swap, {64, remote_key{9}}, 5, 6);
    swap.is_fenced = true;
    piece const atomic = build_all(swap, limits)[0];
    CHECK(atomic.wr.wr.atomic.remote_addr == 64);
    CHECK(atomic.wr.wr.atomic.rkey == 9);
    CHECK(atomic.wr.wr.atomic.compare_add == 5);
    CHECK(atomic.wr.wr.atomic.swap == 6);
    CHECK(atomic.wr.send_flags == IBV_SEND_FENCE);
    CHECK(atomic.wr.num_sge == 0);
}

TEST_CASE("an operation longer than a message is split at the limit", "[work_request]") {
    std::vector<piece> const all =
        build_all(transfer(operation_kind::write_with_immediate, slice(100, 2500)), {1000, 4});
    REQUIRE(all.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(all[i].wr.wr.rdma.remote_addr == 0x1000 + i * 1000);
        REQUIRE(all[i].segments.size() == 1);
        CHECK(all[i].segments[0].addr == address(100 + i * 1000));
        CHECK(all[i].segments[0].length == (i < 2 ? 1000 : 500));
        // The last piece has the immediate data.
        CHECK(all[i].wr.opcode == (i < 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM));
    }
}

TEST_CASE(
    "more slices than fit into one work request go into several, at the right remote offsets",
    "[work_request]"
) {
    std::vector<mutable_slice> const list{
        slice(0, 10),
        slice(500, 0),
        slice(100, 20),
        slice(200, 30, 8),
        slice(300, 40),
        slice(900, 0)};
    std::vector<piece> const all = build_all(transfer(operation_kind::read, list), {1 << 20, 3});
    REQUIRE(all.size() == 2);
    CHECK(all[0].segments.size() == 3);
    CHECK(all[0].segments[2].lkey == 8);
    CHECK(all[0].wr.wr.rdma.remote_addr == 0x1000);
    REQUIRE(all[1].segments.size() == 1);
    CHECK(all[1].segments[0].addr == address(300));
    CHECK(all[1].wr.wr.rdma.remote_addr == 0x1000 + 60);
    CHECK(verbs::count_segments(transfer(operation_kind::read, list)) == 4);
}

TEST_CASE("a slice is cut where the message ends, and goes on in the next", "[work_request]") {
    std::vector<mutable_slice> const list{slice(0, 70), slice(1000, 70), slice(2000, 70)};
    std::vector<piece> const all = build_all(transfer(operation_kind::write, list), {100, 2});
    REQUIRE(all.size() == 3);
    std::vector<std::pair<std::uint64_t, std::uint32_t>> segments;
    for (piece const& p : all) {
        for (ibv_sge const& s : p.segments) segments.emplace_back(s.addr, s.length);
    }
    CHECK(
        segments ==
        std::vector<std::pair<std::uint64_t, std::uint32_t>>{
            {address(0), 70},
            {address(1000), 30},
            {address(1030), 40},
            {address(2000), 60},
            {address(2060), 10}}
    );
    CHECK(all[2].wr.wr.rdma.remote_addr == 0x1000 + 200);
}

TEST_CASE("nothing is one work request without segments", "[work_request]") {
    std::vector<mutable_slice> const empties(5, slice(0, 0));
    const_slices const forms[] = {const_slices{}, const_slices{slice(0, 0)}, const_slices{empties}};
    for (const_slices const& none : forms) {
        std::vector<piece> const all = build_all(transfer(operation_kind::write, none), {1000, 2});
        REQUIRE(all.size() == 1);
        CHECK(all[0].wr.num_sge == 0);
    }
}

TEST_CASE("a receive scatters to all its slices", "[work_request]") {
    std::vector<mutable_slice> const list{slice(0, 10), slice(0, 0), slice(50, 5)};
    std::array<ibv_sge, 2> segments{};
    ibv_recv_wr wr{};
    verbs::build(
        wr,
        segments.data(),
        detail::local_request(
            operation_kind::receive, rcverbs::detail::access::list_of(mutable_slices{list})
        )
    );
    CHECK(wr.num_sge == 2);
    CHECK(segments[1].addr == address(50));
    CHECK(segments[1].length == 5);
}
