// The behaviour of reliable connections, in plain C calls: the same on SoftRoCE and on the fabric,
// except for provider_quirks.hpp.
#include "behaviour/provider_quirks.hpp"
#include "behaviour/ends.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

using namespace test;
using namespace std::chrono_literals;

namespace {

void be(ibv_wc const& wc, std::uint64_t id, ibv_wc_status status) {
    INFO("completion " << wc.wr_id << " with " << ibv_wc_status_str(wc.status));
    CHECK(wc.wr_id == id);
    CHECK(wc.status == status);
}

// Long memory of which all parts are the same 2 MiB: the longest message of some devices is longer
// than the memory of the virtual machine.
class folded_memory {
public:
    explicit folded_memory(std::size_t size) : size_{(size + fold - 1) / fold * fold} {
        int const file = ::memfd_create("folded", MFD_CLOEXEC);
        REQUIRE(::ftruncate(file, static_cast<off_t>(fold)) == 0);
        void* const place = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        REQUIRE(place != MAP_FAILED);
        begin_ = static_cast<std::byte*>(place);
        for (std::size_t at = 0; at < size_; at += fold) {
            void* const part =
                ::mmap(begin_ + at, fold, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
            REQUIRE(part == begin_ + at);
        }
        ::close(file);
    }
    folded_memory(folded_memory const&) = delete;
    folded_memory& operator=(folded_memory const&) = delete;
    ~folded_memory() { ::munmap(begin_, size_); }

    std::byte* begin() const { return begin_; }

private:
    static constexpr std::size_t fold = std::size_t{2} << 20;
    std::size_t size_;
    std::byte* begin_ = nullptr;
};

}  // namespace

TEST_CASE("a write moves its bytes to the place it names and touches nothing else", "[behaviour]") {
    connected c;
    memory from{c.client, 64};
    memory to{c.server, 64, all_access};
    std::fill_n(from.bytes(), 64, std::byte{7});
    auto const offset = GENERATE(as<std::size_t>{}, 0, 1, 16, 40);
    ibv_sge segment = from.segment(0, 24);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(offset), to.mr->rkey);
    REQUIRE(c.client.post(wr) == 0);
    ibv_wc const wc = c.client.await();
    be(wc, 1, IBV_WC_SUCCESS);
    CHECK(wc.opcode == IBV_WC_RDMA_WRITE);
    CHECK(wc.qp_num == c.client.qp()->qp_num);
    for (std::size_t i = 0; i < 64; ++i) {
        bool const is_inside = i >= offset && i < offset + 24;
        CHECK(to.bytes()[i] == (is_inside ? std::byte{7} : std::byte{0}));
    }
}

TEST_CASE("long messages are whole, in both directions", "[behaviour]") {
    connected c;
    std::size_t const size = 300'001;
    memory ours{c.client, size, all_access};
    memory theirs{c.server, size, all_access};
    for (std::size_t i = 0; i < size; ++i) ours.bytes()[i] = static_cast<std::byte>(i * 31 >> 3);
    ibv_sge segment = ours.segment(0, size);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, theirs.at(), theirs.mr->rkey);
    REQUIRE(c.client.post(wr) == 0);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    CHECK(std::equal(ours.bytes(), ours.bytes() + size, theirs.bytes()));
    std::fill_n(ours.bytes(), size, std::byte{0});
    wr.opcode = IBV_WR_RDMA_READ;
    REQUIRE(c.client.post(wr) == 0);
    ibv_wc const wc = c.client.await();
    be(wc, 1, IBV_WC_SUCCESS);
    CHECK(wc.byte_len == size);
    CHECK(std::equal(ours.bytes(), ours.bytes() + size, theirs.bytes()));
}

TEST_CASE(
    "a remote access error moves the queue pair to the error state and flushes the rest in order",
    "[behaviour]"
) {
    connected c;
    memory from{c.client, 64};
    memory to{c.server, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ};
    memory writable{c.server, 64, all_access};
    enum class wrong { access, key, range, zero_key };
    auto const what = GENERATE(wrong::access, wrong::key, wrong::range, wrong::zero_key);
    ibv_sge segment = from.segment(0, 64);
    ibv_send_wr first = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    if (what != wrong::access) first.wr.rdma = {writable.at(), writable.mr->rkey};
    if (what == wrong::key) first.wr.rdma.rkey ^= 0x00540000;
    if (what == wrong::zero_key) first.wr.rdma.rkey = 0;
    if (what == wrong::range) first.wr.rdma.remote_addr += 1;
    ibv_send_wr second = remote(IBV_WR_RDMA_WRITE, &segment, 1, writable.at(), writable.mr->rkey);
    ibv_send_wr third = second;
    first.next = &second;
    second.next = &third;
    second.wr_id = 2;
    third.wr_id = 3;
    third.send_flags = 0;  // a flushed work request completes even if it is unsignaled
    REQUIRE(c.client.post(first) == 0);
    be(c.client.await(), 1, IBV_WC_REM_ACCESS_ERR);
    be(c.client.await(), 2, IBV_WC_WR_FLUSH_ERR);
    be(c.client.await(), 3, IBV_WC_WR_FLUSH_ERR);
    CHECK(c.client.state() == IBV_QPS_ERR);
    CHECK(std::all_of(writable.bytes(), writable.bytes() + 64, [](std::byte b) {
        return b == std::byte{0};
    }));
    // Later work can be posted, and is flushed.
    ibv_send_wr late = remote(IBV_WR_RDMA_WRITE, &segment, 1, writable.at(), writable.mr->rkey);
    late.wr_id = 4;
    REQUIRE(c.client.post(late) == 0);
    be(c.client.await(), 4, IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE("a key of another protection domain gives no access", "[behaviour]") {
    connected c;
    memory from{c.client, 8};
    owned_pd other{ibv_alloc_pd(c.server.id->verbs)};
    std::vector<std::uint64_t> words(8);
    owned_mr const elsewhere{ibv_reg_mr(other.get(), words.data(), 64, all_access)};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(
        IBV_WR_RDMA_WRITE,
        &segment,
        1,
        reinterpret_cast<std::uintptr_t>(words.data()),
        elsewhere->rkey
    );
    REQUIRE(c.client.post(wr) == 0);
    be(c.client.await(), 1, IBV_WC_REM_ACCESS_ERR);
}

TEST_CASE("a wrong lkey fails the completion, not the post", "[behaviour]") {
    connected c;
    memory from{c.client, 64};
    memory to{c.server, 64, all_access};
    ibv_sge segment = from.segment(0, 64);
    segment.lkey ^= 0x00540000;
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    REQUIRE(c.client.post(wr) == 0);
    be(c.client.await(), 1, here().wrong_local_key);
    CHECK(c.client.state() == IBV_QPS_ERR);
}

TEST_CASE("sends meet receives in order, with their immediate data", "[behaviour]") {
    connected c;
    memory from{c.client, 64};
    memory to{c.server, 64};
    for (std::uint64_t i = 0; i < 4; ++i) {
        ibv_sge into = to.segment(i * 16, 16);
        REQUIRE(c.server.receive(100 + i, &into, 1) == 0);
    }
    for (std::uint64_t i = 0; i < 4; ++i) {
        from.bytes()[i] = static_cast<std::byte>(i + 1);
        ibv_sge segment = from.segment(i, 1);
        ibv_send_wr wr = work(i % 2 == 0 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM, &segment, 1, i);
        wr.imm_data = htonl(0xabcd'0000U + static_cast<std::uint32_t>(i));
        REQUIRE(c.client.post(wr) == 0);
    }
    for (std::uint64_t i = 0; i < 4; ++i) {
        ibv_wc const wc = c.server.await();
        be(wc, 100 + i, IBV_WC_SUCCESS);
        CHECK(wc.opcode == IBV_WC_RECV);
        CHECK(wc.byte_len == 1);
        CHECK(((wc.wc_flags & IBV_WC_WITH_IMM) != 0) == (i % 2 == 1));
        if (i % 2 == 1) CHECK(ntohl(wc.imm_data) == 0xabcd'0000U + i);
        CHECK(to.bytes()[i * 16] == static_cast<std::byte>(i + 1));
        be(c.client.await(), i, IBV_WC_SUCCESS);
    }
}

TEST_CASE(
    "a write with immediate takes a receive, even one without room, and a write without does not",
    "[behaviour]"
) {
    connected c;
    memory from{c.client, 8};
    memory to{c.server, 8, all_access};
    REQUIRE(c.server.receive(100, nullptr, 0) == 0);
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr plain = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    ibv_send_wr with = remote(IBV_WR_RDMA_WRITE_WITH_IMM, nullptr, 0, 0, 0);
    with.imm_data = htonl(42);
    plain.next = &with;
    REQUIRE(c.client.post(plain) == 0);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    ibv_wc const wc = c.server.await();
    be(wc, 100, IBV_WC_SUCCESS);
    CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(wc.byte_len == 0);
    CHECK(ntohl(wc.imm_data) == 42);
    CHECK_FALSE(c.server.poll(50ms));
}

TEST_CASE("a message longer than its receive breaks both sides", "[behaviour]") {
    connected c;
    memory from{c.client, 64};
    memory to{c.server, 64};
    ibv_sge into = to.segment(0, 16);
    REQUIRE(c.server.receive(100, &into, 1) == 0);
    ibv_sge segment = from.segment(0, 17);
    ibv_send_wr wr = work(IBV_WR_SEND, &segment, 1);
    REQUIRE(c.client.post(wr) == 0);
    be(c.server.await(), 100, here().short_receive);
    be(c.client.await(), 1, here().sent_to_short_receive);
    CHECK(c.client.state() == IBV_QPS_ERR);
    CHECK(c.server.state() == IBV_QPS_ERR);
}

TEST_CASE("a send without a posted receive fails after rnr_retry_count retries", "[behaviour]") {
    settings never;
    never.rnr_retry_count = 0;  // the accepting side's value applies to the connecting side
    connected c{{}, never};
    memory from{c.client, 8};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = work(IBV_WR_SEND, &segment, 1);
    REQUIRE(c.client.post(wr) == 0);
    be(c.client.await(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_CASE("a send is retried after RNR until a receive is posted", "[behaviour]") {
    connected c;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.min_rnr_timer = 12;  // 0.64 ms
    REQUIRE(ibv_modify_qp(c.server.qp(), &a, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == 0);
    memory from{c.client, 8};
    memory to{c.server, 8};
    from.words[0] = 42;
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = work(IBV_WR_SEND, &segment, 1);
    REQUIRE(c.client.post(wr) == 0);
    CHECK_FALSE(c.client.poll(20ms));
    ibv_sge into = to.segment(0, 8);
    REQUIRE(c.server.receive(100, &into, 1) == 0);
    be(c.server.await(), 100, IBV_WC_SUCCESS);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    CHECK(to.words[0] == 42);
}

TEST_CASE("atomics return the previous value", "[behaviour]") {
    connected c;
    memory result{c.client, 8};
    memory word{c.server, 8, all_access};
    word.words[0] = 5;
    ibv_sge segment = result.segment(0, 8);
    ibv_send_wr wr = work(IBV_WR_ATOMIC_FETCH_AND_ADD, &segment, 1);
    wr.wr.atomic = {word.at(), 3, 0, word.mr->rkey};
    REQUIRE(c.client.post(wr) == 0);
    ibv_wc const added = c.client.await();
    be(added, 1, IBV_WC_SUCCESS);
    CHECK(added.opcode == IBV_WC_FETCH_ADD);
    CHECK(result.words[0] == 5);
    CHECK(word.words[0] == 8);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    for (std::uint64_t const expected : {8U, 9U}) {
        wr.wr.atomic = {word.at(), expected, 77, word.mr->rkey};
        std::uint64_t const before = word.words[0];
        REQUIRE(c.client.post(wr) == 0);
        be(c.client.await(), 1, IBV_WC_SUCCESS);
        CHECK(result.words[0] == before);
        CHECK(word.words[0] == 77);
    }
}

TEST_CASE("atomics of the wrong size, place or right are refused", "[behaviour]") {
    connected c;
    memory result{c.client, 8};
    memory word{c.server, 16, all_access};
    memory closed{
        c.server, 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
    enum class wrong { place, size, right };
    auto const what = GENERATE(wrong::place, wrong::size, wrong::right);
    ibv_sge segment = result.segment(0, what == wrong::size ? 4 : 8);
    ibv_send_wr wr = work(IBV_WR_ATOMIC_FETCH_AND_ADD, &segment, 1);
    wr.wr.atomic = {word.at(what == wrong::place ? 4 : 0), 1, 0, word.mr->rkey};
    if (what == wrong::right) wr.wr.atomic = {closed.at(), 1, 0, closed.mr->rkey};
    int const posted = c.client.post(wr);
    if (what != wrong::right && here().refuses_odd_atomics_when_posted) {
        CHECK(posted == EINVAL);
        return;
    }
    REQUIRE(posted == 0);
    ibv_wc_status const expected = what == wrong::place  ? IBV_WC_REM_INV_REQ_ERR
                                   : what == wrong::size ? IBV_WC_LOC_LEN_ERR
                                                         : IBV_WC_REM_ACCESS_ERR;
    be(c.client.await(), 1, expected);
    CHECK(word.words[0] == 0);
}

TEST_CASE("a read without a negotiated depth never works", "[behaviour]") {
    settings none;
    none.initiator_depth = 0;
    none.responder_resources = 0;
    connected c{none, none};
    memory into{c.client, 8};
    memory from{c.server, 8, all_access};
    ibv_sge segment = into.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_READ, &segment, 1, from.at(), from.mr->rkey);
    REQUIRE(c.client.post(wr) == 0);
    std::optional<ibv_wc> const wc =
        c.client.poll(here().forgets_reads_without_depth ? 300ms : 10s);
    CHECK(wc.has_value() == !here().forgets_reads_without_depth);
    if (wc) CHECK(wc->status == IBV_WC_LOC_QP_OP_ERR);
}

TEST_CASE("many reads pass through a small depth, in order", "[behaviour]") {
    settings few;
    few.initiator_depth = 1;
    few.responder_resources = 1;
    few.send_depth = 32;
    connected c{few, few};
    memory into{c.client, 8 * 32};
    memory from{c.server, 8 * 32, all_access};
    for (std::size_t i = 0; i < 32; ++i) from.words[i] = i + 1;
    for (std::size_t i = 0; i < 32; ++i) {
        ibv_sge segment = into.segment(8 * i, 8);
        ibv_send_wr wr = remote(IBV_WR_RDMA_READ, &segment, 1, from.at(8 * i), from.mr->rkey);
        wr.wr_id = i;
        REQUIRE(c.client.post(wr) == 0);
    }
    for (std::size_t i = 0; i < 32; ++i) be(c.client.await(), i, IBV_WC_SUCCESS);
    CHECK(into.words == from.words);
}

TEST_CASE("a fence delays later operations until earlier reads have completed", "[behaviour]") {
    connected c;
    memory ours{c.client, 8, all_access};
    memory from{c.server, 8, all_access};
    memory to{c.server, 8, all_access};
    from.words[0] = 42;
    ibv_sge segment = ours.segment(0, 8);
    ibv_send_wr read = remote(IBV_WR_RDMA_READ, &segment, 1, from.at(), from.mr->rkey);
    ibv_send_wr write = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    write.send_flags |= IBV_SEND_FENCE;
    read.next = &write;
    REQUIRE(c.client.post(read) == 0);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    CHECK(to.words[0] == 42);
}

TEST_CASE("bytes are gathered and scattered", "[behaviour]") {
    connected c;
    memory from{c.client, 64};
    memory to{c.server, 64, all_access};
    for (std::size_t i = 0; i < 64; ++i) from.bytes()[i] = static_cast<std::byte>(i);
    ibv_sge pieces[] = {
        from.segment(40, 3), from.segment(0, 5), from.segment(63, 1), from.segment(8, 0)};
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, pieces, 4, to.at(1), to.mr->rkey);
    REQUIRE(c.client.post(wr) == 0);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    std::vector<int> const expected{0, 40, 41, 42, 0, 1, 2, 3, 4, 63, 0};
    for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(static_cast<int>(to.bytes()[i]) == expected[i]);
    ibv_sge places[] = {to.segment(50, 2), to.segment(30, 7)};
    REQUIRE(c.server.receive(100, places, 2) == 0);
    wr = work(IBV_WR_SEND, pieces, 4);
    REQUIRE(c.client.post(wr) == 0);
    ibv_wc const wc = c.server.await();
    be(wc, 100, IBV_WC_SUCCESS);
    CHECK(wc.byte_len == 9);
    CHECK(static_cast<int>(to.bytes()[51]) == 41);
    CHECK(static_cast<int>(to.bytes()[30]) == 42);
    CHECK(static_cast<int>(to.bytes()[36]) == 63);
}

TEST_CASE("more segments than asked for are refused when posted", "[behaviour]") {
    settings one;
    one.segments = 1;
    connected c{one, one};
    memory from{c.client, 64};
    std::vector<ibv_sge> many(40, from.segment(0, 1));  // more than any device rounds up to
    ibv_send_wr wr = work(IBV_WR_SEND, many.data(), 40);
    ibv_send_wr* bad = nullptr;
    CHECK(c.client.post(wr, &bad) == EINVAL);
    CHECK(bad == &wr);
    CHECK(c.client.state() == IBV_QPS_RTS);
}

TEST_CASE("inline bytes are the program's again at once, and need no key", "[behaviour]") {
    settings inlined;
    inlined.inline_bytes = 64;
    connected c{inlined, {}};
    memory to{c.server, 64, all_access};
    std::uint64_t word = 42;
    ibv_sge segment{reinterpret_cast<std::uintptr_t>(&word), sizeof word, 0};
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    wr.send_flags |= IBV_SEND_INLINE;
    REQUIRE(c.client.post(wr) == 0);
    word = 0;
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    CHECK(to.words[0] == 42);
    std::vector<std::byte> big(8192);
    segment = {reinterpret_cast<std::uintptr_t>(big.data()), 8192, 0};
    CHECK(c.client.post(wr) == EINVAL);
}

TEST_CASE(
    "a list longer than the queue is posted in part, and bad_wr points to the first request left "
    "out",
    "[behaviour]"
) {
    connected c;
    memory from{c.client, 8};
    memory to{c.server, 8, all_access};
    ibv_sge segment = from.segment(0, 8);
    std::vector<ibv_send_wr> list(
        200, remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey)
    );
    for (std::size_t i = 0; i < list.size(); ++i) {
        list[i].wr_id = i;
        list[i].send_flags = 0;
        list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    CHECK(c.client.post(list[0], &bad) == ENOMEM);
    REQUIRE(bad != nullptr);
    auto const taken = static_cast<std::size_t>(bad - list.data());
    if (here().rounds_queues_up) {
        CHECK(taken >= 16);
    } else {
        CHECK(taken == 16);
    }
    ibv_recv_wr* bad_receive = nullptr;
    std::vector<ibv_recv_wr> receives(200);
    for (std::size_t i = 0; i + 1 < receives.size(); ++i) receives[i].next = &receives[i + 1];
    CHECK(ibv_post_recv(c.server.qp(), receives.data(), &bad_receive) == ENOMEM);
    CHECK(bad_receive - receives.data() >= 16);
}

TEST_CASE(
    "unsignaled work fills the send queue until a signaled request completes", "[behaviour]"
) {
    connected c;
    memory from{c.client, 8};
    memory to{c.server, 8, all_access};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    wr.send_flags = 0;
    int posted = 0;
    while (posted < 1000 && c.client.post(wr) == 0) {
        ++posted;
        std::this_thread::sleep_for(10us);
    }
    if (here().frees_unpolled_work) {
        CHECK(posted == 1000);
        return;
    }
    CHECK(posted == 16);
    // Waiting does not help: polling one completion would free all slots, but no request is
    // signaled.
    std::this_thread::sleep_for(5ms);
    CHECK(c.client.post(wr) == ENOMEM);
}

TEST_CASE("a completion frees the slots of all earlier unsignaled work", "[behaviour]") {
    connected c;
    memory from{c.client, 8};
    memory to{c.server, 8, all_access};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    for (int round = 0; round < 100; ++round) {
        for (int i = 0; i < 16; ++i) {
            wr.send_flags = i == 15 ? IBV_SEND_SIGNALED : 0;
            wr.wr_id = static_cast<std::uint64_t>(i);
            REQUIRE(c.client.post(wr) == 0);
        }
        be(c.client.await(), 15, IBV_WC_SUCCESS);
    }
}

TEST_CASE("the longest message is the device's", "[behaviour]") {
    connected c;
    ibv_port_attr port{};
    REQUIRE(ibv_query_port(c.client.id->verbs, 1, &port) == 0);
    std::size_t const size = std::size_t{port.max_msg_sz} + 1;
    folded_memory const bytes{size};
    owned_mr const from{
        ibv_reg_mr(c.client.pd.get(), bytes.begin(), size, int{IBV_ACCESS_LOCAL_WRITE})};
    owned_mr const to{ibv_reg_mr(c.server.pd.get(), bytes.begin(), size, all_access)};
    REQUIRE(from);
    REQUIRE(to);
    auto const at = reinterpret_cast<std::uintptr_t>(bytes.begin());
    ibv_sge segment{at, static_cast<std::uint32_t>(size), from->lkey};
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, at, to->rkey);
    REQUIRE(c.client.post(wr) == 0);
    std::optional<ibv_wc> const wc = c.client.poll(5min);
    REQUIRE(wc);
    be(*wc, 1, here().too_long_message);
}

TEST_CASE(
    "an armed completion queue raises one event, and none for completions that it already had",
    "[behaviour]"
) {
    connected c;
    memory from{c.client, 8};
    memory to{c.server, 8, all_access};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    pollfd readable{c.client.completions->fd, POLLIN, 0};

    REQUIRE(c.client.post(wr) == 0);
    CHECK(::poll(&readable, 1, 100) == 0);
    REQUIRE(ibv_req_notify_cq(c.client.cq.get(), 0) == 0);
    CHECK(::poll(&readable, 1, 100) == 0);

    REQUIRE(c.client.post(wr) == 0);
    CHECK(::poll(&readable, 1, 5000) == 1);
    ibv_cq* source = nullptr;
    void* context = nullptr;
    REQUIRE(ibv_get_cq_event(c.client.completions.get(), &source, &context) == 0);
    CHECK(source == c.client.cq.get());
    REQUIRE(c.client.post(wr) == 0);
    CHECK(::poll(&readable, 1, 100) == 0);
    ibv_ack_cq_events(source, 1);
    for (int i = 0; i < 3; ++i) be(c.client.await(), 1, IBV_WC_SUCCESS);
}

TEST_CASE("an overrun queue raises an event of the device's", "[behaviour]") {
    settings tight;
    tight.completion_depth = 1;
    tight.send_depth = 512;
    connected c{tight, {}};
    memory from{c.client, 8};
    memory to{c.server, 8, all_access};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, to.at(), to.mr->rkey);
    for (int i = 0; i < 400; ++i) REQUIRE(c.client.post(wr) == 0);
    pollfd readable{c.client.id->verbs->async_fd, POLLIN, 0};
    REQUIRE(::poll(&readable, 1, 5000) == 1);
    ibv_async_event event{};
    REQUIRE(ibv_get_async_event(c.client.id->verbs, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_CQ_ERR);
    CHECK(event.element.cq == c.client.cq.get());
    ibv_ack_async_event(&event);
    if (!here().survives_overrun) CHECK(c.client.state() == IBV_QPS_ERR);
}

TEST_CASE(
    "a shared receive queue serves its queue pair, and raises an event below its limit",
    "[behaviour]"
) {
    settings shared;
    shared.is_shared = true;
    connected c{{}, shared};
    memory from{c.client, 8};
    memory to{c.server, 8};
    ibv_sge into = to.segment(0, 8);
    for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(c.server.receive(100 + i, &into, 1) == 0);
    ibv_srq_attr low{};
    low.srq_limit = 2;
    REQUIRE(ibv_modify_srq(c.server.srq.get(), &low, IBV_SRQ_LIMIT) == 0);
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = work(IBV_WR_SEND, &segment, 1);
    for (std::uint64_t i = 0; i < 2; ++i) {
        REQUIRE(c.client.post(wr) == 0);
        be(c.server.await(), 100 + i, IBV_WC_SUCCESS);
    }
    pollfd readable{c.server.id->verbs->async_fd, POLLIN, 0};
    REQUIRE(::poll(&readable, 1, 5000) == 1);
    ibv_async_event event{};
    REQUIRE(ibv_get_async_event(c.server.id->verbs, &event) == 0);
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
    CHECK(event.element.srq == c.server.srq.get());
    ibv_ack_async_event(&event);
    ibv_recv_wr* bad = nullptr;
    ibv_recv_wr own{};
    CHECK(ibv_post_recv(c.server.qp(), &own, &bad) != 0);
}

TEST_CASE("a memory window opens a part of a region until it is invalidated", "[behaviour]") {
    connected c;
    memory from{c.client, 8};
    memory region{c.server, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND};
    ibv_mw* const window = ibv_alloc_mw(c.server.pd.get(), IBV_MW_TYPE_2);
    REQUIRE(window != nullptr);
    ibv_send_wr bind = work(IBV_WR_BIND_MW, nullptr, 0, 50);
    bind.bind_mw.mw = window;
    bind.bind_mw.rkey = ibv_inc_rkey(window->rkey);
    bind.bind_mw.bind_info = {region.mr.get(), region.at(8), 16, IBV_ACCESS_REMOTE_WRITE};
    REQUIRE(c.server.post(bind) == 0);
    be(c.server.await(), 50, IBV_WC_SUCCESS);

    from.words[0] = 42;
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = remote(IBV_WR_RDMA_WRITE, &segment, 1, region.at(8), bind.bind_mw.rkey);
    REQUIRE(c.client.post(wr) == 0);
    be(c.client.await(), 1, IBV_WC_SUCCESS);
    CHECK(region.words[1] == 42);

    enum class closing { by_owner, by_peer, not_at_all };
    auto const how = GENERATE(closing::by_owner, closing::by_peer, closing::not_at_all);
    bool const is_withdrawn = how != closing::not_at_all;
    if (how == closing::by_peer) {
        REQUIRE(c.server.receive(100, nullptr, 0) == 0);
        ibv_send_wr send = work(IBV_WR_SEND_WITH_INV, nullptr, 0, 52);
        send.invalidate_rkey = bind.bind_mw.rkey;
        REQUIRE(c.client.post(send) == 0);
        ibv_wc const arrived = c.server.await();
        be(arrived, 100, IBV_WC_SUCCESS);
        if (!here().hides_invalidation) {
            CHECK((arrived.wc_flags & IBV_WC_WITH_INV) != 0);
            CHECK(arrived.invalidated_rkey == bind.bind_mw.rkey);
        }
        be(c.client.await(), 52, IBV_WC_SUCCESS);
    } else if (how == closing::by_owner) {
        ibv_send_wr invalidate = work(IBV_WR_LOCAL_INV, nullptr, 0, 51);
        invalidate.invalidate_rkey = bind.bind_mw.rkey;
        REQUIRE(c.server.post(invalidate) == 0);
        be(c.server.await(), 51, IBV_WC_SUCCESS);
    } else {
        wr.wr.rdma.remote_addr = region.at(0);  // outside of the window
    }
    REQUIRE(c.client.post(wr) == 0);
    bool const is_let_in = !is_withdrawn && here().ignores_bounds_of_windows;
    be(c.client.await(), 1, is_let_in ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    if (is_let_in) {
        // While a window is bound, SoftRoCE blocks the destruction of the queue pair for 50 s.
        ibv_send_wr invalidate = work(IBV_WR_LOCAL_INV, nullptr, 0, 53);
        invalidate.invalidate_rkey = bind.bind_mw.rkey;
        REQUIRE(c.server.post(invalidate) == 0);
        be(c.server.await(), 53, IBV_WC_SUCCESS);
    }
    rdma_destroy_qp(c.server.id.get());
    CHECK(ibv_dealloc_mw(window) == 0);
}

TEST_CASE(
    "objects in use cannot be destroyed, and contradictory access flags are refused", "[behaviour]"
) {
    connected c;
    std::uint64_t word = 0;
    owned_mr const mr{
        ibv_reg_mr(c.client.pd.get(), &word, sizeof word, int{IBV_ACCESS_LOCAL_WRITE})};
    REQUIRE(mr);
    CHECK(ibv_dealloc_pd(c.client.pd.get()) == EBUSY);
    CHECK(ibv_destroy_cq(c.client.cq.get()) == EBUSY);
    CHECK(ibv_destroy_comp_channel(c.client.completions.get()) == EBUSY);
    int const contradicting = GENERATE(int{IBV_ACCESS_REMOTE_WRITE}, int{IBV_ACCESS_REMOTE_ATOMIC});
    owned_mr const refused{ibv_reg_mr(c.client.pd.get(), &word, sizeof word, contradicting)};
    CHECK(refused == nullptr);
    CHECK(errno == EINVAL);
}

TEST_CASE("the error state flushes posted receives", "[behaviour]") {
    connected c;
    memory to{c.server, 64};
    ibv_sge into = to.segment(0, 8);
    for (std::uint64_t i = 0; i < 5; ++i) REQUIRE(c.server.receive(100 + i, &into, 1) == 0);
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(c.server.qp(), &a, IBV_QP_STATE) == 0);
    for (std::uint64_t i = 0; i < 5; ++i) be(c.server.await(), 100 + i, IBV_WC_WR_FLUSH_ERR);
}

TEST_CASE(
    "in the error state no attribute can be modified, except access flags on some devices",
    "[behaviour]"
) {
    connected c;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE) == 0);
    CHECK(
        ibv_modify_qp(c.client.qp(), &a, IBV_QP_ACCESS_FLAGS) ==
        (here().modifies_access_in_error_state ? 0 : EINVAL)
    );
    a.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == EINVAL);
}

TEST_CASE("in RTS the ACK timeout cannot be modified, and min_rnr_timer can", "[behaviour]") {
    connected c;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.timeout = 10;
    CHECK(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE | IBV_QP_TIMEOUT) == EINVAL);
    a.min_rnr_timer = 3;
    CHECK(ibv_modify_qp(c.client.qp(), &a, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER) == 0);
}

TEST_CASE(
    "a completion queue armed for solicited completions raises no event for others", "[behaviour]"
) {
    connected c;
    memory from{c.client, 8};
    memory to{c.server, 8};
    ibv_sge into = to.segment(0, 8);
    for (std::uint64_t i = 0; i < 2; ++i) REQUIRE(c.server.receive(100 + i, &into, 1) == 0);
    REQUIRE(ibv_req_notify_cq(c.server.cq.get(), 1) == 0);
    pollfd readable{c.server.completions->fd, POLLIN, 0};
    ibv_sge segment = from.segment(0, 8);
    ibv_send_wr wr = work(IBV_WR_SEND, &segment, 1);
    REQUIRE(c.client.post(wr) == 0);
    be(c.server.await(), 100, IBV_WC_SUCCESS);
    CHECK(::poll(&readable, 1, 100) == 0);
    wr.send_flags |= IBV_SEND_SOLICITED;
    REQUIRE(c.client.post(wr) == 0);
    CHECK(::poll(&readable, 1, 5000) == 1);
    ibv_cq* source = nullptr;
    void* context = nullptr;
    REQUIRE(ibv_get_cq_event(c.server.completions.get(), &source, &context) == 0);
    be(c.server.await(), 101, IBV_WC_SUCCESS);

    // Destroying the completion queue blocks until its event is acknowledged.
    rdma_destroy_qp(c.server.id.get());
    std::atomic<bool> is_destroyed{false};
    std::thread destroyer{[&] {
        c.server.cq.reset();
        is_destroyed = true;
    }};
    std::this_thread::sleep_for(100ms);
    CHECK_FALSE(is_destroyed);
    ibv_ack_cq_events(source, 1);
    destroyer.join();
    CHECK(is_destroyed);
}

TEST_CASE(
    "memory that is mapped read-only is registered for reading, private or shared", "[behaviour]"
) {
    connected c;
    int const file = ::memfd_create("page", MFD_CLOEXEC);
    REQUIRE(::ftruncate(file, 4096) == 0);
    for (int const sharing : {MAP_PRIVATE, MAP_SHARED}) {
        INFO((sharing == MAP_PRIVATE ? "private" : "shared"));
        void* const page = ::mmap(nullptr, 4096, PROT_READ, sharing, file, 0);
        REQUIRE(page != MAP_FAILED);
        errno = 0;
        ibv_mr* const region =
            ibv_reg_mr(c.client.pd.get(), page, 4096, static_cast<int>(IBV_ACCESS_REMOTE_READ));
        bool const is_possible =
            sharing == MAP_PRIVATE || here().registers_shared_read_only_mappings;
        CHECK((region != nullptr) == is_possible);
        if (region == nullptr) CHECK(errno == EFAULT);
        else CHECK(ibv_dereg_mr(region) == 0);
        ::munmap(page, 4096);
    }
    ::close(file);
}
