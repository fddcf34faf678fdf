// result.hpp — what a copy has done.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace copy {

/// Counters of one copy; both sides count.
struct result {
    std::uint64_t entries = 0;  // finished: files, directories and links
    std::uint64_t bytes = 0;  // of files, as far as they are on the disk
    std::uint64_t failed = 0;  // entries
};

/// Says what has happened to an entry: its path, and why it was not copied.
using failure_report = std::function<void(std::string const& path, std::string const& why)>;

/// An errno in words. ESTALE is a source that has changed, EBADMSG a block that has.
std::string why(int error);

}  // namespace copy
