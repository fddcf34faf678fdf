// session.hpp — one copy from its first message to its last, on either side.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "rdma-copy/disk.hpp"
#include "rdma-copy/exclusions.hpp"
#include "rdma-copy/link.hpp"
#include "rdma-copy/result.hpp"
#include "rdma-copy/tree.hpp"

namespace copy {

/// A place on a server: `host:path`, `[ipv6]:path`.
struct remote_place {
    std::string host;
    std::string path;
};
/// None for a local path: one without a colon, or with a slash before it.
std::optional<remote_place> parse_place(std::string const& text);
/// True for the path of the served directory itself.
bool is_served_root(std::string const& path);

/// Nothing is copied: the server refuses, or the target cannot be opened.
class refused : public std::runtime_error {
public:
    using runtime_error::runtime_error;
};

struct copy_options {
    /// Existing files and links are replaced.
    bool replaces = false;
    /// Entries get the user and group of their sources, and set-user-ID, set-group-ID and sticky bits.
    bool keeps_owners = false;
    /// Files and directories get the extended attributes and ACLs of their sources.
    extended keeps{};
    /// The receiver reads each file back from its disk.
    bool verifies = false;
    /// The sender counts all first.
    bool wants_total = false;
    /// Files that exist with the size and the time of their sources are finished, and so are links that
    /// exist.
    bool continues = false;
    /// The source gets the target's name, also if there is a directory of that name.
    bool is_onto = false;
    /// What is not copied.
    exclusions excluded{};
    /// Nothing is written; what would be copied is counted as if it were, and listed.
    bool lists = false;
    listing listed{};
    /// Directories of the target lose what those of the source do not have, except what is excluded, as long as nothing
    /// fails.
    bool deletes = false;
    listing listed_deletion{};
    /// Of the data that is sent, by the server as well; 0 for no limit, else rate_min or more.
    std::uint64_t bytes_per_second = 0;
};

/// A copy to or from a server, over a link that is connected. `counters` change while it goes on, and
/// outlive it. Throws `refused`, and boost::system::system_error when the connection ends.
asio::awaitable<void> push(
    link& to,
    disk& files,
    std::vector<std::string> const& sources,
    std::string const& target,
    copy_options const& options,
    failure_report report,
    result& counters
);
asio::awaitable<void> pull(
    link& from,
    disk& files,
    std::string const& source,
    std::string const& target,
    copy_options const& options,
    failure_report report,
    result& counters
);

/// What a server offers.
struct served_directory {
    tree root;
    /// What a client calls it that copies all of it.
    std::string name;
    /// Clients may give files to any user.
    bool allows_owners = false;
    /// Clients may delete.
    bool allows_deletes = false;
    /// Clients may set these.
    extended allows = {};
};
/// What a server does for a client: everything inside of the directory. Throws
/// boost::system::system_error when the connection ends.
asio::awaitable<void> serve(
    link& client,
    disk& files,
    served_directory const& directory,
    failure_report report,
    result& counters
);

}  // namespace copy
