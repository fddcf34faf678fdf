#include "rdma-nvme/memory_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include <rcverbs/registration_limit.hpp>

namespace demo {

namespace nvme = rcverbs::nvme;

namespace {

// Of staging memory, each queue has one such part, and the rest is common.
constexpr std::size_t part_bytes = 65536;
// Of a host: one of administration, and one for I/O.
constexpr std::size_t queues_min = 2;

using subsystem_list = std::vector<nvme::subsystem_options>;

rcverbs::registration_limit limit_of(std::uint64_t needed, std::uint64_t lockable) {
    return {rcverbs::registration_limit::kind::locked_bytes, needed, lockable};
}

[[noreturn]] void refuse(std::uint64_t needed, std::uint64_t lockable, char const* remedy) {
    throw std::runtime_error{
        limit_of(needed, lockable).message() + ", or with LimitMEMLOCK= in a systemd unit" +
        remedy};
}

}  // namespace

void check_memory(
    nvme::target_options const& limits, subsystem_list const& subsystems, std::uint64_t lockable
) {
    std::uint64_t const needed = nvme::registered_bytes_max(subsystems, limits);
    if (needed > lockable) refuse(needed, lockable, "");
}

std::string fit_into_memory(
    nvme::target_options& limits,
    subsystem_list const& subsystems,
    std::uint64_t lockable,
    queue_wish wish
) {
    std::size_t const wished = limits.connections_max;
    std::size_t const common_min = std::size_t{2} * limits.transfer_bytes_max;
    std::size_t const common_usual = std::max(
        limits.staging_bytes_max - std::min(limits.staging_bytes_max, wished * part_bytes),
        std::size_t{32} << 20
    );
    auto const need = [&](std::size_t queues, std::size_t common) {
        limits.connections_max = queues;
        limits.staging_bytes_max = common + queues * part_bytes;
        return nvme::registered_bytes_max(subsystems, limits);
    };
    if (need(wished, common_usual) <= lockable) return "";
    std::size_t const queues_least =
        wish == queue_wish::exactly ? wished : std::min(wished, queues_min);
    std::uint64_t const least = need(queues_least, common_min);
    if (least > lockable)
        refuse(least, lockable, wish == queue_wish::exactly ? ", or lower --max-queues" : "");
    // A share of what is left for the common memory, as much as fits for the queues, and the rest, which
    // is less than a queue, stays free.
    std::uint64_t const spare = lockable - least;
    std::size_t const pools = limits.io_pollers.size() + 1;
    std::uint64_t const share = wish == queue_wish::exactly ? spare : spare / 4;
    std::size_t const common =
        std::min<std::uint64_t>(common_usual, common_min + share / pools / part_bytes * part_bytes);
    std::size_t queues = wished;
    while (queues > queues_least && need(queues, common) > lockable) --queues;
    std::uint64_t const chosen = need(queues, common);
    if (chosen > lockable) refuse(chosen, lockable, "");
    if (queues == wished) return "";
    return "The target serves at most " + std::to_string(queues) + " queues instead of " +
           std::to_string(wished) + ", since the process may lock " +
           std::to_string(lockable / 1024) + " KiB (RLIMIT_MEMLOCK).";
}

}  // namespace demo
