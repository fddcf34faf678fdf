// The rest of libibverbs' interface, so that its real functions never get an object of the fabric.
// What has no meaning here fails as on a device that lacks it.
#include <infiniband/verbs.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace {

// Multiples of 2.5 Gbit/s, and Mbit/s. Source: enum ibv_rate; libibverbs' tables.
struct rate {
    ibv_rate code;
    int multiple;
    int mbps;
};
constexpr rate rates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},
    {IBV_RATE_5_GBPS, 2, 5000},
    {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},
    {IBV_RATE_30_GBPS, 12, 30000},
    {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},
    {IBV_RATE_80_GBPS, 32, 80000},
    {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, 6, 14062},
    {IBV_RATE_25_GBPS, 10, 25781},
    {IBV_RATE_56_GBPS, 22, 56250},
    {IBV_RATE_100_GBPS, 40, 103125},
    {IBV_RATE_112_GBPS, 45, 112500},
    {IBV_RATE_168_GBPS, 67, 168750},
    {IBV_RATE_200_GBPS, 80, 206250},
    {IBV_RATE_300_GBPS, 120, 309375},
};

template <class Match>
rate const* find_rate(Match match) noexcept {
    auto const* const found = std::find_if(std::begin(rates), std::end(rates), match);
    return found == std::end(rates) ? nullptr : found;
}

}  // namespace

extern "C" {

int ibv_get_device_index(ibv_device*) { return -1; }

char const* ibv_get_sysfs_path() { return "/sys"; }

int ibv_read_sysfs_file(char const* directory, char const* file, char* text, std::size_t size) {
    char path[512];
    std::snprintf(path, sizeof path, "%s/%s", directory, file);
    int const fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t count = ::read(fd, text, size);
    ::close(fd);
    if (count <= 0) return -1;
    if (text[count - 1] == '\n') text[--count] = '\0';
    return static_cast<int>(count);
}

int ibv_read_ibdev_sysfs_file(char*, std::size_t, ibv_device*, char const*, ...) { return -1; }

// RoCE v2 is 1 here: the enumeration is not that of ibv_gid_type.
int ibv_query_gid_type(ibv_context* in, std::uint8_t port, unsigned index, unsigned* type) {
    ibv_gid gid;
    if (ibv_query_gid(in, port, static_cast<int>(index), &gid) != 0) return -1;
    *type = 1;
    return 0;
}

int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, std::uint8_t*, std::uint16_t*) {
    return EOPNOTSUPP;
}
int ibv_init_ah_from_wc(ibv_context*, std::uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) {
    errno = EOPNOTSUPP;
    return -1;
}
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, std::uint32_t) { return 0; }
int ibv_dontfork_range(void*, std::size_t) { return 0; }
int ibv_dofork_range(void*, std::size_t) { return 0; }

ibv_context* ibv_import_device(int) {
    errno = EOPNOTSUPP;
    return nullptr;
}
ibv_pd* ibv_import_pd(ibv_context*, std::uint32_t) {
    errno = EOPNOTSUPP;
    return nullptr;
}
ibv_mr* ibv_import_mr(ibv_pd*, std::uint32_t) {
    errno = EOPNOTSUPP;
    return nullptr;
}
ibv_dm* ibv_import_dm(ibv_context*, std::uint32_t) {
    errno = EOPNOTSUPP;
    return nullptr;
}
void ibv_unimport_pd(ibv_pd*) {}
void ibv_unimport_mr(ibv_mr*) {}
void ibv_unimport_dm(ibv_dm*) {}

int ibv_rate_to_mult(ibv_rate code) {
    rate const* const found = find_rate([=](rate const& r) { return r.code == code; });
    return found != nullptr ? found->multiple : -1;
}
ibv_rate mult_to_ibv_rate(int multiple) {
    rate const* const found = find_rate([=](rate const& r) { return r.multiple == multiple; });
    return found != nullptr ? found->code : IBV_RATE_MAX;
}
int ibv_rate_to_mbps(ibv_rate code) {
    rate const* const found = find_rate([=](rate const& r) { return r.code == code; });
    return found != nullptr ? found->mbps : -1;
}
ibv_rate mbps_to_ibv_rate(int mbps) {
    rate const* const found = find_rate([=](rate const& r) { return r.mbps == mbps; });
    return found != nullptr ? found->code : IBV_RATE_MAX;
}
}
