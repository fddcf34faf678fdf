// result.hpp — what a copy has done.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace copy {

/// Counters of one copy; both sides count, while it goes on.
struct result {
    std::uint64_t entries = 0;  // finished: files, directories and links
    std::uint64_t bytes = 0;  // of finished files
    std::uint64_t failed = 0;  // entries
    std::uint64_t moved =
        0;  // bytes that were sent or have arrived, holes too, also of unfinished files
    std::uint64_t continued = 0;  // bytes that an earlier copy has left
    std::string current;  // the file that bytes were moved of last
    struct whole {
        std::uint64_t entries = 0;
        std::uint64_t bytes = 0;
    };
    std::optional<whole> total;  // of all sources, when they are counted
};

/// Says what has happened to an entry: its path, and why it was not copied.
using failure_report = std::function<void(std::string const& path, std::string const& why)>;

/// An errno in words. ESTALE is a source that has changed, EBADMSG a block that has, EUCLEAN what the disk
/// does not give back.
std::string why(int error);

}  // namespace copy
