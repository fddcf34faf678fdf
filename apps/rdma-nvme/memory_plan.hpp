// memory_plan.hpp — fits a target into the memory that the process may lock, before it serves anybody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <rcverbs/nvme/target.hpp>

namespace demo {

/// What the user wants: so many queues, or as many as there is memory for.
enum class queue_wish { exactly, at_most };

/// Sets staging_bytes_max, and with queue_wish::at_most lowers connections_max to what fits.
///
/// @param limits      connections_max is the number of queues that is wished for.
/// @param subsystems  What is served.
/// @param lockable    Bytes that the process may lock; UINT64_MAX for no limit.
/// @return One sentence if the queues are fewer than wished for; else empty.
/// @throws std::runtime_error if it does not fit: the limit, and both numbers.
std::string fit_into_memory(
    rcverbs::nvme::target_options& limits,
    std::vector<rcverbs::nvme::subsystem_options> const& subsystems,
    std::uint64_t lockable,
    queue_wish wish
);

/// Throws std::runtime_error if these subsystems need more memory with these limits than the process may
/// lock.
void check_memory(
    rcverbs::nvme::target_options const& limits,
    std::vector<rcverbs::nvme::subsystem_options> const& subsystems,
    std::uint64_t lockable
);

}  // namespace demo
