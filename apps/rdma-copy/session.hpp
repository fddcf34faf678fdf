// session.hpp — one copy from its first message to its last, on either side.
#pragma once

#include <boost/asio/awaitable.hpp>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "rdma-copy/disk.hpp"
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

/// Nothing is copied: the server refuses, or the target cannot be opened.
class refused : public std::runtime_error {
public:
    using runtime_error::runtime_error;
};

/// A copy to or from a server, over a link that is connected. Throws `refused`, and
/// boost::system::system_error when the connection ends.
asio::awaitable<result> push(
    link& to,
    disk& files,
    std::vector<std::string> const& sources,
    std::string const& target,
    bool replaces,
    failure_report report
);
asio::awaitable<result> pull(
    link& from,
    disk& files,
    std::string const& source,
    std::string const& target,
    bool replaces,
    failure_report report
);

/// What a server does for a client: everything inside of `root`.
asio::awaitable<result> serve(
    link& client, disk& files, tree const& root, std::string const& root_name, failure_report report
);

}  // namespace copy
