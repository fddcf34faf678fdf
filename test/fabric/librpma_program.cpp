// A program of librpma's, both sides of it: remote memory by a descriptor in the private data, write, flush, read, atomic write, and
// messages, with a shared receive queue in the server. Uses nothing of this project.
//
//     librpma_program server ADDRESS PORT
//     librpma_program client ADDRESS PORT
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <librpma.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

namespace {

constexpr std::size_t region_bytes = 4096;
constexpr std::size_t message_bytes = 64;
constexpr std::uint32_t notice = 0xfffffffe;

// What a side says of its memory, in its private data.
struct description {
    std::uint8_t bytes = 0;
    std::array<char, 55> descriptor{};
};

void check(bool is_right, char const* what) {
    if (is_right) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

void succeed(int result, char const* what) {
    if (result == 0) return;
    std::fprintf(stderr, "%s: %s\n", what, rpma_err_2str(result));
    std::exit(1);
}
#define SUCCEED(call) succeed(call, #call)

std::byte pattern(std::size_t at) { return std::byte(at * 7 + 3); }

struct memory {
    memory(rpma_peer* peer, std::size_t bytes, int usage) {
        auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
        start = static_cast<std::byte*>(std::aligned_alloc(page, (bytes + page - 1) / page * page));
        std::memset(start, 0, bytes);
        SUCCEED(rpma_mr_reg(peer, start, bytes, usage, &region));
    }
    memory(memory const&) = delete;
    memory& operator=(memory const&) = delete;
    ~memory() {
        SUCCEED(rpma_mr_dereg(&region));
        std::free(start);
    }
    std::byte* start;
    rpma_mr_local* region = nullptr;
};

rpma_peer* make_peer(char const* address, rpma_util_ibv_context_type type) {
    ibv_context* device = nullptr;
    SUCCEED(rpma_utils_get_ibv_context(address, type, &device));
    rpma_peer* peer = nullptr;
    SUCCEED(rpma_peer_new(device, &peer));
    return peer;
}

void expect(rpma_conn* conn, rpma_conn_event wanted) {
    rpma_conn_event event = RPMA_CONN_UNDEFINED;
    SUCCEED(rpma_conn_next_event(conn, &event));
    check(event == wanted, rpma_utils_conn_event_2str(event));
}

ibv_wc take(rpma_cq* cq) {
    ibv_wc wc{};
    int result = 0;
    do {
        SUCCEED(rpma_cq_wait(cq));
        result = rpma_cq_get_wc(cq, 1, &wc, nullptr);
    } while (result == RPMA_E_NO_COMPLETION);
    succeed(result, "rpma_cq_get_wc");
    check(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
    return wc;
}

void finish(rpma_conn* conn, bool is_first) {
    if (is_first) SUCCEED(rpma_conn_disconnect(conn));
    expect(conn, RPMA_CONN_CLOSED);
    if (!is_first) SUCCEED(rpma_conn_disconnect(conn));
    SUCCEED(rpma_conn_delete(&conn));
}

void serve(char const* address, char const* port) {
    rpma_peer* peer = make_peer(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
    {
        memory shared{
            peer,
            region_bytes,
            RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY};
        memory messages{peer, message_bytes, RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV};
        rpma_srq* receives = nullptr;
        SUCCEED(rpma_srq_new(peer, nullptr, &receives));
        SUCCEED(rpma_srq_recv(receives, messages.region, 0, message_bytes, nullptr));
        rpma_conn_cfg* configuration = nullptr;
        SUCCEED(rpma_conn_cfg_new(&configuration));
        SUCCEED(rpma_conn_cfg_set_srq(configuration, receives));
        rpma_ep* endpoint = nullptr;
        SUCCEED(rpma_ep_listen(peer, address, port, &endpoint));
        rpma_conn_req* request = nullptr;
        SUCCEED(rpma_ep_next_conn_req(endpoint, configuration, &request));

        description own;
        std::size_t bytes = 0;
        SUCCEED(rpma_mr_get_descriptor_size(shared.region, &bytes));
        check(bytes <= own.descriptor.size(), "a descriptor that is too long");
        own.bytes = static_cast<std::uint8_t>(bytes);
        SUCCEED(rpma_mr_get_descriptor(shared.region, own.descriptor.data()));
        rpma_conn_private_data const data{&own, sizeof own};
        rpma_conn* conn = nullptr;
        SUCCEED(rpma_conn_req_connect(&request, &data, &conn));
        expect(conn, RPMA_CONN_ESTABLISHED);

        rpma_cq* received = nullptr;
        SUCCEED(rpma_srq_get_rcq(receives, &received));
        ibv_wc const wc = take(received);
        check(wc.opcode == IBV_WC_RECV && wc.byte_len == message_bytes, "another message");
        check((wc.wc_flags & IBV_WC_WITH_IMM) != 0 && ntohl(wc.imm_data) == notice, "no notice");
        for (std::size_t i = 0; i < region_bytes - 8; ++i)
            check(shared.start[i] == pattern(i), "other bytes");
        check(std::memcmp(shared.start + region_bytes - 8, "8 bytes.", 8) == 0, "other 8 bytes");
        rpma_cq* cq = nullptr;
        SUCCEED(rpma_conn_get_cq(conn, &cq));
        SUCCEED(
            rpma_send(conn, messages.region, 0, message_bytes, RPMA_F_COMPLETION_ALWAYS, nullptr)
        );
        check(take(cq).opcode == IBV_WC_SEND, "another completion");
        finish(conn, false);
        SUCCEED(rpma_ep_shutdown(&endpoint));
        SUCCEED(rpma_conn_cfg_delete(&configuration));
        SUCCEED(rpma_srq_delete(&receives));
    }
    SUCCEED(rpma_peer_delete(&peer));
}

void use(char const* address, char const* port) {
    rpma_peer* peer = make_peer(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
    {
        memory here{
            peer,
            region_bytes,
            RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_SEND |
                RPMA_MR_USAGE_RECV};
        rpma_conn_req* request = nullptr;
        SUCCEED(rpma_conn_req_new(peer, address, port, nullptr, &request));
        SUCCEED(rpma_conn_req_recv(request, here.region, 0, message_bytes, nullptr));
        rpma_conn* conn = nullptr;
        SUCCEED(rpma_conn_req_connect(&request, nullptr, &conn));
        expect(conn, RPMA_CONN_ESTABLISHED);
        rpma_conn_private_data data{};
        SUCCEED(rpma_conn_get_private_data(conn, &data));
        check(data.len >= sizeof(description), "no description");
        description theirs;
        std::memcpy(&theirs, data.ptr, sizeof theirs);
        rpma_mr_remote* there = nullptr;
        SUCCEED(rpma_mr_remote_from_descriptor(theirs.descriptor.data(), theirs.bytes, &there));
        std::size_t bytes = 0;
        SUCCEED(rpma_mr_remote_get_size(there, &bytes));
        check(bytes == region_bytes, "another size");

        rpma_cq* cq = nullptr;
        SUCCEED(rpma_conn_get_cq(conn, &cq));
        std::span<std::byte> const all{here.start, region_bytes};
        for (std::size_t i = 0; i < all.size(); ++i) all[i] = pattern(i);
        SUCCEED(rpma_write(
            conn, there, 0, here.region, 0, region_bytes, RPMA_F_COMPLETION_ON_ERROR, nullptr
        ));
        SUCCEED(rpma_atomic_write(
            conn, there, region_bytes - 8, "8 bytes.", RPMA_F_COMPLETION_ON_ERROR, nullptr
        ));
        SUCCEED(rpma_flush(
            conn,
            there,
            0,
            region_bytes,
            RPMA_FLUSH_TYPE_VISIBILITY,
            RPMA_F_COMPLETION_ALWAYS,
            nullptr
        ));
        take(cq);
        std::ranges::fill(all, std::byte{0});
        SUCCEED(rpma_read(
            conn, here.region, 0, there, 0, region_bytes, RPMA_F_COMPLETION_ALWAYS, nullptr
        ));
        check(take(cq).opcode == IBV_WC_RDMA_READ, "another completion");
        for (std::size_t i = 0; i < all.size() - 8; ++i)
            check(all[i] == pattern(i), "other bytes were read");
        check(std::memcmp(&all[region_bytes - 8], "8 bytes.", 8) == 0, "other 8 bytes were read");
        SUCCEED(rpma_send_with_imm(
            conn, here.region, 0, message_bytes, RPMA_F_COMPLETION_ON_ERROR, notice, nullptr
        ));
        check(take(cq).opcode == IBV_WC_RECV, "no answer");
        SUCCEED(rpma_mr_remote_delete(&there));
        finish(conn, true);
    }
    SUCCEED(rpma_peer_delete(&peer));
}

}  // namespace

int main(int argc, char** argv) {
    check(argc == 4, "librpma_program server|client ADDRESS PORT");
    std::setvbuf(stderr, nullptr, _IONBF, 0);
    (std::string{argv[1]} == "server" ? serve : use)(argv[2], argv[3]);
    std::puts("all as expected");
}
