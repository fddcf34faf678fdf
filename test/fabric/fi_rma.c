// fi_rma.c — libfabric's remote memory access over its verbs provider: fi_rma PORT listens, fi_rma PORT ADDRESS connects, writes a
// block of the server's memory, reads it back and compares. Each side ends with 0 if all went well.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

enum { block_bytes = 1 << 20, rounds = 50 };

#define CHECK(call)                                                   \
    do {                                                              \
        int const failed = (int)(call);                               \
        if (failed < 0) {                                             \
            fprintf(stderr, "%s: %s\n", #call, fi_strerror(-failed)); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

struct target {
    uint64_t address;
    uint64_t key;
};

static struct fid_eq* events;
static struct fid_domain* domain;
static struct fid_ep* endpoint;
static struct fid_cq* completions;
static struct fid_mr* memory;
static char* block;

static struct fi_info* find(char const* address, char const* port, uint64_t flags) {
    struct fi_info* const hints = fi_allocinfo();
    struct fi_info* found = NULL;
    hints->ep_attr->type = FI_EP_MSG;
    hints->caps = FI_MSG | FI_RMA;
    hints->mode = FI_LOCAL_MR;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("verbs");
    CHECK(fi_getinfo(FI_VERSION(1, 9), address, port, flags, hints, &found));
    fi_freeinfo(hints);
    return found;
}

// Waits for an event, and copies its private data.
static struct fi_info* await_event(uint32_t wanted, void* data, size_t size) {
    char bytes[sizeof(struct fi_eq_cm_entry) + 256];
    struct fi_eq_cm_entry* const entry = (struct fi_eq_cm_entry*)bytes;
    uint32_t event = 0;
    ssize_t const count = fi_eq_sread(events, &event, bytes, sizeof bytes, 20000, 0);
    CHECK(count);
    if (event != wanted) {
        fprintf(stderr, "event %u instead of %u\n", event, wanted);
        exit(1);
    }
    if (data != NULL) memcpy(data, entry->data, size);
    return entry->info;
}

static void open_endpoint(struct fid_fabric* fabric, struct fi_info* info) {
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
    CHECK(fi_domain(fabric, info, &domain, NULL));
    CHECK(fi_cq_open(domain, &queue, &completions, NULL));
    CHECK(fi_endpoint(domain, info, &endpoint, NULL));
    CHECK(fi_ep_bind(endpoint, &events->fid, 0));
    CHECK(fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV));
    CHECK(fi_enable(endpoint));
    block = calloc(2, block_bytes);
    CHECK(fi_mr_reg(
        domain,
        block,
        2 * block_bytes,
        FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
        0,
        0,
        0,
        &memory,
        NULL
    ));
}

static void await_completion(void) {
    struct fi_cq_entry entry;
    CHECK(fi_cq_sread(completions, &entry, 1, NULL, 20000));
}

static void serve(char const* port) {
    struct fi_info* const info = find(NULL, port, FI_SOURCE);
    struct fid_fabric* fabric;
    struct fi_eq_attr queue = {.wait_obj = FI_WAIT_FD};
    struct fid_pep* door;
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_eq_open(fabric, &queue, &events, NULL));
    CHECK(fi_passive_ep(fabric, info, &door, NULL));
    CHECK(fi_pep_bind(door, &events->fid, 0));
    CHECK(fi_listen(door));
    open_endpoint(fabric, await_event(FI_CONNREQ, NULL, 0));
    struct target const mine = {(uintptr_t)block, fi_mr_key(memory)};
    CHECK(fi_accept(endpoint, &mine, sizeof mine));
    await_event(FI_CONNECTED, NULL, 0);
    await_event(FI_SHUTDOWN, NULL, 0);
    if ((unsigned char)block[block_bytes - 1] != rounds) {
        fprintf(stderr, "the last write is not in the memory\n");
        exit(1);
    }
}

static void ask(char const* port, char const* address) {
    struct fi_info* const info = find(address, port, 0);
    struct fid_fabric* fabric;
    struct fi_eq_attr queue = {.wait_obj = FI_WAIT_FD};
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(fi_eq_open(fabric, &queue, &events, NULL));
    open_endpoint(fabric, info);
    struct target its;
    CHECK(fi_connect(endpoint, info->dest_addr, NULL, 0));
    await_event(FI_CONNECTED, &its, sizeof its);
    for (int round = 1; round <= rounds; ++round) {
        memset(block, round, block_bytes);
        CHECK(fi_write(
            endpoint, block, block_bytes, fi_mr_desc(memory), 0, its.address, its.key, NULL
        ));
        await_completion();
        char* const back = block + block_bytes;
        CHECK(
            fi_read(endpoint, back, block_bytes, fi_mr_desc(memory), 0, its.address, its.key, NULL)
        );
        await_completion();
        if (memcmp(block, back, block_bytes) != 0) {
            fprintf(stderr, "round %d: what was read is not what was written\n", round);
            exit(1);
        }
    }
    CHECK(fi_shutdown(endpoint, 0));
}

int main(int argc, char** argv) {
    if (argc == 2) serve(argv[1]);
    else if (argc == 3) ask(argv[1], argv[2]);
    else return 2;
    return 0;
}
