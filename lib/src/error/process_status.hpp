// process_status.hpp — what the kernel says of this process's memory.
#pragma once

#include <cstdint>
#include <string>

namespace rcverbs::detail {

/// A field of a file like /proc/self/status, read in the given base. 0 if there is none. Source:
/// proc(5).
std::uint64_t status_field(char const* file, std::string const& name, int base);

/// Bytes that this process may lock, in all; the greatest number if there is no limit.
std::uint64_t lockable_bytes_max();
/// Bytes that it has pinned: registered memory.
std::uint64_t pinned_bytes();

}  // namespace rcverbs::detail
