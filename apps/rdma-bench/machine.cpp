#include "rdma-bench/machine.hpp"

#include <boost/system/system_error.hpp>

#include <infiniband/verbs.h>
#include <nlohmann/json.hpp>
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <fstream>

#include "common/printable.hpp"

namespace rdma_bench {

namespace {

// The value in KiB that follows a name in one of the files of /proc.
std::uint64_t kibibytes(char const* path, std::string const& name) {
    std::ifstream in{path};
    std::string line;
    while (std::getline(in, line)) {
        if (line.rfind(name + ":", 0) == 0)
            return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
    }
    return 0;
}

double seconds(timeval const& t) noexcept {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
}

}  // namespace

side_facts facts_of(rcverbs::connection const& c) {
    side_facts f{kernel(), processors(), {}, c.local_endpoint().address().to_string(), 0};
    ibv_qp* const queue_pair = c.native_handle();
    if (queue_pair == nullptr) return f;
    f.device = ::ibv_get_device_name(queue_pair->context->device);
    ibv_qp_attr about{};
    ibv_qp_init_attr ignored{};
    // The values 1 to 5 stand for 256 to 4096. Source: enum ibv_mtu.
    if (::ibv_query_qp(queue_pair, &about, IBV_QP_PATH_MTU, &ignored) == 0)
        f.path_mtu = 128U << about.path_mtu;
    return f;
}

void to_json(nlohmann::json& out, side_facts const& f) {
    out = {
        {"kernel", f.kernel},
        {"processors", f.processors},
        {"device", f.device},
        {"address", f.address},
        {"path_mtu", f.path_mtu}};
}

side_facts parse_facts(nlohmann::json const& in) {
    auto const text = [&](char const* name) {
        bool const is_text = in.is_object() && in.contains(name) && in[name].is_string();
        return is_text ? demo::printable(in[name].get<std::string>()) : std::string{};
    };
    auto const number = [&](char const* name) {
        bool const is_number = in.is_object() && in.contains(name) && in[name].is_number_unsigned();
        return is_number ? in[name].get<unsigned>() : 0U;
    };
    return {
        text("kernel"), number("processors"), text("device"), text("address"), number("path_mtu")};
}

double cpu_seconds() noexcept {
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::uint64_t resident_bytes() { return kibibytes("/proc/self/status", "VmRSS") << 10; }
std::uint64_t available_bytes() { return kibibytes("/proc/meminfo", "MemAvailable") << 10; }

std::string kernel() {
    utsname u{};
    ::uname(&u);
    return std::string{u.sysname} + " " + u.release + " " + u.machine;
}

unsigned processors() noexcept {
    cpu_set_t set;
    CPU_ZERO(&set);
    return ::sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set))
                                                         : 1;
}

void raise_file_limit() noexcept {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    files.rlim_cur = files.rlim_max;
    // A failure shows later, when descriptors run out.
    static_cast<void>(::setrlimit(RLIMIT_NOFILE, &files));
}

void pin_this_thread(int processor) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (processor >= 0 && processor < CPU_SETSIZE) CPU_SET(static_cast<unsigned>(processor), &set);
    if (int const error = ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set);
        error != 0) {
        throw boost::system::system_error{
            error, boost::system::system_category(), "processor " + std::to_string(processor)};
    }
}

}  // namespace rdma_bench
