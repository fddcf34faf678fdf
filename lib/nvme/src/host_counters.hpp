// host_counters.hpp — counters of the I/O commands of each host to each namespace.
//
// Hosts choose their names, so at most rows_max rows have one. When all exist, a row that no controller
// holds is added to the row of its namespace's other hosts, which has no name. So the sum over the hosts of a
// namespace never falls. Safe from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <rcverbs/nvme/target.hpp>

#include "command.hpp"
#include "command_state.hpp"

namespace rcverbs::nvme::detail {

/// Of one host and namespace.
class host_counters {
public:
    using clock = std::chrono::steady_clock;

    /// A command has ended, this long after it arrived.
    void note(command const& c, status how, clock::duration after) noexcept;
    /// A store has completed a request that it had for this long.
    void note_store(clock::duration after) noexcept;
    /// An old command is counted in another state.
    void move_old(command_state from, command_state to) noexcept { old_.move(from, to); }
    /// Adds those of another one, which has no old commands.
    void add(host_statistics const& other) noexcept;
    /// Writes the numbers, not the names.
    void write(host_statistics& to) const noexcept;

private:
    using number = std::atomic<std::uint64_t>;
    number reads_{0};
    number read_bytes_{0};
    number read_time_{0};
    number writes_{0};
    number written_bytes_{0};
    number write_time_{0};
    number other_commands_{0};
    number other_time_{0};
    number store_requests_{0};
    number store_time_{0};
    number invalid_{0};
    number out_of_range_{0};
    number write_protected_{0};
    number media_{0};
    number differing_{0};
    number transient_{0};
    old_command_counters old_;
};

class host_counter_table {
public:
    static constexpr std::size_t rows_max = 1024;

    /// The counters of a host and a namespace. They keep their row for as long as they are held.
    std::shared_ptr<host_counters> find_or_add(
        std::string const& subsystem, std::uint32_t namespace_id, std::string const& host
    );
    std::vector<host_statistics> snapshot() const;

private:
    // Subsystem, namespace and host; no host for all others.
    using key = std::tuple<std::string, std::uint32_t, std::string>;
    std::shared_ptr<host_counters> row(key const& name);
    bool make_room();

    mutable std::mutex mutex_;
    std::map<key, std::shared_ptr<host_counters>> rows_;  // guarded by mutex_
    std::size_t named_ = 0;  // rows with a host; guarded by mutex_
};

}  // namespace rcverbs::nvme::detail
