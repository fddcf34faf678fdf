#include "error/process_status.hpp"

#include <linux/capability.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <limits>

namespace rcverbs::detail {

std::uint64_t status_field(char const* file, std::string const& name, int base) {
    std::ifstream status{file};
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, base);
    }
    return 0;
}

std::uint64_t lockable_bytes_max() {
    constexpr auto unlimited = std::numeric_limits<std::uint64_t>::max();
    bool const is_privileged =
        (status_field("/proc/self/status", "CapEff:", 16) >> CAP_IPC_LOCK & 1U) != 0;
    rlimit limit{};
    if (is_privileged || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
        return unlimited;
    return limit.rlim_cur;
}

std::uint64_t pinned_bytes() { return status_field("/proc/self/status", "VmPin:", 10) * 1024; }

}  // namespace rcverbs::detail
