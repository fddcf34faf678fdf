#include "connection/resource_limits.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>

#include "error/process_status.hpp"

namespace rcverbs::detail {

namespace {

constexpr std::size_t connections_max = 4096;
// For the connection manager's channel, the device, the io_context, and the program's own files.
constexpr std::size_t reserved_descriptors = 24;
constexpr std::size_t page_bytes = 4096;
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

std::size_t free_descriptors() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return unlimited;
    std::error_code ec;
    std::size_t open = reserved_descriptors;
    for (std::filesystem::directory_iterator i{"/proc/self/fd", ec}, end; !ec && i != end;
         i.increment(ec))
        ++open;
    return limit.rlim_cur > open ? limit.rlim_cur - open : 0;
}

std::size_t lockable_bytes() {
    std::uint64_t const most = lockable_bytes_max();
    if (most == unlimited) return unlimited;
    std::uint64_t const pinned = pinned_bytes();
    return most > pinned ? most - pinned : 0;
}

constexpr std::size_t round_up(std::size_t n) {
    return (n + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

std::size_t affordable_connections(acceptor_options const& o) {
    // The first term is the memory for the results of atomics.
    std::size_t const locked =
        round_up(o.connection.queue_pair.send_queue_depth * sizeof(std::uint64_t)) +
        round_up(o.locked_bytes_per_connection);
    std::size_t const by_descriptors = o.descriptors_per_connection == 0
                                           ? unlimited
                                           : free_descriptors() / o.descriptors_per_connection;
    std::size_t const affordable = std::min(by_descriptors, lockable_bytes() / locked);
    return std::clamp<std::size_t>(affordable, 1, connections_max);
}

}  // namespace rcverbs::detail
