// configuration.hpp — what rdma-nvme serves: from the command line, or from a JSON file.
#pragma once

#include <boost/asio/any_io_executor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <rcverbs/nvme/file_store.hpp>
#include <rcverbs/nvme/target.hpp>

namespace demo {

/// A namespace as the user describes it.
struct disk_description {
    std::uint32_t id = 1;
    /// A file or a block device; or the URI of an NBD server; or an image of Ceph; all empty for memory.
    std::string file;
    std::string nbd;
    std::string rbd;
    std::uint64_t memory_bytes = 0;
    /// Empty for what the file holds, or what the server demands, or for 4096 bytes in memory.
    std::optional<std::uint32_t> block_bytes;
    bool is_read_only = false;
    /// The file may be used by others at the same time.
    bool is_shared = false;
    /// Past the page cache.
    bool is_direct = false;
    std::optional<std::array<std::byte, 16>> uuid;
    rcverbs::nvme::file_method method = rcverbs::nvme::file_method::automatic;
    /// Of an NBD server: each write is durable when it completes.
    bool writes_through = false;
    std::uint32_t connections = 4;
    /// Of an image of Ceph; empty for Ceph's own.
    std::string ceph_configuration;
    std::string keyring;
    std::uint32_t ana_group = 1;
    /// The file with the reservations of hosts; empty if they may not reserve the disk.
    std::string reservations;

    friend bool operator==(disk_description const&, disk_description const&) = default;
};

struct subsystem_description {
    std::string nqn;
    std::vector<std::string> allowed_hosts;
    std::vector<rcverbs::nvme::host_secrets> secrets;
    /// Empty for the library's.
    std::string serial_number;
    std::string model;
    /// By the number of a group.
    std::map<std::uint32_t, rcverbs::nvme::ana_state> ana_states;
    /// Of other gateways.
    std::vector<rcverbs::endpoint> other_addresses;
    std::vector<disk_description> disks;
};

/// Thrown for a configuration that makes no sense; what() names the place.
struct configuration_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Thrown for a disk that cannot be opened; what() names it, and why.
class disk_error : public boost::system::system_error {
public:
    disk_error(boost::system::system_error const& why, std::string const& nqn, std::uint32_t id);
    char const* what() const noexcept override { return text_.c_str(); }

private:
    std::string text_;
};

/// True if every user of the machine may read the file.
bool is_readable_by_all(std::filesystem::path const& file);
/// A size in bytes, with or without a unit: 4096, 64K, 512M, 2G, 1T (powers of 1024). Throws
/// configuration_error.
std::uint64_t parse_size(std::string const& text);
/// FIRST-LAST, 1 to 65519. Throws configuration_error.
std::pair<std::uint16_t, std::uint16_t> parse_controller_ids(std::string const& text);
/// A text of the library's with the names of this program's options and of the configuration's
/// fields instead of the library's.
std::string plain_names(std::string text);
/// The text of an error for a user: of an option, after the configuration file that has it (empty for
/// none).
std::string plain_text(std::exception const& e, std::string const& configuration);
/// auto, io_uring or threads. Throws configuration_error.
rcverbs::nvme::file_method parse_method(std::string const& text);

/// Reads the JSON file that rdma-nvme(1) describes. Throws configuration_error.
std::vector<subsystem_description> read_configuration(std::filesystem::path const& file);

/// What differs between two configurations: a line for each subsystem and namespace that was added,
/// changed or removed.
std::vector<std::string> changes(
    std::vector<subsystem_description> const& before,
    std::vector<subsystem_description> const& after
);

/// What stores of servers need.
struct store_surroundings {
    boost::asio::any_io_executor on;
    /// A namespace has something to say, or another size. On the executor.
    std::function<void(std::string const& nqn, std::uint32_t id, std::string const& text)> on_event;
    std::function<void(std::string const& nqn, std::uint32_t id)> on_resized;
    /// block_store::is_reached() has changed. As above.
    std::function<void(std::string const& nqn)> on_reached;
};

/// True if this program was built with the library that the disk needs.
bool can_serve(disk_description const& d) noexcept;

/// What is served: the subsystems, and the descriptions that they were opened for, in the same order.
struct opened_subsystems {
    std::vector<subsystem_description> described;
    std::vector<rcverbs::nvme::subsystem_options> options;
};

/// Opens the stores of all subsystems. A disk that was described alike before keeps its store, unless
/// another file has taken the name of its file, or the store has lost writes. Waits for servers.
///
/// @param before  What is served now; empty at the start. Stays as it is.
/// @throws disk_error.
opened_subsystems open_stores(
    std::vector<subsystem_description> all,
    opened_subsystems const& before = {},
    store_surroundings const& around = {}
);

/// What the stores on servers have counted.
struct server_statistics {
    std::string subsystem;
    std::uint32_t namespace_id = 0;
    std::uint64_t connections_lost = 0;
    std::uint64_t repeated = 0;
    std::uint64_t given_up = 0;
};
std::vector<server_statistics> statistics_of_servers(opened_subsystems const& all);

}  // namespace demo
