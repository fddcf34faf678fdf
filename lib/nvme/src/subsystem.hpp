// subsystem.hpp — the namespaces of a subsystem, and the hosts that may connect to it. Safe from any
// thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/nvme/target.hpp>

#include "command.hpp"
#include "identity.hpp"
#include "reservation_keeper.hpp"

namespace rcverbs::nvme::detail {

class store_regions;

/// What outlives a change of a namespace's geometry.
struct disk_state {
    /// The registrations of the store's memory, made by the first queue that transfers directly: see
    /// regions_of().
    std::mutex regions_mutex;
    std::shared_ptr<store_regions> regions;
    /// The failures that were reported, at most failures_max. Another store of the same disk goes on
    /// with them. Used on the target's executor only.
    static constexpr std::size_t failures_max = 16;
    using failure_list = std::vector<std::pair<store_operation, error_code>>;
    std::shared_ptr<failure_list> failures = std::make_shared<failure_list>();
};

/// How the disks of a group are reached. Read by any thread.
struct ana_group {
    std::atomic<ana_state> state{ana_state::optimized};
    std::uint64_t changes = 0;  // guarded by its subsystem
};

/// A namespace as it is served. Commands under way keep one that was removed.
struct disk {
    namespace_options options;
    store_geometry geometry;
    uuid_bytes uuid{};
    std::shared_ptr<disk_state> state = std::make_shared<disk_state>();
    std::shared_ptr<ana_group> group;
    /// Null if hosts cannot reserve it.
    std::shared_ptr<reservation_keeper> reservations;

    std::uint64_t blocks() const noexcept { return geometry.size_bytes / geometry.block_bytes; }
    bool is_read_only() const noexcept { return options.is_read_only || geometry.is_read_only; }
};

/// What the logs of a subsystem's controllers show, whatever becomes of the controllers. Safe from any
/// thread.
class subsystem_log {
public:
    static constexpr std::size_t errors_max = 64;
    struct error {
        std::uint16_t queue = 0;
        std::uint16_t command_id = 0;
        status why = status::success;
        std::uint64_t first_block = 0;
        std::uint32_t namespace_id = 0;
    };

    /// The error of number n, from 1, is at n % errors_max.
    struct error_list {
        std::array<error, errors_max> newest;
        std::uint64_t seen = 0;
    };

    void note(error const& e) noexcept {
        std::lock_guard const lock{mutex_};
        errors_.newest[++errors_.seen % errors_max] = e;
    }
    error_list errors() const {
        std::lock_guard const lock{mutex_};
        return errors_;
    }

    // Of I/O that succeeded.
    std::atomic<std::uint64_t> reads{0};
    std::atomic<std::uint64_t> read_bytes{0};
    std::atomic<std::uint64_t> writes{0};
    std::atomic<std::uint64_t> written_bytes{0};

private:
    mutable std::mutex mutex_;
    error_list errors_;  // guarded by mutex_
};

/// The problem of an option with its place, such as "subsystem NQN, namespace 1"; empty without one.
inline std::string problem_in(std::string const& place, std::string const& problem) {
    return problem.empty() ? problem : place + ": " + problem;
}

class subsystem {
public:
    static constexpr std::uint32_t namespace_id_max = 1024;
    static constexpr std::uint32_t ana_groups_max = 32;
    /// Disks in the order of their numbers.
    using disk_map = std::map<std::uint32_t, std::shared_ptr<disk>>;

    /// @throws boost::system::system_error: errc::invalid_option.
    explicit subsystem(subsystem_options options);

    /// The subsystem of the discovery controllers.
    static std::shared_ptr<subsystem> discovery();

    std::string const& nqn() const noexcept { return nqn_; }
    std::string serial_number() const;
    std::string model() const;
    std::vector<endpoint> other_addresses() const;
    bool is_discovery() const noexcept { return nqn_ == discovery_nqn; }

    subsystem_log& log() noexcept { return log_; }

    /// Whether a host may connect, and how it authenticates.
    struct admission {
        enum class verdict { allowed, not_allowed, has_no_secret };
        verdict is = verdict::allowed;
        /// None if hosts need no secret.
        std::optional<host_secrets> secrets;
    };
    admission admit(std::string const& host) const;

    disk_map disks() const;
    /// Null if there is none with that number.
    std::shared_ptr<disk> find(std::uint32_t id) const;

    /// A disk that can be added. @throws boost::system::system_error: errc::invalid_option.
    std::shared_ptr<disk> make(namespace_options what) const;
    /// These change the namespaces. @throws boost::system::system_error: errc::invalid_option.
    void add(std::shared_ptr<disk> const& made);
    void remove(std::uint32_t id);
    void refresh(std::uint32_t id);
    /// Exchanges the namespaces, hosts and texts with those of a new subsystem of the same NQN. A
    /// namespace whose store is the same stays the same disk.
    ///
    struct changes {
        std::vector<std::uint32_t> namespaces;  // their numbers
        bool has_ana = false;
    };
    changes exchange(subsystem& other);

    /// True if that is another state. @throws boost::system::system_error: errc::invalid_option.
    bool set_ana_state(std::uint32_t group, ana_state now);
    struct ana_row {
        std::uint32_t group = 0;
        std::uint64_t changes = 0;
        ana_state state = ana_state::optimized;
        std::vector<std::uint32_t> namespaces;
    };
    struct ana_rows {
        std::uint64_t changes = 0;
        std::vector<ana_row> groups;  // that have namespaces
    };
    ana_rows ana() const;

private:
    // These need the lock.
    std::shared_ptr<ana_group> const& group_at(std::uint32_t number) const;
    bool store_ana_state(std::uint32_t group, ana_state now);

    std::string const nqn_;
    subsystem_log log_;
    mutable std::mutex mutex_;
    // Guarded by mutex_.
    subsystem_options options_;
    disk_map disks_;
    mutable std::map<std::uint32_t, std::shared_ptr<ana_group>> groups_;
    std::uint64_t ana_changes_ = 0;
};

/// A disk with the NQN of its subsystem.
struct served_disk {
    std::string nqn;
    std::shared_ptr<disk> of;
};

/// Refuses two disks with one UUID, which hosts take for the same bytes: always in one subsystem, else unless
/// namespace_options::uuid says so for both.
///
/// @throws boost::system::system_error: errc::invalid_option.
void check_uuids(std::vector<served_disk> const& all);

}  // namespace rcverbs::nvme::detail
