#include "common/lockable.hpp"

#include <linux/capability.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace demo {

namespace {

constexpr std::uint64_t unlimited = UINT64_MAX;

// A number of /proc/self/status; 0 if it is not there.
std::uint64_t status_number(std::string const& name, int base) {
    std::ifstream in{"/proc/self/status"};
    for (std::string word; in >> word;) {
        if (word != name) continue;
        in >> word;
        return std::stoull(word, nullptr, base);
    }
    return 0;
}

// The first user namespace maps every user to itself. Source: user_namespaces(7).
bool is_in_first_user_namespace() {
    std::ifstream in{"/proc/self/uid_map"};
    std::uint64_t inside = 0;
    std::uint64_t outside = 0;
    std::uint64_t count = 0;
    // Kernels without user namespaces have no such file.
    return !(in >> inside >> outside >> count) || count == UINT32_MAX;
}

}  // namespace

std::uint64_t lockable_bytes_max() {
    bool const may_lock_all = (status_number("CapEff:", 16) >> CAP_IPC_LOCK & 1U) != 0;
    rlimit limit{};
    if ((may_lock_all && is_in_first_user_namespace()) ||
        ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return unlimited;
    return limit.rlim_cur;
}

std::uint64_t lockable_bytes_left() {
    std::uint64_t const most = lockable_bytes_max();
    if (most == unlimited) return unlimited;
    std::uint64_t const locked = (status_number("VmLck:", 10) + status_number("VmPin:", 10)) * 1024;
    return most - std::min(locked, most);
}

}  // namespace demo
