// subsystem.hpp — the namespaces of a subsystem, and the hosts that may connect to it. Safe from any
// thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <rcverbs/nvme/target.hpp>

namespace rcverbs::nvme::detail {

class store_regions;

/// The registrations of a store's memory, made by the first queue that transfers directly.
struct region_cell {
    std::shared_ptr<store_regions> made;
};

/// A namespace as it is served. Commands under way keep one that was removed.
struct disk {
    namespace_options options;
    store_geometry geometry;
    std::array<std::byte, 16> uuid{};
    /// Outlives a change of the geometry; its contents are used on the target's executor only.
    std::shared_ptr<region_cell> regions = std::make_shared<region_cell>();

    std::uint64_t blocks() const noexcept { return geometry.size_bytes / geometry.block_bytes; }
    bool is_read_only() const noexcept { return options.is_read_only || geometry.is_read_only; }
};

class subsystem {
public:
    static constexpr std::uint32_t namespace_id_max = 1024;
    /// Disks in the order of their numbers.
    using disk_map = std::map<std::uint32_t, std::shared_ptr<disk>>;

    /// @throws boost::system::system_error: errc::invalid_option.
    explicit subsystem(subsystem_options options);

    /// The subsystem of the discovery controllers.
    static std::shared_ptr<subsystem> discovery();

    std::string const& nqn() const noexcept { return options_.nqn; }
    std::string const& serial_number() const noexcept { return options_.serial_number; }
    std::string const& model() const noexcept { return options_.model; }
    bool is_discovery() const noexcept { return options_.nqn == discovery_nqn; }
    bool allows(std::string const& host) const noexcept;
    bool has_secrets() const noexcept { return !options_.secrets.empty(); }
    /// Null if the host has none.
    host_secrets const* secrets_of(std::string const& host) const noexcept;

    disk_map disks() const;
    /// Null if there is none with that number.
    std::shared_ptr<disk> find(std::uint32_t id) const;

    /// These change the namespaces. @throws boost::system::system_error: errc::invalid_option.
    void add(namespace_options what);
    void remove(std::uint32_t id);
    void refresh(std::uint32_t id);

private:
    subsystem_options options_;
    mutable std::mutex mutex_;
    disk_map disks_;
};

}  // namespace rcverbs::nvme::detail
