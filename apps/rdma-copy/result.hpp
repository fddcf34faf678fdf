// result.hpp — what a copy has done.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "rdma-copy/copy_message.hpp"

namespace copy {

/// Counters of one copy; both sides count, while it goes on.
struct result {
    std::uint64_t entries = 0;  // finished: files, directories and links, each once
    std::uint64_t bytes = 0;  // of finished files
    std::uint64_t failed = 0;  // entries, and names that could not be deleted
    std::uint64_t deleted = 0;  // names at the target
    std::uint64_t moved =
        0;  // bytes that were sent or have arrived, holes too, also of unfinished files
    std::uint64_t continued = 0;  // bytes that an earlier copy has left
    std::string current;  // the file that bytes were moved of last
    struct whole {
        std::uint64_t entries = 0;
        std::uint64_t bytes = 0;
    };
    std::optional<whole> total;  // of all sources, when they are counted
    not_kept lost;  // complete at the end, on both sides
    std::optional<hello> asked;  // of a server: what it does for the client, if it does not refuse
};

/// Counts, and stays at the largest number: a peer's files with holes may have any size.
inline void add_to(std::uint64_t& counter, std::uint64_t more) noexcept {
    counter += std::min(more, UINT64_MAX - counter);
}

/// Says that an entry would be copied, or a name deleted.
using listing = std::function<void(std::string const& path)>;

/// Says what has happened to an entry: its path, and why it was not copied.
using failure_report = std::function<void(std::string const& path, std::string const& why)>;

/// What no system call for files reports.
inline constexpr int error_type_not_copied = ESOCKTNOSUPPORT;
inline constexpr int error_name_reserved = EBADRQC;
inline constexpr int error_name_twice = ENOTUNIQ;
inline constexpr int error_place_unclear = ENAVAIL;
inline constexpr int error_names_too_many = EXFULL;
inline constexpr int error_source_changed = EREMCHG;
inline constexpr int error_target_changed = ESTRPIPE;
inline constexpr int error_into_itself = EDOTDOT;
inline constexpr int error_names_differ = ELIBBAD;
inline constexpr int error_names_to_keep = ELIBMAX;

/// An errno, or one of the above, in words. EBADMSG is a block that has changed, EUCLEAN what the disk does
/// not give back.
std::string why(int error);
/// Of an error that reading the source had.
std::string why_of_source(int error);
/// The same of an error that the other side has had.
///
/// @param side  "source" or "target".
std::string why_there(std::string const& side, int error);
/// Of a name that stays, and should not.
std::string not_deleted(std::string const& why);

}  // namespace copy
